//! End-to-end credits: advertised and obeyed.

use crate::{
    rc::{Quirks, SendOperation},
    testing::{Endpoint, Pair, PairConfig, write_to},
    wire::{CreditCode, Syndrome},
};

#[test]
fn a_sender_does_not_run_into_missing_receives() {
    let mut pair = Pair::new();
    for wr_id in 0..8 {
        pair.receive(wr_id, 0, 64);
    }
    for wr_id in 0..8 {
        pair.post(wr_id, SendOperation::Send, 0, 64);
    }
    pair.drive();
    assert_eq!(pair.a.completions.len(), 8);
    assert_eq!(pair.a.requester.counters().rnr_naks, 0);
    assert_eq!(pair.b.responder.counters().out_of_sequence, 0);
}

#[test]
fn one_message_beyond_the_limit_probes() {
    let mut pair = Pair::new();
    pair.receive(0, 0, 64);
    for wr_id in 0..5 {
        pair.post(wr_id, SendOperation::Send, 0, 64);
    }
    pair.drive_for(core::time::Duration::from_micros(200));
    assert_eq!(pair.a.sent.len(), 2, "one that had a receive and one probe, not five");
    for wr_id in 1..5 {
        pair.receive(wr_id, 0, 64);
    }
    pair.drive();
    assert_eq!(pair.a.completions.len(), 5);
    assert_eq!(pair.a.requester.counters().rnr_naks, 1);
}

#[test]
fn writes_need_no_credit() {
    let mut pair = Pair::new();
    for wr_id in 0..20 {
        pair.post(wr_id, write_to(0), 0, 64);
    }
    pair.drive_for(core::time::Duration::from_micros(10));
    assert_eq!(pair.a.sent.len(), 20, "all at once");
}

#[test]
fn acknowledgements_carry_what_is_posted_or_no_limit() {
    for (quirks, expected) in [(Quirks::HARDWARE, CreditCode::for_posted(9)), (Quirks::RXE, CreditCode::UNLIMITED)] {
        let mut pair = Pair::with(PairConfig { quirks, ..PairConfig::default() });
        for wr_id in 0..10 {
            pair.receive(wr_id, 0, 64);
        }
        pair.post(1, SendOperation::Send, 0, 64);
        pair.drive();
        let aeth = pair.b.sent[0].view().aeth().expect("an acknowledgement");
        assert_eq!(aeth.syndrome, Syndrome::Ack(expected));
        assert_eq!(aeth.msn.value(), 1);
    }
}

#[test]
fn a_sender_without_flow_control_sends_everything_at_once() {
    let mut pair = Pair::with(PairConfig { quirks: Quirks::RXE, ..PairConfig::default() });
    for wr_id in 0..5 {
        pair.b.responder.post(wr_id, &[Endpoint::sge(0, 64)]).expect("room");
        pair.post(wr_id, SendOperation::Send, 0, 64);
    }
    pair.drive_for(core::time::Duration::from_micros(5));
    assert_eq!(pair.a.sent.len(), 5);
}
