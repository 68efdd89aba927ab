//! What the unreliable services share. Nobody answers: a send is done when its packets have left, and a receive is
//! either filled or stays posted.

use crate::{
    Psn, Sge,
    receive_queue::{Receive, ReceiveQueue, Receives, failed},
    send_queue::{PostMark, SendQueue, WorkRequest, completion_opcode},
    wire::{Mtu, Packet, Qpn},
    work::{Completion, Fatal, PostReceiveError, PostSendError, SendRequest, WcOpcode, WcStatus},
};
use std::collections::VecDeque;

/// What a requester has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterCounters {
    /// Work requests completed with success.
    pub messages: u64,
}

/// What a responder has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponderCounters {
    /// Packets before the expected PSN: duplicates, and what was overtaken (not of datagrams).
    pub duplicates: u64,
    /// Packets after the expected PSN: others were lost before them (not of datagrams).
    pub out_of_sequence: u64,
    /// SENDs received whole.
    pub sends: u64,
    /// WRITEs received whole.
    pub writes: u64,
    /// Messages dropped because they asked for access that they do not have.
    pub access_errors: u64,
    /// Messages dropped because there was no receive for them.
    pub no_receive: u64,
    /// Datagrams dropped for their Q_Key.
    pub qkey_violations: u64,
    /// Messages dropped for whatever reason, the above included.
    pub dropped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    /// Never connected, or reset.
    Idle,
    Connected,
    /// A work request has failed; nothing moves until the flush.
    Failed,
    Flushed,
}

/// A send queue whose work requests are done when their packets have left.
#[derive(Debug)]
pub(crate) struct SendSide {
    depth: usize,
    state: SendState,
    queue: SendQueue,
    /// How many work requests have been cut into packets and wait for these to leave.
    leaving: usize,
    /// The next packet of the work request after those.
    packet: u32,
    psn: Psn,
    draining: bool,
    /// `leaving` and `packet` before the last packet, in case its payload cannot be read.
    last: Option<(usize, u32)>,
    /// How the work request ends that is being cut, once what comes before it has left.
    failed: Option<WcStatus>,
    completions: VecDeque<Completion>,
    fatal: Option<Fatal>,
    counters: RequesterCounters,
}

/// Which packet of its work request comes next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) psn: Psn,
    /// Its position in the message.
    pub(crate) packet: u64,
    /// Whether it is the last.
    pub(crate) ends: bool,
}

impl SendSide {
    /// A send side that is not connected yet and holds `depth` work requests (`max_send_wr`).
    pub(crate) fn new(depth: u32) -> Self {
        Self {
            depth: depth as usize,
            state: SendState::Idle,
            queue: SendQueue::default(),
            leaving: 0,
            packet: 0,
            psn: Psn::new(0),
            draining: false,
            last: None,
            failed: None,
            completions: VecDeque::new(),
            fatal: None,
            counters: RequesterCounters::default(),
        }
    }

    /// Makes it ready to send.
    pub(crate) fn connect(&mut self, first_psn: Psn) {
        self.reset();
        self.state = SendState::Connected;
        self.psn = first_psn;
    }

    /// Queues a work request of `length` bytes, which the service has found to be one of its own.
    pub(crate) fn post(&mut self, request: &SendRequest<'_>, length: u64, mtu: Mtu) -> Result<(), PostSendError> {
        match self.state {
            SendState::Idle => return Err(PostSendError::NotAllowed),
            SendState::Connected | SendState::Failed => {}
            SendState::Flushed => {
                self.complete(request.wr_id, WcStatus::WorkRequestFlushed, completion_opcode(request.operation));
                return Ok(());
            }
        }
        if self.queue.len() >= self.depth {
            return Err(PostSendError::QueueFull);
        }
        self.queue.push(request, length, mtu, 1);
        Ok(())
    }

    /// How far it has been given work.
    pub(crate) fn mark(&self) -> PostMark {
        PostMark { queue: self.queue.mark(), completions: self.completions.len() }
    }

    /// Takes back what was posted since the mark was made, after which nothing but posting may have been done.
    pub(crate) fn rewind(&mut self, mark: PostMark) {
        self.queue.rewind(mark.queue);
        self.completions.truncate(mark.completions);
    }

    /// The next packet and its work request, if there is one.
    pub(crate) fn next(&mut self) -> Option<(Piece, &WorkRequest)> {
        if self.state != SendState::Connected || self.failed.is_some() || (self.draining && self.packet == 0) {
            return None;
        }
        let index = self.leaving;
        let request = self.queue.get(index)?;
        let piece = Piece { psn: self.psn, packet: self.packet.into(), ends: self.packet + 1 == request.packets };
        self.last = Some((self.leaving, self.packet));
        self.psn = self.psn.next();
        if piece.ends {
            self.leaving += 1;
            self.packet = 0;
        } else {
            self.packet += 1;
        }
        Some((piece, request))
    }

    /// The payload of the last packet could not be read: it does not leave, and its work request fails with
    /// `status` once all before it have left.
    pub(crate) fn transmit_failed(&mut self, status: WcStatus) {
        let Some((leaving, packet)) = self.last.take() else { return };
        self.leaving = leaving;
        self.packet = packet;
        self.psn = self.psn.previous();
        self.failed = Some(status);
    }

    /// Every packet that was taken has left.
    pub(crate) fn transmitted(&mut self) {
        self.last = None;
        for _ in 0..std::mem::take(&mut self.leaving) {
            let Some(request) = self.queue.pop() else { break };
            self.counters.messages += 1;
            if request.signaled {
                self.complete(request.wr_id, WcStatus::Success, completion_opcode(request.operation));
            }
        }
        if let Some(status) = self.failed.take()
            && let Some(request) = self.queue.pop()
        {
            self.complete(request.wr_id, status, completion_opcode(request.operation));
            self.packet = 0;
            self.state = SendState::Failed;
            self.fatal = Some(Fatal::Requester);
        }
    }

    /// Ends every queued work request with "flushed", in order, and every later one at once.
    pub(crate) fn flush(&mut self) {
        while let Some(request) = self.queue.pop() {
            self.complete(request.wr_id, WcStatus::WorkRequestFlushed, completion_opcode(request.operation));
        }
        self.forget(SendState::Flushed);
    }

    /// Takes work requests again after a flush; PSNs go on where they stopped (SQE → RTS).
    pub(crate) fn recover(&mut self) {
        if self.state == SendState::Flushed {
            self.state = SendState::Connected;
        }
    }

    /// Forgets everything but its counters, without completions (→ RESET).
    pub(crate) fn reset(&mut self) {
        self.queue = SendQueue::default();
        self.completions.clear();
        self.fatal = None;
        self.draining = false;
        self.forget(SendState::Idle);
    }

    fn forget(&mut self, state: SendState) {
        self.state = state;
        self.leaving = 0;
        self.packet = 0;
        self.last = None;
        self.failed = None;
    }

    /// Stops (or resumes) beginning new work requests (SQD).
    pub(crate) fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Whether nothing that was begun is unfinished (SQD: drained).
    pub(crate) const fn is_idle(&self) -> bool {
        self.leaving == 0 && self.packet == 0 && self.failed.is_none()
    }

    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    pub(crate) fn poll_fatal(&mut self) -> Option<Fatal> {
        self.fatal.take()
    }

    pub(crate) const fn counters(&self) -> &RequesterCounters {
        &self.counters
    }

    fn complete(&mut self, wr_id: u64, status: WcStatus, opcode: WcOpcode) {
        self.completions.push_back(Completion {
            wr_id,
            status,
            opcode,
            byte_length: 0,
            immediate: None,
            invalidated: None,
            source: None,
            has_grh: false,
            srq: None,
            solicited: status != WcStatus::Success,
        });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveState {
    /// Not connected yet: nothing is taken.
    Idle,
    Connected,
    /// A receive has failed: nothing is taken any more.
    Failed,
    /// Receives are flushed.
    Flushed,
}

/// A receive queue without anybody to answer to.
#[derive(Debug)]
pub(crate) struct ReceiveSide {
    state: ReceiveState,
    receives: Receives,
    completions: VecDeque<Completion>,
    fatal: Option<Fatal>,
}

impl ReceiveSide {
    /// A receive side that is not connected yet and gets its receives from there.
    pub(crate) fn new(receives: Receives) -> Self {
        Self { state: ReceiveState::Idle, receives, completions: VecDeque::new(), fatal: None }
    }

    /// Makes it ready to receive. Receives posted before are kept.
    pub(crate) fn connect(&mut self) {
        self.state = ReceiveState::Connected;
        self.fatal = None;
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state == ReceiveState::Connected
    }

    /// Queues a receive. After a flush it is flushed at once.
    pub(crate) fn post(&mut self, wr_id: u64, list: &[Sge]) -> Result<(), PostReceiveError> {
        if self.state == ReceiveState::Flushed {
            self.completions.push_back(failed(wr_id, WcStatus::WorkRequestFlushed));
            return Ok(());
        }
        self.receives.post(wr_id, list)
    }

    /// The receive that the current or next message fills.
    pub(crate) fn peek<'a>(&'a self, shared: &'a Option<&mut ReceiveQueue>) -> Option<&'a Receive> {
        self.receives.peek(shared)
    }

    /// The receive that the current message fills; from now on it is this side's, message or not.
    pub(crate) fn take(&mut self, shared: Option<&mut ReceiveQueue>) -> Option<&Receive> {
        self.receives.take(shared)
    }

    /// The receive is filled by the message that `packet` ends.
    pub(crate) fn complete(
        &mut self,
        packet: &Packet<'_>,
        opcode: WcOpcode,
        byte_length: u32,
        source: Option<Qpn>,
        shared: Option<&mut ReceiveQueue>,
    ) {
        let Some(wr_id) = self.receives.finish(shared) else { return };
        self.completions.push_back(Completion {
            wr_id,
            status: WcStatus::Success,
            opcode,
            byte_length,
            immediate: packet.immediate(),
            invalidated: None,
            source,
            has_grh: source.is_some(),
            srq: None,
            solicited: packet.bth().solicited,
        });
    }

    /// The memory of the receive is not what it must be: it fails, and the queue pair with it.
    pub(crate) fn fail(&mut self) {
        self.completions.extend(self.receives.fail(WcStatus::LocalProtection));
        self.state = ReceiveState::Failed;
        self.fatal = Some(Fatal::Local);
    }

    /// Ends every posted receive with "flushed", in order, and every later one at once.
    pub(crate) fn flush(&mut self) {
        self.state = ReceiveState::Flushed;
        while let Some(completion) = self.receives.flush() {
            self.completions.push_back(completion);
        }
    }

    /// Forgets everything, without completions (→ RESET).
    pub(crate) fn reset(&mut self) {
        self.state = ReceiveState::Idle;
        self.receives.clear();
        self.completions.clear();
        self.fatal = None;
    }

    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    pub(crate) fn poll_fatal(&mut self) -> Option<Fatal> {
        self.fatal.take()
    }
}
