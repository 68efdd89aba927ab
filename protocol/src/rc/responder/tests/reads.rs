//! What READs do.

use super::*;

#[test]
fn responses_come_one_at_a_time() {
    let mut peer = Peer::of_rxe();
    peer.read(0, 0, 2 * MTU + 1);
    assert!(peer.responder.has_urgent_output());
    assert_eq!(peer.answer().unwrap(), "ReadResponseFirst 0 msn 1: 256 bytes");
    assert_eq!(peer.answer().unwrap(), "ReadResponseMiddle 1: 256 bytes");
    assert_eq!(peer.answer().unwrap(), "ReadResponseLast 2 msn 1: 1 bytes");
    assert_eq!(peer.answer(), None);
    peer.write(3, b"next");
    assert_eq!(peer.answers(), ["ack 3 msn 2"]);
}

#[test]
fn one_packet_is_enough_for_a_short_one() {
    let mut peer = Peer::of_rxe();
    peer.read(0, 0, MTU);
    peer.request(1, Op::ReadRequest, reth(RKey(0xbad), 0, 0), &[]);
    assert_eq!(peer.answers(), ["ReadResponseOnly 0 msn 1: 256 bytes", "ReadResponseOnly 1 msn 2: 0 bytes"]);
}

#[test]
fn answers_keep_the_order_of_requests() {
    let mut peer = Peer::of_rxe();
    peer.post(7, 0);
    peer.read(0, 0, 2 * MTU);
    peer.send(2, Op::SendOnly, b"");
    peer.fetch_add(3, 0);
    peer.read(4, 0, 1);
    let before = u64::from_ne_bytes(pattern(8).try_into().unwrap());
    assert_eq!(
        peer.answers(),
        [
            "ReadResponseFirst 0 msn 1: 256 bytes".to_owned(),
            "ReadResponseLast 1 msn 1: 256 bytes".to_owned(),
            "ack 2 msn 2".to_owned(),
            format!("atomic 3 msn 3: {before}"),
            "ReadResponseOnly 4 msn 4: 1 bytes".to_owned(),
        ]
    );
}

#[test]
fn what_the_key_does_not_open_is_refused() {
    for extended in [reth(RKey(0xbad), ADDRESS, 1), reth(KEY, ADDRESS, 4097), reth(PRIVATE_KEY, ADDRESS, 1)] {
        let mut peer = Peer::of_rxe();
        peer.request(0, Op::ReadRequest, extended, &[]);
        peer.assert_refused("nak RemoteAccess 0 msn 0", Fatal::Access);
    }
}

#[test]
fn a_region_may_vanish_between_two_responses() {
    let mut peer = Peer::of_rxe();
    peer.read(0, 0, 3 * MTU);
    peer.write(3, b"executed, but not acknowledged");
    assert_eq!(peer.answer().unwrap(), "ReadResponseFirst 0 msn 1: 256 bytes");
    peer.memory.deregister(KEY.0);
    peer.assert_refused("nak RemoteAccess 1 msn 1", Fatal::Access);
}

#[test]
fn more_than_were_agreed_are_refused() {
    let mut peer = Peer::of_rxe();
    for psn in 0..4 {
        peer.read(psn, 0, 1);
    }
    peer.answer();
    peer.read(4, 0, 1);
    peer.read(5, 0, 1);
    let answers = peer.answers();
    assert_eq!(answers.last().unwrap(), "nak InvalidRequest 5 msn 5");
    assert_eq!(answers.len(), 5);
}

#[test]
fn none_are_allowed_when_none_were_agreed() {
    let mut attributes = Peer::of_rxe().responder.attributes;
    attributes.max_dest_rd_atomic = 0;
    let mut peer = Peer::new(attributes);
    peer.read(0, 0, 1);
    peer.assert_refused("nak InvalidRequest 0 msn 0", Fatal::InvalidRequest);
}

#[test]
fn the_longest_takes_half_of_all_psns() {
    let mut peer = Peer::of_rxe();
    peer.memory.register(0x99, 0, Vec::new(), AccessFlags::empty());
    // No memory is that large here, so the request is refused, but for its access and not for its length.
    peer.request(0, Op::ReadRequest, reth(KEY, ADDRESS, 1 << 31), &[]);
    peer.assert_refused("nak RemoteAccess 0 msn 0", Fatal::Access);
    let mut peer = Peer::of_rxe();
    peer.request(0, Op::ReadRequest, reth(KEY, ADDRESS, (1 << 31) + 1), &[]);
    peer.assert_refused("nak InvalidRequest 0 msn 0", Fatal::InvalidRequest);
}
