//! What a device drops, and how it says why: each packet that a stranger might send, sent.

mod support;

use std::net::{IpAddr, UdpSocket};
use support::{Side, eventually, pair};
use uroce::verbs::{Counters, PKey, Psn, QpAttributeMask, QpAttributes, QpState, Qpn, SendOperation};
use uroce_protocol::wire::{Bth, Extended, Opcode, Operation, ROCE_PORT, Repr, Service, icrc::Flow};

/// A stranger's socket, on an address of its own.
struct Stranger {
    socket: UdpSocket,
    victim: IpAddr,
}

impl Stranger {
    /// Somebody at `address`, who sends to `side`'s device.
    fn new(address: IpAddr, side: &Side) -> Self {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        Self { socket, victim: side.context.device().address() }
    }

    fn send(&self, packet: &[u8]) {
        self.socket.send_to(packet, (self.victim, ROCE_PORT)).unwrap();
    }

    /// The packet of `bth` with a right ICRC, as far as its sender can tell: the kernel chooses an Identification.
    fn packet(&self, bth: Bth, extended: Extended) -> Vec<u8> {
        let header = Repr::new(bth, extended);
        let mut packet = vec![0; header.header_len() + 4];
        header.emit(&mut packet);
        let source = self.socket.local_addr().unwrap();
        Flow::new(source.ip(), self.victim, source.port()).stamp(0, &mut packet);
        packet
    }
}

fn bth(opcode: Opcode, side: &Side) -> Bth {
    Bth::new(opcode, side.qp.qp_num(), Psn::new(0xff_fff0))
}

const SEND_ONLY: Opcode = Opcode::rc(Operation::SendOnly);
const UNRELIABLE_SEND: Opcode = Opcode::new(Service::Uc, Operation::SendOnly).unwrap();

/// Sends what `make` makes, and waits until `counter` has counted it. Nothing else may come of it.
fn is_counted(from: IpAddr, b: &Side, make: impl Fn(&Stranger) -> Vec<u8>, counter: impl Fn(&Counters) -> u64) {
    let counters = || b.context.device().counters();
    let stranger = Stranger::new(from, b);
    let before = counters();
    stranger.send(&make(&stranger));
    eventually("it is counted", || counter(&counters()) == counter(&before) + 1);
    assert_eq!(counters().sent_pkts, before.sent_pkts, "it is not answered");
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn every_reason_has_its_counter() {
    let (a, b) = pair(4096);
    let peer = a.context.device().address();
    let elsewhere: IpAddr = [127, 255, 255, 1].into();
    let valid = |stranger: &Stranger| stranger.packet(bth(SEND_ONLY, &b), Extended::None);

    is_counted(peer, &b, |_| vec![1, 2, 3], |counters| counters.drop_malformed);
    is_counted(peer, &b, |_| vec![0xff; 64], |counters| counters.drop_malformed);
    let forged_pad = |stranger: &Stranger| {
        let mut packet = valid(stranger);
        packet[1] |= 0x30;
        packet
    };
    is_counted(peer, &b, forged_pad, |counters| counters.drop_malformed);
    let damaged = |stranger: &Stranger| {
        let mut packet = valid(stranger);
        packet[9] ^= 0x40;
        packet
    };
    is_counted(peer, &b, damaged, |counters| counters.rx_icrc_encapsulated);
    let with = |change: fn(&mut Bth)| {
        let mut bth = bth(SEND_ONLY, &b);
        change(&mut bth);
        move |stranger: &Stranger| stranger.packet(bth, Extended::None)
    };
    is_counted(peer, &b, with(|bth| bth.transport_version = 1), |counters| counters.drop_transport_version);
    is_counted(peer, &b, with(|bth| bth.pkey = PKey(0x1234)), |counters| counters.drop_pkey);
    is_counted(peer, &b, with(|bth| bth.destination = Qpn::new(0x10)), |counters| counters.drop_unknown_qp);
    is_counted(peer, &b, with(|bth| bth.opcode = UNRELIABLE_SEND), |counters| counters.drop_wrong_service);
    is_counted(elsewhere, &b, valid, |counters| counters.drop_wrong_source);
}

#[test]
fn a_stranger_with_the_right_numbers_is_still_a_stranger() {
    let (a, b) = pair(4096);
    b.receive(1, b.mr.sge(0, 64));
    let elsewhere: IpAddr = [127, 255, 255, 1].into();
    let guess = |stranger: &Stranger| stranger.packet(bth(SEND_ONLY, &b), Extended::None);
    is_counted(elsewhere, &b, guess, |counters| counters.drop_wrong_source);
    // The connection is as good as before.
    a.post(1, SendOperation::Send, a.mr.sge(0, 8));
    assert!(a.completion().is_success() && b.completion().is_success());
}

#[test]
fn what_a_state_does_not_take_is_dropped() {
    let (a, b) = pair(4096);
    let peer = a.context.device().address();
    let to_error = QpAttributes { qp_state: QpState::Err, ..QpAttributes::default() };
    b.qp.modify(&to_error, QpAttributeMask::STATE).unwrap();
    let stranger = Stranger::new(peer, &b);
    let counters = || b.context.device().counters();
    let before = counters();
    stranger.send(&stranger.packet(bth(SEND_ONLY, &b), Extended::None));
    eventually("it is counted", || counters().drop_qp_state == before.drop_qp_state + 1);
    assert_eq!(counters().sent_pkts, before.sent_pkts);
}
