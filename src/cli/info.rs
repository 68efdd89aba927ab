//! `uroce info`: what `ibv_devinfo -v` shows of a NIC.

use super::device;
use clap::Args;
use std::{
    io::{self, Write},
    process::ExitCode,
};
use uroce::{
    settings::Settings,
    verbs::{DeviceAttributes, PORT, PortAttributes},
};

/// Options of `uroce info`.
#[derive(Clone, Debug, Args)]
pub(crate) struct InfoOptions {
    /// Print the counters too
    #[arg(long)]
    counters: bool,
}

/// Runs it.
pub(crate) fn run(settings: &Settings, options: &InfoOptions) -> anyhow::Result<ExitCode> {
    let device = device::open(settings)?;
    let context = device.open()?;
    let mut out = io::stdout().lock();
    writeln!(out, "hca_id: {}", device.name())?;
    field(&mut out, 1, "transport", "InfiniBand (0)")?;
    field(&mut out, 1, "address", device.address())?;
    device_fields(&mut out, &context.query_device())?;
    writeln!(out, "\t\tport:\t{PORT}")?;
    let port = context.query_port(PORT)?;
    port_fields(&mut out, &port)?;
    for index in 0..port.gid_tbl_len {
        let entry = context.query_gid_entry(PORT, index)?;
        field(&mut out, 3, &format!("GID[{index:3}]"), format_args!("{}, RoCE v2", entry.gid))?;
    }
    for index in 0..port.pkey_tbl_len {
        field(&mut out, 3, &format!("PKEY[{index:3}]"), context.query_pkey(PORT, index)?)?;
    }
    if options.counters {
        writeln!(out, "\t\thw_counters:")?;
        for (name, value) in device.counters().iter() {
            field(&mut out, 3, name, value)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn field(out: &mut impl Write, depth: usize, name: &str, value: impl std::fmt::Display) -> io::Result<()> {
    writeln!(out, "{:\t<depth$}{:<32}{value}", "", format!("{name}:"))
}

fn device_fields(out: &mut impl Write, device: &DeviceAttributes) -> io::Result<()> {
    let mut field = |name, value: &dyn std::fmt::Display| field(out, 1, name, value);
    field("fw_ver", &device.fw_ver)?;
    field("node_guid", &guid(device.node_guid))?;
    field("sys_image_guid", &guid(device.sys_image_guid))?;
    field("vendor_id", &format_args!("{:#06x}", device.vendor_id))?;
    field("vendor_part_id", &device.vendor_part_id)?;
    field("hw_ver", &format_args!("{:#x}", device.hw_ver))?;
    field("phys_port_cnt", &device.phys_port_cnt)?;
    field("max_mr_size", &format_args!("{:#x}", device.max_mr_size))?;
    field("page_size_cap", &format_args!("{:#x}", device.page_size_cap))?;
    field("max_qp", &device.max_qp)?;
    field("max_qp_wr", &device.max_qp_wr)?;
    field("max_sge", &device.max_sge)?;
    field("max_sge_rd", &device.max_sge_rd)?;
    field("max_inline_data", &device.max_inline_data)?;
    field("max_cq", &device.max_cq)?;
    field("max_cqe", &device.max_cqe)?;
    field("max_mr", &device.max_mr)?;
    field("max_pd", &device.max_pd)?;
    field("max_qp_rd_atom", &device.max_qp_rd_atom)?;
    field("max_res_rd_atom", &device.max_res_rd_atom)?;
    field("max_qp_init_rd_atom", &device.max_qp_init_rd_atom)?;
    let atomics = ["ATOMIC_NONE", "ATOMIC_HCA", "ATOMIC_GLOB"];
    field("atomic_cap", &format_args!("{} ({})", atomics[usize::from(device.atomic_cap.min(2))], device.atomic_cap))?;
    field("max_pkeys", &device.max_pkeys)?;
    field("local_ca_ack_delay", &device.local_ca_ack_delay)
}

fn port_fields(out: &mut impl Write, port: &PortAttributes) -> io::Result<()> {
    let mut field = |name, value: &dyn std::fmt::Display| field(out, 3, name, value);
    field("state", &format_args!("PORT_{} ({})", format!("{:?}", port.state).to_uppercase(), port.state as u8))?;
    field("max_mtu", &format_args!("{} ({})", port.max_mtu, port.max_mtu as u8))?;
    field("active_mtu", &format_args!("{} ({})", port.active_mtu, port.active_mtu as u8))?;
    field("link_layer", &"Ethernet")?;
    field("max_msg_sz", &format_args!("{:#x}", port.max_msg_sz))?;
    field("bad_pkey_cntr", &port.bad_pkey_cntr)?;
    field("qkey_viol_cntr", &port.qkey_viol_cntr)?;
    field("gid_tbl_len", &port.gid_tbl_len)?;
    field("pkey_tbl_len", &port.pkey_tbl_len)?;
    field("rate", &port.rate)?;
    field("phys_state", &format_args!("LINK_UP ({})", port.phys_state))
}

fn guid(guid: u64) -> String {
    let groups: Vec<String> =
        guid.to_be_bytes().chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}
