//! Completion queues that are read field by field (`struct ibv_cq_ex`).
//!
//! The functions that read are in the struct, and so are the status and number of the completion that is being read.
//! So from `ibv_start_poll` to `ibv_end_poll` the queue is the caller's: other threads wait, unless the program has
//! promised that there are none.

use crate::{
    context::ContextPtr,
    cq::{self, Cq, NewCq},
    entry::{self, Refusal, Result},
    types::{ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr},
};
use libc::{c_int, c_uint};
use parking_lot::{RawMutex, lock_api::RawMutex as _};
use std::{
    cell::UnsafeCell,
    time::{SystemTime, UNIX_EPOCH},
};
use uroce::verbs::{Qpn, WorkCompletion};

/// What a completion can be asked for: the standard (bits 0 to 6), and when it came (bits 7 and 11). The rest (VLAN
/// tag, flow tag, tag matching) no completion here has.
const WC_FLAGS: u64 = 0x7f | 1 << 7 | 1 << 11;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`.
const MASK_FLAGS: u32 = 1 << 0;
/// `IBV_CQ_INIT_ATTR_MASK_PD`.
const MASK_PD: u32 = 1 << 1;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
const SINGLE_THREADED: u32 = 1 << 0;

/// What a completion queue has for being read field by field.
pub(crate) struct Reader {
    /// Held from start_poll to end_poll.
    lock: RawMutex,
    is_single_threaded: bool,
    /// The completion that is being read, by whoever holds the lock.
    current: UnsafeCell<WorkCompletion>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { lock: RawMutex::INIT, is_single_threaded: false, current: UnsafeCell::default() }
    }
}

pub(crate) extern "C" fn create_cq_ex(context: ContextPtr, attr: &ibv_cq_init_attr_ex) -> *mut Cq {
    entry::pointer("ibv_create_cq_ex", || {
        if attr.comp_mask & !(MASK_FLAGS | MASK_PD) != 0 {
            return Err(Refusal::invalid("there are no such options of a completion queue"));
        }
        if attr.wc_flags & !WC_FLAGS != 0 {
            return Err(Refusal::not_supported("no completion has such a field"));
        }
        let flags = if attr.comp_mask & MASK_FLAGS == 0 { 0 } else { attr.flags };
        if flags & !SINGLE_THREADED != 0 {
            return Err(Refusal::not_supported("a completion queue does not ignore that it overruns"));
        }
        // SAFETY: the program passes a parent domain that it has not deallocated, or NULL.
        if let Some(domain) = unsafe { attr.parent_domain.as_ref() }.filter(|_| attr.comp_mask & MASK_PD != 0) {
            domain.get()?;
        }
        Cq::create(NewCq {
            context: context.share()?,
            cqe: attr.cqe,
            cq_context: attr.cq_context,
            // SAFETY: the program passes a channel that it has not destroyed, or NULL.
            channel: unsafe { attr.channel.as_ref() },
            comp_vector: attr.comp_vector,
            reader: Reader { is_single_threaded: flags & SINGLE_THREADED != 0, ..Reader::default() },
        })
    })
}

/// Fills the slots of a completion queue's struct. All can be filled, so all are, whatever was asked for.
pub(crate) fn fill(base: &mut ibv_cq_ex) {
    base.start_poll = Some(start_poll);
    base.next_poll = Some(next_poll);
    base.end_poll = Some(end_poll);
    base.read_opcode = Some(read_opcode);
    base.read_vendor_err = Some(read_vendor_err);
    base.read_byte_len = Some(read_byte_len);
    base.read_imm_data = Some(read_imm_data);
    base.read_qp_num = Some(read_qp_num);
    base.read_src_qp = Some(read_src_qp);
    base.read_wc_flags = Some(read_wc_flags);
    base.read_slid = Some(read_slid);
    base.read_sl = Some(read_sl);
    base.read_dlid_path_bits = Some(read_dlid_path_bits);
    base.read_completion_ts = Some(read_completion_ts);
    base.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// Takes the next completion to be read. `ENOENT` when there is none.
fn advance(cq: &Cq) -> Result<()> {
    let taken = cq.verbs.poll_with(1, |completion| {
        // SAFETY: the caller holds the queue, so nobody else reads or writes these.
        unsafe {
            *cq.reader.current.get() = completion;
            let base = cq.base();
            (*base).status = completion.status as c_uint;
            (*base).wr_id = completion.wr_id;
        }
    })?;
    if taken == 0 { Err(Refusal::new(libc::ENOENT, "there is no completion")) } else { Ok(()) }
}

fn release(cq: &Cq) {
    if !cq.reader.is_single_threaded {
        // SAFETY: start_poll has locked it for this caller.
        unsafe { cq.reader.lock.unlock() };
    }
}

/// Not [`entry::errno`]: that there is no completion is no news, and errno is left alone.
fn outcome(advanced: Result<()>) -> c_int {
    advanced.map_or_else(Refusal::into_errno, |()| 0)
}

extern "C" fn start_poll(cq: &Cq, attr: Option<&ibv_poll_cq_attr>) -> c_int {
    outcome(entry::guard(|| {
        cq.birth.check()?;
        if attr.is_some_and(|attr| attr.comp_mask != 0) {
            return Err(Refusal::invalid("there are no options of polling"));
        }
        if !cq.reader.is_single_threaded {
            cq.reader.lock.lock();
        }
        // Who finds nothing does not end the poll.
        advance(cq).inspect_err(|_| release(cq))
    }))
}

extern "C" fn next_poll(cq: &Cq) -> c_int {
    outcome(entry::guard(|| {
        cq.birth.check()?;
        advance(cq)
    }))
}

extern "C" fn end_poll(cq: &Cq) {
    if cq.birth.check().is_ok() {
        release(cq);
    }
}

/// The completion that is being read.
fn current(cq: &Cq) -> &WorkCompletion {
    // SAFETY: programs read between start_poll and end_poll, when the queue is theirs.
    unsafe { &*cq.reader.current.get() }
}

extern "C" fn read_opcode(cq: &Cq) -> c_uint {
    current(cq).opcode as c_uint
}

extern "C" fn read_vendor_err(_cq: &Cq) -> u32 {
    0
}

extern "C" fn read_byte_len(cq: &Cq) -> u32 {
    current(cq).byte_len
}

extern "C" fn read_imm_data(cq: &Cq) -> u32 {
    cq::imm_data(current(cq))
}

extern "C" fn read_qp_num(cq: &Cq) -> u32 {
    current(cq).qp_num.value()
}

extern "C" fn read_src_qp(cq: &Cq) -> u32 {
    current(cq).src_qp.map_or(0, Qpn::value)
}

extern "C" fn read_wc_flags(cq: &Cq) -> c_uint {
    cq::wc_flags(current(cq))
}

extern "C" fn read_slid(_cq: &Cq) -> u32 {
    0
}

extern "C" fn read_sl(cq: &Cq) -> u8 {
    cq.sl(current(cq))
}

extern "C" fn read_dlid_path_bits(_cq: &Cq) -> u8 {
    0
}

extern "C" fn read_completion_ts(cq: &Cq) -> u64 {
    current(cq).timestamp.as_nanos()
}

/// The device's clock runs at the pace of the machine's, so that the age of a completion on the one is its age on the
/// other.
extern "C" fn read_completion_wallclock_ns(cq: &Cq) -> u64 {
    let age = cq.verbs.context().raw_clock().saturating_duration_since(current(cq).timestamp);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.saturating_sub(age).as_nanos()).unwrap_or(u64::MAX)
}
