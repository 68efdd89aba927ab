//! What this machine can do at most: RoCE's bytes over bare UDP, without RoCE's work.
//!
//! The packets are those of a stream of WRITEs (BTH, payload, ICRC), they are staged, sent, received and checked as
//! a device does it, through the same [`UdpLink`]. What is missing is the transport: no queues, no state machines,
//! no retransmission, no placing of payload into memory. A device can come near to these numbers and never beat
//! them by much; how near it comes is what it costs.
//!
//! Each measurement has two sides, which may be threads ([`throughput`], [`latency`]) or processes ([`send`] and
//! [`absorb`], [`ping`] and [`echo`]).
//!
//! Nothing is lost in a proper run: the sender keeps what is on its way within what the receiver's socket buffer
//! surely holds, and learns from acknowledgements what has arrived.

use crate::link::{Arrival, Link, MAX_TRAIN_BYTES, ReceiveBuffer, Train, UdpLink, sys::wait_for};
use std::{
    collections::VecDeque,
    io,
    net::IpAddr,
    os::fd::AsFd,
    thread,
    time::{Duration, Instant as WallInstant},
};
use uroce_protocol::{
    Instant, Psn,
    wire::{
        Aeth, Bth, CreditCode, Extended, Msn, Mtu, Opcode, Operation, Packet, Qpn, ROCE_PORT, Repr, Syndrome,
        icrc::{Flow, IpIdPolicy},
    },
};

/// How long a sender waits for an acknowledgement before it asks for one.
const IMPATIENCE: Duration = Duration::from_millis(100);

/// A side that hears nothing for so many times [`IMPATIENCE`] gives up.
const PATIENCE: u32 = 100;

/// How often an empty socket is asked again before the thread sleeps. Sleeping and waking cost about 5 µs, an empty
/// receive a third of one.
const SPINS: u32 = 30;

/// What may be on its way at most, however large the receiver's buffer. Less costs wake-ups, more gains nothing.
const WINDOW: usize = 2 << 20;

/// What a packet holds at least of a receive buffer: see [`crate::link::LinkLimits::receive_capacity`].
const PACKET_CHARGE: usize = 512;

/// The queue pair that the packets name; no device looks at it.
const QPN: Qpn = Qpn::new(0xcafe);

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The payload of full packets.
    pub mtu: Mtu,
    /// The length of a message in bytes. A message takes whole packets, as in a WRITE.
    pub size: usize,
    /// When to stop.
    pub limit: Limit,
}

/// When a measurement ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After so long.
    Time(Duration),
    /// After so many messages, or round trips.
    Messages(u64),
}

/// What was measured by [`throughput`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throughput {
    /// Messages sent.
    pub messages: u64,
    /// Their payload in bytes, less what was lost.
    pub payload_bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Those that did not arrive. The measurement is in doubt when there are any.
    pub lost_packets: u64,
    /// Those that arrived with a wrong ICRC.
    pub wrong_packets: u64,
    /// From the first send to the last acknowledgement.
    pub elapsed: Duration,
}

impl Throughput {
    /// Payload in units of 10⁹ bits per second.
    pub fn gbit_per_s(&self) -> f64 {
        self.payload_bytes as f64 * 8e-9 / self.elapsed.as_secs_f64()
    }
}

/// Sends from `near` to `far`, each on a thread of its own.
///
/// # Errors
/// As [`send`] and [`absorb`].
pub fn throughput(near: &UdpLink, far: &UdpLink, workload: &Workload) -> io::Result<Throughput> {
    both(|| send(near, far.address(), workload), || absorb(far))
}

/// Bounces messages of `size` bytes between `near` and `far`, both spinning, each on a thread of its own. Each half
/// round trip is given to `record`. Returns how many there were.
///
/// # Errors
/// As [`ping`] and [`echo`].
pub fn latency(
    near: &UdpLink,
    far: &UdpLink,
    workload: &Workload,
    record: impl FnMut(Duration) + Send,
) -> io::Result<u64> {
    both(|| ping(near, far.address(), workload, record), || echo(far))
}

/// Runs the serving side on a thread of its own. A failure of the driving side ends both.
fn both<T: Send>(
    drive: impl FnOnce() -> io::Result<T> + Send,
    serve: impl FnOnce() -> io::Result<()> + Send,
) -> io::Result<T> {
    thread::scope(|scope| {
        let server = scope.spawn(serve);
        let result = drive();
        match server.join() {
            Ok(served) => result.and_then(|result| served.map(|()| result)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Sends to `peer`, where [`absorb`] must be running, as fast as it goes.
///
/// # Errors
/// `TimedOut` when the peer is silent for 10 s; whatever the socket says.
pub fn send(link: &UdpLink, peer: IpAddr, workload: &Workload) -> io::Result<Throughput> {
    let mut sender = Sender::new(Side::towards(link, peer, ROCE_PORT));
    // Real memory, so that reading it costs what it costs.
    let message: Vec<u8> = (0..workload.size).map(|at| (at % 251) as u8).collect();
    let started = WallInstant::now();
    let mut messages = 0;
    while workload.limit.goes_on(messages, started) {
        for payload in payloads(&message, workload.mtu) {
            sender.packet(payload)?;
        }
        messages += 1;
    }
    let report = sender.finish()?;
    Ok(Throughput {
        messages,
        payload_bytes: report.payload_bytes,
        packets: sender.packets,
        lost_packets: sender.packets.saturating_sub(report.packets + report.wrong_packets),
        wrong_packets: report.wrong_packets,
        elapsed: started.elapsed(),
    })
}

/// Receives and checks what one run of [`send`] sends.
///
/// # Errors
/// `TimedOut` when nothing comes for 10 s; whatever the socket says.
pub fn absorb(link: &UdpLink) -> io::Result<()> {
    let (mut side, mut arrival) = Side::accept(link, SPINS)?;
    let mut report = Report::default();
    loop {
        let (mut last, mut asked, mut finished) = (None, false, false);
        for (packet, right) in side.packets(&arrival) {
            match packet.opcode().operation() {
                Operation::SendOnly if right => finished = true,
                Operation::WriteMiddle if right => {
                    report.packets += 1;
                    report.payload_bytes += packet.payload().len() as u64;
                }
                // The sender wonders what has arrived.
                Operation::Acknowledge if right => {}
                _ => report.wrong_packets += 1,
            }
            asked |= right && packet.bth().ack_request;
            last = Some(packet.psn());
        }
        if finished {
            side.stage(Operation::SendOnly, Psn::new(0), false, &report.to_bytes());
            return side.transmit();
        }
        if let Some(psn) = last.filter(|_| asked) {
            side.stage(Operation::Acknowledge, psn, false, &[]);
            side.transmit()?;
        }
        arrival = side.receive(SPINS)?;
    }
}

/// Bounces messages off `peer`, where [`echo`] must be running, one at a time, and spins for the answer. Each half
/// round trip is given to `record`. Returns how many there were.
///
/// # Errors
/// `InvalidInput` when a message is empty or does not fit one train; `TimedOut` when the peer is silent for 10 s;
/// whatever the socket says.
pub fn ping(link: &UdpLink, peer: IpAddr, workload: &Workload, mut record: impl FnMut(Duration)) -> io::Result<u64> {
    let mut side = Side::towards(link, peer, ROCE_PORT);
    let message = vec![0x5a; workload.size];
    let longest = side.full_train(workload.mtu) * workload.mtu.bytes();
    if !(1..=longest).contains(&message.len()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a message that bounces has 1 to {longest} bytes at this MTU, not {}", message.len()),
        ));
    }
    let started = WallInstant::now();
    let mut round_trips = 0;
    while workload.limit.goes_on(round_trips, started) {
        let sent = WallInstant::now();
        for payload in payloads(&message, workload.mtu) {
            side.stage(Operation::WriteMiddle, Psn::new(0), false, payload);
        }
        side.transmit()?;
        let mut arrived = 0;
        while arrived < message.len() {
            let arrival = side.receive(u32::MAX)?;
            let right = side.packets(&arrival).filter(|(_, right)| *right);
            arrived += right.map(|(packet, _)| packet.payload().len()).sum::<usize>();
        }
        record(sent.elapsed() / 2);
        round_trips += 1;
    }
    side.stage(Operation::SendOnly, Psn::new(0), false, &[]);
    side.transmit()?;
    Ok(round_trips)
}

/// Sends back what one run of [`ping`] sends.
///
/// # Errors
/// `TimedOut` when nothing comes for 10 s; whatever the socket says.
pub fn echo(link: &UdpLink) -> io::Result<()> {
    let (mut side, mut arrival) = Side::accept(link, u32::MAX)?;
    loop {
        // As a device would, the answer is a packet of its own rather than the received bytes turned round.
        let Side { inbound, outbound, buffer, .. } = &mut side;
        for (packet, _) in checked(buffer, &arrival, inbound).filter(|(_, right)| *right) {
            if packet.opcode().operation() == Operation::SendOnly {
                return Ok(());
            }
            outbound.stage(Operation::WriteMiddle, packet.psn(), false, packet.payload());
        }
        side.transmit()?;
        arrival = side.receive(u32::MAX)?;
    }
}

/// The payloads of a message's packets; an empty message has one, which is empty.
fn payloads(message: &[u8], mtu: Mtu) -> impl Iterator<Item = &[u8]> {
    let empty = message.is_empty().then_some(message);
    empty.into_iter().chain(message.chunks(mtu.bytes()))
}

impl Limit {
    fn goes_on(self, count: u64, started: WallInstant) -> bool {
        match self {
            Self::Messages(most) => count < most,
            Self::Time(duration) => started.elapsed() < duration,
        }
    }
}

/// A link and the peer that it talks to.
struct Side<'a> {
    link: &'a UdpLink,
    inbound: Flow,
    outbound: Outbound,
    buffer: ReceiveBuffer,
}

/// A train in the making.
struct Outbound {
    peer: IpAddr,
    flow: Flow,
    bytes: Vec<u8>,
    packets: usize,
    segment_size: usize,
}

impl<'a> Side<'a> {
    fn towards(link: &'a UdpLink, peer: IpAddr, peer_port: u16) -> Self {
        Self {
            link,
            inbound: Flow::new(peer, link.address(), peer_port),
            outbound: Outbound {
                peer,
                flow: Flow::new(link.address(), peer, ROCE_PORT),
                bytes: Vec::with_capacity(MAX_TRAIN_BYTES),
                packets: 0,
                segment_size: 0,
            },
            buffer: ReceiveBuffer::new(),
        }
    }

    /// The side that waits for a peer to begin, and what the peer has begun with.
    fn accept(link: &'a UdpLink, spins: u32) -> io::Result<(Self, Arrival)> {
        let mut side = Self::towards(link, link.address(), ROCE_PORT);
        let arrival = side.receive(spins)?;
        let buffer = side.buffer;
        Ok((Self { buffer, ..Self::towards(link, arrival.source, arrival.source_port) }, arrival))
    }

    /// How many full packets a train holds.
    fn full_train(&self, mtu: Mtu) -> usize {
        let room = MAX_TRAIN_BYTES / (mtu.bytes() + Bth::LEN + Packet::ICRC_LEN);
        room.min(self.link.limits().train_segments.max(1))
    }

    fn stage(&mut self, operation: Operation, psn: Psn, ack_request: bool, payload: &[u8]) {
        self.outbound.stage(operation, psn, ack_request, payload);
    }

    /// Sends what has been staged.
    fn transmit(&mut self) -> io::Result<()> {
        let Outbound { peer, ref bytes, segment_size, .. } = self.outbound;
        if bytes.is_empty() {
            return Ok(());
        }
        let train =
            Train { destination: peer, source_port: ROCE_PORT, traffic_class: 0, hop_limit: None, segment_size, bytes };
        while let Err(error) = self.link.send(Instant::ZERO, &train) {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
            wait_for(self.link.as_fd(), libc::POLLOUT, IMPATIENCE)?;
        }
        self.outbound.bytes.clear();
        self.outbound.packets = 0;
        Ok(())
    }

    /// The next train: asks `spins` times, then sleeps; `None` when nothing comes for [`IMPATIENCE`].
    fn receive_soon(&mut self, spins: u32) -> io::Result<Option<Arrival>> {
        let started = WallInstant::now();
        for spin in 0..spins {
            if let Some(arrival) = self.link.receive(Instant::ZERO, &mut self.buffer)? {
                return Ok(Some(arrival));
            }
            // Where the other side waits for this processor, spinning on would be for nothing.
            if spin >= SPINS {
                thread::yield_now();
            }
            if spin % 1024 == 1023 && started.elapsed() > IMPATIENCE {
                return Ok(None);
            }
        }
        wait_for(self.link.as_fd(), libc::POLLIN, IMPATIENCE)?;
        self.link.receive(Instant::ZERO, &mut self.buffer)
    }

    fn receive(&mut self, spins: u32) -> io::Result<Arrival> {
        for _ in 0..PATIENCE {
            if let Some(arrival) = self.receive_soon(spins)? {
                return Ok(arrival);
            }
        }
        Err(silence())
    }

    /// The packets of what has just arrived, and whether their ICRCs are right.
    fn packets(&self, arrival: &Arrival) -> impl Iterator<Item = (Packet<'_>, bool)> {
        checked(&self.buffer, arrival, &self.inbound)
    }
}

fn checked<'a>(buffer: &'a ReceiveBuffer, arrival: &Arrival, flow: &Flow) -> impl Iterator<Item = (Packet<'a>, bool)> {
    buffer.segments(arrival).enumerate().filter_map(move |(index, bytes)| {
        let packet = Packet::new_checked(bytes).ok()?;
        let right = flow.check(&packet, index as u16, IpIdPolicy::Small).is_ok();
        Some((packet, right))
    })
}

impl Outbound {
    /// Adds a packet, which must fit. Copying the payload and computing the CRC follow each other packet by packet,
    /// so that the second finds the bytes in the first-level cache.
    fn stage(&mut self, operation: Operation, psn: Psn, ack_request: bool, payload: &[u8]) {
        let pad = payload.len().next_multiple_of(4) - payload.len();
        let bth = Bth { ack_request, pad: pad as u8, ..Bth::new(Opcode::rc(operation), QPN, psn) };
        let extended = match operation {
            Operation::Acknowledge => {
                Extended::Aeth(Aeth { syndrome: Syndrome::Ack(CreditCode::UNLIMITED), msn: Msn::new(0) })
            }
            _ => Extended::None,
        };
        let repr = Repr { bth, xrceth: None, extended };
        let mut header = [0; Repr::MAX_LEN];
        let header_len = repr.emit(&mut header);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&header[..header_len]);
        self.bytes.extend_from_slice(payload);
        self.bytes.extend_from_slice(&[0; 3 + Packet::ICRC_LEN][..pad + Packet::ICRC_LEN]);
        self.flow.stamp(self.packets as u16, &mut self.bytes[start..]);
        if self.packets == 0 {
            self.segment_size = self.bytes.len();
        }
        self.packets += 1;
    }

    /// Whether a packet of `length` bytes may follow what has been staged.
    fn has_room(&self, length: usize, segments: usize) -> bool {
        let ends_short = self.bytes.len() < self.packets * self.segment_size;
        self.packets == 0
            || (!ends_short
                && length <= self.segment_size
                && self.packets < segments
                && self.bytes.len() + length <= MAX_TRAIN_BYTES)
    }
}

/// The sending side of a stream.
struct Sender<'a> {
    side: Side<'a>,
    segments: usize,
    psn: Psn,
    packets: u64,
    window: usize,
    /// The last packet of each train that has not been acknowledged, and what the train holds of the window.
    in_flight: VecDeque<(Psn, usize)>,
    charged: usize,
    since_ack_request: usize,
}

impl<'a> Sender<'a> {
    fn new(side: Side<'a>) -> Self {
        let limits = side.link.limits();
        // The receiver is taken to be a link like ours.
        let window = limits.receive_capacity.min(WINDOW);
        Self {
            side,
            segments: limits.train_segments.max(1),
            psn: Psn::new(0),
            packets: 0,
            window,
            in_flight: VecDeque::new(),
            charged: 0,
            since_ack_request: 0,
        }
    }

    /// Adds a packet to the train, sending the train first when it is full.
    fn packet(&mut self, payload: &[u8]) -> io::Result<()> {
        let length = Bth::LEN + payload.len().next_multiple_of(4) + Packet::ICRC_LEN;
        if !self.side.outbound.has_room(length, self.segments) {
            self.flush()?;
        }
        let ack_request = self.side.outbound.packets == 0 && self.since_ack_request >= self.window / 4;
        if ack_request {
            self.since_ack_request = 0;
        }
        self.side.stage(Operation::WriteMiddle, self.psn, ack_request, payload);
        self.psn = self.psn.next();
        self.packets += 1;
        Ok(())
    }

    /// Sends the train as soon as the window allows it.
    fn flush(&mut self) -> io::Result<()> {
        let Outbound { packets, segment_size, .. } = self.side.outbound;
        if packets == 0 {
            return Ok(());
        }
        let charge = packets * segment_size.max(PACKET_CHARGE);
        let mut silent = 0;
        while self.charged > 0 && self.charged + charge > self.window {
            silent += 1;
            match self.side.receive_soon(SPINS)? {
                Some(arrival) => {
                    silent = 0;
                    self.acknowledged(&arrival);
                }
                None if silent > PATIENCE => return Err(silence()),
                None => self.ask()?,
            }
        }
        self.side.transmit()?;
        self.in_flight.push_back((self.psn.previous(), charge));
        self.charged += charge;
        self.since_ack_request += charge;
        Ok(())
    }

    fn acknowledged(&mut self, arrival: &Arrival) {
        let acknowledged = self
            .side
            .packets(arrival)
            .filter(|(packet, right)| *right && packet.opcode().operation() == Operation::Acknowledge);
        let Some(psn) = acknowledged.map(|(packet, _)| packet.psn()).last() else { return };
        while self.in_flight.front().is_some_and(|(last, _)| !last.is_after(psn)) {
            self.charged -= self.in_flight.pop_front().map_or(0, |(_, charge)| charge);
        }
    }

    /// Asks for an acknowledgement, in case the one that was due is lost.
    fn ask(&self) -> io::Result<()> {
        let mut question = Side::towards(self.side.link, self.side.outbound.peer, ROCE_PORT);
        let last = self.in_flight.back().map_or(self.psn.previous(), |(last, _)| *last);
        question.stage(Operation::Acknowledge, last, true, &[]);
        question.transmit()
    }

    /// Sends what is left, and learns what has arrived.
    fn finish(&mut self) -> io::Result<Report> {
        self.flush()?;
        for _ in 0..PATIENCE {
            self.side.stage(Operation::SendOnly, self.psn, false, &[]);
            self.side.transmit()?;
            while let Some(arrival) = self.side.receive_soon(SPINS)? {
                let right = self.side.packets(&arrival).filter(|(_, right)| *right);
                let mut reports = right.filter_map(|(packet, _)| Report::from_bytes(packet.payload()));
                if let Some(report) = reports.next() {
                    return Ok(report);
                }
            }
        }
        Err(silence())
    }
}

/// What the receiving side has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Report {
    packets: u64,
    payload_bytes: u64,
    wrong_packets: u64,
}

impl Report {
    fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        for (to, value) in bytes.chunks_exact_mut(8).zip([self.packets, self.payload_bytes, self.wrong_packets]) {
            to.copy_from_slice(&value.to_be_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (values, []) = <&[u8; 24]>::try_from(bytes).ok()?.as_chunks::<8>() else { return None };
        let [packets, payload_bytes, wrong_packets] = <[[u8; 8]; 3]>::try_from(values).ok()?.map(u64::from_be_bytes);
        Some(Self { packets, payload_bytes, wrong_packets })
    }
}

fn silence() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the other side of the measurement has been silent for 10 seconds")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::UdpConfig;

    fn pair(config: &UdpConfig) -> (UdpLink, UdpLink) {
        (UdpLink::open_loopback(config).unwrap(), UdpLink::open_loopback(config).unwrap())
    }

    fn assert_complete(config: &UdpConfig, workload: Workload, packets_per_message: u64) {
        let (near, far) = pair(config);
        let result = throughput(&near, &far, &workload).unwrap();
        assert!(result.messages > 0);
        assert_eq!(result.packets, result.messages * packets_per_message, "{workload:?}");
        assert_eq!(result.payload_bytes, result.messages * workload.size as u64, "{workload:?}");
        assert_eq!((result.lost_packets, result.wrong_packets), (0, 0), "{workload:?}");
        if let Limit::Messages(count) = workload.limit {
            assert_eq!(result.messages, count);
        }
    }

    #[test]
    fn everything_sent_arrives_right() {
        let config = UdpConfig::default();
        for (mtu, size, messages, packets) in [
            (Mtu::Mtu1024, 1 << 20, 50, 1024),
            (Mtu::Mtu4096, 1 << 20, 50, 256),
            (Mtu::Mtu4096, 100_001, 50, 25),
            (Mtu::Mtu1024, 64, 5000, 1),
            (Mtu::Mtu1024, 3, 1000, 1),
            (Mtu::Mtu256, 0, 1000, 1),
        ] {
            assert_complete(&config, Workload { mtu, size, limit: Limit::Messages(messages) }, packets);
        }
    }

    #[test]
    fn a_small_receive_buffer_does_not_overflow() {
        let config = UdpConfig { receive_buffer: 106_496, ..UdpConfig::default() };
        let limit = Limit::Messages(100);
        assert_complete(&config, Workload { mtu: Mtu::Mtu1024, size: 1 << 20, limit }, 1024);
        assert_complete(&config, Workload { mtu: Mtu::Mtu1024, size: 64, limit: Limit::Messages(20_000) }, 1);
    }

    #[test]
    fn without_offloads_everything_arrives_too() {
        let config = UdpConfig { segmentation_offload: false, receive_offload: false, ..UdpConfig::default() };
        assert_complete(
            &config,
            Workload { mtu: Mtu::Mtu4096, size: 1 << 20, limit: Limit::Time(Duration::from_millis(50)) },
            256,
        );
    }

    #[test]
    fn messages_bounce() {
        for size in [1, 64, 4096, 20_000] {
            let (near, far) = pair(&UdpConfig::default());
            let workload = Workload { mtu: Mtu::Mtu1024, size, limit: Limit::Messages(100) };
            let mut times = Vec::new();
            assert_eq!(latency(&near, &far, &workload, |time| times.push(time)).unwrap(), 100);
            assert_eq!(times.len(), 100);
        }
    }

    #[test]
    fn what_cannot_bounce_is_refused() {
        let (near, far) = pair(&UdpConfig::default());
        for size in [0, 1 << 20] {
            let workload = Workload { mtu: Mtu::Mtu1024, size, limit: Limit::Messages(1) };
            let error = ping(&near, far.address(), &workload, |_| {}).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn reports_cross_the_wire() {
        let report = Report { packets: 1, payload_bytes: u64::MAX, wrong_packets: 3 };
        assert_eq!(Report::from_bytes(&report.to_bytes()), Some(report));
        assert_eq!(Report::from_bytes(&[0; 25]), None);
    }
}
