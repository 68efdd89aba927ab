//! The local ACK timeout and retry_cnt.

use crate::{
    Instant,
    rc::{Quirks, SendOperation, WcStatus},
    testing::{Fate, Pair, PairConfig, read_from, write_to},
    time::{Duration, timeout_from_code},
};

#[test]
fn silence_is_retried_retry_cnt_times() {
    for retry_cnt in [0, 3, 7] {
        let mut pair = Pair::with(PairConfig { retry: (14, retry_cnt, 7), ..PairConfig::default() });
        pair.on_wire(|_, _| Fate::Drop);
        pair.post(1, write_to(0), 0, 64);
        pair.post(2, write_to(0), 0, 64);
        pair.drive();
        assert_eq!(pair.a.results(), [(1, WcStatus::RetryExceeded), (2, WcStatus::WorkRequestFlushed)]);
        let first = pair.a.sent[0].view().psn();
        let transmissions = pair.a.sent.iter().filter(|packet| packet.view().psn() == first).count();
        assert_eq!(transmissions, usize::from(retry_cnt) + 1);
    }
}

#[test]
fn the_first_retries_wait_twice_and_all_others_four_times_as_long() {
    for (steady_ack_timeout, waits) in [(false, 1 + 2 + 4 * 6), (true, 8)] {
        let quirks = Quirks { steady_ack_timeout, ..Quirks::HARDWARE };
        let mut pair = Pair::with(PairConfig { quirks, retry: (14, 7, 7), ..PairConfig::default() });
        pair.on_wire(|_, _| Fate::Drop);
        pair.post(1, write_to(0), 0, 64);
        pair.drive();
        assert_eq!(pair.a.results(), [(1, WcStatus::RetryExceeded)]);
        let timeout = timeout_from_code(14).expect("a finite timeout");
        assert_eq!(pair.now, Instant::ZERO + timeout * waits);
    }
}

#[test]
fn progress_makes_the_wait_short_again() {
    let mut pair = Pair::with(PairConfig { retry: (14, 7, 7), ..PairConfig::default() });
    let mut sent = 0;
    pair.on_wire(move |_, packet| {
        sent += u32::from(!packet.opcode().is_response());
        // The first two of each request's packets are lost.
        if !packet.opcode().is_response() && sent % 3 != 0 { Fate::Drop } else { Fate::Deliver }
    });
    let timeout = timeout_from_code(14).expect("a finite timeout");
    for wr_id in 0..3 {
        let start = pair.now;
        pair.post(wr_id, write_to(0), 0, 64);
        pair.drive();
        assert_eq!(pair.a.results().len(), 1);
        assert!((timeout * 3..timeout * 4).contains(&(pair.now - start)), "{:?}", pair.now - start);
        pair.a.completions.clear();
    }
}

#[test]
fn rxe_takes_seven_retries_for_endless_ones() {
    let mut pair = Pair::with(PairConfig { quirks: Quirks::RXE, retry: (8, 7, 7), ..PairConfig::default() });
    pair.on_wire(|_, _| Fate::Drop);
    pair.post(1, write_to(0), 0, 64);
    pair.drive_for(Duration::from_secs(1));
    assert!(pair.a.completions.is_empty());
    assert!(pair.a.sent.len() > 500);
}

#[test]
fn timeout_code_zero_waits_for_ever() {
    let mut pair = Pair::with(PairConfig { retry: (0, 7, 7), ..PairConfig::default() });
    pair.on_wire(|_, _| Fate::Drop);
    pair.post(1, write_to(0), 0, 64);
    pair.drive();
    assert!(pair.a.requester.poll_timeout().is_none());
    assert_eq!(pair.a.sent.len(), 1);
    assert!(pair.a.completions.is_empty());
}

#[test]
fn every_acknowledgement_starts_the_timer_anew() {
    let mut pair = Pair::with(PairConfig { retry: (8, 0, 7), quirks: Quirks::RXE, ..PairConfig::default() });
    let mut answers = 0_u32;
    pair.on_wire(move |_, packet| {
        if packet.opcode().is_response() {
            answers += 1;
            return Fate::Delay(Duration::from_micros(900) * answers);
        }
        Fate::Deliver
    });
    for wr_id in 0..10 {
        pair.post(wr_id, write_to(0), 0, 64);
    }
    pair.drive();
    assert_eq!(pair.a.completions.len(), 10, "the answers were 0.9 ms apart, the timeout is 1.05 ms");
    assert!(pair.a.completions.iter().all(|completion| completion.status == WcStatus::Success));
    assert_eq!(pair.a.requester.counters().timeouts, 0);
}

#[test]
fn progress_gives_all_retries_back() {
    let mut pair = Pair::with(PairConfig { retry: (8, 1, 7), ..PairConfig::default() });
    let mut sent = 0;
    pair.on_wire(move |_, packet| {
        if packet.opcode().is_response() {
            return Fate::Deliver;
        }
        sent += 1;
        if sent % 2 == 1 { Fate::Drop } else { Fate::Deliver }
    });
    for wr_id in 0..6 {
        pair.post(wr_id, write_to(0), 0, 64);
        pair.drive();
    }
    assert_eq!(pair.a.completions.len(), 6);
    assert_eq!(pair.a.requester.counters().timeouts, 6);
}

#[test]
fn an_answer_that_comes_after_going_back_still_counts() {
    let mut pair = Pair::with(PairConfig { retry: (8, 7, 7), ..PairConfig::default() });
    let mut answers = 0;
    pair.on_wire(move |_, packet| {
        if packet.opcode().is_response() {
            answers += 1;
            if answers == 1 {
                return Fate::Delay(Duration::from_micros(1060));
            }
        }
        Fate::Deliver
    });
    pair.receive(7, 0, 64);
    pair.post(1, SendOperation::Send, 0, 64);
    pair.post(2, read_from(0), 0, 4000);
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}
