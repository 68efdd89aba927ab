//! Address handles, and multicast groups: where datagrams go.

use crate::{
    context::{ContextHandle, ContextPtr},
    entry::{self, Refusal, Result},
    fork::Birth,
    pd::Pd,
    qp::{Qp, address_handle_attributes, ah_attr},
    types::{ibv_ah, ibv_ah_attr, ibv_gid, ibv_wc},
};
use libc::c_int;
use std::{mem::MaybeUninit, ptr};
use uroce::verbs::{AddressHandle, AddressHandleAttributes, Gid, QKey, Qpn, Target, WorkCompletion};

const WC_GRH: u32 = 1 << 0;

/// `struct ibv_ah`.
#[repr(C)]
pub(crate) struct Ah {
    base: ibv_ah,
    verbs: AddressHandle,
    birth: Birth,
    _context: ContextHandle,
}

impl Ah {
    fn create(pd: &Pd, attributes: &AddressHandleAttributes) -> Result<*mut Self> {
        let verbs = pd.get()?.create_ah(attributes)?;
        let base = ibv_ah { context: pd.context.as_raw(), pd: ptr::from_ref(pd), handle: 0 };
        Ok(Box::into_raw(Box::new(Self { base, verbs, birth: Birth::now(), _context: pd.context.clone() })))
    }

    /// A queue pair where it leads to.
    pub(crate) fn target(&self, remote_qpn: u32, remote_qkey: u32) -> Result<Target> {
        self.birth.check()?;
        if remote_qpn >> 24 != 0 {
            return Err(Refusal::invalid("a queue pair number has 24 bits"));
        }
        Ok(self.verbs.target(Qpn::new(remote_qpn), QKey(remote_qkey)))
    }
}

pub(crate) extern "C" fn create_ah(pd: &Pd, attr: &ibv_ah_attr) -> *mut Ah {
    entry::pointer("ibv_create_ah", || {
        let local = pd.context.verbs().device().gid();
        Ah::create(pd, &address_handle_attributes(attr, local))
    })
}

pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut Ah) -> c_int {
    entry::errno("ibv_destroy_ah", || {
        // SAFETY: the program passes an address handle that it has not destroyed.
        let this = unsafe { &*ah };
        this.birth.check()?;
        this.verbs.destroy()?;
        // SAFETY: it came from Box::into_raw, and the program gives it back.
        drop(unsafe { Box::from_raw(ah) });
        Ok(())
    })
}

/// What of a completion leads back to the sender.
fn completion(wc: &ibv_wc) -> WorkCompletion {
    WorkCompletion {
        src_qp: Some(Qpn::new(wc.src_qp & 0xff_ffff)),
        has_grh: wc.wc_flags & WC_GRH != 0,
        ..WorkCompletion::default()
    }
}

pub(crate) extern "C" fn init_ah_from_wc(
    context: ContextPtr,
    port_num: u8,
    wc: &ibv_wc,
    grh: &[u8; 40],
    attr: &mut MaybeUninit<ibv_ah_attr>,
) -> c_int {
    entry::number("ibv_init_ah_from_wc", || {
        let attributes = context.get()?.verbs().init_ah_from_wc(port_num, &completion(wc), grh)?;
        attr.write(ah_attr(&attributes));
        Ok(0)
    })
}

pub(crate) extern "C" fn create_ah_from_wc(pd: &Pd, wc: &ibv_wc, grh: &[u8; 40], port_num: u8) -> *mut Ah {
    entry::pointer("ibv_create_ah_from_wc", || {
        let attributes = pd.get()?.context().init_ah_from_wc(port_num, &completion(wc), grh)?;
        Ah::create(pd, &attributes)
    })
}

pub(crate) extern "C" fn attach_mcast(qp: &Qp, gid: &ibv_gid, lid: u16) -> c_int {
    entry::errno("ibv_attach_mcast", || {
        qp.birth.check()?;
        Ok(qp.verbs.attach_mcast(&Gid(gid.raw), lid)?)
    })
}

pub(crate) extern "C" fn detach_mcast(qp: &Qp, gid: &ibv_gid, lid: u16) -> c_int {
    entry::errno("ibv_detach_mcast", || {
        qp.birth.check()?;
        Ok(qp.verbs.detach_mcast(&Gid(gid.raw), lid)?)
    })
}
