//! Global identifiers: how the verbs spell an IP address.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// A global identifier (`union ibv_gid`). RoCE v2 names a port by its IP address: an IPv6 address as it is, an IPv4
/// address mapped into IPv6 (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(
    /// The 16 bytes in wire order.
    pub [u8; 16],
);

impl Gid {
    /// The IP address that this names.
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// The multicast group that this names, if it names one. An IPv4 group is spelled as it is mapped into IPv6
    /// (`::ffff:239.1.2.3`, as Linux' connection manager has it for RoCE v2) or as into an IPv6 group
    /// (`ff0e::ffff:239.1.2.3`, as it has it for RoCE v1).
    pub fn multicast_group(&self) -> Option<IpAddr> {
        const MAPPED_INTO_GROUP: [u8; 12] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        let mapped = self.0.strip_prefix(&MAPPED_INTO_GROUP).and_then(|rest| rest.first_chunk::<4>());
        let address = match mapped.map(|octets| IpAddr::from(*octets)) {
            Some(group) if group.is_multicast() => group,
            _ => self.address(),
        };
        address.is_multicast().then_some(address)
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => Self(address.octets()),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_mapped() {
        let address: IpAddr = "127.0.0.2".parse().unwrap();
        let gid = Gid::from(address);
        assert_eq!(gid.to_string(), "::ffff:127.0.0.2");
        assert_eq!(gid.address(), address);
    }

    #[test]
    fn multicast_groups_are_known_in_every_spelling() {
        let group = |gid: &str| Gid(gid.parse::<Ipv6Addr>().unwrap().octets()).multicast_group();
        let ipv4: IpAddr = "239.1.2.3".parse().unwrap();
        assert_eq!(group("::ffff:239.1.2.3"), Some(ipv4));
        assert_eq!(group("ff0e::ffff:239.1.2.3"), Some(ipv4));
        assert_eq!(group("ff0e::ffff:10.1.2.3"), "ff0e::ffff:10.1.2.3".parse().ok());
        assert_eq!(group("ff12::7"), "ff12::7".parse().ok());
        assert_eq!(group("::ffff:10.1.2.3"), None);
        assert_eq!(group("fe80::1"), None);
    }

    #[test]
    fn ipv6_is_itself() {
        let address: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(Gid::from(address).address(), address);
    }
}
