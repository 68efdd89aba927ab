//! Address handles: ways to the destinations of datagrams.

use super::{
    AddressHandleAttributes, AddressVector, Context, Error, Gid, GlobalRoute, ProtectionDomain, QKey, Qpn, Result,
    Target, WorkCompletion,
};
use etherparse::{IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice};
use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use uroce_protocol::wire::GRH_LEN;

/// Where the IPv4 header lies in the 40 bytes before a datagram.
const IPV4_AT: usize = 20;

/// An address handle (`struct ibv_ah`): a way to a host or to a multicast group, checked once.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pd: ProtectionDomain,
    attributes: AddressHandleAttributes,
    vector: AddressVector,
    is_destroyed: AtomicBool,
}

impl Shared {
    /// Ends it; returns whether it was there.
    fn destroy(&self) -> bool {
        let was_destroyed = self.is_destroyed.swap(true, Ordering::AcqRel);
        if !was_destroyed {
            self.pd.uses().release();
        }
        !was_destroyed
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl AddressHandle {
    pub(super) fn new(pd: ProtectionDomain, attributes: &AddressHandleAttributes) -> Result<Self> {
        let vector = pd.context().nic().address_vector(attributes)?;
        pd.uses().acquire()?;
        let shared = Shared { pd, attributes: *attributes, vector, is_destroyed: AtomicBool::new(false) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.shared.pd
    }

    /// What it was made of (`ibv_query_ah` of the kernel).
    pub fn query(&self) -> AddressHandleAttributes {
        self.shared.attributes
    }

    /// The way that it stands for. Work requests take a copy, so the handle may go before they are done.
    pub fn address_vector(&self) -> AddressVector {
        self.shared.vector
    }

    /// A queue pair there, as the target of a work request (`ibv_send_wr.wr.ud`).
    pub fn target(&self, qpn: Qpn, qkey: QKey) -> Target {
        Target::Datagram { address: self.shared.vector, qpn, qkey }
    }

    /// Destroys it (`ibv_destroy_ah`).
    pub fn destroy(&self) -> Result<()> {
        if self.shared.destroy() {
            Ok(())
        } else {
            Err(Error::InvalidArgument("the address handle has been destroyed before"))
        }
    }
}

/// The attributes of a way back to whoever sent a datagram, as libibverbs finds them in its completion and in the 40
/// bytes before it.
pub(super) fn attributes_of_sender(
    context: &Context,
    port_num: u8,
    completion: &WorkCompletion,
    grh: &[u8; GRH_LEN],
) -> Result<AddressHandleAttributes> {
    let mut attributes = AddressHandleAttributes { port_num, ..AddressHandleAttributes::default() };
    if completion.has_grh {
        let NetworkHeader { source, destination, traffic_class, flow_label, hop_limit } =
            NetworkHeader::parse(grh).ok_or(Error::InvalidArgument("the bytes are no network header"))?;
        if destination != context.device().address() {
            return Err(Error::InvalidArgument("the datagram was not sent to the device's own address"));
        }
        attributes.is_global = true;
        attributes.grh = GlobalRoute { dgid: Gid::from(source), flow_label, sgid_index: 0, hop_limit, traffic_class };
    }
    Ok(attributes)
}

/// What the 40 bytes before a datagram say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NetworkHeader {
    source: IpAddr,
    destination: IpAddr,
    traffic_class: u8,
    flow_label: u32,
    hop_limit: u8,
}

impl NetworkHeader {
    /// An IPv4 header in the last 20 bytes, or an IPv6 header. The first 20 bytes of the former mean nothing and may
    /// look like the beginning of the latter: then the IPv4 header's checksum decides.
    fn parse(grh: &[u8; GRH_LEN]) -> Option<Self> {
        let ipv4 = Ipv4HeaderSlice::from_slice(&grh[IPV4_AT..]).ok().filter(|header| header.ihl() == 5);
        let ipv6 = Ipv6HeaderSlice::from_slice(grh).ok();
        let is_intact =
            |header: &Ipv4HeaderSlice<'_>| header.header_checksum() == header.to_header().calc_header_checksum();
        match (ipv4, ipv6) {
            (Some(header), ipv6) if ipv6.is_none() || is_intact(&header) => Some(Self {
                source: header.source_addr().into(),
                destination: header.destination_addr().into(),
                traffic_class: grh[IPV4_AT + 1],
                flow_label: 0,
                hop_limit: header.ttl(),
            }),
            (_, Some(header)) if header.next_header() == IpNumber::UDP => Some(Self {
                source: header.source_addr().into(),
                destination: header.destination_addr().into(),
                traffic_class: header.traffic_class(),
                flow_label: header.flow_label().value(),
                hop_limit: header.hop_limit(),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uroce_protocol::wire::DatagramHeader;

    fn header(source: &str, destination: &str) -> DatagramHeader {
        DatagramHeader {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            source_port: 0xc000,
            traffic_class: 0x6a,
            hop_limit: 61,
            ip_id: 7,
            udp_checksum: false,
        }
    }

    #[test]
    fn either_header_is_found() {
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "fe80::2")] {
            let grh = header(source, destination).grh(100);
            let parsed = NetworkHeader::parse(&grh).unwrap();
            assert_eq!((parsed.source, parsed.destination), (source.parse().unwrap(), destination.parse().unwrap()));
            assert_eq!((parsed.traffic_class, parsed.hop_limit), (0x6a, 61));
        }
    }

    #[test]
    fn an_ipv4_header_behind_what_looks_like_an_ipv6_header_is_known_by_its_checksum() {
        let mut grh = header("10.0.0.1", "10.0.0.2").grh(100);
        grh[0] = 0x60;
        grh[6] = IpNumber::UDP.0;
        assert_eq!(NetworkHeader::parse(&grh).unwrap().source, IpAddr::from([10, 0, 0, 1]));
        grh[IPV4_AT + 10] ^= 1;
        assert!(NetworkHeader::parse(&grh).unwrap().source.is_ipv6());
    }

    #[test]
    fn other_bytes_are_no_header() {
        assert_eq!(NetworkHeader::parse(&[0; GRH_LEN]), None);
    }
}
