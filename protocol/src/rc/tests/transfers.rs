//! Every operation, whole, over a wire that does nothing.

use crate::{
    Psn, Sge,
    rc::{Buffers, SendOperation, SendRequest, WcOpcode, WcStatus},
    testing::{Endpoint, Pair, PairConfig, add_to, read_from, request, write_to},
    wire::{Mtu, Operation, RKey},
};

const SIZES: [u32; 8] = [0, 1, 3, 1023, 1024, 1025, 3001, 70_000];

#[test]
fn a_send_fills_the_posted_receive() {
    for mtu in Mtu::ALL {
        for size in SIZES {
            let mut pair = Pair::with(PairConfig { mtu, ..PairConfig::default() });
            let pattern = pair.fill();
            pair.receive(7, 64, 100_000);
            pair.post(1, SendOperation::Send, 0, size);
            pair.drive();
            assert_eq!(pair.a.results(), [(1, WcStatus::Success)]);
            let completion = pair.b.completions[0];
            assert_eq!((completion.wr_id, completion.opcode, completion.byte_length), (7, WcOpcode::Receive, size));
            assert!(pair.b.memory.bytes(Endpoint::KEY)[64..][..size as usize] == pattern[..size as usize]);
            assert_eq!(pair.a.sent.len(), mtu.packets(size.into()) as usize, "{mtu} {size}");
        }
    }
}

#[test]
fn a_write_lands_where_it_was_aimed_and_tells_nobody() {
    for size in SIZES {
        let mut pair = Pair::new();
        let pattern = pair.fill();
        pair.post(1, write_to(5), 9, size);
        pair.drive();
        assert_eq!(pair.a.results(), [(1, WcStatus::Success)]);
        assert!(pair.b.completions.is_empty());
        assert!(pair.b.memory.bytes(Endpoint::KEY)[5..][..size as usize] == pattern[9..][..size as usize]);
    }
}

#[test]
fn a_write_with_immediate_consumes_a_receive() {
    for size in SIZES {
        let mut pair = Pair::new();
        pair.receive(7, 0, 0);
        let operation =
            SendOperation::WriteWithImmediate { address: Endpoint::ADDRESS, rkey: RKey(Endpoint::KEY), immediate: 42 };
        pair.post(1, operation, 0, size);
        pair.drive();
        let completion = pair.b.completions[0];
        assert_eq!(completion.opcode, WcOpcode::ReceiveWithImmediate);
        assert_eq!((completion.byte_length, completion.immediate), (size, Some(42)));
    }
}

#[test]
fn immediate_and_invalidation_arrive_with_the_last_packet() {
    let mut pair = Pair::new();
    pair.receive(7, 0, 5000);
    pair.receive(8, 0, 5000);
    pair.post(1, SendOperation::SendWithImmediate(0xcafe), 0, 3001);
    pair.post(2, SendOperation::SendWithInvalidate(RKey(Endpoint::KEY)), 0, 3001);
    pair.drive();
    assert_eq!(pair.b.completions[0].immediate, Some(0xcafe));
    assert_eq!(pair.b.completions[1].invalidated, Some(RKey(Endpoint::KEY)));
    assert!(pair.b.memory.is_invalidated(Endpoint::KEY));
    assert_eq!(pair.a.sent_operations()[2], Operation::SendLastWithImmediate);
    assert_eq!(pair.a.sent_operations()[5], Operation::SendLastWithInvalidate);
}

#[test]
fn a_read_brings_the_bytes_back() {
    for size in SIZES {
        let mut pair = Pair::new();
        let pattern = pair.b.fill();
        pair.post(1, read_from(3), 11, size);
        pair.drive();
        assert_eq!(pair.a.results(), [(1, WcStatus::Success)]);
        assert_eq!(pair.a.completions[0].byte_length, size);
        assert!(pair.a.memory.bytes(Endpoint::KEY)[11..][..size as usize] == pattern[3..][..size as usize]);
    }
}

#[test]
fn atomics_return_the_value_before() {
    let mut pair = Pair::new();
    pair.post(1, add_to(8, 5), 0, 8);
    pair.post(2, add_to(8, 5), 8, 8);
    let swap = SendOperation::CompareSwap {
        address: Endpoint::ADDRESS + 8,
        rkey: RKey(Endpoint::KEY),
        compare: 10,
        swap: u64::MAX,
    };
    pair.post(3, swap, 16, 8);
    pair.drive();
    let mine = pair.a.memory.bytes(Endpoint::KEY);
    let words: Vec<u64> =
        mine[..24].chunks(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes"))).collect();
    assert_eq!(words, [0, 5, 10]);
    assert_eq!(pair.b.memory.bytes(Endpoint::KEY)[8..16], u64::MAX.to_ne_bytes());
    assert_eq!(pair.a.completions[2].byte_length, 8);
}

#[test]
fn scatter_gather_lists_are_one_stream() {
    let mut pair = Pair::new();
    let pattern = pair.fill();
    let list: Vec<Sge> = (0..32).map(|i| Endpoint::sge(i * 100, 77)).collect();
    let scatter: Vec<Sge> = (0..32).map(|i| Endpoint::sge(i * 211, 113)).collect();
    pair.b.responder.post(7, &scatter).expect("room");
    pair.a.requester.post(&request(1, SendOperation::Send, &list)).expect("room");
    pair.drive();
    let sent: Vec<u8> = (0..32).flat_map(|i| pattern[i * 100..][..77].to_vec()).collect();
    let theirs = pair.b.memory.bytes(Endpoint::KEY);
    let received: Vec<u8> = (0..32).flat_map(|i| theirs[i * 211..][..113].to_vec()).collect();
    assert_eq!(received[..sent.len()], sent);
}

#[test]
fn inline_bytes_are_taken_when_posted() {
    let mut pair = Pair::new();
    pair.receive(7, 0, 5000);
    let text = vec![9; 3000];
    let send = SendRequest { buffers: Buffers::Inline(&[&text, &[1, 2, 3]]), ..request(1, SendOperation::Send, &[]) };
    pair.a.requester.post(&send).expect("room");
    drop(text);
    pair.drive();
    let theirs = pair.b.memory.bytes(Endpoint::KEY);
    assert_eq!(theirs[2999..3003], [9, 1, 2, 3]);
}

#[test]
fn unsignalled_requests_complete_silently() {
    let mut pair = Pair::new();
    let list = [Endpoint::sge(0, 8)];
    for wr_id in 0..4 {
        let write = SendRequest { signaled: wr_id == 3, ..request(wr_id, write_to(0), &list) };
        pair.a.requester.post(&write).expect("room");
    }
    pair.drive();
    assert_eq!(pair.a.results(), [(3, WcStatus::Success)]);
    assert_eq!(pair.a.requester.queued(), 0);
}

#[test]
fn psns_wrap_within_a_message() {
    let mut pair = Pair::with(PairConfig { first_psn: Psn::new(0xff_fffe), ..PairConfig::default() });
    pair.receive(7, 0, 100_000);
    pair.post(1, SendOperation::Send, 0, 5000);
    pair.drive();
    let psns: Vec<u32> = pair.a.sent.iter().map(|packet| packet.view().psn().value()).collect();
    assert_eq!(psns, [0xff_fffe, 0xff_ffff, 0, 1, 2]);
    assert_eq!(pair.a.requester.next_psn(), Psn::new(3));
}

#[test]
fn solicited_marks_the_last_packet_only() {
    let mut pair = Pair::new();
    pair.receive(7, 0, 5000);
    let list = [Endpoint::sge(0, 3001)];
    let send = SendRequest { solicited: true, ..request(1, SendOperation::Send, &list) };
    pair.a.requester.post(&send).expect("room");
    pair.drive();
    let marks: Vec<bool> = pair.a.sent.iter().map(|packet| packet.view().bth().solicited).collect();
    assert_eq!(marks, [false, false, true]);
    assert!(pair.b.completions[0].solicited);
}
