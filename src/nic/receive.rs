//! From trains to state machines: what arrives, whether it is a packet, whose it is, and whether it may be.

use super::{Nic, Qp, QpState, QpType, counters::add, qp::Connection};
use crate::link::{Arrival, DEFAULT_HOP_LIMIT, ReceiveBuffer};
use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
};
use uroce_protocol::{
    Instant,
    time::Duration,
    ud::MULTICAST,
    wire::{
        DatagramHeader, GRH_LEN, PKey, Packet, Qpn, Service,
        icrc::{Flow, IpIdPolicy},
    },
};

/// How long an ACK is held back while packets keep coming.
const LONGEST_WAIT: Duration = Duration::from_micros(100);

/// What one thread at a time works with to take packets in.
#[derive(Debug, Default)]
pub(crate) struct ReceiveSide {
    buffer: ReceiveBuffer,
    /// Queue pairs that hold an ACK back in the hope of covering more requests with it.
    deferred: Vec<Deferred>,
}

/// A queue pair that holds an ACK back.
#[derive(Debug)]
struct Deferred {
    qp: Arc<Qp>,
    since: Instant,
}

/// A packet that arrived as it was sent.
#[derive(Clone, Copy, Debug)]
struct Verified<'a> {
    packet: Packet<'a>,
    /// The IPv4 Identification that it was sent with.
    ip_id: u16,
}

/// What came of an attempt to receive, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Received {
    /// Another thread is at it.
    Busy,
    /// Nothing had arrived.
    Nothing(Instant),
    /// Trains have been taken in; there may be more.
    Trains(Instant),
}

impl Nic {
    /// Takes in what has arrived, `trains` at most.
    ///
    /// ACKs are held back until a call finds that nothing more has arrived, so that one covers a whole burst, and
    /// what has just been taken in gets to the program before its ACK gets to the peer. Those that wait for the
    /// program's answer ([`super::qp`]: delayed ACKs) are held back longer.
    pub(super) fn receive(&self, trains: usize) -> Received {
        let Some(mut side) = self.receive.try_lock() else { return Received::Busy };
        // Read under the lock, so that what arrives later is stamped later.
        let now = self.clock.now();
        let ReceiveSide { buffer, deferred } = &mut *side;
        let mut received = Received::Nothing(now);
        for _ in 0..trains {
            match self.link.receive(now, buffer) {
                Ok(Some(arrival)) => {
                    received = Received::Trains(now);
                    self.take_in(now, buffer, &arrival, deferred);
                }
                result => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "receiving failed");
                    }
                    self.flush_acks(deferred, deferred.len());
                    break;
                }
            }
        }
        // A socket that never runs dry must not keep an ACK for ever. They stand in the order of their age.
        let overdue = deferred.iter().take_while(|deferred| now - deferred.since >= LONGEST_WAIT).count();
        self.flush_acks(deferred, overdue);
        self.deferred.store(deferred.len(), Ordering::SeqCst);
        received
    }

    /// Has the first `count` of the ACKs sent that are held back.
    fn flush_acks(&self, deferred: &mut Vec<Deferred>, count: usize) {
        if count == 0 {
            return;
        }
        for Deferred { qp, .. } in deferred.drain(..count) {
            qp.ack_is_deferred.store(false, Ordering::Release);
            self.flush_ack(qp);
        }
    }

    fn take_in(&self, now: Instant, buffer: &ReceiveBuffer, arrival: &Arrival, deferred: &mut Vec<Deferred>) {
        let flow = Flow::new(arrival.source, arrival.destination, arrival.source_port);
        let segments = buffer.segments(arrival);
        if arrival.is_marked() {
            add(&self.counters.congestion_marks, segments.len() as u64);
        }
        // A run of packets of one queue pair, usually the whole train, is handled under one lock.
        let mut segments = segments.enumerate().peekable();
        while let Some(&(_, first)) = segments.peek() {
            let number = destination(first);
            let qp = number.and_then(|number| self.qp(number));
            let mut run = std::iter::from_fn(|| segments.next_if(|(_, segment)| destination(segment) == number))
                .filter_map(|(index, segment)| self.verify(&flow, arrival, index, segment));
            match qp {
                _ if arrival.destination.is_multicast() => {
                    let is_multicast = number == Some(MULTICAST);
                    run.for_each(|packet| self.deliver_to_group(now, packet, is_multicast, arrival, deferred));
                }
                Some(qp) => self.handle_run(now, qp, &mut run, arrival, deferred),
                None => add(&self.counters.unknown_qp, run.count() as u64),
            }
        }
    }

    /// Gives a queue pair its packets.
    fn handle_run<'a>(
        &self,
        now: Instant,
        qp: Arc<Qp>,
        run: &mut dyn Iterator<Item = Verified<'a>>,
        arrival: &Arrival,
        deferred: &mut Vec<Deferred>,
    ) {
        let mut has_responses = false;
        let mut notifies = false;
        let has_output;
        {
            let mut connection = qp.lock();
            let held_ack_back = connection.receiver.has_deferred_ack();
            {
                let regions = self.regions.read();
                let memory = regions.view(qp.pd(), qp.number());
                for Verified { packet, ip_id } in run {
                    if packet.opcode().service() == Service::Cnp {
                        self.take_notification(now, &mut connection, &packet, arrival.source);
                        continue;
                    }
                    if !self.admit(&qp, &connection, &packet, arrival.source) {
                        continue;
                    }
                    if let Some(flow) = &mut connection.flow {
                        notifies |= flow.on_packet(now, arrival.is_marked(), &packet);
                    }
                    if packet.opcode().is_response() {
                        has_responses = true;
                        connection.sender.handle_packet(now, &packet, &memory);
                    } else {
                        let header = || network_header(arrival, ip_id, &packet);
                        self.take_request(now, &qp, &mut connection, &packet, header, &regions);
                    }
                }
            }
            self.settle(&qp, &mut connection, now);
            has_output = notifies
                || (has_responses && connection.sender.waits_for_responses())
                || connection.receiver.has_urgent_output();
            if connection.receiver.has_deferred_ack()
                && !self.delay_ack(now, &qp, &mut connection, !held_ack_back)
                && !qp.ack_is_deferred.swap(true, Ordering::AcqRel)
            {
                deferred.push(Deferred { qp: qp.clone(), since: now });
            }
        }
        if has_output {
            self.schedule(qp);
        }
    }

    /// Gives every member of a multicast group its copy of a packet.
    fn deliver_to_group(
        &self,
        now: Instant,
        packet: Verified<'_>,
        is_multicast: bool,
        arrival: &Arrival,
        deferred: &mut Vec<Deferred>,
    ) {
        let members = self.multicast.members(arrival.destination).filter(|_| is_multicast);
        let Some(members) = members else { return add(&self.counters.unknown_qp, 1) };
        let sender = packet.packet.deth().map(|deth| deth.source).filter(|_| arrival.source == self.address);
        for qp in members.iter().filter(|qp| !qp.blocks_own_multicast() || sender != Some(qp.number())) {
            self.handle_run(now, qp.clone(), &mut std::iter::once(packet), arrival, deferred);
        }
    }

    /// Whether bytes are a packet that arrived as it was sent. Counts why not.
    fn verify<'a>(&self, flow: &Flow, arrival: &Arrival, index: usize, segment: &'a [u8]) -> Option<Verified<'a>> {
        let Ok(packet) = Packet::new_checked(segment) else {
            add(&self.counters.malformed, 1);
            return None;
        };
        let (guess, policy) = match arrival.ip_id {
            Some(first) => (first.wrapping_add(index as u16), IpIdPolicy::Exact),
            None => (index as u16, self.ip_id_policy),
        };
        let Ok(ip_id) = flow.check(&packet, guess, policy) else {
            add(&self.counters.icrc, 1);
            return None;
        };
        add(&self.counters.received_packets, 1);
        add(&self.counters.received_bytes, segment.len() as u64);
        if packet.bth().transport_version != 0 {
            add(&self.counters.transport_version, 1);
            return None;
        }
        Some(Verified { packet, ip_id })
    }

    /// Whether a queue pair may take a packet. Counts why not.
    fn admit(&self, qp: &Qp, connection: &Connection, packet: &Packet<'_>, source: IpAddr) -> bool {
        let opcode = packet.opcode();
        let refused = if opcode.service() != qp.service() || !has_half(qp.qp_type(), opcode.is_response()) {
            &self.counters.wrong_service
        } else if !PKey::DEFAULT.matches(packet.bth().pkey) {
            &self.counters.pkey
        } else if !takes(connection.state, opcode.is_response()) {
            &self.counters.qp_state
        } else if opcode.service() != Service::Ud && !connection.route.is_some_and(|route| route.is_peer(source)) {
            &self.counters.wrong_source
        } else {
            return true;
        };
        add(refused, 1);
        false
    }
}

/// Whether a queue pair has the half that takes responses or requests: on XRC it has but one.
const fn has_half(qp_type: QpType, is_response: bool) -> bool {
    match qp_type {
        QpType::XrcSend => is_response,
        QpType::XrcRecv => !is_response,
        QpType::Rc | QpType::Uc | QpType::Ud => true,
    }
}

/// Whether a queue pair in this state takes responses or requests.
const fn takes(state: QpState, is_response: bool) -> bool {
    match state {
        QpState::Reset | QpState::Init | QpState::Err => false,
        QpState::Rtr => !is_response,
        QpState::Rts | QpState::Sqd | QpState::Sqe => true,
    }
}

/// What a datagram queue pair learns of the headers around a packet, as far as the link knows them.
fn network_header(arrival: &Arrival, ip_id: u16, packet: &Packet<'_>) -> [u8; GRH_LEN] {
    let header = DatagramHeader {
        source: arrival.source,
        destination: arrival.destination,
        source_port: arrival.source_port,
        traffic_class: arrival.traffic_class,
        hop_limit: arrival.hop_limit.unwrap_or(DEFAULT_HOP_LIMIT),
        ip_id,
        udp_checksum: false,
    };
    header.grh(packet.as_bytes().len())
}

/// The destination of what may be a packet, read ahead of any check; `None` for what is too short to have one.
fn destination(segment: &[u8]) -> Option<Qpn> {
    let &[_, high, middle, low] = segment.get(4..8)?.first_chunk()?;
    Some(Qpn::new(u32::from_be_bytes([0, high, middle, low])))
}
