//! The requester: the send queue and everything that leads from a work request to its completion.

use super::{Completion, Fatal, RequesterAttributes, SendRequest, Transmit, WcStatus};
use crate::{Instant, Memory, wire::Packet};
use thiserror::Error;

/// Why a work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostSendError {
    /// The send queue holds as many as it was made for (`ENOMEM`).
    #[error("the send queue is full")]
    QueueFull,
    /// The message is longer than 2³¹ bytes, or an atomic's buffer is not 8 bytes (`EINVAL`).
    #[error("the message's length is not allowed for this operation")]
    BadLength,
    /// An atomic's remote address is not a multiple of 8 (`EINVAL`).
    #[error("the remote address of an atomic is not a multiple of 8")]
    Misaligned,
    /// READ or atomic on a connection with `max_rd_atomic` 0 (`EINVAL`), or inline data for one.
    #[error("the connection does not allow this operation")]
    NotAllowed,
}

/// What the requester has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterCounters {
    /// Packets sent a second time (rxe: part of completer_retry_err).
    pub retransmitted_packets: u64,
    /// Sequence NAKs received (mlx5: packet_seq_err, rxe: rcvd_seq_err).
    pub sequence_naks: u64,
    /// Gaps that an acknowledgement revealed (mlx5: implied_nak_seq_err).
    pub implied_naks: u64,
    /// RNR NAKs received (rxe: rcvd_rnr_err).
    pub rnr_naks: u64,
    /// Local ACK timeouts (mlx5: local_ack_timeout_err).
    pub timeouts: u64,
    /// READs and atomics, SENDs, WRITEs completed.
    pub messages: u64,
}

/// The requester half of a reliable connection.
#[derive(Debug)]
pub struct Requester {}

impl Requester {
    /// A requester that is not connected yet. `depth`: how many work requests it may hold (`max_send_wr`).
    pub fn new(depth: u32) -> Self {
        let _ = depth;
        todo!()
    }

    /// Makes it ready to send (INIT/RTR → RTS).
    pub fn connect(&mut self, attributes: RequesterAttributes) {
        let _ = attributes;
        todo!()
    }

    /// Queues a work request. Nothing is sent before [`Self::poll_transmit`].
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostSendError> {
        let _ = request;
        todo!()
    }

    /// The next packet to send, if window, credits, fences and timers allow one.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<'_>> {
        let _ = now;
        todo!()
    }

    /// The payload of the packet that [`Self::poll_transmit`] returned last could not be read: its work request
    /// fails with `status` (in its turn), and the queue pair with it.
    pub fn transmit_failed(&mut self, status: WcStatus) {
        let _ = status;
        todo!()
    }

    /// Takes a response ([`crate::wire::Opcode::is_response`]).
    pub fn handle_packet<M: Memory + ?Sized>(&mut self, now: Instant, packet: &Packet<'_>, memory: &M) {
        let _ = (now, packet, memory);
        todo!()
    }

    /// When [`Self::handle_timeout`] wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        todo!()
    }

    /// Acts on every deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
        todo!()
    }

    /// The next completion.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        todo!()
    }

    /// Set once when a work request has failed: the queue pair must go to the error state and [`Self::flush`] be
    /// called. The failed request's completion is already queued.
    pub fn poll_fatal(&mut self) -> Option<Fatal> {
        todo!()
    }

    /// Ends every queued work request with "flushed", in order, and disconnects (→ ERR). Later posts are flushed
    /// at once.
    pub fn flush(&mut self) {
        todo!()
    }

    /// Forgets everything, without completions (→ RESET).
    pub fn reset(&mut self) {
        todo!()
    }

    /// Stops (or resumes) starting new work requests (SQD); what has been started is finished.
    pub fn set_draining(&mut self, draining: bool) {
        let _ = draining;
        todo!()
    }

    /// Whether nothing that was started is unfinished (SQD: drained).
    pub fn is_idle(&self) -> bool {
        todo!()
    }

    /// How many work requests are queued.
    pub fn queued(&self) -> u32 {
        todo!()
    }

    /// What it has counted.
    pub fn counters(&self) -> &RequesterCounters {
        todo!()
    }
}
