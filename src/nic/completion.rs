//! Work completions as a program sees them.

use uroce_protocol::{
    Instant,
    rc::{Completion, WcOpcode, WcStatus},
    wire::{Qpn, RKey},
};

/// A finished work request (`struct ibv_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The work request's own number.
    pub wr_id: u64,
    /// Success, or what went wrong.
    pub status: WcStatus,
    /// What finished. When the status is not success, only whether it was a send or a receive is meaningful.
    pub opcode: WcOpcode,
    /// Bytes received or read, 8 for an atomic, 0 for SEND and WRITE.
    pub byte_len: u32,
    /// Immediate data, in host order, where the receive carries it (`IBV_WC_WITH_IMM`).
    pub imm_data: Option<u32>,
    /// The key that a SEND with invalidate took (`IBV_WC_WITH_INV`).
    pub invalidated_rkey: Option<RKey>,
    /// The local queue pair.
    pub qp_num: Qpn,
    /// When the device came to it, on the device's clock. What it came to in one go has one time.
    pub timestamp: Instant,
    /// The queue pair that a datagram came from.
    pub src_qp: Option<Qpn>,
    /// Whether the first 40 bytes of a datagram's buffers hold its network header (`IBV_WC_GRH`).
    pub has_grh: bool,
}

impl WorkCompletion {
    pub(crate) const fn new(qp_num: Qpn, completion: &Completion, timestamp: Instant) -> Self {
        Self {
            wr_id: completion.wr_id,
            status: completion.status,
            opcode: completion.opcode,
            byte_len: completion.byte_length,
            imm_data: completion.immediate,
            invalidated_rkey: completion.invalidated,
            qp_num,
            timestamp,
            src_qp: completion.source,
            has_grh: completion.has_grh,
        }
    }

    /// Whether the work request succeeded.
    pub const fn is_success(&self) -> bool {
        matches!(self.status, WcStatus::Success)
    }
}

impl Default for WorkCompletion {
    /// An empty slot for [`crate::verbs::CompletionQueue::poll`] to fill.
    fn default() -> Self {
        Self {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            byte_len: 0,
            imm_data: None,
            invalidated_rkey: None,
            qp_num: Qpn::default(),
            timestamp: Instant::ZERO,
            src_qp: None,
            has_grh: false,
        }
    }
}
