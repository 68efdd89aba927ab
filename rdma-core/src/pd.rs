//! Protection domains, parent domains, thread domains.

use crate::{
    context::{ContextHandle, ContextPtr},
    entry::{self, Refusal, Result},
    fork::Birth,
    types::{ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr},
};
use libc::c_int;
use std::sync::Arc;
use uroce::verbs::ProtectionDomain;

/// `struct ibv_pd`: a protection domain, or a parent domain.
#[repr(C)]
pub(crate) struct Pd {
    base: ibv_pd,
    verbs: ProtectionDomain,
    birth: Birth,
    pub(crate) context: ContextHandle,
    /// A share in the thread domain that it was made with.
    _thread: Option<Arc<()>>,
}

impl Pd {
    fn create(context: ContextHandle, verbs: ProtectionDomain, thread: Option<Arc<()>>) -> *mut Self {
        let base = ibv_pd { context: context.as_raw(), handle: verbs.number() };
        Box::into_raw(Box::new(Self { base, verbs, birth: Birth::now(), context, _thread: thread }))
    }

    /// The domain; `EIO` when it is the parent process's.
    pub(crate) fn get(&self) -> Result<&ProtectionDomain> {
        self.birth.check()?;
        Ok(&self.verbs)
    }
}

pub(crate) extern "C" fn alloc_pd(context: ContextPtr) -> *mut Pd {
    entry::pointer("ibv_alloc_pd", || {
        let context = context.share()?;
        let verbs = context.verbs().alloc_pd()?;
        Ok(Pd::create(context, verbs, None))
    })
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut Pd) -> c_int {
    entry::errno("ibv_dealloc_pd", || {
        // SAFETY: the program passes a protection domain that it has not deallocated.
        unsafe { &*pd }.get()?.dealloc()?;
        // SAFETY: it came from Box::into_raw, and the program gives it back.
        drop(unsafe { Box::from_raw(pd) });
        Ok(())
    })
}

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT`: who allocates the buffers that
/// are shared with the hardware. There are none, so nobody is asked.
const ALLOCATORS: u32 = 3;

pub(crate) extern "C" fn alloc_parent_domain(context: ContextPtr, attr: &ibv_parent_domain_init_attr) -> *mut Pd {
    entry::pointer("ibv_alloc_parent_domain", || {
        if attr.comp_mask & !ALLOCATORS != 0 {
            return Err(Refusal::not_supported("there are no such options of a parent domain"));
        }
        // SAFETY: the program passes objects that it has not deallocated, or NULL.
        let (child, thread) = unsafe { (attr.pd.as_ref(), attr.td.as_ref()) };
        let child = child.ok_or(Refusal::invalid("a parent domain needs a protection domain"))?.get()?;
        if let Some(thread) = thread {
            thread.birth.check()?;
        }
        let verbs = child.alloc_parent_domain()?;
        Ok(Pd::create(context.share()?, verbs, thread.map(|thread| thread.users.clone())))
    })
}

/// `struct ibv_td`: a program's promise that one thread at a time uses what is made with it. It saves nothing here.
#[repr(C)]
pub(crate) struct Td {
    base: ibv_td,
    birth: Birth,
    /// Shared with the parent domains that it is part of.
    users: Arc<()>,
    _context: ContextHandle,
}

pub(crate) extern "C" fn alloc_td(context: ContextPtr, attr: &ibv_td_init_attr) -> *mut Td {
    entry::pointer("ibv_alloc_td", || {
        if attr.comp_mask != 0 {
            return Err(Refusal::not_supported("there are no options of a thread domain"));
        }
        let context = context.share()?;
        let base = ibv_td { context: context.as_raw() };
        Ok(Box::into_raw(Box::new(Td { base, birth: Birth::now(), users: Arc::default(), _context: context })))
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut Td) -> c_int {
    entry::errno("ibv_dealloc_td", || {
        // SAFETY: the program passes a thread domain that it has not deallocated.
        let this = unsafe { &*td };
        this.birth.check()?;
        if Arc::strong_count(&this.users) > 1 {
            return Err(Refusal::new(libc::EBUSY, "a parent domain uses the thread domain"));
        }
        // SAFETY: it came from Box::into_raw, and the program gives it back.
        drop(unsafe { Box::from_raw(td) });
        Ok(())
    })
}
