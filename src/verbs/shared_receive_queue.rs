//! Shared receive queues.

use super::{
    CompletionQueue, Error, PostError, ProtectionDomain, ReceiveWorkRequest, Result, Sge, SrqAttributeMask,
    SrqAttributes, XrcDomain, uses::Uses,
};
use crate::nic::{Nic, Srq, XrcQueue};
use std::sync::Arc;

/// A shared receive queue (`struct ibv_srq`): receives for whichever of several queue pairs needs them first.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pd: ProtectionDomain,
    xrc: Option<(XrcDomain, CompletionQueue)>,
    srq: Arc<Srq>,
    srq_context: u64,
    uses: Uses,
}

impl Shared {
    fn nic(&self) -> &Nic {
        self.pd.context().nic()
    }

    fn retire(&self) {
        self.nic().destroy_srq(&self.srq);
        parents(&self.pd, self.xrc.as_ref()).for_each(Uses::release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Unless it has been destroyed by name.
        if self.uses.retire("").is_ok() {
            self.retire();
        }
    }
}

/// What a shared receive queue depends on.
fn parents<'a>(
    pd: &'a ProtectionDomain,
    xrc: Option<&'a (XrcDomain, CompletionQueue)>,
) -> impl Iterator<Item = &'a Uses> + Clone {
    let [domain, cq] = xrc.map_or([None, None], |(domain, cq)| [Some(domain.uses()), Some(cq.uses())]);
    [Some(pd.uses()), domain, cq].into_iter().flatten()
}

/// What a shared receive queue is made of (`struct ibv_srq_init_attr_ex`).
#[derive(Clone, Copy, Debug, Default)]
pub struct SrqInitAttributes<'a> {
    /// How much it holds.
    pub attr: SrqAttributes,
    /// For the targets of an XRC domain (`IBV_SRQT_XRC`): the domain, and where its receives complete.
    pub xrc: Option<(&'a XrcDomain, &'a CompletionQueue)>,
    /// What the creator attaches (`ibv_srq.srq_context`).
    pub srq_context: u64,
}

impl SharedReceiveQueue {
    pub(super) fn new(pd: ProtectionDomain, attributes: &SrqInitAttributes<'_>) -> Result<Self> {
        let SrqInitAttributes { attr, xrc, srq_context } = attributes;
        let context = pd.context();
        if xrc.is_some_and(|(domain, cq)| !domain.context().is_same(context) || !cq.context().is_same(context)) {
            return Err(Error::InvalidArgument("the XRC domain or completion queue is another context's"));
        }
        let xrc = xrc.map(|(domain, cq)| (domain.clone(), cq.clone()));
        Uses::acquire_all(parents(&pd, xrc.as_ref()))?;
        let queue = xrc.as_ref().map(|(domain, cq)| XrcQueue { domain: domain.number(), cq: cq.cq().clone() });
        match context.nic().create_srq(pd.number(), attr, queue, context.events().clone()) {
            Ok(srq) => {
                let shared = Shared { pd, xrc, srq, srq_context: *srq_context, uses: Uses::default() };
                Ok(Self { shared: Arc::new(shared) })
            }
            Err(error) => {
                parents(&pd, xrc.as_ref()).for_each(Uses::release);
                Err(error)
            }
        }
    }

    pub(super) fn srq(&self) -> &Arc<Srq> {
        &self.shared.srq
    }

    pub(super) fn uses(&self) -> &Uses {
        &self.shared.uses
    }

    /// The protection domain that its receives' buffers are of; on XRC also that of the memory that requests which
    /// name it may reach.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.shared.pd
    }

    /// Its number, by which asynchronous events name it, and XRC requests (`ibv_get_srq_num`); 24 bits.
    pub fn number(&self) -> u32 {
        self.shared.srq.number().value()
    }

    /// The XRC domain whose targets may use it; none for ordinary queue pairs' queues.
    pub fn xrc_domain(&self) -> Option<&XrcDomain> {
        self.shared.xrc.as_ref().map(|(domain, _)| domain)
    }

    /// What the creator attached.
    pub fn srq_context(&self) -> u64 {
        self.shared.srq_context
    }

    /// Posts receives (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// `EINVAL` for too many elements; `ENOMEM` when the queue is full.
    pub fn post_recv(&self, requests: &[ReceiveWorkRequest<'_>]) -> Result<(), PostError> {
        requests.iter().enumerate().try_for_each(|(index, request)| {
            self.post_one(request.wr_id, request.sg_list).map_err(|error| PostError { index, error })
        })
    }

    /// As [`Self::post_recv`], for callers who have no slice of requests.
    ///
    /// # Errors
    /// As [`Self::post_recv`].
    pub fn post_one(&self, wr_id: u64, sg_list: &[Sge]) -> Result<()> {
        self.shared.uses.check()?;
        self.shared.srq.post(wr_id, sg_list)
    }

    /// Sets the attributes that `mask` names (`ibv_modify_srq`): its size, which may not be less than what is
    /// posted, and the limit, which arms the event
    /// [`SrqLimitReached`](super::AsyncEventType::SrqLimitReached). The event comes when a message takes a receive and
    /// leaves fewer than the limit, not at once.
    ///
    /// # Errors
    /// `EINVAL` for a size that the device does not allow, or a limit that is more than the size; nothing has then
    /// changed.
    pub fn modify(&self, attributes: &SrqAttributes, mask: SrqAttributeMask) -> Result<()> {
        self.shared.uses.check()?;
        self.shared.srq.modify(attributes, mask)
    }

    /// Its attributes (`ibv_query_srq`); a limit of 0 says that the event is not, or no longer, armed.
    pub fn query(&self) -> SrqAttributes {
        self.shared.srq.query()
    }

    /// Destroys it (`ibv_destroy_srq`), with the receives that are posted: `EBUSY` while a queue pair uses it.
    pub fn destroy(&self) -> Result<()> {
        self.shared.uses.retire("a queue pair uses the shared receive queue")?;
        self.shared.retire();
        Ok(())
    }
}
