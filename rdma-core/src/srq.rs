//! Shared receive queues.

use crate::{
    context::{ContextHandle, ContextPtr, Object, Unacknowledged},
    entry::{self, Refusal, Result},
    fork::Birth,
    pd::Pd,
    post,
    types::{ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex},
};
use libc::{c_int, c_void};
use std::{
    mem::MaybeUninit,
    ptr::{self, NonNull},
};
use uroce::verbs::{AsyncElement, SharedReceiveQueue, SrqAttributeMask, SrqAttributes, SrqInitAttributes};

/// `enum ibv_srq_init_attr_mask`, as far as it is known here.
const MASK_TYPE: u32 = 1 << 0;
const MASK_PD: u32 = 1 << 1;
const MASK_XRCD: u32 = 1 << 2;
const MASK_CQ: u32 = 1 << 3;
/// `enum ibv_srq_type`.
const BASIC: u32 = 0;
const XRC: u32 = 1;

/// `struct ibv_srq`.
#[repr(C)]
pub(crate) struct Srq {
    base: ibv_srq,
    pub(crate) verbs: SharedReceiveQueue,
    pub(crate) birth: Birth,
    /// Asynchronous events of it.
    pub(crate) events: Unacknowledged,
    context: ContextHandle,
}

impl Srq {
    fn create(
        pd: &Pd,
        srq_context: *mut c_void,
        attr: &mut ibv_srq_attr,
        attributes: &SrqInitAttributes<'_>,
    ) -> Result<*mut Self> {
        let verbs = pd.get()?.create_srq(attributes)?;
        write_attributes(attr, &verbs.query());
        let base = ibv_srq {
            context: pd.context.as_raw(),
            srq_context,
            pd: ptr::from_ref(pd),
            handle: verbs.number(),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        let srq =
            Self { base, verbs, birth: Birth::now(), events: Unacknowledged::default(), context: pd.context.clone() };
        let element = srq.element();
        let object = NonNull::from(Box::leak(Box::new(srq)));
        pd.context.enter(element, Object::Srq(object));
        Ok(object.as_ptr())
    }

    fn element(&self) -> AsyncElement {
        AsyncElement::SharedReceiveQueue(self.verbs.number())
    }
}

const fn attributes(attr: &ibv_srq_attr) -> SrqAttributes {
    SrqAttributes { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: attr.srq_limit }
}

const fn write_attributes(attr: &mut ibv_srq_attr, attributes: &SrqAttributes) {
    *attr = ibv_srq_attr { max_wr: attributes.max_wr, max_sge: attributes.max_sge, srq_limit: attributes.srq_limit };
}

pub(crate) extern "C" fn create_srq(pd: &Pd, init: &mut ibv_srq_init_attr) -> *mut Srq {
    entry::pointer("ibv_create_srq", || {
        let attributes = SrqInitAttributes { attr: attributes(&init.attr), ..SrqInitAttributes::default() };
        Srq::create(pd, init.srq_context, &mut init.attr, &attributes)
    })
}

pub(crate) extern "C" fn create_srq_ex(_context: ContextPtr, init: &mut ibv_srq_init_attr_ex) -> *mut Srq {
    entry::pointer("ibv_create_srq_ex", || {
        let mask = init.comp_mask;
        if mask & !(MASK_TYPE | MASK_PD | MASK_XRCD | MASK_CQ) != 0 {
            return Err(Refusal::not_supported("there are no such options of a shared receive queue"));
        }
        let srq_type = if mask & MASK_TYPE == 0 { BASIC } else { init.srq_type };
        // SAFETY: the program passes objects that it has not destroyed, or NULL.
        let (pd, xrcd, cq) = unsafe {
            let given = |bit| mask & bit != 0;
            (
                init.pd.as_ref().filter(|_| given(MASK_PD)),
                init.xrcd.as_ref().filter(|_| given(MASK_XRCD)),
                init.cq.as_ref().filter(|_| given(MASK_CQ)),
            )
        };
        let pd = pd.ok_or(Refusal::invalid("a shared receive queue needs a protection domain"))?;
        let xrc = match (srq_type, xrcd, cq) {
            (BASIC, ..) => None,
            (XRC, Some(xrcd), Some(cq)) => {
                xrcd.birth.check()?;
                cq.birth.check()?;
                Some((&xrcd.verbs, &cq.verbs))
            }
            (XRC, ..) => return Err(Refusal::invalid("an XRC queue needs an XRC domain and a completion queue")),
            _ => return Err(Refusal::not_supported("there is no such type of shared receive queue")),
        };
        let attributes = SrqInitAttributes { attr: attributes(&init.attr), xrc, srq_context: 0 };
        Srq::create(pd, init.srq_context, &mut init.attr, &attributes)
    })
}

pub(crate) extern "C" fn modify_srq(srq: &Srq, attr: &ibv_srq_attr, attr_mask: c_int) -> c_int {
    entry::errno("ibv_modify_srq", || {
        srq.birth.check()?;
        let mask =
            SrqAttributeMask::from_bits(attr_mask as u32).ok_or(Refusal::invalid("there is no such attribute"))?;
        Ok(srq.verbs.modify(&attributes(attr), mask)?)
    })
}

pub(crate) extern "C" fn query_srq(srq: &Srq, attr: &mut MaybeUninit<ibv_srq_attr>) -> c_int {
    entry::errno("ibv_query_srq", || {
        srq.birth.check()?;
        let known = srq.verbs.query();
        attr.write(ibv_srq_attr { max_wr: known.max_wr, max_sge: known.max_sge, srq_limit: known.srq_limit });
        Ok(())
    })
}

/// Only requests over XRC name a queue.
pub(crate) extern "C" fn get_srq_num(srq: &Srq, number: &mut MaybeUninit<u32>) -> c_int {
    entry::errno("ibv_get_srq_num", || {
        srq.birth.check()?;
        if srq.verbs.xrc_domain().is_none() {
            return Err(Refusal::invalid("the shared receive queue is not of an XRC domain"));
        }
        number.write(srq.verbs.number());
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut Srq) -> c_int {
    entry::errno("ibv_destroy_srq", || {
        // SAFETY: the program passes a shared receive queue that it has not destroyed.
        let this = unsafe { &*srq };
        this.birth.check()?;
        this.verbs.destroy()?;
        this.context.leave(this.element());
        this.events.wait();
        // SAFETY: it came from a Box, the program gives it back, and no event refers to it any more.
        drop(unsafe { Box::from_raw(srq) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(srq: &Srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    let mut next = wr;
    let posted = entry::guard(|| {
        srq.birth.check()?;
        // SAFETY: the program's chain ends in NULL, and its requests are as the verb wants them.
        unsafe { post::each_receive(&mut next, |wr_id, list| Ok(srq.verbs.post_one(wr_id, list)?)) }
    });
    // SAFETY: the program has passed where to put the request that was not taken.
    unsafe { post::conclude("ibv_post_srq_recv", posted, next, bad_wr) }
}
