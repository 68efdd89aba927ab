//! ATOMIC WRITE and FLUSH: answered operations that bring nothing back.

use crate::{
    AccessFlags,
    rc::{Buffers, FlushPlacement, PostSendError, SendOperation, SendRequest, WcOpcode, WcStatus},
    testing::{Endpoint, Fate, Pair, PairConfig, Side, all_access_but, request, write_to},
    time::Duration,
    wire::{Operation, RKey},
};

const KEY: RKey = RKey(Endpoint::KEY);

/// An ATOMIC WRITE to `offset` of the peer's region.
const fn atomic_write_to(offset: u64) -> SendOperation {
    SendOperation::AtomicWrite { address: Endpoint::ADDRESS + offset, rkey: KEY }
}

/// A FLUSH of `length` bytes at `offset` of the peer's region, for everybody to see.
const fn flush_of(offset: u64, length: u32) -> SendOperation {
    SendOperation::Flush {
        address: Endpoint::ADDRESS + offset,
        rkey: KEY,
        length,
        placement: FlushPlacement::GLOBAL,
        whole_region: false,
    }
}

fn post_error(operation: SendOperation, length: u32) -> PostSendError {
    let list = [Endpoint::sge(0, length)];
    Pair::new().a.requester.post(&request(1, operation, &list)).unwrap_err()
}

#[test]
fn eight_bytes_arrive_and_an_empty_response_comes_back() {
    let mut pair = Pair::new();
    let pattern = pair.fill();
    pair.post(1, atomic_write_to(8), 16, 8);
    pair.post(2, flush_of(0, 64), 0, 0);
    pair.drive();
    assert_eq!(pair.b.memory.bytes(Endpoint::KEY)[8..16], pattern[16..24]);
    assert_eq!(pair.a.sent_operations(), [Operation::AtomicWrite, Operation::Flush]);
    assert_eq!(pair.b.sent_operations(), [Operation::ReadResponseOnly, Operation::ReadResponseOnly]);
    assert!(pair.b.sent.iter().all(|packet| packet.view().payload().is_empty()));
    let ends: Vec<_> = pair.a.completions.iter().map(|end| (end.wr_id, end.opcode, end.byte_length)).collect();
    assert_eq!(ends, [(1, WcOpcode::AtomicWrite, 0), (2, WcOpcode::Flush, 0)]);
}

#[test]
fn an_atomic_write_may_be_inline() {
    let mut pair = Pair::new();
    let request = SendRequest { buffers: Buffers::Inline(&[b"atom", b"ical"]), ..request(1, atomic_write_to(0), &[]) };
    pair.a.requester.post(&request).expect("room");
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success)]);
    assert_eq!(pair.b.memory.bytes(Endpoint::KEY)[..8], *b"atomical");
}

#[test]
fn what_makes_no_sense_is_not_posted() {
    assert_eq!(post_error(atomic_write_to(0), 4), PostSendError::BadLength);
    assert_eq!(post_error(atomic_write_to(0), 16), PostSendError::BadLength);
    assert_eq!(post_error(atomic_write_to(4), 8), PostSendError::Misaligned);
    assert_eq!(post_error(flush_of(0, 64), 64), PostSendError::BadLength);
    assert_eq!(post_error(flush_of(0, (1 << 31) + 1), 0), PostSendError::BadLength);
    let nowhere = SendOperation::Flush {
        address: 0,
        rkey: KEY,
        length: 1,
        placement: FlushPlacement::empty(),
        whole_region: false,
    };
    assert_eq!(post_error(nowhere, 0), PostSendError::NotAllowed);
    let mut pair = Pair::with(PairConfig { rd_atomic: 0, ..PairConfig::default() });
    let list = [Endpoint::sge(0, 8)];
    let posted = pair.a.requester.post(&request(1, atomic_write_to(0), &list));
    assert_eq!(posted, Err(PostSendError::NotAllowed), "the peer keeps no resources");
}

#[test]
fn a_flush_follows_the_writes_before_it() {
    let mut pair = Pair::new();
    let pattern = pair.fill();
    pair.post(1, write_to(0), 0, 5000);
    pair.post(2, flush_of(0, 5000), 0, 0);
    let whole = SendOperation::Flush {
        address: 0,
        rkey: KEY,
        length: 0,
        placement: FlushPlacement::GLOBAL,
        whole_region: true,
    };
    pair.post(3, whole, 0, 0);
    pair.drive();
    assert_eq!(pair.a.results(), (1..4).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
    assert_eq!(pair.b.memory.flushes(), [(Endpoint::ADDRESS, Some(5000)), (0, None)]);
    assert!(pair.b.memory.bytes(Endpoint::KEY)[..5000] == pattern[..5000]);
}

#[test]
fn they_are_executed_once_whatever_is_lost() {
    for (side, operation) in
        [(Side::A, Operation::AtomicWrite), (Side::A, Operation::Flush), (Side::B, Operation::ReadResponseOnly)]
    {
        for nth in 1..3 {
            let mut pair = Pair::new();
            pair.lose(side, operation, nth);
            let pattern = pair.fill();
            pair.post(1, atomic_write_to(0), 0, 8);
            pair.post(2, flush_of(0, 8), 0, 0);
            pair.post(3, atomic_write_to(8), 8, 8);
            pair.post(4, flush_of(8, 8), 0, 0);
            pair.drive();
            assert_eq!(pair.a.results(), (1..5).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
            assert_eq!(pair.b.memory.bytes(Endpoint::KEY)[..16], pattern[..16]);
            assert_eq!(pair.b.memory.flushes().len(), 2, "{operation:?} {nth}");
            assert_eq!(pair.b.responder.counters().writes, 2, "{operation:?} {nth}");
        }
    }
}

#[test]
fn a_repeated_atomic_write_does_not_overwrite_what_came_later() {
    let mut pair = Pair::new();
    pair.on_wire({
        let mut answers = 0;
        move |side, _| {
            answers += u32::from(side == Side::B);
            if side == Side::B && answers <= 2 { Fate::Drop } else { Fate::Deliver }
        }
    });
    pair.fill();
    pair.post(1, atomic_write_to(0), 0, 8);
    pair.drive_for(Duration::from_micros(50));
    let later = [Endpoint::sge(8, 8)];
    pair.a.requester.post(&request(2, write_to(0), &later)).expect("room");
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert!(pair.b.responder.counters().duplicates > 0);
    assert_eq!(pair.b.memory.bytes(Endpoint::KEY)[..8], pair.a.memory.bytes(Endpoint::KEY)[8..16]);
}

#[test]
fn no_more_are_outstanding_than_the_peer_keeps() {
    let mut pair = Pair::with(PairConfig { rd_atomic: 2, ..PairConfig::default() });
    for wr_id in 0..6 {
        if wr_id % 2 == 0 {
            pair.post(wr_id, atomic_write_to(0), 0, 8);
        } else {
            pair.post(wr_id, flush_of(0, 8), 0, 0);
        }
    }
    pair.drive_for(Duration::from_micros(15));
    assert_eq!(pair.a.sent.len(), 2);
    pair.drive();
    assert_eq!(pair.a.completions.len(), 6);
}

#[test]
fn a_source_that_cannot_be_read_fails_in_its_turn_and_leaves_nothing_behind() {
    let mut pair = Pair::new();
    pair.post(1, write_to(0), 0, 64);
    let unknown = [crate::Sge { address: 0, length: 8, lkey: 0xbad }];
    pair.a.requester.post(&request(2, atomic_write_to(0), &unknown)).expect("room");
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success), (2, WcStatus::LocalProtection)]);
    assert_eq!(pair.a.sent_operations(), [Operation::WriteOnly]);
}

#[test]
fn each_needs_its_right() {
    for (operation, length, right) in
        [(atomic_write_to(0), 8, AccessFlags::REMOTE_WRITE), (flush_of(0, 8), 0, AccessFlags::FLUSH_GLOBAL)]
    {
        let mut pair = Pair::new();
        let bytes = vec![0; Endpoint::SIZE];
        pair.b.memory.register(Endpoint::KEY, Endpoint::ADDRESS, bytes, all_access_but(right));
        pair.post(1, operation, 0, length);
        pair.drive();
        assert_eq!(pair.a.results(), [(1, WcStatus::RemoteAccess)], "{right:?} of the region");

        let mut pair = Pair::new();
        pair.b.responder.set_access(all_access_but(right));
        pair.post(1, operation, 0, length);
        pair.drive();
        assert_eq!(pair.a.results(), [(1, WcStatus::RemoteInvalidRequest)], "{right:?} of the queue pair");
    }
}

#[test]
fn persistence_is_refused() {
    for placement in [FlushPlacement::PERSISTENT, FlushPlacement::all()] {
        let mut pair = Pair::new();
        let operation =
            SendOperation::Flush { address: Endpoint::ADDRESS, rkey: KEY, length: 8, placement, whole_region: false };
        pair.post(1, operation, 0, 0);
        pair.drive();
        assert_eq!(pair.a.results(), [(1, WcStatus::RemoteInvalidRequest)]);
        assert_eq!(pair.b.memory.flushes(), []);
    }
}
