//! Shared receive queues: receives for whichever of several queue pairs needs them first.

use super::{
    AsyncElement, AsyncEvent, AsyncEventType, Cq, Error, EventQueue, Result, attributes::MAX_SGE, keys::Random,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use uroce_protocol::{ReceiveQueue, Sge, wire::XrcSrqn};

/// The most shared receive queues of a device.
pub(crate) const MAX_SRQ: u32 = 1 << 16;
/// The most receives of one.
pub(crate) const MAX_SRQ_WR: u32 = 1 << 15;

/// What a shared receive queue holds (`struct ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Receives, at most.
    pub max_wr: u32,
    /// Scatter-gather elements of a receive, at most.
    pub max_sge: u32,
    /// When fewer receives than this are left, an event tells, once; 0 for no event, or none any more. Ignored when
    /// the queue is made.
    pub srq_limit: u32,
}

impl Default for SrqAttributes {
    /// Room for 128 receives of one element each.
    fn default() -> Self {
        Self { max_wr: 128, max_sge: 1, srq_limit: 0 }
    }
}

bitflags::bitflags! {
    /// Which attributes a modify sets, with the values of `enum ibv_srq_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SrqAttributeMask: u32 {
        /// `max_wr`.
        const MAX_WR = 1 << 0;
        /// `srq_limit`.
        const LIMIT = 1 << 1;
    }
}

/// What makes a shared receive queue one of an XRC domain.
#[derive(Clone, Debug)]
pub(crate) struct XrcQueue {
    /// The domain's number.
    pub(crate) domain: u32,
    /// Where its receives complete.
    pub(crate) cq: Arc<Cq>,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    number: XrcSrqn,
    pd: u32,
    max_sge: u32,
    xrc: Option<XrcQueue>,
    /// Where its asynchronous events go.
    events: Arc<EventQueue<AsyncEvent>>,
    queue: Mutex<ReceiveQueue>,
}

impl Srq {
    pub(crate) const fn number(&self) -> XrcSrqn {
        self.number
    }

    pub(crate) const fn pd(&self) -> u32 {
        self.pd
    }

    pub(crate) const fn xrc(&self) -> Option<&XrcQueue> {
        self.xrc.as_ref()
    }

    /// Posts one receive.
    pub(crate) fn post(&self, wr_id: u64, list: &[Sge]) -> Result<()> {
        if list.len() > self.max_sge as usize {
            return Err(Error::InvalidArgument("more scatter-gather elements than the queue was made for"));
        }
        Ok(self.queue.lock().post(wr_id, list)?)
    }

    /// Does something with the receives, and tells if that has left fewer than the limit.
    pub(super) fn with_queue<T>(&self, act: impl FnOnce(&mut ReceiveQueue) -> T) -> T {
        let mut queue = self.queue.lock();
        let result = act(&mut queue);
        if queue.poll_limit_reached() {
            self.events.push(AsyncEvent { event_type: AsyncEventType::SrqLimitReached, element: self.element() });
        }
        result
    }

    pub(crate) fn query(&self) -> SrqAttributes {
        let queue = self.queue.lock();
        SrqAttributes { max_wr: queue.depth(), max_sge: self.max_sge, srq_limit: queue.limit() }
    }

    /// Sets the attributes that `mask` names; nothing on an error. The rules are Linux rxe's.
    pub(crate) fn modify(&self, attributes: &SrqAttributes, mask: SrqAttributeMask) -> Result<()> {
        let mut queue = self.queue.lock();
        let max_wr = if mask.contains(SrqAttributeMask::MAX_WR) { attributes.max_wr } else { queue.depth() };
        let limit = if mask.contains(SrqAttributeMask::LIMIT) { attributes.srq_limit } else { queue.limit() };
        check_max_wr(max_wr)?;
        if limit > max_wr {
            return Err(Error::InvalidArgument("the limit is more than the queue holds"));
        }
        if queue.len() > max_wr {
            return Err(Error::InvalidArgument("more receives are posted than that"));
        }
        queue.set_depth(max_wr);
        queue.set_limit(limit);
        Ok(())
    }

    fn element(&self) -> AsyncElement {
        AsyncElement::SharedReceiveQueue(self.number.value())
    }
}

fn check_max_wr(max_wr: u32) -> Result<()> {
    if (1..=MAX_SRQ_WR).contains(&max_wr) {
        Ok(())
    } else {
        Err(Error::InvalidArgument("a shared receive queue holds 1 to max_srq_wr receives"))
    }
}

/// The shared receive queues of a device, by number.
#[derive(Debug)]
pub(crate) struct SrqTable {
    srqs: FxHashMap<XrcSrqn, Arc<Srq>>,
    /// The number to try next. Numbers are given in turn, so that one is not soon given again.
    next: u32,
}

impl SrqTable {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self { srqs: FxHashMap::default(), next: random.next() as u32 }
    }

    pub(crate) fn get(&self, number: XrcSrqn) -> Option<Arc<Srq>> {
        self.srqs.get(&number).cloned()
    }

    /// Makes a queue.
    pub(crate) fn insert(
        &mut self,
        pd: u32,
        attributes: &SrqAttributes,
        xrc: Option<XrcQueue>,
        events: Arc<EventQueue<AsyncEvent>>,
    ) -> Result<Arc<Srq>> {
        check_max_wr(attributes.max_wr)?;
        if attributes.max_sge > MAX_SGE {
            return Err(Error::InvalidArgument("more scatter-gather elements than the device can do"));
        }
        if self.srqs.len() >= MAX_SRQ as usize {
            return Err(Error::Exhausted("there are no shared receive queues left"));
        }
        // There are more numbers than queues, so one is free. 0 is not given, which some programs take for "none".
        loop {
            self.next = self.next.wrapping_add(1);
            let number = XrcSrqn::new(self.next);
            if number.value() != 0 && !self.srqs.contains_key(&number) {
                let (max_sge, queue) = (attributes.max_sge, Mutex::new(ReceiveQueue::new(attributes.max_wr)));
                let srq = Arc::new(Srq { number, pd, max_sge, xrc, events, queue });
                self.srqs.insert(number, srq.clone());
                return Ok(srq);
            }
        }
    }

    /// Forgets a queue, its receives and its events.
    pub(crate) fn remove(&mut self, srq: &Srq) {
        self.srqs.remove(&srq.number);
        srq.events.withdraw(|event| event.element == srq.element());
    }
}
