//! What this library has the name of and not the deed: each says so once in the log, and refuses with `EOPNOTSUPP`
//! in the form that its callers expect.

use crate::entry::set_errno;
use libc::c_int;
use std::{ptr, sync::Once};
use uroce::settings::Settings;

/// Says in the log that a program has called for what is not there.
fn announce(once: &'static Once, name: &str) {
    once.call_once(|| {
        Settings::from_env().unwrap_or_default().start_log();
        tracing::warn!("{name} is not implemented");
    });
}

/// Defines functions that refuse. C passes arguments in a way that a function without any need not know of.
///
/// `errno`: returns the errno. `number`: returns −1, as wide as any number that a caller may expect, and sets `errno`.
/// `null`: returns NULL and sets `errno`. `zero`: returns 0. `nothing`: returns nothing.
macro_rules! absent {
    ($($kind:ident { $($name:ident)+ })+) => { $($(absent!(@$kind $name);)+)+ };
    (@errno $name:ident) => { absent!(@define $name: c_int = libc::EOPNOTSUPP); };
    (@number $name:ident) => { absent!(@define $name: isize = -1); };
    (@null $name:ident) => { absent!(@define $name: *mut u8 = ptr::null_mut()); };
    (@zero $name:ident) => { absent!(@define $name: u64 = 0); };
    (@nothing $name:ident) => { absent!(@define $name: () = ()); };
    (@define $name:ident: $result:ty = $value:expr) => {
        pub(crate) extern "C" fn $name() -> $result {
            static ONCE: Once = Once::new();
            announce(&ONCE, stringify!($name));
            set_errno(libc::EOPNOTSUPP);
            $value
        }
    };
}

absent! {
    errno {
        ibv_resolve_eth_l2_from_gid
    }
    null {
        ibv_import_device ibv_import_pd ibv_import_mr ibv_import_dm
        ibv_reg_dmabuf_mr
    }
    nothing {
        ibv_unimport_pd ibv_unimport_mr ibv_unimport_dm ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern
        ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern ibv_register_driver
    }
}

// What provider libraries (libmlx5, libefa), which some programs link, drive their hardware with. There is none.
absent! {
    errno {
        __ioctl_final_num_attrs execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd
        ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq
        ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2 ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp
        ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex
        ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
        ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp
        ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_free_dm
        ibv_cmd_get_context ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex
        ibv_cmd_modify_srq ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv
        ibv_cmd_post_send ibv_cmd_post_srq_recv ibv_cmd_query_context ibv_cmd_query_device ibv_cmd_query_device_any
        ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr
        ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq
    }
    number { ibv_read_ibdev_sysfs_file }
    null { _verbs_init_and_alloc_context verbs_open_device }
    nothing { __verbs_log verbs_init_cq verbs_set_ops verbs_uninit_context }
}

/// A provider library introduces itself when it is loaded. It is welcome, and never called.
pub(crate) extern "C" fn register_driver() {}

// librdmacm.
absent! {
    number {
        raccept rbind rclose rconnect rdma_accept rdma_ack_cm_event rdma_bind_addr rdma_connect rdma_create_ep
        rdma_create_id rdma_create_qp rdma_create_qp_ex rdma_create_srq rdma_create_srq_ex rdma_destroy_id
        rdma_disconnect rdma_establish rdma_get_cm_event rdma_get_remote_ece rdma_get_request rdma_getaddrinfo
        rdma_init_qp_attr rdma_join_multicast rdma_join_multicast_ex rdma_leave_multicast rdma_listen rdma_migrate_id
        rdma_notify rdma_reject rdma_reject_ece rdma_resolve_addr rdma_resolve_route rdma_set_local_ece rdma_set_option
        rfcntl rgetpeername rgetsockname rgetsockopt riomap riounmap riowrite rlisten rpoll rread rreadv rrecv rrecvfrom
        rrecvmsg rselect rsend rsendmsg rsendto rsetsockopt rshutdown rsocket rwrite rwritev
    }
    null { rdma_create_event_channel }
    zero { rdma_get_dst_port rdma_get_src_port }
    nothing {
        rdma_destroy_ep rdma_destroy_event_channel rdma_destroy_qp rdma_destroy_srq rdma_free_devices rdma_freeaddrinfo
    }
}

/// Programs (libfabric) look at the number and not at the list, whether or not they were given one.
pub(crate) extern "C" fn rdma_get_devices(num_devices: Option<&mut c_int>) -> *mut u8 {
    static ONCE: Once = Once::new();
    announce(&ONCE, "rdma_get_devices");
    if let Some(num_devices) = num_devices {
        *num_devices = 0;
    }
    set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// The verbs as they were before 2007 (`IBVERBS_1.0`), whose structs were others.
pub(crate) mod of_2006 {
    use super::announce;
    use crate::entry::set_errno;
    use libc::c_int;
    use std::{ptr, sync::Once};

    absent! {
        errno {
            ibv_attach_mcast ibv_close_device ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah ibv_destroy_cq ibv_destroy_qp
            ibv_destroy_srq ibv_detach_mcast ibv_modify_qp ibv_modify_srq ibv_query_device ibv_query_port ibv_query_qp
            ibv_query_srq ibv_resize_cq
        }
        number { ibv_get_async_event ibv_get_cq_event ibv_query_gid ibv_query_pkey }
        null {
            ibv_alloc_pd ibv_create_ah ibv_create_cq ibv_create_qp ibv_create_srq ibv_get_device_list
            ibv_get_device_name ibv_open_device ibv_reg_mr
        }
        zero { ibv_get_device_guid }
        nothing { ibv_ack_async_event ibv_ack_cq_events ibv_free_device_list }
    }
}
