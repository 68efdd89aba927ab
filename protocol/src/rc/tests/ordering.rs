//! Order: fences, outstanding READs and atomics, draining, flushing.

use crate::{
    rc::{SendOperation, SendRequest, WcStatus},
    testing::{Endpoint, Pair, PairConfig, add_to, read_from, request, write_to},
    time::Duration,
    wire::Operation,
};

#[test]
fn a_fence_waits_for_reads_and_atomics_before_it() {
    let mut pair = Pair::new();
    pair.post(1, read_from(0), 0, 64);
    let list = [Endpoint::sge(0, 64)];
    let fenced = SendRequest { fence: true, ..request(2, write_to(100), &list) };
    pair.a.requester.post(&fenced).expect("room");
    pair.drive_for(Duration::from_micros(15));
    assert_eq!(pair.a.sent_operations(), [Operation::ReadRequest]);
    pair.drive();
    assert_eq!(pair.a.sent_operations(), [Operation::ReadRequest, Operation::WriteOnly]);
}

#[test]
fn no_more_reads_and_atomics_than_the_peer_keeps() {
    let mut pair = Pair::with(PairConfig { rd_atomic: 2, ..PairConfig::default() });
    for wr_id in 0..5 {
        pair.post(wr_id, add_to(0, 1), wr_id * 8, 8);
    }
    pair.drive_for(Duration::from_micros(15));
    assert_eq!(pair.a.sent.len(), 2);
    pair.drive();
    assert_eq!(pair.a.completions.len(), 5);
    assert_eq!(pair.b.memory.bytes(Endpoint::KEY)[..8], 5_u64.to_ne_bytes());
}

#[test]
fn draining_finishes_what_was_started_and_starts_nothing() {
    let mut pair = Pair::new();
    pair.post(1, write_to(0), 0, 3000);
    pair.drive_for(Duration::from_micros(5));
    pair.a.requester.set_draining(true);
    assert!(!pair.a.requester.is_idle());
    pair.post(2, write_to(0), 0, 64);
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success)]);
    assert!(pair.a.requester.is_idle());
    pair.a.requester.set_draining(false);
    pair.drive();
    assert_eq!(pair.a.completions.len(), 2);
}

#[test]
fn a_flush_ends_everything_in_order() {
    let mut pair = Pair::new();
    for wr_id in 0..4 {
        pair.post(wr_id, SendOperation::Send, 0, 64);
        pair.receive(10 + wr_id, 0, 64);
    }
    pair.a.requester.flush();
    pair.b.responder.flush();
    pair.post(4, SendOperation::Send, 0, 64);
    pair.receive(14, 0, 64);
    pair.drive();
    assert_eq!(pair.a.results(), (0..5).map(|wr_id| (wr_id, WcStatus::WorkRequestFlushed)).collect::<Vec<_>>());
    assert_eq!(pair.b.results(), (10..15).map(|wr_id| (wr_id, WcStatus::WorkRequestFlushed)).collect::<Vec<_>>());
}
