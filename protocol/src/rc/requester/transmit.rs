//! What leaves, and when.

use super::{CreditLimit, LastTransmit, Requester, Span, State};
use crate::{
    Instant, Memory,
    rc::{FlushPlacement, SendOperation, Source, Target, Transmit, WcStatus},
    send_queue::{WorkRequest, consumes_receive, is_answered, is_local},
    wire::{AtomicEth, Bth, Extended, Feth, Msn, Opcode, Operation, Repr, Reth, XrcEth, XrcSrqn},
};

/// Never this many packets unacknowledged: half the PSN space, less one (IBTA C9-2).
const MAX_UNACKNOWLEDGED: u64 = (1 << 23) - 1;

impl Requester {
    /// The next packet to send, if window, credits, fences and timers allow one.
    ///
    /// One READ work request longer than a fraction of the window becomes several READ requests on the wire:
    /// nobody acknowledges READ responses, so asking for no more than the local receive buffer holds is the only
    /// way to keep them from overflowing it.
    ///
    /// Work requests that concern this side's memory alone are executed on the way, when their turn comes.
    pub fn poll_transmit<M: Memory + ?Sized>(&mut self, now: Instant, memory: &M) -> Option<Transmit<'_>> {
        while self.execute_local(memory) {}
        let end = self.next_end()?;
        let request = self.queue.get(self.cursor)?;
        let first_packet = self.next - request.first;
        let last_packet = end - request.first;
        let ends = end == request.end();
        let retransmission = self.next < self.sent;

        let mtu = self.attributes.path.mtu;
        let length = request.bytes_between(first_packet, last_packet, mtu);
        let (operation, extended) = headers(request, first_packet, length, mtu.bytes() as u64, ends)?;
        let is_answered = is_answered(request.operation);
        let payload = if has_payload(request.operation) { length } else { 0 };
        self.unrequested += payload;
        let ack_request = ends || is_answered || self.unrequested >= self.ack_interval.min(self.window.size() / 4);
        if ack_request {
            self.unrequested = 0;
        }

        let opcode = Opcode::new(self.attributes.path.service, operation)?;
        let xrceth = match request.target {
            Target::SharedReceiveQueue(number) => Some(XrcEth { srqn: XrcSrqn::new(number), reserved: 0 }),
            _ => None,
        };
        let mut bth = Bth::new(opcode, self.attributes.path.destination, self.psn(self.next));
        bth.pkey = self.attributes.path.pkey;
        bth.pad = (payload.wrapping_neg() & 3) as u8;
        bth.ack_request = ack_request;
        bth.solicited = ends && request.solicited && consumes_receive(request.operation);

        self.last_transmit = Some(LastTransmit {
            cursor: self.cursor,
            next: self.next,
            sent: self.sent,
            outstanding: self.outstanding.len(),
        });
        if is_answered && !retransmission {
            self.outstanding.push_back(Span { first: self.next, end });
        }
        if retransmission {
            self.counters.retransmitted_packets += 1;
        }
        let source_at = (self.cursor, first_packet * mtu.bytes() as u64);
        self.next = end;
        self.sent = self.sent.max(end);
        if ends {
            self.cursor += 1;
        }
        if self.ack_deadline.is_none() {
            self.ack_deadline = self.next_ack_deadline(now);
        }

        let source = match self.queue.get(source_at.0) {
            Some(request) if payload > 0 => request.source(source_at.1, payload as usize),
            _ => Source::Empty,
        };
        Some(Transmit { header: Repr { bth, xrceth, extended }, source, to: None, retransmission })
    }

    /// The payload of the packet that [`Self::poll_transmit`] returned last could not be read: its work request
    /// fails with `status` once all before it have completed, and the queue pair with it.
    pub fn transmit_failed(&mut self, status: WcStatus) {
        let Some(last) = self.last_transmit.take() else { return };
        let Some(request) = self.queue.get_mut(last.cursor) else { return };
        request.failed = Some(status);
        self.next = last.next;
        self.sent = last.sent;
        self.cursor = last.cursor;
        self.outstanding.truncate(last.outstanding);
        if self.unacknowledged == self.sent {
            self.ack_deadline = None;
        }
        self.fail_if_due();
    }

    /// How many packets a READ request on the wire asks for at most. Chunks lie on a fixed grid from the start of
    /// the work request, so that a request that is sent again from its middle stays within one original request:
    /// a responder may refuse what reaches beyond (rxe does).
    pub(super) fn read_chunk_packets(&self) -> u64 {
        let bytes = u64::from(self.attributes.window.maximum / 4).max(16 << 10);
        (bytes / self.attributes.path.mtu.bytes() as u64).max(1)
    }

    /// Passes the work request at the cursor if it concerns this side alone: executes it, if it has not been and
    /// may be. Returns whether the cursor has moved.
    fn execute_local<M: Memory + ?Sized>(&mut self, memory: &M) -> bool {
        if self.state != State::Connected {
            return false;
        }
        let Some(request) = self.queue.get(self.cursor).filter(|request| is_local(request.operation)) else {
            return false;
        };
        if !request.executed {
            if request.failed.is_some() || !self.may_start(request, true) {
                return false;
            }
            let result = match request.operation {
                // What was posted before may still need the key (IBTA 10.6.5.1: local invalidate fencing).
                SendOperation::LocalInvalidate(_) if self.cursor > 0 => return false,
                SendOperation::LocalInvalidate(rkey) => memory.invalidate_local(rkey),
                SendOperation::BindMemoryWindow(binding) => memory.bind_window(&binding),
                _ => return false,
            };
            let Some(request) = self.queue.get_mut(self.cursor) else { return false };
            if result.is_err() {
                request.failed = Some(WcStatus::MemoryWindowBind);
                self.fail_if_due();
                return false;
            }
            request.executed = true;
        }
        self.cursor += 1;
        self.complete_done();
        true
    }

    /// One past the last sequence number of the next packet, if one may leave now.
    fn next_end(&self) -> Option<u64> {
        if self.state != State::Connected || self.rnr_deadline.is_some() {
            return None;
        }
        let request = self.queue.get(self.cursor)?;
        if request.failed.is_some() {
            return None;
        }
        let is_new = self.next >= self.sent;
        if self.next == request.first && !self.may_start(request, is_new) {
            return None;
        }
        let is_answered = is_answered(request.operation);
        if is_answered && is_new && self.outstanding.len() >= usize::from(self.attributes.max_rd_atomic) {
            return None;
        }
        let end = if matches!(request.operation, SendOperation::Read { .. }) {
            let chunk = self.read_chunk_packets();
            let position = self.next - request.first;
            request.end().min(request.first + (position / chunk + 1) * chunk)
        } else {
            self.next + 1
        };
        self.fits_window(request, end).then_some(end)
    }

    fn may_start(&self, request: &WorkRequest, is_new: bool) -> bool {
        if request.fence && self.outstanding.front().is_some_and(|span| span.first < request.first) {
            return false;
        }
        !is_new || (!self.draining && self.has_credit(request))
    }

    /// Whether the peer has a receive for the request, as far as it has told, or whether one more message may
    /// find out. With nothing outstanding there is no ACK to wait for, so one message may always leave.
    fn has_credit(&self, request: &WorkRequest) -> bool {
        let CreditLimit::Limit(limit) = self.credit_limit else { return true };
        !consumes_receive(request.operation)
            || self.unacknowledged == self.sent
            || Msn::new(request.ssn as u32).distance_from(limit) <= 1
    }

    fn fits_window(&self, request: &WorkRequest, end: u64) -> bool {
        if self.next == self.unacknowledged {
            return true;
        }
        let mtu = self.attributes.path.mtu;
        let in_flight = request.cost_at(end, mtu) - self.queue.cost_at(0, self.unacknowledged, mtu);
        in_flight <= self.window.size() && end - self.unacknowledged <= MAX_UNACKNOWLEDGED
    }
}

/// Whether the packets of a request carry its local buffers.
const fn has_payload(operation: SendOperation) -> bool {
    !is_answered(operation) || matches!(operation, SendOperation::AtomicWrite { .. })
}

/// The operation and extended headers of the packet at position `packet` of its request; `length` is its payload,
/// or what a READ request asks for. `None` for what concerns this side alone.
pub(crate) fn headers(
    request: &WorkRequest,
    packet: u64,
    length: u64,
    mtu: u64,
    ends: bool,
) -> Option<(Operation, Extended)> {
    use Operation::{
        AtomicWrite, CompareSwap, FetchAdd, Flush, ReadRequest, SendFirst, SendLast, SendLastWithImmediate,
        SendLastWithInvalidate, SendMiddle, SendOnly, SendOnlyWithImmediate, SendOnlyWithInvalidate, WriteFirst,
        WriteLast, WriteLastWithImmediate, WriteMiddle, WriteOnly, WriteOnlyWithImmediate,
    };
    let starts = packet == 0;
    let reth = |address: u64, rkey, length: u64| Reth { address, rkey, length: length as u32 };
    Some(match request.operation {
        SendOperation::Send | SendOperation::SendWithImmediate(_) | SendOperation::SendWithInvalidate(_) if !ends => {
            (if starts { SendFirst } else { SendMiddle }, Extended::None)
        }
        SendOperation::Send => (if starts { SendOnly } else { SendLast }, Extended::None),
        SendOperation::SendWithImmediate(immediate) => {
            (if starts { SendOnlyWithImmediate } else { SendLastWithImmediate }, Extended::Immediate(immediate))
        }
        SendOperation::SendWithInvalidate(rkey) => {
            (if starts { SendOnlyWithInvalidate } else { SendLastWithInvalidate }, Extended::Invalidate(rkey))
        }
        SendOperation::Write { address, rkey } | SendOperation::WriteWithImmediate { address, rkey, .. } if !ends => {
            if starts {
                (WriteFirst, Extended::Reth(reth(address, rkey, request.length)))
            } else {
                (WriteMiddle, Extended::None)
            }
        }
        SendOperation::Write { address, rkey } => {
            if starts {
                (WriteOnly, Extended::Reth(reth(address, rkey, request.length)))
            } else {
                (WriteLast, Extended::None)
            }
        }
        SendOperation::WriteWithImmediate { address, rkey, immediate } => {
            if starts {
                (WriteOnlyWithImmediate, Extended::RethImmediate(reth(address, rkey, request.length), immediate))
            } else {
                (WriteLastWithImmediate, Extended::Immediate(immediate))
            }
        }
        SendOperation::Read { address, rkey } => {
            (ReadRequest, Extended::Reth(reth(address.wrapping_add(packet * mtu), rkey, length)))
        }
        SendOperation::CompareSwap { address, rkey, compare, swap } => {
            (CompareSwap, Extended::Atomic(AtomicEth { address, rkey, swap_or_add: swap, compare }))
        }
        SendOperation::FetchAdd { address, rkey, add } => {
            (FetchAdd, Extended::Atomic(AtomicEth { address, rkey, swap_or_add: add, compare: 0 }))
        }
        SendOperation::AtomicWrite { address, rkey } => {
            (AtomicWrite, Extended::Reth(reth(address, rkey, request.length)))
        }
        SendOperation::Flush { address, rkey, length, placement, whole_region } => {
            let feth = Feth {
                global_visibility: placement.contains(FlushPlacement::GLOBAL),
                persistence: placement.contains(FlushPlacement::PERSISTENT),
                selectivity: whole_region.into(),
                reserved: 0,
            };
            (Flush, Extended::Flush(feth, reth(address, rkey, length.into())))
        }
        SendOperation::LocalInvalidate(_) | SendOperation::BindMemoryWindow(_) => return None,
    })
}
