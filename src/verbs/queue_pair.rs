//! Queue pairs.

use super::{
    AddressHandleAttributes, AsyncElement, Buffers, CompletionQueue, Connection, Context, Error, Gid, GlobalRoute,
    MemoryWindow, PORT, PostError, ProtectionDomain, QKey, QpAttributeMask, QpAttributes, QpCapabilities, QpState,
    QpType, Qpn, RKey, ReceivePoster, Result, SendOperation, SendPoster, SendWorkRequest, Sge, SharedReceiveQueue,
    Target, WindowBind, XrcDomain, uses::Uses,
};
use crate::{
    congestion::{Congestion, Rate},
    link::MAX_TRAIN_BYTES,
    nic::{MAKERS_HANDLE, NewQp, Nic, Qp, RateLimit},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// A queue pair (`struct ibv_qp`).
#[derive(Clone, Debug)]
pub struct QueuePair {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    context: Context,
    parents: Parents,
    qp: Arc<Qp>,
    cap: QpCapabilities,
    qp_context: u64,
    /// Which of the queue pair's handles this is.
    handle: u64,
    is_destroyed: AtomicBool,
}

/// What a queue pair is made of, and keeps.
#[derive(Debug)]
enum Parents {
    Queues {
        pd: ProtectionDomain,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        srq: Option<SharedReceiveQueue>,
    },
    /// Of the target of an extended reliable connection.
    Domain(XrcDomain),
}

impl Parents {
    fn uses(&self) -> impl Iterator<Item = &Uses> + Clone {
        let uses = match self {
            Self::Queues { pd, send_cq, recv_cq, srq } => {
                let srq = srq.as_ref().map(SharedReceiveQueue::uses);
                [Some(pd.uses()), Some(send_cq.uses()), Some(recv_cq.uses()), srq]
            }
            Self::Domain(domain) => [Some(domain.uses()), None, None, None],
        };
        uses.into_iter().flatten()
    }
}

impl Shared {
    fn nic(&self) -> &Nic {
        self.context.nic()
    }

    /// Ends it; returns whether it was there.
    fn destroy(&self) -> bool {
        let was_destroyed = self.is_destroyed.swap(true, Ordering::AcqRel);
        if !was_destroyed {
            self.nic().release_qp(&self.qp, self.handle);
            self.parents.uses().for_each(Uses::release);
        }
        !was_destroyed
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// What a queue pair is made of (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInitAttributes<'a> {
    /// Where sends complete.
    pub send_cq: &'a CompletionQueue,
    /// Where receives complete; may be the same. Not used by [`QpType::XrcSend`].
    pub recv_cq: &'a CompletionQueue,
    /// Where receives come from, if not from the queue pair's own receive queue.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// How much it holds.
    pub cap: QpCapabilities,
    /// The transport service.
    pub qp_type: QpType,
    /// Whether every send completes visibly, flagged or not.
    pub sq_sig_all: bool,
    /// Whether it is spared the copies of what it sends itself to a multicast group that it has joined
    /// (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`).
    pub block_self_multicast: bool,
    /// What the creator attaches (`ibv_qp.qp_context`).
    pub qp_context: u64,
}

impl<'a> QpInitAttributes<'a> {
    /// A reliable connection whose sends and receives complete in `cq`, with default capabilities.
    pub fn new(cq: &'a CompletionQueue) -> Self {
        Self {
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: QpCapabilities::default(),
            qp_type: QpType::Rc,
            sq_sig_all: false,
            block_self_multicast: false,
            qp_context: 0,
        }
    }
}

/// A receive (`struct ibv_recv_wr`).
#[derive(Clone, Copy, Debug)]
pub struct ReceiveWorkRequest<'a> {
    /// Returned with the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sg_list: &'a [Sge],
}

/// How fast a queue pair may send at most (`struct ibv_qp_rate_limit_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpRateLimit {
    /// Kilobits per second, from IP header to ICRC; 0 for no limit.
    pub rate_limit: u32,
    /// The most bytes that leave at once, but always a packet; 0 for the device's own choice. What is more than a train
    /// (64 KiB) is taken for one.
    pub max_burst_sz: u32,
    /// How long packets usually are. A hint to hardware; not used.
    pub typical_pkt_sz: u16,
}

impl QueuePair {
    pub(super) fn new(pd: ProtectionDomain, attributes: &QpInitAttributes<'_>) -> Result<Self> {
        let QpInitAttributes { send_cq, recv_cq, srq, mut cap, qp_type, sq_sig_all, block_self_multicast, qp_context } =
            *attributes;
        let context = pd.context().clone();
        if !send_cq.context().is_same(&context) || !recv_cq.context().is_same(&context) {
            return Err(Error::InvalidArgument("a completion queue is another context's"));
        }
        if srq.is_some_and(|srq| !srq.pd().context().is_same(&context)) {
            return Err(Error::InvalidArgument("the shared receive queue is another context's"));
        }
        if srq.is_some_and(|srq| srq.xrc_domain().is_some()) {
            return Err(Error::InvalidArgument("the shared receive queue is of an XRC domain"));
        }
        if qp_type == QpType::XrcRecv {
            return Err(Error::InvalidArgument(
                "the target of an extended reliable connection is made in an XRC domain",
            ));
        }
        if srq.is_some() || qp_type == QpType::XrcSend {
            // It has no receive queue of its own.
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        let new = NewQp {
            qp_type,
            pd: pd.number(),
            send_cq: Some(send_cq.cq().clone()),
            recv_cq: Some(recv_cq.cq().clone()),
            srq: srq.map(|srq| srq.srq().clone()),
            xrc_domain: 0,
            events: context.events().clone(),
            cap,
            sq_sig_all,
            blocks_own_multicast: block_self_multicast,
        };
        let (send_cq, recv_cq, srq) = (send_cq.clone(), recv_cq.clone(), srq.cloned());
        Self::make(context, Parents::Queues { pd, send_cq, recv_cq, srq }, new, qp_context)
    }

    /// The target of an extended reliable connection, which `register` hears of before anybody else.
    pub(super) fn new_target(domain: &XrcDomain, qp_context: u64, register: impl FnOnce(&Arc<Qp>)) -> Result<Self> {
        let context = domain.context().clone();
        let new = NewQp {
            qp_type: QpType::XrcRecv,
            pd: 0,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrc_domain: domain.number(),
            events: context.events().clone(),
            cap: QpCapabilities::NONE,
            sq_sig_all: false,
            blocks_own_multicast: false,
        };
        let target = Self::make(context, Parents::Domain(domain.clone()), new, qp_context)?;
        register(&target.shared.qp);
        Ok(target)
    }

    /// Another handle of a target that somebody has made.
    pub(super) fn open_target(domain: &XrcDomain, qp: Arc<Qp>, qp_context: u64) -> Result<Self> {
        let (context, parents) = (domain.context().clone(), Parents::Domain(domain.clone()));
        Uses::acquire_all(parents.uses())?;
        let handle = qp.share(context.events()).inspect_err(|_| parents.uses().for_each(Uses::release))?;
        let is_destroyed = AtomicBool::new(false);
        let shared = Shared { context, parents, qp, cap: QpCapabilities::NONE, qp_context, handle, is_destroyed };
        Ok(Self { shared: Arc::new(shared) })
    }

    fn make(context: Context, parents: Parents, new: NewQp, qp_context: u64) -> Result<Self> {
        Uses::acquire_all(parents.uses())?;
        let cap = new.cap;
        match context.nic().create_qp(new) {
            Ok(qp) => {
                let (handle, is_destroyed) = (MAKERS_HANDLE, AtomicBool::new(false));
                Ok(Self { shared: Arc::new(Shared { context, parents, qp, cap, qp_context, handle, is_destroyed }) })
            }
            Err(error) => {
                parents.uses().for_each(Uses::release);
                Err(error)
            }
        }
    }

    /// Its number.
    pub fn qp_num(&self) -> Qpn {
        self.shared.qp.number()
    }

    /// What asynchronous events name it by.
    pub fn element(&self) -> AsyncElement {
        AsyncElement::QueuePair { number: self.qp_num(), handle: self.shared.handle }
    }

    /// Its transport service.
    pub fn qp_type(&self) -> QpType {
        self.shared.qp.qp_type()
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// The protection domain that it belongs to; the target of an extended reliable connection has none.
    pub fn pd(&self) -> Option<&ProtectionDomain> {
        match &self.shared.parents {
            Parents::Queues { pd, .. } => Some(pd),
            Parents::Domain(_) => None,
        }
    }

    /// Where its sends complete; `None` as for [`Self::pd`].
    pub fn send_cq(&self) -> Option<&CompletionQueue> {
        match &self.shared.parents {
            Parents::Queues { send_cq, .. } => Some(send_cq),
            Parents::Domain(_) => None,
        }
    }

    /// Where its receives complete; `None` as for [`Self::pd`].
    pub fn recv_cq(&self) -> Option<&CompletionQueue> {
        match &self.shared.parents {
            Parents::Queues { recv_cq, .. } => Some(recv_cq),
            Parents::Domain(_) => None,
        }
    }

    /// The shared receive queue that its receives come from, if it was made with one.
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        match &self.shared.parents {
            Parents::Queues { srq, .. } => srq.as_ref(),
            Parents::Domain(_) => None,
        }
    }

    /// What the creator attached.
    pub fn qp_context(&self) -> u64 {
        self.shared.qp_context
    }

    /// How much it holds.
    pub fn capabilities(&self) -> QpCapabilities {
        self.shared.cap
    }

    /// Its state now.
    pub fn state(&self) -> QpState {
        self.shared.qp.state()
    }

    /// Sets the attributes that `mask` names, and moves it to another state (`ibv_modify_qp`).
    ///
    /// # Errors
    /// `EINVAL` when the transition does not exist, when `mask` lacks an attribute that it requires or has one
    /// that it does not allow, or when a value is out of range; nothing has then changed. `EOPNOTSUPP` for
    /// alternate paths and rate limits.
    pub fn modify(&self, attributes: &QpAttributes, mask: QpAttributeMask) -> Result<()> {
        self.shared.nic().modify_qp(&self.shared.qp, attributes, mask)
    }

    /// Limits how fast it sends requests and answers to READs (`ibv_modify_qp_rate_limit`), whatever congestion control
    /// would allow. The limit ends with the connection (RESET).
    ///
    /// # Errors
    /// `EINVAL` before RTR and after an error, and for a burst without a limit.
    pub fn modify_rate_limit(&self, limit: &QpRateLimit) -> Result<()> {
        let burst_bytes = match limit.max_burst_sz {
            0 => MAX_TRAIN_BYTES as u64,
            _ if limit.rate_limit == 0 => {
                return Err(Error::InvalidArgument("bursts have a size where there is a rate limit"));
            }
            bytes => bytes.into(),
        };
        let rate = Rate::from_kbps(limit.rate_limit.into());
        let limit = (limit.rate_limit > 0).then_some(RateLimit { rate, burst_bytes });
        self.shared.nic().set_rate_limit(&self.shared.qp, limit)
    }

    /// Has it control congestion in a way of its own, or (`None`) not at all, whatever the device does. What has been
    /// learnt about its path is forgotten.
    ///
    /// # Errors
    /// `EINVAL` for datagrams, which have no connection.
    pub fn set_congestion(&self, congestion: Option<Congestion>) -> Result<()> {
        self.shared.nic().set_congestion(&self.shared.qp, congestion)
    }

    /// How fast it may send now, by its congestion control and its limit: the port's rate where there is neither.
    pub fn send_rate(&self) -> Rate {
        self.shared.nic().send_rate(&self.shared.qp)
    }

    /// Takes a queue pair that has a peer from RESET to RTS in one go.
    ///
    /// # Errors
    /// As [`Self::modify`], of which it makes three. `EINVAL` for other types: a datagram queue pair has no peer.
    pub fn connect(&self, connection: &Connection) -> Result<()> {
        use QpAttributeMask as Mask;
        let mut attributes = QpAttributes {
            qp_state: QpState::Init,
            port_num: PORT,
            qp_access_flags: connection.access,
            path_mtu: connection.path_mtu,
            dest_qp_num: connection.qpn.value(),
            rq_psn: connection.remote_psn.value(),
            sq_psn: connection.local_psn.value(),
            max_rd_atomic: connection.max_rd_atomic,
            max_dest_rd_atomic: connection.max_rd_atomic,
            min_rnr_timer: connection.min_rnr_timer,
            timeout: connection.timeout,
            retry_cnt: connection.retry_cnt,
            rnr_retry: connection.rnr_retry,
            ah_attr: AddressHandleAttributes {
                grh: GlobalRoute {
                    dgid: connection.gid,
                    hop_limit: 64,
                    traffic_class: connection.traffic_class,
                    ..GlobalRoute::default()
                },
                is_global: true,
                port_num: PORT,
                ..AddressHandleAttributes::default()
            },
            ..QpAttributes::default()
        };
        self.modify(&attributes, Mask::STATE | Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS)?;
        attributes.qp_state = QpState::Rtr;
        let path = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
        let answers = Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
        let retries = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
        let (answers, retries) = match self.qp_type() {
            QpType::Uc => (Mask::empty(), Mask::empty()),
            QpType::XrcSend => (Mask::empty(), retries),
            QpType::XrcRecv => (answers, Mask::TIMEOUT),
            _ => (answers, retries),
        };
        self.modify(&attributes, Mask::STATE | path | answers)?;
        attributes.qp_state = QpState::Rts;
        self.modify(&attributes, Mask::STATE | retries | Mask::SQ_PSN)
    }

    /// Takes a datagram queue pair from RESET to RTS in one go, with PSNs from 0.
    ///
    /// # Errors
    /// As [`Self::modify`], of which it makes three. `EINVAL` for other types.
    pub fn open_datagrams(&self, qkey: QKey) -> Result<()> {
        use QpAttributeMask as Mask;
        let at = |qp_state| QpAttributes { qp_state, port_num: PORT, qkey: qkey.0, ..QpAttributes::default() };
        self.modify(&at(QpState::Init), Mask::STATE | Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY)?;
        self.modify(&at(QpState::Rtr), Mask::STATE)?;
        self.modify(&at(QpState::Rts), Mask::STATE | Mask::SQ_PSN)
    }

    /// Its attributes (`ibv_query_qp`).
    pub fn query(&self) -> QpAttributes {
        self.shared.qp.query()
    }

    /// Posts work requests to the send queue, and sends on this thread what the window allows (`ibv_post_send`).
    ///
    /// # Errors
    /// `EINVAL` before RTS, for too many elements, too long inline data, or a request that makes no sense;
    /// `ENOMEM` when the queue is full.
    pub fn post_send(&self, requests: &[SendWorkRequest<'_>]) -> Result<(), PostError> {
        self.post_send_with(|poster| {
            let mut requests = requests.iter().enumerate();
            requests.try_for_each(|(index, request)| poster.post(request).map_err(|error| PostError { index, error }))
        })
    }

    /// As [`Self::post_send`], for callers who have no slice of requests: posts those that `requests` hands to the
    /// poster, in one go, and returns what it returns. It must not call back into the queue pair.
    pub fn post_send_with<T>(&self, requests: impl FnOnce(&mut SendPoster<'_>) -> T) -> T {
        self.shared.nic().post_send(&self.shared.qp, requests)
    }

    /// Posts a work request that binds a memory window of type 1, or closes it, and returns the key that the window
    /// has once the request is done (`ibv_bind_mw`). A peer may be told the key before that in a message on this
    /// queue pair.
    ///
    /// # Errors
    /// As [`Self::post_send`]; `EINVAL` also for a window of type 2, a zero-based window, or one that has been
    /// deallocated. That the region does not allow it shows when the request completes
    /// ([`WcStatus::MemoryWindowBind`](super::WcStatus::MemoryWindowBind)).
    pub fn bind_mw(&self, window: &MemoryWindow, bind: &WindowBind<'_>) -> Result<RKey> {
        window.bind(&bind.info, |binding| {
            let request = SendWorkRequest {
                wr_id: bind.wr_id,
                operation: SendOperation::BindMemoryWindow(binding),
                buffers: Buffers::List(&[]),
                signaled: bind.signaled,
                solicited: false,
                fence: bind.fence,
                target: Target::default(),
            };
            self.post_send_with(|poster| poster.post(&request))
        })
    }

    /// Posts receives (`ibv_post_recv`).
    ///
    /// # Errors
    /// `EINVAL` in RESET or for too many elements; `ENOMEM` when the queue is full.
    pub fn post_recv(&self, requests: &[ReceiveWorkRequest<'_>]) -> Result<(), PostError> {
        self.post_recv_with(|poster| {
            requests.iter().enumerate().try_for_each(|(index, request)| {
                poster.post(request.wr_id, request.sg_list).map_err(|error| PostError { index, error })
            })
        })
    }

    /// As [`Self::post_recv`], for callers who have no slice of requests: posts those that `requests` hands to the
    /// poster, in one go, and returns what it returns. It must not call back into the queue pair.
    pub fn post_recv_with<T>(&self, requests: impl FnOnce(&mut ReceivePoster<'_>) -> T) -> T {
        self.shared.nic().post_recv(&self.shared.qp, requests)
    }

    /// Has it receive what is sent to a multicast group (`ibv_attach_mcast`), from itself too unless
    /// [`QpInitAttributes::block_self_multicast`] says otherwise. Joining twice is joining once. The LID means nothing
    /// on RoCE. See [`Gid::multicast_group`] for how a GID names a group.
    ///
    /// # Errors
    /// `EINVAL` when it is not a datagram queue pair, or the GID is no multicast group of the device's IP version;
    /// `ENOMEM` when the device or the group holds no more; `EOPNOTSUPP` where the network carries no multicast (`::1`);
    /// otherwise what the system says.
    pub fn attach_mcast(&self, gid: &Gid, _lid: u16) -> Result<()> {
        self.shared.nic().attach_multicast(&self.shared.qp, gid)
    }

    /// Ends a membership (`ibv_detach_mcast`).
    ///
    /// # Errors
    /// `EINVAL` without one.
    pub fn detach_mcast(&self, gid: &Gid, _lid: u16) -> Result<()> {
        self.shared.nic().detach_multicast(&self.shared.qp, gid)
    }

    /// Destroys it (`ibv_destroy_qp`): `EBUSY` while it is in a multicast group. Outstanding work requests end without
    /// completions, and completions that have not been polled are gone.
    pub fn destroy(&self) -> Result<()> {
        if self.shared.nic().is_in_a_group(&self.shared.qp) {
            return Err(Error::Busy("the queue pair is in a multicast group"));
        }
        if self.shared.destroy() {
            Ok(())
        } else {
            Err(Error::InvalidArgument("the queue pair has been destroyed before"))
        }
    }
}
