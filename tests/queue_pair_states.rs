//! The state machine of a queue pair: what each transition asks for, what may be posted when, and what becomes of
//! posted work.

mod support;

use std::net::IpAddr;
use support::{ALL, Side, async_event, connect, device, eventually, pair, send};
use uroce::verbs::{
    AccessFlags, AddressHandleAttributes, AsyncEventType, Buffers, Gid, GlobalRoute, Mtu, PORT,
    QpAttributeMask as Mask, QpAttributes, QpCapabilities, QpInitAttributes, QpState, QueuePair, ReceiveWorkRequest,
    SendOperation, SendWorkRequest, WcStatus, WorkCompletion,
};

const TO_INIT: Mask = Mask::STATE.union(Mask::PKEY_INDEX).union(Mask::PORT).union(Mask::ACCESS_FLAGS);
const TO_RTR: Mask = Mask::STATE
    .union(Mask::AV)
    .union(Mask::PATH_MTU)
    .union(Mask::DEST_QPN)
    .union(Mask::RQ_PSN)
    .union(Mask::MAX_DEST_RD_ATOMIC)
    .union(Mask::MIN_RNR_TIMER);
const TO_RTS: Mask = Mask::STATE
    .union(Mask::TIMEOUT)
    .union(Mask::RETRY_CNT)
    .union(Mask::RNR_RETRY)
    .union(Mask::SQ_PSN)
    .union(Mask::MAX_QP_RD_ATOMIC);

/// Attributes that suit every transition, of a connection of `side` to itself.
fn attributes(side: &Side) -> QpAttributes {
    QpAttributes {
        port_num: PORT,
        qp_access_flags: ALL,
        path_mtu: Mtu::Mtu1024,
        dest_qp_num: side.qp.qp_num().value(),
        rq_psn: 0xab_cdef,
        sq_psn: 0xab_cdef,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 5,
        min_rnr_timer: 6,
        timeout: 14,
        retry_cnt: 3,
        rnr_retry: 2,
        ah_attr: AddressHandleAttributes {
            grh: GlobalRoute { dgid: side.context.device().gid(), hop_limit: 9, ..GlobalRoute::default() },
            is_global: true,
            port_num: PORT,
            sl: 3,
        },
        ..QpAttributes::default()
    }
}

fn side() -> Side {
    Side::new(&device(), QpCapabilities::default(), 4096)
}

fn modify(side: &Side, state: QpState, mask: Mask) -> Result<(), i32> {
    let attributes = QpAttributes { qp_state: state, ..attributes(side) };
    side.qp.modify(&attributes, mask).map_err(|error| error.errno())
}

/// A side whose queue pair, connected to itself, is in `state`.
fn side_in(state: QpState) -> Side {
    let side = side();
    let steps = [(QpState::Init, TO_INIT), (QpState::Rtr, TO_RTR), (QpState::Rts, TO_RTS)];
    for (step, mask) in steps {
        if step <= state && state != QpState::Err {
            modify(&side, step, mask).unwrap();
        }
    }
    if state == QpState::Sqd {
        modify(&side, QpState::Sqd, Mask::STATE).unwrap();
    }
    if state == QpState::Err {
        modify(&side, QpState::Init, TO_INIT).unwrap();
        modify(&side, QpState::Err, Mask::STATE).unwrap();
    }
    assert_eq!(side.qp.state(), state);
    side
}

#[test]
fn transitions_that_do_not_exist_are_refused() {
    let side = side();
    for (state, mask) in [(QpState::Rtr, TO_RTR), (QpState::Rts, TO_RTS), (QpState::Err, Mask::STATE)] {
        assert_eq!(modify(&side, state, mask), Err(libc::EINVAL));
    }
    modify(&side, QpState::Init, TO_INIT).unwrap();
    assert_eq!(modify(&side, QpState::Rts, TO_RTS), Err(libc::EINVAL));
    assert_eq!(modify(&side, QpState::Sqd, Mask::STATE), Err(libc::EINVAL));
}

#[test]
fn a_missing_or_superfluous_attribute_is_refused_and_nothing_changes() {
    let side = side();
    assert_eq!(modify(&side, QpState::Init, TO_INIT - Mask::PORT), Err(libc::EINVAL));
    assert_eq!(modify(&side, QpState::Init, TO_INIT | Mask::TIMEOUT), Err(libc::EINVAL));
    assert_eq!(side.qp.state(), QpState::Reset);
    modify(&side, QpState::Init, TO_INIT).unwrap();
    assert_eq!(modify(&side, QpState::Rtr, TO_RTR | Mask::ALT_PATH), Err(libc::EOPNOTSUPP));
    assert_eq!(side.qp.query().path_mtu, QpAttributes::default().path_mtu);
}

#[test]
fn values_out_of_range_are_refused() {
    type Spoil = fn(&mut QpAttributes);
    let cases: &[(QpState, Mask, Spoil)] = &[
        (QpState::Init, TO_INIT, |a| a.port_num = 2),
        (QpState::Init, TO_INIT, |a| a.pkey_index = 1),
        (QpState::Rtr, TO_RTR, |a| a.rq_psn = 1 << 24),
        (QpState::Rtr, TO_RTR, |a| a.dest_qp_num = 1 << 24),
        (QpState::Rtr, TO_RTR, |a| a.max_dest_rd_atomic = 129),
        (QpState::Rtr, TO_RTR, |a| a.min_rnr_timer = 32),
        (QpState::Rtr, TO_RTR, |a| a.ah_attr.is_global = false),
        (QpState::Rtr, TO_RTR, |a| a.ah_attr.port_num = 0),
        (QpState::Rtr, TO_RTR, |a| a.ah_attr.grh.sgid_index = 1),
        (QpState::Rtr, TO_RTR, |a| a.ah_attr.grh.dgid = Gid::from("2001:db8::1".parse::<IpAddr>().unwrap())),
        (QpState::Rtr, TO_RTR, |a| a.ah_attr.grh.dgid = Gid::from("239.0.0.1".parse::<IpAddr>().unwrap())),
        (QpState::Rts, TO_RTS, |a| a.sq_psn = 1 << 24),
        (QpState::Rts, TO_RTS, |a| a.max_rd_atomic = 129),
        (QpState::Rts, TO_RTS, |a| a.timeout = 32),
        (QpState::Rts, TO_RTS, |a| a.retry_cnt = 8),
        (QpState::Rts, TO_RTS, |a| a.rnr_retry = 8),
    ];
    for (case, &(state, mask, spoil)) in cases.iter().enumerate() {
        let before = [QpState::Reset, QpState::Init, QpState::Rtr][state as usize - 1];
        let side = side_in(before);
        let mut spoilt = QpAttributes { qp_state: state, ..attributes(&side) };
        spoil(&mut spoilt);
        assert_eq!(side.qp.modify(&spoilt, mask).unwrap_err().errno(), libc::EINVAL, "case {case}");
        assert_eq!(side.qp.state(), before, "case {case}");
    }
}

#[test]
fn a_path_mtu_beyond_the_ports_is_refused() {
    let device = uroce::verbs::Device::builder().mtu(Mtu::Mtu512).build().unwrap();
    let side = Side::new(&device, QpCapabilities::default(), 4096);
    assert_eq!(side.context.query_port(1).unwrap().active_mtu, Mtu::Mtu512);
    modify(&side, QpState::Init, TO_INIT).unwrap();
    assert_eq!(modify(&side, QpState::Rtr, TO_RTR), Err(libc::EINVAL));
}

#[test]
fn the_believed_state_must_be_right() {
    let side = side_in(QpState::Rts);
    let believed = |state| QpAttributes { qp_state: QpState::Rts, cur_qp_state: state, ..attributes(&side) };
    let mask = Mask::STATE | Mask::CUR_STATE;
    assert_eq!(side.qp.modify(&believed(QpState::Sqd), mask).unwrap_err().errno(), libc::EINVAL);
    side.qp.modify(&believed(QpState::Rts), mask).unwrap();
}

#[test]
fn query_returns_what_was_set() {
    let side = side_in(QpState::Rts);
    let set = attributes(&side);
    let found = side.qp.query();
    let cap = side.qp.capabilities();
    assert_eq!(found, QpAttributes { qp_state: QpState::Rts, cur_qp_state: QpState::Rts, cap, ..set });
    modify(&side, QpState::Reset, Mask::STATE).unwrap();
    assert_eq!(side.qp.query(), QpAttributes { cap, ..QpAttributes::default() });
}

#[test]
fn attributes_may_change_while_connected() {
    let (a, b) = pair(4096);
    let changed = QpAttributes { qp_access_flags: AccessFlags::empty(), min_rnr_timer: 30, ..attributes(&b) };
    b.qp.modify(&changed, Mask::ACCESS_FLAGS | Mask::MIN_RNR_TIMER).unwrap();
    assert_eq!(b.qp.query().min_rnr_timer, 30);
    a.post(1, SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() }, a.mr.sge(0, 8));
    assert_eq!(a.completion().status, WcStatus::RemoteInvalidRequest);
}

#[test]
fn posting_is_refused_before_its_state() {
    for (state, send_is_refused, receive_is_refused) in [
        (QpState::Reset, true, true),
        (QpState::Init, true, false),
        (QpState::Rtr, true, false),
        (QpState::Rts, false, false),
        (QpState::Sqd, false, false),
        (QpState::Err, false, false),
    ] {
        let side = side_in(state);
        let list = [side.mr.sge(0, 8)];
        let sent = side.qp.post_send(&[send(1, SendOperation::Send, &list)]);
        assert_eq!(sent.err().map(|error| error.errno()), send_is_refused.then_some(libc::EINVAL), "{state:?}");
        let received = side.qp.post_recv(&[ReceiveWorkRequest { wr_id: 1, sg_list: &list }]);
        assert_eq!(received.err().map(|error| error.errno()), receive_is_refused.then_some(libc::EINVAL), "{state:?}");
    }
}

#[test]
fn full_queues_answer_enomem_and_name_the_request() {
    let cap = QpCapabilities { max_send_wr: 3, max_recv_wr: 2, ..QpCapabilities::default() };
    let side = Side::new(&device(), cap, 4096);
    modify(&side, QpState::Init, TO_INIT).unwrap();
    let list = [side.mr.sge(0, 8)];
    let receives: Vec<_> = (0..4).map(|wr_id| ReceiveWorkRequest { wr_id, sg_list: &list }).collect();
    let error = side.qp.post_recv(&receives).unwrap_err();
    assert_eq!((error.index, error.errno()), (2, libc::ENOMEM));

    modify(&side, QpState::Rtr, TO_RTR).unwrap();
    modify(&side, QpState::Rts, TO_RTS).unwrap();
    modify(&side, QpState::Sqd, Mask::STATE).unwrap();
    let sends: Vec<_> = (0..5).map(|wr_id| send(wr_id, SendOperation::Send, &list)).collect();
    let error = side.qp.post_send(&sends).unwrap_err();
    assert_eq!((error.index, error.errno()), (3, libc::ENOMEM));
}

#[test]
fn requests_beyond_the_capabilities_are_refused() {
    let cap = QpCapabilities { max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16, ..QpCapabilities::default() };
    let side = Side::new(&device(), cap, 4096);
    side.qp.connect(&side.connection_to(&side)).unwrap();
    let two = [side.mr.sge(0, 8); 2];
    let errno = |request: SendWorkRequest<'_>| side.qp.post_send(&[request]).unwrap_err().errno();
    assert_eq!(errno(send(1, SendOperation::Send, &two)), libc::EINVAL);
    let long = SendWorkRequest { buffers: Buffers::Inline(&[&[0; 9], &[0; 8]]), ..send(1, SendOperation::Send, &[]) };
    assert_eq!(errno(long), libc::EINVAL);
    let received = side.qp.post_recv(&[ReceiveWorkRequest { wr_id: 1, sg_list: &two }]);
    assert_eq!(received.unwrap_err().errno(), libc::EINVAL);
    let misaligned = SendOperation::FetchAdd { address: side.mr.address() + 4, rkey: side.mr.rkey(), add: 1 };
    assert_eq!(errno(send(1, misaligned, &two[..1])), libc::EINVAL);

    let beyond = |cap| {
        let attributes = QpInitAttributes { cap, ..QpInitAttributes::new(&side.cq) };
        side.pd.create_qp(&attributes).map(|_: QueuePair| ()).unwrap_err().errno()
    };
    assert_eq!(beyond(QpCapabilities { max_send_sge: 33, ..cap }), libc::EINVAL);
    assert_eq!(beyond(QpCapabilities { max_recv_wr: 1 << 20, ..cap }), libc::EINVAL);
    assert_eq!(beyond(QpCapabilities { max_inline_data: 1 << 20, ..cap }), libc::EINVAL);
}

#[test]
fn error_flushes_everything_in_order() {
    let (a, b) = pair(4096);
    let list = [a.mr.sge(0, 8)];
    for wr_id in 0..5 {
        a.receive(100 + wr_id, a.mr.sge(0, 8));
    }
    // Nobody has posted a receive, so the sends stay.
    a.qp.post_send(&(0..5).map(|wr_id| send(wr_id, SendOperation::Send, &list)).collect::<Vec<_>>()).unwrap();
    modify(&a, QpState::Err, Mask::STATE).unwrap();
    a.qp.post_send(&[send(5, SendOperation::Send, &list)]).unwrap();
    a.receive(105, a.mr.sge(0, 8));
    let flushed: Vec<_> = (0..12).map(|_| a.completion()).collect();
    assert!(flushed.iter().all(|completion| completion.status == WcStatus::WorkRequestFlushed));
    let (sends, receives): (Vec<u64>, Vec<u64>) = flushed.iter().map(|c| c.wr_id).partition(|&wr_id| wr_id < 100);
    assert_eq!(sends, [0, 1, 2, 3, 4, 5]);
    assert_eq!(receives, [100, 101, 102, 103, 104, 105]);
    drop(b);
}

#[test]
fn a_failed_request_fails_its_queue_pair_and_flushes_the_rest() {
    let (a, b) = pair(4096);
    let (address, rkey) = (b.mr.address(), b.mr.rkey());
    let list = [a.mr.sge(0, 64)];
    a.qp.post_send(&[
        send(1, SendOperation::Write { address, rkey }, &list),
        send(2, SendOperation::Write { address: address + 4090, rkey }, &list),
        send(3, SendOperation::Write { address, rkey }, &list),
    ])
    .unwrap();
    let statuses: Vec<_> = (0..3).map(|_| a.completion().status).collect();
    assert_eq!(statuses, [WcStatus::Success, WcStatus::RemoteAccess, WcStatus::WorkRequestFlushed]);
    assert_eq!(a.qp.state(), QpState::Err);
    eventually("the peer's queue pair fails too", || b.qp.state() == QpState::Err);
}

#[test]
fn reset_forgets_and_the_queue_pair_can_be_connected_again() {
    let (a, b) = pair(4096);
    a.receive(1, a.mr.sge(0, 8));
    for side in [&a, &b] {
        modify(side, QpState::Err, Mask::STATE).unwrap();
        modify(side, QpState::Reset, Mask::STATE).unwrap();
    }
    // What was flushed goes with the rest.
    assert_eq!(a.cq.poll(&mut [WorkCompletion::default()]).unwrap(), 0);
    connect(&a, &b);
    b.receive(2, b.mr.sge(0, 8));
    a.post(3, SendOperation::Send, a.mr.sge(0, 8));
    assert_eq!((a.completion().wr_id, b.completion().wr_id), (3, 2));
}

#[test]
fn draining_finishes_what_has_begun_and_begins_nothing() {
    let side = side_in(QpState::Rts);
    side.receive(1, side.mr.sge(0, 8));
    side.post(2, SendOperation::Send, side.mr.sge(0, 8));
    assert!(side.completion().is_success() && side.completion().is_success());

    let notify = QpAttributes { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..attributes(&side) };
    side.qp.modify(&notify, Mask::STATE | Mask::EN_SQD_ASYNC_NOTIFY).unwrap();
    let event = async_event(&side.context);
    assert_eq!(event.event_type, AsyncEventType::SqDrained);
    assert_eq!(event.element, side.qp.element());
    assert!(!side.qp.query().sq_draining);

    side.receive(3, side.mr.sge(0, 8));
    let before = side.context.device().counters().sent_pkts;
    side.post(4, SendOperation::Send, side.mr.sge(0, 8));
    assert_eq!(side.context.device().counters().sent_pkts, before, "nothing begins while it drains");
    let changed =
        QpAttributes { timeout: 10, retry_cnt: 1, max_rd_atomic: 1, max_dest_rd_atomic: 1, ..attributes(&side) };
    let mask = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::MAX_QP_RD_ATOMIC | Mask::MAX_DEST_RD_ATOMIC;
    side.qp.modify(&changed, mask).unwrap();
    modify(&side, QpState::Rts, Mask::STATE).unwrap();
    let mut ids = [side.completion().wr_id, side.completion().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [3, 4]);
}
