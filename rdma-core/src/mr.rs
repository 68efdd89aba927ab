//! Memory regions.

use crate::{
    context::ContextHandle,
    entry::{self, Refusal, Result},
    fork::Birth,
    pd::Pd,
    types::ibv_mr,
};
use libc::{c_int, c_uint, c_void, size_t};
use std::{cell::UnsafeCell, io, ptr};
use uroce::verbs::{AccessFlags, MemoryRegion};

/// `IBV_ACCESS_OPTIONAL_RANGE`: what these bits ask for may be ignored.
const OPTIONAL: c_uint = 0x3ff0_0000;
/// `IBV_ACCESS_HUGETLB`: the memory lies in huge pages. It makes no difference here.
const HUGETLB: c_uint = 1 << 7;
/// `IBV_ACCESS_ON_DEMAND`: pages are faulted in when they are needed.
const ON_DEMAND: c_uint = 1 << 6;

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    /// Written by a reregistration alone.
    base: UnsafeCell<ibv_mr>,
    pub(crate) verbs: MemoryRegion,
    birth: Birth,
    _context: ContextHandle,
}

/// What a program's access bits ask for.
pub(crate) fn access_flags(access: c_uint) -> Result<AccessFlags> {
    if access & ON_DEMAND != 0 {
        return Err(Refusal::not_supported("there is no on-demand paging"));
    }
    AccessFlags::from_bits(access & !(OPTIONAL | HUGETLB))
        .filter(|access| !access.contains(AccessFlags::REMOTE_INVALIDATE))
        .ok_or(Refusal::invalid("there is no such access"))
}

/// Faults the memory in, as registering it with hardware would.
///
/// # Errors
/// `EFAULT` when it is not there, or not writable though `access` needs that.
fn fault_in(address: *mut c_void, length: usize, access: AccessFlags) -> Result<()> {
    // SAFETY: no precondition. (rustix reads the auxiliary vector itself, and crashes under valgrind, which changes it.)
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = address.map_addr(|address| address & !(page - 1));
    let length = length.saturating_add(address.addr() - start.addr());
    let advice =
        if access.contains(AccessFlags::LOCAL_WRITE) { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: populating changes no mapping and no byte; addresses that are not mapped are refused.
    let result = unsafe { libc::madvise(start, length, advice) };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error().raw_os_error() {
        // Linux before 5.14 does not know how, and memory of a device is there anyhow.
        Some(libc::EINVAL) => Ok(()),
        Some(libc::EAGAIN | libc::EINTR) => Ok(()),
        _ => Err(Refusal::new(libc::EFAULT, "the memory is not there, or not writable")),
    }
}

fn register(pd: &Pd, address: *mut c_void, length: size_t, iova: u64, access: c_uint) -> Result<*mut Mr> {
    let domain = pd.get()?;
    let access = access_flags(access)?;
    if length > 0 {
        fault_in(address, length, access)?;
    }
    // SAFETY: the verbs' contract, which the program has agreed to: the memory stays until it is deregistered, and
    // who may touch it when is between the program and its peers.
    let verbs = unsafe { domain.reg_mr_raw_iova(address.cast(), length, iova, access)? };
    let base = ibv_mr {
        context: pd.context.as_raw(),
        pd: ptr::from_ref(pd),
        addr: address,
        length,
        handle: verbs.lkey(),
        lkey: verbs.lkey(),
        rkey: verbs.rkey().0,
    };
    let mr = Mr { base: UnsafeCell::new(base), verbs, birth: Birth::now(), _context: pd.context.clone() };
    Ok(Box::into_raw(Box::new(mr)))
}

pub(crate) extern "C" fn reg_mr(pd: &Pd, address: *mut c_void, length: size_t, access: c_int) -> *mut Mr {
    entry::pointer("ibv_reg_mr", || register(pd, address, length, address.addr() as u64, access as c_uint))
}

pub(crate) extern "C" fn reg_mr_iova(
    pd: &Pd,
    address: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    entry::pointer("ibv_reg_mr_iova", || register(pd, address, length, iova, access as c_uint))
}

pub(crate) extern "C" fn reg_mr_iova2(
    pd: &Pd,
    address: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    entry::pointer("ibv_reg_mr_iova2", || register(pd, address, length, iova, access))
}

/// What a reregistration changes: `enum ibv_rereg_mr_flags`.
const CHANGE_TRANSLATION: c_int = 1 << 0;
const CHANGE_PD: c_int = 1 << 1;
const CHANGE_ACCESS: c_int = 1 << 2;

fn reregister(
    mr: &Mr,
    flags: c_int,
    pd: Option<&Pd>,
    address: *mut c_void,
    length: size_t,
    access: c_int,
) -> Result<()> {
    mr.birth.check()?;
    if flags == 0 || flags & !(CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS) != 0 {
        return Err(Refusal::invalid("there are no such changes of a memory region"));
    }
    let pd = pd.filter(|_| flags & CHANGE_PD != 0);
    if flags & CHANGE_PD != 0 && pd.is_none() {
        return Err(Refusal::invalid("the new protection domain is missing"));
    }
    let domain = pd.map(Pd::get).transpose()?;
    let access = (flags & CHANGE_ACCESS != 0).then(|| access_flags(access as c_uint)).transpose()?;
    if flags & CHANGE_TRANSLATION == 0 {
        mr.verbs.rereg(domain, access)?;
    } else {
        if address.is_null() || length == 0 {
            return Err(Refusal::invalid("the new memory is missing"));
        }
        fault_in(address, length, access.unwrap_or(mr.verbs.access()))?;
        // SAFETY: the verbs' contract, which the program has agreed to.
        unsafe { mr.verbs.rereg_raw(address.cast(), length, domain, access)? };
    }
    // SAFETY: programs do not look at a region while they have it changed.
    let base = unsafe { &mut *mr.base.get() };
    if flags & CHANGE_TRANSLATION != 0 {
        (base.addr, base.length) = (address, length);
    }
    if let Some(pd) = pd {
        base.pd = ptr::from_ref(pd);
    }
    (base.lkey, base.rkey) = (mr.verbs.lkey(), mr.verbs.rkey().0);
    Ok(())
}

/// Returns 0, or −1 (`IBV_REREG_MR_ERR_INPUT`): the region is as it was.
pub(crate) extern "C" fn rereg_mr(
    mr: &Mr,
    flags: c_int,
    pd: Option<&Pd>,
    address: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    entry::number("ibv_rereg_mr", || reregister(mr, flags, pd, address, length, access).map(|()| 0))
}

pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    entry::errno("ibv_dereg_mr", || {
        // SAFETY: the program passes a memory region that it has not deregistered.
        let this = unsafe { &*mr };
        this.birth.check()?;
        this.verbs.dereg()?;
        // SAFETY: it came from Box::into_raw, and the program gives it back.
        drop(unsafe { Box::from_raw(mr) });
        Ok(())
    })
}
