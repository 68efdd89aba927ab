//! BTH opcodes: three bits of service, five of operation.

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

impl Opcode {
    /// The congestion notification packet.
    pub const CNP: Self = Self { service: Service::Cnp, operation: Operation::CongestionNotification };

    /// The opcode of `operation` over a reliable connection. Every operation but the CNP exists there.
    pub const fn rc(operation: Operation) -> Self {
        Self { service: Service::Rc, operation }
    }

    /// The opcode of a service's operation, `None` where the service lacks it.
    pub fn new(service: Service, operation: Operation) -> Option<Self> {
        let _ = (service, operation);
        todo!()
    }

    /// Decodes the first byte of a BTH; `None` for reserved and manufacturer codes.
    pub fn from_byte(byte: u8) -> Option<Self> {
        let _ = byte;
        todo!()
    }

    /// The first byte of a BTH.
    pub const fn to_byte(self) -> u8 {
        todo!()
    }

    /// The transport service.
    pub const fn service(self) -> Service {
        self.service
    }

    /// What the packet does within its message.
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// Whether the packet answers a request (READ responses, acknowledgements), so that it is meant for a
    /// requester.
    pub const fn is_response(self) -> bool {
        todo!()
    }
}

impl Operation {
    /// Whether this is the first or only packet of a request message (READ requests and atomics are).
    pub const fn starts_message(self) -> bool {
        todo!()
    }
    /// Whether this is the last or only packet of a message.
    pub const fn ends_message(self) -> bool {
        todo!()
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}
