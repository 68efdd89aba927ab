//! A link that writes down every packet, in a file that Wireshark opens.
//!
//! [`Capture`] wraps any link and records what leaves and what arrives in pcapng: raw IP packets with their
//! direction, trains taken apart, each with the IP and UDP headers that it has on the wire. What a UDP socket does
//! not show of a received packet is made up for: its IPv4 Identification is solved from the ICRC (a packet that is
//! damaged in any other way is written with the number it should have had, and so keeps its wrong ICRC), and its UDP
//! checksum is given as computed, where the sender may have sent 0. A time to live that is unknown is given as 64.
//!
//! # Where in the stack
//!
//! `Capture<Fault<UdpLink>>` shows what the program meant to send and what it got to see;
//! `Fault<Capture<UdpLink>>` shows what was on the wire. Both may write to one [`CaptureFile`], as may the links of
//! several devices: each is an interface of its own, told apart by name.
//!
//! # Time
//!
//! Records bear the time of day in nanoseconds. On a link in virtual time they bear that, counted from 1970: the
//! same simulation gives the same file.

use super::{Arrival, DEFAULT_HOP_LIMIT, Link, LinkLimits, ReceiveBuffer, Train};
use parking_lot::ReentrantMutex;
use pcap_file::{
    DataLink, PcapError,
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            section_header::{SectionHeaderBlock, SectionHeaderOption},
        },
    },
};
use std::{
    borrow::Cow,
    cell::RefCell,
    fmt,
    fs::File,
    io::{self, BufWriter, Write},
    net::IpAddr,
    os::fd::BorrowedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};
use uroce_protocol::{
    Instant,
    wire::{
        DatagramHeader, Packet,
        icrc::{Flow, IpIdPolicy},
    },
};

/// The longest that a record stays in memory while its device is alive.
const FLUSH_AFTER: Duration = Duration::from_millis(200);

/// No record waits, in [`Capture::flush_at`].
const NEVER: u64 = u64::MAX;

/// A pcapng file that links write to. It is complete when it is dropped or [flushed](Self::flush).
pub struct CaptureFile {
    /// Held while a packet is handed to the wrapped link, so that its record precedes that of its answer.
    /// Reentrant, for a capture may wrap a link that wraps a capture.
    recorder: ReentrantMutex<RefCell<Recorder>>,
}

struct Recorder {
    pcap: PcapNgWriter<BufWriter<Box<dyn Write + Send>>>,
    interfaces: u32,
    /// The packet being written.
    scratch: Vec<u8>,
    /// Why nothing is written any more.
    failure: Option<io::Error>,
}

/// A link that records: see the [module's documentation](self).
#[derive(Debug)]
pub struct Capture<L> {
    inner: L,
    file: Arc<CaptureFile>,
    interface: u32,
    is_virtual: bool,
    /// When records have to be flushed, in the device's time.
    flush_at: AtomicU64,
}

/// The two low bits of a record's flags.
#[derive(Clone, Copy, Debug)]
enum Direction {
    Inbound = 1,
    Outbound = 2,
}

impl CaptureFile {
    /// Creates the file at `path`, replacing one that is there.
    ///
    /// # Errors
    /// Whatever the system says when the file cannot be made; the message names it.
    pub fn create(path: &Path) -> io::Result<Arc<Self>> {
        let file = File::create(path).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot create the capture file {}: {error}", path.display()))
        })?;
        Self::new(Box::new(file))
    }

    /// A capture that goes to `sink`, which needs no buffer of its own.
    ///
    /// # Errors
    /// Whatever `sink` says when the file's header cannot be written.
    pub fn new(sink: Box<dyn Write + Send>) -> io::Result<Arc<Self>> {
        let program = Cow::Borrowed(concat!("uroce ", env!("CARGO_PKG_VERSION")));
        let section = SectionHeaderBlock {
            options: vec![SectionHeaderOption::UserApplication(program)],
            ..SectionHeaderBlock::default()
        };
        let writer = BufWriter::with_capacity(1 << 20, sink);
        let mut pcap = PcapNgWriter::with_section_header(writer, section).map_err(as_io)?;
        // A program that is killed leaves a file that opens.
        pcap.get_mut().flush()?;
        let recorder = Recorder { pcap, interfaces: 0, scratch: Vec::new(), failure: None };
        Ok(Arc::new(Self { recorder: ReentrantMutex::new(RefCell::new(recorder)) }))
    }

    /// Writes out what is in memory.
    ///
    /// # Errors
    /// What has stopped the recording, once; links go on without it.
    pub fn flush(&self) -> io::Result<()> {
        let guard = self.recorder.lock();
        // Only a handler that runs in the midst of this thread's own recording finds it borrowed.
        let mut recorder = guard.try_borrow_mut().map_err(|_| io::ErrorKind::WouldBlock)?;
        match recorder.failure.take() {
            Some(failure) => {
                recorder.failure = Some(failure.kind().into());
                Err(failure)
            }
            None => recorder.pcap.get_mut().flush(),
        }
    }
}

impl Recorder {
    fn add_interface(&mut self, name: String) -> io::Result<u32> {
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::RAW,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(name.into()),
                // Timestamps in units of 10^-9 s.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        self.pcap.write_pcapng_block(interface).map_err(as_io)?;
        self.pcap.get_mut().flush()?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Writes one packet. After a failure, which is logged, nothing more is written.
    fn record(&mut self, interface: u32, at: Duration, direction: Direction, header: &DatagramHeader, packet: &[u8]) {
        if self.failure.is_some() {
            return;
        }
        self.scratch.clear();
        header.emit(packet, &mut self.scratch);
        let block = EnhancedPacketBlock {
            interface_id: interface,
            timestamp: at,
            original_len: self.scratch.len() as u32,
            data: Cow::Borrowed(&self.scratch),
            options: vec![EnhancedPacketOption::Flags(direction as u32)],
        };
        if let Err(error) = self.pcap.write_pcapng_block(block) {
            let error = as_io(error);
            tracing::error!(%error, "the capture ends here");
            self.failure = Some(error);
        }
    }
}

impl<L: Link> Capture<L> {
    /// Wraps `inner` and writes what passes to `file`, as an interface called `name`.
    ///
    /// # Errors
    /// Whatever the system says when the interface cannot be written down.
    pub fn new(inner: L, file: Arc<CaptureFile>, name: &str) -> io::Result<Self> {
        let interface =
            file.recorder.lock().borrow_mut().add_interface(format!("{name} {}", inner.address().to_canonical()))?;
        let is_virtual = inner.readiness().is_none();
        Ok(Self { inner, file, interface, is_virtual, flush_at: AtomicU64::new(NEVER) })
    }

    /// The wrapped link.
    pub const fn inner(&self) -> &L {
        &self.inner
    }

    fn record<'a>(
        &self,
        recorder: &RefCell<Recorder>,
        now: Instant,
        direction: Direction,
        packets: impl Iterator<Item = (DatagramHeader, &'a [u8])>,
    ) {
        let mut recorder = recorder.borrow_mut();
        let at = if self.is_virtual {
            Duration::from_nanos(now.as_nanos())
        } else {
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
        };
        for (header, packet) in packets {
            recorder.record(self.interface, at, direction, &header, packet);
        }
        if !self.is_virtual && self.flush_at.load(Ordering::Relaxed) == NEVER {
            self.flush_at.store((now + FLUSH_AFTER).as_nanos(), Ordering::Relaxed);
        }
    }
}

impl<L: Link> Link for Capture<L> {
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
        let recorder = self.file.recorder.lock();
        self.inner.send(now, train)?;
        let header = DatagramHeader {
            source: self.address(),
            destination: train.destination,
            source_port: train.source_port,
            traffic_class: train.traffic_class,
            hop_limit: train.hop_limit.unwrap_or(DEFAULT_HOP_LIMIT),
            ip_id: 0,
            udp_checksum: true,
        };
        let segments = train.segments().enumerate();
        let packets = segments.map(|(index, packet)| (DatagramHeader { ip_id: index as u16, ..header }, packet));
        self.record(&recorder, now, Direction::Outbound, packets);
        Ok(())
    }

    fn receive(&self, now: Instant, buffer: &mut ReceiveBuffer) -> io::Result<Option<Arrival>> {
        let Some(arrival) = self.inner.receive(now, buffer)? else { return Ok(None) };
        let flow = Flow::new(arrival.source, arrival.destination, arrival.source_port);
        let header = DatagramHeader {
            source: arrival.source,
            destination: arrival.destination,
            source_port: arrival.source_port,
            traffic_class: arrival.traffic_class,
            hop_limit: arrival.hop_limit.unwrap_or(DEFAULT_HOP_LIMIT),
            ip_id: 0,
            udp_checksum: true,
        };
        let packets = buffer.segments(&arrival).enumerate().map(|(index, packet)| {
            let ip_id = match arrival.ip_id {
                Some(first) => first.wrapping_add(index as u16),
                None => identification(&flow, packet, index as u16),
            };
            (DatagramHeader { ip_id, ..header }, packet)
        });
        self.record(&self.file.recorder.lock(), now, Direction::Inbound, packets);
        Ok(Some(arrival))
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
        let flush_at = self.flush_at.load(Ordering::Relaxed);
        let flush_at = (flush_at != NEVER).then(|| Instant::from_nanos(flush_at));
        flush_at.into_iter().chain(self.inner.poll_timeout()).min()
    }

    fn handle_timeout(&self, now: Instant) {
        if self.flush_at.load(Ordering::Relaxed) <= now.as_nanos() {
            self.flush_at.store(NEVER, Ordering::Relaxed);
            if let Err(error) = self.file.flush() {
                tracing::error!(%error, "the capture is incomplete");
            }
        }
        self.inner.handle_timeout(now);
    }
}

impl<L> Drop for Capture<L> {
    fn drop(&mut self) {
        // The file may outlive the link: a process keeps it for its next device.
        if let Err(error) = self.file.flush() {
            tracing::error!(%error, "the capture is incomplete");
        }
    }
}

impl fmt::Debug for CaptureFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureFile").finish_non_exhaustive()
    }
}

/// The IPv4 Identification that a packet was sent with, as far as its ICRC tells, else `guess`.
fn identification(flow: &Flow, packet: &[u8], guess: u16) -> u16 {
    Packet::new_checked(packet)
        .ok()
        .and_then(|packet| flow.check(&packet, guess, IpIdPolicy::Any).ok())
        .unwrap_or(guess)
}

fn as_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests;
