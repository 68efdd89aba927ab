//! A whole transport packet, from BTH to ICRC.

use super::{
    Aeth, AtomicEth, Bth, Deth, Extended, Opcode, Qpn, RKey, Reth, XrcEth,
    extended::{array, put},
};
use crate::Psn;
use core::fmt;
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
    /// The length is not a multiple of 4: payload and pad do not match.
    #[error("{length} bytes are no multiple of 4")]
    Unaligned {
        /// How many bytes there were.
        length: usize,
    },
    /// A payload where the opcode has none.
    #[error("{length} bytes of payload in a packet without payload ({opcode})")]
    UnexpectedPayload {
        /// What the packet is.
        opcode: Opcode,
        /// How many bytes lie between its headers and its pad.
        length: usize,
    },
}

/// A view of a packet's bytes, from BTH to ICRC inclusive, whose lengths have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    bth: Bth,
    header_len: usize,
}

impl<'a> Packet<'a> {
    /// How many bytes the ICRC takes at a packet's end.
    pub const ICRC_LEN: usize = 4;

    /// Checks every length against opcode and pad. Does not check the ICRC: see [`super::icrc`].
    ///
    /// A packet that carries a payload where its opcode has none (acknowledgements, READ requests, atomics, FLUSH)
    /// is refused here, so that no state machine has to wonder about it. How long a payload must be (exactly the
    /// path MTU in a First, 8 bytes in an ATOMIC WRITE …) depends on the queue pair and is its business.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let length = bytes.len();
        let Some(header) = bytes.first_chunk() else { return Err(PacketError::Truncated { length }) };
        let Some(bth) = Bth::parse(header) else { return Err(PacketError::UnknownOpcode(bytes[0])) };
        let header_len = bth.opcode.header_len();
        let Some(payload_len) = length.checked_sub(header_len + usize::from(bth.pad) + Self::ICRC_LEN) else {
            return Err(PacketError::Truncated { length });
        };
        if !length.is_multiple_of(4) {
            return Err(PacketError::Unaligned { length });
        }
        if payload_len != 0 && !bth.opcode.has_payload() {
            return Err(PacketError::UnexpectedPayload { opcode: bth.opcode, length: payload_len });
        }
        Ok(Self { bytes, bth, header_len })
    }

    /// The base transport header.
    #[inline]
    pub const fn bth(&self) -> &Bth {
        &self.bth
    }

    /// What the packet is.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        self.bth.opcode
    }

    /// Its sequence number.
    #[inline]
    pub const fn psn(&self) -> Psn {
        self.bth.psn
    }

    /// The queue pair it is for.
    #[inline]
    pub const fn destination(&self) -> Qpn {
        self.bth.destination
    }

    /// The headers that the opcode calls for.
    #[inline]
    pub fn extended(&self) -> Extended {
        let layout = self.opcode().layout();
        Extended::parse(layout, &self.bytes[self.header_len - layout.len()..])
    }

    /// The RETH, where the opcode has one.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        match self.extended() {
            Extended::Reth(reth) | Extended::RethImmediate(reth, _) | Extended::Flush(_, reth) => Some(reth),
            _ => None,
        }
    }

    /// The AtomicETH, where the opcode has one.
    #[inline]
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        match self.extended() {
            Extended::Atomic(atomic) => Some(atomic),
            _ => None,
        }
    }

    /// The AETH, where the opcode has one.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        match self.extended() {
            Extended::Aeth(aeth) | Extended::AtomicAck(aeth, _) => Some(aeth),
            _ => None,
        }
    }

    /// The original value that an atomic acknowledgement returns.
    #[inline]
    pub fn atomic_ack(&self) -> Option<u64> {
        match self.extended() {
            Extended::AtomicAck(_, original) => Some(original),
            _ => None,
        }
    }

    /// The DETH, where the opcode has one.
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        match self.extended() {
            Extended::Deth(deth) | Extended::DethImmediate(deth, _) => Some(deth),
            _ => None,
        }
    }

    /// The immediate data, where the opcode has it.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        match self.extended() {
            Extended::Immediate(immediate)
            | Extended::RethImmediate(_, immediate)
            | Extended::DethImmediate(_, immediate) => Some(immediate),
            _ => None,
        }
    }

    /// The key to invalidate, where the opcode has it.
    #[inline]
    pub fn invalidate(&self) -> Option<RKey> {
        match self.extended() {
            Extended::Invalidate(key) => Some(key),
            _ => None,
        }
    }

    /// The XRCETH, on XRC requests.
    #[inline]
    pub fn xrceth(&self) -> Option<XrcEth> {
        self.opcode().has_xrceth().then(|| XrcEth::parse(&self.bytes[Bth::LEN..]))
    }

    /// The payload without pad. Of a CNP, its reserved bytes.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len..self.bytes.len() - Self::ICRC_LEN - usize::from(self.bth.pad)]
    }

    /// The ICRC as it stands in the packet (a little-endian word on the wire).
    #[inline]
    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(array(self.bytes, self.bytes.len() - Self::ICRC_LEN))
    }

    /// All of it, BTH to ICRC.
    #[inline]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl fmt::Display for Packet<'_> {
    /// One line: the headers' meaning, then the payload's length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Repr::parse(self))?;
        if self.opcode().has_payload() {
            write!(f, " Len={}", self.payload().len())?;
        }
        Ok(())
    }
}

/// The meaning of a packet's headers: what is emitted before the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The base transport header; its `pad` must suit the payload that follows.
    pub bth: Bth,
    /// The shared receive queue; on XRC requests, and only there.
    pub xrceth: Option<XrcEth>,
    /// The headers that `bth.opcode` calls for.
    pub extended: Extended,
}

impl Repr {
    /// The longest header: BTH, XRCETH, AtomicETH.
    pub const MAX_LEN: usize = Bth::LEN + XrcEth::LEN + AtomicEth::LEN;

    /// The headers of a packet of any service but XRC.
    #[inline]
    pub const fn new(bth: Bth, extended: Extended) -> Self {
        Self { bth, xrceth: None, extended }
    }

    /// The meaning of a packet's headers.
    #[inline]
    pub fn parse(packet: &Packet<'_>) -> Self {
        Self { bth: packet.bth, xrceth: packet.xrceth(), extended: packet.extended() }
    }

    /// How many bytes [`Self::emit`] writes.
    #[inline]
    pub const fn header_len(&self) -> usize {
        let xrceth = if self.xrceth.is_some() { XrcEth::LEN } else { 0 };
        Bth::LEN + xrceth + self.extended.layout().len()
    }

    /// Writes the headers to the start of `buffer` and returns how many bytes they took.
    ///
    /// # Panics
    /// When `buffer` is shorter than [`Self::header_len`].
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        debug_assert_eq!(self.extended.layout(), self.bth.opcode.layout(), "headers of another opcode");
        debug_assert_eq!(self.xrceth.is_some(), self.bth.opcode.has_xrceth(), "XRCETH of another opcode");
        let buffer = &mut buffer[..self.header_len()];
        put(buffer, 0, self.bth.to_bytes());
        let mut at = Bth::LEN;
        if let Some(xrceth) = self.xrceth {
            xrceth.emit(&mut buffer[at..]);
            at += XrcEth::LEN;
        }
        self.extended.emit(&mut buffer[at..]);
        buffer.len()
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bth)?;
        if let Some(xrceth) = self.xrceth {
            write!(f, " SRQ={}", xrceth.srqn)?;
        }
        match self.extended {
            Extended::None => Ok(()),
            extended => write!(f, " {extended}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CreditCode, Msn, Operation, RKey, Syndrome, tests::config};
    use proptest::prelude::*;

    fn acknowledgement() -> Vec<u8> {
        let bth = Bth::new(Opcode::rc(Operation::Acknowledge), Qpn::new(0x12), Psn::new(7));
        let aeth = Aeth { syndrome: Syndrome::Ack(CreditCode::UNLIMITED), msn: Msn::new(1) };
        let mut bytes = vec![0; 20];
        assert_eq!(Repr::new(bth, Extended::Aeth(aeth)).emit(&mut bytes), 16);
        bytes
    }

    #[test]
    fn every_prefix_of_a_packet_is_truncated() {
        let bytes = acknowledgement();
        for length in 0..bytes.len() {
            assert_eq!(Packet::new_checked(&bytes[..length]).unwrap_err(), PacketError::Truncated { length });
        }
        assert!(Packet::new_checked(&bytes).is_ok());
    }

    #[test]
    fn a_forged_pad_does_not_reach_into_the_headers() {
        let mut bytes = acknowledgement();
        bytes[1] |= 0x30;
        assert_eq!(Packet::new_checked(&bytes).unwrap_err(), PacketError::Truncated { length: 20 });
    }

    #[test]
    fn an_acknowledgement_has_no_payload() {
        let mut bytes = acknowledgement();
        bytes.extend([0; 4]);
        let opcode = Opcode::rc(Operation::Acknowledge);
        assert_eq!(Packet::new_checked(&bytes).unwrap_err(), PacketError::UnexpectedPayload { opcode, length: 4 });
    }

    #[test]
    fn an_unknown_opcode_is_named() {
        let mut bytes = acknowledgement();
        bytes[0] = 0xff;
        assert_eq!(Packet::new_checked(&bytes).unwrap_err(), PacketError::UnknownOpcode(0xff));
    }

    #[test]
    fn a_length_that_the_pad_does_not_explain_is_refused() {
        let bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn::new(2), Psn::new(0));
        let mut bytes = [0; 21];
        Repr::new(bth, Extended::None).emit(&mut bytes);
        assert_eq!(Packet::new_checked(&bytes).unwrap_err(), PacketError::Unaligned { length: 21 });
    }

    #[test]
    fn packets_print_as_one_line() {
        let bytes = acknowledgement();
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!(packet.to_string(), "RC Acknowledge QP=0x000012 PSN=0x000007 ACK credits=unlimited MSN=1");

        let mut bth = Bth::new(Opcode::rc(Operation::WriteOnly), Qpn::new(0x12), Psn::new(7));
        bth.ack_request = true;
        bth.pad = 3;
        let reth = Reth { address: 0x1000, rkey: RKey(0xabc), length: 5 };
        let mut bytes = [0; 40];
        Repr::new(bth, Extended::Reth(reth)).emit(&mut bytes);
        assert_eq!(
            Packet::new_checked(&bytes).unwrap().to_string(),
            "RC WRITE Only QP=0x000012 PSN=0x000007 A VA=0x1000 RKey=0x00000abc DMALen=5 Len=5"
        );
    }

    proptest! {
        #![proptest_config(config(2048))]

        /// Whatever the bytes, every accessor returns, and what was read is written back bit by bit.
        #[test]
        fn any_packet_reencodes_to_its_own_bytes(
            opcode in prop::sample::select((0..=u8::MAX).filter(|&byte| Opcode::from_byte(byte).is_some()).collect::<Vec<_>>()),
            mut bytes in prop::collection::vec(any::<u8>(), 0..96),
        ) {
            if let Some(first) = bytes.first_mut() {
                *first = opcode;
            }
            if let Ok(packet) = Packet::new_checked(&bytes) {
                let repr = Repr::parse(&packet);
                let mut again = bytes.clone();
                again[..repr.header_len()].fill(0xa5);
                prop_assert_eq!(repr.emit(&mut again), packet.opcode().header_len());
                prop_assert_eq!(&again, &bytes);
                let end = packet.payload().len() + repr.header_len() + usize::from(repr.bth.pad) + Packet::ICRC_LEN;
                prop_assert_eq!(end, bytes.len());
                let _ = (packet.icrc(), packet.to_string(), packet.reth(), packet.aeth(), packet.deth());
            }
        }
    }
}
