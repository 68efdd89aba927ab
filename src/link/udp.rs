//! The default wire: UDP sockets, no privilege.
//!
//! One socket bound to (address, 4791) receives everything. Sending goes through it too, or through one of up to
//! [`SOURCE_PORTS`] further sockets that differ in nothing but their port, so that routers which hash ports spread
//! queue pairs over paths.
//!
//! The ICRC covers fields of the IP header that a socket does not choose. Two rules make them known all the same:
//! the sockets are never connected and set Don't Fragment, for which Linux writes Identification 0; and a train
//! that leaves as one segmentation-offload send (`UDP_SEGMENT`) is numbered 0, 1, 2 …, again from 0 at each send.
//! IPv6 has no Identification, and its variable fields are masked.
//!
//! Segmentation offload is worth a factor of ten. Where the kernel has none (before Linux 4.18, or a device without
//! checksum offload), every packet is sent by itself and [`LinkLimits::train_segments`] is 1.

mod groups;

use super::{Arrival, Link, LinkLimits, ReceiveBuffer, Train, sys};
use groups::Groups;
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};
use std::{
    io::{self, IoSlice},
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};
use uroce_protocol::{
    Instant,
    wire::{ROCE_PORT, icrc::restamp},
};

/// How many source ports a link uses at most, beside 4791: each is a socket.
pub const SOURCE_PORTS: usize = 64;

/// What Linux takes in one segmentation-offload send since 6.9; before, 64.
pub(super) const MAX_SEGMENTS: usize = 128;

/// How a [`UdpLink`] is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// Send trains by `UDP_SEGMENT` where the kernel can.
    pub segmentation_offload: bool,
    /// Receive trains by `UDP_GRO` where the kernel can.
    pub receive_offload: bool,
    /// The receive buffer to ask the kernel for, in bytes. It silently grants `net.core.rmem_max` at most.
    pub receive_buffer: usize,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self { segmentation_offload: true, receive_offload: true, receive_buffer: 8 << 20 }
    }
}

/// RoCE v2 over UDP sockets.
#[derive(Debug)]
pub struct UdpLink {
    local: Local,
    socket: Socket,
    /// Slot n holds the first port that was asked for among those equal to n modulo the number of slots; later
    /// ones share it. `None`: no port could be had.
    ports: [OnceLock<Option<PortSocket>>; SOURCE_PORTS],
    network_mtu: usize,
    interface: Option<u32>,
    speed: Option<u32>,
    receive_capacity: usize,
    config: UdpConfig,
    groups: Groups,
    /// Segments that one send may hold. Falls to 1 when a device turns out to have no checksum offload.
    train_segments: AtomicUsize,
}

/// Where sockets are bound.
#[derive(Clone, Copy, Debug)]
struct Local {
    address: IpAddr,
    /// The interface that has the address, 0 for none.
    interface: u32,
}

/// A socket that sends from another port than 4791.
#[derive(Debug)]
struct PortSocket {
    port: u16,
    socket: Socket,
}

impl UdpLink {
    /// A link at `address`, which must be an address of this machine.
    ///
    /// # Errors
    /// `AddrNotAvailable` when the machine does not have the address, `AddrInUse` when another program (or the
    /// kernel's rxe) has port 4791 there, `InvalidInput` for a multicast or unspecified address. The message says
    /// how to mend it.
    pub fn open(address: IpAddr, config: &UdpConfig) -> io::Result<Self> {
        if address.is_unspecified() || address.is_multicast() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a device needs one unicast address of this machine, and {address} is none"),
            ));
        }
        let interface = sys::interface_of(address)?;
        let local = Local { address, interface: interface.as_ref().map_or(0, |interface| interface.index) };
        let socket = local.bind(ROCE_PORT).map_err(|error| explain(error, address))?;
        let receive_buffer = prepare_receiving(&socket, address, config)?;
        let train_segments = if config.segmentation_offload { probe_segmentation(local)? } else { 1 };
        tracing::debug!(%address, ?interface, receive_buffer, train_segments, "UDP link open");
        Ok(Self {
            local,
            socket,
            config: *config,
            groups: Groups::default(),
            ports: [const { OnceLock::new() }; SOURCE_PORTS],
            interface: interface.as_ref().map(|interface| interface.index),
            // Loopback is about as fast as this with UDP, packet by packet of 4 KiB.
            speed: interface.as_ref().and_then(|it| it.speed).or(address.is_loopback().then_some(25_000)),
            // An address of no interface is a local route (`ip route add local …`): assume Ethernet.
            network_mtu: interface.map_or(1500, |interface| interface.mtu),
            receive_capacity: receive_capacity(receive_buffer),
            train_segments: AtomicUsize::new(train_segments),
        })
    }

    /// A link at the first of 127.0.0.1, 127.0.0.2 … 127.0.0.254 whose port 4791 is free: what a device without a
    /// configured address takes.
    ///
    /// # Errors
    /// `AddrInUse` when all are taken, and whatever [`Self::open`] fails with.
    pub fn open_loopback(config: &UdpConfig) -> io::Result<Self> {
        for host in 1..=254 {
            match Self::open(Ipv4Addr::new(127, 0, 0, host).into(), config) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                result => return result,
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!(
                "UDP port {ROCE_PORT} is taken on every address from 127.0.0.1 to 127.0.0.254: a program or the \
                 kernel's rdma_rxe module holds it for all addresses (`ss -lun` shows which; `rmmod rdma_rxe` \
                 frees it)"
            ),
        ))
    }

    /// A link at `address`, or at the first free loopback address, in the default configuration.
    ///
    /// # Errors
    /// As [`Self::open`] and [`Self::open_loopback`].
    pub fn open_here(address: Option<IpAddr>) -> io::Result<Self> {
        let config = UdpConfig::default();
        match address {
            Some(address) => Self::open(address, &config),
            None => Self::open_loopback(&config),
        }
    }

    /// The socket that sends from `port`; the second value says that it is not 4791's.
    fn transmit_socket(&self, port: u16) -> &Socket {
        match self.ports[slot(port)].get() {
            Some(Some(found)) if found.port == port => &found.socket,
            _ => &self.socket,
        }
    }

    fn socket_address(&self, destination: IpAddr) -> io::Result<SockAddr> {
        match (self.local.address, destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => {
                Ok(self.local.name(destination, ROCE_PORT).into())
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{destination} cannot be reached from {}: they differ in IP version", self.local.address),
            )),
        }
    }

    /// Sends a train that holds more packets than the kernel takes at once as several, each with the ICRCs that
    /// its own numbering calls for. Only what comes before a full socket buffer is known to have left; the rest of
    /// the train is lost then, as packets get lost.
    fn send_in_pieces(&self, socket: &Socket, to: &SockAddr, train: &Train<'_>, segments: usize) -> io::Result<()> {
        let mut restamped = Vec::new();
        for (index, piece) in train.bytes.chunks(train.segment_size * segments).enumerate() {
            let mut bytes = piece;
            if self.local.address.is_ipv4() && index > 0 {
                restamped.clear();
                restamped.extend_from_slice(piece);
                for (at, packet) in restamped.chunks_mut(train.segment_size).enumerate() {
                    restamp(packet, (index * segments + at) as u16, at as u16);
                }
                bytes = &restamped;
            }
            match send_one(socket, to, &Train { bytes, ..*train }) {
                Err(error) if index > 0 && error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                result => result?,
            }
        }
        Ok(())
    }
}

impl Link for UdpLink {
    fn address(&self) -> IpAddr {
        self.local.address
    }

    fn limits(&self) -> LinkLimits {
        LinkLimits {
            network_mtu: self.network_mtu,
            interface: self.interface,
            speed: self.speed,
            train_segments: self.train_segments.load(Ordering::Relaxed),
            receive_capacity: self.receive_capacity,
        }
    }

    fn source_port(&self, wanted: u16) -> u16 {
        if wanted == ROCE_PORT {
            return ROCE_PORT;
        }
        self.ports[slot(wanted)]
            .get_or_init(|| PortSocket::open(self.local, wanted))
            .as_ref()
            .map_or(ROCE_PORT, |found| found.port)
    }

    fn send(&self, _now: Instant, train: &Train<'_>) -> io::Result<()> {
        // A longer train than the kernel takes goes out in pieces.
        train.check(usize::MAX)?;
        let to = self.socket_address(train.destination)?;
        let socket = self.transmit_socket(train.source_port);
        let segments = self.train_segments.load(Ordering::Relaxed);
        if train.segments().len() > segments {
            return self.send_in_pieces(socket, &to, train, segments);
        }
        match send_one(socket, &to, train) {
            // The device that leads there cannot compute UDP checksums, without which Linux does not segment.
            Err(error) if error.raw_os_error() == Some(libc::EIO) && train.segments().len() > 1 => {
                tracing::warn!(address = %self.local.address, "no segmentation offload on this path: sending packets singly");
                self.train_segments.store(1, Ordering::Relaxed);
                self.send_in_pieces(socket, &to, train, 1)
            }
            result => result,
        }
    }

    fn receive(&self, _now: Instant, buffer: &mut ReceiveBuffer) -> io::Result<Option<Arrival>> {
        self.groups.receive(&self.socket, self.local.address, buffer)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.groups.readiness().unwrap_or(self.socket.as_fd()))
    }

    fn join(&self, group: IpAddr) -> io::Result<()> {
        self.groups.join(self.local, &self.socket, group, &self.config)
    }

    fn leave(&self, group: IpAddr) -> io::Result<()> {
        self.groups.leave(group)
    }

    fn disown(&self) -> io::Result<()> {
        self.groups.disown()?;
        let others = self.ports.iter().filter_map(OnceLock::get).flatten().map(|port| &port.socket);
        others.chain([&self.socket]).try_for_each(|socket| sys::replace_by_null(socket.as_fd()))
    }
}

impl AsFd for UdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl PortSocket {
    /// A socket for `wanted`, or for another port of the same slot in RoCE's range (0xc000 and above) when that is
    /// taken or reserved.
    fn open(local: Local, wanted: u16) -> Option<Self> {
        let others = (0xc000_u16..=0xffff).step_by(SOURCE_PORTS).take(16).map(|base| base | slot(wanted) as u16);
        for port in std::iter::once(wanted).chain(others).filter(|&port| port != 0) {
            let Ok(socket) = local.bind(port) else { continue };
            // Nobody reads this socket: what strangers send there may hold no memory.
            if let Err(error) = socket.set_recv_buffer_size(0) {
                tracing::debug!(%error, port, "receive buffer of a transmit socket");
            }
            return Some(Self { port, socket });
        }
        tracing::debug!(address = %local.address, wanted, "no source port to be had: sending from {ROCE_PORT}");
        None
    }
}

/// The first of 127.0.0.1, 127.0.0.2 … whose port 4791 is free. Another program may take it before the caller
/// does: [`UdpLink::open_loopback`] has no such gap.
///
/// # Errors
/// As [`UdpLink::open_loopback`].
pub fn free_loopback_address() -> io::Result<IpAddr> {
    UdpLink::open_loopback(&UdpConfig::default()).map(|link| link.local.address)
}

const fn slot(port: u16) -> usize {
    port as usize % SOURCE_PORTS
}

fn send_one(socket: &Socket, to: &SockAddr, train: &Train<'_>) -> io::Result<()> {
    let segmented = train.bytes.len() > train.segment_size;
    let options = sys::SendOptions {
        traffic_class: (train.traffic_class != 0).then_some(train.traffic_class),
        hop_limit: train.hop_limit,
        // A train never exceeds 65,507 bytes, so a segment of it does not either.
        segment_size: segmented.then_some(train.segment_size as u16),
    };
    sys::send(socket.as_fd(), to, &[IoSlice::new(train.bytes)], options)
}

impl Local {
    /// A non-blocking datagram socket whose packets carry Don't Fragment and Identification 0, and whose multicast
    /// packets leave by the device's interface.
    fn bind(self, port: u16) -> io::Result<Socket> {
        let socket = self.socket()?;
        // Clamped silently to net.core.wmem_max; on loopback a sent packet is charged to its receiver at once.
        socket.set_send_buffer_size(4 << 20)?;
        // PROBE sets Don't Fragment as DO does, but knows only the interface's MTU: a forged ICMP message cannot make
        // the kernel refuse our packets.
        match self.address {
            IpAddr::V4(_) => {
                sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
            }
            IpAddr::V6(_) => {
                let discover = libc::IPV6_MTU_DISCOVER;
                sys::set_option(socket.as_fd(), libc::IPPROTO_IPV6, discover, libc::IPV6_PMTUDISC_PROBE)?;
                // IPv4 knows it by the source address.
                socket.set_multicast_if_v6(self.interface)?;
            }
        }
        socket.bind(&self.name(self.address, port).into())?;
        Ok(socket)
    }

    fn socket(self) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address((self.address, 0).into()), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        if self.address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        Ok(socket)
    }

    /// An address as sockets name it: where it is only valid on a link, with the device's interface.
    fn name(self, address: IpAddr, port: u16) -> SocketAddr {
        match address {
            IpAddr::V4(v4) => (v4, port).into(),
            IpAddr::V6(v6) => {
                let scope = if v6.is_unicast_link_local() || v6.is_multicast() { self.interface } else { 0 };
                SocketAddrV6::new(v6, port, 0, scope).into()
            }
        }
    }
}

/// Takes what has arrived at one socket, which was sent to `destination`.
fn receive_one(socket: &Socket, destination: IpAddr, buffer: &mut ReceiveBuffer) -> io::Result<Option<Arrival>> {
    loop {
        let received = match sys::receive(socket.as_fd(), buffer.as_mut_bytes()) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        // An empty datagram has no segments, and a truncated one no ICRC: no peer of ours sends either.
        if received.length == 0 || received.truncated {
            continue;
        }
        return Ok(Some(Arrival {
            source: received.source.ip(),
            source_port: received.source.port(),
            destination,
            traffic_class: received.traffic_class,
            hop_limit: received.hop_limit,
            ip_id: None,
            segment_size: received.segment_size.unwrap_or(received.length),
            length: received.length,
        }));
    }
}

/// Takes port 4791 of an address, so that nobody else does and the kernel does not call it unreachable, and throws
/// away what arrives there.
pub(super) fn hold(address: IpAddr, interface: &sys::Interface) -> io::Result<Socket> {
    let local = Local { address, interface: interface.index };
    let socket = local.bind(ROCE_PORT).map_err(|error| explain(error, address))?;
    // BPF_RET | BPF_K, 0: nothing of any packet.
    socket.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)])?;
    Ok(socket)
}

/// Sets up what the receiving socket needs beyond [`Local::bind`]; returns the size of its buffer.
fn prepare_receiving(socket: &Socket, address: IpAddr, config: &UdpConfig) -> io::Result<usize> {
    match address {
        IpAddr::V4(_) => {
            socket.set_recv_tos_v4(true)?;
            sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
        }
        IpAddr::V6(_) => {
            socket.set_recv_tclass_v6(true)?;
            socket.set_recv_hoplimit_v6(true)?;
            // Linux rxe and hardware send no checksum over IPv6 either; the ICRC covers all that one would.
            sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
        }
    }
    if config.receive_offload
        && let Err(error) = sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1)
    {
        tracing::debug!(%error, "no UDP receive offload: packets arrive one by one");
    }
    socket.set_recv_buffer_size(config.receive_buffer)?;
    socket.recv_buffer_size()
}

/// How many packet bytes may be in flight towards a receive buffer that the kernel reports as `granted` bytes.
///
/// The kernel charges a datagram the memory that it takes up, not its length: 2.0 to 2.2 bytes per byte for a full
/// packet at any path MTU, about 1 within a merged train, but 832 to 1280 for the smallest. And it gives memory
/// back in steps of a quarter of the buffer. Two fifths leave room for all of that (measured on Linux 6.18), as
/// long as a packet of less than 512 bytes is counted as 512.
pub(super) const fn receive_capacity(granted: usize) -> usize {
    granted / 5 * 2
}

/// How many segments the kernel takes in one `UDP_SEGMENT` send: 128, 64 before Linux 6.9, 1 before 4.18. Found by
/// trying, over loopback.
fn probe_segmentation(local: Local) -> io::Result<usize> {
    let socket = local.bind(0)?;
    let to = socket.local_addr()?;
    let options = sys::SendOptions { traffic_class: None, hop_limit: None, segment_size: Some(1) };
    for segments in [MAX_SEGMENTS, 64] {
        if sys::send(socket.as_fd(), &to, &[IoSlice::new(&[0; MAX_SEGMENTS][..segments])], options).is_ok() {
            return Ok(segments);
        }
    }
    Ok(1)
}

/// Says what is wrong with an address, and how to mend it.
fn explain(error: io::Error, address: IpAddr) -> io::Error {
    let kind = error.kind();
    let message = match kind {
        io::ErrorKind::AddrNotAvailable => format!(
            "{address} is not an address of this machine: choose one that `ip address` shows, or any in 127.0.0.0/8"
        ),
        io::ErrorKind::AddrInUse => format!(
            "UDP port {ROCE_PORT} of {address} is taken, by another uroce device or by the kernel's rdma_rxe module: \
             choose another address (127.0.0.2, say), or end what holds it (`ss -lunp` shows it)"
        ),
        _ => format!("cannot bind UDP port {ROCE_PORT} of {address}: {error}"),
    };
    io::Error::new(kind, message)
}

#[cfg(test)]
mod tests;
