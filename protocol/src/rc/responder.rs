//! The responder: the receive queue, the checks on what arrives, and the answers.

use super::{Completion, Fatal, ResponderAttributes, Transmit};
use crate::{Instant, Memory, Sge, wire::Packet};
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
pub struct Responder {}

impl Responder {
    /// A responder that is not connected yet. `depth`: how many receives it may hold (`max_recv_wr`).
    pub fn new(depth: u32) -> Self {
        let _ = depth;
        todo!()
    }

    /// Makes it ready to receive (INIT → RTR). Receives posted before are kept.
    pub fn connect(&mut self, attributes: ResponderAttributes) {
        let _ = attributes;
        todo!()
    }

    /// Changes what a connected queue pair allows or says (RTR/RTS → RTS with new attributes).
    pub fn set_access(&mut self, access: crate::AccessFlags) {
        let _ = access;
        todo!()
    }

    /// Changes the RNR timer code.
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        let _ = code;
        todo!()
    }

    /// Queues a receive. After [`Self::flush`] it is flushed at once.
    pub fn post(&mut self, wr_id: u64, list: &[Sge]) -> Result<(), PostReceiveError> {
        let _ = (wr_id, list);
        todo!()
    }

    /// Takes a request.
    pub fn handle_packet<M: Memory + ?Sized>(&mut self, now: Instant, packet: &Packet<'_>, memory: &M) {
        let _ = (now, packet, memory);
        todo!()
    }

    /// Whether [`Self::poll_transmit`] with `flush_ack` has something to send that must not wait (READ responses,
    /// atomic acknowledgements, NAKs, or an ACK that the peer's window waits for).
    pub fn has_urgent_output(&self) -> bool {
        todo!()
    }

    /// Whether an ACK is being held back in the hope of covering more requests with it.
    pub fn has_deferred_ack(&self) -> bool {
        todo!()
    }

    /// The next packet to send. A deferred ACK is only sent when `flush_ack` is set: the driver sets it when the
    /// receive side has run dry.
    pub fn poll_transmit(&mut self, now: Instant, flush_ack: bool) -> Option<Transmit<'_>> {
        let _ = (now, flush_ack);
        todo!()
    }

    /// The payload of the packet that [`Self::poll_transmit`] returned last could not be read (its region has
    /// gone or lost its access): the READ is refused with a NAK.
    pub fn transmit_failed(&mut self) {
        todo!()
    }

    /// The next completion of a receive.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        todo!()
    }

    /// Set once when a request was refused for good: after its NAK has been taken from [`Self::poll_transmit`] the
    /// queue pair must go to the error state.
    pub fn poll_fatal(&mut self) -> Option<Fatal> {
        todo!()
    }

    /// Ends every posted receive with "flushed", in order, and disconnects (→ ERR). A NAK that waits to be sent
    /// stays.
    pub fn flush(&mut self) {
        todo!()
    }

    /// Forgets everything, without completions (→ RESET).
    pub fn reset(&mut self) {
        todo!()
    }

    /// How many receives are posted.
    pub fn posted(&self) -> u32 {
        todo!()
    }

    /// Takes "the first request has arrived" (`IBV_EVENT_COMM_EST`), once.
    pub fn poll_established(&mut self) -> bool {
        todo!()
    }

    /// What it has counted.
    pub fn counters(&self) -> &ResponderCounters {
        todo!()
    }
}
