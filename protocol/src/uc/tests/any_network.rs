//! Whatever the network loses, repeats and reorders: what is delivered is whole, unmixed, in order and delivered
//! once, and only what lost a packet is missing.

use super::*;
use proptest::prelude::*;

/// Each message has a place of its own, a seventeenth of the memory.
const SLOT: usize = SIZE / 17;

#[derive(Clone, Debug)]
struct Message {
    length: usize,
    is_write: bool,
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let message = (0..SLOT, any::<bool>()).prop_map(|(length, is_write)| Message { length, is_write });
    prop::collection::vec(message, 1..16)
}

/// Posts a message whose immediate data is its number, and whose bytes nobody else has.
fn post(connection: &mut Connection, number: usize, message: &Message) {
    let operation = if message.is_write {
        let address = ADDRESS + (number * SLOT) as u64;
        SendOperation::WriteWithImmediate { address, rkey: TARGET, immediate: number as u32 }
    } else {
        SendOperation::SendWithImmediate(number as u32)
    };
    connection.post(number as u64, operation, number * SLOT, message.length);
}

/// Which messages have been delivered, in order; that each is whole is checked here.
fn delivered(connection: &mut Connection, messages: &[Message], wr_ids: &mut u64) -> Vec<usize> {
    let mut numbers = Vec::new();
    for done in connection.received() {
        assert_eq!(done.status, WcStatus::Success);
        assert_eq!(done.wr_id, *wr_ids, "receives are used in order");
        let number = done.immediate.unwrap() as usize;
        let Message { length, is_write } = messages[number];
        assert_eq!(done.byte_length as usize, length);
        let bytes = match is_write {
            true => connection.target(number * SLOT, length),
            false => connection.sink(done.wr_id as usize * SLOT, length),
        };
        assert!(bytes == pattern(SIZE)[number * SLOT..][..length], "message {number} is not what was sent");
        *wr_ids += 1;
        numbers.push(number);
    }
    numbers
}

fn receives(connection: &mut Connection) {
    for wr_id in 0..16 {
        connection.receive(wr_id, wr_id as usize * SLOT, SLOT);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 500 }, ..ProptestConfig::default() })]

    #[test]
    fn what_is_delivered_is_whole_in_order_and_delivered_once(
        messages in messages(),
        fates in prop::collection::vec((0..8_usize, 0..6_usize), 300),
    ) {
        let mut connection = Connection::new();
        receives(&mut connection);
        for (number, message) in messages.iter().enumerate() {
            post(&mut connection, number, message);
        }
        // Each packet arrives once (most), never, or twice, and up to five places late.
        let mut arrivals: Vec<(usize, OwnedPacket)> = Vec::new();
        for (index, packet) in connection.packets().into_iter().enumerate() {
            let (copies, delay) = fates[index % fates.len()];
            let copies = match copies { 0 => 0, 1 => 2, _ => 1 };
            arrivals.extend((0..copies).map(|copy| (index + delay * (copy + delay % 2), packet.clone())));
        }
        arrivals.sort_by_key(|(at, _)| *at);
        let mut wr_ids = 0;
        let mut numbers = Vec::new();
        for (_, packet) in &arrivals {
            connection.deliver(packet);
            numbers.extend(delivered(&mut connection, &messages, &mut wr_ids));
        }
        prop_assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }

    #[test]
    fn only_what_loses_a_packet_is_missing(messages in messages(), losses in prop::collection::vec(0..6_u8, 300)) {
        let mut connection = Connection::new();
        receives(&mut connection);
        let (mut wr_ids, mut index) = (0, 0);
        for (number, message) in messages.iter().enumerate() {
            post(&mut connection, number, message);
            let mut is_whole = true;
            for packet in connection.packets() {
                let is_lost = losses[index % losses.len()] == 0;
                index += 1;
                is_whole &= !is_lost;
                if !is_lost {
                    connection.deliver(&packet);
                }
            }
            let expected: &[usize] = if is_whole { &[number] } else { &[] };
            prop_assert_eq!(&delivered(&mut connection, &messages, &mut wr_ids)[..], expected);
        }
    }
}
