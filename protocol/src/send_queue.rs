//! The send queue: work requests with the span of packet sequence numbers each of them takes.
//!
//! Inside the requester packets are numbered by 64-bit *sequence numbers* that never wrap, from 0 at connection;
//! a PSN is one of them modulo 2²⁴ past the first PSN. Two gigabytes at the smallest MTU take half the PSN space,
//! so two queued messages could not be told apart by PSN alone.

use crate::{
    Sge,
    rc::PACKET_OVERHEAD,
    wire::Mtu,
    work::{
        Buffers, MAX_MESSAGE_LENGTH, PostSendError, SendOperation, SendRequest, Source, Target, WcOpcode, WcStatus,
    },
};
use std::collections::VecDeque;

/// A queued work request.
#[derive(Debug)]
pub(crate) struct WorkRequest {
    pub(crate) wr_id: u64,
    pub(crate) operation: SendOperation,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) target: Target,
    /// Set when its payload could not be read, or it could not be executed: it fails as soon as it is the oldest.
    pub(crate) failed: Option<WcStatus>,
    /// Set when it is done without the peer ([`is_local`]). It completes when everything before it has.
    pub(crate) executed: bool,
    /// Bytes it moves.
    pub(crate) length: u64,
    /// The sequence number of its first packet.
    pub(crate) first: u64,
    /// How many sequence numbers it takes; none when it [`is_local`].
    pub(crate) packets: u32,
    /// The send sequence number (IBTA 9.7.7.2) of its last request message; the connection's first message is 1.
    pub(crate) ssn: u64,
    /// What everything queued before it costs, for the window.
    cost_before: u64,
    storage: Storage,
    inline: bool,
}

/// The vectors of a work request, kept for the next one so that posting does not allocate.
#[derive(Debug, Default)]
struct Storage {
    list: Vec<Sge>,
    bytes: Vec<u8>,
}

impl WorkRequest {
    /// One past its last sequence number.
    pub(crate) const fn end(&self) -> u64 {
        self.first + self.packets as u64
    }

    /// Whether nothing more is to come of it once everything before `sequence` is acknowledged.
    pub(crate) const fn is_done(&self, sequence: u64) -> bool {
        self.end() <= sequence && (self.packets > 0 || self.executed)
    }

    /// Its local buffers, empty when it is inline.
    pub(crate) fn list(&self) -> &[Sge] {
        &self.storage.list
    }

    /// The bytes of its packets `from..to` (counted within the message).
    pub(crate) fn bytes_between(&self, from: u64, to: u64, mtu: Mtu) -> u64 {
        let mtu = mtu.bytes() as u64;
        (to * mtu).min(self.length) - (from * mtu).min(self.length)
    }

    /// The payload of `length` bytes at `offset` of the message.
    pub(crate) fn source(&self, offset: u64, length: usize) -> Source<'_> {
        if length == 0 {
            Source::Empty
        } else if self.inline {
            Source::Inline(&self.storage.bytes[offset as usize..offset as usize + length])
        } else {
            Source::Local { list: &self.storage.list, offset, length }
        }
    }

    /// What the connection has been charged for all that comes before sequence number `sequence`, which lies in
    /// this request or at its end.
    pub(crate) fn cost_at(&self, sequence: u64, mtu: Mtu) -> u64 {
        let packets = sequence - self.first;
        self.cost_before + self.bytes_between(0, packets, mtu) + packets * PACKET_OVERHEAD
    }
}

/// What the completion of `operation` is called.
pub(crate) const fn completion_opcode(operation: SendOperation) -> WcOpcode {
    match operation {
        SendOperation::Send | SendOperation::SendWithImmediate(_) | SendOperation::SendWithInvalidate(_) => {
            WcOpcode::Send
        }
        SendOperation::Write { .. } | SendOperation::WriteWithImmediate { .. } => WcOpcode::Write,
        SendOperation::Read { .. } => WcOpcode::Read,
        SendOperation::CompareSwap { .. } => WcOpcode::CompareSwap,
        SendOperation::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOperation::AtomicWrite { .. } => WcOpcode::AtomicWrite,
        SendOperation::Flush { .. } => WcOpcode::Flush,
        SendOperation::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
        SendOperation::BindMemoryWindow(_) => WcOpcode::BindMemoryWindow,
    }
}

/// Whether `operation` concerns this side alone: nothing is sent.
pub(crate) const fn is_local(operation: SendOperation) -> bool {
    matches!(operation, SendOperation::LocalInvalidate(_) | SendOperation::BindMemoryWindow(_))
}

/// Whether `operation` is answered, not merely acknowledged, and takes one of the responder's resources for that.
pub(crate) const fn is_answered(operation: SendOperation) -> bool {
    matches!(
        operation,
        SendOperation::Read { .. }
            | SendOperation::CompareSwap { .. }
            | SendOperation::FetchAdd { .. }
            | SendOperation::AtomicWrite { .. }
            | SendOperation::Flush { .. }
    )
}

/// Whether `operation` puts what comes back into its local buffers.
pub(crate) const fn returns_data(operation: SendOperation) -> bool {
    matches!(operation, SendOperation::Read { .. } | SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. })
}

/// Whether `operation` consumes a receive of the peer, and so a credit.
pub(crate) const fn consumes_receive(operation: SendOperation) -> bool {
    matches!(
        operation,
        SendOperation::Send
            | SendOperation::SendWithImmediate(_)
            | SendOperation::SendWithInvalidate(_)
            | SendOperation::WriteWithImmediate { .. }
    )
}

/// How many bytes a work request moves, if its buffers suit its operation.
pub(crate) fn message_length(request: &SendRequest<'_>) -> Result<u64, PostSendError> {
    let length = match request.buffers {
        Buffers::List(list) => Sge::total_length(list),
        Buffers::Inline(parts) => parts.iter().map(|part| part.len() as u64).sum(),
    };
    let (fits, length) = match request.operation {
        SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. } => (length >= 8, 8),
        SendOperation::AtomicWrite { .. } => (length == 8, 8),
        SendOperation::Flush { length: flushed, .. } => (length == 0 && u64::from(flushed) <= MAX_MESSAGE_LENGTH, 0),
        SendOperation::LocalInvalidate(_) | SendOperation::BindMemoryWindow(_) => (length == 0, 0),
        _ => (length <= MAX_MESSAGE_LENGTH, length),
    };
    match request.operation {
        _ if !fits => Err(PostSendError::BadLength),
        SendOperation::CompareSwap { address, .. }
        | SendOperation::FetchAdd { address, .. }
        | SendOperation::AtomicWrite { address, .. }
            if !address.is_multiple_of(8) =>
        {
            Err(PostSendError::Misaligned)
        }
        SendOperation::Flush { placement, .. } if placement.is_empty() => Err(PostSendError::NotAllowed),
        _ => Ok(length),
    }
}

/// The work requests that are not complete, oldest first.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    entries: VecDeque<WorkRequest>,
    spare: Vec<Storage>,
    /// One past the last sequence number given out.
    end: u64,
    /// The last send sequence number given out.
    ssn: u64,
    /// The cost of everything ever queued.
    cost: u64,
}

/// How far a send queue had been filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    entries: usize,
    end: u64,
    ssn: u64,
    cost: u64,
}

/// How far a requester had been given work, so that what came later can be taken back.
#[derive(Clone, Copy, Debug)]
pub struct PostMark {
    pub(crate) queue: Mark,
    /// How many completions waited: after a flush every post makes one.
    pub(crate) completions: usize,
}

impl SendQueue {
    /// How far it is filled.
    pub(crate) fn mark(&self) -> Mark {
        Mark { entries: self.entries.len(), end: self.end, ssn: self.ssn, cost: self.cost }
    }

    /// Takes out what was queued since the mark was made. Nothing may have left the queue in between.
    pub(crate) fn rewind(&mut self, mark: Mark) {
        while self.entries.len() > mark.entries
            && let Some(entry) = self.entries.pop_back()
        {
            self.recycle(entry.storage);
        }
        (self.end, self.ssn, self.cost) = (mark.end, mark.ssn, mark.cost);
    }

    /// Keeps a request's storage for another.
    fn recycle(&mut self, mut storage: Storage) {
        storage.list.clear();
        storage.bytes.clear();
        self.spare.push(storage);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&WorkRequest> {
        self.entries.get(index)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut WorkRequest> {
        self.entries.get_mut(index)
    }

    pub(crate) fn front(&self) -> Option<&WorkRequest> {
        self.entries.front()
    }

    /// Queues a request of `length` bytes in `packets` packets and `messages` request messages.
    pub(crate) fn push(&mut self, request: &SendRequest<'_>, length: u64, mtu: Mtu, messages: u64) {
        let mut storage = self.spare.pop().unwrap_or_default();
        let inline = match request.buffers {
            Buffers::List(list) => {
                storage.list.extend_from_slice(list);
                false
            }
            Buffers::Inline(parts) => {
                for part in parts {
                    storage.bytes.extend_from_slice(part);
                }
                true
            }
        };
        let packets = if is_local(request.operation) { 0 } else { mtu.packets(length) };
        self.ssn += messages;
        let entry = WorkRequest {
            wr_id: request.wr_id,
            operation: request.operation,
            signaled: request.signaled,
            solicited: request.solicited,
            fence: request.fence,
            target: request.target,
            failed: None,
            executed: false,
            length,
            first: self.end,
            packets,
            ssn: self.ssn,
            cost_before: self.cost,
            storage,
            inline,
        };
        self.end = entry.end();
        self.cost = entry.cost_at(entry.end(), mtu);
        self.entries.push_back(entry);
    }

    /// Takes the oldest request off and keeps its storage for another.
    pub(crate) fn pop(&mut self) -> Option<Finished> {
        let entry = self.entries.pop_front()?;
        let WorkRequest { wr_id, operation, signaled, length, storage, .. } = entry;
        self.recycle(storage);
        Some(Finished { wr_id, operation, signaled, length })
    }

    /// The cost of everything before `sequence`, which lies in the request at `index` or at the end of the queue.
    pub(crate) fn cost_at(&self, index: usize, sequence: u64, mtu: Mtu) -> u64 {
        self.entries.get(index).map_or(self.cost, |entry| entry.cost_at(sequence, mtu))
    }
}

/// What remains of a request that has left the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) wr_id: u64,
    pub(crate) operation: SendOperation,
    pub(crate) signaled: bool,
    pub(crate) length: u64,
}
