//! One packet lost, each kind in turn: everything still happens once.

use crate::{
    rc::{Quirks, SendOperation, WcStatus},
    testing::{Endpoint, Fate, Pair, PairConfig, Side, add_to, read_from, write_to},
    time::Duration,
    wire::Operation,
};

#[test]
fn a_gap_in_a_send_is_resent_from_the_gap() {
    let mut pair = Pair::new();
    let pattern = pair.fill();
    pair.lose(Side::A, Operation::SendMiddle, 2);
    pair.receive(7, 0, 10_000);
    pair.post(1, SendOperation::Send, 0, 8192);
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success)]);
    assert!(pair.b.memory.bytes(Endpoint::KEY)[..8192] == pattern[..8192]);
    assert_eq!(pair.a.requester.counters().sequence_naks, 1);
    assert_eq!(pair.a.requester.counters().retransmitted_packets, 6, "from the third packet on");
    assert_eq!(pair.a.requester.counters().timeouts, 0);
}

#[test]
fn a_lost_tail_is_found_by_timeout() {
    let mut pair = Pair::new();
    pair.lose(Side::A, Operation::WriteLast, 1);
    pair.post(1, write_to(0), 0, 3001);
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success)]);
    assert_eq!(pair.a.requester.counters().timeouts, 1);
    assert!(pair.now.as_nanos() >= 67_108_864, "not before 4.096 µs · 2^14");
}

#[test]
fn a_lost_acknowledgement_is_asked_for_again() {
    let mut pair = Pair::new();
    pair.lose(Side::B, Operation::Acknowledge, 1);
    pair.receive(7, 0, 5000);
    pair.post(1, SendOperation::Send, 0, 3001);
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success)]);
    assert_eq!(pair.b.results(), [(7, WcStatus::Success)], "received once");
    assert!(pair.b.responder.counters().duplicates > 0);
}

#[test]
fn a_later_acknowledgement_covers_a_lost_one() {
    let mut pair = Pair::with(PairConfig { quirks: Quirks::RXE, ..PairConfig::default() });
    pair.lose(Side::B, Operation::Acknowledge, 1);
    pair.post(1, write_to(0), 0, 64);
    pair.post(2, write_to(0), 0, 64);
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(pair.a.requester.counters().timeouts, 0);
}

#[test]
fn a_lost_read_request_or_response_is_asked_for_again() {
    for (side, operation, nth) in [
        (Side::A, Operation::ReadRequest, 1),
        (Side::B, Operation::ReadResponseFirst, 1),
        (Side::B, Operation::ReadResponseMiddle, 2),
        (Side::B, Operation::ReadResponseLast, 1),
    ] {
        let mut pair = Pair::new();
        let pattern = pair.b.fill();
        pair.lose(side, operation, nth);
        pair.post(1, read_from(0), 0, 8192);
        pair.drive();
        assert_eq!(pair.a.results(), [(1, WcStatus::Success)], "{operation:?}");
        assert!(pair.a.memory.bytes(Endpoint::KEY)[..8192] == pattern[..8192]);
    }
}

#[test]
fn a_gap_in_read_responses_is_asked_for_at_once() {
    let mut pair = Pair::new();
    pair.lose(Side::B, Operation::ReadResponseMiddle, 2);
    pair.post(1, read_from(0), 0, 8192);
    pair.drive();
    let resumed = pair.a.sent[1].view().reth().expect("a READ request");
    assert_eq!((resumed.address, resumed.length), (Endpoint::ADDRESS + 2048, 6144), "from the gap to the end");
    assert_eq!(pair.a.requester.counters().implied_naks, 1);
    assert_eq!(pair.a.requester.counters().timeouts, 0);
}

#[test]
fn a_gap_in_read_responses_waits_for_the_timeout_as_rxe_does() {
    let mut pair = Pair::with(PairConfig { quirks: Quirks::RXE, ..PairConfig::default() });
    pair.lose(Side::B, Operation::ReadResponseMiddle, 2);
    pair.post(1, read_from(0), 0, 8192);
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success)]);
    assert_eq!(pair.a.requester.counters().timeouts, 1);
}

#[test]
fn an_atomic_whose_answer_is_lost_is_executed_once() {
    let mut pair = Pair::new();
    pair.lose(Side::B, Operation::AtomicAcknowledge, 2);
    for wr_id in 0..3 {
        pair.post(wr_id, add_to(0, 1), wr_id * 8, 8);
    }
    pair.drive();
    assert_eq!(pair.b.memory.bytes(Endpoint::KEY)[..8], 3_u64.to_ne_bytes());
    assert_eq!(pair.a.memory.bytes(Endpoint::KEY)[8..16], 1_u64.to_ne_bytes(), "the value before the second");
    assert_eq!(pair.a.completions.len(), 3);
}

#[test]
fn an_acknowledgement_past_a_read_is_an_implied_nak() {
    let mut pair = Pair::new();
    pair.lose(Side::B, Operation::ReadResponseOnly, 1);
    pair.post(1, read_from(0), 0, 64);
    pair.post(2, write_to(0), 0, 64);
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(pair.a.requester.counters().implied_naks, 1);
    assert_eq!(pair.a.requester.counters().timeouts, 0);
}

/// Loses every single packet of a mixed exchange once, in turn.
#[test]
fn any_one_packet_may_be_lost() {
    let mut lost = 0;
    loop {
        let mut pair = Pair::new();
        let pattern = pair.fill();
        let mut index = 0;
        let victim = lost;
        pair.on_wire(move |_, _| {
            index += 1;
            if index == victim + 1 { Fate::Drop } else { Fate::Deliver }
        });
        for wr_id in 0..3 {
            pair.receive(100 + wr_id, 40_000 + wr_id * 4000, 4000);
        }
        pair.post(0, SendOperation::Send, 0, 3001);
        pair.post(1, add_to(600_000, 1), 500_000, 8);
        pair.post(2, write_to(100_000), 0, 5000);
        pair.post(3, read_from(100_000), 510_000, 2500);
        pair.post(4, SendOperation::SendWithImmediate(5), 0, 1);
        pair.post(5, add_to(600_000, 1), 500_008, 8);
        pair.post(6, SendOperation::Send, 0, 0);
        pair.drive();
        assert_eq!(pair.a.results(), (0..7).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>(), "{lost}");
        assert_eq!(pair.b.results(), (100..103).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>(), "{lost}");
        let theirs = pair.b.memory.bytes(Endpoint::KEY);
        assert!(theirs[40_000..][..3001] == pattern[..3001]);
        assert!(theirs[100_000..][..5000] == pattern[..5000]);
        assert_eq!(theirs[600_000..][..8], 2_u64.to_ne_bytes());
        assert!(pair.a.memory.bytes(Endpoint::KEY)[510_000..][..2500] == pattern[..2500]);
        lost += 1;
        if lost > pair.a.sent.len() + pair.b.sent.len() {
            break;
        }
    }
    assert!(lost > 15, "the exchange has that many packets");
}

#[test]
fn reordering_costs_retransmissions_and_nothing_else() {
    let mut pair = Pair::new();
    let pattern = pair.fill();
    let mut seen = 0;
    pair.on_wire(move |_, _| {
        seen += 1;
        if seen % 5 == 0 { Fate::Delay(Duration::from_micros(35)) } else { Fate::Deliver }
    });
    pair.receive(7, 0, 10_000);
    pair.post(1, SendOperation::Send, 0, 8192);
    pair.post(2, read_from(0), 100_000, 8192);
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert!(pair.b.memory.bytes(Endpoint::KEY)[..8192] == pattern[..8192]);
}

#[test]
fn duplicates_of_everything_change_nothing() {
    let mut pair = Pair::new();
    pair.on_wire(|_, _| Fate::Duplicate);
    pair.receive(7, 0, 10_000);
    pair.post(1, SendOperation::Send, 0, 3001);
    pair.post(2, add_to(600_000, 1), 500_000, 8);
    pair.post(3, read_from(0), 100_000, 3001);
    pair.post(4, write_to(0), 0, 3001);
    pair.drive();
    assert_eq!(pair.a.completions.len(), 4);
    assert_eq!(pair.b.completions.len(), 1);
    assert_eq!(pair.b.memory.bytes(Endpoint::KEY)[600_000..][..8], 1_u64.to_ne_bytes());
}
