//! XRC domains.

use crate::{
    context::{ContextHandle, ContextPtr},
    entry::{self, Refusal},
    fork::Birth,
    qp::Qp,
    types::{ibv_qp_open_attr, ibv_xrcd, ibv_xrcd_init_attr},
};
use libc::c_int;
use std::{os::fd::BorrowedFd, ptr};
use uroce::verbs::{XrcDomain, XrcDomainInitAttributes};

/// `IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS`: both are asked for.
const INIT_MASK: u32 = 3;
/// `IBV_QP_OPEN_ATTR_NUM | _XRCD | _TYPE`, without which no queue pair is found; `_CONTEXT` (4) may be added.
const OPEN_MASK: u32 = 1 | 2 | 8;
const OPEN_CONTEXT: u32 = 4;

/// `struct ibv_xrcd`.
#[repr(C)]
pub(crate) struct Xrcd {
    base: ibv_xrcd,
    pub(crate) verbs: XrcDomain,
    pub(crate) birth: Birth,
    pub(crate) context: ContextHandle,
}

pub(crate) extern "C" fn open_xrcd(context: ContextPtr, attr: &ibv_xrcd_init_attr) -> *mut Xrcd {
    entry::pointer("ibv_open_xrcd", || {
        if attr.comp_mask != INIT_MASK {
            return Err(Refusal::invalid("a file and flags are wanted, and nothing else"));
        }
        let file = match attr.fd {
            -1 => None,
            // SAFETY: the program does not close the descriptor during the call.
            fd if fd >= 0 => Some(unsafe { BorrowedFd::borrow_raw(fd) }),
            _ => return Err(Refusal::new(libc::EBADF, "this is no descriptor")),
        };
        let context = context.share()?;
        let verbs = context.verbs().open_xrcd(&XrcDomainInitAttributes {
            file,
            create: attr.oflags & libc::O_CREAT != 0,
            exclusive: attr.oflags & libc::O_EXCL != 0,
        })?;
        let base = ibv_xrcd { context: context.as_raw() };
        Ok(Box::into_raw(Box::new(Xrcd { base, verbs, birth: Birth::now(), context })))
    })
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut Xrcd) -> c_int {
    entry::errno("ibv_close_xrcd", || {
        // SAFETY: the program passes a domain that it has not closed.
        let this = unsafe { &*xrcd };
        this.birth.check()?;
        this.verbs.close()?;
        // SAFETY: it came from Box::into_raw, and the program gives it back.
        drop(unsafe { Box::from_raw(xrcd) });
        Ok(())
    })
}

/// Opens the target of an extended reliable connection that somebody else has made.
pub(crate) extern "C" fn open_qp(_context: ContextPtr, attr: &ibv_qp_open_attr) -> *mut Qp {
    entry::pointer("ibv_open_qp", || {
        if attr.comp_mask & !OPEN_CONTEXT != OPEN_MASK {
            return Err(Refusal::invalid("a queue pair is opened by its number, type and XRC domain"));
        }
        // SAFETY: the program passes a domain that it has not closed, or NULL.
        let domain = unsafe { attr.xrcd.as_ref() }.ok_or(Refusal::invalid("the XRC domain is missing"))?;
        let qp_context = if attr.comp_mask & OPEN_CONTEXT == 0 { ptr::null_mut() } else { attr.qp_context };
        Qp::open_target(domain, attr.qp_num, attr.qp_type, qp_context)
    })
}
