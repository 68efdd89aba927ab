//! The reliable connection: a requester and a responder, each its own state machine.
//!
//! The two halves of a queue pair share nothing but its attributes. [`Requester`] owns the send queue: it cuts
//! work requests into packets, keeps PSNs, windows, credits and timers, and turns acknowledgements into
//! completions. [`Responder`] owns the receive queue: it checks what arrives, places it, and answers.
//!
//! Neither knows of the queue-pair states RESET … ERR beyond "connected" and "flushed"; those, the access to
//! completion queues, and counters with public names live with the device.

mod requester;
mod responder;
#[cfg(test)]
mod tests;
mod window;

pub use requester::{PostSendError, Requester, RequesterCounters};
pub use responder::{PostReceiveError, Responder, ResponderCounters};
pub use window::WindowConfig;

use crate::{
    Psn,
    memory::Sge,
    wire::{Mtu, PKey, Qpn, RKey, Repr},
};

/// The longest message: 2³¹ bytes (IBTA 9.7.7: PMTU to 2³¹).
pub const MAX_MESSAGE_LENGTH: u64 = 1 << 31;

/// How to behave where the IBTA leaves room or Linux rxe deviates from it. Each field is a row of
/// docs/fidelity.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirks {
    /// Advertise posted receives in ACKs and obey what the peer advertises. rxe always says "no limit" and never
    /// looks.
    pub end_to_end_credits: bool,
    /// Answer a burst of requests with one ACK for the last of them. rxe sends one for every AckReq.
    pub coalesce_acks: bool,
    /// After an RNR NAK, answer the pipelined packets that follow with a sequence NAK, as rxe does; the IBTA has
    /// the responder stay silent until the refused PSN returns (C9-104 in our reading).
    pub sequence_nak_after_rnr: bool,
    /// Refuse a message longer than the posted receive with NAK "remote operational error", as rxe does, instead
    /// of "invalid request".
    pub too_long_is_operational: bool,
    /// Treat retry_cnt 7 as "for ever", as rxe does, instead of seven.
    pub infinite_retry_7: bool,
    /// Recover a lost READ response by timeout only, as rxe does, instead of at once on the gap.
    pub read_gap_waits_for_timeout: bool,
}

impl Quirks {
    /// What the IBTA asks and ConnectX-class hardware does.
    pub const HARDWARE: Self = Self {
        end_to_end_credits: true,
        coalesce_acks: true,
        sequence_nak_after_rnr: false,
        too_long_is_operational: false,
        infinite_retry_7: false,
        read_gap_waits_for_timeout: false,
    };

    /// What Linux rxe does.
    pub const RXE: Self = Self {
        end_to_end_credits: false,
        coalesce_acks: false,
        sequence_nak_after_rnr: true,
        too_long_is_operational: true,
        infinite_retry_7: true,
        read_gap_waits_for_timeout: true,
    };
}

impl Default for Quirks {
    fn default() -> Self {
        Self::HARDWARE
    }
}

/// What both halves know of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathAttributes {
    /// The peer's queue pair.
    pub destination: Qpn,
    /// How many payload bytes a packet carries.
    pub mtu: Mtu,
    /// The partition that packets are sent in.
    pub pkey: PKey,
    /// Deviations.
    pub quirks: Quirks,
}

impl Default for PathAttributes {
    fn default() -> Self {
        Self { destination: Qpn::new(0), mtu: Mtu::default(), pkey: PKey::DEFAULT, quirks: Quirks::default() }
    }
}

/// What the requester is told when the queue pair becomes ready to send (`IBV_QPS_RTS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequesterAttributes {
    /// The path.
    pub path: PathAttributes,
    /// The first PSN (`sq_psn`).
    pub first_psn: Psn,
    /// READs and atomics outstanding at most (`max_rd_atomic`).
    pub max_rd_atomic: u8,
    /// Local ACK timeout code, 0 … 31: 4.096 µs · 2ⁿ, 0 waits for ever.
    pub timeout: u8,
    /// Retries after a timeout or sequence error without progress, 0 … 7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs without progress, 0 … 6; 7 is for ever.
    pub rnr_retry: u8,
    /// Bounds of the window over unacknowledged bytes.
    pub window: WindowConfig,
}

impl Default for RequesterAttributes {
    /// What perftest and the pingpong examples of rdma-core ask for, more or less: 67 ms, 7 retries.
    fn default() -> Self {
        Self {
            path: PathAttributes::default(),
            first_psn: Psn::new(0),
            max_rd_atomic: 16,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            window: WindowConfig::default(),
        }
    }
}

/// What the responder is told when the queue pair becomes ready to receive (`IBV_QPS_RTR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderAttributes {
    /// The path.
    pub path: PathAttributes,
    /// The first PSN expected (`rq_psn`).
    pub first_psn: Psn,
    /// READs and atomics that are kept for replay (`max_dest_rd_atomic`).
    pub max_dest_rd_atomic: u8,
    /// The RNR timer code that a NAK carries, 0 … 31.
    pub min_rnr_timer: u8,
    /// Which remote operations the queue pair allows (`qp_access_flags`: REMOTE_WRITE, REMOTE_READ,
    /// REMOTE_ATOMIC).
    pub access: crate::AccessFlags,
}

/// A packet to send: its headers, and where its payload comes from.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// The headers; `bth.pad` suits the payload.
    pub header: Repr,
    /// The payload.
    pub source: Source<'a>,
    /// Whether the packet was sent before.
    pub retransmission: bool,
}

/// Where a packet's payload comes from. The driver copies it behind the header, once, computing the ICRC on the
/// way; if it cannot (the region is gone), it says so with `transmit_failed` on the machine that emitted it.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// No payload.
    Empty,
    /// These bytes: part of an inline send.
    Inline(&'a [u8]),
    /// `length` bytes from `offset` of the concatenation of local buffers.
    Local {
        /// The work request's scatter-gather list.
        list: &'a [Sge],
        /// Where to start in its concatenation.
        offset: u64,
        /// How many bytes, at most the path MTU.
        length: usize,
    },
    /// `length` bytes at `address` of the region of `rkey`, which must allow REMOTE_READ: a READ response.
    Remote {
        /// The region.
        rkey: RKey,
        /// The first address.
        address: u64,
        /// How many bytes, at most the path MTU.
        length: usize,
    },
}

impl Source<'_> {
    /// How many bytes it holds.
    pub const fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Inline(bytes) => bytes.len(),
            Self::Local { length, .. } | Self::Remote { length, .. } => *length,
        }
    }

    /// Whether it holds none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A send work request, less its opcode's remote half (`struct ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Returned with the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: SendOperation,
    /// The local buffers: source of SEND and WRITE, destination of READ and atomics.
    pub buffers: Buffers<'a>,
    /// Whether success makes a completion (errors always do).
    pub signaled: bool,
    /// Whether the receiver's completion is a solicited event.
    pub solicited: bool,
    /// Whether to wait until all earlier READs and atomics have completed.
    pub fence: bool,
}

/// The local half of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum Buffers<'a> {
    /// Registered memory.
    List(&'a [Sge]),
    /// Bytes that are copied at once (`IBV_SEND_INLINE`).
    Inline(&'a [&'a [u8]]),
}

/// What a send work request does (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "remote address, key, immediate and operands are the verbs' own")]
pub enum SendOperation {
    /// SEND.
    Send,
    /// SEND with immediate data (in wire order).
    SendWithImmediate(u32),
    /// SEND that takes remote access away from a key of the receiver.
    SendWithInvalidate(RKey),
    /// WRITE.
    Write { address: u64, rkey: RKey },
    /// WRITE that also consumes a receive and delivers immediate data.
    WriteWithImmediate { address: u64, rkey: RKey, immediate: u32 },
    /// READ.
    Read { address: u64, rkey: RKey },
    /// 64-bit compare and swap.
    CompareSwap { address: u64, rkey: RKey, compare: u64, swap: u64 },
    /// 64-bit fetch and add.
    FetchAdd { address: u64, rkey: RKey, add: u64 },
}

/// A finished work request (`struct ibv_wc`, less the queue pair's number).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's.
    pub wr_id: u64,
    /// Success, or what went wrong.
    pub status: WcStatus,
    /// What finished; on an error only the send or receive side is meaningful, as in the verbs.
    pub opcode: WcOpcode,
    /// Bytes received, or read, or 8 for an atomic; 0 for SEND and WRITE.
    pub byte_length: u32,
    /// Immediate data, in wire order.
    pub immediate: Option<u32>,
    /// The key that a SEND with invalidate took.
    pub invalidated: Option<RKey>,
    /// Whether it wakes a completion queue armed for solicited events only: a receive whose sender asked for it,
    /// or any error.
    pub solicited: bool,
}

/// How a work request ended, with the values of `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// It succeeded.
    Success = 0,
    /// The message did not fit the posted buffers.
    LocalLength = 1,
    /// The queue pair could not do it.
    LocalQpOperation = 2,
    /// A local buffer is not (or no longer) registered as needed.
    LocalProtection = 4,
    /// The queue pair was in error before its turn came.
    WorkRequestFlushed = 5,
    /// The responder's answer made no sense.
    BadResponse = 7,
    /// A remote write into local memory was not allowed.
    LocalAccess = 8,
    /// The responder found the request invalid.
    RemoteInvalidRequest = 9,
    /// The responder refused access.
    RemoteAccess = 10,
    /// The responder could not complete the request.
    RemoteOperation = 11,
    /// Retries after timeouts or sequence errors are used up.
    RetryExceeded = 12,
    /// Retries after RNR NAKs are used up.
    RnrRetryExceeded = 13,
}

/// What a completion is of, with the values of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcOpcode {
    /// SEND, with or without immediate data or invalidation.
    Send = 0,
    /// WRITE, with or without immediate data.
    Write = 1,
    /// READ.
    Read = 2,
    /// Compare and swap.
    CompareSwap = 3,
    /// Fetch and add.
    FetchAdd = 4,
    /// A receive that a SEND filled.
    Receive = 128,
    /// A receive that a WRITE with immediate consumed.
    ReceiveWithImmediate = 129,
}

/// Why a half stopped for good: the queue pair must go to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fatal {
    /// The requester completed a work request in error (its completion says which).
    Requester,
    /// The responder refused an invalid request (`IBV_EVENT_QP_REQ_ERR`).
    InvalidRequest,
    /// The responder refused access (`IBV_EVENT_QP_ACCESS_ERR`).
    Access,
    /// The responder failed locally: a receive's buffer was too short or not accessible (`IBV_EVENT_QP_FATAL`).
    Local,
}
