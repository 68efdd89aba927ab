//! Ways to a destination: addresses, UDP source ports, and what the ICRC makes of them.

use super::{
    super::{AddressHandleAttributes, Error, GlobalRoute, Nic, PORT, QpAttributes, Result},
    PacedFlow,
};
use std::net::IpAddr;
use uroce_protocol::{
    wire::{Qpn, icrc::Flow},
    work::AddressVector,
};

/// A way to a destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(in crate::nic) peer: IpAddr,
    pub(in crate::nic) source_port: u16,
    pub(in crate::nic) traffic_class: u8,
    /// TTL or hop limit, `None` for the system's own.
    pub(in crate::nic) hop_limit: Option<u8>,
    pub(in crate::nic) flow: Flow,
}

impl Nic {
    /// The way that an address handle of these attributes stands for.
    pub(crate) fn address_vector(&self, ah_attr: &AddressHandleAttributes) -> Result<AddressVector> {
        if !ah_attr.is_global {
            return Err(Error::InvalidArgument("a RoCE path needs a global route"));
        }
        if ah_attr.grh.sgid_index != 0 {
            return Err(Error::InvalidArgument("the port has one GID, at index 0"));
        }
        if ah_attr.port_num != PORT {
            return Err(Error::InvalidArgument("the device has port 1 only"));
        }
        let GlobalRoute { dgid, flow_label, hop_limit, traffic_class, .. } = ah_attr.grh;
        let peer = dgid.multicast_group().unwrap_or(dgid.address());
        if peer.is_ipv4() != self.address.is_ipv4() {
            return Err(Error::InvalidArgument("the peer's address is of another IP version than the device's"));
        }
        if peer.is_unspecified() {
            return Err(Error::InvalidArgument("the peer's address is not one host's"));
        }
        Ok(AddressVector { peer, traffic_class, flow_label, hop_limit })
    }

    /// The way to a queue pair's peer.
    pub(super) fn route(&self, number: Qpn, attributes: &QpAttributes, flow: Option<&PacedFlow>) -> Route {
        let GlobalRoute { dgid, traffic_class, .. } = attributes.ah_attr.grh;
        let traffic_class = flow.map_or(traffic_class, |flow| flow.traffic_class(traffic_class));
        self.route_to(dgid.address(), source_port(number, Qpn::new(attributes.dest_qp_num)), traffic_class, None)
    }

    /// The way of a datagram from queue pair `number`. The hop limit of what goes to one host is the system's own, as
    /// with Linux, which takes the address handle's only for multicast.
    pub(in crate::nic) fn datagram_route(&self, number: Qpn, to: &AddressVector) -> Route {
        let hop_limit = (to.peer.is_multicast() && to.hop_limit > 0).then_some(to.hop_limit);
        self.route_to(to.peer, datagram_source_port(number), to.traffic_class, hop_limit)
    }

    fn route_to(&self, peer: IpAddr, source_port: u16, traffic_class: u8, hop_limit: Option<u8>) -> Route {
        let source_port = self.link.source_port(source_port);
        Route { peer, source_port, traffic_class, hop_limit, flow: Flow::new(self.address, peer, source_port) }
    }
}

/// The UDP source port of a connection: Linux's (`rdma_calc_flow_label` and `rdma_flow_label_to_udp_sport`), the
/// same for both directions.
fn source_port(local: Qpn, remote: Qpn) -> u16 {
    let mut label = u64::from(local.value()) * u64::from(remote.value());
    label ^= label >> 20;
    label ^= label >> 40;
    let label = label & 0xf_ffff;
    0xc000 | ((label & 0x3fff) ^ (label >> 14)) as u16
}

/// The UDP source port of datagrams: Linux rxe's, a hash of the queue pair's number.
const fn datagram_source_port(local: Qpn) -> u16 {
    0xc000 + (local.value().wrapping_mul(0x61c8_8647) >> 18) as u16
}

impl Route {
    /// Whether a packet that came from `source` is the connected peer's.
    pub(in crate::nic) fn is_peer(&self, source: IpAddr) -> bool {
        self.peer == source
    }

    /// Whether packets of both may be of one train.
    pub(in crate::nic) fn is_same_way(&self, other: &Self) -> bool {
        (self.peer, self.traffic_class, self.hop_limit) == (other.peer, other.traffic_class, other.hop_limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_are_linux_rxes() {
        // 0x11 · 0x11 = 0x121: nothing to fold.
        assert_eq!(source_port(Qpn::new(0x11), Qpn::new(0x11)), 0xc121);
        assert_eq!(source_port(Qpn::new(0x12_3456), Qpn::new(0x65)), source_port(Qpn::new(0x65), Qpn::new(0x12_3456)));
        assert!(source_port(Qpn::new(0xff_fffe), Qpn::new(0xff_fffe)) >= 0xc000);
        // As captured: connection management, ud_pingpong, rxeprobe, mckey.
        assert_eq!(datagram_source_port(Qpn::new(1)), 55410);
        assert_eq!(datagram_source_port(Qpn::new(0x18)), 51891);
        assert_eq!(datagram_source_port(Qpn::new(0x3e)), 60324);
        assert_eq!(datagram_source_port(Qpn::new(0x1f)), 62930);
    }
}
