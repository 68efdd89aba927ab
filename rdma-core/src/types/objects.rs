//! Objects that verbs make, as far as programs look into them, and what happens to them.

use super::{Absent, ibv_context, ibv_data_buf, ibv_mw_bind_info, ibv_poll_cq_attr};
use crate::{ah::Ah, channel::Channel, cq::Cq, mw::Mw, pd::Pd, qp::Qp, srq::Srq};
use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t, size_t};
use uroce::verbs::Sge;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union ibv_async_element {
    pub(crate) cq: *const Cq,
    pub(crate) qp: *const Qp,
    pub(crate) srq: *const Srq,
    pub(crate) port_num: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_async_event {
    pub(crate) element: ibv_async_element,
    pub(crate) event_type: c_uint,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *const Pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: size_t,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *const Pd,
    pub(crate) send_cq: *const Cq,
    pub(crate) recv_cq: *const Cq,
    pub(crate) srq: *const Srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_uint,
    pub(crate) qp_type: c_uint,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) cond: pthread_cond_t,
    pub(crate) events_completed: u32,
}

#[repr(C)]
pub(crate) struct ibv_qp_ex {
    pub(crate) qp_base: ibv_qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) wr_atomic_cmp_swp: Option<extern "C" fn(&Qp, u32, u64, u64, u64)>,
    pub(crate) wr_atomic_fetch_add: Option<extern "C" fn(&Qp, u32, u64, u64)>,
    pub(crate) wr_bind_mw: Option<extern "C" fn(&Qp, &Mw, u32, &ibv_mw_bind_info)>,
    pub(crate) wr_local_inv: Option<extern "C" fn(&Qp, u32)>,
    pub(crate) wr_rdma_read: Option<extern "C" fn(&Qp, u32, u64)>,
    pub(crate) wr_rdma_write: Option<extern "C" fn(&Qp, u32, u64)>,
    pub(crate) wr_rdma_write_imm: Option<extern "C" fn(&Qp, u32, u64, u32)>,
    pub(crate) wr_send: Option<extern "C" fn(&Qp)>,
    pub(crate) wr_send_imm: Option<extern "C" fn(&Qp, u32)>,
    pub(crate) wr_send_inv: Option<extern "C" fn(&Qp, u32)>,
    pub(crate) wr_send_tso: Option<extern "C" fn(&Qp, *mut c_void, u16, u16)>,
    pub(crate) wr_set_ud_addr: Option<extern "C" fn(&Qp, &Ah, u32, u32)>,
    pub(crate) wr_set_xrc_srqn: Option<extern "C" fn(&Qp, u32)>,
    pub(crate) wr_set_inline_data: Option<unsafe extern "C" fn(&Qp, *const c_void, size_t)>,
    pub(crate) wr_set_inline_data_list: Option<unsafe extern "C" fn(&Qp, size_t, *const ibv_data_buf)>,
    pub(crate) wr_set_sge: Option<extern "C" fn(&Qp, u32, u64, u32)>,
    pub(crate) wr_set_sge_list: Option<unsafe extern "C" fn(&Qp, size_t, *const Sge)>,
    pub(crate) wr_start: Option<extern "C" fn(&Qp)>,
    pub(crate) wr_complete: Option<extern "C" fn(&Qp) -> c_int>,
    pub(crate) wr_abort: Option<extern "C" fn(&Qp)>,
    pub(crate) wr_atomic_write: Option<unsafe extern "C" fn(&Qp, u32, u64, *const c_void)>,
    /// rdma-core 48.
    pub(crate) wr_flush: Option<extern "C" fn(&Qp, u32, u64, size_t, u8, u8)>,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

/// `struct ibv_cq_ex`, which begins as `struct ibv_cq`.
#[repr(C)]
pub(crate) struct ibv_cq_ex {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *const Channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) cond: pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
    pub(crate) comp_mask: u32,
    pub(crate) status: c_uint,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Option<extern "C" fn(&Cq, Option<&ibv_poll_cq_attr>) -> c_int>,
    pub(crate) next_poll: Option<extern "C" fn(&Cq) -> c_int>,
    pub(crate) end_poll: Option<extern "C" fn(&Cq)>,
    pub(crate) read_opcode: Option<extern "C" fn(&Cq) -> c_uint>,
    pub(crate) read_vendor_err: Option<extern "C" fn(&Cq) -> u32>,
    pub(crate) read_byte_len: Option<extern "C" fn(&Cq) -> u32>,
    pub(crate) read_imm_data: Option<extern "C" fn(&Cq) -> u32>,
    pub(crate) read_qp_num: Option<extern "C" fn(&Cq) -> u32>,
    pub(crate) read_src_qp: Option<extern "C" fn(&Cq) -> u32>,
    pub(crate) read_wc_flags: Option<extern "C" fn(&Cq) -> c_uint>,
    pub(crate) read_slid: Option<extern "C" fn(&Cq) -> u32>,
    pub(crate) read_sl: Option<extern "C" fn(&Cq) -> u8>,
    pub(crate) read_dlid_path_bits: Option<extern "C" fn(&Cq) -> u8>,
    pub(crate) read_completion_ts: Option<extern "C" fn(&Cq) -> u64>,
    pub(crate) read_cvlan: Absent,
    pub(crate) read_flow_tag: Absent,
    pub(crate) read_tm_info: Absent,
    pub(crate) read_completion_wallclock_ns: Option<extern "C" fn(&Cq) -> u64>,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_td {
    pub(crate) context: *mut ibv_context,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_ah {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *const Pd,
    pub(crate) handle: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_mw {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *const Pd,
    pub(crate) rkey: u32,
    pub(crate) handle: u32,
    pub(crate) mw_type: c_uint,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_xrcd {
    pub(crate) context: *mut ibv_context,
}

#[repr(C)]
pub(crate) struct ibv_srq {
    pub(crate) context: *mut ibv_context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *const Pd,
    pub(crate) handle: u32,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) cond: pthread_cond_t,
    pub(crate) events_completed: u32,
}
