//! Two halves of an unreliable connection with nothing between them but what a test does to the packets.

mod any_network;
mod dropped_messages;
mod send_queue;
mod transfers;

use super::*;
use crate::{
    AccessFlags, Psn, Sge,
    testing::{OwnedPacket, TestMemory, request},
    wire::{Bth, Extended, Mtu, Opcode, Operation, PKey, Qpn, RKey, Repr, Reth, Service},
    work::{Completion, SendOperation, WcOpcode, WcStatus},
};

const MTU: usize = 256;
/// The sender's memory, at address 0.
const SOURCE: u32 = 0x51;
/// The receiver's memory for SENDs, at address 0.
const SINK: u32 = 0x52;
/// The receiver's memory for WRITEs, at [`ADDRESS`].
const TARGET: RKey = RKey(0x53);
const ADDRESS: u64 = 0x7000_0000_0000;
const SIZE: usize = 1 << 16;
/// Just before PSNs begin again.
const FIRST: u32 = 0xff_fffe;

struct Connection {
    requester: Requester,
    responder: Responder,
    near: TestMemory,
    far: TestMemory,
}

impl Connection {
    fn new() -> Self {
        Self::allowing(AccessFlags::REMOTE_WRITE)
    }

    fn allowing(access: AccessFlags) -> Self {
        let near = TestMemory::new();
        near.register(SOURCE, 0, pattern(SIZE), AccessFlags::empty());
        let far = TestMemory::new();
        far.register(SINK, 0, vec![0; SIZE], AccessFlags::LOCAL_WRITE);
        far.register(TARGET.0, ADDRESS, vec![0; SIZE], AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
        let mut requester = Requester::new(64);
        let first_psn = Psn::new(FIRST);
        let attributes =
            RequesterAttributes { destination: Qpn::new(0x12), mtu: Mtu::Mtu256, pkey: PKey::DEFAULT, first_psn };
        requester.connect(attributes);
        let mut responder = Responder::new(64);
        responder.connect(ResponderAttributes { mtu: Mtu::Mtu256, first_psn, access });
        Self { requester, responder, near, far }
    }

    fn post(&mut self, wr_id: u64, operation: SendOperation, offset: usize, length: usize) {
        self.requester.post(&request(wr_id, operation, &[source(offset, length)])).unwrap();
    }

    /// Posts a receive of `length` bytes at `offset`.
    fn receive(&mut self, wr_id: u64, offset: usize, length: usize) {
        let sge = Sge { address: offset as u64, length: length as u32, lkey: SINK };
        self.responder.post(wr_id, &[sge]).unwrap();
    }

    /// Every packet that may leave, taken as sent.
    fn packets(&mut self) -> Vec<OwnedPacket> {
        let mut packets = Vec::new();
        while let Some(transmit) = self.requester.poll_transmit() {
            match OwnedPacket::of(&transmit, &self.near) {
                Some(packet) => packets.push(packet),
                None => self.requester.transmit_failed(WcStatus::LocalProtection),
            }
        }
        self.requester.transmitted();
        packets
    }

    fn deliver(&mut self, packet: &OwnedPacket) {
        self.responder.handle_packet(&packet.view(), &self.far, None);
    }

    /// Delivers packets all but those at `lost`.
    fn deliver_but(&mut self, lost: &[usize]) {
        for (index, packet) in self.packets().iter().enumerate() {
            if !lost.contains(&index) {
                self.deliver(packet);
            }
        }
    }

    /// A packet that no requester of ours would send.
    fn forge(&mut self, psn: u32, operation: Operation, extended: Extended, payload: &[u8]) {
        let opcode = Opcode::new(Service::Uc, operation).unwrap();
        let bth = Bth::new(opcode, Qpn::new(0x12), Psn::new(FIRST) + psn);
        self.deliver(&OwnedPacket::new(Repr::new(bth, extended), payload));
    }

    fn sent(&mut self) -> Vec<(u64, WcStatus)> {
        std::iter::from_fn(|| self.requester.poll_completion()).map(|done| (done.wr_id, done.status)).collect()
    }

    fn received(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.responder.poll_completion()).collect()
    }

    /// The identifiers of receives that were filled.
    fn filled(&mut self) -> Vec<u64> {
        let received = self.received();
        assert!(received.iter().all(|done| done.status == WcStatus::Success));
        received.iter().map(|done| done.wr_id).collect()
    }

    fn sink(&self, offset: usize, length: usize) -> Vec<u8> {
        self.far.bytes(SINK)[offset..][..length].to_vec()
    }

    fn target(&self, offset: usize, length: usize) -> Vec<u8> {
        self.far.bytes(TARGET.0)[offset..][..length].to_vec()
    }
}

fn source(offset: usize, length: usize) -> Sge {
    Sge { address: offset as u64, length: length as u32, lkey: SOURCE }
}

fn write_at(offset: u64) -> SendOperation {
    SendOperation::Write { address: ADDRESS + offset, rkey: TARGET }
}

fn reth(offset: u64, length: usize) -> Reth {
    Reth { address: ADDRESS + offset, rkey: TARGET, length: length as u32 }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + (at >> 8)) as u8).collect()
}
