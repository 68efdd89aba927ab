//! Memory windows.

use crate::{
    context::ContextHandle,
    entry::{self, Refusal, Result},
    fork::Birth,
    mr::access_flags,
    pd::Pd,
    post::{SEND_FENCE, SEND_SIGNALED},
    qp::Qp,
    types::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info},
};
use libc::{c_int, c_uint};
use std::{cell::UnsafeCell, ptr};
use uroce::verbs::{MemoryWindow, MemoryWindowType, RKey, WindowBind, WindowBindInfo, WindowBinding};

/// `struct ibv_mw`.
#[repr(C)]
pub(crate) struct Mw {
    /// Its key changes with every bind of a window of type 1.
    base: UnsafeCell<ibv_mw>,
    verbs: MemoryWindow,
    birth: Birth,
    _context: ContextHandle,
}

impl Mw {
    /// What the work request is that binds a window of type 2.
    pub(crate) fn binding(&self, rkey: u32, info: &ibv_mw_bind_info) -> Result<WindowBinding> {
        self.birth.check()?;
        Ok(self.verbs.binding(RKey(rkey), &bind_info(info)?)?)
    }
}

fn bind_info(info: &ibv_mw_bind_info) -> Result<WindowBindInfo<'_>> {
    // SAFETY: the program passes a memory region that it has not deregistered, or NULL.
    let mr = unsafe { info.mr.as_ref() };
    Ok(WindowBindInfo {
        mr: mr.map(|mr| &mr.verbs),
        address: info.addr,
        length: info.length,
        access: access_flags(info.mw_access_flags)?,
    })
}

pub(crate) extern "C" fn alloc_mw(pd: &Pd, mw_type: c_uint) -> *mut Mw {
    entry::pointer("ibv_alloc_mw", || {
        let window_type = [MemoryWindowType::Type1, MemoryWindowType::Type2]
            .into_iter()
            .find(|&window_type| window_type as c_uint == mw_type)
            .ok_or(Refusal::invalid("there is no such type of memory window"))?;
        let verbs = pd.get()?.alloc_mw(window_type)?;
        let rkey = verbs.rkey().0;
        let base = ibv_mw { context: pd.context.as_raw(), pd: ptr::from_ref(pd), rkey, handle: rkey, mw_type };
        let mw = Mw { base: UnsafeCell::new(base), verbs, birth: Birth::now(), _context: pd.context.clone() };
        Ok(Box::into_raw(Box::new(mw)))
    })
}

pub(crate) extern "C" fn bind_mw(qp: &Qp, mw: &Mw, bind: &ibv_mw_bind) -> c_int {
    entry::errno("ibv_bind_mw", || {
        qp.birth.check()?;
        mw.birth.check()?;
        let rkey = qp.verbs.bind_mw(
            &mw.verbs,
            &WindowBind {
                wr_id: bind.wr_id,
                info: bind_info(&bind.bind_info)?,
                signaled: bind.send_flags & SEND_SIGNALED != 0,
                fence: bind.send_flags & SEND_FENCE != 0,
            },
        )?;
        // SAFETY: programs do not read the key while they have it changed.
        unsafe { (*mw.base.get()).rkey = rkey.0 };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut Mw) -> c_int {
    entry::errno("ibv_dealloc_mw", || {
        // SAFETY: the program passes a memory window that it has not deallocated.
        let this = unsafe { &*mw };
        this.birth.check()?;
        this.verbs.dealloc()?;
        // SAFETY: it came from Box::into_raw, and the program gives it back.
        drop(unsafe { Box::from_raw(mw) });
        Ok(())
    })
}
