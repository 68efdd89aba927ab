//! The names that programs find, each under the version that it got when it came into being.
//!
//! A program asks the dynamic linker for `ibv_open_device@IBVERBS_1.1`, not for a bare name, and most are linked such
//! that one missing name keeps them from starting. Rust has no way to say a symbol's version. So each name is
//! a jump, in assembly, to the function that does the work, and `.symver` gives the jump its name and version:
//! `name@@VERSION` where that version is what a program is linked to today, `name@VERSION` for older ones. The version
//! nodes themselves are in build.rs.

use crate::{
    absent::{self, of_2006},
    ah, channel, context, cq, device, mr, names, pd, qp, srq,
};
use std::arch::global_asm;

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

/// Exports functions under names: `"VERSION" at { name => function, … }`, with `at` `"@@"` or `"@"`.
macro_rules! export {
    ($($version:literal $at:literal { $($name:ident => $function:path,)+ })+) => { $($(
        global_asm!(
            ".pushsection .text.uroce_exports, \"ax\", %progbits",
            concat!(".globl uroce.", stringify!($name), ".", $version),
            concat!(".type uroce.", stringify!($name), ".", $version, ", %function"),
            concat!("uroce.", stringify!($name), ".", $version, ":"),
            jump!(),
            concat!(".size uroce.", stringify!($name), ".", $version, ", . - uroce.", stringify!($name), ".", $version),
            concat!(".symver uroce.", stringify!($name), ".", $version, ", ", stringify!($name), $at, $version),
            ".popsection",
            function = sym $function,
        );
    )+)+ };
}

/// Exports functions of [`absent`] under their own names.
macro_rules! export_absent {
    ($version:literal $at:literal $module:ident { $($name:ident)+ }) => {
        export! { $version $at { $($name => $module::$name,)+ } }
    };
}

export! {
    "IBVERBS_1.0" "@@" {
        ibv_create_comp_channel => context::create_comp_channel,
        ibv_destroy_comp_channel => channel::destroy_comp_channel,
        ibv_get_sysfs_path => names::get_sysfs_path,
        ibv_rate_to_mult => names::rate_to_mult,
        ibv_read_sysfs_file => names::read_sysfs_file,
        mult_to_ibv_rate => names::mult_to_rate,
        ibv_copy_path_rec_from_kern => absent::ibv_copy_path_rec_from_kern,
        ibv_copy_path_rec_to_kern => absent::ibv_copy_path_rec_to_kern,
        ibv_copy_qp_attr_from_kern => absent::ibv_copy_qp_attr_from_kern,
    }
    "IBVERBS_1.1" "@@" {
        ibv_ack_async_event => context::ack_async_event,
        ibv_ack_cq_events => cq::ack_cq_events,
        ibv_alloc_pd => pd::alloc_pd,
        ibv_attach_mcast => ah::attach_mcast,
        ibv_close_device => device::close_device,
        ibv_copy_ah_attr_from_kern => absent::ibv_copy_ah_attr_from_kern,
        ibv_create_ah => ah::create_ah,
        ibv_create_ah_from_wc => ah::create_ah_from_wc,
        ibv_create_cq => cq::create_cq,
        ibv_create_qp => qp::create_qp,
        ibv_create_srq => srq::create_srq,
        ibv_dealloc_pd => pd::dealloc_pd,
        ibv_dereg_mr => mr::dereg_mr,
        ibv_destroy_ah => ah::destroy_ah,
        ibv_destroy_cq => cq::destroy_cq,
        ibv_destroy_qp => qp::destroy_qp,
        ibv_destroy_srq => srq::destroy_srq,
        ibv_detach_mcast => ah::detach_mcast,
        ibv_dofork_range => names::fork_range,
        ibv_dontfork_range => names::fork_range,
        ibv_event_type_str => names::event_type_str,
        ibv_fork_init => names::fork_init,
        ibv_free_device_list => device::free_device_list,
        ibv_get_async_event => context::get_async_event,
        ibv_get_cq_event => channel::get_cq_event,
        ibv_get_device_guid => device::get_device_guid,
        ibv_get_device_list => device::get_device_list,
        ibv_get_device_name => device::get_device_name,
        ibv_init_ah_from_wc => ah::init_ah_from_wc,
        ibv_modify_qp => qp::modify_qp,
        ibv_modify_srq => srq::modify_srq,
        ibv_node_type_str => names::node_type_str,
        ibv_open_device => device::open_device,
        ibv_port_state_str => names::port_state_str,
        ibv_query_device => context::query_device,
        ibv_query_gid => context::query_gid,
        ibv_query_pkey => context::query_pkey,
        ibv_query_port => context::query_port,
        ibv_query_qp => qp::query_qp,
        ibv_query_srq => srq::query_srq,
        ibv_rate_to_mbps => names::rate_to_mbps,
        ibv_reg_mr => mr::reg_mr,
        ibv_register_driver => absent::ibv_register_driver,
        ibv_rereg_mr => mr::rereg_mr,
        ibv_resize_cq => cq::resize_cq,
        ibv_resolve_eth_l2_from_gid => absent::ibv_resolve_eth_l2_from_gid,
        ibv_wc_status_str => names::wc_status_str,
        mbps_to_ibv_rate => names::mbps_to_rate,
    }
    "IBVERBS_1.5" "@@" { ibv_get_pkey_index => context::get_pkey_index, }
    "IBVERBS_1.6" "@@" { ibv_qp_to_qp_ex => qp::qp_to_qp_ex, }
    "IBVERBS_1.7" "@@" { ibv_reg_mr_iova => mr::reg_mr_iova, }
    "IBVERBS_1.8" "@@" { ibv_reg_mr_iova2 => mr::reg_mr_iova2, }
    "IBVERBS_1.9" "@@" { ibv_get_device_index => device::get_device_index, }
    "IBVERBS_1.10" "@@" {
        ibv_import_device => absent::ibv_import_device,
        ibv_import_mr => absent::ibv_import_mr,
        ibv_import_pd => absent::ibv_import_pd,
        ibv_query_ece => qp::query_ece,
        ibv_set_ece => qp::set_ece,
        ibv_unimport_mr => absent::ibv_unimport_mr,
        ibv_unimport_pd => absent::ibv_unimport_pd,
    }
    "IBVERBS_1.11" "@@" {
        _ibv_query_gid_ex => context::query_gid_ex,
        _ibv_query_gid_table => context::query_gid_table,
    }
    "IBVERBS_1.12" "@@" { ibv_reg_dmabuf_mr => absent::ibv_reg_dmabuf_mr, }
    "IBVERBS_1.13" "@@" {
        ibv_import_dm => absent::ibv_import_dm,
        ibv_is_fork_initialized => names::is_fork_initialized,
        ibv_unimport_dm => absent::ibv_unimport_dm,
    }
    "IBVERBS_1.14" "@@" { ibv_query_qp_data_in_order => qp::query_qp_data_in_order, }
}

export_absent! {
    "IBVERBS_1.0" "@" of_2006 {
        ibv_ack_async_event ibv_ack_cq_events ibv_alloc_pd ibv_attach_mcast ibv_close_device ibv_create_ah ibv_create_cq
        ibv_create_qp ibv_create_srq ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah ibv_destroy_cq ibv_destroy_qp
        ibv_destroy_srq ibv_detach_mcast ibv_free_device_list ibv_get_async_event ibv_get_cq_event ibv_get_device_guid
        ibv_get_device_list ibv_get_device_name ibv_modify_qp ibv_modify_srq ibv_open_device ibv_query_device
        ibv_query_gid ibv_query_pkey ibv_query_port ibv_query_qp ibv_query_srq ibv_reg_mr ibv_resize_cq
    }
}

/// The names of rdma-core's own, under one version of them. rdma-core gives them a new one whenever their structs
/// change, which does not matter to functions that look at none.
macro_rules! export_private {
    ($($version:literal $at:literal $register:ident)+) => { $(
        export! {
            $version $at {
                ibv_query_gid_type => context::query_gid_type,
                ibv_wr_opcode_str => names::wr_opcode_str,
                $register => absent::register_driver,
            }
        }
        export_absent! {
            $version $at absent {
                __ioctl_final_num_attrs __verbs_log _verbs_init_and_alloc_context execute_ioctl ibv_cmd_advise_mr
                ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd
                ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2
                ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
                ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex
                ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
                ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action
                ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq
                ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context ibv_cmd_modify_cq
                ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq
                ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv
                ibv_cmd_post_send ibv_cmd_post_srq_recv ibv_cmd_query_context ibv_cmd_query_device
                ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp ibv_cmd_query_srq
                ibv_cmd_read_counters ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_req_notify_cq
                ibv_cmd_rereg_mr ibv_cmd_resize_cq ibv_read_ibdev_sysfs_file verbs_init_cq verbs_open_device
                verbs_set_ops verbs_uninit_context
            }
        }
        // A flag that provider libraries set when the kernel takes a device away. Nobody reads it here.
        global_asm!(
            ".pushsection .bss.uroce_exports, \"aw\", %nobits",
            concat!(".globl uroce.verbs_allow_disassociate_destroy.", $version),
            concat!(".type uroce.verbs_allow_disassociate_destroy.", $version, ", %object"),
            concat!(".size uroce.verbs_allow_disassociate_destroy.", $version, ", 1"),
            concat!("uroce.verbs_allow_disassociate_destroy.", $version, ":"),
            ".zero 1",
            concat!(
                ".symver uroce.verbs_allow_disassociate_destroy.", $version, ", verbs_allow_disassociate_destroy", $at,
                $version
            ),
            ".popsection",
        );
    )+ };
}

export_private! {
    "IBVERBS_PRIVATE_22" "@" verbs_register_driver_22
    "IBVERBS_PRIVATE_25" "@" verbs_register_driver_25
    "IBVERBS_PRIVATE_33" "@" verbs_register_driver_33
    "IBVERBS_PRIVATE_34" "@@" verbs_register_driver_34
    "IBVERBS_PRIVATE_57" "@" verbs_register_driver_57
    "IBVERBS_PRIVATE_59" "@" verbs_register_driver_59
    "IBVERBS_PRIVATE_64" "@" verbs_register_driver_64
}

export! {
    "RDMACM_1.0" "@@" {
        rdma_event_str => names::rdma_event_str,
        rdma_get_devices => absent::rdma_get_devices,
    }
}

export_absent! {
    "RDMACM_1.0" "@@" absent {
        raccept rbind rclose rconnect rdma_accept rdma_ack_cm_event rdma_bind_addr rdma_connect rdma_create_ep
        rdma_create_event_channel rdma_create_id rdma_create_qp rdma_create_qp_ex rdma_create_srq rdma_create_srq_ex
        rdma_destroy_ep rdma_destroy_event_channel rdma_destroy_id rdma_destroy_qp rdma_destroy_srq rdma_disconnect
        rdma_free_devices rdma_freeaddrinfo rdma_get_cm_event rdma_get_dst_port rdma_get_request rdma_get_src_port
        rdma_getaddrinfo rdma_join_multicast rdma_leave_multicast rdma_listen rdma_migrate_id
        rdma_notify rdma_reject rdma_resolve_addr rdma_resolve_route rdma_set_option rfcntl rgetpeername rgetsockname
        rgetsockopt riomap riounmap riowrite rlisten rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend rsendmsg
        rsendto rsetsockopt rshutdown rsocket rwrite rwritev
    }
}
export_absent! { "RDMACM_1.1" "@@" absent { rdma_join_multicast_ex } }
export_absent! { "RDMACM_1.2" "@@" absent { rdma_establish rdma_init_qp_attr } }
export_absent! { "RDMACM_1.3" "@@" absent { rdma_get_remote_ece rdma_reject_ece rdma_set_local_ece } }
