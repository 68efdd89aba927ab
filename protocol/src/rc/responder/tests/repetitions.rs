//! Requests that come again.

use super::*;

#[test]
fn of_sends_and_writes_are_acknowledged_and_not_executed() {
    let mut peer = Peer::of_rxe();
    peer.post(7, 16);
    peer.post(8, 16);
    peer.send(0, Op::SendOnly, b"once");
    peer.write(1, b"first");
    peer.answers();
    peer.ask = false;
    peer.send(0, Op::SendOnly, b"twice");
    peer.write(1, b"again");
    assert_eq!(peer.answers(), ["ack 1 msn 2", "ack 1 msn 2"], "whether or not they ask for it");
    assert_eq!(peer.completions(), [(7, WcStatus::Success, 4)]);
    assert_eq!(peer.received(5), b"once\0");
    assert_eq!(peer.memory.bytes(KEY.0)[..5], *b"first");
    assert_eq!(peer.responder.counters().duplicates, 2);
}

#[test]
fn never_acknowledge_a_read_in_between() {
    let mut peer = Peer::of_rxe();
    peer.write(0, b"a");
    peer.read(1, 0, 2 * MTU);
    peer.write(3, b"b");
    peer.fetch_add(4, 1);
    peer.write(5, b"c");
    peer.write(6, b"d");
    peer.answers();
    peer.write(0, b"a");
    peer.write(3, b"b");
    peer.write(5, b"c");
    assert_eq!(peer.answers(), ["ack 0 msn 6", "ack 3 msn 6", "ack 6 msn 6"]);
}

#[test]
fn before_anything_new_acknowledge_the_psn_before_the_first() {
    let mut attributes = Peer::of_rxe().responder.attributes;
    attributes.first_psn = Psn::new(100);
    let mut peer = Peer::new(attributes);
    peer.write(98, b"from an earlier life");
    assert_eq!(peer.answers(), ["ack 99 msn 0"]);
    assert_eq!(peer.memory.bytes(KEY.0), pattern(4096));
}

#[test]
fn of_a_read_are_answered_anew() {
    let mut peer = Peer::of_rxe();
    peer.read(0, 0, 2 * MTU);
    peer.write(2, b"later");
    peer.answers();
    peer.read(0, 0, 2 * MTU);
    assert_eq!(
        peer.answers(),
        ["ReadResponseFirst 0 msn 2: 256 bytes", "ReadResponseLast 1 msn 2: 256 bytes"],
        "with the current MSN"
    );
}

#[test]
fn of_the_rest_of_a_read_go_on_in_the_middle() {
    let mut peer = Peer::of_rxe();
    peer.read(0, 0, 3 * MTU + 8);
    peer.answers();
    peer.read(2, 512, MTU + 8);
    assert_eq!(peer.answers(), ["ReadResponseMiddle 2: 256 bytes", "ReadResponseLast 3 msn 1: 8 bytes"]);
    peer.read(3, 768, 8);
    assert_eq!(peer.answers(), ["ReadResponseLast 3 msn 1: 8 bytes"]);
    peer.read(1, 256, 2 * MTU + 8);
    assert_eq!(peer.answers().len(), 3, "an earlier part may still be asked for");
}

#[test]
fn of_a_read_that_ask_for_something_else_are_dropped() {
    let mut peer = Peer::of_rxe();
    peer.read(0, 256, 2 * MTU);
    peer.write(2, b"");
    peer.answers();
    peer.read(0, 0, 2 * MTU);
    peer.read(0, 256, 2 * MTU + 1);
    peer.read(1, 256, MTU);
    peer.read(1, 512, 2 * MTU);
    peer.read(2, 0, 1);
    peer.request(0, Op::ReadRequest, reth(PRIVATE_KEY, ADDRESS + 256, 2 * MTU), &[]);
    peer.fetch_add(0, 1);
    assert_eq!(peer.answers(), [""; 0]);
}

#[test]
fn of_a_read_under_way_start_it_again() {
    let mut peer = Peer::of_rxe();
    peer.read(0, 0, 4 * MTU);
    peer.write(4, b"behind");
    assert_eq!(peer.answer().unwrap(), "ReadResponseFirst 0 msn 1: 256 bytes");
    assert_eq!(peer.answer().unwrap(), "ReadResponseMiddle 1: 256 bytes");
    peer.read(1, 256, 3 * MTU);
    peer.read(3, 768, MTU);
    assert_eq!(
        peer.answers(),
        [
            "ReadResponseMiddle 1: 256 bytes",
            "ReadResponseMiddle 2: 256 bytes",
            "ReadResponseLast 3 msn 2: 256 bytes",
            "ack 4 msn 2",
        ]
    );
}

#[test]
fn that_flood_cost_no_memory() {
    let mut peer = Peer::of_rxe();
    for psn in 0..4 {
        peer.read(psn, 0, 1);
    }
    peer.write(4, b"");
    for round in 0..10_000 {
        peer.read(round % 4, 0, 1);
        peer.write(4, b"");
        peer.write(6, b"ahead");
    }
    assert!(peer.answers().len() < 100);
}

#[test]
fn are_marked_as_such_for_the_driver() {
    let mut peer = Peer::of_rxe();
    peer.read(0, 0, 2 * MTU);
    peer.answer();
    peer.read(0, 0, 2 * MTU);
    let mut next = || peer.responder.poll_transmit(Instant::ZERO, true).unwrap().retransmission;
    assert_eq!([next(), next()], [true, false]);
}
