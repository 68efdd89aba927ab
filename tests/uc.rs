//! Unreliable connections between whole devices: what arrives, what is dropped, and what a failure stops.

mod support;

use std::sync::Arc;
use support::{ALL, Side, async_event, connect, device, eventually, pair_of, pattern, poll_all, send};
use uroce::{
    link::{
        Fault, UdpConfig, UdpLink,
        sim::{Network, PathConditions},
    },
    verbs::{
        AsyncEventType, Device, Mtu, Progress, QpAttributeMask as Mask, QpAttributes, QpCapabilities, QpState, QpType,
        SendOperation, SendWorkRequest, Sge, WcOpcode, WcStatus, WorkCompletion,
    },
};

const MEMORY: usize = 1 << 17;

fn pair() -> (Side, Side) {
    pair_of(QpType::Uc, [&device(), &device()], MEMORY)
}

/// A device whose packets meet this fate on their way out.
fn faulty(spec: &str) -> Device {
    let link = UdpLink::open_loopback(&UdpConfig::default()).unwrap();
    Device::builder().link(Arc::new(Fault::new(link, &spec.parse().unwrap(), 1))).build().unwrap()
}

fn write_to(side: &Side, offset: u64) -> SendOperation {
    SendOperation::Write { address: side.mr.address() + offset, rkey: side.mr.rkey() }
}

#[test]
fn sends_and_writes_arrive() {
    let (a, b) = pair();
    a.mr.write(0, &pattern(MEMORY / 2, 3)).unwrap();
    for length in [0, 1, 1023, 4096, 4097, 60_000] {
        b.receive(1, b.mr.sge(0, MEMORY / 2));
        a.post(2, SendOperation::SendWithImmediate(77), a.mr.sge(0, length));
        let sent = a.completion();
        assert_eq!((sent.wr_id, sent.status, sent.opcode), (2, WcStatus::Success, WcOpcode::Send));
        let received = b.completion();
        assert_eq!((received.wr_id, received.status, received.byte_len), (1, WcStatus::Success, length as u32));
        assert_eq!((received.imm_data, received.src_qp, received.has_grh), (Some(77), None, false));
        assert!(b.bytes(0, length) == pattern(MEMORY / 2, 3)[..length]);

        b.receive(3, Sge::default());
        let (address, rkey) = (b.mr.address() + MEMORY as u64 / 2, b.mr.rkey());
        a.post(4, SendOperation::WriteWithImmediate { address, rkey, immediate: 78 }, a.mr.sge(0, length));
        assert_eq!(a.completion().opcode, WcOpcode::Write);
        let received = b.completion();
        assert_eq!((received.opcode, received.byte_len), (WcOpcode::ReceiveWithImmediate, length as u32));
        assert!(b.bytes(MEMORY / 2, length) == pattern(MEMORY / 2, 3)[..length]);
    }
}

#[test]
fn nothing_is_answered() {
    let (a, b) = pair();
    b.receive(1, b.mr.sge(0, 64));
    a.post(1, SendOperation::Send, a.mr.sge(0, 64));
    a.post(2, write_to(&b, 0), a.mr.sge(0, 64));
    b.completion();
    eventually("the write arrives", || b.context.device().counters().rx_write_requests == 1);
    assert_eq!(b.context.device().counters().sent_pkts, 0);
    assert_eq!(a.context.device().counters().sent_pkts, 2);
}

#[test]
fn a_queue_pair_may_be_connected_to_itself() {
    let device = device();
    let side = Side::of_type(QpType::Uc, &device, QpCapabilities::default(), 4096);
    side.qp.connect(&side.connection_to(&side)).unwrap();
    side.mr.write(0, b"myself").unwrap();
    side.receive(1, side.mr.sge(64, 64));
    side.post(2, SendOperation::Send, side.mr.sge(0, 6));
    let mut ids = [side.completion().wr_id, side.completion().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    assert!(side.bytes(64, 6) == b"myself");
}

#[test]
fn the_message_that_loses_a_packet_is_missing_and_no_other() {
    for (spec, arrived) in [
        ("drop send-first 2", vec![0, 2]),
        ("drop send-middle 5", vec![0, 2]),
        ("drop send-last 2", vec![0, 2]),
        ("drop send-last 1, drop send-first 2", vec![2]),
        ("dup send-last 1, dup send-first 3", vec![0, 1, 2]),
    ] {
        let (a, b) = pair_of(QpType::Uc, [&faulty(spec), &device()], MEMORY);
        for number in 0..3 {
            a.mr.write(number * 20_000, &pattern(20_000, number as u8)).unwrap();
            b.receive(number as u64, b.mr.sge(number * 20_000, 20_000));
        }
        for number in 0..3_u32 {
            // Last with immediate is a kind of its own to the fault link, so the number is in the first byte.
            a.mr.write(number as usize * 20_000, &[number as u8]).unwrap();
            a.post(number.into(), SendOperation::Send, a.mr.sge(number as usize * 20_000, 20_000));
            assert!(a.completion().is_success(), "the sender does not know");
        }
        let received = poll_all(&b.cq);
        assert!(received.iter().all(|done| done.is_success() && done.byte_len == 20_000), "{spec}");
        let numbers: Vec<_> = received.iter().map(|done| b.bytes(done.wr_id as usize * 20_000, 1)[0]).collect();
        assert_eq!(numbers, arrived, "{spec}");
        for done in &received {
            let at = done.wr_id as usize * 20_000;
            let number = b.bytes(at, 1)[0];
            assert!(b.bytes(at + 1, 19_999) == pattern(20_000, number)[1..], "{spec}");
        }
    }
}

#[test]
fn without_a_receive_or_with_too_short_a_one_the_message_is_dropped() {
    let (a, b) = pair();
    a.mr.write(0, &pattern(100, 1)).unwrap();
    a.post(1, SendOperation::Send, a.mr.sge(0, 100));
    eventually("it is dropped", || b.context.device().counters().out_of_buffer == 1);
    b.receive(2, b.mr.sge(0, 50));
    a.post(3, SendOperation::Send, a.mr.sge(0, 51));
    eventually("it is dropped too", || b.context.device().counters().drop_message == 2);
    a.post(4, SendOperation::Send, a.mr.sge(0, 50));
    let received = b.completion();
    assert_eq!((received.wr_id, received.byte_len), (2, 50));
    assert!(b.bytes(0, 51) == [&pattern(100, 1)[..50], &[0]].concat());
    assert!((0..3).all(|_| a.completion().is_success()));
}

#[test]
fn a_write_that_may_not_is_dropped_and_the_connection_goes_on() {
    let (a, b) = pair();
    let elsewhere = b.context.alloc_pd().unwrap().reg_mr(64, ALL).unwrap();
    let (address, rkey) = (elsewhere.address(), elsewhere.rkey());
    a.mr.write(0, b"no").unwrap();
    a.post(1, SendOperation::Write { address, rkey }, a.mr.sge(0, 2));
    eventually("it is dropped", || b.context.device().counters().resp_remote_access_errors == 1);
    a.post(2, write_to(&b, 0), a.mr.sge(0, 2));
    eventually("the next arrives", || b.bytes(0, 2) == b"no");
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn what_needs_an_answer_is_refused() {
    let (a, b) = pair();
    let (address, rkey) = (b.mr.address(), b.mr.rkey());
    let list = [a.mr.sge(0, 8)];
    for operation in [
        SendOperation::Read { address, rkey },
        SendOperation::FetchAdd { address, rkey, add: 1 },
        SendOperation::SendWithInvalidate(rkey),
        SendOperation::AtomicWrite { address, rkey },
    ] {
        assert_eq!(a.qp.post_send(&[send(1, operation, &list)]).unwrap_err().errno(), libc::EINVAL);
    }
}

#[test]
fn a_failed_send_stops_the_send_queue_alone_until_it_is_told_to_go_on() {
    let (a, b) = pair();
    let nowhere = [Sge { lkey: a.mr.sge(0, 8).lkey ^ 1, ..a.mr.sge(0, 8) }];
    let list = [a.mr.sge(0, 8)];
    b.receive(1, b.mr.sge(0, 8));
    b.receive(2, b.mr.sge(0, 8));
    a.receive(100, a.mr.sge(64, 8));
    let operation = SendOperation::Send;
    a.qp.post_send(&[send(1, operation, &list), send(2, operation, &nowhere), send(3, operation, &list)]).unwrap();
    let statuses: Vec<_> = (0..3).map(|_| a.completion()).map(|done| (done.wr_id, done.status)).collect();
    let (protection, flushed) = (WcStatus::LocalProtection, WcStatus::WorkRequestFlushed);
    assert_eq!(statuses, [(1, WcStatus::Success), (2, protection), (3, flushed)]);
    assert_eq!(b.completion().wr_id, 1);
    assert_eq!(a.qp.state(), QpState::Sqe);

    a.post(4, operation, list[0]);
    assert_eq!(a.completion().status, flushed, "what is posted in SQE is flushed");
    b.post(5, operation, b.mr.sge(0, 8));
    assert_eq!(a.completion().wr_id, 100, "receives go on");

    let ready = QpAttributes { qp_state: QpState::Rts, cur_qp_state: QpState::Sqe, ..QpAttributes::default() };
    a.qp.modify(&ready, Mask::STATE | Mask::CUR_STATE).unwrap();
    a.post(6, operation, list[0]);
    assert_eq!(a.completion().status, WcStatus::Success);
    b.completion();
    assert_eq!(b.completion().wr_id, 2);
}

#[test]
fn a_receive_that_fails_fails_the_queue_pair() {
    let (a, b) = pair();
    let memory = b.pd.reg_mr(64, ALL).unwrap();
    b.receive(1, memory.sge(0, 64));
    b.receive(2, b.mr.sge(0, 64));
    memory.dereg().unwrap();
    a.post(1, SendOperation::Send, a.mr.sge(0, 8));
    let statuses = [b.completion(), b.completion()].map(|done| (done.wr_id, done.status));
    assert_eq!(statuses, [(1, WcStatus::LocalProtection), (2, WcStatus::WorkRequestFlushed)]);
    assert_eq!(b.qp.state(), QpState::Err);
    assert_eq!(async_event(&b.context).event_type, AsyncEventType::QpFatal);
}

#[test]
fn error_flushes_both_queues() {
    let (a, _b) = pair();
    a.receive(1, a.mr.sge(0, 8));
    let drain = QpAttributes { qp_state: QpState::Sqd, ..QpAttributes::default() };
    a.qp.modify(&drain, Mask::STATE).unwrap();
    a.post(2, SendOperation::Send, a.mr.sge(0, 8));
    let error = QpAttributes { qp_state: QpState::Err, ..QpAttributes::default() };
    a.qp.modify(&error, Mask::STATE).unwrap();
    let flushed = [a.completion(), a.completion()];
    assert!(flushed.iter().all(|done| done.status == WcStatus::WorkRequestFlushed));
}

#[test]
fn draining_ends_in_an_event_when_what_was_begun_has_left() {
    let (a, b) = pair();
    b.receive(1, b.mr.sge(0, 60_000));
    a.post(1, SendOperation::Send, a.mr.sge(0, 60_000));
    let drain = QpAttributes { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttributes::default() };
    a.qp.modify(&drain, Mask::STATE | Mask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert_eq!(async_event(&a.context).event_type, AsyncEventType::SqDrained);
    assert!(a.completion().is_success() && b.completion().is_success());
}

#[test]
fn a_transition_asks_for_what_an_unreliable_connection_has() {
    let side = Side::of_type(QpType::Uc, &device(), QpCapabilities::default(), 4096);
    side.qp.connect(&side.connection_to(&side)).unwrap();
    let refused = QpAttributes { min_rnr_timer: 3, ..QpAttributes::default() };
    assert_eq!(side.qp.modify(&refused, Mask::MIN_RNR_TIMER).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(side.qp.qp_type(), QpType::Uc);
}

#[test]
fn over_a_bad_network_what_is_delivered_is_whole_and_in_order() {
    const MESSAGES: usize = 400;
    const LENGTH: usize = 3000;
    let bad =
        PathConditions { loss: 0.05, duplication: 0.05, reordering: 0.05, corruption: 0.01, ..PathConditions::IDEAL };
    let network = Network::new(5, bad);
    let open = |host| {
        let link = network.attach([10, 0, 0, host].into()).unwrap();
        let builder = Device::builder().link(Arc::new(link)).clock(network.clock()).progress(Progress::Manual);
        builder.mtu(Mtu::Mtu1024).seed(1).build().unwrap()
    };
    let devices = [open(1), open(2)];
    let cap = QpCapabilities { max_recv_wr: MESSAGES as u32, ..QpCapabilities::default() };
    let [a, b] = [0, 1].map(|at| Side::of_type(QpType::Uc, &devices[at], cap, MESSAGES * LENGTH));
    connect(&a, &b);
    a.mr.write(0, &pattern(MESSAGES * LENGTH, 9)).unwrap();
    for number in 0..MESSAGES {
        b.receive(number as u64, b.mr.sge(number * LENGTH, LENGTH));
    }
    let mut delivered = Vec::new();
    for number in 0..MESSAGES {
        let list = [a.mr.sge(number * LENGTH, LENGTH)];
        let request = send(number as u64, SendOperation::SendWithImmediate(number as u32), &list);
        a.qp.post_send(&[SendWorkRequest { signaled: false, ..request }]).unwrap();
        // Up to three events, so that messages are on their way when the next one leaves; in the end all of them.
        let events = if number + 1 < MESSAGES { number % 4 } else { usize::MAX };
        for _ in 0..events {
            let Some(event) = network.next_event() else { break };
            network.clock().advance_to(event);
            devices.iter().for_each(|device| _ = device.progress());
        }
        let mut completion = [WorkCompletion::default()];
        while b.cq.poll(&mut completion).unwrap() > 0 {
            delivered.push(completion[0]);
        }
    }
    let mut last = None;
    for done in &delivered {
        let number = done.imm_data.unwrap() as usize;
        assert!(done.is_success() && last < Some(number), "{number} after {last:?}");
        let bytes = b.bytes(done.wr_id as usize * LENGTH, LENGTH);
        assert!(bytes == pattern(MESSAGES * LENGTH, 9)[number * LENGTH..][..LENGTH], "{number} is not what was sent");
        last = Some(number);
    }
    assert!(delivered.len() > MESSAGES / 2, "only {} arrived", delivered.len());
}
