//! From descriptors to trains: building packets in a staging buffer, and sending them.
//!
//! Payload is copied once, from application memory into the staging buffer behind its header, and goes through the
//! CRC while it is in the cache. That beats handing the kernel I/O vectors: the CRC has to read every byte anyway.

use super::{
    Nic, Qp,
    counters::add,
    qp::{Connection, Route},
    regions::MemoryView,
};
use crate::link::{MAX_TRAIN_BYTES, Train};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use uroce_protocol::{
    Instant, LocalFault, RemoteFault,
    congestion::congestion_notification,
    wire::{Mtu, PKey, Packet, Repr},
    work::{AddressVector, Source, Transmit, WcStatus},
};

/// The longest packet: headers, the largest path MTU, pad and ICRC. A packet is only asked for when the buffer has
/// room for this, because once it is asked for it must go.
const MAX_PACKET: usize = Repr::MAX_LEN + Mtu::Mtu4096.bytes() + 3 + Packet::ICRC_LEN;

/// The length of a plain acknowledgement: BTH, AETH, ICRC.
const ACK_LEN: usize = 12 + 4 + Packet::ICRC_LEN;

/// How many idle staging buffers are kept: as many as threads are likely to transmit at once.
const POOLED: usize = 8;

/// Packets of one queue pair on their way out: one turn's worth, at most one full train.
#[derive(Debug)]
pub(crate) struct Staging {
    bytes: Box<[u8]>,
    used: usize,
    trains: Vec<StagedTrain>,
    /// The first train that has not been sent.
    unsent: usize,
}

/// Equal packets, but for a shorter last one, that go the same way.
#[derive(Clone, Copy, Debug)]
struct StagedTrain {
    route: Route,
    start: usize,
    length: usize,
    segment_size: usize,
    packets: usize,
    /// Nothing may follow a shorter packet.
    is_closed: bool,
}

/// Why a packet could not be built: its payload is out of reach.
struct Unreadable;

impl From<LocalFault> for Unreadable {
    fn from(_: LocalFault) -> Self {
        Self
    }
}

impl From<RemoteFault> for Unreadable {
    fn from(_: RemoteFault) -> Self {
        Self
    }
}

impl Staging {
    fn new() -> Self {
        Self { bytes: vec![0; MAX_TRAIN_BYTES].into_boxed_slice(), used: 0, trains: Vec::new(), unsent: 0 }
    }

    fn clear(&mut self) {
        self.used = 0;
        self.trains.clear();
        self.unsent = 0;
    }

    const fn has_room(&self) -> bool {
        self.bytes.len() - self.used >= MAX_PACKET
    }

    /// Whether a packet of that length would leave in the last train that there is.
    fn can_append(&self, length: usize) -> bool {
        self.trains.last().is_some_and(|train| !train.is_closed && length <= train.segment_size)
    }

    /// Lays a packet behind those that are there.
    fn push(
        &mut self,
        transmit: &Transmit<'_>,
        route: &Route,
        memory: &MemoryView<'_>,
        train_segments: usize,
    ) -> Result<(), Unreadable> {
        let header_len = transmit.header.header_len();
        let payload_len = transmit.source.len();
        let covered = header_len + payload_len + usize::from(transmit.header.bth.pad);
        let length = covered + Packet::ICRC_LEN;

        let continued = self.trains.last().filter(|train| {
            !train.is_closed
                && length <= train.segment_size
                && train.packets < train_segments
                && train.route.is_same_way(route)
        });
        // Segment i of a train leaves with IPv4 Identification i, which the ICRC covers.
        let index = continued.map_or(0, |train| train.packets);

        let packet = &mut self.bytes[self.used..self.used + length];
        transmit.header.emit(packet);
        let (head, rest) = packet.split_at_mut(header_len);
        let mut icrc = route.flow.start(index as u16, length, head);
        let payload = &mut rest[..payload_len];
        match transmit.source {
            Source::Empty => {}
            Source::Inline(bytes) => payload.copy_from_slice(bytes),
            Source::Local { list, offset, .. } => memory.gather(list, offset, payload)?,
            Source::Remote { rkey, address, .. } => memory.read_remote(rkey, address, payload)?,
        }
        let pad_end = covered - header_len;
        rest[payload_len..pad_end].fill(0);
        icrc.update(&rest[..pad_end]);
        rest[pad_end..].copy_from_slice(&icrc.finish().to_le_bytes());

        if index > 0
            && let Some(train) = self.trains.last_mut()
        {
            train.length += length;
            train.packets += 1;
            train.is_closed = length < train.segment_size;
        } else {
            let start = self.used;
            self.trains.push(StagedTrain {
                route: *route,
                start,
                length,
                segment_size: length,
                packets: 1,
                is_closed: false,
            });
        }
        self.used += length;
        Ok(())
    }

    /// Sends what has not been sent; `WouldBlock` when the link takes no more for now.
    fn send(&mut self, nic: &Nic, now: Instant) -> io::Result<()> {
        while let Some(staged) = self.trains.get(self.unsent) {
            let Route { peer, source_port, traffic_class, hop_limit, .. } = staged.route;
            let train = Train {
                destination: peer,
                source_port,
                traffic_class,
                hop_limit,
                segment_size: staged.segment_size,
                bytes: &self.bytes[staged.start..staged.start + staged.length],
            };
            match nic.link.send(now, &train) {
                Ok(()) => {
                    add(&nic.counters.sent_packets, staged.packets as u64);
                    add(&nic.counters.sent_bytes, staged.length as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                // Lost, as packets get lost: the transport will see to it.
                Err(error) => {
                    tracing::debug!(%error, destination = %peer, "a train was not sent");
                    add(&nic.counters.send_errors, 1);
                }
            }
            self.unsent += 1;
        }
        Ok(())
    }
}

/// Built packets that the link did not take, and the turn that they belong to.
#[derive(Debug)]
struct Parked {
    qp: Arc<Qp>,
    staging: Staging,
    more: bool,
}

/// What the device's transmit side shares.
#[derive(Debug, Default)]
pub(crate) struct Transmitter {
    pool: Mutex<Vec<Staging>>,
    /// Trains that wait until the link is writable, oldest first. While there are any, nobody else sends.
    parked: Mutex<VecDeque<Parked>>,
    is_blocked: AtomicBool,
}

impl Transmitter {
    /// Whether trains wait for the link to become writable.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::SeqCst)
    }

    fn staging(&self) -> Staging {
        self.pool.lock().pop().unwrap_or_else(Staging::new)
    }

    fn recycle(&self, mut staging: Staging) {
        staging.clear();
        let mut pool = self.pool.lock();
        if pool.len() < POOLED {
            pool.push(staging);
        }
    }

    fn park(&self, parked: Parked) {
        let mut queue = self.parked.lock();
        queue.push_back(parked);
        self.is_blocked.store(true, Ordering::SeqCst);
    }
}

impl Nic {
    /// Transmits for a queue pair whose turn the caller has: builds what may leave, at most one full train's
    /// worth, and sends it. What is left then waits in the ready queue, so that queue pairs take turns.
    pub(super) fn take_turn(&self, qp: Arc<Qp>) {
        let now = self.clock.now();
        let mut staging = self.transmitter.staging();
        let more = {
            let mut connection = qp.lock();
            let more = self.build(now, &qp, &mut connection, &mut staging);
            self.settle(&qp, &mut connection, now);
            more
        };
        if staging.send(self, now).is_err() {
            self.transmitter.park(Parked { qp, staging, more });
            self.sleeper.wake_from_watch();
            return;
        }
        self.transmitter.recycle(staging);
        self.end_turn(now, qp, more);
    }

    /// Ends a turn all of whose packets have left.
    fn end_turn(&self, now: Instant, qp: Arc<Qp>, more: bool) {
        if qp.completes_on_transmit() {
            let mut connection = qp.lock();
            connection.sender.transmitted();
            self.settle(&qp, &mut connection, now);
        }
        if qp.turn.end(more) {
            self.ready.lock().push_back(qp);
        }
    }

    /// Sends what waited for the link to become writable. Returns whether anything was sent.
    pub(super) fn unblock(&self) -> bool {
        if !self.transmitter.is_blocked() {
            return false;
        }
        let now = self.clock.now();
        // Somebody else is at it.
        let Some(mut queue) = self.transmitter.parked.try_lock() else { return false };
        let mut sent = false;
        while let Some(first) = queue.front_mut() {
            if first.staging.send(self, now).is_err() {
                return sent;
            }
            sent = true;
            if let Some(Parked { qp, staging, more }) = queue.pop_front() {
                self.transmitter.recycle(staging);
                self.end_turn(now, qp, more);
            }
        }
        self.transmitter.is_blocked.store(false, Ordering::SeqCst);
        sent
    }

    /// Builds packets until there are none, or the buffer is full; returns whether there may be more. Answers go
    /// before requests, because the peer waits for them, but for every second turn that fills the buffer. An ACK that
    /// is held back rides along behind requests, where it costs neither side a system call of its own.
    fn build(&self, now: Instant, qp: &Qp, connection: &mut Connection, staging: &mut Staging) -> bool {
        let flush_ack = qp.flush_ack.swap(false, Ordering::AcqRel);
        let regions = self.regions.read();
        let budget = match &mut connection.flow {
            Some(flow) => {
                let budget = flow.begin_turn(now);
                connection.sender.set_ack_interval(flow.ack_interval());
                budget
            }
            None => u64::MAX,
        };
        let mut builder = Builder {
            nic: self,
            now,
            qp,
            staging,
            memory: regions.view(qp.pd(), qp.number()),
            train_segments: self.link.limits().train_segments,
            datagram: None,
            data: 0,
            budget,
        };
        builder.notify(connection);
        let more = builder.fill(connection, flush_ack);
        let data = builder.data;
        let again = connection.flow.as_mut().is_some_and(|flow| flow.end_turn(now, data, budget));
        more || again
    }
}

/// What it takes to build the packets of one turn.
struct Builder<'a> {
    nic: &'a Nic,
    now: Instant,
    qp: &'a Qp,
    staging: &'a mut Staging,
    memory: MemoryView<'a>,
    train_segments: usize,
    /// The way of the last datagram: the next one often takes it too.
    datagram: Option<(AddressVector, Route)>,
    /// Bytes of requests and of answers to READs in this turn, IP header to ICRC; counted where there is a flow.
    data: u64,
    /// How many of them the queue pair's rate allows before the last packet.
    budget: u64,
}

impl Builder<'_> {
    /// Tells the peer to slow down, if it is time to.
    fn notify(&mut self, connection: &mut Connection) {
        let Some(how) = connection.flow.as_mut().and_then(|flow| flow.poll_notification()) else { return };
        let traffic_class = how.notification.traffic_class();
        let Some((destination, route)) = connection.peer() else { return };
        let route = Route { traffic_class, ..*route };
        let to = AddressVector { peer: route.peer, traffic_class, flow_label: 0, hop_limit: 0 };
        let notification = congestion_notification(destination, PKey::DEFAULT, to);
        if self.staging.push(&notification, &route, &self.memory, self.train_segments).is_ok() {
            add(&self.nic.counters.notifications_sent, 1);
        }
    }

    /// Stages packets until there are none (or none that may leave now), or the buffer is full; returns whether there
    /// may be more.
    fn fill(&mut self, connection: &mut Connection, flush_ack: bool) -> bool {
        while self.staging.has_room() {
            let staged = (connection.requests_first && self.request(connection))
                || self.answer(connection, flush_ack)
                || self.request(connection);
            if !staged {
                // An ACK that is held back but on nobody's list (its READ response was still to be sent when its
                // request came in) has no later chance.
                let has_later_chance =
                    self.qp.ack_is_deferred.load(Ordering::Acquire) || connection.delayed_ack.is_armed();
                if connection.receiver.has_deferred_ack() && (self.staging.can_append(ACK_LEN) || !has_later_chance) {
                    self.answer(connection, true);
                }
                connection.requests_first = false;
                return false;
            }
        }
        // Neither a stream of READ responses nor one of requests keeps the other from leaving.
        connection.requests_first = !connection.requests_first;
        true
    }

    /// Stages the next answer, if there is one.
    fn answer(&mut self, connection: &mut Connection, flush_ack: bool) -> bool {
        if self.data >= self.budget && connection.receiver.has_data_next() {
            return false;
        }
        let Some(transmit) = connection.receiver.poll_transmit(self.now, flush_ack) else { return false };
        if connection.flow.is_some() && matches!(transmit.source, Source::Remote { .. }) {
            self.data += self.length_on_wire(&transmit);
        }
        let memory = match transmit.source {
            Source::Remote { srq, .. } => self.memory.of(self.nic.pd_of_answer(self.qp, srq)),
            _ => self.memory,
        };
        if self.push(&transmit, connection.route.as_ref(), &memory).is_err() {
            connection.receiver.transmit_failed();
        }
        true
    }

    /// Stages the next request, if there is one.
    fn request(&mut self, connection: &mut Connection) -> bool {
        if self.data >= self.budget {
            return false;
        }
        let Some(transmit) = connection.sender.poll_transmit(self.now, &self.memory) else { return false };
        if let Some(flow) = &mut connection.flow {
            self.data += self.length_on_wire(&transmit);
            let bth = &transmit.header.bth;
            flow.on_request(self.now, bth.psn, bth.ack_request, transmit.retransmission);
        }
        let memory = self.memory;
        if self.push(&transmit, connection.route.as_ref(), &memory).is_err() {
            connection.sender.transmit_failed(WcStatus::LocalProtection);
        }
        true
    }

    /// What rates count: from the IP header to the ICRC.
    fn length_on_wire(&self, transmit: &Transmit<'_>) -> u64 {
        let headers = self.nic.ip_udp_headers + transmit.header.header_len();
        (headers + transmit.source.len() + usize::from(transmit.header.bth.pad) + Packet::ICRC_LEN) as u64
    }

    fn push(
        &mut self,
        transmit: &Transmit<'_>,
        peer: Option<&Route>,
        memory: &MemoryView<'_>,
    ) -> Result<(), Unreadable> {
        let route = match (transmit.to, &mut self.datagram) {
            (None, _) => peer.ok_or(Unreadable)?,
            (Some(to), Some((last, route))) if *last == to => route,
            (Some(to), datagram) => &datagram.insert((to, self.nic.datagram_route(self.qp.number(), &to))).1,
        };
        self.staging.push(transmit, route, memory, self.train_segments)
    }
}
