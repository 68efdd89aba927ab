//! The receives that wait for messages, of one queue pair or shared by several.

use crate::{
    Sge,
    work::{Completion, PostReceiveError, WcOpcode, WcStatus},
};
use std::collections::VecDeque;

/// A posted receive.
#[derive(Debug)]
pub(crate) struct Receive {
    /// Returned with the completion.
    pub(crate) wr_id: u64,
    /// Where a SEND's payload goes.
    pub(crate) list: Vec<Sge>,
    /// How many bytes fit.
    pub(crate) length: u64,
}

/// Posted receives, first in first out: a responder's own, or a shared receive queue that is handed to each of its
/// responders with every packet.
#[derive(Debug, Default)]
pub struct ReceiveQueue {
    queue: VecDeque<Receive>,
    depth: u32,
    limit: u32,
    limit_reached: bool,
    /// Lists of receives that are done, to be filled again: posting allocates only until the queue has been full
    /// once.
    spare: Vec<Vec<Sge>>,
}

impl ReceiveQueue {
    /// An empty queue that may hold `depth` receives (`max_recv_wr`, `max_wr`).
    pub fn new(depth: u32) -> Self {
        Self { depth, ..Self::default() }
    }

    /// How many receives are posted.
    pub fn len(&self) -> u32 {
        self.queue.len() as u32
    }

    /// Whether none is posted.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many it may hold.
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Changes how many it may hold. Those that are posted stay, even if they are more.
    pub fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
    }

    /// The limit that is armed, 0 for none (`srq_limit`).
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Arms the limit: the first receive that is taken and leaves fewer than this makes
    /// [`Self::poll_limit_reached`] true, once.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Takes "fewer receives are posted than the limit" (`IBV_EVENT_SRQ_LIMIT_REACHED`), once each time that it is
    /// armed.
    pub fn poll_limit_reached(&mut self) -> bool {
        core::mem::take(&mut self.limit_reached)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// When as many are posted as the queue may hold.
    pub fn post(&mut self, wr_id: u64, list: &[Sge]) -> Result<(), PostReceiveError> {
        if self.len() >= self.depth {
            return Err(PostReceiveError::QueueFull);
        }
        let mut owned = self.spare.pop().unwrap_or_default();
        owned.clear();
        owned.extend_from_slice(list);
        self.queue.push_back(Receive { wr_id, length: Sge::total_length(list), list: owned });
        Ok(())
    }

    fn take(&mut self) -> Option<Receive> {
        let receive = self.queue.pop_front()?;
        if self.len() < self.limit {
            self.limit = 0;
            self.limit_reached = true;
        }
        Some(receive)
    }

    fn recycle(&mut self, receive: Receive) {
        // As many as can be posted at once: a shared queue gets back what others have taken from it.
        if self.spare.len() < self.depth as usize {
            self.spare.push(receive.list);
        }
    }
}

/// Where a responder gets its receives from.
///
/// It takes one when a message first needs it, and keeps it until the message is done.
#[derive(Debug)]
pub(crate) struct Receives {
    /// Those that were posted to it; unused when it shares a queue.
    own: ReceiveQueue,
    is_shared: bool,
    /// The one that the message in progress fills.
    current: Option<Receive>,
}

impl Receives {
    /// Of a responder that may hold `depth` receives of its own.
    pub(crate) fn own(depth: u32) -> Self {
        Self { own: ReceiveQueue::new(depth), is_shared: false, current: None }
    }

    /// Of a responder that shares a queue with others.
    pub(crate) fn shared() -> Self {
        Self { is_shared: true, ..Self::own(0) }
    }

    pub(crate) const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// How many are posted to this responder alone, the one that is being filled included.
    pub(crate) fn posted(&self) -> u32 {
        self.own.len() + u32::from(self.current.is_some())
    }

    /// Posts a receive to this responder alone.
    pub(crate) fn post(&mut self, wr_id: u64, list: &[Sge]) -> Result<(), PostReceiveError> {
        if self.posted() < self.own.depth() { self.own.post(wr_id, list) } else { Err(PostReceiveError::QueueFull) }
    }

    /// The receive that the current or next message fills.
    pub(crate) fn peek<'a>(&'a self, shared: &'a Option<&mut ReceiveQueue>) -> Option<&'a Receive> {
        let next = || match shared {
            Some(queue) => queue.queue.front(),
            None => self.own.queue.front(),
        };
        self.current.as_ref().or_else(next)
    }

    /// The receive that the current message fills; from now on it is this responder's.
    pub(crate) fn take(&mut self, shared: Option<&mut ReceiveQueue>) -> Option<&Receive> {
        if self.current.is_none() {
            self.current = shared.unwrap_or(&mut self.own).take();
        }
        self.current.as_ref()
    }

    /// The message in progress is done with its receive, or needs one only now; returns its `wr_id`.
    pub(crate) fn finish(&mut self, mut shared: Option<&mut ReceiveQueue>) -> Option<u64> {
        self.take(shared.as_deref_mut())?;
        let receive = self.current.take()?;
        let wr_id = receive.wr_id;
        shared.unwrap_or(&mut self.own).recycle(receive);
        Some(wr_id)
    }

    /// The receive in use ends in `status`.
    pub(crate) fn fail(&mut self, status: WcStatus) -> Option<Completion> {
        self.current.take().map(|receive| failed(receive.wr_id, status))
    }

    /// Ends the receive in use and those posted to this responder, one a call, with "flushed". What is posted to a
    /// shared queue stays there.
    pub(crate) fn flush(&mut self) -> Option<Completion> {
        let receive = self.current.take().or_else(|| self.own.take())?;
        Some(failed(receive.wr_id, WcStatus::WorkRequestFlushed))
    }

    /// Forgets the receive in use and those posted to this responder.
    pub(crate) fn clear(&mut self) {
        self.current = None;
        while let Some(receive) = self.own.take() {
            self.own.recycle(receive);
        }
    }
}

/// The completion of a receive that failed.
pub(crate) const fn failed(wr_id: u64, status: WcStatus) -> Completion {
    Completion {
        wr_id,
        status,
        opcode: WcOpcode::Receive,
        byte_length: 0,
        immediate: None,
        invalidated: None,
        source: None,
        has_grh: false,
        srq: None,
        solicited: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(depth: u32) -> ReceiveQueue {
        let mut queue = ReceiveQueue::new(depth);
        for wr_id in 0..depth {
            queue.post(wr_id.into(), &[]).unwrap();
        }
        queue
    }

    #[test]
    fn holds_no_more_than_its_depth() {
        let mut queue = queue(2);
        assert_eq!(queue.post(9, &[]), Err(PostReceiveError::QueueFull));
        queue.set_depth(3);
        assert_eq!(queue.post(9, &[]), Ok(()));
        queue.set_depth(1);
        assert_eq!((queue.len(), queue.depth()), (3, 1));
        let mut receives = Receives::shared();
        let taken = core::iter::from_fn(|| receives.finish(Some(&mut queue)));
        assert!(taken.eq([0, 1, 9]), "first in first out");
    }

    #[test]
    fn the_limit_is_reported_once_when_fewer_are_left() {
        let mut queue = queue(6);
        let mut receives = Receives::shared();
        queue.set_limit(4);
        let mut reached = || {
            receives.finish(Some(&mut queue));
            (queue.len(), queue.poll_limit_reached(), queue.limit())
        };
        assert_eq!(reached(), (5, false, 4));
        assert_eq!(reached(), (4, false, 4));
        assert_eq!(reached(), (3, true, 0));
        assert_eq!(reached(), (2, false, 0));
        queue.set_limit(4);
        assert!(!queue.poll_limit_reached(), "not before one is taken");
        receives.finish(Some(&mut queue));
        assert!(queue.poll_limit_reached());
    }

    #[test]
    fn the_receive_in_use_counts_as_posted() {
        let mut receives = Receives::own(2);
        receives.post(1, &[]).unwrap();
        receives.post(2, &[]).unwrap();
        assert_eq!(receives.take(None).map(|receive| receive.wr_id), Some(1));
        assert_eq!(receives.posted(), 2);
        assert_eq!(receives.post(3, &[]), Err(PostReceiveError::QueueFull));
        assert_eq!(receives.finish(None), Some(1));
        receives.post(3, &[]).unwrap();
        assert_eq!(receives.finish(None), Some(2));
    }

    #[test]
    fn a_flush_leaves_the_shared_queue_alone() {
        let mut queue = queue(2);
        let mut receives = Receives::shared();
        receives.take(Some(&mut queue));
        assert_eq!(receives.flush().map(|completion| completion.wr_id), Some(0));
        assert!(receives.flush().is_none());
        assert_eq!(queue.len(), 1);
    }
}
