//! What arrives where nothing is lost.

use super::*;

#[test]
fn sends_of_every_length_arrive() {
    let mut connection = Connection::new();
    for (wr_id, length) in [0, 1, 3, MTU - 1, MTU, MTU + 1, 3 * MTU, 10 * MTU + 5].into_iter().enumerate() {
        connection.post(wr_id as u64, SendOperation::Send, wr_id, length);
        connection.receive(wr_id as u64, 0, length);
        connection.deliver_but(&[]);
        let [done] = connection.received()[..] else { panic!("{length} bytes have not arrived") };
        assert_eq!((done.status, done.opcode, done.byte_length), (WcStatus::Success, WcOpcode::Receive, length as u32));
        assert!(connection.sink(0, length) == pattern(SIZE)[wr_id..][..length]);
        assert_eq!(connection.sent(), [(wr_id as u64, WcStatus::Success)]);
    }
}

#[test]
fn writes_of_every_length_arrive_without_a_word() {
    let mut connection = Connection::new();
    for (wr_id, length) in [0, 1, MTU, MTU + 1, 10 * MTU + 5].into_iter().enumerate() {
        connection.post(wr_id as u64, write_at(4096), 7, length);
        connection.deliver_but(&[]);
        assert!(connection.target(4096, length) == pattern(SIZE)[7..][..length]);
    }
    assert_eq!(connection.received(), []);
    assert_eq!(connection.responder.counters().writes, 5);
}

#[test]
fn immediate_data_arrives_in_wire_order_with_either() {
    let mut connection = Connection::new();
    for length in [0, 5, 2 * MTU + 1] {
        connection.receive(1, 0, SIZE);
        connection.receive(2, 0, 0);
        connection.post(1, SendOperation::SendWithImmediate(0x1234_5678), 0, length);
        let write = SendOperation::WriteWithImmediate { address: ADDRESS, rkey: TARGET, immediate: 0x9abc_def0 };
        connection.post(2, write, 0, length);
        connection.deliver_but(&[]);
        let received: Vec<_> =
            connection.received().iter().map(|done| (done.opcode, done.byte_length, done.immediate)).collect();
        let length = length as u32;
        assert_eq!(
            received,
            [
                (WcOpcode::Receive, length, Some(0x1234_5678)),
                (WcOpcode::ReceiveWithImmediate, length, Some(0x9abc_def0))
            ]
        );
    }
}

#[test]
fn only_the_last_packet_solicits_an_event() {
    let mut connection = Connection::new();
    let list = [source(0, 2 * MTU)];
    let solicited = crate::work::SendRequest { solicited: true, ..request(1, SendOperation::Send, &list) };
    connection.requester.post(&solicited).unwrap();
    let packets = connection.packets();
    assert_eq!(packets.iter().map(|packet| packet.view().bth().solicited).collect::<Vec<_>>(), [false, true]);
    connection.receive(1, 0, SIZE);
    packets.iter().for_each(|packet| connection.deliver(packet));
    assert!(connection.received()[0].solicited);
}

#[test]
fn nothing_asks_for_an_answer() {
    let mut connection = Connection::new();
    connection.post(1, SendOperation::Send, 0, 3 * MTU);
    connection.post(2, write_at(0), 0, 3 * MTU);
    assert!(connection.packets().iter().all(|packet| !packet.view().bth().ack_request));
}

#[test]
fn the_first_packet_is_told_once() {
    let mut connection = Connection::new();
    assert!(!connection.responder.poll_established());
    connection.post(1, write_at(0), 0, 1);
    connection.deliver_but(&[]);
    assert!(connection.responder.poll_established());
    connection.post(1, write_at(0), 0, 1);
    connection.deliver_but(&[]);
    assert!(!connection.responder.poll_established());
}
