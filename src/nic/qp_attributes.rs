//! A queue pair's attributes, and the names that the verbs give to subsets of them.

use super::Gid;
use uroce_protocol::{
    AccessFlags, Psn,
    wire::{Mtu, Qpn, Service},
};

/// A queue pair's state (`enum ibv_qp_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QpState {
    /// New, or reset: nothing may be posted.
    #[default]
    Reset = 0,
    /// Receives may be posted; nothing moves.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue drains: what has begun is finished, nothing new begins.
    Sqd = 4,
    /// A send failed; receives go on. Unconnected services only: a reliable connection goes to [`Self::Err`].
    Sqe = 5,
    /// Everything posted is flushed.
    Err = 6,
}

bitflags::bitflags! {
    /// Which attributes a modify sets, with the values of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpAttributeMask: u32 {
        /// `qp_state`.
        const STATE = 1 << 0;
        /// `cur_qp_state`.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `ah_attr`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// The alternate path.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The path migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// The queue capabilities.
        const CAP = 1 << 19;
        /// `dest_qp_num`.
        const DEST_QPN = 1 << 20;
        /// The rate limit.
        const RATE_LIMIT = 1 << 25;
    }
}

/// The way to a peer (`struct ibv_ah_attr`): for RoCE always a global route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressHandleAttributes {
    /// The global route, `ibv_ah_attr.grh`.
    pub grh: GlobalRoute,
    /// The service level: nothing on RoCE v2, kept for the query.
    pub sl: u8,
    /// Whether `grh` is meant. RoCE needs it: `EINVAL` otherwise.
    pub is_global: bool,
    /// The port; 1.
    pub port_num: u8,
}

/// The network half of a path (`struct ibv_global_route`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer.
    pub dgid: Gid,
    /// The IPv6 flow label; left to the system by links over sockets.
    pub flow_label: u32,
    /// Which of the port's GIDs to send from.
    pub sgid_index: u8,
    /// The TTL or hop limit; left to the system by links over sockets.
    pub hop_limit: u8,
    /// The TOS or traffic class byte of every packet: DSCP and ECN.
    pub traffic_class: u8,
}

/// How much a queue pair holds (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCapabilities {
    /// Outstanding sends.
    pub max_send_wr: u32,
    /// Posted receives.
    pub max_recv_wr: u32,
    /// Scatter-gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter-gather elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of an inline send.
    pub max_inline_data: u32,
}

impl QpCapabilities {
    /// Of a queue pair that holds nothing itself.
    pub(crate) const NONE: Self =
        Self { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 };
}

impl Default for QpCapabilities {
    /// Room for 128 work requests each way, one element each, 64 bytes inline.
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 }
    }
}

/// The transport service of a queue pair (`enum ibv_qp_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection.
    #[default]
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// The sending half of an extended reliable connection (its initiator).
    XrcSend = 9,
    /// The receiving half of an extended reliable connection (its target).
    XrcRecv = 10,
}

impl QpType {
    /// The service that its packets are of.
    pub(crate) const fn service(self) -> Service {
        match self {
            Self::Rc => Service::Rc,
            Self::Uc => Service::Uc,
            Self::Ud => Service::Ud,
            Self::XrcSend | Self::XrcRecv => Service::Xrc,
        }
    }
}

/// Everything that modify sets and query returns (`struct ibv_qp_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttributes {
    /// The state to move to; the state now.
    pub qp_state: QpState,
    /// The state that the caller believes it in.
    pub cur_qp_state: QpState,
    /// How many payload bytes a packet carries.
    pub path_mtu: Mtu,
    /// The first PSN that is expected, 24 bits.
    pub rq_psn: u32,
    /// The first PSN that is sent, 24 bits.
    pub sq_psn: u32,
    /// The peer's queue pair, 24 bits.
    pub dest_qp_num: u32,
    /// The key that datagrams must bring, and that those sent bring which ask for it.
    pub qkey: u32,
    /// Which remote operations it answers.
    pub qp_access_flags: AccessFlags,
    /// How much it holds.
    pub cap: QpCapabilities,
    /// The way to the peer.
    pub ah_attr: AddressHandleAttributes,
    /// The partition, as an index of the port's table.
    pub pkey_index: u16,
    /// Whether draining ends in an event ([`crate::verbs::AsyncEventType::SqDrained`]).
    pub en_sqd_async_notify: bool,
    /// Whether the send queue is draining (query only).
    pub sq_draining: bool,
    /// READs and atomics outstanding as their initiator.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding as their target.
    pub max_dest_rd_atomic: u8,
    /// The RNR timer code that refused peers are told, 0 … 31.
    pub min_rnr_timer: u8,
    /// The port; 1.
    pub port_num: u8,
    /// The local ACK timeout code, 0 … 31: 4.096 µs · 2ⁿ, 0 for ever.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0 … 7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 0 … 6; 7 for ever.
    pub rnr_retry: u8,
}

/// A connection in one piece, for [`crate::verbs::QueuePair::connect`]: what a program would otherwise spread over
/// three modifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The peer's address.
    pub gid: Gid,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The PSN that the peer will send first.
    pub remote_psn: Psn,
    /// The PSN to send first.
    pub local_psn: Psn,
    /// How many payload bytes a packet carries.
    pub path_mtu: Mtu,
    /// Which remote operations to answer.
    pub access: AccessFlags,
    /// READs and atomics outstanding, in both roles.
    pub max_rd_atomic: u8,
    /// The RNR timer code, 0 … 31.
    pub min_rnr_timer: u8,
    /// The local ACK timeout code, 0 … 31.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0 … 7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 0 … 6; 7 for ever.
    pub rnr_retry: u8,
    /// The TOS or traffic class byte.
    pub traffic_class: u8,
}

impl Connection {
    /// A connection to a queue pair, with what the common test programs use for the rest: MTU 1024, PSNs from 0,
    /// every remote operation allowed, 16 READs, timeout code 14 (67 ms), 7 retries, RNR timer code 12 (0.64 ms),
    /// RNR retries for ever.
    pub const fn new(gid: Gid, qpn: Qpn) -> Self {
        Self {
            gid,
            qpn,
            remote_psn: Psn::new(0),
            local_psn: Psn::new(0),
            path_mtu: Mtu::Mtu1024,
            access: AccessFlags::REMOTE_WRITE
                .union(AccessFlags::REMOTE_READ)
                .union(AccessFlags::REMOTE_ATOMIC)
                .union(AccessFlags::FLUSH_GLOBAL),
            max_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            traffic_class: 0,
        }
    }
}
