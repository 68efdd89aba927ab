//! The extended reliable connection, initiator against target.

use crate::{
    rc::{FlushPlacement, PostSendError, SendOperation, SendRequest, Target, WcStatus},
    testing::{Endpoint, Pair, PairConfig, Side, add_to, read_from, request, write_to},
    wire::{Opcode, Operation, RKey, Service, XrcSrqn},
};

const SRQ: Target = Target::SharedReceiveQueue(Endpoint::SRQ);

fn pair() -> Pair {
    Pair::with(PairConfig { service: Service::Xrc, ..PairConfig::default() })
}

#[test]
fn every_request_names_the_queue_and_no_answer_does() {
    let mut pair = pair();
    let pattern = pair.fill();
    pair.receive(7, 500_000, 3000);
    pair.post(1, SendOperation::Send, 0, 3000);
    pair.post(2, write_to(10_000), 0, 3000);
    pair.post(3, read_from(10_000), 20_000, 3000);
    pair.post(4, add_to(30_000, 1), 30_000, 8);
    pair.drive();
    assert_eq!(pair.a.results(), (1..5).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
    assert!(pair.b.memory.bytes(Endpoint::KEY)[500_000..][..3000] == pattern[..3000]);
    assert!(pair.a.memory.bytes(Endpoint::KEY)[20_000..][..3000] == pattern[..3000]);
    for packet in &pair.a.sent {
        assert_eq!(packet.view().xrceth().map(|xrceth| xrceth.srqn.value()), Some(Endpoint::SRQ));
    }
    for packet in pair.a.sent.iter().chain(&pair.b.sent) {
        assert_eq!(packet.view().opcode().service(), Service::Xrc);
    }
    assert!(pair.b.sent.iter().all(|packet| packet.view().xrceth().is_none()));
    assert!(pair.b.sent.iter().all(|packet| (0xad..=0xb2).contains(&packet.view().opcode().to_byte())));
    assert_eq!(pair.b.completions[0].srq.map(XrcSrqn::value), Some(Endpoint::SRQ));
}

#[test]
fn one_lost_packet_of_each_kind_changes_nothing() {
    for (side, operation) in [
        (Side::A, Operation::SendFirst),
        (Side::A, Operation::SendLastWithImmediate),
        (Side::A, Operation::WriteMiddle),
        (Side::A, Operation::ReadRequest),
        (Side::A, Operation::FetchAdd),
        (Side::B, Operation::Acknowledge),
        (Side::B, Operation::ReadResponseMiddle),
        (Side::B, Operation::AtomicAcknowledge),
    ] {
        let mut pair = pair();
        let pattern = pair.fill();
        pair.lose(side, operation, 1);
        pair.receive(7, 500_000, 3000);
        pair.post(1, SendOperation::SendWithImmediate(7), 0, 3000);
        pair.post(2, write_to(10_000), 0, 3000);
        pair.post(3, add_to(30_000, 1), 30_000, 8);
        pair.post(4, read_from(10_000), 20_000, 3000);
        pair.drive();
        assert_eq!(
            pair.a.results(),
            (1..5).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>(),
            "{operation:?}"
        );
        assert_eq!(pair.b.results(), [(7, WcStatus::Success)], "{operation:?}");
        assert!(pair.b.memory.bytes(Endpoint::KEY)[500_000..][..3000] == pattern[..3000], "{operation:?}");
        assert!(pair.a.memory.bytes(Endpoint::KEY)[20_000..][..3000] == pattern[..3000], "{operation:?}");
        assert_eq!(pair.b.memory.bytes(Endpoint::KEY)[30_000..][..8], 1_u64.to_ne_bytes(), "{operation:?}");
    }
}

#[test]
fn a_queue_that_does_not_exist_ends_the_connection() {
    let mut pair = pair();
    let list = [Endpoint::sge(0, 8)];
    let stray = SendRequest { target: Target::SharedReceiveQueue(1), ..request(1, write_to(0), &list) };
    pair.a.requester.post(&stray).expect("room");
    pair.post(2, write_to(0), 0, 8);
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::RemoteInvalidRequest), (2, WcStatus::WorkRequestFlushed)]);
}

#[test]
fn requests_name_a_queue_where_there_are_queues_and_nowhere_else() {
    let list = [Endpoint::sge(0, 8)];
    let post = |pair: &mut Pair, target, operation, list| {
        pair.a.requester.post(&SendRequest { target, ..request(1, operation, list) })
    };
    let refused = Err(PostSendError::NotAllowed);
    assert_eq!(post(&mut Pair::new(), SRQ, write_to(0), &list), refused);
    assert_eq!(post(&mut pair(), Target::Peer, write_to(0), &list), refused);
    let atomic_write = SendOperation::AtomicWrite { address: Endpoint::ADDRESS, rkey: RKey(Endpoint::KEY) };
    assert_eq!(post(&mut pair(), SRQ, atomic_write, &list), refused, "XRC has no such opcode");
    assert_eq!(Opcode::new(Service::Xrc, Operation::AtomicWrite), None);
    let flush = SendOperation::Flush {
        address: Endpoint::ADDRESS,
        rkey: RKey(Endpoint::KEY),
        length: 8,
        placement: FlushPlacement::GLOBAL,
        whole_region: false,
    };
    assert_eq!(post(&mut pair(), SRQ, flush, &[]), refused);
    assert_eq!(post(&mut pair(), Target::Peer, SendOperation::LocalInvalidate(RKey(1)), &[]), Ok(()));
}

#[test]
fn one_that_meets_no_receive_waits_for_it() {
    let mut pair = pair();
    pair.post(1, SendOperation::Send, 0, 3000);
    pair.drive_for(crate::time::Duration::from_micros(100));
    assert_eq!(pair.a.requester.counters().rnr_naks, 1);
    pair.receive(7, 0, 3000);
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success)]);
}
