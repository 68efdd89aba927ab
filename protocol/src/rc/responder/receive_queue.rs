//! The receives that wait for messages.

use crate::Sge;
use std::collections::VecDeque;

/// A posted receive.
#[derive(Debug)]
pub(super) struct Receive {
    /// Returned with the completion.
    pub(super) wr_id: u64,
    /// Where a SEND's payload goes.
    pub(super) list: Vec<Sge>,
    /// How many bytes fit.
    pub(super) length: u64,
}

/// Posted receives, first in first out. A receive stays at the front while a message fills it.
#[derive(Debug, Default)]
pub(super) struct ReceiveQueue {
    queue: VecDeque<Receive>,
    /// Lists of receives that are done, to be filled again: posting allocates only until the queue has been full
    /// once.
    spare: Vec<Vec<Sge>>,
}

impl ReceiveQueue {
    /// How many are posted, the one that is being filled included.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Appends a receive.
    pub(super) fn push(&mut self, wr_id: u64, list: &[Sge]) {
        let mut owned = self.spare.pop().unwrap_or_default();
        owned.clear();
        owned.extend_from_slice(list);
        self.queue.push_back(Receive { wr_id, length: Sge::total_length(list), list: owned });
    }

    /// The receive that the current or next message fills.
    pub(super) fn front(&self) -> Option<&Receive> {
        self.queue.front()
    }

    /// Takes the front receive away and returns its `wr_id`.
    pub(super) fn pop(&mut self) -> Option<u64> {
        let receive = self.queue.pop_front()?;
        self.spare.push(receive.list);
        Some(receive.wr_id)
    }

    /// Takes all receives away.
    pub(super) fn clear(&mut self) {
        while self.pop().is_some() {}
    }
}
