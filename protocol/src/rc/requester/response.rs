//! What answers mean: progress, retries, completions.

use super::{CreditLimit, Requester, State};
use crate::{
    Instant, Memory,
    rc::{SendOperation, WcStatus},
    send_queue::returns_data,
    wire::{Aeth, Msn, NakCode, Operation, Packet, Syndrome, rnr_timer},
};

impl Requester {
    /// Takes a response ([`crate::wire::Opcode::is_response`]).
    ///
    /// Answers to packets that were never sent, and to packets that are acknowledged already, are ignored.
    pub fn handle_packet<M: Memory + ?Sized>(&mut self, now: Instant, packet: &Packet<'_>, memory: &M) {
        if self.state != State::Connected || packet.opcode().service() != self.attributes.path.service {
            return;
        }
        let Some(sequence) = self.sequence(packet.psn()) else { return };
        match packet.opcode().operation() {
            Operation::Acknowledge => {
                if let Some(aeth) = packet.aeth() {
                    self.handle_acknowledge(now, sequence, aeth);
                }
            }
            Operation::ReadResponseFirst
            | Operation::ReadResponseMiddle
            | Operation::ReadResponseLast
            | Operation::ReadResponseOnly
            | Operation::AtomicAcknowledge => self.handle_data(now, sequence, packet, memory),
            _ => {}
        }
        self.fail_if_due();
    }

    /// A failed request's turn comes when it is the oldest.
    pub(super) fn fail_if_due(&mut self) {
        if let Some(status) = self.queue.front().and_then(|request| request.failed) {
            self.fail_oldest(status);
        }
    }

    fn handle_acknowledge(&mut self, now: Instant, sequence: u64, aeth: Aeth) {
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                if sequence >= self.sent {
                    return;
                }
                self.update_credits(sequence, aeth);
                if sequence >= self.unacknowledged {
                    self.acknowledge(now, sequence + 1);
                }
            }
            Syndrome::RnrNak(timer) => {
                if self.is_nak_credible(sequence) && self.acknowledge(now, sequence) {
                    self.handle_rnr_nak(now, timer);
                }
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                if self.is_nak_credible(sequence) && self.acknowledge(now, sequence) {
                    self.counters.sequence_naks += 1;
                    self.handle_gap();
                }
            }
            Syndrome::Nak(code) => {
                // Refused in the middle of its responses, a READ is named by its first PSN (rxe) or by the one
                // that is due (IBTA).
                let in_read = self.outstanding.front().is_some_and(|span| span.first <= sequence);
                let sequence = if in_read { sequence.max(self.unacknowledged) } else { sequence };
                if self.is_nak_credible(sequence) && self.acknowledge(now, sequence) {
                    self.fail_oldest(match code {
                        NakCode::RemoteAccess => WcStatus::RemoteAccess,
                        NakCode::RemoteOperational => WcStatus::RemoteOperation,
                        NakCode::InvalidRequest | NakCode::InvalidRdRequest => WcStatus::RemoteInvalidRequest,
                        NakCode::PsnSequence | NakCode::Reserved(_) => WcStatus::BadResponse,
                    });
                }
            }
            // A reserved syndrome says nothing (IBTA table 43).
            Syndrome::Reserved(_) => {}
        }
    }

    /// Whether a NAK names a packet that is on its way.
    const fn is_nak_credible(&self, sequence: u64) -> bool {
        sequence >= self.unacknowledged && sequence < self.sent
    }

    /// Data that answers a READ or an atomic. Only the next packet of the oldest one outstanding is of use: what
    /// comes later shows a gap, what came earlier is a duplicate. First, middle and last are not told apart: a
    /// resumed READ starts with a middle or last one on rxe.
    fn handle_data<M: Memory + ?Sized>(&mut self, now: Instant, sequence: u64, packet: &Packet<'_>, memory: &M) {
        if sequence < self.unacknowledged || sequence >= self.sent {
            return;
        }
        let Some(span) = self.outstanding.front().copied() else { return };
        let expected = span.first.max(self.unacknowledged);
        if sequence < expected {
            return;
        }
        // The responder has executed everything before the READ or atomic that it answers.
        self.advance(now, expected);
        if sequence > expected {
            self.handle_implied_nak();
            return;
        }
        let Some(request) = self.queue.front() else { return };
        let mtu = self.attributes.path.mtu;
        let position = expected - request.first;
        let is_atomic_response = packet.opcode().operation() == Operation::AtomicAcknowledge;
        let is_atomic = matches!(request.operation, SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. });
        if is_atomic_response != is_atomic {
            self.fail_oldest(WcStatus::BadResponse);
            return;
        }
        let original = packet.atomic_ack().map(u64::to_ne_bytes);
        let bytes = original.as_ref().map_or(packet.payload(), |value| value.as_slice());
        let expected = match returns_data(request.operation) {
            true => request.bytes_between(position, position + 1, mtu),
            false => 0,
        };
        if bytes.len() as u64 != expected {
            self.fail_oldest(WcStatus::BadResponse);
            return;
        }
        if !bytes.is_empty() && memory.scatter(request.list(), position * mtu.bytes() as u64, bytes).is_err() {
            self.fail_oldest(WcStatus::LocalProtection);
            return;
        }
        if let Some(aeth) = packet.aeth() {
            self.update_credits(sequence, aeth);
        }
        self.advance(now, sequence + 1);
    }

    /// Acknowledges everything before `end`, but no READ or atomic: those are acknowledged by their answers. When
    /// one of them lies before `end` its answer was lost; it is asked for again and `false` returned.
    fn acknowledge(&mut self, now: Instant, end: u64) -> bool {
        match self.outstanding.front() {
            Some(span) if span.first.max(self.unacknowledged) < end => {
                self.advance(now, span.first.max(self.unacknowledged));
                self.handle_implied_nak();
                false
            }
            _ => {
                self.advance(now, end);
                true
            }
        }
    }

    /// Moves the unacknowledged end forward and completes what lies behind it.
    fn advance(&mut self, now: Instant, to: u64) {
        if to <= self.unacknowledged {
            return;
        }
        let mtu = self.attributes.path.mtu;
        let cost_before = self.queue.cost_at(0, self.unacknowledged, mtu);
        self.unacknowledged = to;
        self.complete_done();
        while self.outstanding.front().is_some_and(|span| span.end <= to) {
            self.outstanding.pop_front();
        }
        if self.next < to {
            self.next = to;
            self.cursor = 0;
        }
        self.last_transmit = None;
        self.window.on_acknowledged(self.queue.cost_at(0, to, mtu) - cost_before);
        self.recovering = None;
        self.reload_retries();
        self.ack_deadline = if self.unacknowledged < self.next { self.next_ack_deadline(now) } else { None };
    }

    /// Completes what is done at the front of the queue.
    pub(super) fn complete_done(&mut self) {
        while self.queue.front().is_some_and(|request| request.is_done(self.unacknowledged)) {
            if let Some(request) = self.queue.pop() {
                self.complete(request);
                self.cursor = self.cursor.saturating_sub(1);
            }
        }
    }

    /// An answer skipped a READ or atomic that is still waiting for its own (IBTA 9.7.5.1.2: implied NAK).
    fn handle_implied_nak(&mut self) {
        if self.recovering == Some(self.unacknowledged) {
            return;
        }
        self.counters.implied_naks += 1;
        if !self.attributes.path.quirks.read_gap_waits_for_timeout {
            self.handle_gap();
        }
    }

    /// The responder misses the oldest unacknowledged packet, or we miss its answer.
    fn handle_gap(&mut self) {
        // While it waits for a receive the responder may complain of the packets behind (rxe does).
        if self.rnr_deadline.is_some() || self.recovering == Some(self.unacknowledged) {
            return;
        }
        self.window.on_gap();
        self.retry();
        self.recovering = Some(self.unacknowledged);
    }

    fn handle_rnr_nak(&mut self, now: Instant, timer: u8) {
        if self.rnr_deadline.is_some() {
            return;
        }
        self.counters.rnr_naks += 1;
        let infinite = self.attributes.rnr_retry == 7;
        if self.rnr_retries_left == 0 && !infinite {
            self.fail_oldest(WcStatus::RnrRetryExceeded);
            return;
        }
        self.rnr_retries_left = self.rnr_retries_left.saturating_sub(1);
        self.go_back();
        self.rnr_deadline = Some(now + rnr_timer(timer));
    }

    /// Takes the credits that an acknowledgement carries, unless it is older than what is known.
    fn update_credits(&mut self, sequence: u64, aeth: Aeth) {
        let Syndrome::Ack(code) = aeth.syndrome else { return };
        if !self.attributes.path.quirks.end_to_end_credits || sequence + 1 < self.unacknowledged {
            return;
        }
        self.credit_limit = match code.credits() {
            Some(credits) => CreditLimit::Limit(Msn::new(aeth.msn.value().wrapping_add(credits))),
            None => CreditLimit::Unlimited,
        };
    }
}
