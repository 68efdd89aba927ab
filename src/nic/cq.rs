//! Completion queues.

use super::{
    AsyncEvent, Error, Result, WorkCompletion, attributes::MAX_CQE, counters::DeviceCounters, event_queue::EventQueue,
};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};
use uroce_protocol::{
    Instant,
    rc::{Completion, WcStatus},
    wire::Qpn,
};

/// What wakes an armed completion queue's channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notify {
    /// The next completion.
    Next,
    /// The next receive whose sender asked for it, or error.
    Solicited,
}

/// A completion queue: a bounded ring, an arm, and where its events go.
#[derive(Debug)]
pub(crate) struct Cq {
    number: u32,
    ring: Mutex<Ring>,
    /// The ring's length, for a look without the lock.
    length: AtomicUsize,
    channel: Option<Arc<EventQueue<u32>>>,
    /// Where its asynchronous events go.
    events: Arc<EventQueue<AsyncEvent>>,
    /// How many completion queues of the device are armed: while one is, the device's thread watches the link.
    armed: Arc<AtomicUsize>,
    /// Whether a completion was lost, told from inside the ring's lock to whoever holds a queue pair's.
    has_overrun: AtomicBool,
}

#[derive(Debug)]
struct Ring {
    completions: VecDeque<WorkCompletion>,
    capacity: usize,
    armed: Option<Notify>,
}

impl Cq {
    pub(crate) fn new(
        number: u32,
        cqe: u32,
        channel: Option<Arc<EventQueue<u32>>>,
        events: Arc<EventQueue<AsyncEvent>>,
        armed: Arc<AtomicUsize>,
    ) -> Result<Self> {
        let capacity = check_cqe(cqe)?;
        Ok(Self {
            number,
            ring: Mutex::new(Ring { completions: VecDeque::new(), capacity, armed: None }),
            length: AtomicUsize::new(0),
            channel,
            events,
            armed,
            has_overrun: AtomicBool::new(false),
        })
    }

    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    pub(crate) const fn events(&self) -> &Arc<EventQueue<AsyncEvent>> {
        &self.events
    }

    pub(crate) fn cqe(&self) -> u32 {
        self.ring.lock().capacity as u32
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length.load(Ordering::Acquire) == 0
    }

    pub(crate) fn has_overrun(&self) -> bool {
        self.has_overrun.load(Ordering::Acquire)
    }

    /// Hands at most `max` completions to `take`, oldest first, and says how many.
    pub(crate) fn take(&self, max: usize, take: impl FnMut(WorkCompletion)) -> usize {
        let mut ring = self.ring.lock();
        let amount = max.min(ring.completions.len());
        ring.completions.drain(..amount).for_each(take);
        self.length.store(ring.completions.len(), Ordering::Release);
        amount
    }

    /// Puts every completion that `next` yields into the ring, and an event into the channel if it is armed for
    /// one of them; `now` is when they came about. Returns whether this was the first time that a completion did not
    /// fit: the device must then fail every queue pair of this queue.
    #[must_use]
    pub(crate) fn deliver(
        &self,
        qp: Qpn,
        now: Instant,
        counters: &DeviceCounters,
        mut next: impl FnMut() -> Option<Completion>,
    ) -> bool {
        let Some(mut completion) = next() else { return false };
        let mut lost = 0;
        let wakes = {
            let mut ring = self.ring.lock();
            let mut wakes = false;
            loop {
                counters.count_completion(&completion);
                if ring.completions.len() < ring.capacity && !self.has_overrun() {
                    ring.completions.push_back(WorkCompletion::new(qp, &completion, now));
                    wakes |= match ring.armed {
                        Some(Notify::Next) => true,
                        Some(Notify::Solicited) => completion.solicited || completion.status != WcStatus::Success,
                        None => false,
                    };
                } else {
                    lost += 1;
                }
                match next() {
                    Some(another) => completion = another,
                    None => break,
                }
            }
            self.length.store(ring.completions.len(), Ordering::Release);
            if wakes {
                ring.armed = None;
            }
            wakes
        };
        if wakes {
            self.armed.fetch_sub(1, Ordering::AcqRel);
            if let Some(channel) = &self.channel {
                channel.push(self.number);
            }
        }
        if lost == 0 {
            return false;
        }
        counters.count_overrun(lost);
        !self.has_overrun.swap(true, Ordering::AcqRel)
    }

    /// Takes a queue pair's completions out, because it is reset or goes away: what their work requests were, the
    /// program may not know any more. (Drivers of hardware do so; the IBTA leaves it open.)
    pub(crate) fn purge(&self, qp: Qpn) {
        let mut ring = self.ring.lock();
        ring.completions.retain(|completion| completion.qp_num != qp);
        self.length.store(ring.completions.len(), Ordering::Release);
    }

    /// Arms it. A queue that is armed already for everything stays so.
    pub(crate) fn arm(&self, notify: Notify) -> Result<()> {
        if self.channel.is_none() {
            return Err(Error::InvalidArgument("the completion queue has no channel"));
        }
        let mut ring = self.ring.lock();
        match ring.armed {
            None => {
                ring.armed = Some(notify);
                self.armed.fetch_add(1, Ordering::AcqRel);
            }
            Some(Notify::Solicited) => ring.armed = Some(notify),
            Some(Notify::Next) => {}
        }
        Ok(())
    }

    /// Disarms it and withdraws its events, because it goes away.
    pub(crate) fn retire(&self) {
        if self.ring.lock().armed.take().is_some() {
            self.armed.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(channel) = &self.channel {
            channel.withdraw(|&number| number == self.number);
        }
    }

    pub(crate) fn resize(&self, cqe: u32) -> Result<()> {
        let capacity = check_cqe(cqe)?;
        let mut ring = self.ring.lock();
        if ring.completions.len() > capacity {
            return Err(Error::InvalidArgument("the completion queue holds more completions than that"));
        }
        ring.capacity = capacity;
        Ok(())
    }
}

fn check_cqe(cqe: u32) -> Result<usize> {
    if (1..=MAX_CQE).contains(&cqe) {
        Ok(cqe as usize)
    } else {
        Err(Error::InvalidArgument("a completion queue holds 1 to max_cqe completions"))
    }
}
