//! Receives that are shared with other responders.

use super::*;

fn statuses(peer: &mut Peer) -> Vec<(u64, WcStatus)> {
    peer.completions().into_iter().map(|(wr_id, status, _)| (wr_id, status)).collect()
}

#[test]
fn a_message_takes_one_when_it_begins_and_keeps_it() {
    let mut peer = Peer::of_sharing(8);
    for wr_id in 0..3 {
        peer.post(wr_id, 1000);
    }
    peer.send(0, Op::SendFirst, &[1; MTU]);
    assert_eq!(peer.queues[&0].len(), 2);
    // Somebody else takes the next.
    let mut other = Receives::shared();
    assert_eq!(other.finish(peer.queues.get_mut(&0)), Some(1));
    peer.send(1, Op::SendLast, b"end");
    peer.send(2, Op::SendOnly, b"more");
    assert_eq!(statuses(&mut peer), [(0, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn no_credits_are_promised() {
    let mut peer = Peer::of_sharing(8);
    peer.post(1, 1000);
    peer.post(2, 1000);
    peer.send(0, Op::SendOnly, b"x");
    assert_eq!(peer.answers(), ["ack 0 msn 1"], "describe() names credits where there are any");
}

#[test]
fn an_empty_queue_is_not_ready() {
    let mut peer = Peer::of_sharing(8);
    peer.send(0, Op::SendOnly, b"x");
    assert_eq!(peer.answers(), ["rnr 12 at 0 msn 0"]);
    peer.request(
        0,
        Op::WriteOnlyWithImmediate,
        Extended::RethImmediate(Reth { address: 0, rkey: KEY, length: 0 }, 7),
        &[],
    );
    assert_eq!(peer.answers(), ["rnr 12 at 0 msn 0"]);
    peer.post(1, 1000);
    peer.send(0, Op::SendOnly, b"x");
    assert_eq!(peer.answers(), ["ack 0 msn 1"]);
}

#[test]
fn only_a_write_that_carries_immediate_data_takes_one_and_only_at_its_end() {
    let mut peer = Peer::of_sharing(8);
    peer.post(1, 0);
    peer.request(0, Op::WriteFirst, reth(KEY, ADDRESS, MTU + 1), &[1; MTU]);
    assert_eq!(peer.queues[&0].len(), 1);
    peer.request(1, Op::WriteLastWithImmediate, Extended::Immediate(7), &[1]);
    assert_eq!(peer.queues[&0].len(), 0);
    assert_eq!(statuses(&mut peer), [(1, WcStatus::Success)]);
}

#[test]
fn a_flush_ends_the_one_in_use_and_leaves_the_queue_alone() {
    let mut peer = Peer::of_sharing(8);
    peer.post(1, 1000);
    peer.post(2, 1000);
    peer.send(0, Op::SendFirst, &[1; MTU]);
    peer.responder.flush();
    assert_eq!(statuses(&mut peer), [(1, WcStatus::WorkRequestFlushed)]);
    assert_eq!(peer.queues[&0].len(), 1);
}

#[test]
fn a_message_that_is_refused_ends_its_own_receive_alone() {
    let mut peer = Peer::of_sharing(8);
    peer.post(1, 10);
    peer.post(2, 1000);
    peer.send(0, Op::SendOnly, &[1; 11]);
    peer.assert_refused("nak InvalidRequest 0 msn 0", Fatal::Local);
    assert_eq!(statuses(&mut peer), [(1, WcStatus::LocalLength)]);
    assert_eq!(peer.queues[&0].len(), 1);
}

#[test]
fn an_invalid_packet_takes_none() {
    let mut peer = Peer::of_sharing(8);
    peer.post(1, 1000);
    peer.send(0, Op::SendFirst, &[1; MTU - 1]);
    peer.assert_refused("nak InvalidRequest 0 msn 0", Fatal::InvalidRequest);
    assert_eq!(peer.queues[&0].len(), 1);
}

#[test]
fn the_limit_is_told_when_messages_have_taken_enough() {
    let mut peer = Peer::of_sharing(8);
    for wr_id in 0..4 {
        peer.post(wr_id, 1000);
    }
    peer.queues.get_mut(&0).unwrap().set_limit(3);
    let mut reached = Vec::new();
    for psn in 0..4 {
        peer.send(psn, Op::SendOnly, b"x");
        reached.push(peer.queues.get_mut(&0).unwrap().poll_limit_reached());
    }
    assert_eq!(reached, [false, true, false, false]);
}
