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

pub use crate::work::{
    AddressVector, Buffers, Completion, Fatal, FlushPlacement, MAX_MESSAGE_LENGTH, PostReceiveError, PostSendError,
    SendOperation, SendRequest, Source, Target, Transmit, WcOpcode, WcStatus,
};
pub(crate) use requester::headers;
pub use requester::{Requester, RequesterCounters};
pub use responder::{Responder, ResponderCounters};
pub(crate) use window::PACKET_OVERHEAD;
pub use window::WindowConfig;

use crate::{
    Psn,
    wire::{Mtu, PKey, Qpn, Service},
};

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
    /// Wait equally long for each retry, as rxe does, instead of twice and then four times as long. The IBTA has a
    /// timeout expire after one to four times its nominal length, and a peer that is a process wants a processor.
    pub steady_ack_timeout: bool,
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
        steady_ack_timeout: false,
    };

    /// What Linux rxe does.
    pub const RXE: Self = Self {
        end_to_end_credits: false,
        coalesce_acks: false,
        sequence_nak_after_rnr: true,
        too_long_is_operational: true,
        infinite_retry_7: true,
        read_gap_waits_for_timeout: true,
        steady_ack_timeout: true,
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
    /// Reliable connection, or extended reliable connection (XRC): the same machines, but that each request names
    /// one of the peer's shared receive queues.
    pub service: Service,
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
        Self {
            service: Service::Rc,
            destination: Qpn::new(0),
            mtu: Mtu::default(),
            pkey: PKey::DEFAULT,
            quirks: Quirks::default(),
        }
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
