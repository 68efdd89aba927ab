//! What becomes of work requests at the sender.

use super::*;
use crate::work::{Fatal, PostSendError, SendRequest, Target};

#[test]
fn a_request_is_done_when_its_last_packet_has_left() {
    let mut connection = Connection::new();
    connection.post(1, SendOperation::Send, 0, MTU + 1);
    connection.post(2, SendOperation::Send, 0, 1);
    assert!(connection.requester.poll_transmit().is_some());
    connection.requester.transmitted();
    assert_eq!(connection.sent(), [], "half of it has left");
    assert!(connection.requester.poll_transmit().is_some());
    assert_eq!(connection.sent(), [], "it has been handed out, and may not have left");
    connection.requester.transmitted();
    assert_eq!(connection.sent(), [(1, WcStatus::Success)]);
    assert!(connection.requester.poll_transmit().is_some());
    assert!(connection.requester.poll_transmit().is_none());
    connection.requester.transmitted();
    assert_eq!(connection.sent(), [(2, WcStatus::Success)]);
    assert_eq!(connection.requester.counters().messages, 2);
}

#[test]
fn an_unsignalled_request_is_done_without_a_word() {
    let mut connection = Connection::new();
    let list = [source(0, 1)];
    let unsignalled = SendRequest { signaled: false, ..request(1, SendOperation::Send, &list) };
    connection.requester.post(&unsignalled).unwrap();
    connection.packets();
    assert_eq!(connection.sent(), []);
    assert!(connection.requester.is_idle());
}

#[test]
fn a_request_whose_memory_is_gone_fails_behind_those_before_it() {
    let mut connection = Connection::new();
    let nowhere = [Sge { address: 0, length: 2 * MTU as u32, lkey: 0xbad }];
    connection.post(1, SendOperation::Send, 0, MTU + 1);
    connection.requester.post(&request(2, SendOperation::Send, &nowhere)).unwrap();
    connection.post(3, SendOperation::Send, 0, 1);
    assert_eq!(connection.packets().len(), 2);
    assert_eq!(connection.sent(), [(1, WcStatus::Success), (2, WcStatus::LocalProtection)]);
    assert_eq!(connection.requester.poll_fatal(), Some(Fatal::Requester));

    connection.requester.flush();
    connection.post(4, SendOperation::Send, 0, 1);
    assert_eq!(connection.sent(), [(3, WcStatus::WorkRequestFlushed), (4, WcStatus::WorkRequestFlushed)]);
    assert!(connection.packets().is_empty());
}

#[test]
fn after_a_failure_psns_go_on_where_they_stopped() {
    let mut connection = Connection::new();
    let nowhere = [Sge { address: 0, length: 1, lkey: 0xbad }];
    connection.receive(1, 0, SIZE);
    connection.receive(2, 0, SIZE);
    connection.post(1, SendOperation::Send, 0, 1);
    connection.requester.post(&request(2, SendOperation::Send, &nowhere)).unwrap();
    connection.deliver_but(&[]);
    connection.requester.flush();
    connection.sent();
    connection.requester.recover();
    connection.post(3, SendOperation::Send, 0, 1);
    connection.deliver_but(&[]);
    assert_eq!(connection.sent(), [(3, WcStatus::Success)]);
    assert_eq!(connection.filled(), [1, 2]);
    assert_eq!(connection.responder.counters().out_of_sequence, 0);
}

#[test]
fn a_message_that_fails_in_the_middle_never_arrives_in_part() {
    let mut connection = Connection::new();
    let half = [source(0, MTU), Sge { address: 0, length: 1, lkey: 0xbad }];
    connection.receive(1, 0, SIZE);
    connection.requester.post(&request(1, SendOperation::Send, &half)).unwrap();
    // The first packet can be read when it is built, the second not.
    let first = connection.requester.poll_transmit().map(|transmit| transmit.header).unwrap();
    connection.deliver(&OwnedPacket::new(first, &pattern(MTU)));
    assert!(connection.requester.poll_transmit().is_some());
    connection.requester.transmit_failed(WcStatus::LocalProtection);
    connection.requester.transmitted();
    connection.requester.flush();
    connection.requester.recover();
    connection.post(2, SendOperation::Send, 5, 3);
    connection.deliver_but(&[]);
    let [done] = connection.received()[..] else { panic!("one message was sent whole") };
    assert_eq!((done.wr_id, done.byte_length), (1, 3));
    assert!(connection.sink(0, 3) == pattern(SIZE)[5..8]);
}

#[test]
fn draining_finishes_what_has_begun_and_begins_nothing() {
    let mut connection = Connection::new();
    connection.post(1, SendOperation::Send, 0, MTU + 1);
    connection.post(2, SendOperation::Send, 0, 1);
    connection.requester.poll_transmit().unwrap();
    connection.requester.set_draining(true);
    assert!(!connection.requester.is_idle());
    assert_eq!(connection.packets().len(), 1);
    assert!(connection.requester.is_idle());
    assert_eq!(connection.sent(), [(1, WcStatus::Success)]);
    connection.requester.set_draining(false);
    assert_eq!(connection.packets().len(), 1);
}

#[test]
fn what_needs_an_answer_is_refused() {
    let mut connection = Connection::new();
    let (address, rkey) = (ADDRESS, TARGET);
    let list = [source(0, 8)];
    for operation in [
        SendOperation::Read { address, rkey },
        SendOperation::FetchAdd { address, rkey, add: 1 },
        SendOperation::CompareSwap { address, rkey, compare: 1, swap: 2 },
        SendOperation::SendWithInvalidate(rkey),
    ] {
        assert_eq!(connection.requester.post(&request(1, operation, &list)), Err(PostSendError::NotAllowed));
    }
    let elsewhere = SendRequest { target: Target::SharedReceiveQueue(1), ..request(1, SendOperation::Send, &list) };
    assert_eq!(connection.requester.post(&elsewhere), Err(PostSendError::NotAllowed));
    let long = [Sge { address: 0, length: u32::MAX, lkey: SOURCE }];
    assert_eq!(connection.requester.post(&request(1, SendOperation::Send, &long)), Err(PostSendError::BadLength));
}

#[test]
fn a_full_queue_takes_no_more() {
    let mut connection = Connection::new();
    for wr_id in 0..64 {
        connection.post(wr_id, SendOperation::Send, 0, 1);
    }
    let list = [source(0, 1)];
    assert_eq!(connection.requester.post(&request(64, SendOperation::Send, &list)), Err(PostSendError::QueueFull));
    connection.packets();
    connection.post(64, SendOperation::Send, 0, 1);
}
