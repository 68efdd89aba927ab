//! The send queue: work requests with the span of packet sequence numbers each of them takes.
//!
//! Inside the requester packets are numbered by 64-bit *sequence numbers* that never wrap, from 0 at connection;
//! a PSN is one of them modulo 2²⁴ past the first PSN. Two gigabytes at the smallest MTU take half the PSN space,
//! so two queued messages could not be told apart by PSN alone.

use crate::{
    Sge,
    rc::{Buffers, SendOperation, SendRequest, Source, WcOpcode, WcStatus, window::PACKET_OVERHEAD},
    wire::Mtu,
};
use std::collections::VecDeque;

/// A queued work request.
#[derive(Debug)]
pub(super) struct WorkRequest {
    pub(super) wr_id: u64,
    pub(super) operation: SendOperation,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) fence: bool,
    /// Set when its payload could not be read: it fails as soon as it is the oldest.
    pub(super) failed: Option<WcStatus>,
    /// Bytes it moves.
    pub(super) length: u64,
    /// The sequence number of its first packet.
    pub(super) first: u64,
    /// How many sequence numbers it takes.
    pub(super) packets: u32,
    /// The send sequence number (IBTA 9.7.7.2) of its last request message; the connection's first message is 1.
    pub(super) ssn: u64,
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
    pub(super) const fn end(&self) -> u64 {
        self.first + self.packets as u64
    }

    /// Its local buffers, empty when it is inline.
    pub(super) fn list(&self) -> &[Sge] {
        &self.storage.list
    }

    /// The bytes of its packets `from..to` (counted within the message).
    pub(super) fn bytes_between(&self, from: u64, to: u64, mtu: Mtu) -> u64 {
        let mtu = mtu.bytes() as u64;
        (to * mtu).min(self.length) - (from * mtu).min(self.length)
    }

    /// The payload of `length` bytes at `offset` of the message.
    pub(super) fn source(&self, offset: u64, length: usize) -> Source<'_> {
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
    pub(super) fn cost_at(&self, sequence: u64, mtu: Mtu) -> u64 {
        let packets = sequence - self.first;
        self.cost_before + self.bytes_between(0, packets, mtu) + packets * PACKET_OVERHEAD
    }
}

/// What the completion of `operation` is called.
pub(super) const fn completion_opcode(operation: SendOperation) -> WcOpcode {
    match operation {
        SendOperation::Send | SendOperation::SendWithImmediate(_) | SendOperation::SendWithInvalidate(_) => {
            WcOpcode::Send
        }
        SendOperation::Write { .. } | SendOperation::WriteWithImmediate { .. } => WcOpcode::Write,
        SendOperation::Read { .. } => WcOpcode::Read,
        SendOperation::CompareSwap { .. } => WcOpcode::CompareSwap,
        SendOperation::FetchAdd { .. } => WcOpcode::FetchAdd,
    }
}

/// Whether `operation` consumes a receive of the peer, and so a credit.
pub(super) const fn consumes_receive(operation: SendOperation) -> bool {
    matches!(
        operation,
        SendOperation::Send
            | SendOperation::SendWithImmediate(_)
            | SendOperation::SendWithInvalidate(_)
            | SendOperation::WriteWithImmediate { .. }
    )
}

/// The work requests that are not complete, oldest first.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    entries: VecDeque<WorkRequest>,
    spare: Vec<Storage>,
    /// One past the last sequence number given out.
    end: u64,
    /// The last send sequence number given out.
    ssn: u64,
    /// The cost of everything ever queued.
    cost: u64,
}

impl SendQueue {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&WorkRequest> {
        self.entries.get(index)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut WorkRequest> {
        self.entries.get_mut(index)
    }

    pub(super) fn front(&self) -> Option<&WorkRequest> {
        self.entries.front()
    }

    /// Queues a request of `length` bytes in `packets` packets and `messages` request messages.
    pub(super) fn push(&mut self, request: &SendRequest<'_>, length: u64, mtu: Mtu, messages: u64) {
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
        let packets = mtu.packets(length);
        self.ssn += messages;
        let entry = WorkRequest {
            wr_id: request.wr_id,
            operation: request.operation,
            signaled: request.signaled,
            solicited: request.solicited,
            fence: request.fence,
            failed: None,
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
    pub(super) fn pop(&mut self) -> Option<Finished> {
        let mut entry = self.entries.pop_front()?;
        entry.storage.list.clear();
        entry.storage.bytes.clear();
        self.spare.push(entry.storage);
        Some(Finished {
            wr_id: entry.wr_id,
            operation: entry.operation,
            signaled: entry.signaled,
            length: entry.length,
        })
    }

    /// The cost of everything before `sequence`, which lies in the request at `index` or at the end of the queue.
    pub(super) fn cost_at(&self, index: usize, sequence: u64, mtu: Mtu) -> u64 {
        self.entries.get(index).map_or(self.cost, |entry| entry.cost_at(sequence, mtu))
    }
}

/// What remains of a request that has left the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    pub(super) wr_id: u64,
    pub(super) operation: SendOperation,
    pub(super) signaled: bool,
    pub(super) length: u64,
}
