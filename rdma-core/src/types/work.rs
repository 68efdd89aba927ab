//! Work requests and completions.

use crate::{ah::Ah, mr::Mr, mw::Mw};
use libc::{c_int, c_uint, c_void, size_t};
use uroce::verbs::Sge;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_uint,
    pub(crate) opcode: c_uint,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Immediate data in wire order, or the key that a SEND with invalidate took.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_mw_bind_info {
    pub(crate) mr: *const Mr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: c_uint,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_mw_bind {
    pub(crate) wr_id: u64,
    pub(crate) send_flags: c_uint,
    pub(crate) bind_info: ibv_mw_bind_info,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_data_buf {
    pub(crate) addr: *mut c_void,
    pub(crate) length: size_t,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_wr_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_wr_atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_wr_ud {
    pub(crate) ah: *const Ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union ibv_wr_remote {
    pub(crate) rdma: ibv_wr_rdma,
    pub(crate) atomic: ibv_wr_atomic,
    pub(crate) ud: ibv_wr_ud,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_wr_bind_mw {
    pub(crate) mw: *const Mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: ibv_mw_bind_info,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_wr_tso {
    pub(crate) hdr: *mut c_void,
    pub(crate) hdr_sz: u16,
    pub(crate) mss: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union ibv_wr_extra {
    pub(crate) bind_mw: ibv_wr_bind_mw,
    pub(crate) tso: ibv_wr_tso,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) send_flags: c_uint,
    /// Immediate data in wire order, or the key to invalidate.
    pub(crate) imm_data: u32,
    pub(crate) wr: ibv_wr_remote,
    pub(crate) remote_srqn: u32,
    pub(crate) extra: ibv_wr_extra,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_poll_cq_attr {
    pub(crate) comp_mask: u32,
}
