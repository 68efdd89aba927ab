//! A whole transport packet, from BTH to ICRC.

use super::{Aeth, AtomicEth, Bth, Deth, Extended, Opcode, Qpn, Reth, XrcSrqn};
use crate::Psn;
use thiserror::Error;

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// Fewer bytes than the BTH, the opcode's headers, the pad and the ICRC need.
    #[error("{length} bytes are too few for the packet's headers, pad and ICRC")]
    Truncated {
        /// How many bytes there were.
        length: usize,
    },
    /// An opcode that no service has.
    #[error("opcode {0:#04x} does not exist")]
    UnknownOpcode(u8),
    // more as needed (payload where none may be, a length that is not a multiple of 4 …)
}

/// A view of a packet's bytes, from BTH to ICRC inclusive, whose lengths have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    bth: Bth,
    header_len: usize,
}

impl<'a> Packet<'a> {
    /// Checks every length against opcode and pad. Does not check the ICRC: see [`super::icrc`].
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let _ = bytes;
        todo!()
    }
    /// The base transport header.
    pub const fn bth(&self) -> &Bth {
        &self.bth
    }
    /// What the packet is.
    pub const fn opcode(&self) -> Opcode {
        self.bth.opcode
    }
    /// Its sequence number.
    pub const fn psn(&self) -> Psn {
        self.bth.psn
    }
    /// The queue pair it is for.
    pub const fn destination(&self) -> Qpn {
        self.bth.destination
    }
    /// The headers that the opcode calls for.
    pub fn extended(&self) -> Extended {
        todo!()
    }
    /// The RETH, where the opcode has one.
    pub fn reth(&self) -> Option<Reth> {
        todo!()
    }
    /// The AtomicETH, where the opcode has one.
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        todo!()
    }
    /// The AETH, where the opcode has one.
    pub fn aeth(&self) -> Option<Aeth> {
        todo!()
    }
    /// The original value that an atomic acknowledgement returns.
    pub fn atomic_ack(&self) -> Option<u64> {
        todo!()
    }
    /// The DETH, where the opcode has one.
    pub fn deth(&self) -> Option<Deth> {
        todo!()
    }
    /// The immediate data, where the opcode has it.
    pub fn immediate(&self) -> Option<u32> {
        todo!()
    }
    /// The key to invalidate, where the opcode has it.
    pub fn invalidate(&self) -> Option<super::RKey> {
        todo!()
    }
    /// The XRC shared receive queue, on XRC requests.
    pub fn xrc_srqn(&self) -> Option<XrcSrqn> {
        todo!()
    }
    /// The payload without pad.
    pub fn payload(&self) -> &'a [u8] {
        let _ = (self.bytes, self.header_len);
        todo!()
    }
    /// The ICRC as it stands in the packet (a little-endian word on the wire).
    pub fn icrc(&self) -> u32 {
        todo!()
    }
    /// All of it, BTH to ICRC.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The meaning of a packet's headers: what is emitted before the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The base transport header; its `pad` must suit the payload that follows.
    pub bth: Bth,
    /// The XRC shared receive queue; on XRC requests, and only there.
    pub xrc_srqn: Option<XrcSrqn>,
    /// The headers that `bth.opcode` calls for.
    pub extended: Extended,
}

impl Repr {
    /// The longest header: BTH, XRCETH, AtomicETH.
    pub const MAX_LEN: usize = 12 + 4 + 28;

    /// The meaning of a packet's headers.
    pub fn parse(packet: &Packet<'_>) -> Self {
        let _ = packet;
        todo!()
    }
    /// How many bytes [`Self::emit`] writes.
    pub fn header_len(&self) -> usize {
        todo!()
    }
    /// Writes the headers to the start of `buffer` and returns how many bytes they took.
    ///
    /// # Panics
    /// When `buffer` is shorter than [`Self::header_len`].
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let _ = buffer;
        todo!()
    }
}
