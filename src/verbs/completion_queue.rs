//! Completion queues and channels.

use super::{Context, Error, Notify, Result, WorkCompletion, uses::Uses};
use crate::nic::{Cq, EventQueue};
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Weak},
};

/// A completion queue (`struct ibv_cq`).
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    shared: Arc<QueueShared>,
}

#[derive(Debug)]
struct QueueShared {
    context: Context,
    cq: Arc<Cq>,
    cq_context: u64,
    channel: Option<CompletionChannel>,
    uses: Uses,
    /// Events that were returned and not acknowledged.
    unacknowledged: Mutex<u32>,
    acknowledged: Condvar,
}

impl QueueShared {
    /// Takes the queue off its channel.
    fn retire(&self) {
        self.cq.retire();
        if let Some(channel) = &self.channel {
            channel.shared.queues.lock().remove(&self.cq.number());
            channel.shared.uses.release();
        }
    }
}

impl Drop for QueueShared {
    fn drop(&mut self) {
        // Unless it has been destroyed by name.
        if self.uses.retire("").is_ok() {
            self.retire();
        }
    }
}

impl CompletionQueue {
    pub(super) fn new(
        context: Context,
        cqe: u32,
        cq_context: u64,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self> {
        if channel.is_some_and(|channel| !channel.shared.context.is_same(&context)) {
            return Err(Error::InvalidArgument("the completion channel is another context's"));
        }
        let events = channel.map(|channel| channel.shared.events.clone());
        let cq = context.nic().create_cq(cqe, events, context.events().clone())?;
        if let Some(channel) = channel {
            channel.shared.uses.acquire()?;
        }
        let number = cq.number();
        let shared = Arc::new(QueueShared {
            context,
            cq: Arc::new(cq),
            cq_context,
            channel: channel.cloned(),
            uses: Uses::default(),
            unacknowledged: Mutex::new(0),
            acknowledged: Condvar::new(),
        });
        if let Some(channel) = channel {
            channel.shared.queues.lock().insert(number, Arc::downgrade(&shared));
        }
        Ok(Self { shared })
    }

    pub(super) fn cq(&self) -> &Arc<Cq> {
        &self.shared.cq
    }

    pub(super) fn uses(&self) -> &Uses {
        &self.shared.uses
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Its number, by which asynchronous events name it.
    pub fn number(&self) -> u32 {
        self.shared.cq.number()
    }

    /// What the creator attached (`ibv_cq.cq_context`).
    pub fn cq_context(&self) -> u64 {
        self.shared.cq_context
    }

    /// How many completions it holds at most (`ibv_cq.cqe`).
    pub fn cqe(&self) -> u32 {
        self.shared.cq.cqe()
    }

    /// Takes completions, oldest first, and returns how many (`ibv_poll_cq`). When it finds none it makes progress
    /// for the whole device on this thread and looks again; it never waits.
    ///
    /// # Errors
    /// `EIO` once the queue has overrun and what it held has been taken.
    pub fn poll(&self, completions: &mut [WorkCompletion]) -> Result<usize> {
        let mut slots = completions.iter_mut();
        self.poll_with(slots.len(), |completion| {
            if let Some(slot) = slots.next() {
                *slot = completion;
            }
        })
    }

    /// As [`Self::poll`], for callers who keep completions in a form of their own: hands at most `max` of them to
    /// `take`, which must not poll this queue.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn poll_with(&self, max: usize, take: impl FnMut(WorkCompletion)) -> Result<usize> {
        self.shared.uses.check()?;
        self.shared.context.nic().poll_cq(&self.shared.cq, max, take)
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
        self.shared.uses.check()?;
        self.shared.context.nic().arm_cq(&self.shared.cq, notify)
    }

    /// Changes how many completions it holds (`ibv_resize_cq`).
    ///
    /// # Errors
    /// `EINVAL` when it holds more at the moment, or for what [`Context::create_cq`] refuses.
    pub fn resize(&self, cqe: u32) -> Result<()> {
        self.shared.uses.check()?;
        self.shared.cq.resize(cqe)
    }

    /// Acknowledges events that [`CompletionChannel::get_event`] returned for it (`ibv_ack_cq_events`).
    pub fn ack_events(&self, events: u32) {
        let mut unacknowledged = self.shared.unacknowledged.lock();
        *unacknowledged = unacknowledged.saturating_sub(events);
        if *unacknowledged == 0 {
            self.shared.acknowledged.notify_all();
        }
    }

    /// Destroys it (`ibv_destroy_cq`): `EBUSY` while a queue pair uses it. Waits until every event has been
    /// acknowledged.
    pub fn destroy(&self) -> Result<()> {
        self.shared.uses.retire("a queue pair uses the completion queue")?;
        self.shared.retire();
        let mut unacknowledged = self.shared.unacknowledged.lock();
        self.shared.acknowledged.wait_while(&mut unacknowledged, |unacknowledged| *unacknowledged > 0);
        Ok(())
    }
}

/// A completion channel (`struct ibv_comp_channel`): a descriptor that is readable while an event waits.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    shared: Arc<ChannelShared>,
}

#[derive(Debug)]
struct ChannelShared {
    context: Context,
    events: Arc<EventQueue<u32>>,
    /// Its completion queues, by number.
    queues: Mutex<FxHashMap<u32, Weak<QueueShared>>>,
    uses: Uses,
}

impl CompletionChannel {
    pub(super) fn new(context: Context) -> Result<Self> {
        let events = Arc::new(EventQueue::new()?);
        let shared = ChannelShared { context, events, queues: Mutex::default(), uses: Uses::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Waits for the next event and returns the completion queue that it is of (`ibv_get_cq_event`), which wants it
    /// acknowledged ([`CompletionQueue::ack_events`]). When the descriptor is non-blocking, the answer may be
    /// `EAGAIN`; a signal whose handler does not restart system calls ends the wait with `EINTR`.
    pub fn get_event(&self) -> Result<CompletionQueue> {
        loop {
            let number = self.shared.events.pop()?;
            let queues = self.shared.queues.lock();
            // One that is just going away is not worth waking for. One that is there is told under the lock that it
            // goes away under, so that it waits.
            if let Some(shared) = queues.get(&number).and_then(Weak::upgrade) {
                *shared.unacknowledged.lock() += 1;
                drop(queues);
                return Ok(CompletionQueue { shared });
            }
        }
    }

    /// Whether [`Self::get_event`] waits. Same as setting `O_NONBLOCK` on the descriptor.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        self.shared.events.set_nonblocking(nonblocking)
    }

    /// Destroys it (`ibv_destroy_comp_channel`): `EBUSY` while a completion queue uses it.
    pub fn destroy(&self) -> Result<()> {
        self.shared.uses.retire("a completion queue uses the channel")
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.events.as_fd()
    }
}
