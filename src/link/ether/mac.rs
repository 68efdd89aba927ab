//! Ethernet addresses.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};
use thiserror::Error;

/// An Ethernet address, written `02:00:0a:4d:00:02`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MacAddress(
    /// The six bytes in wire order.
    pub [u8; 6],
);

impl MacAddress {
    /// Everybody.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it is one station's: neither a group's nor all zeroes.
    pub const fn is_unicast(self) -> bool {
        let [a, b, c, d, e, f] = self.0;
        a & 1 == 0 && a | b | c | d | e | f != 0
    }

    /// The locally administered one that stands for an IP address: `02:00` and its last four bytes.
    pub fn of_station(address: IpAddr) -> Self {
        let [.., a, b, c, d] = octets(address);
        Self([0x02, 0, a, b, c, d])
    }

    /// The group's that carries packets for a multicast address: RFC 1112, 6.4 and RFC 2464, 7.
    pub fn of_multicast(group: IpAddr) -> Self {
        let [.., a, b, c, d] = octets(group);
        match group {
            IpAddr::V4(_) => Self([0x01, 0, 0x5e, b & 0x7f, c, d]),
            IpAddr::V6(_) => Self([0x33, 0x33, a, b, c, d]),
        }
    }

    /// Makes it the destination of a frame.
    pub(super) fn write_to(self, frame: &mut [u8]) {
        if let Some(destination) = frame.first_chunk_mut() {
            *destination = self.0;
        }
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => Ipv4Addr::to_ipv6_mapped(&address).octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A text that is no Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("an Ethernet address is six bytes in hexadecimal, as in 02:00:0a:4d:00:02")]
pub struct NoMacAddress;

impl FromStr for MacAddress {
    type Err = NoMacAddress;

    fn from_str(text: &str) -> Result<Self, NoMacAddress> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let is_byte = |part: &&str| part.len() <= 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            let part = parts.next().filter(is_byte).ok_or(NoMacAddress)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| NoMacAddress)?;
        }
        if parts.next().is_some() { Err(NoMacAddress) } else { Ok(Self(bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_bytes() {
        let mac = MacAddress([0x02, 0, 0x0a, 0x4d, 0, 0xfe]);
        assert_eq!(mac.to_string(), "02:00:0a:4d:00:fe");
        assert_eq!("2:0:a:4D:0:fe".parse(), Ok(mac));
        for wrong in ["", "02:00:0a:4d:00", "02:00:0a:4d:00:02:03", "02:00:0a:4d:00:100", "02:00:0a:4d:00:+1", "x"] {
            assert_eq!(wrong.parse::<MacAddress>(), Err(NoMacAddress), "{wrong}");
        }
    }

    #[test]
    fn multicast_groups_have_addresses_of_their_own() {
        for (group, mac) in [
            ("224.1.2.3", "01:00:5e:01:02:03"),
            ("239.129.2.3", "01:00:5e:01:02:03"),
            ("ff02::1:ff00:2", "33:33:ff:00:00:02"),
        ] {
            assert_eq!(MacAddress::of_multicast(group.parse().unwrap()).to_string(), mac);
        }
    }

    #[test]
    fn stations_are_unicast_and_locally_administered() {
        let mac = MacAddress::of_station("10.77.0.2".parse().unwrap());
        assert_eq!(mac.to_string(), "02:00:0a:4d:00:02");
        assert!(mac.is_unicast());
        assert!(!MacAddress::BROADCAST.is_unicast() && !MacAddress::default().is_unicast());
    }
}
