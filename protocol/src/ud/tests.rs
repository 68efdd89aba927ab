//! Datagrams from one half to another, and to nobody.

use super::*;
use crate::{
    AccessFlags, Psn, Sge,
    testing::{OwnedPacket, TestMemory, request},
    wire::{Bth, DatagramHeader, Deth, Extended, GRH_LEN, Mtu, Opcode, Operation, PKey, QKey, Repr, Service},
    work::{AddressVector, Completion, Fatal, PostSendError, SendOperation, SendRequest, Target, WcOpcode, WcStatus},
};
use std::net::{IpAddr, Ipv4Addr};

const KEY: u32 = 0x51;
const SIZE: usize = 4096;
const QKEY: QKey = QKey(0x1111_1111);
const NUMBER: Qpn = Qpn::new(0x21);
const HEADER: DatagramHeader = DatagramHeader {
    source: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    destination: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    source_port: 0xc000,
    traffic_class: 0x68,
    hop_limit: 17,
    ip_id: 0x1234,
    udp_checksum: false,
};

struct Datagrams {
    requester: Requester,
    responder: Responder,
    memory: TestMemory,
}

impl Datagrams {
    fn new() -> Self {
        let memory = TestMemory::new();
        memory.register(KEY, 0, pattern(SIZE), AccessFlags::LOCAL_WRITE);
        let mut requester = Requester::new(8);
        requester.connect(RequesterAttributes {
            source: NUMBER,
            mtu: Mtu::Mtu1024,
            pkey: PKey::DEFAULT,
            first_psn: Psn::MAX,
            qkey: QKey(0x8001_0000),
        });
        let mut responder = Responder::new(8);
        responder.connect(ResponderAttributes { mtu: Mtu::Mtu1024, qkey: QKEY });
        Self { requester, responder, memory }
    }

    fn packets(&mut self) -> Vec<OwnedPacket> {
        let mut packets = Vec::new();
        while let Some(transmit) = self.requester.poll_transmit() {
            assert_eq!(transmit.to, Some(address()));
            match OwnedPacket::of(&transmit, &self.memory) {
                Some(packet) => packets.push(packet),
                None => self.requester.transmit_failed(WcStatus::LocalProtection),
            }
        }
        self.requester.transmitted();
        packets
    }

    fn receive(&mut self, wr_id: u64, length: usize) {
        self.responder.post(wr_id, &[Sge { address: 2048, length: length as u32, lkey: KEY }]).unwrap();
    }

    fn deliver(&mut self, packet: &OwnedPacket) {
        let grh = || HEADER.grh(packet.view().as_bytes().len());
        self.responder.handle_packet(&packet.view(), grh, &self.memory, None);
    }

    fn received(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.responder.poll_completion()).collect()
    }

    fn sent(&mut self) -> Vec<(u64, WcStatus)> {
        std::iter::from_fn(|| self.requester.poll_completion()).map(|done| (done.wr_id, done.status)).collect()
    }
}

fn address() -> AddressVector {
    AddressVector { peer: IpAddr::from([10, 0, 0, 2]), traffic_class: 0x68, flow_label: 0, hop_limit: 17 }
}

fn datagram(wr_id: u64, operation: SendOperation, qkey: QKey, list: &[Sge]) -> SendRequest<'_> {
    let target = Target::Datagram { address: address(), qpn: Qpn::new(0x77), qkey };
    SendRequest { target, ..request(wr_id, operation, list) }
}

const fn bytes(length: usize) -> Sge {
    Sge { address: 0, length: length as u32, lkey: KEY }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + (at >> 8)) as u8).collect()
}

/// A datagram with this key, made by hand.
fn forged(qkey: QKey, payload: &[u8]) -> OwnedPacket {
    let bth = Bth::new(Opcode::new(Service::Ud, Operation::SendOnly).unwrap(), NUMBER, Psn::new(1));
    let deth = Deth { qkey, source: Qpn::new(0x99), reserved: 0 };
    OwnedPacket::new(Repr::new(bth, Extended::Deth(deth)), payload)
}

#[test]
fn a_datagram_arrives_behind_its_network_header() {
    let mut datagrams = Datagrams::new();
    for length in [0, 1, 100, 1024] {
        datagrams.receive(1, GRH_LEN + length);
        datagrams.requester.post(&datagram(1, SendOperation::Send, QKEY, &[bytes(length)])).unwrap();
        let [packet] = &datagrams.packets()[..] else { panic!("one packet a datagram") };
        datagrams.deliver(packet);
        let [done] = datagrams.received()[..] else { panic!("{length} bytes have not arrived") };
        assert_eq!((done.status, done.opcode), (WcStatus::Success, WcOpcode::Receive));
        assert_eq!(done.byte_length as usize, GRH_LEN + length);
        assert_eq!((done.source, done.has_grh, done.immediate), (Some(NUMBER), true, None));
        let received = datagrams.memory.bytes(KEY)[2048..].to_vec();
        assert!(received[..20] == [0; 20]);
        assert!(received[..GRH_LEN] == HEADER.grh(packet.view().as_bytes().len()));
        assert!(received[GRH_LEN..][..length] == pattern(length));
        assert_eq!(datagrams.sent(), [(1, WcStatus::Success)]);
    }
}

#[test]
fn immediate_data_and_solicitation_arrive() {
    let mut datagrams = Datagrams::new();
    datagrams.receive(1, 100);
    let list = [bytes(4)];
    let request = datagram(1, SendOperation::SendWithImmediate(0x1234_5678), QKEY, &list);
    datagrams.requester.post(&SendRequest { solicited: true, ..request }).unwrap();
    let packets = datagrams.packets();
    datagrams.deliver(&packets[0]);
    let [done] = datagrams.received()[..] else { panic!("it has not arrived") };
    assert_eq!((done.immediate, done.solicited), (Some(0x1234_5678), true));
}

#[test]
fn each_packet_has_a_psn_of_its_own() {
    let mut datagrams = Datagrams::new();
    for wr_id in 0..3 {
        datagrams.requester.post(&datagram(wr_id, SendOperation::Send, QKEY, &[bytes(4)])).unwrap();
    }
    let psns: Vec<_> = datagrams.packets().iter().map(|packet| packet.view().psn()).collect();
    assert_eq!(psns, [Psn::MAX, Psn::new(0), Psn::new(1)]);
}

#[test]
fn a_key_with_the_top_bit_stands_for_the_queue_pairs_own() {
    let mut datagrams = Datagrams::new();
    let mut key_sent = |posted| {
        datagrams.requester.post(&datagram(1, SendOperation::Send, posted, &[bytes(4)])).unwrap();
        datagrams.packets()[0].view().deth().unwrap().qkey
    };
    assert_eq!(key_sent(QKey(0x7fff_ffff)), QKey(0x7fff_ffff));
    assert_eq!(key_sent(QKey(0x8000_0000)), QKey(0x8001_0000));
    assert_eq!(key_sent(QKey(0xffff_ffff)), QKey(0x8001_0000));
}

#[test]
fn a_datagram_with_another_key_is_dropped_and_counted() {
    let mut datagrams = Datagrams::new();
    datagrams.receive(1, 100);
    for key in [QKey(0), QKey(QKEY.0 ^ 1), QKey(QKEY.0 | 1 << 31)] {
        datagrams.deliver(&forged(key, b"none"));
    }
    assert_eq!(datagrams.received(), []);
    assert_eq!(datagrams.responder.counters().qkey_violations, 3);
    datagrams.responder.set_qkey(QKey(5));
    datagrams.deliver(&forged(QKEY, b"none"));
    datagrams.deliver(&forged(QKey(5), b"this"));
    assert_eq!(datagrams.received().len(), 1);
}

#[test]
fn what_does_not_fit_its_receive_is_dropped_and_the_receive_serves_the_next() {
    let mut datagrams = Datagrams::new();
    datagrams.receive(1, GRH_LEN + 4);
    let before = datagrams.memory.bytes(KEY);
    datagrams.deliver(&forged(QKEY, b"too long"));
    assert_eq!(datagrams.received(), []);
    assert!(datagrams.memory.bytes(KEY) == before);
    datagrams.deliver(&forged(QKEY, b"fits"));
    assert_eq!(datagrams.received().len(), 1);
    assert_eq!(datagrams.responder.poll_fatal(), None);
}

#[test]
fn a_receive_shorter_than_the_network_header_takes_nothing() {
    let mut datagrams = Datagrams::new();
    datagrams.receive(1, GRH_LEN - 1);
    datagrams.deliver(&forged(QKEY, b""));
    assert_eq!(datagrams.received(), []);
}

#[test]
fn without_a_receive_it_is_dropped() {
    let mut datagrams = Datagrams::new();
    datagrams.deliver(&forged(QKEY, b"lost"));
    datagrams.receive(1, 100);
    assert_eq!(datagrams.received(), []);
    assert_eq!(datagrams.responder.counters().no_receive, 1);
}

#[test]
fn a_datagram_longer_than_the_mtu_is_neither_sent_nor_taken() {
    let mut datagrams = Datagrams::new();
    let posted = datagrams.requester.post(&datagram(1, SendOperation::Send, QKEY, &[bytes(1025)]));
    assert_eq!(posted, Err(PostSendError::BadLength));
    datagrams.receive(1, 2048);
    datagrams.deliver(&forged(QKEY, &[1; 1028]));
    assert_eq!(datagrams.received(), []);
}

#[test]
fn only_sends_to_an_address_are_taken() {
    let mut datagrams = Datagrams::new();
    let list = [bytes(8)];
    let to_peer = request(1, SendOperation::Send, &list);
    assert_eq!(datagrams.requester.post(&to_peer), Err(PostSendError::NotAllowed));
    let write = SendOperation::Write { address: 0, rkey: crate::wire::RKey(KEY) };
    assert_eq!(datagrams.requester.post(&datagram(1, write, QKEY, &list)), Err(PostSendError::NotAllowed));
}

#[test]
fn a_datagram_whose_memory_is_gone_fails_alone() {
    let mut datagrams = Datagrams::new();
    let nowhere = [Sge { lkey: 0xbad, ..bytes(4) }];
    datagrams.requester.post(&datagram(1, SendOperation::Send, QKEY, &[bytes(4)])).unwrap();
    datagrams.requester.post(&datagram(2, SendOperation::Send, QKEY, &nowhere)).unwrap();
    datagrams.requester.post(&datagram(3, SendOperation::Send, QKEY, &[bytes(4)])).unwrap();
    assert_eq!(datagrams.packets().len(), 1);
    assert_eq!(datagrams.requester.poll_fatal(), Some(Fatal::Requester));
    datagrams.requester.flush();
    assert_eq!(
        datagrams.sent(),
        [(1, WcStatus::Success), (2, WcStatus::LocalProtection), (3, WcStatus::WorkRequestFlushed)]
    );
    datagrams.requester.recover();
    datagrams.requester.post(&datagram(4, SendOperation::Send, QKEY, &[bytes(4)])).unwrap();
    assert_eq!(datagrams.packets()[0].view().psn(), Psn::new(0), "the PSN after the last that left");
}

#[test]
fn a_receive_whose_memory_is_gone_stops_the_queue_pair() {
    let mut datagrams = Datagrams::new();
    datagrams.receive(1, 100);
    datagrams.memory.deregister(KEY);
    datagrams.deliver(&forged(QKEY, b"lost"));
    assert_eq!(datagrams.received()[0].status, WcStatus::LocalProtection);
    assert_eq!(datagrams.responder.poll_fatal(), Some(Fatal::Local));
}
