//! The responder: the receive queue, the checks on what arrives, and the answers.
//!
//! A request at the expected PSN is executed at once, one packet at a time: [`Responder::handle_packet`] checks it,
//! places its payload, and queues what is to be answered. Requests before the expected PSN are repetitions and are
//! answered again without being executed again; requests after it reveal a gap. Answers leave in the order of
//! execution. READ responses are made one packet per [`Responder::poll_transmit`], so that a READ of 2 GiB costs no
//! more memory than one of 2 bytes.
//!
//! Checks that need more than the connection are the device's: ICRC, P_Key, transport version, queue-pair state.

mod execute;
mod replies;
mod resources;
#[cfg(test)]
mod tests;

use super::{
    Completion, Fatal, PathAttributes, PostReceiveError, Quirks, ResponderAttributes, Source, Transmit, WcStatus,
};
use crate::{
    AccessFlags, Instant, Memory, Psn, RemoteFault, Sge,
    receive_queue::{ReceiveQueue, Receives, failed},
    wire::{
        Aeth, Bth, CreditCode, Extended, Msn, Mtu, NakCode, Opcode, Operation, PKey, Packet, Qpn, RKey, Repr, Service,
        Syndrome, XrcSrqn,
    },
};
use replies::{Replies, Reply};
use resources::Resources;
use std::collections::VecDeque;

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
    /// WRITEs received whole, ATOMIC WRITEs among them (mlx5: rx_write_requests).
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
    receives: Receives,
    completions: VecDeque<Completion>,
    counters: ResponderCounters,
    state: State,
    attributes: ResponderAttributes,
    /// The PSN that the next new request must have.
    expected: Psn,
    msn: Msn,
    message: Message,
    /// The XRC shared receive queue that the latest request was for; `None` but on XRC.
    srq: Option<XrcSrqn>,
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
        Self::of(Receives::own(depth))
    }

    /// A responder that is not connected yet and takes its receives from a queue that it shares with others: the
    /// queue pair's shared receive queue, or on XRC the one that each request names.
    pub fn sharing_receives() -> Self {
        Self::of(Receives::shared())
    }

    fn of(receives: Receives) -> Self {
        Self {
            receives,
            completions: VecDeque::new(),
            counters: ResponderCounters::default(),
            state: State::Reset,
            attributes: UNCONNECTED,
            expected: Psn::new(0),
            msn: Msn::new(0),
            message: Message::None,
            srq: None,
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
        self.srq = None;
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
        self.receives.post(wr_id, list)
    }

    /// Takes a request.
    ///
    /// `shared` is the queue that it shares, if it does; on XRC the one that the request names ([`Packet::xrceth`]),
    /// or `None` if there is no such queue in the queue pair's XRC domain. `memory` is what the queue pair sees; on
    /// XRC what that queue's protection domain sees.
    pub fn handle_packet<M: Memory + ?Sized>(
        &mut self,
        _now: Instant,
        packet: &Packet<'_>,
        memory: &M,
        shared: Option<&mut ReceiveQueue>,
    ) {
        let opcode = packet.opcode();
        if self.state != State::Connected || opcode.service() != self.attributes.path.service || opcode.is_response() {
            return;
        }
        if self.established == Established::No {
            self.established = Established::Unreported;
        }
        match packet.psn().distance_from(self.expected) {
            0 => {
                self.nak_sent = false;
                if let Err(refusal) = self.execute(packet, memory, shared) {
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

    /// Whether the next packet to send answers a READ: a flow of data, which a rate may hold up.
    pub fn has_data_next(&self) -> bool {
        match self.replies.front(true) {
            Some(Reply::Resource(index)) => self.resources.get(index).is_read(),
            _ => false,
        }
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
                let (source, retransmission) = (response.source, response.retransmission);
                return Some(Transmit { header, source, to: None, retransmission });
            }
        };
        Some(Transmit {
            header: self.header(operation, psn, extended, 0),
            source: Source::Empty,
            to: None,
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
        while let Some(completion) = self.receives.flush() {
            self.completions.push_back(Completion { srq: self.srq, ..completion });
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

    /// How many receives are posted to it alone.
    pub fn posted(&self) -> u32 {
        self.receives.posted()
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
                    let failed = self.receives.fail(status);
                    self.completions.extend(failed.map(|completion| Completion { srq: self.srq, ..completion }));
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
            operation @ (Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicWrite | Operation::Flush) => {
                let is_atomic = matches!(operation, Operation::CompareSwap | Operation::FetchAdd);
                self.replies.repeat(self.resources.repeat_executed(psn, is_atomic, self.msn));
            }
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
    /// those, so its receive counts. Nobody can promise receives of a shared queue (IBTA 9.7.7.2: no credits then).
    fn credits(&self) -> CreditCode {
        if self.quirks().end_to_end_credits && !self.receives.is_shared() {
            CreditCode::for_posted(self.posted())
        } else {
            CreditCode::UNLIMITED
        }
    }

    fn header(&self, operation: Operation, psn: Psn, extended: Extended, payload: usize) -> Repr {
        let PathAttributes { service, destination, pkey, .. } = self.attributes.path;
        let opcode = Opcode::new(service, operation).unwrap_or(Opcode::rc(operation));
        let pad = Bth::pad_for(payload);
        Repr { bth: Bth { pkey, pad, ..Bth::new(opcode, destination, psn) }, xrceth: None, extended }
    }
}

/// What stands in for attributes before there are any.
const UNCONNECTED: ResponderAttributes = ResponderAttributes {
    path: PathAttributes {
        service: Service::Rc,
        destination: Qpn::new(0),
        mtu: Mtu::Mtu256,
        pkey: PKey::DEFAULT,
        quirks: Quirks::HARDWARE,
    },
    first_psn: Psn::new(0),
    max_dest_rd_atomic: 0,
    min_rnr_timer: 0,
    access: AccessFlags::empty(),
};
