//! The half that receives.

use crate::{
    AccessFlags, Memory, Psn, ReceiveQueue, Sge,
    receive_queue::Receives,
    unreliable::{ReceiveSide, ResponderCounters},
    wire::{Mtu, Packet, RKey, Reth, Service},
    work::{Completion, Fatal, MAX_MESSAGE_LENGTH, PostReceiveError, WcOpcode},
};

/// What the responder is told when the queue pair becomes ready to receive (`IBV_QPS_RTR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderAttributes {
    /// How many payload bytes a packet carries.
    pub mtu: Mtu,
    /// The first PSN expected (`rq_psn`).
    pub first_psn: Psn,
    /// Which remote operations the queue pair allows (`qp_access_flags`: REMOTE_WRITE).
    pub access: AccessFlags,
}

/// The responder half of an unreliable connection.
#[derive(Debug)]
pub struct Responder {
    attributes: ResponderAttributes,
    side: ReceiveSide,
    counters: ResponderCounters,
    /// The PSN that follows the last that was seen.
    expected: Psn,
    message: Message,
    established: Established,
}

/// The SEND or WRITE of which some packets have arrived, and the last has not.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// None: a packet that does not begin one is of one that was dropped.
    None,
    /// Its first `received` bytes have been placed.
    Send { received: u64 },
    /// `remaining` of `length` bytes are to come, to `address`.
    Write { rkey: RKey, address: u64, remaining: u32, length: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Established {
    No,
    Unreported,
    Reported,
}

/// Why the message of a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// It breaks the protocol, or does not fit its receive.
    Invalid,
    /// It may not write there.
    Access,
    /// No receive is posted.
    NoReceive,
    /// The memory of the posted receive is not what it must be.
    Local,
}

impl Responder {
    /// A responder that is not connected yet. `depth`: how many receives it may hold (`max_recv_wr`).
    pub fn new(depth: u32) -> Self {
        Self::of(Receives::own(depth))
    }

    /// A responder that is not connected yet and takes its receives from a queue that it shares with others.
    pub fn sharing_receives() -> Self {
        Self::of(Receives::shared())
    }

    fn of(receives: Receives) -> Self {
        let attributes =
            ResponderAttributes { mtu: Mtu::default(), first_psn: Psn::new(0), access: AccessFlags::empty() };
        Self {
            attributes,
            side: ReceiveSide::new(receives),
            counters: ResponderCounters::default(),
            expected: Psn::new(0),
            message: Message::None,
            established: Established::No,
        }
    }

    /// Makes it ready to receive (INIT → RTR). Receives posted before are kept.
    pub fn connect(&mut self, attributes: ResponderAttributes) {
        self.attributes = attributes;
        self.expected = attributes.first_psn;
        self.message = Message::None;
        self.established = Established::No;
        self.side.connect();
    }

    /// Changes what a connected queue pair allows.
    pub fn set_access(&mut self, access: AccessFlags) {
        self.attributes.access = access;
    }

    /// Queues a receive. After [`Self::flush`] it is flushed at once.
    pub fn post(&mut self, wr_id: u64, list: &[Sge]) -> Result<(), PostReceiveError> {
        self.side.post(wr_id, list)
    }

    /// Takes a packet.
    ///
    /// A gap in the PSNs ends the message in progress, whose receive serves the next one; what is behind the gap
    /// counts from the next First or Only. What is before the expected PSN has been seen, or its message has been
    /// given up: it is dropped. (The IBTA would begin anew with such a First too, and so deliver a duplicate again.)
    ///
    /// `shared` is the queue that it shares, if it does.
    pub fn handle_packet<M: Memory + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        memory: &M,
        shared: Option<&mut ReceiveQueue>,
    ) {
        if !self.side.is_connected() || packet.opcode().service() != Service::Uc {
            return;
        }
        if self.established == Established::No {
            self.established = Established::Unreported;
        }
        match packet.psn().distance_from(self.expected) {
            0 => {}
            1.. => {
                self.counters.out_of_sequence += 1;
                self.give_up();
            }
            _ => {
                self.counters.duplicates += 1;
                return;
            }
        }
        self.expected = packet.psn().next();
        let operation = packet.opcode().operation();
        match (operation.starts_message(), self.message) {
            (false, Message::None) => return,
            // The packets between were not lost: the peer has given its message up.
            (true, Message::Send { .. } | Message::Write { .. }) => self.give_up(),
            _ => {}
        }
        let placed = match packet.opcode().operation().is_write() {
            true => self.place_write(packet, memory, shared),
            false => self.place_send(packet, memory, shared),
        };
        let Err(refusal) = placed else { return };
        self.message = Message::None;
        self.counters.dropped += 1;
        match refusal {
            Refusal::Invalid => {}
            Refusal::Access => self.counters.access_errors += 1,
            Refusal::NoReceive => self.counters.no_receive += 1,
            Refusal::Local => self.side.fail(),
        }
    }

    /// Drops the message in progress, if there is one.
    fn give_up(&mut self) {
        if !matches!(self.message, Message::None) {
            self.message = Message::None;
            self.counters.dropped += 1;
        }
    }

    fn place_send<M: Memory + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        memory: &M,
        mut shared: Option<&mut ReceiveQueue>,
    ) -> Result<(), Refusal> {
        let operation = packet.opcode().operation();
        let received = match self.message {
            Message::None => 0,
            Message::Send { received } => received,
            Message::Write { .. } => return Err(Refusal::Invalid),
        };
        let receive = self.side.peek(&shared).ok_or(Refusal::NoReceive)?;
        let payload = packet.payload();
        let length = received + payload.len() as u64;
        if !operation.allows_payload(payload.len(), self.attributes.mtu)
            || length > MAX_MESSAGE_LENGTH
            || length > receive.length
        {
            return Err(Refusal::Invalid);
        }
        let receive = self.side.take(shared.as_deref_mut()).ok_or(Refusal::NoReceive)?;
        if !payload.is_empty() {
            memory.scatter(&receive.list, received, payload).map_err(|_| Refusal::Local)?;
        }
        if operation.ends_message() {
            self.side.complete(packet, WcOpcode::Receive, length as u32, None, shared);
            self.counters.sends += 1;
            self.message = Message::None;
        } else {
            self.message = Message::Send { received: length };
        }
        Ok(())
    }

    fn place_write<M: Memory + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        memory: &M,
        shared: Option<&mut ReceiveQueue>,
    ) -> Result<(), Refusal> {
        let operation = packet.opcode().operation();
        let (rkey, address, remaining, length) = match (self.message, packet.reth()) {
            (Message::None, Some(Reth { rkey, address, length })) => (rkey, address, length, length),
            (Message::Write { rkey, address, remaining, length }, None) => (rkey, address, remaining, length),
            _ => return Err(Refusal::Invalid),
        };
        let payload = packet.payload();
        let rest = u64::from(remaining).checked_sub(payload.len() as u64).ok_or(Refusal::Invalid)? as u32;
        if !operation.allows_payload(payload.len(), self.attributes.mtu)
            || u64::from(length) > MAX_MESSAGE_LENGTH
            || (rest == 0) != operation.ends_message()
        {
            return Err(Refusal::Invalid);
        }
        if !self.attributes.access.contains(AccessFlags::REMOTE_WRITE) {
            return Err(Refusal::Access);
        }
        if operation.starts_message() && length > 0 {
            memory
                .check_remote(rkey, address, length.into(), AccessFlags::REMOTE_WRITE)
                .map_err(|_| Refusal::Access)?;
        }
        if packet.immediate().is_some() && self.side.peek(&shared).is_none() {
            return Err(Refusal::NoReceive);
        }
        if !payload.is_empty() {
            memory.write_remote(rkey, address, payload).map_err(|_| Refusal::Access)?;
        }
        if operation.ends_message() {
            if packet.immediate().is_some() {
                self.side.complete(packet, WcOpcode::ReceiveWithImmediate, length, None, shared);
            }
            self.counters.writes += 1;
            self.message = Message::None;
        } else {
            let address = address.wrapping_add(payload.len() as u64);
            self.message = Message::Write { rkey, address, remaining: rest, length };
        }
        Ok(())
    }

    /// The next completion of a receive.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.side.poll_completion()
    }

    /// Set once when a receive has failed for its memory: the queue pair must go to the error state.
    pub fn poll_fatal(&mut self) -> Option<Fatal> {
        self.side.poll_fatal()
    }

    /// Takes "the first packet has arrived" (`IBV_EVENT_COMM_EST`), once.
    pub fn poll_established(&mut self) -> bool {
        let unreported = self.established == Established::Unreported;
        if unreported {
            self.established = Established::Reported;
        }
        unreported
    }

    /// Ends every posted receive with "flushed", in order, and disconnects (→ ERR).
    pub fn flush(&mut self) {
        self.side.flush();
    }

    /// Forgets everything, without completions (→ RESET).
    pub fn reset(&mut self) {
        self.side.reset();
        self.established = Established::No;
    }

    /// What it has counted.
    pub const fn counters(&self) -> &ResponderCounters {
        &self.counters
    }
}
