//! The extended transport headers that follow the BTH, chosen by the opcode.

use super::{Msn, QKey, Qpn, RKey, XrcSrqn};
use crate::time::Duration;
use core::fmt;

/// RDMA extended transport header, 16 bytes: what remote memory a WRITE, READ, FLUSH or ATOMIC WRITE names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// First address, as the remote region counts.
    pub address: u64,
    /// The remote region's key.
    pub rkey: RKey,
    /// Length of the whole transfer in bytes.
    pub length: u32,
}

/// Atomic extended transport header, 28 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// The 64-bit word's address.
    pub address: u64,
    /// The remote region's key.
    pub rkey: RKey,
    /// The value to swap in, or the summand.
    pub swap_or_add: u64,
    /// The value to compare with; present but meaningless for FETCH_ADD.
    pub compare: u64,
}

/// ACK extended transport header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Acknowledgement, RNR or NAK, and its parameter.
    pub syndrome: Syndrome,
    /// How many request messages the responder has completed.
    pub msn: Msn,
}

/// The 8-bit syndrome of an AETH (IBTA 9.7.5.2, tables 43 to 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Positive, with the 5-bit end-to-end credit code.
    Ack(CreditCode),
    /// Receiver not ready, with the 5-bit timer code.
    RnrNak(u8),
    /// Negative.
    Nak(NakCode),
    /// Neither: a reserved type, or bit 7 set. The raw byte.
    Reserved(u8),
}

/// Why a request was refused: the 5-bit code of a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// 0: PSN sequence error; the requester goes back to the PSN named.
    PsnSequence,
    /// 1: invalid request.
    InvalidRequest,
    /// 2: remote access error.
    RemoteAccess,
    /// 3: remote operational error.
    RemoteOperational,
    /// 4: invalid RD request.
    InvalidRdRequest,
    /// A reserved code, 5 … 31.
    Reserved(u8),
}

/// A 5-bit end-to-end credit code (IBTA table 45): 0 … 30 stand for 0 … 32768 credits, 31 for "no limit".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditCode(u8);

/// Datagram extended transport header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The key that the receiving queue pair must hold.
    pub qkey: QKey,
    /// The sending queue pair.
    pub source: Qpn,
    /// The 8 reserved bits.
    pub reserved: u8,
}

/// XRC extended transport header, 4 bytes: the first header after the BTH of every XRC request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth {
    /// The shared receive queue that the request is for.
    pub srqn: XrcSrqn,
    /// The 8 reserved bits.
    pub reserved: u8,
}

/// FLUSH extended transport header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// PLT bit 0: make the range globally visible.
    pub global_visibility: bool,
    /// PLT bit 1: make it persistent.
    pub persistence: bool,
    /// SEL: 0 the range of the RETH, 1 the whole region, others reserved.
    pub selectivity: u8,
    /// The 26 reserved bits, where they stand in the word.
    pub reserved: u32,
}

/// Which extended headers an opcode calls for: the variants of [`Extended`] without their contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    None,
    Immediate,
    Invalidate,
    Reth,
    RethImmediate,
    Atomic,
    Aeth,
    AtomicAck,
    Deth,
    DethImmediate,
    Flush,
}

/// What follows the BTH (and the XRCETH of an XRC request), by opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    /// Nothing.
    None,
    /// ImmDt: 32 bits that are delivered with the completion, in wire order.
    Immediate(u32),
    /// IETH: the key to invalidate.
    Invalidate(RKey),
    /// RETH.
    Reth(Reth),
    /// RETH, ImmDt.
    RethImmediate(Reth, u32),
    /// AtomicETH.
    Atomic(AtomicEth),
    /// AETH.
    Aeth(Aeth),
    /// AETH, AtomicAckETH: the word's value before the operation.
    AtomicAck(Aeth, u64),
    /// DETH.
    Deth(Deth),
    /// DETH, ImmDt.
    DethImmediate(Deth, u32),
    /// FETH, RETH.
    Flush(Feth, Reth),
}

/// What codes 0 … 30 stand for; the standard's table doubles every two steps.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 24576, 32768,
];

/// What timer codes 0 … 31 stand for, in units of 10 µs.
const RNR_TIMERS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl CreditCode {
    /// "No limit": credits are not used.
    pub const UNLIMITED: Self = Self(0x1f);

    /// Takes the low five bits.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The code, 0 … 31.
    pub const fn value(self) -> u8 {
        self.0
    }

    /// The largest code that promises no more than `posted` receives.
    pub fn for_posted(posted: u32) -> Self {
        Self(CREDITS.partition_point(|&credits| credits <= posted) as u8 - 1)
    }

    /// How many messages the code allows, `None` for no limit.
    pub fn credits(self) -> Option<u32> {
        CREDITS.get(usize::from(self.0)).copied()
    }
}

impl Syndrome {
    /// Decodes the byte; every value has a meaning.
    #[inline]
    pub const fn from_byte(byte: u8) -> Self {
        let value = byte & 0x1f;
        match byte >> 5 {
            0 => Self::Ack(CreditCode(value)),
            1 => Self::RnrNak(value),
            3 => Self::Nak(NakCode::new(value)),
            _ => Self::Reserved(byte),
        }
    }

    /// The byte on the wire.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack(credits) => credits.0,
            Self::RnrNak(timer) => 0x20 | (timer & 0x1f),
            Self::Nak(code) => 0x60 | code.value(),
            Self::Reserved(byte) => byte,
        }
    }
}

impl NakCode {
    /// Takes the low five bits.
    pub const fn new(code: u8) -> Self {
        match code & 0x1f {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRdRequest,
            code => Self::Reserved(code),
        }
    }

    /// The code, 0 … 31.
    pub const fn value(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(code) => code & 0x1f,
        }
    }
}

/// The wait that a 5-bit RNR timer code asks for (IBTA table 44): 10 µs … 655.36 ms, 0 being the longest.
pub const fn rnr_timer(code: u8) -> Duration {
    Duration::from_micros(10 * RNR_TIMERS[(code & 0x1f) as usize] as u64)
}

impl Reth {
    /// Its length in bytes.
    pub const LEN: usize = 16;

    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self { address: be64(bytes, 0), rkey: RKey(be32(bytes, 8)), length: be32(bytes, 12) }
    }

    #[inline]
    fn emit(&self, buffer: &mut [u8]) {
        put(buffer, 0, self.address.to_be_bytes());
        put(buffer, 8, self.rkey.0.to_be_bytes());
        put(buffer, 12, self.length.to_be_bytes());
    }
}

impl AtomicEth {
    /// Its length in bytes.
    pub const LEN: usize = 28;

    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self {
            address: be64(bytes, 0),
            rkey: RKey(be32(bytes, 8)),
            swap_or_add: be64(bytes, 12),
            compare: be64(bytes, 20),
        }
    }

    #[inline]
    fn emit(&self, buffer: &mut [u8]) {
        put(buffer, 0, self.address.to_be_bytes());
        put(buffer, 8, self.rkey.0.to_be_bytes());
        put(buffer, 12, self.swap_or_add.to_be_bytes());
        put(buffer, 20, self.compare.to_be_bytes());
    }
}

impl Aeth {
    /// Its length in bytes.
    pub const LEN: usize = 4;

    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self { syndrome: Syndrome::from_byte(bytes[0]), msn: Msn::new(be32(bytes, 0)) }
    }

    #[inline]
    fn emit(&self, buffer: &mut [u8]) {
        put(buffer, 0, (u32::from(self.syndrome.to_byte()) << 24 | self.msn.value()).to_be_bytes());
    }
}

impl Deth {
    /// Its length in bytes.
    pub const LEN: usize = 8;

    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self { qkey: QKey(be32(bytes, 0)), source: Qpn::new(be32(bytes, 4)), reserved: bytes[4] }
    }

    #[inline]
    fn emit(&self, buffer: &mut [u8]) {
        put(buffer, 0, self.qkey.0.to_be_bytes());
        put(buffer, 4, (u32::from(self.reserved) << 24 | self.source.value()).to_be_bytes());
    }
}

impl XrcEth {
    /// Its length in bytes.
    pub const LEN: usize = 4;

    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self { srqn: XrcSrqn::new(be32(bytes, 0)), reserved: bytes[0] }
    }

    #[inline]
    pub(super) fn emit(&self, buffer: &mut [u8]) {
        put(buffer, 0, (u32::from(self.reserved) << 24 | self.srqn.value()).to_be_bytes());
    }
}

impl Feth {
    /// Its length in bytes.
    pub const LEN: usize = 4;
    const RESERVED: u32 = 0xffff_ffcc;

    #[inline]
    fn parse(bytes: &[u8]) -> Self {
        let word = be32(bytes, 0);
        Self {
            global_visibility: word & 1 != 0,
            persistence: word & 2 != 0,
            selectivity: (word >> 4 & 3) as u8,
            reserved: word & Self::RESERVED,
        }
    }

    #[inline]
    fn emit(&self, buffer: &mut [u8]) {
        let word = u32::from(self.global_visibility)
            | u32::from(self.persistence) << 1
            | u32::from(self.selectivity & 3) << 4
            | (self.reserved & Self::RESERVED);
        put(buffer, 0, word.to_be_bytes());
    }
}

/// ImmDt and IETH: one word.
pub(super) const WORD_LEN: usize = 4;
/// AtomicAckETH: one 64-bit value.
const ATOMIC_ACK_LEN: usize = 8;

impl Layout {
    /// How many bytes the headers take.
    pub(super) const fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Immediate | Self::Invalidate => WORD_LEN,
            Self::Reth => Reth::LEN,
            Self::RethImmediate => Reth::LEN + WORD_LEN,
            Self::Atomic => AtomicEth::LEN,
            Self::Aeth => Aeth::LEN,
            Self::AtomicAck => Aeth::LEN + ATOMIC_ACK_LEN,
            Self::Deth => Deth::LEN,
            Self::DethImmediate => Deth::LEN + WORD_LEN,
            Self::Flush => Feth::LEN + Reth::LEN,
        }
    }
}

impl Extended {
    pub(super) const fn layout(&self) -> Layout {
        match self {
            Self::None => Layout::None,
            Self::Immediate(_) => Layout::Immediate,
            Self::Invalidate(_) => Layout::Invalidate,
            Self::Reth(_) => Layout::Reth,
            Self::RethImmediate(..) => Layout::RethImmediate,
            Self::Atomic(_) => Layout::Atomic,
            Self::Aeth(_) => Layout::Aeth,
            Self::AtomicAck(..) => Layout::AtomicAck,
            Self::Deth(_) => Layout::Deth,
            Self::DethImmediate(..) => Layout::DethImmediate,
            Self::Flush(..) => Layout::Flush,
        }
    }

    /// Decodes the headers that `layout` names. `bytes` begins with them and holds all of them.
    #[inline]
    pub(super) fn parse(layout: Layout, bytes: &[u8]) -> Self {
        match layout {
            Layout::None => Self::None,
            Layout::Immediate => Self::Immediate(be32(bytes, 0)),
            Layout::Invalidate => Self::Invalidate(RKey(be32(bytes, 0))),
            Layout::Reth => Self::Reth(Reth::parse(bytes)),
            Layout::RethImmediate => Self::RethImmediate(Reth::parse(bytes), be32(bytes, Reth::LEN)),
            Layout::Atomic => Self::Atomic(AtomicEth::parse(bytes)),
            Layout::Aeth => Self::Aeth(Aeth::parse(bytes)),
            Layout::AtomicAck => Self::AtomicAck(Aeth::parse(bytes), be64(bytes, Aeth::LEN)),
            Layout::Deth => Self::Deth(Deth::parse(bytes)),
            Layout::DethImmediate => Self::DethImmediate(Deth::parse(bytes), be32(bytes, Deth::LEN)),
            Layout::Flush => Self::Flush(Feth::parse(bytes), Reth::parse(&bytes[Feth::LEN..])),
        }
    }

    /// Writes the headers to the start of `buffer`.
    #[inline]
    pub(super) fn emit(&self, buffer: &mut [u8]) {
        match self {
            Self::None => {}
            Self::Immediate(immediate) => put(buffer, 0, immediate.to_be_bytes()),
            Self::Invalidate(key) => put(buffer, 0, key.0.to_be_bytes()),
            Self::Reth(reth) => reth.emit(buffer),
            Self::RethImmediate(reth, immediate) => {
                reth.emit(buffer);
                put(buffer, Reth::LEN, immediate.to_be_bytes());
            }
            Self::Atomic(atomic) => atomic.emit(buffer),
            Self::Aeth(aeth) => aeth.emit(buffer),
            Self::AtomicAck(aeth, original) => {
                aeth.emit(buffer);
                put(buffer, Aeth::LEN, original.to_be_bytes());
            }
            Self::Deth(deth) => deth.emit(buffer),
            Self::DethImmediate(deth, immediate) => {
                deth.emit(buffer);
                put(buffer, Deth::LEN, immediate.to_be_bytes());
            }
            Self::Flush(feth, reth) => {
                feth.emit(buffer);
                reth.emit(&mut buffer[Feth::LEN..]);
            }
        }
    }
}

#[inline]
pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

#[inline]
pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// The `N` bytes at `at`, which the caller knows to be there.
#[inline]
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

/// Writes `bytes` at `at`, where the caller knows there to be room.
#[inline]
pub(super) fn put<const N: usize>(buffer: &mut [u8], at: usize, bytes: [u8; N]) {
    buffer[at..at + N].copy_from_slice(&bytes);
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VA={:#x} RKey={} DMALen={}", self.address, self.rkey, self.length)
    }
}

impl fmt::Display for AtomicEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, rkey, swap_or_add, compare } = self;
        write!(f, "VA={address:#x} RKey={rkey} SwapAdd={swap_or_add:#x} Compare={compare:#x}")
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MSN={}", self.syndrome, self.msn.value())
    }
}

impl fmt::Display for Deth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SrcQP={} QKey={}", self.source, self.qkey)
    }
}

impl fmt::Display for Feth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let placement = match (self.global_visibility, self.persistence) {
            (true, true) => "global,persistent",
            (true, false) => "global",
            (false, true) => "persistent",
            (false, false) => "none",
        };
        write!(f, "PLT={placement} SEL={}", self.selectivity)
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack(code) => match code.credits() {
                Some(credits) => write!(f, "ACK credits={credits}"),
                None => f.write_str("ACK credits=unlimited"),
            },
            Self::RnrNak(timer) => write!(f, "RNR NAK timer={:?}", rnr_timer(*timer)),
            Self::Nak(code) => write!(f, "NAK {code}"),
            Self::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}"),
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PsnSequence => f.write_str("PSN sequence error"),
            Self::InvalidRequest => f.write_str("invalid request"),
            Self::RemoteAccess => f.write_str("remote access error"),
            Self::RemoteOperational => f.write_str("remote operational error"),
            Self::InvalidRdRequest => f.write_str("invalid RD request"),
            Self::Reserved(code) => write!(f, "reserved code {code}"),
        }
    }
}

impl fmt::Display for Extended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Immediate(immediate) => write!(f, "Imm={immediate:#010x}"),
            Self::Invalidate(key) => write!(f, "Invalidate={key}"),
            Self::Reth(reth) => write!(f, "{reth}"),
            Self::RethImmediate(reth, immediate) => write!(f, "{reth} Imm={immediate:#010x}"),
            Self::Atomic(atomic) => write!(f, "{atomic}"),
            Self::Aeth(aeth) => write!(f, "{aeth}"),
            Self::AtomicAck(aeth, original) => write!(f, "{aeth} Original={original:#x}"),
            Self::Deth(deth) => write!(f, "{deth}"),
            Self::DethImmediate(deth, immediate) => write!(f, "{deth} Imm={immediate:#010x}"),
            Self::Flush(feth, reth) => write!(f, "{feth} {reth}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_survives_the_round_trip() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::Ack(CreditCode::UNLIMITED));
        assert_eq!(Syndrome::from_byte(0x62), Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(Syndrome::from_byte(0x40), Syndrome::Reserved(0x40));
        assert_eq!(Syndrome::from_byte(0x9f), Syndrome::Reserved(0x9f));
    }

    #[test]
    fn credit_codes_never_promise_too_much() {
        let around = |credits: u32| [credits.saturating_sub(1), credits, credits + 1];
        for posted in CREDITS.into_iter().flat_map(around) {
            let code = CreditCode::for_posted(posted);
            assert!(code.credits().unwrap() <= posted);
            let next = CreditCode::new(code.value() + 1);
            assert!(next.credits().is_none_or(|credits| credits > posted));
        }
        assert_eq!(CreditCode::for_posted(5), CreditCode::new(4));
        assert_eq!(CreditCode::for_posted(16), CreditCode::new(8));
        assert_eq!(CreditCode::for_posted(u32::MAX), CreditCode::new(0x1e));
        assert_eq!(CreditCode::UNLIMITED.credits(), None);
    }

    #[test]
    fn rnr_timers() {
        assert_eq!(rnr_timer(0), Duration::from_micros(655_360));
        assert_eq!(rnr_timer(1), Duration::from_micros(10));
        assert_eq!(rnr_timer(12), Duration::from_micros(640));
        // rxe's table has 61.41 ms here.
        assert_eq!(rnr_timer(25), Duration::from_micros(61_440));
        assert_eq!(rnr_timer(31), Duration::from_micros(491_520));
    }
}
