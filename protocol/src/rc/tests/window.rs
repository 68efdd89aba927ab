//! The window over unacknowledged bytes, and READs cut to fit it.

use crate::{
    rc::WindowConfig,
    testing::{Endpoint, Fate, Pair, PairConfig, read_from, write_to},
    time::Duration,
    wire::{Mtu, Operation},
};
use std::{cell::Cell, rc::Rc};

const SMALL: WindowConfig = WindowConfig { initial: 16 << 10, maximum: 64 << 10 };

#[test]
fn a_long_message_leaves_no_more_than_the_window_unacknowledged() {
    let mut pair = Pair::with(PairConfig { window: SMALL, ..PairConfig::default() });
    pair.post(1, write_to(0), 0, 500_000);
    pair.drive_for(Duration::from_micros(5));
    let bytes: usize = pair.a.sent.iter().map(|packet| packet.view().payload().len()).sum();
    assert!((8 << 10..=16 << 10).contains(&bytes), "{bytes} bytes in the first flight");
    pair.drive();
    assert_eq!(pair.a.completions.len(), 1);
    assert_eq!(pair.a.requester.counters().timeouts, 0, "it asks for acknowledgements in time");
}

#[test]
fn a_window_of_two_packets_still_moves() {
    let window = WindowConfig { initial: 0, maximum: 0 };
    let mut pair = Pair::with(PairConfig { window, mtu: Mtu::Mtu4096, ..PairConfig::default() });
    pair.post(1, write_to(0), 0, 100_000);
    pair.post(2, read_from(0), 0, 100_000);
    pair.drive();
    assert_eq!(pair.a.completions.len(), 2);
    assert_eq!(pair.a.requester.counters().timeouts, 0);
}

#[test]
fn a_long_read_is_asked_for_in_pieces_on_a_fixed_grid() {
    let mut pair = Pair::with(PairConfig { window: SMALL, ..PairConfig::default() });
    pair.post(1, read_from(0), 0, 100_000);
    let mut responses = 0;
    pair.on_wire(move |_, packet| {
        if packet.opcode().operation() == Operation::ReadResponseMiddle {
            responses += 1;
            if responses == 20 {
                return Fate::Drop;
            }
        }
        Fate::Deliver
    });
    pair.drive();
    assert_eq!(pair.a.completions.len(), 1);
    for packet in &pair.a.sent {
        let reth = packet.view().reth().expect("a READ request");
        let start = reth.address - Endpoint::ADDRESS;
        let end = start + u64::from(reth.length);
        assert!(end - start / 16_384 * 16_384 <= 16_384, "{start}..{end} stays within a piece");
    }
    assert!(pair.a.sent.len() >= 8);
}

#[test]
fn reads_outstanding_fit_the_window() {
    let mut pair = Pair::with(PairConfig { window: SMALL, rd_atomic: 16, ..PairConfig::default() });
    let outstanding = Rc::new(Cell::new(0_i64));
    let most = Rc::new(Cell::new(0));
    let (count, peak) = (outstanding.clone(), most.clone());
    pair.on_wire(move |_, packet| {
        match packet.reth() {
            Some(reth) => count.set(count.get() + i64::from(reth.length)),
            None => count.set(count.get() - packet.payload().len() as i64),
        }
        peak.set(peak.get().max(count.get()));
        Fate::Deliver
    });
    for wr_id in 0..10 {
        pair.post(wr_id, read_from(0), 0, 60_000);
    }
    pair.drive();
    assert_eq!(pair.a.completions.len(), 10);
    assert!(most.get() <= 64 << 10, "{} bytes were asked for at once", most.get());
    assert_eq!(outstanding.get(), 0);
}
