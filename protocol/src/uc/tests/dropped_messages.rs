//! Which messages are dropped, and that nothing else is.

use super::*;
use crate::{
    memory::Memory,
    work::{Fatal, WcStatus},
};
use Operation as Op;

/// Which of three SENDs of three packets each arrive when the packets at `lost` do not.
fn three_sends_but(lost: &[usize]) -> Vec<u32> {
    const LENGTH: usize = 2 * MTU + 1;
    let mut connection = Connection::new();
    for wr_id in 0..3 {
        connection.post(wr_id, SendOperation::SendWithImmediate(wr_id as u32), wr_id as usize, LENGTH);
        connection.receive(wr_id, wr_id as usize * 1024, SIZE - 2 * 1024);
    }
    connection.deliver_but(lost);
    let mut arrived = Vec::new();
    for (done, wr_id) in connection.received().iter().zip(0..) {
        let number = done.immediate.unwrap();
        assert_eq!((done.wr_id, done.byte_length), (wr_id, LENGTH as u32), "receives are used in order");
        assert!(connection.sink(wr_id as usize * 1024, LENGTH) == pattern(SIZE)[number as usize..][..LENGTH]);
        arrived.push(number);
    }
    arrived
}

#[test]
fn a_lost_packet_takes_its_own_message_and_no_other() {
    assert_eq!(three_sends_but(&[]), [0, 1, 2]);
    for lost in 0..9 {
        let mut arrived = vec![0, 1, 2];
        arrived.remove(lost / 3);
        assert_eq!(three_sends_but(&[lost]), arrived, "packet {lost} lost");
    }
}

#[test]
fn lost_packets_of_two_messages_do_not_make_one() {
    assert_eq!(three_sends_but(&[1, 2, 3]), [2]);
    assert_eq!(three_sends_but(&[2, 3, 4, 5, 6]), [0_u32; 0]);
}

#[test]
fn a_first_within_a_message_begins_the_next_one() {
    let mut connection = Connection::new();
    connection.receive(1, 0, SIZE);
    connection.forge(0, Op::SendFirst, Extended::None, &[1; MTU]);
    connection.forge(1, Op::SendFirst, Extended::None, &[2; MTU]);
    connection.forge(2, Op::SendLast, Extended::None, &[3; 4]);
    assert_eq!(connection.filled(), [1]);
    assert!(connection.sink(0, MTU + 4) == [&[2; MTU][..], &[3; 4]].concat());
    assert_eq!(connection.responder.counters().dropped, 1);
}

#[test]
fn a_packet_of_the_other_kind_ends_a_message() {
    let mut connection = Connection::new();
    connection.receive(1, 0, SIZE);
    connection.forge(0, Op::SendFirst, Extended::None, &[1; MTU]);
    connection.forge(1, Op::WriteLast, Extended::None, &[2; 4]);
    connection.forge(2, Op::SendLast, Extended::None, &[3; 4]);
    assert_eq!(connection.received(), []);
    connection.forge(3, Op::WriteFirst, Extended::Reth(reth(0, MTU + 4)), &[1; MTU]);
    connection.forge(4, Op::SendLast, Extended::None, &[2; 4]);
    connection.forge(5, Op::WriteLast, Extended::None, &[3; 4]);
    assert!(connection.target(MTU, 4) == [0; 4]);
    assert_eq!((connection.responder.counters().writes, connection.responder.counters().sends), (0, 0));
}

#[test]
fn a_message_without_a_receive_is_dropped_whole() {
    let mut connection = Connection::new();
    connection.post(1, SendOperation::Send, 0, 2 * MTU);
    let packets = connection.packets();
    connection.deliver(&packets[0]);
    connection.receive(1, 0, SIZE);
    connection.deliver(&packets[1]);
    assert_eq!(connection.received(), [], "its beginning was dropped");
    connection.post(2, SendOperation::Send, 9, 2 * MTU);
    connection.deliver_but(&[]);
    assert_eq!(connection.filled(), [1]);
    assert_eq!(connection.responder.counters().no_receive, 1);
}

#[test]
fn a_message_longer_than_its_receive_is_dropped_and_the_receive_serves_the_next() {
    let mut connection = Connection::new();
    connection.receive(1, 0, MTU + 10);
    connection.post(1, SendOperation::Send, 0, MTU + 11);
    connection.post(2, SendOperation::Send, 5, MTU + 10);
    connection.deliver_but(&[]);
    assert_eq!(connection.filled(), [1]);
    assert!(connection.sink(0, MTU + 10) == pattern(SIZE)[5..][..MTU + 10]);
    assert!(connection.sink(MTU + 10, 1) == [0], "nothing behind the receive is written");
    assert_eq!(connection.responder.poll_fatal(), None);
}

#[test]
fn a_write_with_immediate_needs_a_receive() {
    let mut connection = Connection::new();
    let write = SendOperation::WriteWithImmediate { address: ADDRESS, rkey: TARGET, immediate: 7 };
    connection.post(1, write, 0, 4);
    connection.deliver_but(&[]);
    assert!(connection.target(0, 4) == [0; 4]);
    connection.receive(1, 0, 0);
    connection.post(2, write, 0, 4);
    connection.deliver_but(&[]);
    assert_eq!(connection.filled(), [1]);
}

#[test]
fn writes_to_where_they_may_not_are_dropped_and_the_connection_goes_on() {
    let other = RKey(0xbad);
    let read_only = RKey(0x54);
    for (address, rkey) in [
        (ADDRESS, other),
        (ADDRESS + SIZE as u64 - 4, TARGET),
        (ADDRESS - 1, TARGET),
        (u64::MAX - 2, TARGET),
        (0, RKey(SINK)),
        (ADDRESS, read_only),
    ] {
        let mut connection = Connection::new();
        connection.far.register(read_only.0, ADDRESS, vec![0; SIZE], AccessFlags::REMOTE_READ);
        let before = [connection.far.bytes(TARGET.0), connection.far.bytes(SINK), connection.far.bytes(read_only.0)];
        connection.post(1, SendOperation::Write { address, rkey }, 0, 5);
        connection.deliver_but(&[]);
        let after = [connection.far.bytes(TARGET.0), connection.far.bytes(SINK), connection.far.bytes(read_only.0)];
        assert!(before == after, "{address:#x} {rkey}");
        assert_eq!(connection.responder.counters().access_errors, 1);
        assert_eq!(connection.responder.poll_fatal(), None);
        connection.post(2, write_at(0), 0, 5);
        connection.deliver_but(&[]);
        assert!(connection.target(0, 5) == pattern(5));
    }
}

#[test]
fn writes_need_the_queue_pairs_permission() {
    let mut connection = Connection::allowing(AccessFlags::empty());
    connection.post(1, write_at(0), 0, 5);
    connection.deliver_but(&[]);
    assert!(connection.target(0, 5) == [0; 5]);
    connection.responder.set_access(AccessFlags::REMOTE_WRITE);
    connection.post(1, write_at(0), 0, 5);
    connection.deliver_but(&[]);
    assert!(connection.target(0, 5) == pattern(5));
}

#[test]
fn an_empty_write_touches_nothing_whatever_its_key() {
    let mut connection = Connection::new();
    connection.post(1, SendOperation::Write { address: 1, rkey: RKey(0xbad) }, 0, 0);
    connection.deliver_but(&[]);
    assert_eq!(connection.responder.counters().writes, 1);
}

#[test]
fn a_write_carries_exactly_what_it_announced() {
    let mut connection = Connection::new();
    let announced = |length| Extended::Reth(reth(0, length));
    connection.forge(0, Op::WriteOnly, announced(3), &[1; 4]);
    connection.forge(1, Op::WriteOnly, announced(5), &[1; 4]);
    connection.forge(2, Op::WriteOnly, announced((1 << 31) + 4), &[1; 4]);
    assert!(connection.target(0, MTU) == [0; MTU]);
    connection.forge(3, Op::WriteFirst, announced(MTU + 3), &[1; MTU]);
    connection.forge(4, Op::WriteLast, Extended::None, &[1; 4]);
    connection.forge(5, Op::WriteFirst, announced(2 * MTU), &[1; MTU]);
    connection.forge(6, Op::WriteMiddle, Extended::None, &[1; MTU]);
    assert!(connection.target(MTU, MTU) == [0; MTU], "a Middle cannot be the end");
    assert_eq!(connection.responder.counters().writes, 0);
}

#[test]
fn packets_have_the_length_that_their_opcode_asks_for() {
    for (operation, length) in [(Op::SendFirst, MTU - 4), (Op::SendFirst, MTU + 4), (Op::SendOnly, MTU + 4)] {
        let mut connection = Connection::new();
        connection.receive(1, 0, SIZE);
        connection.forge(0, operation, Extended::None, &vec![1; length]);
        connection.forge(1, Op::SendLast, Extended::None, &[1; 4]);
        assert_eq!(connection.received(), [], "{operation:?} of {length}");
    }
    for (operation, length) in [(Op::SendMiddle, 4), (Op::SendLast, 0), (Op::SendLast, MTU + 4)] {
        let mut connection = Connection::new();
        connection.receive(1, 0, SIZE);
        connection.forge(0, Op::SendFirst, Extended::None, &[1; MTU]);
        connection.forge(1, operation, Extended::None, &vec![1; length]);
        connection.forge(2, Op::SendLast, Extended::None, &[1; 4]);
        assert_eq!(connection.received(), [], "{operation:?} of {length}");
    }
}

#[test]
fn what_was_seen_or_overtaken_is_dropped() {
    let mut connection = Connection::new();
    for wr_id in 1..=4 {
        connection.receive(wr_id, 0, SIZE);
        connection.post(wr_id, SendOperation::SendWithImmediate(wr_id as u32), 0, 1);
    }
    let packets = connection.packets();
    for index in [0, 0, 2, 1, 2, 3] {
        connection.deliver(&packets[index]);
    }
    let arrived: Vec<_> = connection.received().iter().filter_map(|done| done.immediate).collect();
    assert_eq!(arrived, [1, 3, 4]);
    assert_eq!(connection.responder.counters().duplicates, 3);
}

#[test]
fn a_receive_whose_memory_is_gone_fails_and_stops_the_queue_pair() {
    let mut connection = Connection::new();
    connection.receive(1, 0, SIZE);
    connection.receive(2, 0, SIZE);
    connection.far.deregister(SINK);
    connection.post(1, SendOperation::Send, 0, 1);
    connection.post(2, write_at(0), 0, 1);
    connection.deliver_but(&[]);
    assert_eq!(connection.responder.poll_fatal(), Some(Fatal::Local));
    connection.responder.flush();
    connection.responder.post(3, &[]).unwrap();
    let statuses: Vec<_> = connection.received().iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(
        statuses,
        [(1, WcStatus::LocalProtection), (2, WcStatus::WorkRequestFlushed), (3, WcStatus::WorkRequestFlushed)]
    );
    assert!(connection.target(0, 1) == [0], "nothing is taken after that");
    assert!(connection.far.check_remote(TARGET, ADDRESS, 1, AccessFlags::REMOTE_WRITE).is_ok());
}
