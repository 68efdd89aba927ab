//! The numbers of the wire as types, so that a key is never taken for a queue pair number.

use core::{fmt, str::FromStr};
use thiserror::Error;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

macro_rules! number24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// Takes the low 24 bits of `value`.
            pub const fn new(value: u32) -> Self {
                Self(value & 0xff_ffff)
            }

            /// The number, 0 … 2²⁴-1.
            pub const fn value(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }
    };
}

number24! {
    /// A queue pair number, 24 bits. 0 and 1 are the management queue pairs, 0xffffff means multicast.
    Qpn
}

number24! {
    /// A message sequence number, 24 bits: how many request messages the responder has completed.
    Msn
}

number24! {
    /// The number of an XRC shared receive queue, 24 bits.
    XrcSrqn
}

number! {
    /// A partition key; bit 15 set means full membership.
    PKey(u16), "{:#06x}"
}

number! {
    /// The key that unlocks a datagram queue pair.
    QKey(u32), "{:#010x}"
}

number! {
    /// The key that a remote request names a memory region by.
    RKey(u32), "{:#010x}"
}

impl PKey {
    /// The default partition, full member.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether packets of `other` may reach a queue pair of this key: equal partitions, at least one of the two a
    /// full member (IBTA 10.9.3).
    pub const fn matches(self, other: Self) -> bool {
        (self.0 ^ other.0) & 0x7fff == 0 && (self.0 | other.0) & 0x8000 != 0
    }
}

impl Msn {
    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }

    /// How far `self` lies after `other`, -2²³ … 2²³-1.
    pub const fn distance_from(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

/// A path MTU: how many payload bytes a packet carries at most (`enum ibv_mtu`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes, what an Ethernet MTU of 1500 holds.
    #[default]
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes, what an Ethernet MTU of 9000 holds.
    Mtu4096 = 5,
}

impl Mtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// What a network whose IP packets hold `network_mtu` bytes can carry: the largest path MTU that leaves 80
    /// bytes for headers, as rxe reckons it (RXE_MAX_HDR_LENGTH). `None` below 336.
    pub fn for_network(network_mtu: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() + 80 <= network_mtu)
    }

    /// The MTU of exactly `bytes` bytes.
    pub fn from_bytes(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// Its size in bytes.
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// How many packets a message of `length` bytes takes; an empty one takes one.
    pub const fn packets(self, length: u64) -> u32 {
        let packets = length.div_ceil(self.bytes() as u64);
        if packets == 0 { 1 } else { packets as u32 }
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// A text that is no [`Mtu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a path MTU is 256, 512, 1024, 2048 or 4096")]
pub struct ParseMtuError;

impl FromStr for Mtu {
    type Err = ParseMtuError;

    fn from_str(text: &str) -> Result<Self, ParseMtuError> {
        text.parse().ok().and_then(Self::from_bytes).ok_or(ParseMtuError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_read_as_they_are_written() {
        for mtu in Mtu::ALL {
            assert_eq!(mtu.to_string().parse(), Ok(mtu));
        }
        for wrong in ["", "0", "1000", "-256", "4096 B", "99999999999999999999"] {
            assert_eq!(wrong.parse::<Mtu>(), Err(ParseMtuError), "{wrong}");
        }
    }

    #[test]
    fn network_mtu_leaves_room_for_headers() {
        assert_eq!(Mtu::for_network(1500), Some(Mtu::Mtu1024));
        assert_eq!(Mtu::for_network(9000), Some(Mtu::Mtu4096));
        assert_eq!(Mtu::for_network(4200), Some(Mtu::Mtu4096));
        assert_eq!(Mtu::for_network(300), None);
    }

    #[test]
    fn packets_of_a_message() {
        assert_eq!(Mtu::Mtu1024.packets(0), 1);
        assert_eq!(Mtu::Mtu1024.packets(1024), 1);
        assert_eq!(Mtu::Mtu1024.packets(1025), 2);
        assert_eq!(Mtu::Mtu256.packets(1 << 31), 1 << 23);
    }

    #[test]
    fn partition_membership() {
        assert!(PKey::DEFAULT.matches(PKey(0x7fff)));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey::DEFAULT.matches(PKey(0x1234)));
    }
}
