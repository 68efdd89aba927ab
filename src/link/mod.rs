//! How packets leave and arrive: one trait, several wires, and wrappers that observe or disturb.
//!
//! The unit is a *train*: packets of one queue pair to one destination, equal in length but for a shorter last
//! one, laid end to end. That is what a kernel's UDP segmentation offload takes and what its receive offload
//! returns, and it is what makes user space fast.
//!
//! - [`udp`]: UDP sockets, for any machine and without privilege.
//! - [`ether`]: whole Ethernet frames, through a network interface or to a QEMU guest.
//! - [`shm`]: a short way between devices of one machine, through memory that they share.
//! - [`sim`]: a network in virtual time, for tests.
//! - [`fault`]: a wrapper that drops, delays, reorders, corrupts …
//! - [`capture`]: a wrapper that writes down what passes.
//! - [`Trace`]: a wrapper that logs it.
//!
//! Wrappers are links themselves, so they stack. The outer ones are nearer to the program: what
//! `Capture<Fault<UdpLink>>` records is what the program sent, what `Fault<Capture<UdpLink>>` records is what was
//! on the wire.
//!
//! ```
//! use uroce::link::{Capture, CaptureFile, Fault, Link, UdpConfig, UdpLink};
//!
//! # let path = std::env::temp_dir().join(format!("uroce-doc-{}.pcapng", std::process::id()));
//! let wire = UdpLink::open_loopback(&UdpConfig::default())?;
//! let file = CaptureFile::create(&path)?;
//! let wire = Capture::new(wire, file, "wire")?;
//! let spec = "drop 1%, rx drop read-response 3 of qp 17".parse().map_err(std::io::Error::other)?;
//! let link = Fault::new(wire, &spec, 42);
//! println!("a bad network at {}", link.address());
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod capture;
pub mod ether;
pub mod fault;
pub mod shm;
pub mod sim;
pub mod spec;
pub(crate) mod sys;
#[cfg(test)]
mod testing;
mod trace;
pub mod udp;

pub use capture::{Capture, CaptureFile};
pub use ether::{EtherConfig, EtherLink};
pub use fault::{Fault, FaultSpec};
pub use shm::Shm;
pub use spec::LinkSpec;
pub use trace::Trace;
pub use udp::{UdpConfig, UdpLink, free_loopback_address};

use std::{fmt, io, net::IpAddr, os::fd::BorrowedFd, sync::Arc};
use uroce_protocol::Instant;

/// The most bytes that a train holds: the largest UDP payload over IPv4.
pub const MAX_TRAIN_BYTES: usize = 65_507;

/// The TTL or hop limit of a packet that names none: most systems' own.
pub(crate) const DEFAULT_HOP_LIMIT: u8 = 64;

/// Packets to send: BTH to ICRC each, end to end.
#[derive(Clone, Copy, Debug)]
pub struct Train<'a> {
    /// Where to, a host or a multicast group; the UDP port is always [`uroce_protocol::wire::ROCE_PORT`].
    pub destination: IpAddr,
    /// The UDP source port, for path entropy. A link that cannot have it uses another and says so in
    /// [`Link::source_port`].
    pub source_port: u16,
    /// The TOS or traffic class byte: six bits of DSCP, two of ECN.
    pub traffic_class: u8,
    /// The TTL or hop limit, `None` for the system's own.
    pub hop_limit: Option<u8>,
    /// The length of every packet but perhaps the last, which may be shorter.
    pub segment_size: usize,
    /// The packets. Segment i leaves with IPv4 Identification i and DF set, which its ICRC covers.
    pub bytes: &'a [u8],
}

impl<'a> Train<'a> {
    /// The packets one by one.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(self.segment_size.max(1))
    }

    /// Refuses a train without packets, with too many bytes, or with more than `segments` packets.
    pub(crate) fn check(&self, segments: usize) -> io::Result<()> {
        let bytes = self.bytes.len();
        if self.segment_size > 0
            && (1..=MAX_TRAIN_BYTES).contains(&bytes)
            && bytes.div_ceil(self.segment_size) <= segments
        {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a train of {bytes} bytes in packets of {} does not fit this link", self.segment_size),
        ))
    }
}

/// What is known of a received train beside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The sender's address.
    pub source: IpAddr,
    /// The sender's UDP port: anything, never a reason to refuse.
    pub source_port: u16,
    /// The address it was sent to: the link's own, or a multicast group that it has joined.
    pub destination: IpAddr,
    /// The TOS or traffic class byte as it arrived.
    pub traffic_class: u8,
    /// The TTL or hop limit as it arrived, where the link sees it.
    pub hop_limit: Option<u8>,
    /// The IPv4 Identification of the first segment, where the link sees it; segment i then has this + i.
    pub ip_id: Option<u16>,
    /// The length of every packet but perhaps the last.
    pub segment_size: usize,
    /// The length of the whole train.
    pub length: usize,
}

impl Arrival {
    /// Whether a switch has marked it "congestion experienced": both ECN bits are set.
    pub const fn is_marked(&self) -> bool {
        self.traffic_class & 0b11 == 0b11
    }
}

/// Where a link puts one received train.
pub struct ReceiveBuffer {
    bytes: Box<[u8]>,
}

impl ReceiveBuffer {
    /// A buffer that holds any UDP payload.
    pub fn new() -> Self {
        Self { bytes: vec![0; 1 << 16].into_boxed_slice() }
    }

    /// All of it, for a link to fill.
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// All of it, as a link has filled it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The packets of the train that `arrival` describes.
    pub fn segments(&self, arrival: &Arrival) -> impl ExactSizeIterator<Item = &[u8]> {
        self.bytes[..arrival.length].chunks(arrival.segment_size.max(1))
    }
}

impl Default for ReceiveBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ReceiveBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveBuffer").finish_non_exhaustive()
    }
}

/// What a link can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// The largest IP packet in bytes (an interface's MTU): sets the port's active path MTU.
    pub network_mtu: usize,
    /// The most packets in one train: 1 where there is no segmentation offload.
    pub train_segments: usize,
    /// How many packet bytes may be in flight towards this link, from all its peers together, before its receive
    /// buffer may overflow. A packet of less than 512 bytes counts as 512: memory is held by the packet too.
    pub receive_capacity: usize,
    /// How fast it is, in megabits a second, where it knows.
    pub speed: Option<u32>,
    /// The number of the network interface that it uses, where there is one.
    pub interface: Option<u32>,
}

/// A wire. Methods take `&self`: any thread may send while another receives.
pub trait Link: Send + Sync + fmt::Debug {
    /// The local address, which is the device's identity.
    fn address(&self) -> IpAddr;

    /// What it can do.
    fn limits(&self) -> LinkLimits;

    /// The UDP source port that packets which ask for `wanted` will carry; their ICRC covers it.
    fn source_port(&self, wanted: u16) -> u16;

    /// Sends a train. Never blocks: `WouldBlock` means that nothing was taken and the caller keeps the train until
    /// the descriptor of [`Self::readiness`] is writable (or, without one, may retry at once). Any other error
    /// means that the train is lost, as packets get lost.
    fn send(&self, now: Instant, train: &Train<'_>) -> io::Result<()>;

    /// Takes one train that has arrived, `None` when there is none. Only one caller at a time.
    fn receive(&self, now: Instant, buffer: &mut ReceiveBuffer) -> io::Result<Option<Arrival>>;

    /// A descriptor that is readable when a train has arrived; `None` for links in virtual time. After a
    /// [`Self::join`] it may be another.
    fn readiness(&self) -> Option<BorrowedFd<'_>>;

    /// Called before somebody waits for [`Self::readiness`]: from now on the descriptor becomes readable when a train
    /// arrives, where it does not always. Returns whether there is something to wait for; not when a train has arrived
    /// already.
    fn arm(&self, now: Instant) -> bool {
        let _ = now;
        true
    }

    /// Becomes a member of a multicast group: from now on what is sent to it arrives here too, the link's own trains
    /// included. Joining a group twice is joining it once.
    ///
    /// # Errors
    /// Whatever the system says; `Unsupported` where the network carries no multicast.
    fn join(&self, group: IpAddr) -> io::Result<()>;

    /// Ends a membership.
    ///
    /// # Errors
    /// `NotFound` without one.
    fn leave(&self, group: IpAddr) -> io::Result<()>;

    /// When [`Self::handle_timeout`] wants to be called (a wrapper that holds packets back).
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Lets go of what was held back until `now`.
    fn handle_timeout(&self, now: Instant) {
        let _ = now;
    }

    /// In a forked child: lets go of the wire, which is the parent's. Nothing else may be done with the link then.
    ///
    /// # Errors
    /// What the system says when there is no descriptor to be had.
    fn disown(&self) -> io::Result<()> {
        self.readiness().map_or(Ok(()), sys::replace_by_null)
    }
}

/// The answer to a [`Link::leave`] without a membership.
fn no_member(group: IpAddr) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("the link has not joined {group}"))
}

impl<L: Link + ?Sized> Link for Arc<L> {
    fn address(&self) -> IpAddr {
        (**self).address()
    }

    fn limits(&self) -> LinkLimits {
        (**self).limits()
    }

    fn source_port(&self, wanted: u16) -> u16 {
        (**self).source_port(wanted)
    }

    fn send(&self, now: Instant, train: &Train<'_>) -> io::Result<()> {
        (**self).send(now, train)
    }

    fn receive(&self, now: Instant, buffer: &mut ReceiveBuffer) -> io::Result<Option<Arrival>> {
        (**self).receive(now, buffer)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        (**self).readiness()
    }

    fn join(&self, group: IpAddr) -> io::Result<()> {
        (**self).join(group)
    }

    fn leave(&self, group: IpAddr) -> io::Result<()> {
        (**self).leave(group)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (**self).poll_timeout()
    }

    fn handle_timeout(&self, now: Instant) {
        (**self).handle_timeout(now);
    }

    fn arm(&self, now: Instant) -> bool {
        (**self).arm(now)
    }

    fn disown(&self) -> io::Result<()> {
        (**self).disown()
    }
}
