//! Work completions as a program sees them.

use uroce_protocol::{
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
}

impl WorkCompletion {
    pub(crate) const fn new(qp_num: Qpn, completion: &Completion) -> Self {
        Self {
            wr_id: completion.wr_id,
            status: completion.status,
            opcode: completion.opcode,
            byte_len: completion.byte_length,
            imm_data: completion.immediate,
            invalidated_rkey: completion.invalidated,
            qp_num,
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
        }
    }
}
