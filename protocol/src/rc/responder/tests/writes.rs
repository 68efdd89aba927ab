//! What WRITEs do.

use super::*;

#[test]
fn packets_of_a_long_one_join() {
    let mut peer = Peer::of_rxe();
    let data: Vec<u8> = pattern(2 * MTU + 9).iter().map(|byte| !byte).collect();
    peer.request(0, Op::WriteFirst, reth(KEY, ADDRESS + 5, data.len()), &data[..MTU]);
    peer.request(1, Op::WriteMiddle, Extended::None, &data[MTU..2 * MTU]);
    peer.request(2, Op::WriteLast, Extended::None, &data[2 * MTU..]);
    assert_eq!(peer.answers(), ["ack 0 msn 0", "ack 1 msn 0", "ack 2 msn 1"]);
    assert_eq!(peer.memory.bytes(KEY.0)[5..][..data.len()], data);
}

#[test]
fn an_empty_one_needs_no_key() {
    let mut peer = Peer::of_rxe();
    peer.request(0, Op::WriteOnly, reth(RKey(0xbad), 0, 0), b"");
    assert_eq!(peer.answers(), ["ack 0 msn 1"]);
}

#[test]
fn what_the_key_does_not_open_is_refused() {
    for extended in [
        reth(RKey(0xbad), ADDRESS, 4),
        reth(KEY, ADDRESS + 4093, 4),
        reth(KEY, ADDRESS - 1, 4),
        reth(KEY, u64::MAX - 1, 4),
        reth(PRIVATE_KEY, ADDRESS, 4),
    ] {
        let mut peer = Peer::of_rxe();
        peer.request(0, Op::WriteOnly, extended, b"evil");
        peer.assert_refused("nak RemoteAccess 0 msn 0", Fatal::Access);
        assert_eq!(peer.memory.bytes(KEY.0), pattern(4096));
        assert_eq!(peer.responder.counters().access_errors, 1);
    }
}

#[test]
fn beyond_the_region_not_even_the_first_packet_is_placed() {
    let mut peer = Peer::of_rxe();
    peer.request(0, Op::WriteFirst, reth(KEY, ADDRESS, 4097), &[0xff; MTU]);
    peer.assert_refused("nak RemoteAccess 0 msn 0", Fatal::Access);
    assert_eq!(peer.memory.bytes(KEY.0), pattern(4096));
}

#[test]
fn a_region_may_vanish_between_two_packets() {
    let mut peer = Peer::of_hardware();
    peer.request(0, Op::WriteFirst, reth(KEY, ADDRESS, 2 * MTU), &[0xff; MTU]);
    peer.memory.deregister(KEY.0);
    peer.request(1, Op::WriteLast, Extended::None, &[0xff; MTU]);
    peer.assert_refused("nak RemoteAccess 1 msn 0", Fatal::Access);
}

#[test]
fn lengths_must_agree_with_the_reth() {
    let refused: [&[(Operation, Extended, usize)]; 6] = [
        &[(Op::WriteOnly, reth(KEY, ADDRESS, 96), 64)],
        &[(Op::WriteOnly, reth(KEY, ADDRESS, 64), 65)],
        &[(Op::WriteFirst, reth(KEY, ADDRESS, MTU), MTU)],
        &[(Op::WriteFirst, reth(KEY, ADDRESS, 1000), MTU - 4)],
        &[(Op::WriteFirst, reth(KEY, ADDRESS, 2 * MTU), MTU), (Op::WriteMiddle, Extended::None, MTU)],
        &[(Op::WriteFirst, reth(KEY, ADDRESS, 2 * MTU), MTU), (Op::WriteLast, Extended::None, MTU - 1)],
    ];
    for packets in refused {
        let mut peer = Peer::of_hardware();
        for (psn, (operation, extended, length)) in packets.iter().enumerate() {
            peer.request(psn as u32, *operation, *extended, &pattern(*length));
        }
        let nak = format!("nak InvalidRequest {} msn 0", packets.len() - 1);
        peer.assert_refused(&nak, Fatal::InvalidRequest);
    }
}

#[test]
fn more_than_2_gib_is_refused() {
    let mut peer = Peer::of_rxe();
    peer.request(0, Op::WriteFirst, reth(KEY, ADDRESS, (1 << 31) + 1), &pattern(MTU));
    peer.assert_refused("nak InvalidRequest 0 msn 0", Fatal::InvalidRequest);
}
