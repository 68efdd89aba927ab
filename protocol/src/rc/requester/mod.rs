//! The requester: the send queue and everything that leads from a work request to its completion.
//!
//! `transmit` decides what leaves and when: window, credits, fences, outstanding READs and atomics.
//! `response` turns acknowledgements, NAKs and READ responses into progress, retries and completions.
//!
//! Three positions, all of them sequence numbers (see `send_queue`), describe the connection:
//! `unacknowledged ≤ next ≤ sent`. Packets before `unacknowledged` are done with. `next` is what leaves next;
//! going back N is setting it to `unacknowledged`. `sent` is the high-water mark: what lies before it has been on
//! the wire at least once, so answers to it are believed even after going back.

mod response;
mod transmit;

pub(crate) use transmit::headers;

use super::{
    Buffers, Completion, Fatal, PostSendError, RequesterAttributes, SendOperation, SendRequest, Target, WcOpcode,
    WcStatus, window::Window,
};
use crate::{
    Instant, Psn,
    send_queue::{
        Finished, PostMark, SendQueue, completion_opcode, is_answered, is_local, message_length, returns_data,
    },
    time::{Duration, timeout_from_code},
    wire::Service,
};
use std::collections::VecDeque;

/// What the requester has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterCounters {
    /// Packets sent again.
    pub retransmitted_packets: u64,
    /// Sequence NAKs received (mlx5: packet_seq_err, rxe: rcvd_seq_err).
    pub sequence_naks: u64,
    /// Gaps that an acknowledgement or READ response revealed (mlx5: implied_nak_seq_err).
    pub implied_naks: u64,
    /// RNR NAKs received (rxe: rcvd_rnr_err).
    pub rnr_naks: u64,
    /// Local ACK timeouts (mlx5: local_ack_timeout_err).
    pub timeouts: u64,
    /// Work requests completed with success.
    pub messages: u64,
}

/// A READ chunk, or another operation that is answered, which has been requested and not fully answered.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u64,
    end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Never connected, or reset.
    Idle,
    Connected,
    /// A work request has failed; nothing moves until the flush.
    Failed,
    Flushed,
}

/// What the peer has said of its posted receives (IBTA 9.7.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CreditLimit {
    Unlimited,
    /// The limit sequence number: messages up to it, and one more as a probe, may be sent. 24 bits.
    Limit(crate::wire::Msn),
}

/// The requester half of a reliable connection.
#[derive(Debug)]
pub struct Requester {
    depth: usize,
    state: State,
    attributes: RequesterAttributes,
    ack_timeout: Option<Duration>,
    window: Window,
    queue: SendQueue,
    /// The oldest sequence number without an acknowledgement.
    unacknowledged: u64,
    /// The next sequence number to send.
    next: u64,
    /// One past the last sequence number ever sent.
    sent: u64,
    /// The position in the queue of the request that holds `next`.
    cursor: usize,
    /// What is on the wire and to be answered, oldest first.
    outstanding: VecDeque<Span>,
    credit_limit: CreditLimit,
    /// Payload since the last packet with AckReq.
    unrequested: u64,
    /// How much of it there may be.
    ack_interval: u64,
    draining: bool,
    ack_deadline: Option<Instant>,
    rnr_deadline: Option<Instant>,
    retries_left: u8,
    /// ACK timeouts since the last progress.
    silences: u32,
    rnr_retries_left: u8,
    /// The position of the last going back on a gap; a second report of the same gap is stale.
    recovering: Option<u64>,
    /// Where the last packet came from, in case its payload cannot be read.
    last_transmit: Option<LastTransmit>,
    completions: VecDeque<Completion>,
    fatal: Option<Fatal>,
    counters: RequesterCounters,
}

/// A packet with AckReq leaves at least this often within a message, in payload bytes. The window asks for it
/// earlier when it is small, and [`Requester::set_ack_interval`] when the rate is.
const ACK_INTERVAL: u64 = 64 << 10;

#[derive(Clone, Copy, Debug)]
struct LastTransmit {
    cursor: usize,
    next: u64,
    sent: u64,
    /// How many operations that are answered were on the wire.
    outstanding: usize,
}

impl Requester {
    /// A requester that is not connected yet and may hold `depth` work requests (`max_send_wr`). Its queues take
    /// no memory before they are used.
    pub fn new(depth: u32) -> Self {
        let attributes = RequesterAttributes::default();
        Self {
            depth: depth as usize,
            state: State::Idle,
            attributes,
            ack_timeout: None,
            window: Window::new(attributes.window, attributes.path.mtu.bytes()),
            queue: SendQueue::default(),
            unacknowledged: 0,
            next: 0,
            sent: 0,
            cursor: 0,
            outstanding: VecDeque::new(),
            credit_limit: CreditLimit::Unlimited,
            unrequested: 0,
            ack_interval: ACK_INTERVAL,
            draining: false,
            ack_deadline: None,
            rnr_deadline: None,
            retries_left: 0,
            silences: 0,
            rnr_retries_left: 0,
            recovering: None,
            last_transmit: None,
            completions: VecDeque::new(),
            fatal: None,
            counters: RequesterCounters::default(),
        }
    }

    /// Makes it ready to send (INIT/RTR → RTS).
    pub fn connect(&mut self, attributes: RequesterAttributes) {
        self.reset();
        self.state = State::Connected;
        self.window = Window::new(attributes.window, attributes.path.mtu.bytes());
        self.credit_limit = if attributes.path.quirks.end_to_end_credits {
            CreditLimit::Limit(crate::wire::Msn::new(0))
        } else {
            CreditLimit::Unlimited
        };
        self.set_retry(attributes.timeout, attributes.retry_cnt, attributes.rnr_retry);
        self.attributes = RequesterAttributes {
            timeout: self.attributes.timeout,
            retry_cnt: self.attributes.retry_cnt,
            rnr_retry: self.attributes.rnr_retry,
            ..attributes
        };
    }

    /// Changes the timeout code and retry counts of a connection (SQD → SQD or RTS).
    pub fn set_retry(&mut self, timeout: u8, retry_cnt: u8, rnr_retry: u8) {
        self.attributes.timeout = timeout & 0x1f;
        self.attributes.retry_cnt = retry_cnt & 7;
        self.attributes.rnr_retry = rnr_retry & 7;
        self.ack_timeout = timeout_from_code(timeout);
        self.reload_retries();
    }

    /// Changes how many READs and atomics may be outstanding (SQD → SQD).
    pub fn set_max_rd_atomic(&mut self, max_rd_atomic: u8) {
        self.attributes.max_rd_atomic = max_rd_atomic;
    }

    /// Has packets ask for an ACK at least every `bytes` of payload (64 KiB before this is called, and at most): a sender
    /// that is slowed down would otherwise hear of nothing for longer than its timeout.
    pub fn set_ack_interval(&mut self, bytes: u64) {
        self.ack_interval = bytes.clamp(1, ACK_INTERVAL);
    }

    /// Queues a work request. Nothing is sent before [`Self::poll_transmit`].
    ///
    /// After [`Self::flush`] the request completes as flushed at once.
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostSendError> {
        let length = message_length(request)?;
        match self.state {
            State::Idle => return Err(PostSendError::NotAllowed),
            State::Connected | State::Failed => {}
            State::Flushed => {
                self.complete_flushed(request.wr_id, completion_opcode(request.operation));
                return Ok(());
            }
        }
        if !self.is_allowed(request) {
            return Err(PostSendError::NotAllowed);
        }
        let is_inline = matches!(request.buffers, Buffers::Inline(_));
        if (is_answered(request.operation) && self.attributes.max_rd_atomic == 0)
            || (returns_data(request.operation) && is_inline)
        {
            return Err(PostSendError::NotAllowed);
        }
        if self.queue.len() >= self.depth {
            return Err(PostSendError::QueueFull);
        }
        let mtu = self.attributes.path.mtu;
        let messages = match request.operation {
            SendOperation::Read { .. } => u64::from(mtu.packets(length)).div_ceil(self.read_chunk_packets()),
            operation => u64::from(!is_local(operation)),
        };
        self.queue.push(request, length, mtu, messages);
        Ok(())
    }

    /// How far it has been given work.
    pub fn mark(&self) -> PostMark {
        PostMark { queue: self.queue.mark(), completions: self.completions.len() }
    }

    /// Takes back what was posted since the mark was made, after which nothing but posting may have been done.
    pub fn rewind(&mut self, mark: PostMark) {
        self.queue.rewind(mark.queue);
        self.completions.truncate(mark.completions);
    }

    /// When [`Self::handle_timeout`] wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.ack_deadline, self.rnr_deadline].into_iter().flatten().min()
    }

    /// Acts on every deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.rnr_deadline.is_some_and(|deadline| deadline <= now) {
            self.rnr_deadline = None;
        }
        if self.ack_deadline.is_some_and(|deadline| deadline <= now) {
            self.ack_deadline = None;
            self.counters.timeouts += 1;
            self.silences = self.silences.saturating_add(1);
            self.window.on_timeout();
            self.recovering = None;
            self.retry();
        }
    }

    /// The next completion.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Set once when a work request has failed: the queue pair must go to the error state and [`Self::flush`] be
    /// called. The failed request's completion is already queued.
    pub fn poll_fatal(&mut self) -> Option<Fatal> {
        self.fatal.take()
    }

    /// Ends every queued work request with "flushed", in order, and disconnects (→ ERR). Later posts are flushed
    /// at once.
    pub fn flush(&mut self) {
        while let Some(request) = self.queue.pop() {
            self.complete_flushed(request.wr_id, completion_opcode(request.operation));
        }
        self.disconnect(State::Flushed);
    }

    /// Forgets everything but its counters, without completions (→ RESET).
    pub fn reset(&mut self) {
        self.queue = SendQueue::default();
        self.completions.clear();
        self.fatal = None;
        self.unacknowledged = 0;
        self.next = 0;
        self.sent = 0;
        self.ack_interval = ACK_INTERVAL;
        self.draining = false;
        self.disconnect(State::Idle);
    }

    /// Stops (or resumes) starting new work requests (SQD); what has been started is finished.
    pub fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Whether nothing that was started is unfinished (SQD: drained).
    pub fn is_idle(&self) -> bool {
        self.queue.front().is_none_or(|request| request.first >= self.sent)
    }

    /// How many work requests are queued.
    pub fn queued(&self) -> u32 {
        self.queue.len() as u32
    }

    /// The attributes of the connection.
    pub fn attributes(&self) -> &RequesterAttributes {
        &self.attributes
    }

    /// The PSN of the next new packet (`sq_psn` of a query).
    pub fn next_psn(&self) -> Psn {
        self.psn(self.sent)
    }

    /// What it has counted.
    pub fn counters(&self) -> &RequesterCounters {
        &self.counters
    }

    /// Whether the service has the operation, and the request names a target of the service's.
    fn is_allowed(&self, request: &SendRequest<'_>) -> bool {
        match (self.attributes.path.service, request.target) {
            _ if is_local(request.operation) => true,
            (Service::Xrc, Target::SharedReceiveQueue(_)) => {
                !matches!(request.operation, SendOperation::AtomicWrite { .. } | SendOperation::Flush { .. })
            }
            (Service::Rc, Target::Peer) => true,
            _ => false,
        }
    }

    fn disconnect(&mut self, state: State) {
        self.state = state;
        self.cursor = 0;
        self.outstanding.clear();
        self.unrequested = 0;
        self.ack_deadline = None;
        self.rnr_deadline = None;
        self.recovering = None;
        self.last_transmit = None;
    }

    fn psn(&self, sequence: u64) -> Psn {
        self.attributes.first_psn + (sequence % u64::from(Psn::SPACE)) as u32
    }

    /// The sequence number that `psn` stands for, taken as near to the unacknowledged end as it can be; `None`
    /// before the connection's first packet.
    fn sequence(&self, psn: Psn) -> Option<u64> {
        let distance = psn.distance_from(self.psn(self.unacknowledged));
        self.unacknowledged.checked_add_signed(i64::from(distance))
    }

    fn reload_retries(&mut self) {
        self.retries_left = self.attributes.retry_cnt;
        self.rnr_retries_left = self.attributes.rnr_retry;
        self.silences = 0;
    }

    /// When whoever waits for an answer from now on gives up.
    fn next_ack_deadline(&self, now: Instant) -> Option<Instant> {
        let doublings = if self.attributes.path.quirks.steady_ack_timeout { 0 } else { self.silences.min(2) };
        self.ack_timeout.map(|timeout| now + timeout * (1 << doublings))
    }

    /// Spends a retry and goes back, or fails the oldest request.
    fn retry(&mut self) {
        let infinite = self.attributes.path.quirks.infinite_retry_7 && self.attributes.retry_cnt == 7;
        if self.retries_left == 0 && !infinite {
            self.fail_oldest(WcStatus::RetryExceeded);
            return;
        }
        self.retries_left = self.retries_left.saturating_sub(1);
        self.go_back();
    }

    /// Everything from the oldest unacknowledged packet is to be sent again.
    fn go_back(&mut self) {
        self.next = self.unacknowledged;
        self.cursor = 0;
        self.unrequested = 0;
        self.ack_deadline = None;
    }

    fn complete_flushed(&mut self, wr_id: u64, opcode: WcOpcode) {
        self.push_completion(wr_id, WcStatus::WorkRequestFlushed, opcode, 0);
    }

    fn complete(&mut self, request: Finished) {
        self.counters.messages += 1;
        if request.signaled {
            let opcode = completion_opcode(request.operation);
            let length = if returns_data(request.operation) { request.length as u32 } else { 0 };
            self.push_completion(request.wr_id, WcStatus::Success, opcode, length);
        }
    }

    /// Completes the oldest request in error and stops.
    fn fail_oldest(&mut self, status: WcStatus) {
        if let Some(request) = self.queue.pop() {
            self.push_completion(request.wr_id, status, completion_opcode(request.operation), 0);
        }
        self.fatal = Some(Fatal::Requester);
        self.disconnect(State::Failed);
    }

    fn push_completion(&mut self, wr_id: u64, status: WcStatus, opcode: WcOpcode, byte_length: u32) {
        self.completions.push_back(Completion {
            wr_id,
            status,
            opcode,
            byte_length,
            immediate: None,
            invalidated: None,
            source: None,
            has_grh: false,
            srq: None,
            solicited: status != WcStatus::Success,
        });
    }
}
