//! The target of an extended reliable connection: each request names a shared receive queue.

use super::*;

fn completed(peer: &mut Peer) -> Vec<(u64, WcStatus, u32)> {
    core::iter::from_fn(|| peer.responder.poll_completion())
        .map(|completion| (completion.wr_id, completion.status, completion.srq.unwrap().value()))
        .collect()
}

/// Packets that are answered with one, of which only the opcode's service is looked at.
fn answer_opcodes(peer: &mut Peer) -> Vec<(Service, Operation)> {
    let mut opcodes = Vec::new();
    while let Some(transmit) = peer.responder.poll_transmit(Instant::ZERO, true) {
        assert_eq!(transmit.header.xrceth, None, "answers carry none");
        opcodes.push((transmit.header.bth.opcode.service(), transmit.header.bth.opcode.operation()));
    }
    opcodes
}

#[test]
fn messages_go_to_the_queue_that_they_name() {
    let mut peer = Peer::of_xrc();
    peer.post(50, 1000);
    peer.srq = 6;
    peer.post(60, 1000);
    peer.post(61, 1000);
    peer.send(0, Op::SendOnly, b"six");
    peer.srq = 5;
    peer.send(1, Op::SendFirst, &[5; MTU]);
    peer.send(2, Op::SendLast, b"five");
    peer.srq = 6;
    peer.request(
        3,
        Op::WriteOnlyWithImmediate,
        Extended::RethImmediate(Reth { address: 0, rkey: KEY, length: 0 }, 7),
        &[],
    );
    assert_eq!(
        completed(&mut peer),
        [(60, WcStatus::Success, 6), (50, WcStatus::Success, 5), (61, WcStatus::Success, 6)]
    );
}

#[test]
fn answers_have_opcodes_of_the_service() {
    let mut peer = Peer::of_xrc();
    peer.post(1, 1000);
    peer.send(0, Op::SendOnly, b"x");
    assert_eq!(answer_opcodes(&mut peer), [(Service::Xrc, Op::Acknowledge)]);
    peer.read(1, 0, 2 * MTU + 1);
    peer.fetch_add(4, 1);
    assert_eq!(
        answer_opcodes(&mut peer),
        [Op::ReadResponseFirst, Op::ReadResponseMiddle, Op::ReadResponseLast, Op::AtomicAcknowledge]
            .map(|operation| (Service::Xrc, operation))
    );
}

#[test]
fn a_read_is_answered_from_the_memory_of_its_queue() {
    let mut peer = Peer::of_xrc();
    peer.read(0, 0, MTU + 1);
    peer.srq = 6;
    peer.read(2, 0, 8);
    let mut queues = Vec::new();
    while let Some(transmit) = peer.responder.poll_transmit(Instant::ZERO, true) {
        if let Source::Remote { srq, .. } = transmit.source {
            queues.push(srq.unwrap().value());
        }
    }
    assert_eq!(queues, [5, 5, 6]);
}

#[test]
fn a_queue_that_the_domain_does_not_have_is_invalid() {
    type Request = fn(&mut Peer);
    let requests: [Request; 4] = [
        |peer| peer.send(0, Op::SendOnly, b"x"),
        |peer| peer.write(0, b"x"),
        |peer| peer.read(0, 0, 8),
        |peer| peer.fetch_add(0, 1),
    ];
    for request in requests {
        let mut peer = Peer::of_xrc();
        let before = peer.memory.bytes(KEY.0);
        peer.srq = 7;
        request(&mut peer);
        assert_eq!(answer_opcodes(&mut peer), [(Service::Xrc, Op::Acknowledge)]);
        assert_eq!(peer.responder.poll_fatal(), Some(Fatal::InvalidRequest));
        assert!(peer.memory.bytes(KEY.0) == before);
    }
}

#[test]
fn the_queue_does_not_change_within_a_message() {
    for first in [Op::SendFirst, Op::WriteFirst] {
        let mut peer = Peer::of_xrc();
        peer.post(50, 1000);
        let (extended, last) = match first {
            Op::SendFirst => (Extended::None, Op::SendLast),
            _ => (reth(KEY, ADDRESS, MTU + 1), Op::WriteLast),
        };
        peer.request(0, first, extended, &[1; MTU]);
        peer.srq = 6;
        peer.post(60, 1000);
        peer.request(1, last, Extended::None, b"x");
        assert_eq!(peer.answers().last().unwrap(), "nak InvalidRequest 1 msn 0");
        peer.responder.flush();
        let flushed = completed(&mut peer);
        let expected: &[_] = if first == Op::SendFirst { &[(50, WcStatus::WorkRequestFlushed, 5)] } else { &[] };
        assert_eq!(flushed, expected);
        assert_eq!(peer.queues[&6].len(), 1);
    }
}

#[test]
fn repetitions_are_answered_even_when_the_queue_has_gone() {
    let mut peer = Peer::of_xrc();
    peer.post(50, 1000);
    peer.send(0, Op::SendOnly, b"x");
    peer.fetch_add(1, 1);
    peer.answers();
    peer.queues.clear();
    peer.send(0, Op::SendOnly, b"x");
    peer.fetch_add(1, 1);
    let answers = answer_opcodes(&mut peer);
    assert_eq!(answers, [(Service::Xrc, Op::Acknowledge), (Service::Xrc, Op::AtomicAcknowledge)]);
    assert_eq!(peer.responder.poll_fatal(), None);
}

#[test]
fn an_empty_queue_is_not_ready_while_another_is() {
    let mut peer = Peer::of_xrc();
    peer.srq = 6;
    peer.post(60, 1000);
    peer.srq = 5;
    peer.send(0, Op::SendOnly, b"x");
    assert_eq!(peer.answers(), ["rnr 12 at 0 msn 0"]);
}

#[test]
fn requests_of_another_service_are_not_taken() {
    let mut peer = Peer::of_xrc();
    peer.post(50, 1000);
    let bth = Bth::new(Opcode::rc(Op::SendOnly), Qpn::new(0x11), Psn::new(0));
    let packet = OwnedPacket::new(Repr::new(bth, Extended::None), b"x");
    let shared = peer.queues.get_mut(&5);
    peer.responder.handle_packet(Instant::ZERO, &packet.view(), &peer.memory, shared);
    assert_eq!(peer.answers(), [""; 0]);
}
