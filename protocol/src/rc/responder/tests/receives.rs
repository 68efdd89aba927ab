//! What becomes of posted receives, and what happens without them.

use super::*;

#[test]
fn the_queue_is_as_deep_as_it_was_made() {
    let mut responder = Responder::new(2);
    assert_eq!(responder.post(1, &[]), Ok(()));
    assert_eq!(responder.post(2, &[]), Ok(()));
    assert_eq!(responder.post(3, &[]), Err(PostReceiveError::QueueFull));
}

#[test]
fn without_one_a_send_is_not_ready() {
    let mut peer = Peer::of_rxe();
    peer.send(0, Op::SendOnly, b"hello");
    assert_eq!(peer.answers(), ["rnr 12 at 0 msn 0"]);
    peer.responder.set_min_rnr_timer(31);
    peer.send(0, Op::SendOnly, b"hello");
    assert_eq!(peer.answers(), ["rnr 31 at 0 msn 0"]);
    peer.post(7, 16);
    peer.send(0, Op::SendOnly, b"hello");
    assert_eq!(peer.answers(), ["ack 0 msn 1"]);
    assert_eq!(peer.responder.counters().rnr_naks, 2);
}

#[test]
fn after_not_ready_what_follows_is_dropped_in_silence() {
    let mut peer = Peer::of_hardware();
    peer.send(0, Op::SendOnly, b"hello");
    peer.send(1, Op::SendOnly, b"world");
    peer.write(2, b"!");
    assert_eq!(peer.answers(), ["rnr 12 at 0 msn 0"]);
}

#[test]
fn after_not_ready_rxe_complains_about_what_follows() {
    let mut peer = Peer::of_rxe();
    peer.send(0, Op::SendOnly, b"hello");
    peer.send(1, Op::SendOnly, b"world");
    peer.send(2, Op::SendOnly, b"!");
    assert_eq!(peer.answers(), ["rnr 12 at 0 msn 0", "nak PsnSequence 0 msn 0"]);
}

#[test]
fn a_write_with_immediate_is_not_ready_at_its_last_packet() {
    let mut peer = Peer::of_rxe();
    let data = pattern(MTU + 1);
    peer.request(0, Op::WriteFirst, reth(KEY, ADDRESS, MTU + 1), &data[..MTU]);
    peer.request(1, Op::WriteLastWithImmediate, Extended::Immediate(5), &data[MTU..]);
    assert_eq!(peer.answers(), ["ack 0 msn 0", "rnr 12 at 1 msn 0"]);
    peer.post(7, 0);
    peer.request(1, Op::WriteLastWithImmediate, Extended::Immediate(5), &data[MTU..]);
    assert_eq!(peer.answers(), ["ack 1 msn 1"]);
    assert_eq!(peer.completions(), [(7, WcStatus::Success, 257)]);
    assert_eq!(peer.memory.bytes(KEY.0)[..257], data);
}

#[test]
fn posted_after_the_error_are_flushed_in_turn() {
    let mut peer = Peer::of_rxe();
    peer.post(1, 8);
    peer.post(2, 8);
    peer.responder.flush();
    peer.post(3, 8);
    let flushed = WcStatus::WorkRequestFlushed;
    assert_eq!(peer.completions(), [(1, flushed, 0), (2, flushed, 0), (3, flushed, 0)]);
}

#[test]
fn a_reset_forgets_them() {
    let mut peer = Peer::of_rxe();
    peer.post(1, 8);
    peer.responder.reset();
    assert_eq!((peer.completions(), peer.responder.posted()), (vec![], 0));
}

#[test]
fn credits_tell_how_many_are_posted() {
    let mut peer = Peer::of_hardware();
    for wr_id in 0..5 {
        peer.post(wr_id, 1000);
    }
    peer.send(0, Op::SendOnly, b"");
    assert_eq!(peer.answers(), ["ack 0 msn 1 credits 4"]);
    peer.send(1, Op::SendFirst, &pattern(MTU));
    assert_eq!(peer.answers(), ["ack 1 msn 1 credits 4"], "the message in progress comes after the MSN");
    peer.send(2, Op::SendLast, b".");
    assert_eq!(peer.answers(), ["ack 2 msn 2 credits 3"]);
}
