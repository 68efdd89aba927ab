//! Queue pairs.

use super::{
    AddressHandleAttributes, CompletionQueue, Connection, Error, GlobalRoute, PORT, PostError, ProtectionDomain,
    QpAttributeMask, QpAttributes, QpCapabilities, QpState, QpType, Qpn, Result, SendWorkRequest, Sge,
};
use crate::nic::{NewQp, Nic, Qp};
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
    pd: ProtectionDomain,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    qp: Arc<Qp>,
    cap: QpCapabilities,
    qp_context: u64,
    is_destroyed: AtomicBool,
}

impl Shared {
    fn nic(&self) -> &Nic {
        self.pd.context().nic()
    }

    /// Ends it; returns whether it was there.
    fn destroy(&self) -> bool {
        let was_destroyed = self.is_destroyed.swap(true, Ordering::AcqRel);
        if !was_destroyed {
            self.nic().destroy_qp(&self.qp);
            self.pd.uses().release();
            self.send_cq.uses().release();
            self.recv_cq.uses().release();
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
    /// Where receives complete; may be the same.
    pub recv_cq: &'a CompletionQueue,
    /// How much it holds.
    pub cap: QpCapabilities,
    /// The transport service.
    pub qp_type: QpType,
    /// Whether every send completes visibly, flagged or not.
    pub sq_sig_all: bool,
    /// What the creator attaches (`ibv_qp.qp_context`).
    pub qp_context: u64,
}

impl<'a> QpInitAttributes<'a> {
    /// A reliable connection whose sends and receives complete in `cq`, with default capabilities.
    pub fn new(cq: &'a CompletionQueue) -> Self {
        Self {
            send_cq: cq,
            recv_cq: cq,
            cap: QpCapabilities::default(),
            qp_type: QpType::Rc,
            sq_sig_all: false,
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

impl QueuePair {
    pub(super) fn new(pd: ProtectionDomain, attributes: &QpInitAttributes<'_>) -> Result<Self> {
        let QpInitAttributes { send_cq, recv_cq, cap, qp_type: QpType::Rc, sq_sig_all, qp_context } = *attributes;
        let context = pd.context();
        if !send_cq.context().is_same(context) || !recv_cq.context().is_same(context) {
            return Err(Error::InvalidArgument("a completion queue is another context's"));
        }
        let users = [pd.uses(), send_cq.uses(), recv_cq.uses()];
        for (acquired, user) in users.iter().enumerate() {
            if let Err(error) = user.acquire() {
                users[..acquired].iter().for_each(|user| user.release());
                return Err(error);
            }
        }
        let made = context.nic().create_qp(NewQp {
            pd: pd.number(),
            send_cq: send_cq.cq().clone(),
            recv_cq: recv_cq.cq().clone(),
            events: context.events().clone(),
            cap,
            sq_sig_all,
        });
        match made {
            Ok(qp) => Ok(Self {
                shared: Arc::new(Shared {
                    send_cq: send_cq.clone(),
                    recv_cq: recv_cq.clone(),
                    pd,
                    qp,
                    cap,
                    qp_context,
                    is_destroyed: AtomicBool::new(false),
                }),
            }),
            Err(error) => {
                users.iter().for_each(|user| user.release());
                Err(error)
            }
        }
    }

    /// Its number.
    pub fn qp_num(&self) -> Qpn {
        self.shared.qp.number()
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.shared.pd
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.shared.send_cq
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.shared.recv_cq
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

    /// Takes a queue pair from RESET to RTS in one go.
    ///
    /// # Errors
    /// As [`Self::modify`], of which it makes three.
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
        let path = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN;
        self.modify(&attributes, Mask::STATE | path | Mask::RQ_PSN | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER)?;
        attributes.qp_state = QpState::Rts;
        let retries = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY;
        self.modify(&attributes, Mask::STATE | retries | Mask::SQ_PSN | Mask::MAX_QP_RD_ATOMIC)
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
        self.shared.nic().post_send(&self.shared.qp, requests)
    }

    /// Posts receives (`ibv_post_recv`).
    ///
    /// # Errors
    /// `EINVAL` in RESET or for too many elements; `ENOMEM` when the queue is full.
    pub fn post_recv(&self, requests: &[ReceiveWorkRequest<'_>]) -> Result<(), PostError> {
        let requests = requests.iter().map(|request| (request.wr_id, request.sg_list));
        self.shared.nic().post_recv(&self.shared.qp, requests)
    }

    /// Destroys it (`ibv_destroy_qp`). Outstanding work requests end without completions.
    pub fn destroy(&self) -> Result<()> {
        if self.shared.destroy() {
            Ok(())
        } else {
            Err(Error::InvalidArgument("the queue pair has been destroyed before"))
        }
    }
}
