//! A link that tells `tracing` of every packet that passes, at level TRACE.

use super::{Arrival, Link, LinkLimits, ReceiveBuffer, Train};
use std::{fmt, io, net::IpAddr, os::fd::BorrowedFd};
use tracing::{Level, enabled, trace};
use uroce_protocol::{Instant, wire::Packet};

/// A link that talks: one event a packet, in the words of [`Packet`]'s `Display`.
///
/// Where nobody listens at that level it costs next to nothing. For more than a look, [`super::Capture`] is better.
#[derive(Debug)]
pub struct Trace<L> {
    inner: L,
}

impl<L: Link> Trace<L> {
    /// Wraps `inner`.
    pub const fn new(inner: L) -> Self {
        Self { inner }
    }

    /// The wrapped link.
    pub const fn inner(&self) -> &L {
        &self.inner
    }
}

/// A packet, or what is meant to be one, in one line.
struct Line<'a>(&'a [u8]);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Packet::new_checked(self.0) {
            Ok(packet) => packet.fmt(f),
            Err(error) => write!(f, "no packet: {error}"),
        }
    }
}

impl<L: Link> Link for Trace<L> {
    fn address(&self) -> IpAddr {
        self.inner.address()
    }

    fn limits(&self) -> LinkLimits {
        self.inner.limits()
    }

    fn source_port(&self, wanted: u16) -> u16 {
        self.inner.source_port(wanted)
    }

    fn send(&self, now: Instant, train: &Train<'_>) -> io::Result<()> {
        self.inner.send(now, train)?;
        if enabled!(Level::TRACE) {
            for segment in train.segments() {
                trace!(to = %train.destination, "{}", Line(segment));
            }
        }
        Ok(())
    }

    fn receive(&self, now: Instant, buffer: &mut ReceiveBuffer) -> io::Result<Option<Arrival>> {
        let arrival = self.inner.receive(now, buffer)?;
        if let Some(arrival) = &arrival
            && enabled!(Level::TRACE)
        {
            for segment in buffer.segments(arrival) {
                trace!(from = %arrival.source, "{}", Line(segment));
            }
        }
        Ok(arrival)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.inner.readiness()
    }

    fn arm(&self, now: Instant) -> bool {
        self.inner.arm(now)
    }

    fn disown(&self) -> io::Result<()> {
        self.inner.disown()
    }

    fn join(&self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)
    }

    fn leave(&self, group: IpAddr) -> io::Result<()> {
        self.inner.leave(group)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn handle_timeout(&self, now: Instant) {
        self.inner.handle_timeout(now);
    }
}
