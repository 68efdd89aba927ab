//! BTH opcodes: three bits of service, five of operation.

use super::{Bth, Mtu, XrcEth, extended::Layout};
use core::fmt;

/// The transport service of an opcode: its three upper bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection, 0x00.
    Rc,
    /// Unreliable connection, 0x20.
    Uc,
    /// Unreliable datagram, 0x60.
    Ud,
    /// Extended reliable connection, 0xa0.
    Xrc,
    /// Congestion notification, 0x81 alone.
    Cnp,
}

/// What a packet does within its message: the five lower bits of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the IBTA's")]
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastWithImmediate = 0x03,
    SendOnly = 0x04,
    SendOnlyWithImmediate = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastWithImmediate = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyWithImmediate = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastWithInvalidate = 0x16,
    SendOnlyWithInvalidate = 0x17,
    Flush = 0x1c,
    AtomicWrite = 0x1d,
    /// The CNP's own code; not one of the five-bit operations (0x81 as a whole).
    CongestionNotification = 0x81,
}

/// An opcode that exists: a service and an operation that the service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    service: Service,
    operation: Operation,
}

/// Every byte decoded once, by the compiler: a lookup is all that the data path pays.
static DECODED: [Option<Opcode>; 256] = {
    let mut table = [None; 256];
    let mut service = 0;
    while service < Service::ALL.len() {
        let mut operation = 0;
        while operation < Operation::ALL.len() {
            if let Some(opcode) = Opcode::new(Service::ALL[service], Operation::ALL[operation]) {
                table[opcode.to_byte() as usize] = Some(opcode);
            }
            operation += 1;
        }
        service += 1;
    }
    table
};

/// The header length of every opcode, 0 for bytes that are none.
static HEADER_LEN: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        if let Some(opcode) = DECODED[byte] {
            let xrceth = if opcode.has_xrceth() { XrcEth::LEN } else { 0 };
            table[byte] = (Bth::LEN + xrceth + opcode.layout().len()) as u8;
        }
        byte += 1;
    }
    table
};

impl Opcode {
    /// The congestion notification packet.
    pub const CNP: Self = Self { service: Service::Cnp, operation: Operation::CongestionNotification };

    /// The opcode of `operation` over a reliable connection. Every operation but the CNP exists
    /// there, which stays itself.
    pub const fn rc(operation: Operation) -> Self {
        match operation {
            Operation::CongestionNotification => Self::CNP,
            _ => Self { service: Service::Rc, operation },
        }
    }

    /// The opcode of a service's operation, `None` where the service lacks it.
    pub const fn new(service: Service, operation: Operation) -> Option<Self> {
        use Operation as Op;
        let exists = match service {
            Service::Rc => !matches!(operation, Op::CongestionNotification),
            // No operation that needs an answer, and no invalidation.
            Service::Uc => (operation as u8) <= Op::WriteOnlyWithImmediate as u8,
            Service::Ud => matches!(operation, Op::SendOnly | Op::SendOnlyWithImmediate),
            Service::Xrc => !matches!(operation, Op::Flush | Op::AtomicWrite | Op::CongestionNotification),
            Service::Cnp => matches!(operation, Op::CongestionNotification),
        };
        if exists { Some(Self { service, operation }) } else { None }
    }

    /// Decodes the first byte of a BTH; `None` for reserved and manufacturer codes, and for reliable datagrams
    /// (0x40 … 0x5f), which no device has.
    #[inline]
    pub fn from_byte(byte: u8) -> Option<Self> {
        DECODED[usize::from(byte)]
    }

    /// The first byte of a BTH.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        let base = match self.service {
            Service::Rc => 0x00,
            Service::Uc => 0x20,
            Service::Ud => 0x60,
            Service::Cnp => 0x80,
            Service::Xrc => 0xa0,
        };
        base | self.operation as u8
    }

    /// The transport service.
    #[inline]
    pub const fn service(self) -> Service {
        self.service
    }

    /// What the packet does within its message.
    #[inline]
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// Whether the packet answers a request (READ responses, acknowledgements), so that it is meant for a
    /// requester.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.operation.is_response()
    }

    /// Whether packets of this opcode may carry a payload.
    #[inline]
    pub const fn has_payload(self) -> bool {
        use Operation as Op;
        !matches!(
            self.operation,
            Op::ReadRequest | Op::Acknowledge | Op::AtomicAcknowledge | Op::CompareSwap | Op::FetchAdd | Op::Flush
        )
    }

    /// How many bytes of headers the opcode calls for, BTH included.
    #[inline]
    pub fn header_len(self) -> usize {
        usize::from(HEADER_LEN[usize::from(self.to_byte())])
    }

    /// Whether an XRCETH follows the BTH: on requests of the service alone.
    #[inline]
    pub(super) const fn has_xrceth(self) -> bool {
        matches!(self.service, Service::Xrc) && !self.is_response()
    }

    /// Which extended headers the opcode calls for.
    #[inline]
    pub(super) const fn layout(self) -> Layout {
        use Operation as Op;
        match self.operation {
            Op::SendOnly if matches!(self.service, Service::Ud) => Layout::Deth,
            Op::SendOnlyWithImmediate if matches!(self.service, Service::Ud) => Layout::DethImmediate,
            Op::SendFirst
            | Op::SendMiddle
            | Op::SendLast
            | Op::SendOnly
            | Op::WriteMiddle
            | Op::WriteLast
            | Op::ReadResponseMiddle
            | Op::CongestionNotification => Layout::None,
            Op::SendLastWithImmediate | Op::SendOnlyWithImmediate | Op::WriteLastWithImmediate => Layout::Immediate,
            Op::SendLastWithInvalidate | Op::SendOnlyWithInvalidate => Layout::Invalidate,
            Op::WriteFirst | Op::WriteOnly | Op::ReadRequest | Op::AtomicWrite => Layout::Reth,
            Op::WriteOnlyWithImmediate => Layout::RethImmediate,
            Op::CompareSwap | Op::FetchAdd => Layout::Atomic,
            Op::ReadResponseFirst | Op::ReadResponseLast | Op::ReadResponseOnly | Op::Acknowledge => Layout::Aeth,
            Op::AtomicAcknowledge => Layout::AtomicAck,
            Op::Flush => Layout::Flush,
        }
    }
}

impl Service {
    const ALL: [Self; 5] = [Self::Rc, Self::Uc, Self::Ud, Self::Xrc, Self::Cnp];
}

impl Operation {
    const ALL: [Self; 26] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastWithImmediate,
        Self::SendOnly,
        Self::SendOnlyWithImmediate,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastWithImmediate,
        Self::WriteOnly,
        Self::WriteOnlyWithImmediate,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::SendLastWithInvalidate,
        Self::SendOnlyWithInvalidate,
        Self::Flush,
        Self::AtomicWrite,
        Self::CongestionNotification,
    ];

    /// Whether this is the first or only packet of a request message (READ requests and atomics are).
    #[inline]
    pub const fn starts_message(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendOnly
                | Self::SendOnlyWithImmediate
                | Self::SendOnlyWithInvalidate
                | Self::WriteFirst
                | Self::WriteOnly
                | Self::WriteOnlyWithImmediate
                | Self::ReadRequest
                | Self::CompareSwap
                | Self::FetchAdd
                | Self::Flush
                | Self::AtomicWrite
        )
    }

    /// Whether this is the last or only packet of a message, be it a request or a response.
    #[inline]
    pub const fn ends_message(self) -> bool {
        !matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::WriteFirst
                | Self::WriteMiddle
                | Self::ReadResponseFirst
                | Self::ReadResponseMiddle
        )
    }

    /// Whether this is a packet of a WRITE.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastWithImmediate
                | Self::WriteOnly
                | Self::WriteOnlyWithImmediate
        )
    }

    /// Whether a SEND or WRITE packet may carry `length` bytes: First and Middle are full, Last is not empty (IBTA
    /// 9.7.4.1.6: length requirements by opcode).
    pub(crate) fn allows_payload(self, length: usize, mtu: Mtu) -> bool {
        let mtu = mtu.bytes();
        match (self.starts_message(), self.ends_message()) {
            (true, true) => length <= mtu,
            (false, true) => (1..=mtu).contains(&length),
            (_, false) => length == mtu,
        }
    }

    const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    const fn name(self) -> &'static str {
        match self {
            Self::SendFirst => "SEND First",
            Self::SendMiddle => "SEND Middle",
            Self::SendLast => "SEND Last",
            Self::SendLastWithImmediate => "SEND Last Immediate",
            Self::SendOnly => "SEND Only",
            Self::SendOnlyWithImmediate => "SEND Only Immediate",
            Self::WriteFirst => "WRITE First",
            Self::WriteMiddle => "WRITE Middle",
            Self::WriteLast => "WRITE Last",
            Self::WriteLastWithImmediate => "WRITE Last Immediate",
            Self::WriteOnly => "WRITE Only",
            Self::WriteOnlyWithImmediate => "WRITE Only Immediate",
            Self::ReadRequest => "READ Request",
            Self::ReadResponseFirst => "READ Response First",
            Self::ReadResponseMiddle => "READ Response Middle",
            Self::ReadResponseLast => "READ Response Last",
            Self::ReadResponseOnly => "READ Response Only",
            Self::Acknowledge => "Acknowledge",
            Self::AtomicAcknowledge => "ATOMIC Acknowledge",
            Self::CompareSwap => "CMP_SWAP",
            Self::FetchAdd => "FETCH_ADD",
            Self::SendLastWithInvalidate => "SEND Last Invalidate",
            Self::SendOnlyWithInvalidate => "SEND Only Invalidate",
            Self::Flush => "FLUSH",
            Self::AtomicWrite => "ATOMIC WRITE",
            Self::CongestionNotification => "CNP",
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
            Self::Cnp => "CNP",
        })
    }
}

impl fmt::Display for Opcode {
    /// The service and the operation, for example "RC WRITE First".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.service {
            Service::Cnp => f.write_str(self.operation.name()),
            service => write!(f, "{service} {}", self.operation.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_exist_are_those_of_the_standard() {
        let exists = |byte: u8| {
            matches!(byte, 0x00..=0x14 | 0x16 | 0x17 | 0x1c | 0x1d | 0x20..=0x2b | 0x64 | 0x65 | 0x81)
                || matches!(byte, 0xa0..=0xb4 | 0xb6 | 0xb7)
        };
        for byte in 0..=u8::MAX {
            let opcode = Opcode::from_byte(byte);
            assert_eq!(opcode.is_some(), exists(byte), "{byte:#04x}");
            assert!(opcode.is_none_or(|opcode| opcode.to_byte() == byte), "{byte:#04x}");
        }
    }

    #[test]
    fn header_lengths() {
        let length = |byte| Opcode::from_byte(byte).unwrap().header_len();
        assert_eq!(length(0x00), 12);
        assert_eq!(length(0x03), 16);
        assert_eq!(length(0x0b), 32);
        assert_eq!(length(0x12), 24);
        assert_eq!(length(0x14), 40);
        assert_eq!(length(0x1c), 32);
        assert_eq!(length(0x65), 24);
        assert_eq!(length(0x81), 12);
        assert_eq!(length(0xaa), 32);
        assert_eq!(length(0xb1), 16);
        assert_eq!(length(0xb4), 44);
    }

    #[test]
    fn names_read_like_a_dissector() {
        let name = |byte| Opcode::from_byte(byte).unwrap().to_string();
        assert_eq!(name(0x06), "RC WRITE First");
        assert_eq!(name(0x10), "RC READ Response Only");
        assert_eq!(name(0x65), "UD SEND Only Immediate");
        assert_eq!(name(0x81), "CNP");
        assert_eq!(name(0xb7), "XRC SEND Only Invalidate");
    }
}
