//! Datagrams between whole devices: address handles, Q_Keys, the network header before each message, and what a
//! failure stops.

mod support;

use std::net::IpAddr;
use support::{Side, async_event, device, eventually, ipv6_device, pattern, poll_all, send};
use uroce::verbs::{
    AddressHandle, AddressHandleAttributes, AsyncEventType, Device, Gid, GlobalRoute, Mtu, PORT, QKey,
    QpAttributeMask as Mask, QpAttributes, QpCapabilities, QpInitAttributes, QpState, QpType, QueuePair,
    ReceiveWorkRequest, SendOperation, SendWorkRequest, Sge, SrqInitAttributes, Target, WcOpcode, WcStatus,
};

const QKEY: QKey = QKey(0x1122_3344);
const GRH: usize = 40;
const MEMORY: usize = 16 << 10;

/// A datagram queue pair, ready, and its memory.
fn side(device: &Device) -> Side {
    let cap = QpCapabilities { max_send_sge: 4, max_recv_sge: 4, ..QpCapabilities::default() };
    let side = Side::of_type(QpType::Ud, device, cap, MEMORY);
    side.qp.open_datagrams(QKEY).unwrap();
    side
}

fn way_to(address: IpAddr) -> AddressHandleAttributes {
    AddressHandleAttributes {
        grh: GlobalRoute { dgid: Gid::from(address), hop_limit: 64, ..GlobalRoute::default() },
        is_global: true,
        port_num: PORT,
        ..AddressHandleAttributes::default()
    }
}

fn handle(from: &Side, to: &Side) -> AddressHandle {
    from.pd.create_ah(&way_to(to.context.device().address())).unwrap()
}

fn to(from: &Side, to: &Side) -> Target {
    handle(from, to).target(to.qp.qp_num(), QKEY)
}

fn datagram<'a>(wr_id: u64, target: Target, list: &'a [Sge]) -> SendWorkRequest<'a> {
    SendWorkRequest { target, ..send(wr_id, SendOperation::Send, list) }
}

/// Posts a receive for a message of `length` bytes at `offset`.
fn receive(side: &Side, wr_id: u64, offset: usize, length: usize) {
    side.receive(wr_id, side.mr.sge(offset, GRH + length));
}

/// The ones' complement sum over 16-bit words, 0xffff for a header whose checksum is right.
fn sum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    (sum % 0xffff) as u16
}

#[test]
fn a_datagram_arrives_with_its_sender_and_its_network_header() {
    let (a, b) = (side(&device()), side(&device()));
    a.mr.write(0, &pattern(4096, 1)).unwrap();
    for length in [0, 1, 100, 4096] {
        receive(&b, 1, 0, length);
        let list = [a.mr.sge(0, length)];
        let request = SendWorkRequest {
            operation: SendOperation::SendWithImmediate(0xabcd),
            solicited: true,
            ..datagram(2, to(&a, &b), &list)
        };
        a.qp.post_send(&[request]).unwrap();
        let sent = a.completion();
        assert_eq!((sent.wr_id, sent.status, sent.opcode), (2, WcStatus::Success, WcOpcode::Send));
        let received = b.completion();
        assert_eq!((received.wr_id, received.status, received.opcode), (1, WcStatus::Success, WcOpcode::Receive));
        assert_eq!(received.byte_len as usize, GRH + length);
        assert_eq!((received.src_qp, received.has_grh), (Some(a.qp.qp_num()), true));
        assert_eq!(received.imm_data, Some(0xabcd));
        assert!(b.bytes(GRH, length) == pattern(4096, 1)[..length]);
    }
}

#[test]
fn the_header_over_ipv4_lies_in_the_last_twenty_of_forty_bytes() {
    let (a, b) = (side(&device()), side(&device()));
    b.mr.write(0, &[0xee; GRH]).unwrap();
    receive(&b, 1, 0, 10);
    let mut way = way_to(b.context.device().address());
    way.grh.traffic_class = 0x68;
    let target = a.pd.create_ah(&way).unwrap().target(b.qp.qp_num(), QKEY);
    a.qp.post_send(&[datagram(1, target, &[a.mr.sge(0, 10)])]).unwrap();
    b.completion();
    let grh = b.bytes(0, GRH);
    assert!(grh[..20] == [0; 20]);
    let header = &grh[20..];
    assert_eq!(header[0], 0x45);
    assert_eq!(header[1], 0x68, "the traffic class");
    // IPv4, UDP, BTH, DETH, payload with pad, ICRC.
    assert_eq!(u16::from_be_bytes([header[2], header[3]]), 20 + 8 + 12 + 8 + 12 + 4);
    assert_eq!(header[6..8], [0x40, 0], "don't fragment");
    assert_eq!((header[8], header[9]), (64, 17));
    assert!(header[12..16] == octets(a.context.device().address()));
    assert!(header[16..20] == octets(b.context.device().address()));
    assert_eq!(sum(header), 0, "the header's checksum");
}

fn octets(address: IpAddr) -> [u8; 4] {
    let IpAddr::V4(address) = address else { panic!("{address} is not IPv4") };
    address.octets()
}

#[test]
fn the_header_over_ipv6_is_the_packets_own() {
    let device = ipv6_device();
    let side = side(&device);
    receive(&side, 1, 0, 3);
    side.qp.post_send(&[datagram(2, to(&side, &side), &[side.mr.sge(4096, 3)])]).unwrap();
    let mut ids = [side.completion().wr_id, side.completion().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    let grh = side.bytes(0, GRH);
    assert_eq!((grh[0] >> 4, grh[6]), (6, 17));
    assert_eq!(u16::from_be_bytes([grh[4], grh[5]]), 8 + 12 + 8 + 4 + 4);
    let address = device.gid().0;
    assert!(grh[8..24] == address && grh[24..] == address);
}

#[test]
fn whoever_receives_can_answer() {
    let ipv6 = ipv6_device();
    for [first, second] in [[device(), device()], [ipv6.clone(), ipv6]] {
        let (a, b) = (side(&first), side(&second));
        receive(&b, 1, 0, 4);
        a.mr.write(0, b"ping").unwrap();
        a.qp.post_send(&[datagram(2, to(&a, &b), &[a.mr.sge(0, 4)])]).unwrap();
        assert!(a.completion().is_success());
        let asked = b.completion();

        let grh = b.bytes(0, GRH).try_into().unwrap();
        let attributes = b.context.init_ah_from_wc(PORT, &asked, &grh).unwrap();
        assert!(attributes.is_global);
        assert_eq!((attributes.grh.dgid, attributes.grh.sgid_index), (a.context.device().gid(), 0));
        let back = b.pd.create_ah_from_wc(&asked, &grh, PORT).unwrap();
        assert_eq!(back.query(), attributes);
        receive(&a, 3, 1024, 4);
        b.mr.write(GRH, b"pong").unwrap();
        let target = back.target(asked.src_qp.unwrap(), QKEY);
        b.qp.post_send(&[datagram(4, target, &[b.mr.sge(GRH, 4)])]).unwrap();
        assert_eq!(a.completion().src_qp, Some(b.qp.qp_num()));
        assert!(a.bytes(1024 + GRH, 4) == b"pong");
    }
}

#[test]
fn one_list_of_requests_may_go_to_many() {
    let a = side(&device());
    let others: Vec<_> = (0..3).map(|_| side(&device())).collect();
    for other in &others {
        (0..10).for_each(|wr_id| receive(other, wr_id, 0, 64));
    }
    let list = [a.mr.sge(0, 64)];
    let requests: Vec<_> = (0..30).map(|n| datagram(n, to(&a, &others[n as usize * 7 % 3]), &list)).collect();
    a.qp.post_send(&requests).unwrap();
    let sent: Vec<_> = (0..30).map(|_| a.completion()).map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(sent, (0..30).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
    for other in &others {
        assert_eq!(poll_all(&other.cq).len(), 10);
    }
}

#[test]
fn a_datagram_with_a_wrong_key_is_dropped_and_the_port_counts_it() {
    let (a, b) = (side(&device()), side(&device()));
    receive(&b, 1, 0, 8);
    let list = [a.mr.sge(0, 8)];
    let with = |qkey| datagram(1, handle(&a, &b).target(b.qp.qp_num(), qkey), &list);
    a.qp.post_send(&[with(QKey(QKEY.0 ^ 1)), with(QKey(0))]).unwrap();
    eventually("both are counted", || b.context.query_port(PORT).unwrap().qkey_viol_cntr == 2);
    assert_eq!(b.context.device().counters().drop_qkey, 2);

    // The top bit asks for the sender's own key, which is the same here.
    a.qp.post_send(&[with(QKey(0x8000_0000))]).unwrap();
    assert_eq!(b.completion().wr_id, 1);

    receive(&b, 2, 0, 8);
    let changed = QpAttributes { qkey: 5, ..QpAttributes::default() };
    b.qp.modify(&changed, Mask::QKEY).unwrap();
    assert_eq!(b.qp.query().qkey, 5);
    a.qp.post_send(&[with(QKEY), with(QKey(5))]).unwrap();
    assert_eq!(b.completion().wr_id, 2);
    assert_eq!(b.context.device().counters().drop_qkey, 3);
}

#[test]
fn no_more_than_a_packet_is_taken() {
    let small = Device::builder().mtu(Mtu::Mtu512).build().unwrap();
    let (a, b) = (side(&small), side(&device()));
    let too_long = a.qp.post_send(&[datagram(1, to(&a, &b), &[a.mr.sge(0, 513)])]);
    assert_eq!(too_long.unwrap_err().errno(), libc::EINVAL);
    receive(&b, 1, 0, 512);
    a.qp.post_send(&[datagram(1, to(&a, &b), &[a.mr.sge(0, 512)])]).unwrap();
    assert_eq!(b.completion().byte_len as usize, GRH + 512);
}

#[test]
fn what_is_no_datagram_is_refused() {
    let (a, b) = (side(&device()), side(&device()));
    let list = [a.mr.sge(0, 8)];
    let errno = |request: SendWorkRequest<'_>| a.qp.post_send(&[request]).unwrap_err().errno();
    assert_eq!(errno(send(1, SendOperation::Send, &list)), libc::EINVAL, "it says not where to");
    let write = SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() };
    assert_eq!(errno(SendWorkRequest { operation: write, ..datagram(1, to(&a, &b), &list) }), libc::EINVAL);
    let connected = uroce::verbs::Connection::new(b.context.device().gid(), b.qp.qp_num());
    let fresh = Side::of_type(QpType::Ud, &device(), QpCapabilities::default(), 64);
    assert_eq!(fresh.qp.connect(&connected).unwrap_err().errno(), libc::EINVAL);
    let reliable = Side::new(&device(), QpCapabilities::default(), 64);
    assert_eq!(reliable.qp.open_datagrams(QKEY).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn without_a_receive_or_with_too_short_a_one_it_is_dropped() {
    let (a, b) = (side(&device()), side(&device()));
    let list = [a.mr.sge(0, 100)];
    a.qp.post_send(&[datagram(1, to(&a, &b), &list)]).unwrap();
    eventually("it is dropped", || b.context.device().counters().out_of_buffer == 1);
    receive(&b, 1, 0, 99);
    a.qp.post_send(&[datagram(2, to(&a, &b), &list)]).unwrap();
    eventually("it is dropped too", || b.context.device().counters().drop_message == 2);
    a.qp.post_send(&[datagram(3, to(&a, &b), &[a.mr.sge(0, 99)])]).unwrap();
    assert_eq!(b.completion().wr_id, 1);
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn where_nobody_is_it_is_lost_without_a_word() {
    let a = side(&device());
    let nobody = a.pd.create_ah(&way_to([127, 200, 0, 1].into())).unwrap();
    for wr_id in 0..5 {
        a.qp.post_send(&[datagram(wr_id, nobody.target(a.qp.qp_num(), QKEY), &[a.mr.sge(0, 8)])]).unwrap();
        assert!(a.completion().is_success());
    }
    assert_eq!(a.qp.state(), QpState::Rts);
}

#[test]
fn anybody_may_send_and_only_ready_queue_pairs_receive() {
    let (a, b) = (side(&device()), side(&device()));
    let fresh = Side::of_type(QpType::Ud, b.context.device(), QpCapabilities::default(), 4096);
    let list = [a.mr.sge(0, 8)];
    let target = handle(&a, &b).target(fresh.qp.qp_num(), QKEY);
    a.qp.post_send(&[datagram(1, target, &list)]).unwrap();
    eventually("it is dropped", || b.context.device().counters().drop_qp_state == 1);

    let at = |qp_state| QpAttributes { qp_state, port_num: PORT, qkey: QKEY.0, ..QpAttributes::default() };
    let init = Mask::STATE | Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY;
    fresh.qp.modify(&at(QpState::Init), init).unwrap();
    fresh.qp.modify(&at(QpState::Rtr), Mask::STATE).unwrap();
    receive(&fresh, 1, 0, 8);
    a.qp.post_send(&[datagram(1, target, &list)]).unwrap();
    assert_eq!(fresh.completion().wr_id, 1, "ready to receive is enough");
}

#[test]
fn a_failed_send_stops_the_send_queue_alone_until_it_is_told_to_go_on() {
    let (a, b) = (side(&device()), side(&device()));
    let nowhere = [Sge { lkey: a.mr.sge(0, 8).lkey ^ 1, ..a.mr.sge(0, 8) }];
    let list = [a.mr.sge(0, 8)];
    (1..4).for_each(|wr_id| receive(&b, wr_id, 0, 8));
    receive(&a, 100, 1024, 8);
    let requests = [datagram(1, to(&a, &b), &list), datagram(2, to(&a, &b), &nowhere), datagram(3, to(&a, &b), &list)];
    a.qp.post_send(&requests).unwrap();
    let statuses: Vec<_> = (0..3).map(|_| a.completion()).map(|done| (done.wr_id, done.status)).collect();
    let (protection, flushed) = (WcStatus::LocalProtection, WcStatus::WorkRequestFlushed);
    assert_eq!(statuses, [(1, WcStatus::Success), (2, protection), (3, flushed)]);
    assert_eq!(a.qp.state(), QpState::Sqe);
    a.qp.post_send(&[datagram(4, to(&a, &b), &list)]).unwrap();
    assert_eq!(a.completion().status, flushed);

    b.qp.post_send(&[datagram(5, to(&b, &a), &[b.mr.sge(0, 8)])]).unwrap();
    assert_eq!(a.completion().wr_id, 100, "receives go on");
    let ready = QpAttributes { qp_state: QpState::Rts, cur_qp_state: QpState::Sqe, ..QpAttributes::default() };
    a.qp.modify(&ready, Mask::STATE | Mask::CUR_STATE).unwrap();
    a.qp.post_send(&[datagram(6, to(&a, &b), &list)]).unwrap();
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(poll_all(&b.cq).iter().filter(|done| done.opcode == WcOpcode::Receive).count(), 2);
}

#[test]
fn a_receive_that_fails_fails_the_queue_pair() {
    let (a, b) = (side(&device()), side(&device()));
    let read_only = b.pd.reg_mr(64, uroce::verbs::AccessFlags::empty()).unwrap();
    b.receive(1, read_only.sge(0, 64));
    a.qp.post_send(&[datagram(1, to(&a, &b), &[a.mr.sge(0, 8)])]).unwrap();
    assert_eq!(b.completion().status, WcStatus::LocalProtection);
    assert_eq!(b.qp.state(), QpState::Err);
    assert_eq!(async_event(&b.context).event_type, AsyncEventType::QpFatal);
}

#[test]
fn several_share_their_receives() {
    let (a, b) = (side(&device()), side(&device()));
    let srq = b.pd.create_srq(&SrqInitAttributes::default()).unwrap();
    let qps = [QKEY, QKey(7)].map(|qkey| {
        let attributes = QpInitAttributes { qp_type: QpType::Ud, srq: Some(&srq), ..QpInitAttributes::new(&b.cq) };
        let qp = b.pd.create_qp(&attributes).unwrap();
        qp.open_datagrams(qkey).unwrap();
        qp
    });
    for (wr_id, offset) in [(1, 0), (2, 1024)] {
        srq.post_recv(&[ReceiveWorkRequest { wr_id, sg_list: &[b.mr.sge(offset, GRH + 8)] }]).unwrap();
    }
    let list = [a.mr.sge(0, 8)];
    let way = handle(&a, &b);
    let to = |qp: &QueuePair, qkey| datagram(1, way.target(qp.qp_num(), qkey), &list);
    a.qp.post_send(&[to(&qps[1], QKey(7)), to(&qps[1], QKEY), to(&qps[0], QKEY)]).unwrap();
    let received = poll_all(&b.cq);
    let received: Vec<_> = received.iter().map(|done| (done.wr_id, done.qp_num)).collect();
    assert_eq!(received, [(1, qps[1].qp_num()), (2, qps[0].qp_num())]);
}

#[test]
fn address_handles_are_checked_and_keep_their_protection_domain() {
    let a = side(&device());
    let spoilt = |spoil: fn(&mut AddressHandleAttributes)| {
        let mut way = way_to([127, 0, 0, 1].into());
        spoil(&mut way);
        a.pd.create_ah(&way).map(|_| ()).unwrap_err().errno()
    };
    assert_eq!(spoilt(|way| way.is_global = false), libc::EINVAL);
    assert_eq!(spoilt(|way| way.port_num = 2), libc::EINVAL);
    assert_eq!(spoilt(|way| way.grh.sgid_index = 1), libc::EINVAL);
    assert_eq!(spoilt(|way| way.grh.dgid = Gid::default()), libc::EINVAL);
    assert_eq!(spoilt(|way| way.grh.dgid = Gid([0xfe; 16])), libc::EINVAL);

    let pd = a.context.alloc_pd().unwrap();
    let handle = pd.create_ah(&way_to([127, 0, 0, 1].into())).unwrap();
    assert_eq!(pd.dealloc().unwrap_err().errno(), libc::EBUSY);
    handle.destroy().unwrap();
    assert_eq!(handle.destroy().unwrap_err().errno(), libc::EINVAL);
    pd.dealloc().unwrap();
    assert_eq!(pd.create_ah(&way_to([127, 0, 0, 1].into())).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn bytes_that_are_no_header_lead_nowhere() {
    let a = side(&device());
    let completion = uroce::verbs::WorkCompletion { has_grh: true, ..Default::default() };
    let refused = |grh| a.context.init_ah_from_wc(PORT, &completion, &grh).unwrap_err().errno();
    assert_eq!(refused([0; GRH]), libc::EINVAL);
    assert_eq!(refused([0x45; GRH]), libc::EINVAL);
}
