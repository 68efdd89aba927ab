//! What SENDs do.

use super::*;

#[test]
fn one_packet_fills_the_front_receive() {
    let mut peer = Peer::of_rxe();
    peer.post(7, 16);
    peer.post(8, 16);
    peer.send(0, Op::SendOnly, b"hello");
    assert_eq!(peer.answers(), ["ack 0 msn 1"]);
    assert_eq!(peer.completions(), [(7, WcStatus::Success, 5)]);
    assert_eq!(peer.received(6), b"hello\0");
    assert_eq!(peer.responder.posted(), 1);
}

#[test]
fn packets_of_a_long_one_join() {
    let mut peer = Peer::of_rxe();
    let data = pattern(2 * MTU + 3);
    peer.post(7, 1000);
    peer.ask = false;
    peer.send(0, Op::SendFirst, &data[..MTU]);
    peer.send(1, Op::SendMiddle, &data[MTU..2 * MTU]);
    assert_eq!(peer.answers(), [""; 0], "nobody asked");
    assert_eq!(peer.completions(), []);
    peer.ask = true;
    peer.send(2, Op::SendLast, &data[2 * MTU..]);
    assert_eq!(peer.answers(), ["ack 2 msn 1"]);
    assert_eq!(peer.completions(), [(7, WcStatus::Success, 515)]);
    assert_eq!(peer.received(data.len()), data);
}

#[test]
fn an_ack_in_mid_message_carries_the_msn_before_it() {
    let mut peer = Peer::of_rxe();
    peer.post(7, 1000);
    peer.send(0, Op::SendFirst, &pattern(MTU));
    assert_eq!(peer.answers(), ["ack 0 msn 0"]);
}

#[test]
fn payload_spreads_over_scatter_gather_elements() {
    let mut peer = Peer::of_rxe();
    let list: Vec<_> = (0..32).map(|index| Sge { address: index * 100, length: 10, lkey: RECEIVE_KEY }).collect();
    peer.responder.post(7, &list).unwrap();
    let data = pattern(300);
    peer.send(0, Op::SendFirst, &data[..MTU]);
    peer.send(1, Op::SendLast, &data[MTU..]);
    assert_eq!(peer.completions(), [(7, WcStatus::Success, 300)]);
    let memory = peer.received(3000);
    let placed: Vec<_> = memory.chunks(100).flat_map(|chunk| &chunk[..10]).copied().collect();
    assert_eq!(placed, data);
}

#[test]
fn immediate_data_and_solicitation_reach_the_completion() {
    let mut peer = Peer::of_rxe();
    peer.post(7, 16);
    let mut bth = Bth::new(Opcode::rc(Op::SendOnlyWithImmediate), Qpn::new(0x11), Psn::new(0));
    bth.solicited = true;
    let packet = OwnedPacket::new(Repr { bth, xrceth: None, extended: Extended::Immediate(0xcafe) }, b"");
    peer.responder.handle_packet(Instant::ZERO, &packet.view(), &peer.memory, None);
    let completion = peer.responder.poll_completion().unwrap();
    assert_eq!((completion.immediate, completion.solicited), (Some(0xcafe), true));
}

#[test]
fn with_invalidate_takes_the_key_away() {
    let mut peer = Peer::of_rxe();
    peer.post(7, 16);
    peer.request(0, Op::SendOnlyWithInvalidate, Extended::Invalidate(KEY), b"done");
    assert!(peer.memory.is_invalidated(KEY.0));
    assert_eq!(peer.responder.poll_completion().unwrap().invalidated, Some(KEY));
    assert_eq!(peer.answers(), ["ack 0 msn 1"]);
}

#[test]
fn with_invalidate_of_an_unknown_key_is_refused() {
    let mut peer = Peer::of_rxe();
    peer.post(7, 16);
    peer.request(0, Op::SendOnlyWithInvalidate, Extended::Invalidate(RKey(0xbad)), b"done");
    peer.assert_refused("nak RemoteAccess 0 msn 0", Fatal::Access);
}

#[test]
fn too_long_for_the_receive_is_refused_where_it_overflows() {
    let mut peer = Peer::of_hardware();
    peer.post(7, 300);
    peer.post(8, 300);
    peer.send(0, Op::SendFirst, &pattern(MTU));
    peer.send(1, Op::SendLast, &pattern(45));
    assert_eq!(peer.completions(), [(7, WcStatus::LocalLength, 0)]);
    peer.assert_refused("nak InvalidRequest 1 msn 0", Fatal::Local);
    peer.responder.flush();
    assert_eq!(peer.completions(), [(8, WcStatus::WorkRequestFlushed, 0)]);
}

#[test]
fn too_long_is_an_operational_error_to_rxe() {
    let mut peer = Peer::of_rxe();
    peer.post(7, 4);
    peer.send(0, Op::SendOnly, b"hello");
    peer.assert_refused("nak RemoteOperational 0 msn 0", Fatal::Local);
}

#[test]
fn a_receive_in_lost_memory_is_refused() {
    let mut peer = Peer::of_rxe();
    peer.post(7, 16);
    peer.memory.deregister(RECEIVE_KEY);
    peer.send(0, Op::SendOnly, b"hello");
    assert_eq!(peer.completions(), [(7, WcStatus::LocalProtection, 0)]);
    peer.assert_refused("nak RemoteOperational 0 msn 0", Fatal::Local);
}

#[test]
fn an_empty_one_touches_no_memory() {
    let mut peer = Peer::of_rxe();
    peer.responder.post(7, &[]).unwrap();
    peer.send(0, Op::SendOnly, b"");
    assert_eq!(peer.completions(), [(7, WcStatus::Success, 0)]);
}
