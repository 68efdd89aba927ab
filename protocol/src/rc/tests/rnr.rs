//! A message that finds no receive posted waits, comes again, and gives up when it was told to.

use crate::{
    rc::{Quirks, SendOperation, WcStatus},
    testing::{Endpoint, Pair, PairConfig},
    time::Duration,
    wire::{Operation, RKey, rnr_timer},
};

#[test]
fn the_sender_waits_as_long_as_the_receiver_asked() {
    for code in 0..32 {
        let mut pair = Pair::with(PairConfig { min_rnr_timer: code, retry: (14, 7, 1), ..PairConfig::default() });
        pair.post(1, SendOperation::Send, 0, 64);
        pair.drive_for(rnr_timer(code));
        assert_eq!(pair.a.sent.len(), 1, "silent for the whole of timer {code}");
        pair.receive(7, 0, 64);
        pair.drive();
        assert_eq!(pair.a.sent.len(), 2);
        assert_eq!(pair.a.results(), [(1, WcStatus::Success)]);
        assert_eq!(pair.b.results(), [(7, WcStatus::Success)]);
    }
}

#[test]
fn retries_are_counted_and_seven_is_for_ever() {
    for rnr_retry in [0, 1, 3, 6] {
        let mut pair = Pair::with(PairConfig { retry: (14, 7, rnr_retry), ..PairConfig::default() });
        pair.post(1, SendOperation::Send, 0, 64);
        pair.post(2, SendOperation::Send, 0, 64);
        pair.drive();
        assert_eq!(
            pair.a.results(),
            [(1, WcStatus::RnrRetryExceeded), (2, WcStatus::WorkRequestFlushed)],
            "the failed one, then the rest"
        );
        let first = pair.a.sent[0].view().psn();
        let transmissions = pair.a.sent.iter().filter(|packet| packet.view().psn() == first).count();
        assert_eq!(transmissions, usize::from(rnr_retry) + 1);
    }
    let mut pair = Pair::with(PairConfig { retry: (14, 7, 7), ..PairConfig::default() });
    pair.post(1, SendOperation::Send, 0, 64);
    pair.drive_for(Duration::from_millis(100));
    assert!(pair.a.completions.is_empty());
    assert!(pair.a.sent.len() > 100, "0.64 ms apart");
}

#[test]
fn what_was_pipelined_behind_is_refused_in_silence() {
    let mut pair = Pair::with(PairConfig {
        quirks: Quirks { end_to_end_credits: false, ..Quirks::HARDWARE },
        ..PairConfig::default()
    });
    for wr_id in 0..5 {
        pair.post(wr_id, SendOperation::Send, 0, 64);
    }
    pair.drive_for(Duration::from_micros(300));
    assert_eq!(pair.b.sent.len(), 1, "one RNR NAK and no sequence NAK");
    for wr_id in 0..5 {
        pair.receive(wr_id, 0, 64);
    }
    pair.drive();
    assert_eq!(pair.a.completions.len(), 5);
    assert_eq!(pair.a.requester.counters().sequence_naks, 0);
}

#[test]
fn a_sequence_nak_behind_the_rnr_nak_does_not_cut_the_wait_short() {
    let mut pair = Pair::with(PairConfig { quirks: Quirks::RXE, ..PairConfig::default() });
    for wr_id in 0..2 {
        pair.post(wr_id, SendOperation::Send, 0, 64);
    }
    pair.drive_for(Duration::from_micros(600));
    assert_eq!(pair.b.sent.len(), 2, "rxe's pair of NAKs");
    assert_eq!(pair.a.sent.len(), 2, "nothing was sent again yet");
    pair.receive(0, 0, 64);
    pair.receive(1, 0, 64);
    pair.drive();
    assert_eq!(pair.a.completions.len(), 2);
}

#[test]
fn a_write_with_immediate_is_refused_at_its_last_packet() {
    let mut pair = Pair::new();
    let pattern = pair.fill();
    let operation =
        SendOperation::WriteWithImmediate { address: Endpoint::ADDRESS, rkey: RKey(Endpoint::KEY), immediate: 1 };
    pair.post(1, operation, 0, 3001);
    pair.drive_for(Duration::from_micros(500));
    assert_eq!(pair.b.sent.len(), 1);
    pair.receive(7, 0, 0);
    pair.drive();
    let operations = pair.a.sent_operations();
    assert_eq!(operations[3..], [Operation::WriteLastWithImmediate], "only the refused packet comes again");
    assert!(pair.b.memory.bytes(Endpoint::KEY)[..3001] == pattern[..3001]);
    assert_eq!(pair.b.results(), [(7, WcStatus::Success)]);
}

#[test]
fn progress_gives_all_retries_back() {
    let mut pair = Pair::with(PairConfig { retry: (14, 7, 1), ..PairConfig::default() });
    for round in 0..5 {
        pair.post(round, SendOperation::Send, 0, 64);
        pair.drive_for(Duration::from_micros(100));
        pair.receive(round, 0, 64);
        pair.drive();
    }
    assert_eq!(pair.a.completions.len(), 5);
    assert_eq!(pair.a.requester.counters().rnr_naks, 5);
}
