//! A hand-driven requester against the responder: requests in, answers as text out.

mod acknowledgements;
mod atomic_writes_and_flushes;
mod atomics;
mod reads;
mod receives;
mod repetitions;
mod sends;
mod sequence;
mod shared_receives;
mod writes;
mod xrc;

use super::*;
use crate::{
    testing::{OwnedPacket, TestMemory},
    wire::{AtomicEth, Reth, XrcEth},
};
use Operation as Op;
use std::collections::BTreeMap;

const MTU: usize = 256;
/// A region of 4 KiB with every right, at this address, under this key.
const ADDRESS: u64 = 0x7000_0000_0000;
const KEY: RKey = RKey(0x51);
/// The region that receives use, 64 KiB at address 0.
const RECEIVE_KEY: u32 = 0x52;
/// 2 KiB that may not be touched from afar.
const PRIVATE_KEY: RKey = RKey(0x53);

struct Peer {
    responder: Responder,
    /// Shared receive queues by number; one that a reliable connection shares has number 0.
    queues: BTreeMap<u32, ReceiveQueue>,
    /// The number that XRC requests carry.
    srq: u32,
    memory: TestMemory,
    ask: bool,
}

impl Peer {
    /// Connected to a responder with rxe's quirks: one ACK per request that asks for one, no credits.
    fn of_rxe() -> Self {
        Self::new(ResponderAttributes {
            path: PathAttributes {
                destination: Qpn::new(0x12),
                mtu: Mtu::Mtu256,
                quirks: Quirks::RXE,
                ..PathAttributes::default()
            },
            first_psn: Psn::new(0),
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            access: TestMemory::ALL_ACCESS,
        })
    }

    /// Connected to a responder that does what hardware does.
    fn of_hardware() -> Self {
        let mut attributes = Self::of_rxe().responder.attributes;
        attributes.path.quirks = Quirks::HARDWARE;
        Self::new(attributes)
    }

    /// Connected to a responder that shares receive queue 0, which holds `depth`.
    fn of_sharing(depth: u32) -> Self {
        let Self { responder: Responder { attributes, .. }, .. } = Self::of_hardware();
        Self::with(Responder::sharing_receives(), attributes, BTreeMap::from([(0, ReceiveQueue::new(depth))]))
    }

    /// Connected to the target of an extended reliable connection, in whose domain there are shared receive queues 5
    /// and 6; requests name 5.
    fn of_xrc() -> Self {
        let mut attributes = Self::of_hardware().responder.attributes;
        attributes.path.service = Service::Xrc;
        let queues = [5, 6].map(|number| (number, ReceiveQueue::new(64)));
        Self { srq: 5, ..Self::with(Responder::sharing_receives(), attributes, queues.into()) }
    }

    fn new(attributes: ResponderAttributes) -> Self {
        Self::with(Responder::new(64), attributes, BTreeMap::new())
    }

    fn with(mut responder: Responder, attributes: ResponderAttributes, queues: BTreeMap<u32, ReceiveQueue>) -> Self {
        let memory = TestMemory::new();
        memory.register(KEY.0, ADDRESS, pattern(4096), TestMemory::ALL_ACCESS);
        memory.register(RECEIVE_KEY, 0, vec![0; 65536], AccessFlags::LOCAL_WRITE);
        memory.register(PRIVATE_KEY.0, ADDRESS, vec![0; 2048], AccessFlags::LOCAL_WRITE);
        responder.connect(attributes);
        Self { responder, queues, srq: 0, memory, ask: true }
    }

    /// Posts a receive of `length` bytes from address 0 on.
    fn post(&mut self, wr_id: u64, length: u32) {
        let list = [Sge { address: 0, length, lkey: RECEIVE_KEY }];
        match self.queues.get_mut(&self.srq) {
            Some(queue) => queue.post(wr_id, &list).unwrap(),
            None => self.responder.post(wr_id, &list).unwrap(),
        }
    }

    fn request(&mut self, psn: u32, operation: Operation, extended: Extended, payload: &[u8]) {
        let service = self.responder.attributes.path.service;
        let mut bth = Bth::new(Opcode::new(service, operation).unwrap(), Qpn::new(0x11), Psn::new(psn));
        bth.ack_request = self.ask;
        let xrceth = (service == Service::Xrc).then_some(XrcEth { srqn: XrcSrqn::new(self.srq), reserved: 0 });
        let packet = OwnedPacket::new(Repr { bth, xrceth, extended }, payload);
        let shared = self.queues.get_mut(&self.srq);
        self.responder.handle_packet(Instant::ZERO, &packet.view(), &self.memory, shared);
    }

    /// A packet of a SEND without immediate data.
    fn send(&mut self, psn: u32, operation: Operation, payload: &[u8]) {
        self.request(psn, operation, Extended::None, payload);
    }

    /// A WRITE of one packet to the start of the region.
    fn write(&mut self, psn: u32, payload: &[u8]) {
        self.request(psn, Op::WriteOnly, reth(KEY, ADDRESS, payload.len()), payload);
    }

    fn read(&mut self, psn: u32, offset: u64, length: usize) {
        self.request(psn, Op::ReadRequest, reth(KEY, ADDRESS + offset, length), &[]);
    }

    fn fetch_add(&mut self, psn: u32, add: u64) {
        let eth = AtomicEth { address: ADDRESS, rkey: KEY, swap_or_add: add, compare: 0 };
        self.request(psn, Op::FetchAdd, Extended::Atomic(eth), &[]);
    }

    /// The next answer, deferred or not.
    fn answer(&mut self) -> Option<String> {
        self.poll(true)
    }

    fn poll(&mut self, flush_ack: bool) -> Option<String> {
        let transmit = self.responder.poll_transmit(Instant::ZERO, flush_ack)?;
        match OwnedPacket::of(&transmit, &self.memory) {
            Some(packet) => Some(describe(&packet)),
            None => {
                self.responder.transmit_failed();
                self.poll(flush_ack)
            }
        }
    }

    fn answers(&mut self) -> Vec<String> {
        core::iter::from_fn(|| self.answer()).collect()
    }

    /// The completions so far, as (wr_id, status, bytes).
    fn completions(&mut self) -> Vec<(u64, WcStatus, u32)> {
        core::iter::from_fn(|| self.responder.poll_completion())
            .map(|completion| (completion.wr_id, completion.status, completion.byte_length))
            .collect()
    }

    fn received(&self, length: usize) -> Vec<u8> {
        self.memory.bytes(RECEIVE_KEY)[..length].to_vec()
    }

    /// That the next answer is `nak`, the last, and ends the connection with `fatal`.
    #[track_caller]
    fn assert_refused(&mut self, nak: &str, fatal: Fatal) {
        assert_eq!(self.responder.poll_fatal(), None, "not before the NAK has left");
        assert_eq!(self.answers(), [nak]);
        assert_eq!(self.responder.poll_fatal(), Some(fatal));
        assert_eq!(self.responder.poll_fatal(), None);
        let expected = self.responder.expected.value();
        self.write(expected, b"late");
        assert_eq!(self.answers(), [""; 0], "nothing is answered after the NAK");
    }
}

fn reth(rkey: RKey, address: u64, length: usize) -> Extended {
    Extended::Reth(Reth { address, rkey, length: length as u32 })
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 256) as u8).collect()
}

/// "ack 3 msn 1", "nak PsnSequence 3 msn 1", "rnr 12 at 3 msn 0", "ReadResponseFirst 3 msn 1: 256 bytes".
fn describe(packet: &OwnedPacket) -> String {
    let packet = packet.view();
    let psn = packet.psn().value();
    let bytes = packet.payload().len();
    match (packet.opcode().operation(), packet.aeth()) {
        (Op::Acknowledge, Some(Aeth { syndrome, msn })) => match syndrome {
            Syndrome::Ack(CreditCode::UNLIMITED) => format!("ack {psn} msn {}", msn.value()),
            Syndrome::Ack(code) => format!("ack {psn} msn {} credits {}", msn.value(), code.credits().unwrap()),
            Syndrome::RnrNak(code) => format!("rnr {code} at {psn} msn {}", msn.value()),
            Syndrome::Nak(code) => format!("nak {code:?} {psn} msn {}", msn.value()),
            Syndrome::Reserved(byte) => panic!("syndrome {byte:#x}"),
        },
        (Op::AtomicAcknowledge, Some(Aeth { msn, .. })) => {
            format!("atomic {psn} msn {}: {}", msn.value(), packet.atomic_ack().unwrap())
        }
        (operation, Some(Aeth { msn, .. })) => format!("{operation:?} {psn} msn {}: {bytes} bytes", msn.value()),
        (operation, None) => format!("{operation:?} {psn}: {bytes} bytes"),
    }
}
