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
    fn ipv6_is_itself() {
        let address: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(Gid::from(address).address(), address);
    }
}
