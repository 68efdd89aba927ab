//! A queue pair as the device knows it: the two halves of a connection, their attributes, and where completions
//! and events go.

mod modify;
mod transition;

use super::{
    AsyncElement, AsyncEvent, AsyncEventType, Counters, Cq, Error, EventQueue, Nic, PostError, QpAttributes,
    QpCapabilities, QpState, Result,
    attributes::{MAX_INLINE, MAX_QP_WR, MAX_SGE},
    turn::Turn,
};
use parking_lot::{Mutex, MutexGuard};
use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use uroce_protocol::{
    Instant, Sge,
    rc::{Buffers, Fatal, PostReceiveError, PostSendError, Requester, Responder, SendRequest},
    wire::{Qpn, icrc::Flow},
};

/// What a queue pair is made of.
#[derive(Debug)]
pub(crate) struct NewQp {
    pub(crate) pd: u32,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    /// Where its asynchronous events go.
    pub(crate) events: Arc<EventQueue<AsyncEvent>>,
    pub(crate) cap: QpCapabilities,
    pub(crate) sq_sig_all: bool,
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
    /// It is in the receive side's list of those that hold an ACK back.
    pub(super) ack_is_deferred: AtomicBool,
    /// One of its completion queues has overrun.
    cq_overran: AtomicBool,
    state: Mutex<Connection>,
}

/// What a queue pair's lock guards.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) state: QpState,
    attributes: QpAttributes,
    /// Where packets go; from RTR on.
    pub(super) route: Option<Route>,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    /// The deadline of its entry among the device's timers.
    pub(super) armed: Option<Instant>,
    /// The end of draining has been reported, or is not to be.
    drained: bool,
    /// The turn before was full: this one begins with what did not come first there.
    pub(super) requests_first: bool,
    destroyed: bool,
}

/// The way to the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(super) peer: IpAddr,
    pub(super) source_port: u16,
    pub(super) traffic_class: u8,
    pub(super) flow: Flow,
}

impl Qp {
    fn new(number: Qpn, made: NewQp) -> Self {
        let connection = Connection {
            state: QpState::Reset,
            attributes: QpAttributes { cap: made.cap, ..QpAttributes::default() },
            route: None,
            requester: Requester::new(made.cap.max_send_wr),
            responder: Responder::new(made.cap.max_recv_wr),
            armed: None,
            drained: true,
            requests_first: false,
            destroyed: false,
        };
        Self {
            number,
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
            sq_draining: connection.state == QpState::Sqd && !connection.requester.is_idle(),
            ..connection.attributes
        }
    }

    /// Adds what it has counted.
    pub(super) fn count(&self, counters: &mut Counters) {
        let connection = self.lock();
        counters.add_requester(connection.requester.counters());
        counters.add_responder(connection.responder.counters());
    }

    fn report(&self, event_type: AsyncEventType) {
        self.made.events.push(AsyncEvent { event_type, element: AsyncElement::QueuePair(self.number) });
    }

    fn check_send(&self, state: QpState, request: &SendRequest<'_>) -> Result<()> {
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(Error::InvalidArgument("the queue pair is not ready to send"));
        }
        match request.buffers {
            Buffers::List(list) if list.len() > self.made.cap.max_send_sge as usize => {
                Err(Error::InvalidArgument("more scatter-gather elements than the queue pair was made for"))
            }
            Buffers::Inline(parts)
                if parts.iter().map(|part| part.len()).sum::<usize>() > self.made.cap.max_inline_data as usize =>
            {
                Err(Error::InvalidArgument("more inline data than the queue pair was made for"))
            }
            _ => Ok(()),
        }
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
        self.qps.write().insert(|number| Qp::new(number, made))
    }

    /// Ends a queue pair. Work requests that are left end without a completion.
    pub(crate) fn destroy_qp(&self, qp: &Arc<Qp>) {
        self.send_deferred_ack(qp);
        self.qps.write().remove(qp.number);
        qp.count(&mut self.retired.lock());
        let mut connection = qp.lock();
        connection.destroyed = true;
        self.reset(qp, &mut connection);
        qp.made.events.withdraw(|event| event.element == AsyncElement::QueuePair(qp.number));
    }

    /// Sends an ACK that is held back: the program has seen the completion, and what it does next must not keep the
    /// peer from seeing its own.
    fn send_deferred_ack(&self, qp: &Arc<Qp>) {
        let has_deferred_ack = qp.lock().responder.has_deferred_ack();
        if has_deferred_ack {
            qp.flush_ack.store(true, Ordering::Release);
            self.doorbell(qp);
        }
    }

    /// Queues sends, and transmits on this thread what may leave.
    pub(crate) fn post_send(&self, qp: &Arc<Qp>, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        let result = {
            let mut connection = qp.lock();
            let result = requests.iter().enumerate().try_for_each(|(index, request)| {
                let request = SendRequest { signaled: request.signaled || qp.made.sq_sig_all, ..*request };
                qp.check_send(connection.state, &request)
                    .and_then(|()| Ok(connection.requester.post(&request)?))
                    .map_err(|error| PostError { index, error })
            });
            if connection.state == QpState::Err {
                self.settle(qp, &mut connection);
            }
            result
        };
        self.doorbell(qp);
        result
    }

    /// Queues receives.
    pub(crate) fn post_recv<'a>(
        &self,
        qp: &Arc<Qp>,
        requests: impl Iterator<Item = (u64, &'a [Sge])>,
    ) -> Result<(), PostError> {
        let mut connection = qp.lock();
        if connection.state == QpState::Reset {
            let error = Error::InvalidArgument("the queue pair is in RESET");
            return Err(PostError { index: 0, error });
        }
        let result = requests.enumerate().try_for_each(|(index, (wr_id, list))| {
            let posted = if list.len() > qp.made.cap.max_recv_sge as usize {
                Err(Error::InvalidArgument("more scatter-gather elements than the queue pair was made for"))
            } else {
                connection.responder.post(wr_id, list).map_err(Error::from)
            };
            posted.map_err(|error| PostError { index, error })
        });
        if connection.state == QpState::Err {
            self.settle(qp, &mut connection);
        }
        drop(connection);
        self.leave();
        result
    }

    /// Carries out of a queue pair what its state machines have come to: a failure, events, completions, a
    /// deadline. Whoever has made them move calls this before it lets go of the lock.
    pub(super) fn settle(&self, qp: &Arc<Qp>, connection: &mut Connection) {
        if connection.responder.poll_established() && connection.state == QpState::Rtr {
            qp.report(AsyncEventType::CommEst);
        }
        if let Some(fatal) = connection.requester.poll_fatal().or_else(|| connection.responder.poll_fatal()) {
            fail(connection);
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
        if connection.state == QpState::Sqd && !connection.drained && connection.requester.is_idle() {
            connection.drained = true;
            qp.report(AsyncEventType::SqDrained);
        }
        let (requester, responder) = (&mut connection.requester, &mut connection.responder);
        if qp.made.send_cq.deliver(qp.number, &self.counters, || requester.poll_completion()) {
            self.overrun(&qp.made.send_cq);
        }
        if qp.made.recv_cq.deliver(qp.number, &self.counters, || responder.poll_completion()) {
            self.overrun(&qp.made.recv_cq);
        }
        let (armed, is_first) = self.timers.arm(qp.number, connection.armed, connection.requester.poll_timeout());
        connection.armed = armed;
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
        let users: Vec<_> = self
            .qps
            .read()
            .iter()
            .filter(|qp| Arc::ptr_eq(&qp.made.send_cq, cq) || Arc::ptr_eq(&qp.made.recv_cq, cq))
            .collect();
        for qp in users {
            qp.cq_overran.store(true, Ordering::Release);
            self.schedule(qp);
        }
    }

    /// Takes a queue pair back to RESET.
    fn reset(&self, qp: &Qp, connection: &mut Connection) {
        connection.state = QpState::Reset;
        connection.attributes = QpAttributes { cap: qp.made.cap, ..QpAttributes::default() };
        connection.route = None;
        connection.requester.reset();
        connection.responder.reset();
        connection.drained = true;
        self.timers.disarm(qp.number, connection.armed.take());
    }
}

/// Takes a queue pair to ERR: everything posted is flushed, in order.
fn fail(connection: &mut Connection) {
    connection.state = QpState::Err;
    connection.requester.flush();
    connection.responder.flush();
}
