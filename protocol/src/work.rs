//! Work: what is posted to a queue pair, the packets that come of it, and how it ends. The same for every service.

use crate::{
    memory::{Sge, WindowBinding},
    wire::{QKey, Qpn, RKey, Repr, XrcSrqn},
};
use std::net::IpAddr;
use thiserror::Error;

pub use crate::send_queue::PostMark;

/// The longest message: 2³¹ bytes (IBTA 9.7.7: PMTU to 2³¹).
pub const MAX_MESSAGE_LENGTH: u64 = 1 << 31;

/// Why a work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostSendError {
    /// The send queue holds as many as it was made for (`ENOMEM`).
    #[error("the send queue is full")]
    QueueFull,
    /// The message is longer than 2³¹ bytes, an atomic's buffer is shorter than 8 bytes, an ATOMIC WRITE's is not 8
    /// bytes, or there is a buffer where the operation has none (`EINVAL`).
    #[error("the message's length is not allowed for this operation")]
    BadLength,
    /// The remote address of an atomic or ATOMIC WRITE is not a multiple of 8 (`EINVAL`), as rxe refuses it.
    #[error("the remote address of an atomic is not a multiple of 8")]
    Misaligned,
    /// The requester is not connected, the service lacks the operation, the target is not of the kind that it
    /// sends to, this is an operation that is answered (READ, atomics, ATOMIC WRITE, FLUSH) and `max_rd_atomic` is
    /// 0, its answer would go to inline data, or it is a FLUSH without placement (`EINVAL`).
    #[error("the connection does not allow this operation")]
    NotAllowed,
}

/// Why a receive was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostReceiveError {
    /// The receive queue holds as many as it was made for (`ENOMEM`).
    #[error("the receive queue is full")]
    QueueFull,
}

/// A packet to send: its headers, and where its payload comes from.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// The headers; `bth.pad` suits the payload.
    pub header: Repr,
    /// The payload.
    pub source: Source<'a>,
    /// Where it goes, if not to the peer that the queue pair is connected to.
    pub to: Option<AddressVector>,
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
        /// The XRC shared receive queue whose protection domain the region is of; `None` but on XRC, for the queue
        /// pair's own.
        srq: Option<XrcSrqn>,
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
    /// Whom it is for.
    pub target: Target,
}

/// Whom a send work request is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// The queue pair that this one is connected to.
    #[default]
    Peer,
    /// Any queue pair that datagrams reach (`ibv_send_wr.wr.ud`).
    Datagram {
        /// The way there.
        address: AddressVector,
        /// The queue pair, 0xffffff for all that have joined the multicast group of `address`.
        qpn: Qpn,
        /// The key that it wants. With the top bit set, the sender's own is sent in its place (IBTA 10.2.5).
        qkey: QKey,
    },
    /// A shared receive queue of the peer, of whose number this is (`ibv_send_wr.qp_type.xrc`).
    SharedReceiveQueue(u32),
}

/// The way to a destination: what an address handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The destination's address: a host's, or a multicast group's.
    pub peer: IpAddr,
    /// The TOS or traffic class byte: DSCP and ECN.
    pub traffic_class: u8,
    /// The IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// The TTL or hop limit.
    pub hop_limit: u8,
}

/// The local half of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum Buffers<'a> {
    /// Registered memory.
    List(&'a [Sge]),
    /// Bytes that are copied at once (`IBV_SEND_INLINE`).
    Inline(&'a [&'a [u8]]),
}

impl Buffers<'_> {
    /// How many bytes they hold.
    pub fn len(&self) -> u64 {
        match self {
            Self::List(list) => Sge::total_length(list),
            Self::Inline(parts) => parts.iter().map(|part| part.len() as u64).sum(),
        }
    }

    /// Whether they hold none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
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
    /// WRITE of 8 aligned bytes in one piece, after everything before it has been executed.
    AtomicWrite { address: u64, rkey: RKey },
    /// FLUSH: completes when what was written before to the range (or to all of its region) has come to where
    /// `placement` says.
    Flush { address: u64, rkey: RKey, length: u32, placement: FlushPlacement, whole_region: bool },
    /// Takes remote access away from a key of this side, once everything before it has completed. Nothing is sent.
    LocalInvalidate(RKey),
    /// Binds a memory window of this side; what is posted after it finds it bound. Nothing is sent.
    BindMemoryWindow(WindowBinding),
}

bitflags::bitflags! {
    /// Where a FLUSH wants earlier writes to have come, with the values of `enum ibv_placement_type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FlushPlacement: u8 {
        /// Visible to everybody at the responder.
        const GLOBAL = 1 << 0;
        /// In memory that survives a loss of power.
        const PERSISTENT = 1 << 1;
    }
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
    /// The queue pair that a datagram came from.
    pub source: Option<Qpn>,
    /// Whether the first 40 bytes of a datagram's buffers hold its network header (`IBV_WC_GRH`).
    pub has_grh: bool,
    /// The XRC shared receive queue that the receive was posted to, in whose completion queue it completes.
    pub srq: Option<XrcSrqn>,
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
    /// A memory window could not be bound, or a key not be invalidated ("memory management operation error").
    MemoryWindowBind = 6,
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
    /// Bind of a memory window.
    BindMemoryWindow = 5,
    /// Local invalidate.
    LocalInvalidate = 6,
    /// FLUSH.
    Flush = 8,
    /// ATOMIC WRITE.
    AtomicWrite = 9,
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
