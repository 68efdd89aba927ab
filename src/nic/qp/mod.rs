//! A queue pair as the device knows it: its two halves, their attributes, and where completions and events go.

mod congestion;
mod delayed_ack;
mod flow;
mod halves;
mod modify;
mod route;
mod shared;
mod transition;

use super::{
    AsyncElement, AsyncEvent, AsyncEventType, Counters, Cq, Error, EventQueue, Nic, QpAttributes, QpCapabilities,
    QpState, QpType, Result, Srq,
    attributes::{MAX_INLINE, MAX_QP_WR, MAX_SGE},
    timers::Timers,
    turn::Turn,
};
use delayed_ack::DelayedAck;
pub(super) use flow::PacedFlow;
pub(crate) use flow::RateLimit;
use halves::{ReceiveHalf, SendHalf, halves};
use parking_lot::{Mutex, MutexGuard};
pub(super) use route::Route;
pub(crate) use shared::MAKERS_HANDLE;
use shared::Owners;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use uroce_protocol::{
    Instant, Sge,
    wire::{Qpn, Service},
    work::{Buffers, Fatal, PostReceiveError, PostSendError, SendOperation, SendRequest},
};

/// What a queue pair is made of.
#[derive(Debug)]
pub(crate) struct NewQp {
    pub(crate) qp_type: QpType,
    /// 0 for the target of an extended reliable connection, which has none.
    pub(crate) pd: u32,
    /// Where sends complete; `None` for the target of an extended reliable connection, which has no send queue.
    pub(crate) send_cq: Option<Arc<Cq>>,
    /// Where receives complete; `None` for that target, whose receives complete where their queues' do.
    pub(crate) recv_cq: Option<Arc<Cq>>,
    /// Where receives come from, if not from a queue of its own.
    pub(crate) srq: Option<Arc<Srq>>,
    /// The XRC domain of that target, 0 for none.
    pub(crate) xrc_domain: u32,
    /// Where its maker's asynchronous events go.
    pub(crate) events: Arc<EventQueue<AsyncEvent>>,
    pub(crate) cap: QpCapabilities,
    pub(crate) sq_sig_all: bool,
    /// Whether it is spared the copies of what it sends itself to a group that it has joined.
    pub(crate) blocks_own_multicast: bool,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    number: Qpn,
    made: NewQp,
    /// Whose turn it is to transmit.
    pub(super) turn: Turn,
    /// An ACK that was held back is to be sent in the next turn.
    pub(super) flush_ack: AtomicBool,
    /// It is in the receive side's list of those that hold an ACK back until nothing more arrives.
    pub(super) ack_is_deferred: AtomicBool,
    /// One of its completion queues has overrun.
    cq_overran: AtomicBool,
    /// Who has a handle of it.
    owners: Mutex<Owners>,
    state: Mutex<Connection>,
}

/// What a queue pair's lock guards.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) state: QpState,
    attributes: QpAttributes,
    /// Where packets go; from RTR on, if the queue pair has a peer.
    pub(super) route: Option<Route>,
    pub(super) sender: SendHalf,
    pub(super) receiver: ReceiveHalf,
    /// Its part in congestion control, and its limit, if it has any.
    pub(super) flow: Option<Box<PacedFlow>>,
    /// Whether its ACKs wait for the program's answers.
    pub(super) delayed_ack: DelayedAck,
    /// The deadline of its entry among the device's timers.
    pub(super) armed: Option<Instant>,
    /// The end of draining has been reported, or is not to be.
    drained: bool,
    /// That it takes no more receives from its shared receive queue has been reported.
    last_wqe_reached: bool,
    /// The turn before was full: this one begins with what did not come first there.
    pub(super) requests_first: bool,
    destroyed: bool,
}

impl Connection {
    pub(super) const fn is_destroyed(&self) -> bool {
        self.destroyed
    }

    /// The queue pair at the other end, and the way there.
    pub(super) fn peer(&self) -> Option<(Qpn, &Route)> {
        Some((Qpn::new(self.attributes.dest_qp_num), self.route.as_ref()?))
    }
}

impl Qp {
    fn new(
        number: Qpn,
        made: NewQp,
        (sender, receiver): (SendHalf, ReceiveHalf),
        flow: Option<Box<PacedFlow>>,
    ) -> Self {
        let connection = Connection {
            state: QpState::Reset,
            attributes: QpAttributes { cap: made.cap, ..QpAttributes::default() },
            route: None,
            sender,
            receiver,
            flow,
            delayed_ack: DelayedAck::default(),
            armed: None,
            drained: true,
            last_wqe_reached: false,
            requests_first: false,
            destroyed: false,
        };
        Self {
            number,
            owners: Owners::maker(made.events.clone()),
            made,
            turn: Turn::default(),
            flush_ack: AtomicBool::new(false),
            ack_is_deferred: AtomicBool::new(false),
            cq_overran: AtomicBool::new(false),
            state: Mutex::new(connection),
        }
    }

    pub(crate) const fn number(&self) -> Qpn {
        self.number
    }

    pub(crate) const fn qp_type(&self) -> QpType {
        self.made.qp_type
    }

    /// The service that its packets are of.
    pub(crate) const fn service(&self) -> Service {
        self.made.qp_type.service()
    }

    pub(crate) const fn blocks_own_multicast(&self) -> bool {
        self.made.blocks_own_multicast
    }

    /// Whether its sends complete when their packets have left.
    pub(crate) const fn completes_on_transmit(&self) -> bool {
        matches!(self.service(), Service::Uc | Service::Ud)
    }

    pub(crate) const fn pd(&self) -> u32 {
        self.made.pd
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Connection> {
        self.state.lock()
    }

    pub(crate) fn state(&self) -> QpState {
        self.lock().state
    }

    pub(crate) fn query(&self) -> QpAttributes {
        let connection = self.lock();
        QpAttributes {
            qp_state: connection.state,
            cur_qp_state: connection.state,
            sq_draining: connection.state == QpState::Sqd && !connection.sender.is_idle(),
            ..connection.attributes
        }
    }

    /// Adds what it has counted.
    pub(super) fn count(&self, counters: &mut Counters) {
        let connection = self.lock();
        connection.sender.count(counters);
        connection.receiver.count(counters);
    }

    fn report(&self, event_type: AsyncEventType) {
        self.owners.lock().report(self.number, event_type);
    }

    fn check_send(&self, state: QpState, request: &SendRequest<'_>) -> Result<()> {
        if self.made.send_cq.is_none() {
            return Err(Error::InvalidArgument("the queue pair has no send queue"));
        }
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(Error::InvalidArgument("the queue pair is not ready to send"));
        }
        match request.buffers {
            Buffers::List(list) if list.len() > self.made.cap.max_send_sge as usize => {
                Err(Error::InvalidArgument("more scatter-gather elements than the queue pair was made for"))
            }
            // The eight bytes of an ATOMIC WRITE are in its work request anyhow.
            Buffers::Inline(_) if matches!(request.operation, SendOperation::AtomicWrite { .. }) => Ok(()),
            Buffers::Inline(parts)
                if parts.iter().map(|part| part.len()).sum::<usize>() > self.made.cap.max_inline_data as usize =>
            {
                Err(Error::InvalidArgument("more inline data than the queue pair was made for"))
            }
            _ => Ok(()),
        }
    }
}

/// Takes send work requests for one queue pair, one after the other, while its lock is held.
#[derive(Debug)]
pub struct SendPoster<'a> {
    qp: &'a Qp,
    connection: &'a mut Connection,
}

impl SendPoster<'_> {
    /// Has `requests` post either all of its requests or, when it fails, none.
    ///
    /// # Errors
    /// Those of `requests`.
    pub fn all_or_none<E>(&mut self, requests: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<(), E> {
        let mark = self.connection.sender.mark();
        requests(self).inspect_err(|_| self.connection.sender.rewind(mark))
    }

    /// Posts one work request.
    ///
    /// # Errors
    /// As [`crate::verbs::QueuePair::post_send`].
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<()> {
        let request = SendRequest { signaled: request.signaled || self.qp.made.sq_sig_all, ..*request };
        self.qp.check_send(self.connection.state, &request)?;
        Ok(self.connection.sender.post(&request)?)
    }
}

/// Takes receives for one queue pair, one after the other, while its lock is held.
#[derive(Debug)]
pub struct ReceivePoster<'a> {
    qp: &'a Qp,
    connection: &'a mut Connection,
}

impl ReceivePoster<'_> {
    /// Posts one receive.
    ///
    /// # Errors
    /// As [`crate::verbs::QueuePair::post_recv`].
    pub fn post(&mut self, wr_id: u64, sg_list: &[Sge]) -> Result<()> {
        if self.qp.made.srq.is_some() || self.qp.service() == Service::Xrc {
            return Err(Error::InvalidArgument("the queue pair has no receive queue of its own"));
        }
        if self.connection.state == QpState::Reset {
            return Err(Error::InvalidArgument("the queue pair is in RESET"));
        }
        if sg_list.len() > self.qp.made.cap.max_recv_sge as usize {
            return Err(Error::InvalidArgument("more scatter-gather elements than the queue pair was made for"));
        }
        Ok(self.connection.receiver.post(wr_id, sg_list)?)
    }
}

impl From<PostSendError> for Error {
    fn from(error: PostSendError) -> Self {
        match error {
            PostSendError::QueueFull => Self::QueueFull,
            PostSendError::BadLength => Self::InvalidArgument("the message's length is not allowed for this operation"),
            PostSendError::Misaligned => {
                Self::InvalidArgument("the remote address of an atomic is not a multiple of 8")
            }
            PostSendError::NotAllowed => Self::InvalidArgument("the connection does not allow this operation"),
        }
    }
}

impl From<PostReceiveError> for Error {
    fn from(error: PostReceiveError) -> Self {
        match error {
            PostReceiveError::QueueFull => Self::QueueFull,
        }
    }
}

impl Nic {
    /// Makes a queue pair, in RESET.
    pub(crate) fn create_qp(&self, made: NewQp) -> Result<Arc<Qp>> {
        let cap = &made.cap;
        if cap.max_send_wr > MAX_QP_WR
            || cap.max_recv_wr > MAX_QP_WR
            || cap.max_send_sge > MAX_SGE
            || cap.max_recv_sge > MAX_SGE
            || cap.max_inline_data > MAX_INLINE
        {
            return Err(Error::InvalidArgument("a capability exceeds the device's"));
        }
        let halves = halves(made.qp_type, cap, made.srq.is_some());
        let flow = self.new_flow(made.qp_type.service(), self.congestion.as_ref());
        self.qps.write().insert(|number| Qp::new(number, made, halves, flow))
    }

    /// Ends a queue pair. Work requests that are left end without a completion.
    pub(crate) fn destroy_qp(&self, qp: &Arc<Qp>) {
        self.send_deferred_ack(qp);
        self.qps.write().remove(qp.number);
        qp.count(&mut self.retired.lock());
        let mut connection = qp.lock();
        connection.destroyed = true;
        self.reset(qp, &mut connection);
        self.regions.read().close_windows_of(qp.number);
        drop(connection);
        // Whoever attaches it now sees that it is destroyed.
        self.detach_from_all(qp);
    }

    /// Sends an ACK that is held back: the program has seen the completion, and what it does next must not keep the
    /// peer from seeing its own.
    fn send_deferred_ack(&self, qp: &Arc<Qp>) {
        let has_deferred_ack = qp.lock().receiver.has_deferred_ack();
        if has_deferred_ack {
            qp.flush_ack.store(true, Ordering::Release);
            self.doorbell(qp);
        }
    }

    /// Queues the sends that `requests` posts, and transmits on this thread what may leave.
    pub(crate) fn post_send<T>(&self, qp: &Arc<Qp>, requests: impl FnOnce(&mut SendPoster<'_>) -> T) -> T {
        let result = {
            let mut connection = qp.lock();
            let result = requests(&mut SendPoster { qp, connection: &mut connection });
            connection.delayed_ack.on_post(|| self.clock.now());
            if matches!(connection.state, QpState::Err | QpState::Sqe) {
                self.settle(qp, &mut connection, self.clock.now());
            }
            result
        };
        self.doorbell(qp);
        result
    }

    /// Queues the receives that `requests` posts.
    pub(crate) fn post_recv<T>(&self, qp: &Arc<Qp>, requests: impl FnOnce(&mut ReceivePoster<'_>) -> T) -> T {
        let mut connection = qp.lock();
        let result = requests(&mut ReceivePoster { qp, connection: &mut connection });
        if connection.state == QpState::Err {
            self.settle(qp, &mut connection, self.clock.now());
        }
        drop(connection);
        self.leave();
        result
    }

    /// Carries out of a queue pair what its state machines have come to: a failure, events, completions, a
    /// deadline. Whoever has made them move calls this before it lets go of the lock, and says when that was.
    pub(super) fn settle(&self, qp: &Arc<Qp>, connection: &mut Connection, now: Instant) {
        if connection.receiver.poll_established() && connection.state == QpState::Rtr {
            qp.report(AsyncEventType::CommEst);
        }
        if let Some(fatal) = connection.sender.poll_fatal().or_else(|| connection.receiver.poll_fatal()) {
            if fatal == Fatal::Requester && connection.sender.fails_alone() {
                connection.state = QpState::Sqe;
                connection.sender.flush();
            } else {
                fail(connection);
            }
            match fatal {
                // The work request's completion tells.
                Fatal::Requester => {}
                Fatal::InvalidRequest => qp.report(AsyncEventType::QpReqErr),
                Fatal::Access => qp.report(AsyncEventType::QpAccessErr),
                Fatal::Local => qp.report(AsyncEventType::QpFatal),
            }
        }
        if qp.cq_overran.swap(false, Ordering::AcqRel) && connection.state != QpState::Reset {
            fail(connection);
            qp.report(AsyncEventType::QpFatal);
        }
        if connection.state == QpState::Sqd && !connection.drained && connection.sender.is_idle() {
            connection.drained = true;
            qp.report(AsyncEventType::SqDrained);
        }
        if let Some(cq) = &qp.made.send_cq
            && cq.deliver(qp.number, now, &self.counters, || connection.sender.poll_completion())
        {
            self.overrun(cq);
        }
        self.deliver_receives(qp, connection, now);
        let deadline = connection.sender.poll_timeout();
        self.arm(&self.timers, qp.number, &mut connection.armed, deadline);
        if let Some(flow) = &mut connection.flow {
            self.arm_pacing(qp.number, flow);
        }
    }

    /// Puts a queue pair's entry in one of the tables of deadlines where its deadline is; `armed` is the entry's.
    fn arm(&self, timers: &Timers, qp: Qpn, armed: &mut Option<Instant>, deadline: Option<Instant>) {
        let (entry, is_first) = timers.arm(qp, *armed, deadline);
        *armed = entry;
        if is_first {
            self.sleeper.wake_from_watch();
        }
    }

    /// Fails every queue pair of a completion queue that has lost completions. Theirs are other locks than the one
    /// that is held, so they only hear of it here, and fail in their turn.
    fn overrun(&self, cq: &Arc<Cq>) {
        cq.events().push(AsyncEvent {
            event_type: AsyncEventType::CqErr,
            element: AsyncElement::CompletionQueue(cq.number()),
        });
        let users: Vec<_> = self.qps.read().iter().filter(|qp| qp.uses(cq)).collect();
        users.iter().for_each(|qp| qp.fail_soon(self));
    }

    /// Takes a queue pair back to RESET, which leaves nothing of what it did before.
    fn reset(&self, qp: &Qp, connection: &mut Connection) {
        connection.state = QpState::Reset;
        connection.attributes = QpAttributes { cap: qp.made.cap, ..QpAttributes::default() };
        connection.route = None;
        connection.sender.reset();
        connection.receiver.reset();
        connection.drained = true;
        connection.last_wqe_reached = false;
        for cq in [&qp.made.send_cq, &qp.made.recv_cq].into_iter().flatten() {
            cq.purge(qp.number);
        }
        self.timers.disarm(qp.number, connection.armed.take());
        self.reset_delayed_ack(qp, connection);
        self.restart_flow(qp, connection);
    }
}

/// Takes a queue pair to ERR: everything posted is flushed, in order.
fn fail(connection: &mut Connection) {
    connection.state = QpState::Err;
    connection.sender.flush();
    connection.receiver.flush();
}
