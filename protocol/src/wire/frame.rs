//! What is around a transport packet: link layer, IP and UDP, or the GRH of RoCE v1.
//!
//! A NIC over UDP sockets never sees this; captures and raw links do. [`Frame`] finds the packet in the bytes of a
//! capture and checks its ICRC against the headers that were seen; [`DatagramHeader`] writes the headers in front
//! of a packet for whoever records or sends whole IP packets.

use super::{
    Bth, Packet, ROCE_PORT,
    extended::{array, put},
    icrc::{Icrc, WrongIcrc, mapped},
};
use etherparse::{EtherType, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice, UdpHeaderSlice, checksum::Sum16BitWords};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};
use thiserror::Error;

/// How many bytes of a datagram's receive hold its network header.
pub const GRH_LEN: usize = 40;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
/// The longest IPv4 header: 15 words.
const MAX_NETWORK_LEN: usize = 60;

/// RoCE v1: a GRH and a transport packet straight on Ethernet.
const ETHER_TYPE_ROCE: EtherType = EtherType(0x8915);
/// The GRH's next header: InfiniBand's transport.
const NEXT_HEADER_BTH: IpNumber = IpNumber(0x1b);

/// What the bytes of a captured frame begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// An Ethernet header.
    Ethernet,
    /// An IPv4 or IPv6 header.
    Ip,
    /// The 16-byte pseudo-header of a capture on all of Linux's interfaces.
    LinuxSll,
    /// Its 20-byte successor.
    LinuxSll2,
}

/// Why bytes are no frame with a transport packet in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Another protocol, or too little to say: nothing to complain about.
    #[error("not RoCE")]
    NotRoce,
    /// The IP header promises more than was captured.
    #[error("{captured} bytes of {length} were captured")]
    Truncated {
        /// How many bytes there are from the network header on.
        captured: usize,
        /// How many the network header promises.
        length: usize,
    },
    /// The first fragment of an IP packet, which no RoCE device sends.
    #[error("an IP fragment")]
    Fragment,
    /// The UDP length contradicts the IP length, or the datagram is too short for BTH and ICRC.
    #[error("a datagram of {length} bytes in {available}, of which BTH and ICRC take 16")]
    BadLength {
        /// What the UDP header says, less its own length.
        length: usize,
        /// What the IP header has room for.
        available: usize,
    },
}

/// How the packet is wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    /// RoCE v1: a GRH on Ethernet.
    V1,
    /// RoCE v2 in UDP over IPv4.
    V2Ipv4 {
        /// The IPv4 Identification.
        ip_id: u16,
        /// The UDP source port.
        source_port: u16,
    },
    /// RoCE v2 in UDP over IPv6.
    V2Ipv6 {
        /// The UDP source port.
        source_port: u16,
    },
}

/// A transport packet and the headers that it came in.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The sender's IP address; of RoCE v1, its GID.
    pub source: IpAddr,
    /// The receiver's IP address; of RoCE v1, its GID.
    pub destination: IpAddr,
    /// The TOS or traffic class byte: six bits of DSCP, two of ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// How it is wrapped.
    pub encapsulation: Encapsulation,
    /// Which one it is of a train that was captured as a single datagram: see [`Self::segments`].
    pub segment: Option<u16>,
    network_header: &'a [u8],
    /// Empty in RoCE v1.
    udp_header: &'a [u8],
    /// At least a BTH and an ICRC.
    packet: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Finds the transport packet in captured bytes.
    pub fn parse(link_layer: LinkLayer, bytes: &'a [u8]) -> Result<Self, FrameError> {
        match link_layer.network(bytes).ok_or(FrameError::NotRoce)? {
            (EtherType::IPV4, network) => Self::parse_ipv4(network),
            (EtherType::IPV6, network) => Self::parse_ipv6(network),
            (ETHER_TYPE_ROCE, network) => Self::parse_grh(network),
            _ => Err(FrameError::NotRoce),
        }
    }

    fn parse_ipv4(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let header = Ipv4HeaderSlice::from_slice(bytes).map_err(|_| FrameError::NotRoce)?;
        let network_header = header.slice();
        if header.protocol() != IpNumber::UDP || header.fragments_offset().value() != 0 {
            return Err(FrameError::NotRoce);
        }
        let udp = roce_udp(&bytes[network_header.len()..])?;
        if header.more_fragments() {
            return Err(FrameError::Fragment);
        }
        Ok(Self {
            source: header.source_addr().into(),
            destination: header.destination_addr().into(),
            traffic_class: bytes[1],
            hop_limit: header.ttl(),
            encapsulation: Encapsulation::V2Ipv4 { ip_id: header.identification(), source_port: udp.source_port() },
            segment: None,
            network_header,
            udp_header: udp.slice(),
            packet: datagram(bytes, network_header.len(), usize::from(header.total_len()), &udp)?,
        })
    }

    /// An IPv6 header without extension headers, which no RoCE device sends.
    fn parse_ipv6(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let header = Ipv6HeaderSlice::from_slice(bytes).map_err(|_| FrameError::NotRoce)?;
        if header.next_header() != IpNumber::UDP {
            return Err(FrameError::NotRoce);
        }
        let udp = roce_udp(&bytes[IPV6_LEN..])?;
        Ok(Self {
            source: header.source_addr().into(),
            destination: header.destination_addr().into(),
            traffic_class: header.traffic_class(),
            hop_limit: header.hop_limit(),
            encapsulation: Encapsulation::V2Ipv6 { source_port: udp.source_port() },
            segment: None,
            network_header: header.slice(),
            udp_header: udp.slice(),
            packet: datagram(bytes, IPV6_LEN, IPV6_LEN + usize::from(header.payload_length()), &udp)?,
        })
    }

    fn parse_grh(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let header = Ipv6HeaderSlice::from_slice(bytes).map_err(|_| FrameError::NotRoce)?;
        if header.next_header() != NEXT_HEADER_BTH {
            return Err(FrameError::NotRoce);
        }
        let payload_len = usize::from(header.payload_length());
        let packet = captured(bytes, IPV6_LEN + payload_len)?;
        Ok(Self {
            source: header.source_addr().into(),
            destination: header.destination_addr().into(),
            traffic_class: header.traffic_class(),
            hop_limit: header.hop_limit(),
            encapsulation: Encapsulation::V1,
            segment: None,
            network_header: header.slice(),
            udp_header: &[],
            packet: long_enough(&packet[IPV6_LEN..], payload_len)?,
        })
    }

    /// The transport packet, BTH to ICRC. That it has room for both is all that was checked.
    pub const fn packet(&self) -> &'a [u8] {
        self.packet
    }

    /// The ICRC that the packet should carry in these headers.
    pub fn icrc(&self) -> u32 {
        let mut network = [0; MAX_NETWORK_LEN];
        let network = &mut network[..self.network_header.len()];
        network.copy_from_slice(self.network_header);
        if matches!(self.encapsulation, Encapsulation::V2Ipv4 { .. }) {
            network[1] = 0xff;
            network[8] = 0xff;
            put(network, 10, [0xff; 2]);
        } else {
            network[0] |= 0x0f;
            put(network, 1, [0xff; 3]);
            network[7] = 0xff;
        }
        let mut udp = [0; UDP_LEN];
        let udp = &mut udp[..self.udp_header.len()];
        udp.copy_from_slice(self.udp_header);
        if let Some(checksum) = udp.get_mut(6..) {
            checksum.fill(0xff);
        }
        if self.segment.is_some() {
            self.write_lengths_of_segment(network, udp);
        }
        Icrc::over_headers(network, udp, &self.packet[..self.packet.len() - Packet::ICRC_LEN])
    }

    /// The fields by which the headers of a segment differ from those that the train was captured with.
    fn write_lengths_of_segment(&self, network: &mut [u8], udp: &mut [u8]) {
        let udp_len = UDP_LEN + self.packet.len();
        put(udp, 4, (udp_len as u16).to_be_bytes());
        match self.encapsulation {
            Encapsulation::V2Ipv4 { ip_id, .. } => {
                let total_len = network.len() + udp_len;
                put(network, 2, (total_len as u16).to_be_bytes());
                put(network, 4, ip_id.to_be_bytes());
            }
            Encapsulation::V2Ipv6 { .. } | Encapsulation::V1 => put(network, 4, (udp_len as u16).to_be_bytes()),
        }
    }

    /// The packets of a train that was captured as one datagram, before segmentation offload took it apart or after
    /// receive offload put it together; `self` alone if that is what it is.
    ///
    /// Nothing in such a datagram tells where the packets begin. Their ICRCs do: where one is right for the packet
    /// that would end there, it does. Segment i has the IPv4 Identification of the datagram plus i. If the first
    /// packet is damaged, nothing can be told, and the datagram stays in one piece.
    pub fn segments(self) -> impl Iterator<Item = Self> {
        let size = self.segment_size().unwrap_or(self.packet.len());
        (0..).zip(self.packet.chunks(size)).map(move |(index, packet)| {
            if packet.len() == self.packet.len() { self } else { self.segment(index, packet) }
        })
    }

    /// The length of a train's packets, `None` if this is a packet by itself or cannot be taken apart.
    fn segment_size(&self) -> Option<usize> {
        if self.encapsulation == Encapsulation::V1 || self.check_icrc().is_ok() {
            return None;
        }
        const MIN_LEN: usize = Bth::LEN + Packet::ICRC_LEN;
        let last = self.packet.len().checked_sub(MIN_LEN)?;
        // What packets of one train have in common: the P_Key and the queue pair.
        let looks_like_a_packet = |at: &usize| {
            self.packet[at + 2..at + 4] == self.packet[2..4] && self.packet[at + 5..at + 8] == self.packet[5..8]
        };
        (MIN_LEN..=last)
            .step_by(4)
            .filter(looks_like_a_packet)
            .find(|&size| self.segment(0, &self.packet[..size]).check_icrc().is_ok())
            .filter(|size| !(1..MIN_LEN).contains(&(self.packet.len() % size)))
    }

    fn segment(&self, index: u16, packet: &'a [u8]) -> Self {
        let encapsulation = match self.encapsulation {
            Encapsulation::V2Ipv4 { ip_id, source_port } => {
                Encapsulation::V2Ipv4 { ip_id: ip_id.wrapping_add(index), source_port }
            }
            other => other,
        };
        Self { encapsulation, segment: Some(index), packet, ..*self }
    }

    /// Checks the ICRC, all 32 bits of it.
    pub fn check_icrc(&self) -> Result<(), WrongIcrc> {
        let found = u32::from_le_bytes(array(self.packet, self.packet.len() - Packet::ICRC_LEN));
        let computed = self.icrc();
        if found == computed { Ok(()) } else { Err(WrongIcrc { found, computed }) }
    }
}

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {}", self.source.to_canonical(), self.destination.to_canonical())
    }
}

impl LinkLayer {
    /// The type and the bytes of what the link layer carries, past any VLAN tags.
    fn network(self, bytes: &[u8]) -> Option<(EtherType, &[u8])> {
        let (type_at, header_len) = match self {
            Self::Ip => {
                let ether_type = if bytes.first()? >> 4 == 6 { EtherType::IPV6 } else { EtherType::IPV4 };
                return Some((ether_type, bytes));
            }
            Self::Ethernet => (12, 14),
            Self::LinuxSll => (14, 16),
            Self::LinuxSll2 => (0, 20),
        };
        let mut payload = bytes.get(header_len..)?;
        let mut ether_type = EtherType(u16::from_be_bytes(array(bytes, type_at)));
        while matches!(
            ether_type,
            EtherType::VLAN_TAGGED_FRAME | EtherType::PROVIDER_BRIDGING | EtherType::VLAN_DOUBLE_TAGGED_FRAME
        ) {
            let (tag, rest) = payload.split_first_chunk::<4>()?;
            ether_type = EtherType(u16::from_be_bytes([tag[2], tag[3]]));
            payload = rest;
        }
        Some((ether_type, payload))
    }
}

/// The UDP header at the start of `bytes`, if RoCE's.
fn roce_udp(bytes: &[u8]) -> Result<UdpHeaderSlice<'_>, FrameError> {
    UdpHeaderSlice::from_slice(bytes).ok().filter(|udp| udp.destination_port() == ROCE_PORT).ok_or(FrameError::NotRoce)
}

/// The payload of the datagram behind a network header of `header_len` bytes in an IP packet of `total_len`.
fn datagram<'a>(
    bytes: &'a [u8],
    header_len: usize,
    total_len: usize,
    udp: &UdpHeaderSlice<'_>,
) -> Result<&'a [u8], FrameError> {
    let packet = captured(bytes, total_len)?.get(header_len + UDP_LEN..).unwrap_or_default();
    long_enough(packet, usize::from(udp.length()).saturating_sub(UDP_LEN))
}

/// The IP packet without the padding that Ethernet adds to short ones.
fn captured(bytes: &[u8], length: usize) -> Result<&[u8], FrameError> {
    bytes.get(..length).ok_or(FrameError::Truncated { captured: bytes.len(), length })
}

fn long_enough(bytes: &[u8], length: usize) -> Result<&[u8], FrameError> {
    bytes
        .get(..length)
        .filter(|packet| packet.len() >= Bth::LEN + Packet::ICRC_LEN)
        .ok_or(FrameError::BadLength { length, available: bytes.len() })
}

/// What an IP and a UDP header say about a packet of RoCE v2. The rest of them is as a RoCE device sends it: no
/// options, DF set, flow label 0, destination port 4791.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// The sender. An IPv4 address beside an IPv6 one counts as IPv4-mapped.
    pub source: IpAddr,
    /// The receiver.
    pub destination: IpAddr,
    /// The UDP source port.
    pub source_port: u16,
    /// The TOS or traffic class byte.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// The IPv4 Identification, without meaning on IPv6. The packet's ICRC covers it.
    pub ip_id: u16,
    /// Whether the UDP checksum is computed, or 0 as most RoCE devices send it.
    pub udp_checksum: bool,
}

impl DatagramHeader {
    /// The longest that [`Self::emit_header`] writes.
    pub const MAX_LEN: usize = IPV6_LEN + UDP_LEN;

    /// Appends the IP and UDP headers for `packet` (at most 65,507 bytes) and the packet itself to `out`. The IPv4
    /// header checksum is right.
    pub fn emit(&self, packet: &[u8], out: &mut Vec<u8>) {
        let mut header = [0; Self::MAX_LEN];
        let header_len = self.emit_header(packet, &mut header);
        out.extend(&header[..header_len]);
        out.extend(packet);
    }

    /// Writes the headers that [`Self::emit`] puts in front of `packet`; returns how many bytes they take.
    pub fn emit_header(&self, packet: &[u8], buffer: &mut [u8; Self::MAX_LEN]) -> usize {
        let udp_len = ((UDP_LEN + packet.len()) as u16).to_be_bytes();
        let (network_len, addresses) = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = self.ipv4_header(source, destination, packet.len());
                put(buffer, 0, header);
                (IPV4_LEN, Sum16BitWords::new().add_slice(&header[12..]))
            }
            _ => {
                let header = self.ipv6_header(packet.len());
                put(buffer, 0, header);
                (IPV6_LEN, Sum16BitWords::new().add_slice(&header[8..]))
            }
        };

        let mut udp = [0; UDP_LEN];
        put(&mut udp, 0, self.source_port.to_be_bytes());
        put(&mut udp, 2, ROCE_PORT.to_be_bytes());
        put(&mut udp, 4, udp_len);
        if self.udp_checksum {
            let sum = addresses.add_2bytes([0, IpNumber::UDP.0]).add_2bytes(udp_len).add_slice(&udp);
            let checksum = sum.add_slice(packet).to_ones_complement_with_no_zero();
            put(&mut udp, 6, checksum.to_ne_bytes());
        }
        put(buffer, network_len, udp);
        network_len + UDP_LEN
    }

    /// What a datagram queue pair puts before the payload of a packet of `packet_len` bytes (BTH to ICRC): the IPv6
    /// header, or the IPv4 header in the last 20 bytes.
    pub fn grh(&self, packet_len: usize) -> [u8; GRH_LEN] {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut grh = [0; GRH_LEN];
                put(&mut grh, GRH_LEN - IPV4_LEN, self.ipv4_header(source, destination, packet_len));
                grh
            }
            _ => self.ipv6_header(packet_len),
        }
    }

    fn ipv4_header(&self, source: Ipv4Addr, destination: Ipv4Addr, packet_len: usize) -> [u8; IPV4_LEN] {
        let mut header = [0; IPV4_LEN];
        put(&mut header, 0, [0x45, self.traffic_class]);
        put(&mut header, 2, ((IPV4_LEN + UDP_LEN + packet_len) as u16).to_be_bytes());
        put(&mut header, 4, self.ip_id.to_be_bytes());
        put(&mut header, 6, [0x40, 0, self.hop_limit, IpNumber::UDP.0]);
        put(&mut header, 12, source.octets());
        put(&mut header, 16, destination.octets());
        let checksum = Sum16BitWords::new().add_slice(&header).ones_complement();
        put(&mut header, 10, checksum.to_ne_bytes());
        header
    }

    fn ipv6_header(&self, packet_len: usize) -> [u8; IPV6_LEN] {
        let mut header = [0; IPV6_LEN];
        put(&mut header, 0, [0x60 | self.traffic_class >> 4, self.traffic_class << 4]);
        put(&mut header, 4, ((UDP_LEN + packet_len) as u16).to_be_bytes());
        put(&mut header, 6, [IpNumber::UDP.0, self.hop_limit]);
        put(&mut header, 8, mapped(self.source).octets());
        put(&mut header, 24, mapped(self.destination).octets());
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        icrc::{Flow, IpIdPolicy},
        tests::config,
    };
    use proptest::prelude::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    // Frames of real devices, from the published test vectors of scapy's RoCE layer.
    const CONNECTX4_CNP: &str = "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a";
    const V1_WRITE_ONLY: &str = "7cfe90753cd87cfe90753cd889156020000000281b4000000000000000000000ffff0f00000200000000000000000000ffff0f0000020a70ffff0000010a80a788bc000055d4c0726000000047b3000000050000000001000000e3d856bb";
    const V1_ACKNOWLEDGE: &str = "7cfe90753cd87cfe90753cd889156020000000141b4000000000000000000000ffff0f00000200000000000000000000ffff0f0000021140ffff0000010900a788c00000000525f0c038";

    #[test]
    fn frames_of_real_devices_are_right() {
        for (hex, icrc, line) in [
            (CONNECTX4_CNP, 0x2a00_fd82, "CNP QP=0x000118 PSN=0x000000 BECN Len=16"),
            (
                V1_WRITE_ONLY,
                0xbb56_d8e3,
                "RC WRITE Only QP=0x00010a PSN=0xa788bc A M VA=0x55d4c0726000 RKey=0x000047b3 DMALen=5 Len=5",
            ),
            (V1_ACKNOWLEDGE, 0x38c0_f025, "RC Acknowledge QP=0x000109 PSN=0xa788c0 M ACK credits=0 MSN=5"),
        ] {
            let bytes = bytes(hex);
            let frame = Frame::parse(LinkLayer::Ethernet, &bytes).unwrap();
            assert_eq!(frame.icrc(), icrc);
            assert_eq!(frame.check_icrc(), Ok(()));
            assert_eq!(Packet::new_checked(frame.packet()).unwrap().to_string(), line);
        }
    }

    #[test]
    fn headers_of_a_real_device_are_read() {
        let bytes = bytes(CONNECTX4_CNP);
        let frame = Frame::parse(LinkLayer::Ethernet, &bytes).unwrap();
        assert_eq!(frame.to_string(), "10.0.17.1 → 10.0.18.1");
        assert_eq!(frame.encapsulation, Encapsulation::V2Ipv4 { ip_id: 0x718c, source_port: 0 });
        assert_eq!((frame.traffic_class, frame.hop_limit), (0xc2, 64));
    }

    #[test]
    fn vlan_tags_and_ethernet_padding_are_passed_over() {
        let mut bytes = bytes(CONNECTX4_CNP);
        bytes.splice(12..12, [0x88, 0xa8, 0x00, 0x05, 0x81, 0x00, 0x20, 0x07]);
        bytes.extend([0; 6]);
        assert_eq!(Frame::parse(LinkLayer::Ethernet, &bytes).unwrap().check_icrc(), Ok(()));
    }

    #[test]
    fn every_link_layer_leads_to_the_packet() {
        let ethernet = bytes(CONNECTX4_CNP);
        let mut sll = vec![0; 14];
        sll.extend(&ethernet[12..]);
        let mut sll2 = vec![0x08, 0x00];
        sll2.resize(20, 0);
        sll2.extend(&ethernet[14..]);
        for (link_layer, bytes) in
            [(LinkLayer::Ip, &ethernet[14..]), (LinkLayer::LinuxSll, &sll), (LinkLayer::LinuxSll2, &sll2)]
        {
            assert_eq!(Frame::parse(link_layer, bytes).unwrap().check_icrc(), Ok(()), "{link_layer:?}");
        }
    }

    #[test]
    fn ip_options_are_covered() {
        let mut bytes = bytes(CONNECTX4_CNP);
        bytes[14] = 0x46;
        bytes[17] += 4;
        bytes.splice(34..34, [1, 1, 1, 0]);
        let length = bytes.len();
        let icrc = Frame::parse(LinkLayer::Ethernet, &bytes).unwrap().icrc();
        bytes[length - 4..].copy_from_slice(&icrc.to_le_bytes());
        assert_eq!(Frame::parse(LinkLayer::Ethernet, &bytes).unwrap().check_icrc(), Ok(()));
        bytes[36] = 0;
        assert!(Frame::parse(LinkLayer::Ethernet, &bytes).unwrap().check_icrc().is_err());
    }

    #[test]
    fn truncated_frames_are_told_from_foreign_ones() {
        let bytes = bytes(CONNECTX4_CNP);
        for length in 0..bytes.len() {
            let expected = match length {
                0..42 => FrameError::NotRoce,
                _ => FrameError::Truncated { captured: length - 14, length: 60 },
            };
            assert_eq!(Frame::parse(LinkLayer::Ethernet, &bytes[..length]).unwrap_err(), expected, "{length}");
        }
    }

    #[test]
    fn fragments_are_reported() {
        let mut bytes = bytes(CONNECTX4_CNP);
        bytes[20] = 0x20;
        assert_eq!(Frame::parse(LinkLayer::Ethernet, &bytes).unwrap_err(), FrameError::Fragment);
        bytes[21] = 1;
        assert_eq!(Frame::parse(LinkLayer::Ethernet, &bytes).unwrap_err(), FrameError::NotRoce);
    }

    #[test]
    fn a_udp_length_that_contradicts_ip_is_reported() {
        for length in [0_u8, 8, 23, 41] {
            let mut bytes = bytes(CONNECTX4_CNP);
            bytes[39] = length;
            let length = usize::from(length).saturating_sub(8);
            assert_eq!(
                Frame::parse(LinkLayer::Ethernet, &bytes).unwrap_err(),
                FrameError::BadLength { length, available: 32 }
            );
        }
    }

    /// A train of SENDs as segmentation offload gets it, `damage`d in these places, in one datagram.
    fn train(source: IpAddr, destination: IpAddr, lengths: &[usize], damage: &[usize]) -> Vec<u8> {
        let flow = Flow::new(source, destination, 0xc000);
        let mut train = Vec::new();
        for (index, length) in lengths.iter().enumerate() {
            let mut packet = vec![index as u8; *length];
            put(&mut packet, 0, [0x04, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11]);
            flow.stamp(7 + index as u16, &mut packet);
            train.extend(packet);
        }
        for &at in damage {
            train[at] ^= 1;
        }
        let header = DatagramHeader {
            source,
            destination,
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            ip_id: 7,
            udp_checksum: true,
        };
        let mut bytes = Vec::new();
        header.emit(&train, &mut bytes);
        bytes
    }

    #[test]
    fn trains_are_taken_apart_by_their_icrcs() {
        for (source, destination) in [
            (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2])),
            (IpAddr::from([0xfd; 16]), IpAddr::from([0xfc; 16])),
        ] {
            for (lengths, damage, right) in [
                (&[76, 76, 76, 20][..], &[][..], &[true; 4][..]),
                (&[76, 76, 76], &[100], &[true, false, true]),
                (&[4156; 15], &[], &[true; 15]),
                (&[76], &[], &[true]),
                // Without its first packet a train is one riddle.
                (&[76, 76, 76], &[20], &[false]),
            ] {
                let bytes = train(source, destination, lengths, damage);
                let frame = Frame::parse(LinkLayer::Ip, &bytes).unwrap();
                let segments: Vec<_> = frame.segments().collect();
                let verdicts: Vec<_> = segments.iter().map(|segment| segment.check_icrc().is_ok()).collect();
                assert_eq!(verdicts, right, "{lengths:?} {damage:?}");
                if let [_, second, ..] = &segments[..] {
                    assert_eq!(second.segment, Some(1));
                    assert_eq!(second.packet().len(), lengths[1]);
                }
            }
        }
    }

    fn header() -> impl Strategy<Value = DatagramHeader> {
        let address = prop_oneof![
            any::<u32>().prop_map(|a| IpAddr::from(a.to_be_bytes())),
            any::<u128>().prop_map(|a| IpAddr::from(a.to_be_bytes()))
        ];
        (address.clone(), address, any::<(u16, u8, u8, u16, bool)>()).prop_map(
            |(source, destination, (source_port, traffic_class, hop_limit, ip_id, udp_checksum))| DatagramHeader {
                source,
                destination,
                source_port,
                traffic_class,
                hop_limit,
                ip_id,
                udp_checksum,
            },
        )
    }

    proptest! {
        #![proptest_config(config(1024))]

        /// What is emitted is what etherparse, and we, read; and its ICRC is the one of the fast path.
        #[test]
        fn emitted_headers_are_read_back(header in header(), payload in prop::collection::vec(any::<[u8; 4]>(), 0..80)) {
            let mut packet = vec![0x04, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x80, 0x00, 0x00, 0x01];
            packet.extend(payload.concat());
            packet.extend([0; 4]);
            let flow = Flow::new(header.source, header.destination, header.source_port);
            flow.stamp(header.ip_id, &mut packet);

            let mut bytes = Vec::new();
            header.emit(&packet, &mut bytes);
            let frame = Frame::parse(LinkLayer::Ip, &bytes).unwrap();
            prop_assert_eq!(frame.check_icrc(), Ok(()));
            prop_assert_eq!(frame.packet(), &packet[..]);
            prop_assert_eq!((frame.traffic_class, frame.hop_limit), (header.traffic_class, header.hop_limit));
            prop_assert_eq!(frame.source.to_canonical(), header.source.to_canonical());
            prop_assert_eq!(frame.destination.to_canonical(), header.destination.to_canonical());
            let view = Packet::new_checked(&packet).unwrap();
            prop_assert_eq!(flow.check(&view, header.ip_id, IpIdPolicy::Exact), Ok(header.ip_id));

            let sliced = etherparse::SlicedPacket::from_ip(&bytes).unwrap();
            let Some(etherparse::TransportSlice::Udp(udp)) = sliced.transport else { panic!("no UDP") };
            let udp_header = udp.to_header();
            let checksum = match sliced.net.unwrap() {
                etherparse::NetSlice::Ipv4(ip) => {
                    let ip = ip.header().to_header();
                    prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    prop_assert!(ip.dont_fragment);
                    udp_header.calc_checksum_ipv4(&ip, &packet).unwrap()
                }
                etherparse::NetSlice::Ipv6(ip) => {
                    udp_header.calc_checksum_ipv6(&ip.header().to_header(), &packet).unwrap()
                }
                etherparse::NetSlice::Arp(_) => panic!("ARP"),
            };
            prop_assert_eq!(udp_header.checksum, if header.udp_checksum { checksum } else { 0 });
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
            for link_layer in [LinkLayer::Ethernet, LinkLayer::Ip, LinkLayer::LinuxSll, LinkLayer::LinuxSll2] {
                if let Ok(frame) = Frame::parse(link_layer, &bytes) {
                    let _ = (frame.check_icrc(), frame.segments().count(), frame.to_string());
                }
            }
        }

        /// As before, but each in the guise of a real frame, to get past the first few comparisons.
        #[test]
        fn a_real_frame_with_any_damage_is_parsed_without_panic(
            vector in prop::sample::select(vec![CONNECTX4_CNP, V1_WRITE_ONLY, V1_ACKNOWLEDGE]),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            length in any::<prop::sample::Index>(),
        ) {
            let mut bytes = bytes(vector);
            for (at, value) in damage {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(length.index(bytes.len() + 1));
            if let Ok(frame) = Frame::parse(LinkLayer::Ethernet, &bytes) {
                let _ = (frame.check_icrc(), Packet::new_checked(frame.packet()).map(|packet| packet.to_string()));
            }
        }
    }
}
