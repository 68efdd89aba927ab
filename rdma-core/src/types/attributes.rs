//! What verbs are told and answer.

use super::Absent;
use crate::{
    channel::Channel,
    cq::Cq,
    pd::{Pd, Td},
    srq::Srq,
    xrc::Xrcd,
};
use libc::{c_char, c_int, c_uint, c_void, timespec};

#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_gid_entry {
    pub(crate) gid: ibv_gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_device_attr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_uint,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_query_device_ex_input {
    pub(crate) comp_mask: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_odp_caps {
    pub(crate) general_caps: u64,
    pub(crate) rc_odp_caps: u32,
    pub(crate) uc_odp_caps: u32,
    pub(crate) ud_odp_caps: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_tso_caps {
    pub(crate) max_tso: u32,
    pub(crate) supported_qpts: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_rss_caps {
    pub(crate) supported_qpts: u32,
    pub(crate) max_rwq_indirection_tables: u32,
    pub(crate) max_rwq_indirection_table_size: u32,
    pub(crate) rx_hash_fields_mask: u64,
    pub(crate) rx_hash_function: u8,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_packet_pacing_caps {
    pub(crate) qp_rate_limit_min: u32,
    pub(crate) qp_rate_limit_max: u32,
    pub(crate) supported_qpts: u32,
}

#[repr(C)]
pub(crate) struct ibv_qp_rate_limit_attr {
    pub(crate) rate_limit: u32,
    pub(crate) max_burst_sz: u32,
    pub(crate) typical_pkt_sz: u16,
    pub(crate) comp_mask: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_tm_caps {
    pub(crate) max_rndv_hdr_size: u32,
    pub(crate) max_num_tags: u32,
    pub(crate) flags: u32,
    pub(crate) max_ops: u32,
    pub(crate) max_sge: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_cq_moderation_caps {
    pub(crate) max_cq_count: u16,
    pub(crate) max_cq_period: u16,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_pci_atomic_caps {
    pub(crate) fetch_add: u16,
    pub(crate) swap: u16,
    pub(crate) compare_swap: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_device_attr_ex {
    pub(crate) orig_attr: ibv_device_attr,
    pub(crate) comp_mask: u32,
    pub(crate) odp_caps: ibv_odp_caps,
    pub(crate) completion_timestamp_mask: u64,
    pub(crate) hca_core_clock: u64,
    pub(crate) device_cap_flags_ex: u64,
    pub(crate) tso_caps: ibv_tso_caps,
    pub(crate) rss_caps: ibv_rss_caps,
    pub(crate) max_wq_type_rq: u32,
    pub(crate) packet_pacing_caps: ibv_packet_pacing_caps,
    pub(crate) raw_packet_caps: u32,
    pub(crate) tm_caps: ibv_tm_caps,
    pub(crate) cq_mod_caps: ibv_cq_moderation_caps,
    pub(crate) max_dm_size: u64,
    pub(crate) pci_atomic_caps: ibv_pci_atomic_caps,
    pub(crate) xrc_odp_caps: u32,
    pub(crate) phys_port_cnt_ex: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_port_attr {
    pub(crate) state: c_uint,
    pub(crate) max_mtu: c_uint,
    pub(crate) active_mtu: c_uint,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    /// From here on younger than plain `ibv_query_port`.
    pub(crate) port_cap_flags2: u16,
    /// rdma-core 55.
    pub(crate) active_speed_ex: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_td_init_attr {
    pub(crate) comp_mask: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_xrcd_init_attr {
    pub(crate) comp_mask: u32,
    pub(crate) fd: c_int,
    pub(crate) oflags: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_global_route {
    pub(crate) dgid: ibv_gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_ah_attr {
    pub(crate) grh: ibv_global_route,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_srq_attr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_tm_cap {
    pub(crate) max_num_tags: u32,
    pub(crate) max_ops: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_srq_init_attr_ex {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: c_uint,
    pub(crate) pd: *const Pd,
    pub(crate) xrcd: *const Xrcd,
    pub(crate) cq: *const Cq,
    pub(crate) tm_cap: ibv_tm_cap,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *const Cq,
    pub(crate) recv_cq: *const Cq,
    pub(crate) srq: *const Srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_rx_hash_conf {
    pub(crate) rx_hash_function: u8,
    pub(crate) rx_hash_key_len: u8,
    pub(crate) rx_hash_key: *mut u8,
    pub(crate) rx_hash_fields_mask: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_qp_init_attr_ex {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *const Cq,
    pub(crate) recv_cq: *const Cq,
    pub(crate) srq: *const Srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *const Pd,
    pub(crate) xrcd: *const Xrcd,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    pub(crate) rx_hash_conf: ibv_rx_hash_conf,
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_qp_open_attr {
    pub(crate) comp_mask: u32,
    pub(crate) qp_num: u32,
    pub(crate) xrcd: *const Xrcd,
    pub(crate) qp_context: *mut c_void,
    pub(crate) qp_type: c_uint,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: c_uint,
    pub(crate) cur_qp_state: c_uint,
    pub(crate) path_mtu: c_uint,
    pub(crate) path_mig_state: c_uint,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_ece {
    pub(crate) vendor_id: u32,
    pub(crate) options: u32,
    pub(crate) comp_mask: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_cq_init_attr_ex {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *const Channel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: *const Pd,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_parent_domain_init_attr {
    pub(crate) pd: *const Pd,
    pub(crate) td: *const Td,
    pub(crate) comp_mask: u32,
    pub(crate) alloc: Absent,
    pub(crate) free: Absent,
    pub(crate) pd_context: *mut c_void,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_values_ex {
    pub(crate) comp_mask: u32,
    pub(crate) raw_clock: timespec,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_srq_init_attr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
}
