//! What atomics do.

use super::*;

fn word(peer: &Peer) -> u64 {
    u64::from_ne_bytes(peer.memory.bytes(KEY.0)[..8].try_into().unwrap())
}

fn zeroed() -> Peer {
    let peer = Peer::of_rxe();
    peer.memory.write_remote(KEY, ADDRESS, &[0; 8]).unwrap();
    peer
}

#[test]
fn the_value_before_comes_back() {
    let mut peer = zeroed();
    peer.fetch_add(0, 5);
    peer.fetch_add(1, u64::MAX);
    assert_eq!(peer.answers(), ["atomic 0 msn 1: 0", "atomic 1 msn 2: 5"]);
    assert_eq!(word(&peer), 4, "the sum wraps");
}

#[test]
fn a_swap_needs_the_compared_value() {
    let mut peer = zeroed();
    for (psn, compare, swap) in [(0, 0, 11), (1, 0, 22), (2, 11, 33)] {
        let eth = AtomicEth { address: ADDRESS, rkey: KEY, swap_or_add: swap, compare };
        peer.request(psn, Op::CompareSwap, Extended::Atomic(eth), &[]);
    }
    assert_eq!(peer.answers(), ["atomic 0 msn 1: 0", "atomic 1 msn 2: 11", "atomic 2 msn 3: 11"]);
    assert_eq!(word(&peer), 33);
}

#[test]
fn a_misaligned_one_is_invalid() {
    let mut peer = Peer::of_rxe();
    let eth = AtomicEth { address: ADDRESS + 4, rkey: KEY, swap_or_add: 1, compare: 0 };
    peer.request(0, Op::FetchAdd, Extended::Atomic(eth), &[]);
    peer.assert_refused("nak InvalidRequest 0 msn 0", Fatal::InvalidRequest);
}

#[test]
fn a_wrong_key_is_an_access_error() {
    let mut peer = Peer::of_rxe();
    let eth = AtomicEth { address: ADDRESS, rkey: RKey(0xbad), swap_or_add: 1, compare: 0 };
    peer.request(0, Op::FetchAdd, Extended::Atomic(eth), &[]);
    peer.assert_refused("nak RemoteAccess 0 msn 0", Fatal::Access);
}

#[test]
fn a_repeated_one_is_not_executed_again() {
    let mut peer = zeroed();
    peer.fetch_add(0, 5);
    peer.fetch_add(1, 5);
    peer.answers();
    peer.fetch_add(0, 5);
    assert_eq!(peer.answers(), ["atomic 0 msn 2: 0"]);
    assert_eq!(word(&peer), 10);
}

#[test]
fn one_too_old_to_remember_is_dropped() {
    let mut peer = zeroed();
    for psn in 0..5 {
        peer.fetch_add(psn, 1);
        peer.answers();
    }
    peer.fetch_add(0, 1);
    assert_eq!(peer.answers(), [""; 0]);
    peer.fetch_add(1, 1);
    assert_eq!(peer.answers(), ["atomic 1 msn 5: 1"]);
    assert_eq!(word(&peer), 5);
}
