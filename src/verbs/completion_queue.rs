//! Completion queues and channels.

use super::{Context, Result, WorkCompletion};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// A completion queue (`struct ibv_cq`).
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Arc<()>,
}

/// What wakes an armed completion queue's channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notify {
    /// The next completion.
    Next,
    /// The next receive whose sender asked for it, or error.
    Solicited,
}

impl CompletionQueue {
    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        let _ = &self.inner;
        todo!()
    }

    /// Its number, by which asynchronous events name it.
    pub fn number(&self) -> u32 {
        todo!()
    }

    /// What the creator attached (`ibv_cq.cq_context`).
    pub fn cq_context(&self) -> u64 {
        todo!()
    }

    /// How many completions it holds at most (`ibv_cq.cqe`).
    pub fn cqe(&self) -> u32 {
        todo!()
    }

    /// Takes completions, oldest first, and returns how many (`ibv_poll_cq`). When it finds none it makes progress
    /// for the whole device on this thread and looks again; it never waits.
    ///
    /// # Errors
    /// `EIO` once the queue has overrun and what it held has been taken.
    pub fn poll(&self, completions: &mut [WorkCompletion]) -> Result<usize> {
        let _ = completions;
        todo!()
    }

    /// Polls until there is a completion, and takes one.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn wait(&self) -> Result<WorkCompletion> {
        let mut completion = [WorkCompletion::default()];
        while self.poll(&mut completion)? == 0 {
            std::hint::spin_loop();
        }
        Ok(completion[0])
    }

    /// Arms it: the next completion of that kind makes an event on its channel, once (`ibv_req_notify_cq`).
    /// Completions that are there already do not: poll once more after arming.
    ///
    /// # Errors
    /// `EINVAL` when it has no channel.
    pub fn req_notify(&self, notify: Notify) -> Result<()> {
        let _ = notify;
        todo!()
    }

    /// Changes how many completions it holds (`ibv_resize_cq`).
    ///
    /// # Errors
    /// `EINVAL` when it holds more at the moment, or for what [`Context::create_cq`] refuses.
    pub fn resize(&self, cqe: u32) -> Result<()> {
        let _ = cqe;
        todo!()
    }

    /// Acknowledges events that [`CompletionChannel::get_event`] returned for it (`ibv_ack_cq_events`).
    pub fn ack_events(&self, events: u32) {
        let _ = events;
        todo!()
    }

    /// Destroys it (`ibv_destroy_cq`): `EBUSY` while a queue pair uses it. Waits until every event has been
    /// acknowledged.
    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}

/// A completion channel (`struct ibv_comp_channel`): a descriptor that is readable while an event waits.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    inner: Arc<()>,
}

impl CompletionChannel {
    /// Waits for the next event and returns the completion queue that it is of (`ibv_get_cq_event`), which wants it
    /// acknowledged ([`CompletionQueue::ack_events`]). When the descriptor is non-blocking, the answer may be
    /// `EAGAIN`.
    pub fn get_event(&self) -> Result<CompletionQueue> {
        let _ = &self.inner;
        todo!()
    }

    /// Whether [`Self::get_event`] waits. Same as setting `O_NONBLOCK` on the descriptor.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        let _ = nonblocking;
        todo!()
    }

    /// Destroys it (`ibv_destroy_comp_channel`): `EBUSY` while a completion queue uses it.
    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        todo!()
    }
}
