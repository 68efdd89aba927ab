//! The base transport header: 12 bytes that every packet begins with.

use super::{Opcode, PKey, Qpn};
use crate::Psn;
use core::fmt;

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

    /// PadCnt for a payload of `length` bytes.
    #[inline]
    pub const fn pad_for(length: usize) -> u8 {
        (length.wrapping_neg() & 3) as u8
    }

    /// Decodes the header; `None` when the opcode does not exist.
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let flags = bytes[1];
        Some(Self {
            opcode: Opcode::from_byte(bytes[0])?,
            solicited: flags & 0x80 != 0,
            mig_req: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            transport_version: flags & 0x0f,
            pkey: PKey(u16::from_be_bytes([bytes[2], bytes[3]])),
            fecn: bytes[4] & 0x80 != 0,
            becn: bytes[4] & 0x40 != 0,
            reserved_a: bytes[4] & 0x3f,
            destination: Qpn::new(u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]])),
            ack_request: bytes[8] & 0x80 != 0,
            reserved_b: bytes[8] & 0x7f,
            psn: Psn::new(u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]])),
        })
    }

    /// Encodes the header. Bits of a field beyond its width are left out.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let [pkey_high, pkey_low] = self.pkey.0.to_be_bytes();
        let [_, qpn_high, qpn_middle, qpn_low] = self.destination.value().to_be_bytes();
        let [_, psn_high, psn_middle, psn_low] = self.psn.value().to_be_bytes();
        [
            self.opcode.to_byte(),
            (self.solicited as u8) << 7
                | (self.mig_req as u8) << 6
                | (self.pad & 3) << 4
                | (self.transport_version & 0x0f),
            pkey_high,
            pkey_low,
            (self.fecn as u8) << 7 | (self.becn as u8) << 6 | (self.reserved_a & 0x3f),
            qpn_high,
            qpn_middle,
            qpn_low,
            (self.ack_request as u8) << 7 | (self.reserved_b & 0x7f),
            psn_high,
            psn_middle,
            psn_low,
        ]
    }
}

impl fmt::Display for Bth {
    /// Opcode, queue pair and PSN; of the rest what is not as usual.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} QP={} PSN={}", self.opcode, self.destination, self.psn)?;
        let flags = [
            (self.ack_request, " A"),
            (self.solicited, " SE"),
            (self.mig_req, " M"),
            (self.fecn, " FECN"),
            (self.becn, " BECN"),
        ];
        for (_, name) in flags.into_iter().filter(|(set, _)| *set) {
            f.write_str(name)?;
        }
        if self.pkey != PKey::DEFAULT {
            write!(f, " PKey={}", self.pkey)?;
        }
        if self.transport_version != 0 {
            write!(f, " TVer={}", self.transport_version)?;
        }
        if (self.reserved_a, self.reserved_b) != (0, 0) {
            write!(f, " Rsv={:#04x},{:#04x}", self.reserved_a, self.reserved_b)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_lands_where_the_standard_puts_it() {
        let bth = Bth {
            opcode: Opcode::from_byte(0x0a).unwrap(),
            solicited: true,
            mig_req: false,
            pad: 3,
            transport_version: 5,
            pkey: PKey(0x1234),
            fecn: false,
            becn: true,
            reserved_a: 0x10,
            destination: Qpn::new(0x56789a),
            ack_request: true,
            reserved_b: 0x01,
            psn: Psn::new(0xbcdef0),
        };
        let bytes = [0x0a, 0xb5, 0x12, 0x34, 0x50, 0x56, 0x78, 0x9a, 0x81, 0xbc, 0xde, 0xf0];
        assert_eq!(bth.to_bytes(), bytes);
        assert_eq!(Bth::parse(&bytes), Some(bth));
    }

    #[test]
    fn pad_fills_a_multiple_of_four() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(Bth::pad_for), [0, 3, 2, 1, 0, 3]);
    }
}
