//! Whole Ethernet frames, every header field of them ours.
//!
//! This link sees and sets what a UDP socket hides: the IPv4 Identification and flags, and so the ICRC of every
//! packet is checked exactly, all 32 bits of it. UDP checksums are not computed (0, as rxe and hardware send), and
//! those of others not looked at: the ICRC covers all that they do. What no RoCE device sends is not taken in: IP
//! options, fragments, extension headers, VLAN tags.
//!
//! No kernel answers for it either, so it asks where its neighbours are and says where it is: ARP and IPv6 neighbour
//! discovery.
//!
//! Two wires carry the frames:
//!
//! - [`EtherLink::on_datagrams`]: a pair of unix datagram sockets, a datagram a frame, which is how QEMU's
//!   `-netdev dgram` speaks. No privilege: a guest with a real NIC driver in it is one socket away.
//! - [`EtherLink::on_interface`]: a network interface, through a packet socket (`CAP_NET_RAW`).
//!
//! # Whose address it is
//!
//! On an interface the link either shares an address with the kernel, or claims one of its own.
//!
//! Where the kernel has the address, the kernel answers ARP, and the link holds UDP port 4791 of it, so that neither
//! does the kernel answer our packets with "port unreachable", nor does another RoCE device stand on the same
//! address. An address that the kernel does not have is claimed: it gets an Ethernet address of its own, which the
//! interface is told to take in, and to which the kernel therefore pays no heed. That wants a network that lets
//! several Ethernet addresses through one port: a virtual one, a cable, a switch; not a wireless one, and few clouds.
//!
//! # Multicast
//!
//! Frames for a group that the link has joined are taken in, but no router or switch is told (no IGMP or MLD report): a
//! switch that only forwards groups to where it has heard of members keeps them back.

mod datagrams;
mod mac;
mod neighbours;
mod packet;

pub use mac::{MacAddress, NoMacAddress};

use super::{Arrival, DEFAULT_HOP_LIMIT, Link, LinkLimits, ReceiveBuffer, Train, no_member};
use datagrams::DatagramWire;
use etherparse::{EtherType, Ethernet2HeaderSlice, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice, UdpHeaderSlice};
use neighbours::Neighbours;
use packet::PacketWire;
use parking_lot::{Mutex, RwLock};
use std::{
    collections::VecDeque,
    fmt, io,
    net::IpAddr,
    os::fd::BorrowedFd,
    path::PathBuf,
    str::FromStr,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};
use thiserror::Error;
use uroce_protocol::{
    Instant,
    wire::{DatagramHeader, ROCE_PORT},
};

const ETHERNET_LEN: usize = 14;
const UDP_LEN: usize = 8;
/// The longest head: Ethernet, IPv6 and UDP header.
const MAX_HEAD_LEN: usize = ETHERNET_LEN + DatagramHeader::MAX_LEN;
/// The longest message of ARP or neighbour discovery that is listened to.
const MAX_MESSAGE_LEN: usize = 256;

/// When a wire that took no more is tried again.
const RETRY_AFTER: Duration = Duration::from_micros(100);
/// No deadline, in [`EtherLink::deadline`].
const NEVER: u64 = u64::MAX;

/// How an [`EtherLink`] is set up, whatever its wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtherConfig {
    /// The address that the device stands on.
    pub address: IpAddr,
    /// Its Ethernet address; without it the interface's, or one that follows from the IP address.
    pub mac: Option<MacAddress>,
    /// The router to all addresses but those that share the first `prefix_len` bits with ours. Without it every
    /// address is a neighbour's.
    pub gateway: Option<Gateway>,
}

/// A way out of the own network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// The router.
    pub address: IpAddr,
    /// How many bits of the own address say which network it is in.
    pub prefix_len: u8,
}

/// A text that names no gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a gateway is a router's address and the length of the own network's prefix, as in 10.77.0.254/24")]
pub struct NoGateway;

impl FromStr for Gateway {
    type Err = NoGateway;

    fn from_str(text: &str) -> Result<Self, NoGateway> {
        let (address, prefix_len) = text.split_once('/').ok_or(NoGateway)?;
        let address: IpAddr = address.parse().map_err(|_| NoGateway)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix_len = prefix_len.parse().ok().filter(|&bits| bits <= most).ok_or(NoGateway)?;
        Ok(Self { address, prefix_len })
    }
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

/// What carries frames, and knows nothing of what is in them.
trait Wire: Send + Sync + fmt::Debug {
    /// Sends the frame that `head` and `body` are the parts of. With a segment size, `body` is cut into packets of
    /// that size, each behind a head of its own.
    fn send(&self, head: &[u8], body: &[u8], segment_size: Option<u16>) -> io::Result<()>;

    /// Takes a frame, `None` when there is none: fills `head` first.
    fn receive(&self, head: &mut [u8], body: &mut [u8]) -> io::Result<Option<ReceivedFrame>>;

    /// Has the network bring frames for a group's Ethernet address, or not any more. Asked for once each.
    fn set_membership(&self, group: MacAddress, joined: bool) -> io::Result<()>;

    /// Readable when there is a frame.
    fn readiness(&self) -> BorrowedFd<'_>;
}

/// What a wire says about a frame.
#[derive(Clone, Copy, Debug)]
struct ReceivedFrame {
    /// How many bytes it has, head included.
    length: usize,
    /// The size of the packets that the kernel has put together in one frame, if it has.
    segment_size: Option<usize>,
}

/// RoCE v2 in Ethernet frames: see the [module's documentation](self).
#[derive(Debug)]
pub struct EtherLink {
    wire: Box<dyn Wire>,
    address: IpAddr,
    mac: MacAddress,
    gateway: Option<Gateway>,
    neighbours: Mutex<Neighbours>,
    /// What the device has sent to its own address, or to a group that it has joined: no wire brings that back.
    own: Mutex<OwnTrains>,
    /// The multicast groups that it has joined.
    groups: RwLock<Vec<IpAddr>>,
    /// When [`Link::handle_timeout`] has something to do, in nanoseconds.
    deadline: AtomicU64,
    limits: LinkLimits,
    /// Segments that one send may hold: falls to 1 when the kernel turns out not to cut up frames.
    train_segments: AtomicUsize,
}

#[derive(Debug, Default)]
struct OwnTrains {
    trains: VecDeque<(Arrival, Vec<u8>)>,
    bytes: usize,
}

impl EtherLink {
    /// A link over unix datagrams: frames go to the socket at `remote` and come to one that is bound to `local`,
    /// which is removed when the link is dropped. `network_mtu` is that of the network at the other end.
    ///
    /// # Errors
    /// `AddrInUse` when a live socket is bound to `local`, and whatever the system says when it cannot be bound.
    pub fn on_datagrams(local: PathBuf, remote: PathBuf, network_mtu: usize, config: &EtherConfig) -> io::Result<Self> {
        let wire = DatagramWire::open(local, remote)?;
        let mac = config.mac.unwrap_or_else(|| MacAddress::of_station(config.address));
        // The wire holds senders back when a receiver's queue is full, so nothing overflows.
        let limits =
            LinkLimits { network_mtu, train_segments: 1, receive_capacity: 1 << 20, speed: None, interface: None };
        Self::new(Box::new(wire), config, mac, true, limits)
    }

    /// A link through a network interface.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_RAW`, `NotFound` when there is no such interface, `AddrInUse` when it has
    /// the address and another RoCE device holds port 4791 of it, `InvalidInput` for the loopback interface and
    /// others that are not Ethernet. The message says how to mend it.
    pub fn on_interface(name: &str, config: &EtherConfig) -> io::Result<Self> {
        let (wire, station) = PacketWire::open(name, config)?;
        Self::new(Box::new(wire), config, station.mac, station.is_claimed, station.limits)
    }

    fn new(
        wire: Box<dyn Wire>,
        config: &EtherConfig,
        mac: MacAddress,
        answers: bool,
        limits: LinkLimits,
    ) -> io::Result<Self> {
        let EtherConfig { address, gateway, .. } = *config;
        if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
            return Err(invalid(format!("a device on Ethernet needs a unicast address, and {address} is none")));
        }
        if !mac.is_unicast() {
            return Err(invalid(format!("a device needs an Ethernet address of its own, and {mac} is none")));
        }
        let link = Self {
            wire,
            address,
            mac,
            gateway,
            neighbours: Mutex::new(Neighbours::new(address, mac, answers)),
            own: Mutex::default(),
            groups: RwLock::default(),
            deadline: AtomicU64::new(NEVER),
            limits,
            train_segments: AtomicUsize::new(limits.train_segments),
        };
        tracing::debug!(%address, %mac, ?limits, "Ethernet link open");
        let mut neighbours = link.neighbours.lock();
        neighbours.announce();
        link.flush(Instant::ZERO, &mut neighbours);
        drop(neighbours);
        Ok(link)
    }

    /// The Ethernet address that it sends from.
    pub const fn mac(&self) -> MacAddress {
        self.mac
    }

    /// Whom to hand packets for `destination` to.
    fn next_hop(&self, destination: IpAddr) -> io::Result<IpAddr> {
        if destination.is_ipv4() != self.address.is_ipv4() {
            return Err(invalid(format!(
                "{destination} cannot be reached from {}: they differ in IP version",
                self.address
            )));
        }
        Ok(match self.gateway {
            Some(gateway) if !shares_prefix(self.address, destination, gateway.prefix_len) => gateway.address,
            _ => destination,
        })
    }

    /// Sends what the neighbour table wants sent, and notes when it next wants something.
    fn flush(&self, now: Instant, neighbours: &mut Neighbours) {
        let mut retry = None;
        while let Some(frame) = neighbours.poll_transmit() {
            match self.wire.send(frame, &[], None) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    retry = Some(now + RETRY_AFTER);
                    break;
                }
                Err(error) => tracing::debug!(%error, "a frame was not sent"),
                Ok(()) => {}
            }
            neighbours.transmitted();
        }
        let deadline = [retry, neighbours.poll_timeout()].into_iter().flatten().min();
        self.deadline.store(deadline.map_or(NEVER, Instant::as_nanos), Ordering::SeqCst);
    }

    /// Takes a train to our own address. One that does not fit is lost, as on any wire.
    fn send_to_self(&self, train: &Train<'_>) {
        let mut own = self.own.lock();
        if own.bytes + train.bytes.len() <= self.limits.receive_capacity {
            own.bytes += train.bytes.len();
            let arrival = Arrival {
                source: self.address,
                source_port: train.source_port,
                destination: train.destination,
                traffic_class: train.traffic_class,
                hop_limit: Some(train.hop_limit.unwrap_or(DEFAULT_HOP_LIMIT)),
                ip_id: self.address.is_ipv4().then_some(0),
                segment_size: train.segment_size,
                length: train.bytes.len(),
            };
            own.trains.push_back((arrival, train.bytes.to_vec()));
        }
    }

    fn receive_from_self(&self, buffer: &mut ReceiveBuffer) -> Option<Arrival> {
        let mut own = self.own.lock();
        let (arrival, bytes) = own.trains.pop_front()?;
        own.bytes -= bytes.len();
        buffer.as_mut_bytes()[..bytes.len()].copy_from_slice(&bytes);
        Some(arrival)
    }

    /// The head of a frame that carries `body` as segment `index` of a train.
    fn head<'a>(&self, train: &Train<'_>, mac: MacAddress, index: u16, body: &[u8], buffer: &'a mut Head) -> &'a [u8] {
        let header = DatagramHeader {
            source: self.address,
            destination: train.destination,
            source_port: train.source_port,
            traffic_class: train.traffic_class,
            hop_limit: train.hop_limit.unwrap_or(DEFAULT_HOP_LIMIT),
            ip_id: index,
            udp_checksum: false,
        };
        let mut datagram_header = [0; DatagramHeader::MAX_LEN];
        let header_len = header.emit_header(body, &mut datagram_header);
        let ether_type = if self.address.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        mac.write_to(buffer);
        buffer[6..12].copy_from_slice(&self.mac.0);
        buffer[12..ETHERNET_LEN].copy_from_slice(&ether_type.0.to_be_bytes());
        buffer[ETHERNET_LEN..].copy_from_slice(&datagram_header);
        &buffer[..ETHERNET_LEN + header_len]
    }

    /// Sends a train to an Ethernet address, cut up by the kernel where it can.
    fn send_frames(&self, train: &Train<'_>, mac: MacAddress) -> io::Result<()> {
        let mut head = [0; MAX_HEAD_LEN];
        let count = train.segments().len();
        if count > 1 && count <= self.train_segments.load(Ordering::Relaxed) {
            let head = self.head(train, mac, 0, train.bytes, &mut head);
            match self.wire.send(head, train.bytes, Some(train.segment_size as u16)) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    tracing::debug!(address = %self.address, "no segmentation offload here: sending packets singly");
                    self.train_segments.store(1, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        for (index, packet) in train.segments().enumerate() {
            let head = self.head(train, mac, index as u16, packet, &mut head);
            match self.wire.send(head, packet, None) {
                // The caller keeps a whole train or none: the rest is lost, as packets get lost.
                Err(error) if index > 0 && error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                result => result?,
            }
        }
        Ok(())
    }

    /// What a frame is that begins with `head`, if it is a RoCE datagram for us; otherwise listens to what it may
    /// say about neighbours.
    fn accept(&self, now: Instant, head: &[u8], frame: ReceivedFrame, buffer: &ReceiveBuffer) -> Option<Arrival> {
        let arrival = self.parse(head, frame);
        if arrival.is_none() {
            let mut message = [0; MAX_MESSAGE_LEN];
            let length = frame.length.min(MAX_MESSAGE_LEN);
            let in_head = head.len().min(length);
            message[..in_head].copy_from_slice(&head[..in_head]);
            message[in_head..length].copy_from_slice(&buffer.as_bytes()[..length - in_head]);
            let mut neighbours = self.neighbours.lock();
            if neighbours.handle_frame(now, &message[..length]) {
                self.flush(now, &mut neighbours);
            }
        }
        arrival
    }

    fn parse(&self, head: &[u8], frame: ReceivedFrame) -> Option<Arrival> {
        let ethernet = Ethernet2HeaderSlice::from_slice(head).ok()?;
        let destination_mac = MacAddress(ethernet.destination());
        if destination_mac != self.mac && destination_mac.is_unicast() {
            return None;
        }
        let network = &head[ETHERNET_LEN..];
        let (source, destination, traffic_class, hop_limit, ip_id, udp): (IpAddr, IpAddr, _, _, _, _) =
            match (ethernet.ether_type(), self.address) {
                (EtherType::IPV4, IpAddr::V4(_)) => {
                    let ip = Ipv4HeaderSlice::from_slice(network).ok()?;
                    let is_whole = !ip.more_fragments() && ip.fragments_offset().value() == 0;
                    let is_intact = ip.header_checksum() == ip.to_header().calc_header_checksum();
                    if ip.ihl() != 5 || ip.protocol() != IpNumber::UDP || !is_whole || !is_intact {
                        return None;
                    }
                    let udp = &network[ip.slice().len()..];
                    let ip_id = Some(ip.identification());
                    (ip.source_addr().into(), ip.destination_addr().into(), network[1], ip.ttl(), ip_id, udp)
                }
                (EtherType::IPV6, IpAddr::V6(_)) => {
                    let ip = Ipv6HeaderSlice::from_slice(network).ok()?;
                    if ip.next_header() != IpNumber::UDP {
                        return None;
                    }
                    let udp = &network[ip.slice().len()..];
                    let (source, destination) = (ip.source_addr().into(), ip.destination_addr().into());
                    (source, destination, ip.traffic_class(), ip.hop_limit(), None, udp)
                }
                _ => return None,
            };
        let udp = UdpHeaderSlice::from_slice(udp).ok()?;
        let length = usize::from(udp.length()).checked_sub(UDP_LEN).filter(|&length| length > 0)?;
        // Ethernet pads short frames; nothing makes a datagram longer than its frame.
        let is_ours = destination == self.address || self.groups.read().contains(&destination);
        if !is_ours || udp.destination_port() != ROCE_PORT || head.len() + length > frame.length {
            return None;
        }
        let segment_size = frame.segment_size.unwrap_or(length);
        let source_port = udp.source_port();
        let hop_limit = Some(hop_limit);
        Some(Arrival { source, source_port, destination, traffic_class, hop_limit, ip_id, segment_size, length })
    }

    /// The length of the heads of the packets that it takes in.
    const fn head_len(&self) -> usize {
        match self.address {
            IpAddr::V4(_) => ETHERNET_LEN + 20 + UDP_LEN,
            IpAddr::V6(_) => ETHERNET_LEN + 40 + UDP_LEN,
        }
    }
}

type Head = [u8; MAX_HEAD_LEN];

impl Link for EtherLink {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn limits(&self) -> LinkLimits {
        LinkLimits { train_segments: self.train_segments.load(Ordering::Relaxed), ..self.limits }
    }

    fn source_port(&self, wanted: u16) -> u16 {
        wanted
    }

    fn send(&self, now: Instant, train: &Train<'_>) -> io::Result<()> {
        train.check(usize::MAX)?;
        if train.destination == self.address {
            self.send_to_self(train);
            return Ok(());
        }
        if train.destination.is_multicast() {
            self.send_frames(train, MacAddress::of_multicast(train.destination))?;
            if self.groups.read().contains(&train.destination) {
                self.send_to_self(train);
            }
            return Ok(());
        }
        let neighbour = self.next_hop(train.destination)?;
        let mut neighbours = self.neighbours.lock();
        let mut mac = neighbours.resolve(now, neighbour);
        if mac.is_none() && neighbours.is_known(neighbour) {
            // Frames are in front of it.
            self.flush(now, &mut neighbours);
            mac = neighbours.resolve(now, neighbour);
            if mac.is_none() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        if let Some(mac) = mac {
            drop(neighbours);
            return self.send_frames(train, mac);
        }
        let mut head = [0; MAX_HEAD_LEN];
        for (index, packet) in train.segments().enumerate() {
            let head = self.head(train, MacAddress::default(), index as u16, packet, &mut head);
            neighbours.queue(neighbour, [head, packet].concat());
        }
        self.flush(now, &mut neighbours);
        Ok(())
    }

    fn receive(&self, now: Instant, buffer: &mut ReceiveBuffer) -> io::Result<Option<Arrival>> {
        if let Some(arrival) = self.receive_from_self(buffer) {
            return Ok(Some(arrival));
        }
        let mut head = [0; MAX_HEAD_LEN];
        let head = &mut head[..self.head_len()];
        while let Some(frame) = self.wire.receive(head, buffer.as_mut_bytes())? {
            let seen = frame.length.min(head.len());
            if let Some(arrival) = self.accept(now, &head[..seen], frame, buffer) {
                return Ok(Some(arrival));
            }
        }
        Ok(None)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wire.readiness())
    }

    fn join(&self, group: IpAddr) -> io::Result<()> {
        let mut groups = self.groups.write();
        if !groups.contains(&group) {
            let mac = MacAddress::of_multicast(group);
            if groups.iter().all(|&other| MacAddress::of_multicast(other) != mac) {
                self.wire.set_membership(mac, true)?;
            }
            groups.push(group);
        }
        Ok(())
    }

    fn leave(&self, group: IpAddr) -> io::Result<()> {
        let mut groups = self.groups.write();
        let at = groups.iter().position(|&member| member == group).ok_or_else(|| no_member(group))?;
        groups.swap_remove(at);
        let mac = MacAddress::of_multicast(group);
        match groups.iter().any(|&other| MacAddress::of_multicast(other) == mac) {
            true => Ok(()),
            false => self.wire.set_membership(mac, false),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        // The wire's descriptor does not tell of what is in here.
        if !self.own.lock().trains.is_empty() {
            return Some(Instant::ZERO);
        }
        match self.deadline.load(Ordering::SeqCst) {
            NEVER => None,
            nanos => Some(Instant::from_nanos(nanos)),
        }
    }

    fn handle_timeout(&self, now: Instant) {
        let mut neighbours = self.neighbours.lock();
        neighbours.handle_timeout(now);
        self.flush(now, &mut neighbours);
    }
}

fn shares_prefix(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    fn aligned(address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        }
    }
    bits == 0 || (aligned(one) ^ aligned(other)).leading_zeros() >= u32::from(bits)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests;
