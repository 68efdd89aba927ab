//! What queue pairs share: receives with other queue pairs, and the target of an extended reliable connection among
//! those who have opened it.

use super::{
    super::{
        AsyncElement, AsyncEvent, AsyncEventType, Cq, Error, EventQueue, Nic, QpState, Result, Srq,
        regions::RegionTable,
    },
    Connection, Qp,
};
use parking_lot::Mutex;
use std::sync::Arc;
use uroce_protocol::{
    Instant,
    wire::{GRH_LEN, Packet, Qpn, XrcSrqn},
    work::Completion,
};

impl Qp {
    /// One more handle of a target, whose number is returned; its events go to `events` too.
    pub(crate) fn share(&self, events: &Arc<EventQueue<AsyncEvent>>) -> Result<u64> {
        let mut owners = self.owners.lock();
        if owners.handles.is_empty() {
            return Err(Error::InvalidArgument("the queue pair has been destroyed"));
        }
        Ok(owners.add(events.clone()))
    }
}

/// Where a queue pair's asynchronous events go: to everybody who has a handle of it.
#[derive(Debug)]
pub(super) struct Owners {
    handles: Vec<(u64, Arc<EventQueue<AsyncEvent>>)>,
    /// The number of the next handle.
    next: u64,
}

impl Owners {
    /// Handle 0, of who makes the queue pair.
    pub(super) fn maker(events: Arc<EventQueue<AsyncEvent>>) -> Mutex<Self> {
        Mutex::new(Self { handles: vec![(MAKERS_HANDLE, events)], next: MAKERS_HANDLE + 1 })
    }

    fn add(&mut self, events: Arc<EventQueue<AsyncEvent>>) -> u64 {
        let handle = self.next;
        self.next += 1;
        self.handles.push((handle, events));
        handle
    }

    /// Tells everybody, each by the handle that is his.
    pub(super) fn report(&self, number: Qpn, event_type: AsyncEventType) {
        for &(handle, ref events) in &self.handles {
            events.push(AsyncEvent { event_type, element: AsyncElement::QueuePair { number, handle } });
        }
    }
}

/// The handle that comes with making a queue pair.
pub(crate) const MAKERS_HANDLE: u64 = 0;

impl Nic {
    /// One handle less of a queue pair. With the last, the queue pair ends.
    pub(crate) fn release_qp(&self, qp: &Arc<Qp>, handle: u64) {
        let mut owners = qp.owners.lock();
        if let Some(at) = owners.handles.iter().position(|(owner, _)| *owner == handle) {
            let (_, events) = owners.handles.swap_remove(at);
            let element = AsyncElement::QueuePair { number: qp.number, handle };
            events.withdraw(|event| event.element == element);
        }
        let is_last = owners.handles.is_empty();
        drop(owners);
        if is_last {
            self.destroy_qp(qp);
        }
    }

    /// Gives the receiving half a request, and with it the receives and the memory that it may use: the queue pair's
    /// own, or those of the shared receive queue that the request names (XRC).
    pub(in crate::nic) fn take_request(
        &self,
        now: Instant,
        qp: &Qp,
        connection: &mut Connection,
        packet: &Packet<'_>,
        network_header: impl FnOnce() -> [u8; GRH_LEN],
        regions: &RegionTable,
    ) {
        let named = packet.xrceth().and_then(|xrceth| self.xrc_srq(qp.made.xrc_domain, xrceth.srqn));
        let memory = regions.view(named.as_ref().map_or(qp.pd(), |srq| srq.pd()), qp.number);
        let receiver = &mut connection.receiver;
        match named.as_ref().or(qp.made.srq.as_ref()) {
            Some(srq) => {
                srq.with_queue(|queue| receiver.handle_packet(now, packet, network_header, &memory, Some(queue)));
            }
            None => receiver.handle_packet(now, packet, network_header, &memory, None),
        }
    }

    /// The protection domain of the memory that a queue pair's answer is read from: that of the shared receive queue
    /// that the request had named, or the queue pair's own. There is nothing in domain 0, which stands for a queue that
    /// has gone.
    pub(in crate::nic) fn pd_of_answer(&self, qp: &Qp, srq: Option<XrcSrqn>) -> u32 {
        match srq {
            None => qp.pd(),
            Some(number) => self.xrc_srq(qp.made.xrc_domain, number).map_or(0, |srq| srq.pd()),
        }
    }

    /// Puts finished receives where they belong.
    pub(super) fn deliver_receives(&self, qp: &Arc<Qp>, connection: &mut Connection, now: Instant) {
        let receiver = &mut connection.receiver;
        if let Some(cq) = &qp.made.recv_cq {
            if cq.deliver(qp.number, now, &self.counters, || receiver.poll_completion()) {
                self.overrun(cq);
            }
        } else {
            while let Some(completion) = receiver.poll_completion() {
                self.deliver_to_srq(qp, completion, now);
            }
        }
        if qp.made.srq.is_some() && connection.state == QpState::Err && !connection.last_wqe_reached {
            connection.last_wqe_reached = true;
            qp.report(AsyncEventType::QpLastWqeReached);
        }
    }

    /// Puts a receive of an XRC shared receive queue into that queue's completion queue.
    fn deliver_to_srq(&self, qp: &Arc<Qp>, completion: Completion, now: Instant) {
        let srq = completion.srq.and_then(|number| self.xrc_srq(qp.made.xrc_domain, number));
        // A queue that has gone has taken its receives with it.
        let Some(cq) = srq.as_deref().and_then(Srq::xrc).map(|xrc| &xrc.cq) else { return };
        let mut completion = Some(completion);
        if cq.deliver(qp.number, now, &self.counters, || completion.take()) {
            self.overrun(cq);
        }
        if cq.has_overrun() {
            qp.fail_soon(self);
        }
    }
}

impl Qp {
    /// A completion queue that it uses has overrun: it fails in its turn.
    pub(super) fn fail_soon(self: &Arc<Self>, nic: &Nic) {
        self.cq_overran.store(true, std::sync::atomic::Ordering::Release);
        nic.schedule(self.clone());
    }

    /// Whether its completions go to a queue, of those that the queue pair itself is made with.
    pub(super) fn uses(&self, cq: &Arc<Cq>) -> bool {
        [&self.made.send_cq, &self.made.recv_cq].into_iter().flatten().any(|used| Arc::ptr_eq(used, cq))
    }
}
