//! The half that receives.

use crate::{
    Memory, ReceiveQueue, Sge,
    receive_queue::Receives,
    unreliable::{ReceiveSide, ResponderCounters},
    wire::{GRH_LEN, Mtu, Packet, QKey, Service},
    work::{Completion, Fatal, PostReceiveError, WcOpcode},
};

/// What the responder is told when the queue pair becomes ready to receive (`IBV_QPS_RTR`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponderAttributes {
    /// The longest datagram: the port's MTU.
    pub mtu: Mtu,
    /// The key that datagrams must bring.
    pub qkey: QKey,
}

/// The receiving half of a datagram queue pair.
#[derive(Debug)]
pub struct Responder {
    attributes: ResponderAttributes,
    side: ReceiveSide,
    counters: ResponderCounters,
}

impl Responder {
    /// A responder that is not ready yet. `depth`: how many receives it may hold (`max_recv_wr`).
    pub fn new(depth: u32) -> Self {
        Self::of(Receives::own(depth))
    }

    /// A responder that is not ready yet and takes its receives from a queue that it shares with others.
    pub fn sharing_receives() -> Self {
        Self::of(Receives::shared())
    }

    fn of(receives: Receives) -> Self {
        let attributes = ResponderAttributes::default();
        Self { attributes, side: ReceiveSide::new(receives), counters: ResponderCounters::default() }
    }

    /// Makes it ready to receive (INIT → RTR). Receives posted before are kept.
    pub fn connect(&mut self, attributes: ResponderAttributes) {
        self.attributes = attributes;
        self.side.connect();
    }

    /// Changes the key that datagrams must bring.
    pub fn set_qkey(&mut self, qkey: QKey) {
        self.attributes.qkey = qkey;
    }

    /// Queues a receive, whose first 40 bytes are for the network header. After [`Self::flush`] it is flushed at
    /// once.
    pub fn post(&mut self, wr_id: u64, list: &[Sge]) -> Result<(), PostReceiveError> {
        self.side.post(wr_id, list)
    }

    /// Takes a datagram. `network_header` is called for what goes before its payload, if it is delivered
    /// ([`crate::wire::DatagramHeader::grh`]). `shared` is the queue that it shares, if it does.
    pub fn handle_packet<M: Memory + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        network_header: impl FnOnce() -> [u8; GRH_LEN],
        memory: &M,
        mut shared: Option<&mut ReceiveQueue>,
    ) {
        let Some(deth) = packet.deth() else { return };
        if !self.side.is_connected() || packet.opcode().service() != Service::Ud {
            return;
        }
        if deth.qkey != self.attributes.qkey {
            self.counters.qkey_violations += 1;
            self.counters.dropped += 1;
            return;
        }
        let Some(receive) = self.side.peek(&shared) else {
            self.counters.no_receive += 1;
            self.counters.dropped += 1;
            return;
        };
        let payload = packet.payload();
        let length = GRH_LEN + payload.len();
        if payload.len() > self.attributes.mtu.bytes() || length as u64 > receive.length {
            self.counters.dropped += 1;
            return;
        }
        let Some(receive) = self.side.take(shared.as_deref_mut()) else { return };
        let mut placed = memory.scatter(&receive.list, 0, &network_header());
        if !payload.is_empty() {
            placed = placed.and_then(|()| memory.scatter(&receive.list, GRH_LEN as u64, payload));
        }
        if placed.is_err() {
            self.counters.dropped += 1;
            self.side.fail();
            return;
        }
        self.counters.sends += 1;
        self.side.complete(packet, WcOpcode::Receive, length as u32, Some(deth.source), shared);
    }

    /// The next completion of a receive.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.side.poll_completion()
    }

    /// Set once when a receive has failed for its memory: the queue pair must go to the error state.
    pub fn poll_fatal(&mut self) -> Option<Fatal> {
        self.side.poll_fatal()
    }

    /// Ends every posted receive with "flushed", in order (→ ERR).
    pub fn flush(&mut self) {
        self.side.flush();
    }

    /// Forgets everything, without completions (→ RESET).
    pub fn reset(&mut self) {
        self.side.reset();
    }

    /// What it has counted.
    pub const fn counters(&self) -> &ResponderCounters {
        &self.counters
    }
}
