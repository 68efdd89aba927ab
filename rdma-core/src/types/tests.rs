//! Every struct against the headers of the machine: a C program says where its fields are.

use super::*;
use std::{
    env,
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    mem::offset_of,
    process::{self, Command},
};

/// A struct as C and we know it: its size (a lower bound where the header may be older than ours), and its fields.
struct Layout {
    name: &'static str,
    size: usize,
    /// The field's name in C, and where it is here.
    fields: Vec<(&'static str, usize)>,
}

/// `struct { field, field as "name in C", … }`.
macro_rules! layout {
    ($name:ident { $($field:ident $(as $in_c:literal)?),+ $(,)? }) => {
        Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: vec![$((layout!(@name $field $($in_c)?), offset_of!($name, $field))),+],
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $in_c:literal) => { $in_c };
}

/// Structs whose last fields are younger than the oldest headers that this is to be checked against.
const GROWN: [&str; 3] = ["ibv_port_attr", "ibv_qp_ex", "ibv_device_attr_ex"];

fn layouts() -> Vec<Layout> {
    vec![
        layout!(ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask }),
        layout!(ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }),
        layout!(ibv_device_attr {
            fw_ver,
            node_guid,
            sys_image_guid,
            max_mr_size,
            page_size_cap,
            vendor_id,
            vendor_part_id,
            hw_ver,
            max_qp,
            max_qp_wr,
            device_cap_flags,
            max_sge,
            max_sge_rd,
            max_cq,
            max_cqe,
            max_mr,
            max_pd,
            max_qp_rd_atom,
            max_ee_rd_atom,
            max_res_rd_atom,
            max_qp_init_rd_atom,
            max_ee_init_rd_atom,
            atomic_cap,
            max_ee,
            max_rdd,
            max_mw,
            max_raw_ipv6_qp,
            max_raw_ethy_qp,
            max_mcast_grp,
            max_mcast_qp_attach,
            max_total_mcast_qp_attach,
            max_ah,
            max_fmr,
            max_map_per_fmr,
            max_srq,
            max_srq_wr,
            max_srq_sge,
            max_pkeys,
            local_ca_ack_delay,
            phys_port_cnt,
        }),
        layout!(ibv_device_attr_ex {
            orig_attr,
            comp_mask,
            odp_caps,
            completion_timestamp_mask,
            hca_core_clock,
            device_cap_flags_ex,
            tso_caps,
            rss_caps,
            max_wq_type_rq,
            packet_pacing_caps,
            raw_packet_caps,
            tm_caps,
            cq_mod_caps,
            max_dm_size,
            pci_atomic_caps,
            xrc_odp_caps,
            phys_port_cnt_ex,
        }),
        layout!(ibv_odp_caps {
            general_caps,
            rc_odp_caps as "per_transport_caps.rc_odp_caps",
            uc_odp_caps as "per_transport_caps.uc_odp_caps",
            ud_odp_caps as "per_transport_caps.ud_odp_caps",
        }),
        layout!(ibv_rss_caps {
            supported_qpts,
            max_rwq_indirection_tables,
            max_rwq_indirection_table_size,
            rx_hash_fields_mask,
            rx_hash_function,
        }),
        layout!(ibv_port_attr {
            state,
            max_mtu,
            active_mtu,
            gid_tbl_len,
            port_cap_flags,
            max_msg_sz,
            bad_pkey_cntr,
            qkey_viol_cntr,
            pkey_tbl_len,
            lid,
            sm_lid,
            lmc,
            max_vl_num,
            sm_sl,
            subnet_timeout,
            init_type_reply,
            active_width,
            active_speed,
            phys_state,
            link_layer,
            flags,
            port_cap_flags2,
        }),
        layout!(ibv_async_event { element, event_type }),
        layout!(ibv_wc {
            wr_id,
            status,
            opcode,
            vendor_err,
            byte_len,
            imm_data,
            qp_num,
            src_qp,
            wc_flags,
            pkey_index,
            slid,
            sl,
            dlid_path_bits,
        }),
        layout!(ibv_pd { context, handle }),
        layout!(ibv_mr { context, pd, addr, length, handle, lkey, rkey }),
        layout!(ibv_td { context }),
        layout!(ibv_mw { context, pd, rkey, handle, mw_type as "type" }),
        layout!(ibv_mw_bind_info { mr, addr, length, mw_access_flags }),
        layout!(ibv_mw_bind { wr_id, send_flags, bind_info }),
        layout!(ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }),
        layout!(ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }),
        layout!(ibv_xrcd { context }),
        layout!(ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }),
        layout!(ibv_srq_init_attr { srq_context, attr }),
        layout!(ibv_xrcd_init_attr { comp_mask, fd, oflags }),
        layout!(ibv_srq_attr { max_wr, max_sge, srq_limit }),
        layout!(ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }),
        layout!(ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }),
        layout!(ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }),
        layout!(ibv_qp_init_attr_ex {
            qp_context,
            send_cq,
            recv_cq,
            srq,
            cap,
            qp_type,
            sq_sig_all,
            comp_mask,
            pd,
            xrcd,
            create_flags,
            max_tso_header,
            rwq_ind_tbl,
            rx_hash_conf,
            source_qpn,
            send_ops_flags,
        }),
        layout!(ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }),
        layout!(ibv_qp_attr {
            qp_state,
            cur_qp_state,
            path_mtu,
            path_mig_state,
            qkey,
            rq_psn,
            sq_psn,
            dest_qp_num,
            qp_access_flags,
            cap,
            ah_attr,
            alt_ah_attr,
            pkey_index,
            alt_pkey_index,
            en_sqd_async_notify,
            sq_draining,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            port_num,
            timeout,
            retry_cnt,
            rnr_retry,
            alt_port_num,
            alt_timeout,
            rate_limit,
        }),
        layout!(ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr,
            remote_srqn as "qp_type.xrc.remote_srqn",
            extra as "bind_mw",
        }),
        layout!(ibv_recv_wr { wr_id, next, sg_list, num_sge }),
        layout!(ibv_data_buf { addr, length }),
        layout!(ibv_qp {
            context,
            qp_context,
            pd,
            send_cq,
            recv_cq,
            srq,
            handle,
            qp_num,
            state,
            qp_type,
            mutex,
            cond,
            events_completed,
        }),
        layout!(ibv_qp_ex {
            qp_base,
            comp_mask,
            wr_id,
            wr_flags,
            wr_atomic_cmp_swp,
            wr_atomic_fetch_add,
            wr_bind_mw,
            wr_local_inv,
            wr_rdma_read,
            wr_rdma_write,
            wr_rdma_write_imm,
            wr_send,
            wr_send_imm,
            wr_send_inv,
            wr_send_tso,
            wr_set_ud_addr,
            wr_set_xrc_srqn,
            wr_set_inline_data,
            wr_set_inline_data_list,
            wr_set_sge,
            wr_set_sge_list,
            wr_start,
            wr_complete,
            wr_abort,
            wr_atomic_write,
        }),
        layout!(ibv_ece { vendor_id, options, comp_mask }),
        layout!(ibv_comp_channel { context, fd, refcnt }),
        layout!(ibv_cq_init_attr_ex {
            cqe,
            cq_context,
            channel,
            comp_vector,
            wc_flags,
            comp_mask,
            flags,
            parent_domain,
        }),
        layout!(ibv_cq_ex {
            context,
            channel,
            cq_context,
            handle,
            cqe,
            mutex,
            cond,
            comp_events_completed,
            async_events_completed,
            comp_mask,
            status,
            wr_id,
            start_poll,
            next_poll,
            end_poll,
            read_opcode,
            read_vendor_err,
            read_byte_len,
            read_imm_data,
            read_qp_num,
            read_src_qp,
            read_wc_flags,
            read_slid,
            read_sl,
            read_dlid_path_bits,
            read_completion_ts,
            read_cvlan,
            read_flow_tag,
            read_tm_info,
            read_completion_wallclock_ns,
        }),
        layout!(ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }),
        layout!(ibv_values_ex { comp_mask, raw_clock }),
        layout!(ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }),
        layout!(ibv_context_ops {
            query_device as "_compat_query_device",
            query_port as "_compat_query_port",
            alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv,
        }),
        layout!(ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }),
        layout!(verbs_context {
            query_port, alloc_parent_domain, dealloc_td, alloc_td, modify_cq, query_rt_values, create_cq_ex,
            query_device_ex, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, sz, context,
            private as "priv",
        }),
    ]
}

/// What the C compiler says: a line a struct or field, its name and a number. `None` where there is no compiler or no
/// header.
fn ask_c(layouts: &[Layout]) -> Option<String> {
    let mut program = String::from("#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n");
    for Layout { name, fields, .. } in layouts {
        writeln!(program, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
        for (field, _) in fields {
            writeln!(program, "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));").unwrap();
        }
    }
    program.push_str("}\n");
    let stem = env::temp_dir().join(format!("uroce-layout-{}", process::id()));
    let (source, binary) = (stem.with_extension("c"), stem.with_extension("bin"));
    fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&source).output();
    let answer = match compiled {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap())
        }
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(error.to_string()),
    };
    let _ = (fs::remove_file(source), fs::remove_file(binary));
    match answer {
        Ok(answer) => Some(answer),
        // A field that the header does not have is our mistake; a header that is not there is not.
        Err(why) if !why.contains("verbs.h: No such file") && !why.contains("os error 2") => panic!("{why}"),
        Err(_) => None,
    }
}

#[test]
fn structs_are_laid_out_as_the_header_has_them() {
    let layouts = layouts();
    let Some(answer) = ask_c(&layouts) else {
        let line = b"struct layouts: skipped, because cc or infiniband/verbs.h is missing\n";
        io::stderr().write_all(line).unwrap();
        return;
    };
    let mut ours = String::new();
    for Layout { name, size, fields } in &layouts {
        writeln!(ours, "{name} {size}").unwrap();
        for (field, offset) in fields {
            writeln!(ours, "{name}.{field} {offset}").unwrap();
        }
    }
    assert_eq!(ours.lines().count(), answer.lines().count());
    for (ours, in_c) in ours.lines().zip(answer.lines()) {
        if GROWN.iter().any(|name| ours.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '))) {
            continue;
        }
        assert_eq!(ours, in_c);
    }
}
