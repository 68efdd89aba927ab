//! The order of PSNs and opcodes.

use super::*;

#[test]
fn a_gap_is_reported_once_until_it_closes() {
    let mut peer = Peer::of_rxe();
    peer.write(0, b"a");
    peer.write(2, b"c");
    peer.write(3, b"d");
    assert_eq!(peer.answers(), ["ack 0 msn 1", "nak PsnSequence 1 msn 1"]);
    peer.write(1, b"b");
    assert_eq!(peer.answers(), ["ack 1 msn 2"]);
    peer.write(3, b"d");
    assert_eq!(peer.answers(), ["nak PsnSequence 2 msn 2"]);
    assert_eq!(peer.responder.counters().out_of_sequence, 3);
}

#[test]
fn psns_wrap() {
    let mut attributes = Peer::of_rxe().responder.attributes;
    attributes.first_psn = Psn::new(0xff_fffe);
    let mut peer = Peer::new(attributes);
    peer.read(0xff_fffe, 0, 3 * MTU);
    peer.write(1, b"a");
    peer.write(0xff_ffff, b"a repetition");
    assert_eq!(
        peer.answers(),
        [
            "ReadResponseFirst 16777214 msn 1: 256 bytes",
            "ReadResponseMiddle 16777215: 256 bytes",
            "ReadResponseLast 0 msn 1: 256 bytes",
            "ack 1 msn 2",
            "ack 1 msn 2",
        ]
    );
}

#[test]
fn messages_do_not_interleave() {
    let starts = [Op::SendFirst, Op::WriteFirst];
    let intruders =
        [Op::SendFirst, Op::SendOnly, Op::WriteFirst, Op::WriteOnly, Op::ReadRequest, Op::FetchAdd, Op::CompareSwap];
    for (start, intruder) in starts.into_iter().flat_map(|start| intruders.map(|intruder| (start, intruder))) {
        let mut peer = Peer::of_hardware();
        peer.post(7, 4096);
        peer.request(0, start, headers(start), &pattern(MTU));
        peer.request(1, intruder, headers(intruder), &pattern(payload_of(intruder)));
        peer.assert_refused("nak InvalidRequest 1 msn 0", Fatal::InvalidRequest);
    }
}

#[test]
fn nothing_continues_what_has_not_begun() {
    for operation in [
        Op::SendMiddle,
        Op::SendLast,
        Op::SendLastWithImmediate,
        Op::SendLastWithInvalidate,
        Op::WriteMiddle,
        Op::WriteLast,
        Op::WriteLastWithImmediate,
    ] {
        let mut peer = Peer::of_hardware();
        peer.post(7, 4096);
        peer.request(0, operation, headers(operation), &pattern(MTU));
        peer.assert_refused("nak InvalidRequest 0 msn 0", Fatal::InvalidRequest);
    }
    let mut peer = Peer::of_hardware();
    peer.post(7, 4096);
    peer.send(0, Op::SendFirst, &pattern(MTU));
    peer.request(1, Op::WriteLast, Extended::None, &pattern(MTU));
    peer.assert_refused("nak InvalidRequest 1 msn 0", Fatal::InvalidRequest);
}

#[test]
fn packets_have_the_length_that_their_opcode_asks_for() {
    let short_first = [(Op::SendFirst, MTU - 4)];
    let short_middle = [(Op::SendFirst, MTU), (Op::SendMiddle, MTU - 4)];
    let empty_last = [(Op::SendFirst, MTU), (Op::SendLast, 0)];
    let long_only = [(Op::SendOnly, MTU + 4)];
    for packets in [&short_first[..], &short_middle, &empty_last, &long_only] {
        let mut peer = Peer::of_hardware();
        peer.post(7, 4096);
        for (psn, (operation, length)) in packets.iter().enumerate() {
            peer.send(psn as u32, *operation, &pattern(*length));
        }
        let nak = format!("nak InvalidRequest {} msn 0", packets.len() - 1);
        peer.assert_refused(&nak, Fatal::InvalidRequest);
    }
}

#[test]
fn operations_that_the_queue_pair_does_not_allow_are_invalid() {
    for (operation, access) in [
        (Op::WriteOnly, AccessFlags::REMOTE_WRITE),
        (Op::ReadRequest, AccessFlags::REMOTE_READ),
        (Op::FetchAdd, AccessFlags::REMOTE_ATOMIC),
        (Op::Flush, AccessFlags::FLUSH_GLOBAL),
        (Op::AtomicWrite, AccessFlags::REMOTE_WRITE),
    ] {
        let mut peer = Peer::of_rxe();
        peer.responder.set_access(TestMemory::ALL_ACCESS - access);
        peer.request(0, operation, headers(operation), &pattern(payload_of(operation)));
        peer.assert_refused("nak InvalidRequest 0 msn 0", Fatal::InvalidRequest);
    }
}

#[test]
fn the_first_request_establishes_the_connection() {
    let mut peer = Peer::of_rxe();
    assert!(!peer.responder.poll_established());
    peer.write(0, b"");
    assert!(peer.responder.poll_established());
    assert!(!peer.responder.poll_established());
    peer.write(1, b"");
    assert!(!peer.responder.poll_established());
}

#[test]
fn nothing_is_taken_before_the_connection() {
    let mut peer = Peer::of_rxe();
    peer.responder.reset();
    peer.write(0, b"early");
    assert_eq!(peer.answers(), [""; 0]);
    assert_eq!(peer.memory.bytes(KEY.0), pattern(4096));
}

/// Right headers for an operation on the region's first bytes.
fn headers(operation: Operation) -> Extended {
    match operation {
        Op::WriteFirst => reth(KEY, ADDRESS, 3 * MTU),
        Op::WriteOnly | Op::ReadRequest => reth(KEY, ADDRESS, MTU),
        Op::AtomicWrite => reth(KEY, ADDRESS, 8),
        Op::Flush => Extended::Flush(
            crate::wire::Feth { global_visibility: true, persistence: false, selectivity: 0, reserved: 0 },
            Reth { address: ADDRESS, rkey: KEY, length: 8 },
        ),
        Op::FetchAdd | Op::CompareSwap => {
            Extended::Atomic(AtomicEth { address: ADDRESS, rkey: KEY, swap_or_add: 1, compare: 0 })
        }
        Op::SendLastWithImmediate | Op::WriteLastWithImmediate => Extended::Immediate(1),
        Op::SendLastWithInvalidate => Extended::Invalidate(KEY),
        _ => Extended::None,
    }
}

fn payload_of(operation: Operation) -> usize {
    match operation {
        Op::ReadRequest | Op::FetchAdd | Op::CompareSwap | Op::Flush => 0,
        Op::AtomicWrite => 8,
        _ => MTU,
    }
}
