//! The extended transport headers that follow the BTH, chosen by the opcode.

use super::{Msn, QKey, Qpn, RKey};

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
    /// The 26 reserved bits.
    pub reserved: u32,
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
        let _ = posted;
        todo!()
    }

    /// How many messages the code allows, `None` for no limit.
    pub fn credits(self) -> Option<u32> {
        todo!()
    }
}

impl Syndrome {
    /// Decodes the byte; every value has a meaning.
    pub const fn from_byte(byte: u8) -> Self {
        let _ = byte;
        todo!()
    }
    /// The byte on the wire.
    pub const fn to_byte(self) -> u8 {
        todo!()
    }
}

/// The wait that a 5-bit RNR timer code asks for (IBTA table 44): 10 µs … 655.36 ms, 0 being the longest.
pub const fn rnr_timer(code: u8) -> crate::time::Duration {
    let _ = code;
    todo!()
}
