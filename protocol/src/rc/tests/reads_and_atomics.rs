//! READs and atomics among other work, deep pipelines, and replay.

use crate::{
    rc::{SendOperation, SendRequest, WcStatus},
    testing::{Endpoint, Fate, Pair, PairConfig, add_to, read_from, request, write_to},
};

#[test]
fn deep_reads_complete_in_order() {
    let mut pair = Pair::with(PairConfig { rd_atomic: 16, ..PairConfig::default() });
    let pattern = pair.b.fill();
    for wr_id in 0..40 {
        pair.post(wr_id, read_from(wr_id * 5000), wr_id * 5000, 5000);
    }
    pair.drive();
    assert_eq!(pair.a.results(), (0..40).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
    assert!(pair.a.memory.bytes(Endpoint::KEY)[..200_000] == pattern[..200_000]);
}

#[test]
fn a_read_sees_the_writes_before_it_and_none_behind_a_fence() {
    let mut pair = Pair::new();
    let pattern = pair.fill();
    pair.post(1, write_to(0), 0, 4000);
    pair.post(2, read_from(0), 500_000, 4000);
    let list = [Endpoint::sge(8000, 4000)];
    let fenced = SendRequest { fence: true, ..request(3, write_to(0), &list) };
    pair.a.requester.post(&fenced).expect("room");
    pair.post(4, read_from(0), 600_000, 4000);
    pair.drive();
    let mine = pair.a.memory.bytes(Endpoint::KEY);
    assert!(mine[500_000..][..4000] == pattern[..4000]);
    assert!(mine[600_000..][..4000] == pattern[8000..12_000]);
}

#[test]
fn an_atomic_is_executed_once_however_often_its_answers_are_lost() {
    let mut pair = Pair::new();
    let mut answers = 0;
    pair.on_wire(move |_, packet| {
        if packet.opcode().is_response() {
            answers += 1;
            if answers % 5 != 0 {
                return Fate::Drop;
            }
        }
        Fate::Deliver
    });
    for wr_id in 0..8 {
        pair.post(wr_id, add_to(0, 1), wr_id * 8, 8);
    }
    pair.drive();
    assert_eq!(pair.b.memory.bytes(Endpoint::KEY)[..8], 8_u64.to_ne_bytes());
    let mine = pair.a.memory.bytes(Endpoint::KEY);
    for wr_id in 0..8_usize {
        assert_eq!(mine[wr_id * 8..][..8], (wr_id as u64).to_ne_bytes());
    }
}

#[test]
fn both_directions_at_once() {
    let mut pair = Pair::new();
    pair.fill();
    pair.receive(7, 0, 5000);
    pair.post(1, SendOperation::Send, 0, 5000);
    let list = [Endpoint::sge(300_000, 50_000)];
    pair.b.requester.post(&request(2, read_from(0), &list)).expect("room");
    let fenced = SendRequest { fence: true, ..request(3, write_to(700_000), &list) };
    pair.b.requester.post(&fenced).expect("room");
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success)]);
    assert_eq!(pair.b.completions.len(), 3);
    assert!(pair.a.memory.bytes(Endpoint::KEY)[..50_000] == pair.b.memory.bytes(Endpoint::KEY)[300_000..350_000]);
    assert_eq!(
        pair.a.memory.bytes(Endpoint::KEY)[700_000..750_000],
        pair.b.memory.bytes(Endpoint::KEY)[300_000..350_000]
    );
}
