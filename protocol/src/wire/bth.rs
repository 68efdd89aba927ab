//! The base transport header: 12 bytes that every packet begins with.

use super::{Opcode, PKey, Qpn};
use crate::Psn;

/// The base transport header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// SE: the receiver's completion is a solicited event.
    pub solicited: bool,
    /// M: 1 says "path migrated", the normal state of hardware; rxe sends 0. Ignored on receive.
    pub mig_req: bool,
    /// PadCnt: how many bytes 0 … 3 follow the payload to fill a multiple of 4.
    pub pad: u8,
    /// TVer, 4 bits; must be 0 (a receiver drops anything else).
    pub transport_version: u8,
    /// The partition.
    pub pkey: PKey,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// The six reserved bits beside FECN and BECN (hardware sets some of them), masked in the ICRC.
    pub reserved_a: u8,
    /// The destination queue pair.
    pub destination: Qpn,
    /// A: the requester asks for an acknowledgement.
    pub ack_request: bool,
    /// The seven reserved bits beside AckReq, covered by the ICRC.
    pub reserved_b: u8,
    /// The packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Its length in bytes.
    pub const LEN: usize = 12;

    /// A header with every flag clear, in the default partition: what a state machine starts from.
    pub const fn new(opcode: Opcode, destination: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: false,
            pad: 0,
            transport_version: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            reserved_a: 0,
            destination,
            ack_request: false,
            reserved_b: 0,
            psn,
        }
    }
}
