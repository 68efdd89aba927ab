//! What a device and its port say of themselves, and the limits that the verbs enforce.

use super::{Counters, Gid};
use uroce_protocol::{rc::MAX_MESSAGE_LENGTH, wire::Mtu};

/// The only port.
pub const PORT: u8 = 1;
/// The most work requests that a queue may be made for.
pub(crate) const MAX_QP_WR: u32 = 1 << 14;
/// The most scatter-gather elements of a work request.
pub(crate) const MAX_SGE: u32 = 32;
/// The most inline bytes of a send.
pub(crate) const MAX_INLINE: u32 = 1024;
/// The most READs and atomics outstanding, either side (rxe: 128).
pub(crate) const MAX_RD_ATOMIC: u8 = 128;
/// The most completions that a queue may be made for.
pub(crate) const MAX_CQE: u32 = (1 << 22) - 1;
/// The most queue pairs.
pub(crate) const MAX_QP: u32 = 1 << 20;

/// How many partition keys the port has: the default one alone.
pub(crate) const PKEY_TABLE_LEN: u16 = 1;

/// What a device can do (`struct ibv_device_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// The version of this software.
    pub fw_ver: &'static str,
    /// The node's EUI-64, in host order.
    pub node_guid: u64,
    /// The system's EUI-64, in host order.
    pub sys_image_guid: u64,
    /// The longest memory region.
    pub max_mr_size: u64,
    /// The page sizes it can use, as a bit mask.
    pub page_size_cap: u64,
    /// The IEEE vendor, 0xffffff for software.
    pub vendor_id: u32,
    /// The vendor's part number.
    pub vendor_part_id: u32,
    /// The hardware's version.
    pub hw_ver: u32,
    /// The most queue pairs.
    pub max_qp: u32,
    /// The most work requests of a queue.
    pub max_qp_wr: u32,
    /// The most scatter-gather elements of a work request.
    pub max_sge: u32,
    /// The most scatter-gather elements of a READ.
    pub max_sge_rd: u32,
    /// The most completion queues.
    pub max_cq: u32,
    /// The most completions of a queue.
    pub max_cqe: u32,
    /// The most memory regions.
    pub max_mr: u32,
    /// The most protection domains.
    pub max_pd: u32,
    /// READs and atomics that a queue pair can have outstanding as their target.
    pub max_qp_rd_atom: u8,
    /// READs and atomics that a queue pair can have outstanding as their initiator.
    pub max_qp_init_rd_atom: u8,
    /// READs and atomics that the whole device can have outstanding as their target.
    pub max_res_rd_atom: u32,
    /// Whether atomics are atomic with respect to every other atomic of this device (`IBV_ATOMIC_HCA`), and to
    /// the processor's own too (`IBV_ATOMIC_GLOB`): 2.
    pub atomic_cap: u8,
    /// How long this device may take to answer, as a local ACK timeout code.
    pub local_ca_ack_delay: u8,
    /// How many partition keys the port has.
    pub max_pkeys: u16,
    /// How many physical ports there are.
    pub phys_port_cnt: u8,
    /// The most inline bytes of a send.
    pub max_inline_data: u32,
}

impl DeviceAttributes {
    pub(crate) const fn new(guid: u64) -> Self {
        Self {
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid: guid,
            sys_image_guid: guid,
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            hw_ver: 0,
            max_qp: MAX_QP,
            max_qp_wr: MAX_QP_WR,
            max_sge: MAX_SGE,
            max_sge_rd: MAX_SGE,
            max_cq: 1 << 20,
            max_cqe: MAX_CQE,
            max_mr: 1 << 24,
            max_pd: 1 << 20,
            max_qp_rd_atom: MAX_RD_ATOMIC,
            max_qp_init_rd_atom: MAX_RD_ATOMIC,
            max_res_rd_atom: MAX_RD_ATOMIC as u32 * MAX_QP,
            atomic_cap: 2,
            local_ca_ack_delay: 15,
            max_pkeys: PKEY_TABLE_LEN,
            phys_port_cnt: 1,
            max_inline_data: MAX_INLINE,
        }
    }
}

/// A port's state (`enum ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the verbs'")]
pub enum PortState {
    Down = 1,
    Init = 2,
    Armed = 3,
    Active = 4,
}

/// What a port says of itself (`struct ibv_port_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttributes {
    /// Whether it works.
    pub state: PortState,
    /// The largest path MTU that the device can do.
    pub max_mtu: Mtu,
    /// The largest path MTU that its network can carry.
    pub active_mtu: Mtu,
    /// How many GIDs it has.
    pub gid_tbl_len: u32,
    /// How many partition keys it has.
    pub pkey_tbl_len: u16,
    /// The longest message in bytes.
    pub max_msg_sz: u32,
    /// Packets dropped for a wrong partition key.
    pub bad_pkey_cntr: u32,
    /// Packets dropped for a wrong Q_Key.
    pub qkey_viol_cntr: u32,
    /// Link width code (`ibv_port_attr.active_width`): 1 is one lane.
    pub active_width: u8,
    /// Link speed code (`ibv_port_attr.active_speed`): 4 is QDR, as rxe says of links it cannot tell.
    pub active_speed: u8,
    /// Physical state code: 5 is "link up".
    pub phys_state: u8,
    /// Link layer: 2 is Ethernet (`IBV_LINK_LAYER_ETHERNET`).
    pub link_layer: u8,
}

impl PortAttributes {
    pub(crate) fn new(active_mtu: Mtu, counters: &Counters) -> Self {
        Self {
            state: PortState::Active,
            max_mtu: Mtu::Mtu4096,
            active_mtu,
            gid_tbl_len: 1,
            pkey_tbl_len: PKEY_TABLE_LEN,
            max_msg_sz: MAX_MESSAGE_LENGTH as u32,
            bad_pkey_cntr: u32::try_from(counters.drop_pkey).unwrap_or(u32::MAX),
            qkey_viol_cntr: 0,
            active_width: 1,
            active_speed: 4,
            phys_state: 5,
            link_layer: 2,
        }
    }
}

/// A GID and what it is for (`struct ibv_gid_entry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The identifier.
    pub gid: Gid,
    /// Its place in the port's table.
    pub gid_index: u32,
    /// The port.
    pub port_num: u8,
    /// `enum ibv_gid_type`: 2 is RoCE v2, the only one.
    pub gid_type: u32,
}

impl GidEntry {
    pub(crate) const fn new(gid: Gid) -> Self {
        Self { gid, gid_index: 0, port_num: PORT, gid_type: 2 }
    }
}
