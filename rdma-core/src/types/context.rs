//! The device and the context, whose functions the inline verbs call.

use super::{
    Absent, ibv_cq_init_attr_ex, ibv_device_attr, ibv_device_attr_ex, ibv_mw_bind, ibv_parent_domain_init_attr,
    ibv_port_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_query_device_ex_input,
    ibv_recv_wr, ibv_send_wr, ibv_srq_init_attr_ex, ibv_td_init_attr, ibv_values_ex, ibv_wc, ibv_xrcd_init_attr,
};
use crate::{
    context::ContextPtr,
    cq::Cq,
    device::DeviceBlock,
    mw::Mw,
    pd::{Pd, Td},
    qp::Qp,
    srq::Srq,
    xrc::Xrcd,
};
use libc::{c_char, c_int, c_uint, c_void, pthread_mutex_t, size_t};
use std::mem::MaybeUninit;

/// Never read or written: programs of today go by what lies around it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct _ibv_device_ops {
    pub(crate) dummy: [Absent; 2],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_device {
    pub(crate) ops: _ibv_device_ops,
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// What rdma-core keeps behind `ibv_device`, and provider libraries that are loaded beside this one look at.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct verbs_device {
    pub(crate) device: ibv_device,
    pub(crate) ops: *const c_void,
    pub(crate) refcount: c_int,
    pub(crate) entry: [*mut c_void; 2],
    pub(crate) sysfs: *mut c_void,
    pub(crate) core_support: u64,
}

/// The functions that the header's inline verbs jump to.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_context_ops {
    pub(crate) query_device: Option<extern "C" fn(ContextPtr, &mut MaybeUninit<ibv_device_attr>) -> c_int>,
    pub(crate) query_port: Option<unsafe extern "C" fn(ContextPtr, u8, *mut ibv_port_attr) -> c_int>,
    pub(crate) compat_alloc_pd: Absent,
    pub(crate) compat_dealloc_pd: Absent,
    pub(crate) compat_reg_mr: Absent,
    pub(crate) compat_rereg_mr: Absent,
    pub(crate) compat_dereg_mr: Absent,
    pub(crate) alloc_mw: Option<extern "C" fn(&Pd, c_uint) -> *mut Mw>,
    pub(crate) bind_mw: Option<extern "C" fn(&Qp, &Mw, &ibv_mw_bind) -> c_int>,
    pub(crate) dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    pub(crate) compat_create_cq: Absent,
    pub(crate) poll_cq: Option<unsafe extern "C" fn(&Cq, c_int, *mut ibv_wc) -> c_int>,
    pub(crate) req_notify_cq: Option<extern "C" fn(&Cq, c_int) -> c_int>,
    pub(crate) compat_cq_event: Absent,
    pub(crate) compat_resize_cq: Absent,
    pub(crate) compat_destroy_cq: Absent,
    pub(crate) compat_create_srq: Absent,
    pub(crate) compat_modify_srq: Absent,
    pub(crate) compat_query_srq: Absent,
    pub(crate) compat_destroy_srq: Absent,
    pub(crate) post_srq_recv: Option<unsafe extern "C" fn(&Srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) compat_create_qp: Absent,
    pub(crate) compat_query_qp: Absent,
    pub(crate) compat_modify_qp: Absent,
    pub(crate) compat_destroy_qp: Absent,
    pub(crate) post_send: Option<unsafe extern "C" fn(&Qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub(crate) post_recv: Option<unsafe extern "C" fn(&Qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) compat_create_ah: Absent,
    pub(crate) compat_destroy_ah: Absent,
    pub(crate) compat_attach_mcast: Absent,
    pub(crate) compat_detach_mcast: Absent,
    pub(crate) compat_async_event: Absent,
}

#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *const DeviceBlock,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

/// What stands before `ibv_context`. It grows upwards: a program built against an older header knows a suffix, and
/// goes by `sz`.
#[repr(C)]
pub(crate) struct verbs_context {
    pub(crate) query_port: Option<unsafe extern "C" fn(ContextPtr, u8, *mut ibv_port_attr, size_t) -> c_int>,
    pub(crate) advise_mr: Absent,
    pub(crate) alloc_null_mr: Absent,
    pub(crate) read_counters: Absent,
    pub(crate) attach_counters_point_flow: Absent,
    pub(crate) create_counters: Absent,
    pub(crate) destroy_counters: Absent,
    pub(crate) reg_dm_mr: Absent,
    pub(crate) alloc_dm: Absent,
    pub(crate) free_dm: Absent,
    pub(crate) modify_flow_action_esp: Absent,
    pub(crate) destroy_flow_action: Absent,
    pub(crate) create_flow_action_esp: Absent,
    pub(crate) modify_qp_rate_limit: Option<extern "C" fn(&Qp, &ibv_qp_rate_limit_attr) -> c_int>,
    pub(crate) alloc_parent_domain: Option<extern "C" fn(ContextPtr, &ibv_parent_domain_init_attr) -> *mut Pd>,
    pub(crate) dealloc_td: Option<unsafe extern "C" fn(*mut Td) -> c_int>,
    pub(crate) alloc_td: Option<extern "C" fn(ContextPtr, &ibv_td_init_attr) -> *mut Td>,
    pub(crate) modify_cq: Absent,
    pub(crate) post_srq_ops: Absent,
    pub(crate) destroy_rwq_ind_table: Absent,
    pub(crate) create_rwq_ind_table: Absent,
    pub(crate) destroy_wq: Absent,
    pub(crate) modify_wq: Absent,
    pub(crate) create_wq: Absent,
    pub(crate) query_rt_values: Option<extern "C" fn(ContextPtr, &mut ibv_values_ex) -> c_int>,
    pub(crate) create_cq_ex: Option<extern "C" fn(ContextPtr, &ibv_cq_init_attr_ex) -> *mut Cq>,
    pub(crate) private: *mut c_void,
    pub(crate) query_device_ex: Option<
        unsafe extern "C" fn(ContextPtr, Option<&ibv_query_device_ex_input>, *mut ibv_device_attr_ex, size_t) -> c_int,
    >,
    pub(crate) destroy_flow: Absent,
    pub(crate) abi_placeholder2: Absent,
    pub(crate) create_flow: Absent,
    pub(crate) abi_placeholder1: Absent,
    pub(crate) open_qp: Option<extern "C" fn(ContextPtr, &ibv_qp_open_attr) -> *mut Qp>,
    pub(crate) create_qp_ex: Option<extern "C" fn(ContextPtr, &mut ibv_qp_init_attr_ex) -> *mut Qp>,
    pub(crate) get_srq_num: Option<extern "C" fn(&Srq, &mut MaybeUninit<u32>) -> c_int>,
    pub(crate) create_srq_ex: Option<extern "C" fn(ContextPtr, &mut ibv_srq_init_attr_ex) -> *mut Srq>,
    pub(crate) open_xrcd: Option<extern "C" fn(ContextPtr, &ibv_xrcd_init_attr) -> *mut Xrcd>,
    pub(crate) close_xrcd: Option<unsafe extern "C" fn(*mut Xrcd) -> c_int>,
    pub(crate) abi_placeholder3: u64,
    pub(crate) sz: size_t,
    pub(crate) context: ibv_context,
}
