//! What a device and its port say of themselves, and the limits that the verbs enforce.

use super::{
    Counters, Gid,
    keys::WINDOW_INDICES,
    srq::{MAX_SRQ, MAX_SRQ_WR},
};
use crate::link::LinkLimits;
use std::fmt;
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
/// The most multicast groups that the device joins: each takes a socket.
pub(crate) const MAX_MCAST_GRP: u32 = 256;
/// The most queue pairs that join one multicast group.
pub(crate) const MAX_MCAST_QP_ATTACH: u32 = 256;
/// The most address handles.
pub(crate) const MAX_AH: u32 = 1 << 20;

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
    /// What it can do besides.
    pub device_cap_flags: DeviceCapabilities,
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
    /// The most shared receive queues.
    pub max_srq: u32,
    /// The most receives of one.
    pub max_srq_wr: u32,
    /// The most scatter-gather elements of a receive in one.
    pub max_srq_sge: u32,
    /// The most memory windows.
    pub max_mw: u32,
    /// The most address handles.
    pub max_ah: u32,
    /// The most multicast groups.
    pub max_mcast_grp: u32,
    /// The most queue pairs in a multicast group.
    pub max_mcast_qp_attach: u32,
    /// The most queue pairs in all multicast groups together.
    pub max_total_mcast_qp_attach: u32,
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
    /// The bits of completions' timestamps that count.
    pub completion_timestamp_mask: u64,
    /// How fast the clock of those timestamps runs: once a nanosecond.
    pub hca_core_clock_khz: u64,
}

bitflags::bitflags! {
    /// What a device can do beside the ordinary, with the values of `device_cap_flags_ex`, whose lower half is
    /// `enum ibv_device_cap_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DeviceCapabilities: u64 {
        /// The port counts packets of foreign partitions.
        const BAD_PKEY_CNTR = 1 << 1;
        /// The port counts datagrams with foreign Q_Keys.
        const BAD_QKEY_CNTR = 1 << 2;
        /// An address handle's port is checked.
        const UD_AV_PORT_ENFORCE = 1 << 6;
        /// A modify may name the state that the queue pair is believed in.
        const CURR_QP_STATE_MOD = 1 << 7;
        /// It tells when the port comes up (it never goes down).
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// `sys_image_guid` is meant.
        const SYS_IMAGE_GUID = 1 << 11;
        /// A responder without a receive asks the requester to wait.
        const RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// It has memory windows.
        const MEM_WINDOW = 1 << 17;
        /// Extended reliable connections.
        const XRC = 1 << 20;
        /// Keys can be invalidated by local requests and by SENDs.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Windows of type 2 belong to a queue pair and a protection domain.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// FLUSH to global visibility (`IB_UVERBS_DEVICE_FLUSH_GLOBAL`).
        const FLUSH_GLOBAL = 1 << 38;
        /// ATOMIC WRITE (`IB_UVERBS_DEVICE_ATOMIC_WRITE`).
        const ATOMIC_WRITE = 1 << 40;
    }
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
            device_cap_flags: DeviceCapabilities::all(),
            max_qp: MAX_QP,
            max_qp_wr: MAX_QP_WR,
            max_sge: MAX_SGE,
            max_sge_rd: MAX_SGE,
            max_cq: 1 << 20,
            max_cqe: MAX_CQE,
            max_mr: 1 << 24,
            max_pd: 1 << 20,
            max_srq: MAX_SRQ,
            max_srq_wr: MAX_SRQ_WR,
            max_srq_sge: MAX_SGE,
            max_mw: WINDOW_INDICES,
            max_ah: MAX_AH,
            max_mcast_grp: MAX_MCAST_GRP,
            max_mcast_qp_attach: MAX_MCAST_QP_ATTACH,
            max_total_mcast_qp_attach: MAX_MCAST_GRP * MAX_MCAST_QP_ATTACH,
            max_qp_rd_atom: MAX_RD_ATOMIC,
            max_qp_init_rd_atom: MAX_RD_ATOMIC,
            max_res_rd_atom: MAX_RD_ATOMIC as u32 * MAX_QP,
            atomic_cap: 2,
            local_ca_ack_delay: 15,
            max_pkeys: PKEY_TABLE_LEN,
            phys_port_cnt: 1,
            max_inline_data: MAX_INLINE,
            completion_timestamp_mask: u64::MAX,
            hca_core_clock_khz: 1_000_000,
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
    /// What it can do (`enum ibv_port_cap_flags`): connection management (bit 16), GIDs that are IP addresses (bit
    /// 26).
    pub port_cap_flags: u32,
    /// The longest message in bytes.
    pub max_msg_sz: u32,
    /// Packets dropped for a wrong partition key.
    pub bad_pkey_cntr: u32,
    /// Packets dropped for a wrong Q_Key.
    pub qkey_viol_cntr: u32,
    /// How fast its network is.
    pub rate: Rate,
    /// Physical state code: 5 is "link up".
    pub phys_state: u8,
    /// Link layer: 2 is Ethernet (`IBV_LINK_LAYER_ETHERNET`).
    pub link_layer: u8,
    /// 1: every path needs a global route (`IBV_QPF_GRH_REQUIRED`).
    pub flags: u8,
}

impl PortAttributes {
    pub(crate) fn new(active_mtu: Mtu, limits: &LinkLimits, counters: &Counters) -> Self {
        Self {
            state: PortState::Active,
            max_mtu: Mtu::Mtu4096,
            active_mtu,
            gid_tbl_len: 1,
            pkey_tbl_len: PKEY_TABLE_LEN,
            port_cap_flags: 1 << 16 | 1 << 26,
            max_msg_sz: MAX_MESSAGE_LENGTH as u32,
            bad_pkey_cntr: u32::try_from(counters.drop_pkey).unwrap_or(u32::MAX),
            qkey_viol_cntr: u32::try_from(counters.drop_qkey).unwrap_or(u32::MAX),
            rate: Rate::of_ethernet(limits.speed),
            phys_state: 5,
            link_layer: 2,
            flags: 1,
        }
    }
}

/// How fast a link is, in InfiniBand's terms: so many lanes, each of one of the speeds that InfiniBand knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    lanes: u32,
    speed: u8,
}

impl Rate {
    /// Speeds of a lane: code (`ibv_port_attr.active_speed`), name, units of 100 Mbit/s.
    const SPEEDS: [(u8, &str, u32); 8] = [
        (1, "SDR", 25),
        (2, "DDR", 50),
        (4, "QDR", 100),
        (8, "FDR10", 100),
        (16, "FDR", 140),
        (32, "EDR", 250),
        (64, "HDR", 500),
        (128, "NDR", 1000),
    ];

    /// What an Ethernet link of so many megabits a second is reported as: the kernel's choices (`ib_get_eth_speed`),
    /// which takes what does not say for 1 Gbit/s, and beyond 100 Gbit/s what the drivers of such cards report.
    const fn of_ethernet(megabits: Option<u32>) -> Self {
        let (lanes, speed) = match megabits {
            None | Some(..=1_000) => (1, 1),
            Some(..=10_000) => (1, 8),
            Some(..=20_000) => (4, 2),
            Some(..=25_000) => (1, 32),
            Some(..=40_000) => (4, 8),
            Some(..=50_000) => (1, 64),
            Some(..=100_000) => (4, 32),
            Some(..=200_000) => (4, 64),
            Some(_) => (4, 128),
        };
        Self { lanes, speed }
    }

    /// `ibv_port_attr.active_width`: 1 is one lane, 2 is four.
    pub const fn width_code(self) -> u8 {
        if self.lanes == 1 { 1 } else { 2 }
    }

    /// `ibv_port_attr.active_speed`: 1 is SDR, 2 is DDR … 128 is NDR.
    pub const fn speed_code(self) -> u8 {
        self.speed
    }
}

/// As Linux writes it in sysfs: `25 Gb/sec (1X EDR)`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((_, name, tenths)) = Self::SPEEDS.into_iter().find(|&(code, ..)| code == self.speed) else {
            return Err(fmt::Error);
        };
        let tenths = tenths * self.lanes;
        let fraction = if tenths % 10 == 5 { ".5" } else { "" };
        write!(f, "{}{fraction} Gb/sec ({}X {name})", tenths / 10, self.lanes)
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
    /// The network interface that holds its address, 0 where there is none.
    pub ndev_ifindex: u32,
}

impl GidEntry {
    pub(crate) const fn new(gid: Gid, ndev_ifindex: u32) -> Self {
        Self { gid, gid_index: 0, port_num: PORT, gid_type: 2, ndev_ifindex }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_what_linux_makes_of_ethernet_speeds() {
        for (megabits, text, width, speed) in [
            (None, "2.5 Gb/sec (1X SDR)", 1, 1),
            (Some(1_000), "2.5 Gb/sec (1X SDR)", 1, 1),
            (Some(10_000), "10 Gb/sec (1X FDR10)", 1, 8),
            (Some(20_000), "20 Gb/sec (4X DDR)", 2, 2),
            (Some(25_000), "25 Gb/sec (1X EDR)", 1, 32),
            (Some(40_000), "40 Gb/sec (4X FDR10)", 2, 8),
            (Some(50_000), "50 Gb/sec (1X HDR)", 1, 64),
            (Some(100_000), "100 Gb/sec (4X EDR)", 2, 32),
            (Some(200_000), "200 Gb/sec (4X HDR)", 2, 64),
            (Some(400_000), "400 Gb/sec (4X NDR)", 2, 128),
        ] {
            let rate = Rate::of_ethernet(megabits);
            assert_eq!((rate.to_string().as_str(), rate.width_code(), rate.speed_code()), (text, width, speed));
        }
    }
}
