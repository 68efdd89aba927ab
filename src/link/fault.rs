//! A link that does harm on purpose, repeatably.
//!
//! [`Fault`] wraps any link and drops, duplicates, delays, reorders, corrupts or marks packets on their way out
//! (`tx`) and in (`rx`): by rate, or exactly the third READ response of queue pair 17. What it does follows from a
//! seed and from the order of the packets.
//!
//! # The grammar
//!
//! A [`FaultSpec`] is a list of rules between commas. Each rule is
//!
//! ```text
//! [tx | rx] ACTION [WHICH …]
//! ```
//!
//! | ACTION | |
//! |---|---|
//! | `drop` | the packet vanishes |
//! | `duplicate`, `dup` | it goes on twice |
//! | `reorder` | one to four later packets for the same queue pair overtake it (or 1 ms passes) |
//! | `delay TIME` | it goes on later: `delay 1ms`, `delay 250us`, units `ns` `us` `ms` `s` |
//! | `corrupt` | one bit of it, from BTH to ICRC, is inverted |
//! | `mark-ce` | its ECN bits say "congestion experienced" |
//!
//! Without `rx`, the rule is for packets that the device sends. WHICH narrows down the packets, in any order; at
//! least one is needed:
//!
//! | WHICH | |
//! |---|---|
//! | `1%`, `0.01%` | this share of them, drawn at random |
//! | `3` | the third of them, once |
//! | `every 100` | the 100th, the 200th … |
//! | a kind of packet | `send`, `write`, `read-request`, `read-response`, `atomic`, `atomic-ack`, `ack`, `nak`, `rnr-nak`, `cnp`, `flush`, `atomic-write`; where there are several, with position: `send-first`, `write-middle`, `read-response-last`, `send-only` …; `cmp-swap`, `fetch-add` |
//! | `of qp 17`, `qp 0x11` | to this destination queue pair, which is what a packet names: the peer's for `tx`, ours for `rx` |
//! | `psn 0x1234` | with this sequence number |
//!
//! Numbers are decimal or, after `0x`, hexadecimal. Examples:
//!
//! ```text
//! drop 1%
//! drop 1%, dup 0.5%, reorder 1%, rx drop 2%
//! corrupt 0.1%, mark-ce 5%, delay 1ms 2%
//! drop read-response 3 of qp 17
//! rx drop every 100 ack, drop send-middle 2 of qp 0x12
//! drop psn 0x1000 1
//! ```
//!
//! Each rule looks at every packet by itself: a packet may be marked by one and duplicated by another, and what is
//! dropped by one still counts for all.
//!
//! # Trains
//!
//! A train in which nothing is hit passes whole and uncopied. One that is hit is taken apart; what is left of it
//! leaves with new numbers, so its ICRCs are corrected for its new IPv4 Identifications, right ones to right ones
//! and wrong ones to wrong ones.

mod spec;

pub use spec::{Action, Direction, FaultSpec, FaultSpecError, Kind, Occurrence, Rule};

use super::{Arrival, Link, LinkLimits, ReceiveBuffer, Train};
use parking_lot::Mutex;
use rand::RngExt;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::IpAddr,
    os::fd::BorrowedFd,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};
use uroce_protocol::{
    Instant,
    wire::{Packet, Qpn, icrc::restamp},
};

/// How long a packet waits for others to overtake it.
const REORDER_PATIENCE: Duration = Duration::from_millis(1);

/// When to try again to send what the wrapped link had no room for.
const RETRY_AFTER: Duration = Duration::from_micros(100);

/// Both ECN bits set.
const CONGESTION_EXPERIENCED: u8 = 0b11;

/// No deadline, in [`Lane::deadline`].
const NEVER: u64 = u64::MAX;

/// A link that harms packets: see the [module's documentation](self).
#[derive(Debug)]
pub struct Fault<L> {
    inner: L,
    tx: Lane,
    rx: Lane,
}

/// What has been done to packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// To those that left.
    pub tx: DirectionCounters,
    /// To those that arrived.
    pub rx: DirectionCounters,
}

/// What has been done to packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    /// Dropped.
    pub dropped: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// Held back for others to overtake.
    pub reordered: u64,
    /// Delayed.
    pub delayed: u64,
    /// Corrupted.
    pub corrupted: u64,
    /// Marked "congestion experienced".
    pub marked: u64,
}

/// One direction.
#[derive(Debug)]
struct Lane {
    /// Whether there are, or were, rules: a lane without any costs one load.
    active: AtomicBool,
    /// When something held back is due, in nanoseconds.
    deadline: AtomicU64,
    state: Mutex<LaneState>,
}

#[derive(Debug)]
struct LaneState {
    rules: Vec<CountingRule>,
    random: ChaCha8Rng,
    counters: DirectionCounters,
    /// Delayed packets, by when they are due; the second number keeps those of one instant in order.
    delayed: BTreeMap<(Instant, u64), Parcel>,
    delays: u64,
    /// Packets that wait to be overtaken.
    waiting: Vec<Waiting>,
    /// Arrived and judged; only in the receiving lane.
    ready: VecDeque<Parcel>,
    /// The train that was let through but for which the wrapped link had no room: not to be judged again.
    let_through: Option<TrainIdentity>,
}

#[derive(Debug)]
struct CountingRule {
    rule: Rule,
    /// How many packets have matched.
    matched: u64,
}

/// Packets in a row, cut out of a train.
#[derive(Debug)]
struct Parcel {
    envelope: Envelope,
    /// Which segment of its train the first packet was: its IPv4 Identification if the train's began at 0.
    first: u16,
    segment_size: usize,
    bytes: Vec<u8>,
}

/// What the packets of a train have in common.
#[derive(Clone, Copy, Debug)]
struct Envelope {
    source: IpAddr,
    destination: IpAddr,
    source_port: u16,
    traffic_class: u8,
    hop_limit: Option<u8>,
    ip_id: Option<u16>,
}

#[derive(Debug)]
struct Waiting {
    parcel: Parcel,
    destination: Option<Qpn>,
    overtakers: u32,
    patience_ends: Instant,
}

/// What tells a train from others, well enough to know it again when it is offered a second time.
#[derive(Debug, PartialEq, Eq)]
struct TrainIdentity {
    destination: IpAddr,
    length: usize,
    head: [u8; 12],
}

/// What the rules want done to one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Harm {
    drop: bool,
    duplicate: bool,
    reorder: bool,
    corrupt: bool,
    mark: bool,
    delay: Option<Duration>,
}

impl<L: Link> Fault<L> {
    /// Wraps `inner`. The seed decides what rates hit.
    pub fn new(inner: L, spec: &FaultSpec, seed: u64) -> Self {
        let fault = Self { inner, tx: Lane::new(seed, 0), rx: Lane::new(seed, 1) };
        fault.set_spec(spec);
        fault
    }

    /// Replaces the rules, from now on; their counts begin anew. What is held back stays so.
    pub fn set_spec(&self, spec: &FaultSpec) {
        self.tx.set_rules(spec, Direction::Tx);
        self.rx.set_rules(spec, Direction::Rx);
    }

    /// What has been done so far.
    pub fn counters(&self) -> FaultCounters {
        FaultCounters { tx: self.tx.state.lock().counters, rx: self.rx.state.lock().counters }
    }

    /// The wrapped link.
    pub const fn inner(&self) -> &L {
        &self.inner
    }

    /// Sends what a lane has let go of. What the wrapped link has no room for waits a little.
    fn send_parcels(&self, now: Instant, state: &mut LaneState, parcels: Vec<Parcel>) -> io::Result<()> {
        let mut result = Ok(());
        for mut parcel in parcels {
            parcel.renumber();
            match self.inner.send(now, &parcel.as_train()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => state.delay(now + RETRY_AFTER, parcel),
                sent => result = result.and(sent),
            }
        }
        result
    }
}

impl<L: Link> Link for Fault<L> {
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
        if !self.tx.active.load(Ordering::Relaxed) {
            return self.inner.send(now, train);
        }
        train.check(usize::MAX)?;
        let mut state = self.tx.state.lock();
        let identity = TrainIdentity::of(train);
        let judged = identity.is_some() && state.let_through == identity;
        let envelope = Envelope {
            source: self.inner.address(),
            destination: train.destination,
            source_port: train.source_port,
            traffic_class: train.traffic_class,
            hop_limit: train.hop_limit,
            ip_id: None,
        };
        let parcels = if judged { None } else { state.judge(now, envelope, train.segment_size, train.bytes) };
        let result = match parcels {
            Some(parcels) => self.send_parcels(now, &mut state, parcels),
            None => {
                let result = self.inner.send(now, train);
                let blocked = matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
                state.let_through = identity.filter(|_| blocked);
                result
            }
        };
        self.tx.note_deadline(&state);
        result
    }

    fn receive(&self, now: Instant, buffer: &mut ReceiveBuffer) -> io::Result<Option<Arrival>> {
        if !self.rx.active.load(Ordering::Relaxed) {
            return self.inner.receive(now, buffer);
        }
        let mut state = self.rx.state.lock();
        let due = state.due(now);
        state.ready.extend(due);
        let result = loop {
            if let Some(parcel) = state.ready.pop_front() {
                buffer.as_mut_bytes()[..parcel.bytes.len()].copy_from_slice(&parcel.bytes);
                break Ok(Some(parcel.as_arrival()));
            }
            let arrival = match self.inner.receive(now, buffer) {
                Ok(Some(arrival)) => arrival,
                nothing => break nothing,
            };
            let envelope = Envelope {
                source: arrival.source,
                destination: arrival.destination,
                source_port: arrival.source_port,
                traffic_class: arrival.traffic_class,
                hop_limit: arrival.hop_limit,
                ip_id: arrival.ip_id,
            };
            let bytes = &buffer.as_mut_bytes()[..arrival.length];
            match state.judge(now, envelope, arrival.segment_size, bytes) {
                None => break Ok(Some(arrival)),
                Some(parcels) => state.ready.extend(parcels),
            }
        };
        self.rx.note_deadline(&state);
        result
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
        let ours = self.tx.deadline.load(Ordering::Acquire).min(self.rx.deadline.load(Ordering::Acquire));
        let ours = (ours != NEVER).then(|| Instant::from_nanos(ours));
        ours.into_iter().chain(self.inner.poll_timeout()).min()
    }

    fn handle_timeout(&self, now: Instant) {
        if self.tx.deadline.load(Ordering::Acquire) <= now.as_nanos() {
            let mut state = self.tx.state.lock();
            let due = state.due(now);
            if let Err(error) = self.send_parcels(now, &mut state, due) {
                tracing::debug!(%error, "a packet that was held back is lost");
            }
            self.tx.note_deadline(&state);
        }
        // What is due in the receiving lane is fetched by `receive`.
        self.inner.handle_timeout(now);
    }
}

impl Lane {
    fn new(seed: u64, stream: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream);
        let state = LaneState {
            rules: Vec::new(),
            random,
            counters: DirectionCounters::default(),
            delayed: BTreeMap::new(),
            delays: 0,
            waiting: Vec::new(),
            ready: VecDeque::new(),
            let_through: None,
        };
        Self { active: AtomicBool::new(false), deadline: AtomicU64::new(NEVER), state: Mutex::new(state) }
    }

    fn set_rules(&self, spec: &FaultSpec, direction: Direction) {
        let mut state = self.state.lock();
        let rules = spec.rules.iter().filter(|rule| rule.direction == direction);
        state.rules = rules.map(|rule| CountingRule { rule: rule.clone(), matched: 0 }).collect();
        if !state.rules.is_empty() {
            self.active.store(true, Ordering::Relaxed);
        }
    }

    fn note_deadline(&self, state: &LaneState) {
        let deadline = if state.ready.is_empty() {
            let delayed = state.delayed.first_key_value().map(|(&(at, _), _)| at);
            let waiting = state.waiting.iter().map(|waiting| waiting.patience_ends);
            waiting.chain(delayed).min().map_or(NEVER, Instant::as_nanos)
        } else {
            0
        };
        self.deadline.store(deadline, Ordering::Release);
    }
}

impl LaneState {
    /// Applies the rules to a train. `None` when it may pass as it is; otherwise what goes on now, in order.
    fn judge(&mut self, now: Instant, envelope: Envelope, segment_size: usize, bytes: &[u8]) -> Option<Vec<Parcel>> {
        let cut = |from: usize, to: usize| Parcel {
            envelope,
            first: from as u16,
            segment_size,
            bytes: bytes[from * segment_size..(to * segment_size).min(bytes.len())].to_vec(),
        };
        let mut parcels = Vec::new();
        // The first packet of those that pass untouched and have not been cut out yet.
        let mut passing = 0;
        let count = bytes.len().div_ceil(segment_size);
        for (index, packet) in bytes.chunks(segment_size).enumerate() {
            let packet = Packet::new_checked(packet).ok();
            let destination = packet.map(|packet| packet.destination());
            let harm = self.harm(packet.as_ref());
            let overtaken = self.overtake(destination);
            if harm == Harm::default() && overtaken.is_empty() {
                continue;
            }
            if passing < index {
                parcels.push(cut(passing, index));
            }
            passing = index + 1;
            self.inflict(now, harm, cut(index, index + 1), destination, &mut parcels);
            parcels.extend(overtaken);
        }
        if passing == 0 {
            return None;
        }
        if passing < count {
            parcels.push(cut(passing, count));
        }
        Some(parcels)
    }

    fn harm(&mut self, packet: Option<&Packet<'_>>) -> Harm {
        let mut harm = Harm::default();
        for CountingRule { rule, matched } in &mut self.rules {
            if !rule.matches(packet) {
                continue;
            }
            *matched += 1;
            let hit = match rule.occurrence {
                Occurrence::Percent(percent) => self.random.random_bool(percent.clamp(0.0, 100.0) / 100.0),
                Occurrence::Nth(count) => *matched == count,
                Occurrence::Every(count) => *matched % count.max(1) == 0,
            };
            if !hit {
                continue;
            }
            match rule.action {
                Action::Drop => harm.drop = true,
                Action::Duplicate => harm.duplicate = true,
                Action::Reorder => harm.reorder = true,
                Action::Corrupt => harm.corrupt = true,
                Action::MarkCe => harm.mark = true,
                Action::Delay(delay) => harm.delay = Some(harm.delay.map_or(delay, |other| other.max(delay))),
            }
        }
        harm
    }

    /// Does to a packet what the rules want. What goes on at once is appended to `parcels`.
    fn inflict(
        &mut self,
        now: Instant,
        harm: Harm,
        mut packet: Parcel,
        destination: Option<Qpn>,
        parcels: &mut Vec<Parcel>,
    ) {
        if harm.drop {
            self.counters.dropped += 1;
            return;
        }
        if harm.mark {
            self.counters.marked += 1;
            packet.envelope.traffic_class |= CONGESTION_EXPERIENCED;
        }
        let copy = harm.duplicate.then(|| packet.duplicate());
        if harm.corrupt {
            self.counters.corrupted += 1;
            let bit = self.random.random_range(0..packet.bytes.len() as u64 * 8);
            packet.bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        if let Some(delay) = harm.delay {
            self.counters.delayed += 1;
            self.delay(now + delay, packet);
        } else if harm.reorder {
            self.counters.reordered += 1;
            self.waiting.push(Waiting {
                parcel: packet,
                destination,
                overtakers: self.random.random_range(1..=4),
                patience_ends: now + REORDER_PATIENCE,
            });
        } else {
            parcels.push(packet);
        }
        if let Some(copy) = copy {
            self.counters.duplicated += 1;
            parcels.push(copy);
        }
    }

    /// Lets a packet for `destination` pass those that wait for it, and returns the ones that have waited enough.
    fn overtake(&mut self, destination: Option<Qpn>) -> Vec<Parcel> {
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.destination == destination) {
            waiting.overtakers = waiting.overtakers.saturating_sub(1);
        }
        self.waiting.extract_if(.., |waiting| waiting.overtakers == 0).map(|waiting| waiting.parcel).collect()
    }

    fn delay(&mut self, until: Instant, parcel: Parcel) {
        self.delays += 1;
        self.delayed.insert((until, self.delays), parcel);
    }

    /// Takes out what was held back until `now`.
    fn due(&mut self, now: Instant) -> Vec<Parcel> {
        let mut due = Vec::new();
        while let Some(first) = self.delayed.first_entry().filter(|first| first.key().0 <= now) {
            due.push(first.remove());
        }
        due.extend(self.waiting.extract_if(.., |waiting| waiting.patience_ends <= now).map(|waiting| waiting.parcel));
        due
    }
}

impl Parcel {
    fn duplicate(&self) -> Self {
        Self { bytes: self.bytes.clone(), ..*self }
    }

    /// Gives the packets the ICRCs of a train of their own.
    fn renumber(&mut self) {
        if self.first != 0 && self.envelope.destination.is_ipv4() {
            for (index, packet) in self.bytes.chunks_mut(self.segment_size).enumerate() {
                restamp(packet, self.first + index as u16, index as u16);
            }
        }
        self.first = 0;
    }

    fn as_train(&self) -> Train<'_> {
        Train {
            destination: self.envelope.destination,
            source_port: self.envelope.source_port,
            traffic_class: self.envelope.traffic_class,
            hop_limit: self.envelope.hop_limit,
            segment_size: self.segment_size,
            bytes: &self.bytes,
        }
    }

    /// The packets as they arrive. Their ICRCs are as the sender made them, so where the Identification is unknown
    /// it remains the receiver's business to find it.
    fn as_arrival(&self) -> Arrival {
        Arrival {
            source: self.envelope.source,
            source_port: self.envelope.source_port,
            destination: self.envelope.destination,
            traffic_class: self.envelope.traffic_class,
            hop_limit: self.envelope.hop_limit,
            ip_id: self.envelope.ip_id.map(|id| id.wrapping_add(self.first)),
            segment_size: self.segment_size.min(self.bytes.len()),
            length: self.bytes.len(),
        }
    }
}

impl TrainIdentity {
    fn of(train: &Train<'_>) -> Option<Self> {
        let head = *train.bytes.first_chunk()?;
        Some(Self { destination: train.destination, length: train.bytes.len(), head })
    }
}

#[cfg(test)]
mod tests;
