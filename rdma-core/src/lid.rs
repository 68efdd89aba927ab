//! LIDs, for programs that know no GIDs: qperf without its connection manager, or a pingpong without `-g`.
//!
//! A RoCE port has no LID, and reports 0; a program of the InfiniBand days then has nothing to tell its peer. Ours
//! reports the low half of its IPv4 address (of its IPv6 address, the last two bytes), and takes a path that has a
//! LID and no global route for one to the address that ends like that and begins like our own. Loopback devices, and
//! hosts of one /16, find each other so; programs that give a GID notice nothing.

use uroce::verbs::{Gid, GlobalRoute};

/// As the man page of `ibv_ah_attr` leaves it to the program; enough for any network.
const HOP_LIMIT: u8 = 64;

/// The LID of the port with this GID.
pub(crate) fn of(gid: Gid) -> u16 {
    let [.., high, low] = gid.0;
    u16::from_be_bytes([high, low])
}

/// The route that a program means by a LID.
pub(crate) fn route(local: Gid, lid: u16) -> GlobalRoute {
    let mut dgid = local;
    dgid.0[14..].copy_from_slice(&lid.to_be_bytes());
    GlobalRoute { dgid, hop_limit: HOP_LIMIT, ..GlobalRoute::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn leads_from_one_address_to_its_neighbour() {
        for (local, peer) in [("127.0.0.1", "127.0.0.2"), ("192.0.2.1", "192.0.255.254"), ("fd00::1:2", "fd00::1:3")] {
            let [local, peer] = [local, peer].map(|address| Gid::from(address.parse::<IpAddr>().unwrap()));
            assert_eq!(route(local, of(peer)).dgid, peer);
        }
    }
}
