//! Queue pairs.

use super::{
    CompletionQueue, Connection, PostError, ProtectionDomain, QpAttributeMask, QpAttributes, QpCapabilities, QpState,
    QpType, Qpn, Result, SendWorkRequest, Sge,
};
use std::sync::Arc;

/// A queue pair (`struct ibv_qp`).
#[derive(Clone, Debug)]
pub struct QueuePair {
    inner: Arc<()>,
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
    /// Its number.
    pub fn qp_num(&self) -> Qpn {
        let _ = &self.inner;
        todo!()
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        todo!()
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &CompletionQueue {
        todo!()
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &CompletionQueue {
        todo!()
    }

    /// What the creator attached.
    pub fn qp_context(&self) -> u64 {
        todo!()
    }

    /// How much it holds.
    pub fn capabilities(&self) -> QpCapabilities {
        todo!()
    }

    /// Its state now.
    pub fn state(&self) -> QpState {
        todo!()
    }

    /// Sets the attributes that `mask` names, and moves it to another state (`ibv_modify_qp`).
    ///
    /// # Errors
    /// `EINVAL` when the transition does not exist, when `mask` lacks an attribute that it requires or has one
    /// that it does not allow, or when a value is out of range; nothing has then changed. `EOPNOTSUPP` for
    /// alternate paths and rate limits.
    pub fn modify(&self, attributes: &QpAttributes, mask: QpAttributeMask) -> Result<()> {
        let _ = (attributes, mask);
        todo!()
    }

    /// Takes a queue pair from RESET to RTS in one go.
    ///
    /// # Errors
    /// As [`Self::modify`], of which it makes three.
    pub fn connect(&self, connection: &Connection) -> Result<()> {
        let _ = connection;
        todo!()
    }

    /// Its attributes (`ibv_query_qp`).
    pub fn query(&self) -> QpAttributes {
        todo!()
    }

    /// Posts work requests to the send queue, and sends on this thread what the window allows (`ibv_post_send`).
    ///
    /// # Errors
    /// `EINVAL` before RTS, for too many elements, too long inline data, or a request that makes no sense;
    /// `ENOMEM` when the queue is full.
    pub fn post_send(&self, requests: &[SendWorkRequest<'_>]) -> Result<(), PostError> {
        let _ = requests;
        todo!()
    }

    /// Posts receives (`ibv_post_recv`).
    ///
    /// # Errors
    /// `EINVAL` in RESET or for too many elements; `ENOMEM` when the queue is full.
    pub fn post_recv(&self, requests: &[ReceiveWorkRequest<'_>]) -> Result<(), PostError> {
        let _ = requests;
        todo!()
    }

    /// Destroys it (`ibv_destroy_qp`). Outstanding work requests end without completions.
    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}
