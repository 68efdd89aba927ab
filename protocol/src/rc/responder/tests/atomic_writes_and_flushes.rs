//! What ATOMIC WRITEs and FLUSHes do.

use super::*;
use crate::wire::Feth;

const DONE: &str = "ReadResponseOnly";

fn flush(peer: &mut Peer, psn: u32, placement: (bool, bool), selectivity: u8, length: u32) {
    let feth = Feth { global_visibility: placement.0, persistence: placement.1, selectivity, reserved: 0 };
    let reth = Reth { address: ADDRESS, rkey: KEY, length };
    peer.request(psn, Op::Flush, Extended::Flush(feth, reth), &[]);
}

fn atomic_write(peer: &mut Peer, psn: u32, offset: u64, bytes: &[u8]) {
    peer.request(psn, Op::AtomicWrite, reth(KEY, ADDRESS + offset, bytes.len()), bytes);
}

#[test]
fn both_are_answered_with_an_empty_read_response() {
    let mut peer = Peer::of_rxe();
    atomic_write(&mut peer, 0, 8, b"12345678");
    flush(&mut peer, 1, (true, false), 0, 64);
    assert_eq!(peer.answers(), [format!("{DONE} 0 msn 1: 0 bytes"), format!("{DONE} 1 msn 2: 0 bytes")]);
    assert_eq!(peer.memory.bytes(KEY.0)[8..16], *b"12345678");
    assert_eq!(peer.memory.flushes(), [(ADDRESS, Some(64))]);
}

#[test]
fn repetitions_are_answered_and_not_executed() {
    let mut peer = Peer::of_rxe();
    atomic_write(&mut peer, 0, 0, b"12345678");
    flush(&mut peer, 1, (true, false), 1, 0);
    peer.answers();
    peer.memory.write_remote(KEY, ADDRESS, b"changed!").unwrap();
    atomic_write(&mut peer, 0, 0, b"12345678");
    flush(&mut peer, 1, (true, false), 1, 0);
    assert_eq!(peer.answers(), [format!("{DONE} 0 msn 2: 0 bytes"), format!("{DONE} 1 msn 2: 0 bytes")]);
    assert_eq!(peer.memory.bytes(KEY.0)[..8], *b"changed!");
    assert_eq!(peer.memory.flushes().len(), 1);
}

#[test]
fn repetitions_of_something_else_are_dropped() {
    let mut peer = Peer::of_rxe();
    atomic_write(&mut peer, 0, 0, b"12345678");
    peer.fetch_add(1, 1);
    peer.read(2, 0, 8);
    peer.answers();
    peer.fetch_add(0, 1);
    atomic_write(&mut peer, 1, 0, b"12345678");
    flush(&mut peer, 2, (true, false), 0, 8);
    assert_eq!(peer.answers(), [""; 0]);
}

#[test]
fn what_is_no_atomic_write() {
    let lengths: [(usize, usize); 4] = [(8, 4), (4, 4), (8, 16), (16, 16)];
    for (announced, sent) in lengths {
        let mut peer = Peer::of_rxe();
        peer.request(0, Op::AtomicWrite, reth(KEY, ADDRESS, announced), &vec![0; sent]);
        peer.assert_refused("nak InvalidRequest 0 msn 0", Fatal::InvalidRequest);
    }
    let mut peer = Peer::of_rxe();
    atomic_write(&mut peer, 0, 4, b"12345678");
    peer.assert_refused("nak InvalidRequest 0 msn 0", Fatal::InvalidRequest);
    let mut peer = Peer::of_rxe();
    atomic_write(&mut peer, 0, 4096, b"12345678");
    peer.assert_refused("nak RemoteAccess 0 msn 0", Fatal::Access);
    let mut peer = Peer::of_rxe();
    peer.send(0, Op::SendFirst, &[0; MTU]);
    assert_eq!(peer.answers(), ["rnr 12 at 0 msn 0"]);
    peer.post(1, 1000);
    peer.send(0, Op::SendFirst, &[0; MTU]);
    peer.answers();
    atomic_write(&mut peer, 1, 0, b"12345678");
    peer.assert_refused("nak InvalidRequest 1 msn 0", Fatal::InvalidRequest);
}

#[test]
fn what_is_no_flush() {
    let placements = [(false, false), (false, true), (true, true)];
    let selectivities = [2, 3];
    let forms = placements.map(|placement| (placement, 0)).into_iter();
    for (placement, selectivity) in forms.chain(selectivities.map(|selectivity| ((true, false), selectivity))) {
        let mut peer = Peer::of_rxe();
        flush(&mut peer, 0, placement, selectivity, 8);
        peer.assert_refused("nak InvalidRequest 0 msn 0", Fatal::InvalidRequest);
        assert_eq!(peer.memory.flushes(), []);
    }
    let mut peer = Peer::of_rxe();
    flush(&mut peer, 0, (true, false), 0, u32::MAX);
    peer.assert_refused("nak InvalidRequest 0 msn 0", Fatal::InvalidRequest);
    let mut peer = Peer::of_rxe();
    flush(&mut peer, 0, (true, false), 0, 4097);
    peer.assert_refused("nak RemoteAccess 0 msn 0", Fatal::Access);
}

#[test]
fn more_than_were_agreed_are_refused() {
    let mut peer = Peer::of_rxe();
    for psn in 0..4 {
        atomic_write(&mut peer, psn, 0, b"12345678");
    }
    flush(&mut peer, 4, (true, false), 0, 8);
    assert_eq!(peer.answers().last().unwrap(), "nak InvalidRequest 4 msn 4");
}
