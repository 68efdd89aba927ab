//! The responder: the receive queue, the checks on what arrives, and the answers.
//!
//! A request at the expected PSN is executed at once, one packet at a time: [`Responder::handle_packet`] checks it,
//! places its payload, and queues what is to be answered. Requests before the expected PSN are repetitions and are
//! answered again without being executed again; requests after it reveal a gap. Answers leave in the order of
//! execution. READ responses are made one packet per [`Responder::poll_transmit`], so that a READ of 2 GiB costs no
//! more memory than one of 2 bytes.
//!
//! Checks that need more than the connection are the device's: ICRC, P_Key, transport version, queue-pair state.

mod receive_queue;
mod replies;
mod resources;
#[cfg(test)]
mod tests;

use super::{
    Completion, Fatal, MAX_MESSAGE_LENGTH, PathAttributes, Quirks, ResponderAttributes, Source, Transmit, WcOpcode,
    WcStatus,
};
use crate::{
    AccessFlags, AtomicOperation, Instant, Memory, Psn, RemoteFault, Sge,
    wire::{
        Aeth, Bth, CreditCode, Extended, Msn, Mtu, NakCode, Opcode, Operation, PKey, Packet, Qpn, RKey, Repr, Reth,
        Service, Syndrome,
    },
};
use receive_queue::ReceiveQueue;
use replies::{Replies, Reply};
use resources::{Resource, Resources};
use std::collections::VecDeque;
use thiserror::Error;

/// Why a receive was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostReceiveError {
    /// The receive queue holds as many as it was made for (`ENOMEM`).
    #[error("the receive queue is full")]
    QueueFull,
}

/// What the responder has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponderCounters {
    /// Requests seen before (rxe, mlx5: duplicate_request).
    pub duplicates: u64,
    /// Requests ahead of the expected PSN (rxe: out_of_seq_request, mlx5: out_of_sequence).
    pub out_of_sequence: u64,
    /// RNR NAKs sent (rxe: send_rnr_err, mlx5: out_of_buffer).
    pub rnr_naks: u64,
    /// SENDs received whole.
    pub sends: u64,
    /// WRITEs received whole (mlx5: rx_write_requests).
    pub writes: u64,
    /// READ requests (mlx5: rx_read_requests).
    pub reads: u64,
    /// Atomics executed (mlx5: rx_atomic_requests).
    pub atomics: u64,
    /// Requests refused for their access (mlx5: resp_remote_access_errors).
    pub access_errors: u64,
    /// Requests refused as invalid (mlx5: resp_local_length_error is part of it).
    pub invalid_requests: u64,
}

/// The responder half of a reliable connection.
#[derive(Debug)]
pub struct Responder {
    depth: u32,
    receives: ReceiveQueue,
    completions: VecDeque<Completion>,
    counters: ResponderCounters,
    state: State,
    attributes: ResponderAttributes,
    /// The PSN that the next new request must have.
    expected: Psn,
    msn: Msn,
    message: Message,
    /// Requests ahead of the expected PSN are dropped without a word: the NAK that asks for it has been sent.
    nak_sent: bool,
    resources: Resources,
    replies: Replies,
    /// PSN and MSN of the READ response that was emitted last, while its payload may still turn out unreadable.
    unconfirmed: Option<(Psn, Msn)>,
    fatal: Option<Fatal>,
    established: Established,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not connected yet: nothing is taken.
    Reset,
    Connected,
    /// A request was refused for good: nothing is taken any more.
    Refused,
    /// The queue pair is in error: receives are flushed.
    Flushed,
}

/// The SEND or WRITE of which some packets have arrived, and the last has not.
#[derive(Clone, Copy, Debug)]
enum Message {
    None,
    /// Its first `received` bytes have been placed.
    Send {
        received: u64,
    },
    /// `remaining` of `length` bytes are to come, to `address`.
    Write {
        rkey: RKey,
        address: u64,
        remaining: u32,
        length: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Established {
    No,
    Unreported,
    Reported,
}

/// Why a request at the expected PSN is not executed.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// No receive is posted: the requester shall try again.
    NotReady,
    /// The connection ends. `receive`: how the receive in use ends, if the fault lies there.
    Fatal { code: NakCode, fatal: Fatal, receive: Option<WcStatus> },
}

impl Refusal {
    /// The request breaks the protocol.
    const INVALID: Self = Self::Fatal { code: NakCode::InvalidRequest, fatal: Fatal::InvalidRequest, receive: None };
    /// The request may not touch that memory.
    const ACCESS: Self = Self::Fatal { code: NakCode::RemoteAccess, fatal: Fatal::Access, receive: None };

    /// The memory of the posted receive is not what it must be.
    const fn local(code: NakCode, status: WcStatus) -> Self {
        Self::Fatal { code, fatal: Fatal::Local, receive: Some(status) }
    }
}

impl From<RemoteFault> for Refusal {
    fn from(fault: RemoteFault) -> Self {
        match fault {
            RemoteFault::Misaligned => Self::INVALID,
            RemoteFault::UnknownKey | RemoteFault::OutOfRange | RemoteFault::AccessDenied => Self::ACCESS,
        }
    }
}

impl Responder {
    /// A responder that is not connected yet. `depth`: how many receives it may hold (`max_recv_wr`).
    pub fn new(depth: u32) -> Self {
        Self {
            depth,
            receives: ReceiveQueue::default(),
            completions: VecDeque::new(),
            counters: ResponderCounters::default(),
            state: State::Reset,
            attributes: UNCONNECTED,
            expected: Psn::new(0),
            msn: Msn::new(0),
            message: Message::None,
            nak_sent: false,
            resources: Resources::default(),
            replies: Replies::default(),
            unconfirmed: None,
            fatal: None,
            established: Established::No,
        }
    }

    /// Makes it ready to receive (INIT → RTR). Receives posted before are kept.
    pub fn connect(&mut self, attributes: ResponderAttributes) {
        self.state = State::Connected;
        self.attributes = attributes;
        self.expected = attributes.first_psn;
        self.msn = Msn::new(0);
        self.message = Message::None;
        self.nak_sent = false;
        self.resources.reset(attributes.max_dest_rd_atomic);
        self.replies.reset(attributes.path.quirks.coalesce_acks);
        self.unconfirmed = None;
        self.fatal = None;
        self.established = Established::No;
    }

    /// Changes what a connected queue pair allows or says (RTR/RTS → RTS with new attributes).
    pub fn set_access(&mut self, access: AccessFlags) {
        self.attributes.access = access;
    }

    /// Changes the RNR timer code.
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        self.attributes.min_rnr_timer = code;
    }

    /// Changes how many READs and atomics are kept for replay (SQD → SQD).
    pub fn set_max_dest_rd_atomic(&mut self, max_dest_rd_atomic: u8) {
        self.attributes.max_dest_rd_atomic = max_dest_rd_atomic;
        self.resources.set_capacity(max_dest_rd_atomic);
    }

    /// Queues a receive. After [`Self::flush`] it is flushed at once.
    pub fn post(&mut self, wr_id: u64, list: &[Sge]) -> Result<(), PostReceiveError> {
        if self.state == State::Flushed {
            self.completions.push_back(failed(wr_id, WcStatus::WorkRequestFlushed));
            return Ok(());
        }
        if self.posted() >= self.depth {
            return Err(PostReceiveError::QueueFull);
        }
        self.receives.push(wr_id, list);
        Ok(())
    }

    /// Takes a request.
    pub fn handle_packet<M: Memory + ?Sized>(&mut self, _now: Instant, packet: &Packet<'_>, memory: &M) {
        let opcode = packet.opcode();
        if self.state != State::Connected || opcode.service() != Service::Rc || opcode.is_response() {
            return;
        }
        if self.established == Established::No {
            self.established = Established::Unreported;
        }
        match packet.psn().distance_from(self.expected) {
            0 => {
                self.nak_sent = false;
                if let Err(refusal) = self.execute(packet, memory) {
                    self.refuse(packet.psn(), refusal);
                }
            }
            1.. => self.report_gap(),
            _ => self.repeat(packet),
        }
    }

    /// Whether [`Self::poll_transmit`] with `flush_ack` has something to send that must not wait (READ responses,
    /// atomic acknowledgements, NAKs, or an ACK that the peer's window waits for).
    pub fn has_urgent_output(&self) -> bool {
        self.replies.has_urgent()
    }

    /// Whether an ACK is being held back in the hope of covering more requests with it.
    pub fn has_deferred_ack(&self) -> bool {
        self.replies.has_deferred()
    }

    /// The next packet to send. A deferred ACK is only sent when `flush_ack` is set: the driver sets it when the
    /// receive side has run dry.
    pub fn poll_transmit(&mut self, _now: Instant, flush_ack: bool) -> Option<Transmit<'_>> {
        self.unconfirmed = None;
        let acknowledged = Syndrome::Ack(self.credits());
        let plain = |syndrome, msn| Extended::Aeth(Aeth { syndrome, msn });
        let (operation, psn, extended) = match self.replies.front(flush_ack)? {
            Reply::Acknowledge { psn, msn, .. } => {
                self.replies.pop();
                (Operation::Acknowledge, psn, plain(acknowledged, msn))
            }
            Reply::Refuse { syndrome, psn, msn, fatal } => {
                self.replies.pop();
                self.fatal = fatal;
                (Operation::Acknowledge, psn, plain(syndrome, msn))
            }
            Reply::Resource(index) => {
                let response = self.resources.get_mut(index).next_response(self.attributes.path.mtu, acknowledged);
                if response.last {
                    self.replies.pop();
                }
                if !response.source.is_empty() {
                    self.unconfirmed = Some((response.psn, response.msn));
                }
                let header = self.header(response.operation, response.psn, response.extended, response.source.len());
                return Some(Transmit { header, source: response.source, retransmission: response.retransmission });
            }
        };
        Some(Transmit {
            header: self.header(operation, psn, extended, 0),
            source: Source::Empty,
            retransmission: false,
        })
    }

    /// The payload of the packet that [`Self::poll_transmit`] returned last could not be read (its region has
    /// gone or lost its access): the READ is refused with a NAK.
    pub fn transmit_failed(&mut self) {
        let Some((psn, msn)) = self.unconfirmed.take() else { return };
        self.counters.access_errors += 1;
        // What was executed after the READ is not answered any more: its requester fails the READ, and flushes
        // everything that follows.
        self.replies.clear();
        self.replies.refuse(Syndrome::Nak(NakCode::RemoteAccess), psn, msn, Some(Fatal::Access));
        if self.state == State::Connected {
            self.state = State::Refused;
        }
    }

    /// The next completion of a receive.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Set once when a request was refused for good: after its NAK has been taken from [`Self::poll_transmit`] the
    /// queue pair must go to the error state.
    pub fn poll_fatal(&mut self) -> Option<Fatal> {
        self.fatal.take()
    }

    /// Ends every posted receive with "flushed", in order, and disconnects (→ ERR). A NAK that waits to be sent
    /// stays.
    pub fn flush(&mut self) {
        self.state = State::Flushed;
        self.unconfirmed = None;
        self.replies.retain_fatal();
        while let Some(wr_id) = self.receives.pop() {
            self.completions.push_back(failed(wr_id, WcStatus::WorkRequestFlushed));
        }
    }

    /// Forgets everything, without completions (→ RESET).
    pub fn reset(&mut self) {
        self.state = State::Reset;
        self.receives.clear();
        self.completions.clear();
        self.replies.clear();
        self.unconfirmed = None;
        self.fatal = None;
        self.established = Established::No;
    }

    /// How many receives are posted.
    pub fn posted(&self) -> u32 {
        self.receives.len() as u32
    }

    /// Takes "the first request has arrived" (`IBV_EVENT_COMM_EST`), once.
    pub fn poll_established(&mut self) -> bool {
        let unreported = self.established == Established::Unreported;
        if unreported {
            self.established = Established::Reported;
        }
        unreported
    }

    /// What it has counted.
    pub fn counters(&self) -> &ResponderCounters {
        &self.counters
    }
}

/// Requests at the expected PSN.
impl Responder {
    fn execute<M: Memory + ?Sized>(&mut self, packet: &Packet<'_>, memory: &M) -> Result<(), Refusal> {
        use Operation as Op;
        let operation = packet.opcode().operation();
        match operation {
            Op::SendFirst
            | Op::SendMiddle
            | Op::SendLast
            | Op::SendLastWithImmediate
            | Op::SendLastWithInvalidate
            | Op::SendOnly
            | Op::SendOnlyWithImmediate
            | Op::SendOnlyWithInvalidate => self.execute_send(packet, memory),
            Op::WriteFirst
            | Op::WriteMiddle
            | Op::WriteLast
            | Op::WriteLastWithImmediate
            | Op::WriteOnly
            | Op::WriteOnlyWithImmediate => self.execute_write(packet, memory),
            Op::ReadRequest => self.execute_read(packet, memory),
            Op::CompareSwap | Op::FetchAdd => self.execute_atomic(packet, memory),
            // FLUSH and ATOMIC WRITE: "a function not supported by this queue pair".
            _ => Err(Refusal::INVALID),
        }
    }

    fn execute_send<M: Memory + ?Sized>(&mut self, packet: &Packet<'_>, memory: &M) -> Result<(), Refusal> {
        let operation = packet.opcode().operation();
        let received = match (self.message, operation.starts_message()) {
            (Message::None, true) => 0,
            (Message::Send { received }, false) => received,
            _ => return Err(Refusal::INVALID),
        };
        let receive = self.receives.front().ok_or(Refusal::NotReady)?;
        let payload = packet.payload();
        self.check_payload_length(operation, payload.len())?;
        let length = received + payload.len() as u64;
        if length > MAX_MESSAGE_LENGTH {
            return Err(Refusal::INVALID);
        }
        if length > receive.length {
            let code = match self.quirks().too_long_is_operational {
                true => NakCode::RemoteOperational,
                false => NakCode::InvalidRequest,
            };
            return Err(Refusal::local(code, WcStatus::LocalLength));
        }
        if !payload.is_empty() {
            memory
                .scatter(&receive.list, received, payload)
                .map_err(|_| Refusal::local(NakCode::RemoteOperational, WcStatus::LocalProtection))?;
        }
        if operation.ends_message() {
            if let Some(rkey) = packet.invalidate() {
                memory.invalidate(rkey)?;
            }
            self.complete_receive(packet, WcOpcode::Receive, length as u32);
            self.counters.sends += 1;
            self.message = Message::None;
            self.msn = self.msn.next();
        } else {
            self.message = Message::Send { received: length };
        }
        self.acknowledge(packet);
        Ok(())
    }

    fn execute_write<M: Memory + ?Sized>(&mut self, packet: &Packet<'_>, memory: &M) -> Result<(), Refusal> {
        let operation = packet.opcode().operation();
        let (rkey, address, remaining, length) = match (self.message, packet.reth()) {
            (Message::None, Some(Reth { rkey, address, length })) => (rkey, address, length, length),
            (Message::Write { rkey, address, remaining, length }, None) => (rkey, address, remaining, length),
            _ => return Err(Refusal::INVALID),
        };
        self.check_allowed(AccessFlags::REMOTE_WRITE)?;
        if packet.immediate().is_some() && self.receives.front().is_none() {
            return Err(Refusal::NotReady);
        }
        let payload = packet.payload();
        self.check_payload_length(operation, payload.len())?;
        let rest = u64::from(remaining).checked_sub(payload.len() as u64).ok_or(Refusal::INVALID)? as u32;
        if u64::from(length) > MAX_MESSAGE_LENGTH || (rest == 0) != operation.ends_message() {
            return Err(Refusal::INVALID);
        }
        if operation.starts_message() && length > 0 {
            memory.check_remote(rkey, address, length.into(), AccessFlags::REMOTE_WRITE)?;
        }
        if !payload.is_empty() {
            memory.write_remote(rkey, address, payload)?;
        }
        if operation.ends_message() {
            if packet.immediate().is_some() {
                self.complete_receive(packet, WcOpcode::ReceiveWithImmediate, length);
            }
            self.counters.writes += 1;
            self.message = Message::None;
            self.msn = self.msn.next();
        } else {
            let address = address.wrapping_add(payload.len() as u64);
            self.message = Message::Write { rkey, address, remaining: rest, length };
        }
        self.acknowledge(packet);
        Ok(())
    }

    fn execute_read<M: Memory + ?Sized>(&mut self, packet: &Packet<'_>, memory: &M) -> Result<(), Refusal> {
        let (Message::None, Some(reth)) = (self.message, packet.reth()) else { return Err(Refusal::INVALID) };
        self.check_allowed(AccessFlags::REMOTE_READ)?;
        if !self.resources.has_room() || u64::from(reth.length) > MAX_MESSAGE_LENGTH {
            return Err(Refusal::INVALID);
        }
        if reth.length > 0 {
            memory.check_remote(reth.rkey, reth.address, reth.length.into(), AccessFlags::REMOTE_READ)?;
        }
        // A READ counts as completed when it is executed, not when its last response leaves (C9-148).
        self.msn = self.msn.next();
        self.counters.reads += 1;
        self.respond(Resource::read(packet.psn(), reth, self.msn, self.attributes.path.mtu));
        Ok(())
    }

    fn execute_atomic<M: Memory + ?Sized>(&mut self, packet: &Packet<'_>, memory: &M) -> Result<(), Refusal> {
        let (Message::None, Some(eth)) = (self.message, packet.atomic_eth()) else { return Err(Refusal::INVALID) };
        self.check_allowed(AccessFlags::REMOTE_ATOMIC)?;
        if !self.resources.has_room() || !eth.address.is_multiple_of(8) {
            return Err(Refusal::INVALID);
        }
        let operation = match packet.opcode().operation() {
            Operation::CompareSwap => AtomicOperation::CompareSwap { compare: eth.compare, swap: eth.swap_or_add },
            _ => AtomicOperation::FetchAdd { add: eth.swap_or_add },
        };
        let before = memory.atomic(eth.rkey, eth.address, operation)?;
        self.msn = self.msn.next();
        self.counters.atomics += 1;
        self.respond(Resource::atomic(packet.psn(), before, self.msn));
        Ok(())
    }

    /// First and Middle are full, Last is not empty (IBTA 9.7.4.1.6: length requirements by opcode).
    fn check_payload_length(&self, operation: Operation, length: usize) -> Result<(), Refusal> {
        let mtu = self.attributes.path.mtu.bytes();
        let fits = match (operation.starts_message(), operation.ends_message()) {
            (true, true) => length <= mtu,
            (false, true) => (1..=mtu).contains(&length),
            (_, false) => length == mtu,
        };
        if fits { Ok(()) } else { Err(Refusal::INVALID) }
    }

    /// An operation that the queue pair does not allow is an invalid request, not an access error: access errors
    /// are about memory regions.
    fn check_allowed(&self, access: AccessFlags) -> Result<(), Refusal> {
        if self.attributes.access.contains(access) { Ok(()) } else { Err(Refusal::INVALID) }
    }

    fn complete_receive(&mut self, packet: &Packet<'_>, opcode: WcOpcode, byte_length: u32) {
        let Some(wr_id) = self.receives.pop() else { return };
        self.completions.push_back(Completion {
            wr_id,
            status: WcStatus::Success,
            opcode,
            byte_length,
            immediate: packet.immediate(),
            invalidated: packet.invalidate(),
            solicited: packet.bth().solicited,
        });
    }

    /// Moves on past a SEND or WRITE packet, and acknowledges it if that is asked for.
    fn acknowledge(&mut self, packet: &Packet<'_>) {
        self.expected = self.expected.next();
        self.replies.received(packet.payload().len());
        if packet.bth().ack_request {
            self.replies.acknowledge(packet.psn(), self.msn);
        }
    }

    /// Moves on past a READ or atomic, and queues its answer.
    fn respond(&mut self, resource: Resource) {
        self.expected += resource.packets();
        let index = self.resources.insert(resource);
        self.replies.respond(index);
    }
}

/// Everything else: refusals, gaps, repetitions.
impl Responder {
    fn refuse(&mut self, psn: Psn, refusal: Refusal) {
        let (syndrome, fatal) = match refusal {
            Refusal::NotReady => {
                self.counters.rnr_naks += 1;
                // The requests behind the refused one are in flight already. A NAK for them would be a second
                // call for the same PSN, and cut the wait short that the first one asked for.
                self.nak_sent = !self.quirks().sequence_nak_after_rnr;
                (Syndrome::RnrNak(self.attributes.min_rnr_timer), None)
            }
            Refusal::Fatal { code, fatal, receive } => {
                match fatal {
                    Fatal::Access => self.counters.access_errors += 1,
                    _ => self.counters.invalid_requests += 1,
                }
                if let Some(status) = receive {
                    self.completions.extend(self.receives.pop().map(|wr_id| failed(wr_id, status)));
                }
                self.state = State::Refused;
                (Syndrome::Nak(code), Some(fatal))
            }
        };
        self.replies.refuse(syndrome, psn, self.msn, fatal);
    }

    /// Asks for the expected PSN, once (C9-113): until it comes, everything in flight is ahead of it.
    fn report_gap(&mut self) {
        self.counters.out_of_sequence += 1;
        if !self.nak_sent {
            self.nak_sent = true;
            self.replies.refuse(Syndrome::Nak(NakCode::PsnSequence), self.expected, self.msn, None);
        }
    }

    /// Answers a request that was executed before. It is never executed again, and is answered whether or not it
    /// asks for it: that it comes again shows that the answer was lost.
    fn repeat(&mut self, packet: &Packet<'_>) {
        self.counters.duplicates += 1;
        let (psn, mtu) = (packet.psn(), self.attributes.path.mtu);
        match packet.opcode().operation() {
            Operation::ReadRequest => {
                let index = packet.reth().and_then(|reth| self.resources.repeat_read(psn, reth, self.msn, mtu));
                self.replies.repeat(index);
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                self.replies.repeat(self.resources.repeat_atomic(psn, self.msn));
            }
            Operation::Flush | Operation::AtomicWrite => {}
            _ => {
                // The latest PSN, but not past a READ or atomic of which nobody knows whether its answer has
                // arrived: an ACK that skips it makes the requester ask for it once more.
                let limit = self.resources.first_between(psn, self.expected).unwrap_or(self.expected);
                self.replies.acknowledge(limit.previous(), self.msn);
            }
        }
    }

    fn quirks(&self) -> &Quirks {
        &self.attributes.path.quirks
    }

    /// The end-to-end credits: receives that messages after the MSN may use. The message in progress is one of
    /// those, so its receive counts.
    fn credits(&self) -> CreditCode {
        if self.quirks().end_to_end_credits { CreditCode::for_posted(self.posted()) } else { CreditCode::UNLIMITED }
    }

    fn header(&self, operation: Operation, psn: Psn, extended: Extended, payload: usize) -> Repr {
        let PathAttributes { destination, pkey, .. } = self.attributes.path;
        let pad = (payload.wrapping_neg() & 3) as u8;
        Repr { bth: Bth { pkey, pad, ..Bth::new(Opcode::rc(operation), destination, psn) }, xrceth: None, extended }
    }
}

/// What stands in for attributes before there are any.
const UNCONNECTED: ResponderAttributes = ResponderAttributes {
    path: PathAttributes { destination: Qpn::new(0), mtu: Mtu::Mtu256, pkey: PKey::DEFAULT, quirks: Quirks::HARDWARE },
    first_psn: Psn::new(0),
    max_dest_rd_atomic: 0,
    min_rnr_timer: 0,
    access: AccessFlags::empty(),
};

/// The completion of a receive that failed.
fn failed(wr_id: u64, status: WcStatus) -> Completion {
    Completion {
        wr_id,
        status,
        opcode: WcOpcode::Receive,
        byte_length: 0,
        immediate: None,
        invalidated: None,
        solicited: true,
    }
}
