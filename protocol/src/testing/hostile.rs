//! Any bytes into a live queue pair: what a fuzzer drives.

use super::{Endpoint, OwnedPacket, Pair, Side, add_to, read_from, write_to};
use crate::{
    rc::SendOperation,
    time::Duration,
    wire::{Operation, Packet},
};

/// Feeds `data` as packets to both ends of a connection that is busy in both directions and checks that nothing
/// panics, that no memory outside the regions is touched (the test memory refuses), that memory which may not be
/// written remotely stays as it was, and that queues stay bounded.
///
/// The bytes are taken in records: one byte of length and flags, then a packet. A flag puts the header's PSN and
/// destination into the neighbourhood of the connection's, or time would be spent on packets that are dropped at
/// the first look.
///
/// # Panics
/// When a check fails.
pub fn feed_any_bytes(data: &[u8]) {
    const SECRET: u32 = 0x5ec2e7;
    let mut pair = Pair::new();
    let secret = vec![0x5a; 4096];
    for endpoint in [&pair.a, &pair.b] {
        endpoint.memory.register(SECRET, 0x20_0000, secret.clone(), crate::AccessFlags::LOCAL_WRITE);
    }
    for wr_id in 0..4 {
        pair.receive(wr_id, wr_id * 4096, 4096);
        let list = [Endpoint::sge(0, 4096)];
        pair.a.post_receive(wr_id, &list);
    }
    pair.post(1, SendOperation::Send, 0, 3000);
    pair.post(2, read_from(0), 4096, 3000);
    pair.post(3, add_to(8192, 1), 8192, 8);
    pair.post(4, write_to(0), 0, 3000);
    pair.drive_for(Duration::from_micros(15));

    let mut rest = data;
    while let [control, tail @ ..] = rest {
        let length = usize::from(control & 0x3f) * 4 + 16;
        let (record, after) = tail.split_at(tail.len().min(length));
        rest = after;
        let side = if control & 0x40 == 0 { Side::A } else { Side::B };
        let mut bytes = record.to_vec();
        if control & 0x80 != 0 && bytes.len() >= 12 {
            aim(&mut pair, side, &mut bytes);
        }
        if let Ok(packet) = Packet::new_checked(&bytes) {
            pair.inject(side, &OwnedPacket::from_view(&packet));
        }
        pair.drive_for(Duration::from_micros(3));
    }
    pair.drive_for(Duration::from_secs(5));

    for endpoint in [&pair.a, &pair.b] {
        assert_eq!(endpoint.memory.bytes(SECRET), secret, "memory without remote rights was written");
        assert!(endpoint.requester.queued() <= 4 && endpoint.responder.posted() <= 4);
    }
}

/// Makes a packet look like one of the connection: PSN within 128 of what the side expects, key and address of its
/// region where the opcode has them.
fn aim(pair: &mut Pair, side: Side, bytes: &mut [u8]) {
    let response = Packet::new_checked(bytes).is_ok_and(|packet| packet.opcode().is_response());
    let endpoint = pair.endpoint(if response { side } else { side.peer() });
    let offset = i32::from(bytes[11] as i8);
    let psn = endpoint.requester.next_psn() + (offset as u32 & 0xff_ffff);
    bytes[9..12].copy_from_slice(&psn.value().to_be_bytes()[1..]);
    let starts = [Operation::WriteOnly, Operation::ReadRequest, Operation::FetchAdd, Operation::CompareSwap];
    if starts.iter().any(|&operation| bytes[0] == operation as u8) && bytes.len() >= 24 {
        let address = Endpoint::ADDRESS + u64::from(bytes[18]) * 0x1_0000 + u64::from(bytes[19]);
        bytes[12..20].copy_from_slice(&address.to_be_bytes());
        bytes[20..24].copy_from_slice(&Endpoint::KEY.to_be_bytes());
    }
}
