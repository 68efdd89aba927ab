//! Completion queues.

use crate::{
    channel::Channel,
    context::{ContextHandle, ContextPtr, Object, Unacknowledged},
    cq_ex::{self, Reader},
    entry::{self, Refusal, Result},
    fork::Birth,
    types::{ibv_cq_ex, ibv_wc},
};
use libc::{c_int, c_uint, c_void};
use std::{
    cell::UnsafeCell,
    ptr::{self, NonNull},
};
use uroce::verbs::{AsyncElement, CompletionQueue, Notify, Qpn, WorkCompletion};

const WC_GRH: c_uint = 1 << 0;
const WC_WITH_IMM: c_uint = 1 << 1;
const WC_WITH_INV: c_uint = 1 << 3;

/// `struct ibv_cq`, and `struct ibv_cq_ex`, of which that is the beginning.
#[repr(C)]
pub(crate) struct Cq {
    /// Read by the program at any time, and written while the two of them agree.
    base: UnsafeCell<ibv_cq_ex>,
    pub(crate) verbs: CompletionQueue,
    pub(crate) birth: Birth,
    /// Asynchronous events of it; `verbs` counts its completion events.
    pub(crate) events: Unacknowledged,
    /// For `ibv_start_poll` and what follows.
    pub(crate) reader: Reader,
    /// What `sl` says of the network header in front of a datagram: on RoCE, where there are no service levels, mlx5
    /// has the header's type there, and UCX takes no datagram before it has compared the destination address at the
    /// place that follows from it.
    header_type: u8,
    context: ContextHandle,
}

/// mlx5's types of network headers.
const HEADER_IPV6: u8 = 1;
const HEADER_IPV4: u8 = 2;

/// What a completion queue is made of.
pub(crate) struct NewCq<'a> {
    pub(crate) context: ContextHandle,
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: Option<&'a Channel>,
    pub(crate) comp_vector: u32,
    pub(crate) reader: Reader,
}

impl Cq {
    pub(crate) fn create(new: NewCq<'_>) -> Result<*mut Self> {
        let NewCq { context, cqe, cq_context, channel, comp_vector, reader } = new;
        if i64::from(comp_vector) >= i64::from(context.num_comp_vectors()) {
            return Err(Refusal::invalid("there are not as many completion vectors"));
        }
        if let Some(channel) = channel {
            channel.birth.check()?;
        }
        let slot = Box::<Self>::new_uninit();
        // By this the channel's events find the object that the program knows.
        let address = slot.as_ptr().expose_provenance() as u64;
        let verbs = context.verbs().create_cq(cqe, address, channel.map(|channel| &channel.verbs))?;
        let mut base = ibv_cq_ex {
            context: context.as_raw(),
            channel: channel.map_or(ptr::null(), ptr::from_ref),
            cq_context,
            handle: verbs.number(),
            cqe: verbs.cqe() as c_int,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            comp_events_completed: 0,
            async_events_completed: 0,
            comp_mask: 0,
            status: 0,
            wr_id: 0,
            start_poll: None,
            next_poll: None,
            end_poll: None,
            read_opcode: None,
            read_vendor_err: None,
            read_byte_len: None,
            read_imm_data: None,
            read_qp_num: None,
            read_src_qp: None,
            read_wc_flags: None,
            read_slid: None,
            read_sl: None,
            read_dlid_path_bits: None,
            read_completion_ts: None,
            read_cvlan: None,
            read_flow_tag: None,
            read_tm_info: None,
            read_completion_wallclock_ns: None,
        };
        cq_ex::fill(&mut base);
        let cq = Self {
            base: UnsafeCell::new(base),
            verbs,
            birth: Birth::now(),
            events: Unacknowledged::default(),
            reader,
            header_type: if context.verbs().device().address().is_ipv4() { HEADER_IPV4 } else { HEADER_IPV6 },
            context: context.clone(),
        };
        let element = cq.element();
        let object = NonNull::from(Box::leak(Box::write(slot, cq)));
        context.enter(element, Object::Cq(object));
        Ok(object.as_ptr())
    }

    /// The service level of a completion.
    pub(crate) fn sl(&self, completion: &WorkCompletion) -> u8 {
        if completion.has_grh { self.header_type } else { 0 }
    }

    fn element(&self) -> AsyncElement {
        AsyncElement::CompletionQueue(self.verbs.number())
    }

    /// The struct that the program looks into.
    pub(crate) const fn base(&self) -> *mut ibv_cq_ex {
        self.base.get()
    }

    /// What the program attached.
    pub(crate) fn cq_context(&self) -> *mut c_void {
        // SAFETY: nobody writes to this field.
        unsafe { (*self.base.get()).cq_context }
    }
}

pub(crate) extern "C" fn create_cq(
    context: ContextPtr,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Option<&Channel>,
    comp_vector: c_int,
) -> *mut Cq {
    entry::pointer("ibv_create_cq", || {
        let cqe = u32::try_from(cqe).map_err(|_| Refusal::invalid("a completion queue holds at least one"))?;
        let comp_vector =
            u32::try_from(comp_vector).map_err(|_| Refusal::invalid("there are not as many completion vectors"))?;
        let reader = Reader::default();
        Cq::create(NewCq { context: context.share()?, cqe, cq_context, channel, comp_vector, reader })
    })
}

pub(crate) extern "C" fn resize_cq(cq: &Cq, cqe: c_int) -> c_int {
    entry::errno("ibv_resize_cq", || {
        cq.birth.check()?;
        let cqe = u32::try_from(cqe).map_err(|_| Refusal::invalid("a completion queue holds at least one"))?;
        cq.verbs.resize(cqe)?;
        // SAFETY: programs do not read it while they have it changed.
        unsafe { (*cq.base.get()).cqe = cq.verbs.cqe() as c_int };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    entry::errno("ibv_destroy_cq", || {
        // SAFETY: the program passes a completion queue that it has not destroyed.
        let this = unsafe { &*cq };
        this.birth.check()?;
        this.verbs.destroy()?;
        this.context.leave(this.element());
        this.events.wait();
        // SAFETY: it came from a Box, the program gives it back, and no event refers to it any more.
        drop(unsafe { Box::from_raw(cq) });
        Ok(())
    })
}

pub(crate) extern "C" fn ack_cq_events(cq: &Cq, nevents: c_uint) {
    entry::nothing("ibv_ack_cq_events", || {
        cq.birth.check()?;
        cq.verbs.ack_events(nevents);
        Ok(())
    });
}

pub(crate) extern "C" fn req_notify_cq(cq: &Cq, solicited_only: c_int) -> c_int {
    entry::errno("ibv_req_notify_cq", || {
        cq.birth.check()?;
        // SAFETY: nobody writes to this field.
        if unsafe { (*cq.base()).channel.is_null() } {
            // As drivers have it: armed, and nobody to be told.
            return Ok(());
        }
        Ok(cq.verbs.req_notify(if solicited_only == 0 { Notify::Next } else { Notify::Solicited })?)
    })
}

/// Returns how many completions it has written to `wc`, which has room for `num_entries`; negative on failure.
pub(crate) unsafe extern "C" fn poll_cq(cq: &Cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    entry::number("ibv_poll_cq", || {
        cq.birth.check()?;
        let mut slot = wc;
        let polled = cq.verbs.poll_with(usize::try_from(num_entries).unwrap_or(0), |completion| {
            // SAFETY: this is called num_entries times at most, and the program's array has as many.
            unsafe {
                slot.write(work_completion(&completion, cq.sl(&completion)));
                slot = slot.add(1);
            }
        })?;
        Ok(polled as c_int)
    })
}

/// A completion as C has it.
fn work_completion(completion: &WorkCompletion, sl: u8) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as c_uint,
        opcode: completion.opcode as c_uint,
        vendor_err: 0,
        byte_len: completion.byte_len,
        imm_data: imm_data(completion),
        qp_num: completion.qp_num.value(),
        src_qp: completion.src_qp.map_or(0, Qpn::value),
        wc_flags: wc_flags(completion),
        pkey_index: 0,
        slid: 0,
        sl,
        dlid_path_bits: 0,
    }
}

/// Immediate data in wire order, or the key that was taken.
pub(crate) fn imm_data(completion: &WorkCompletion) -> u32 {
    match (completion.imm_data, completion.invalidated_rkey) {
        (Some(immediate), _) => immediate.to_be(),
        (None, Some(rkey)) => rkey.0,
        (None, None) => 0,
    }
}

pub(crate) fn wc_flags(completion: &WorkCompletion) -> c_uint {
    let immediate = if completion.imm_data.is_some() { WC_WITH_IMM } else { 0 };
    let invalidated = if completion.invalidated_rkey.is_some() { WC_WITH_INV } else { 0 };
    let grh = if completion.has_grh { WC_GRH } else { 0 };
    immediate | invalidated | grh
}
