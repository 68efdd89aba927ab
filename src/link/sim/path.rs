//! One direction between two addresses: what it does to each packet.

use super::NetworkCounters;
use rand::RngExt;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use std::net::IpAddr;
use uroce_protocol::{Instant, time::Duration};

/// The two ECN bits of a traffic class.
const ECN: u8 = 0b11;
/// Both set: congestion experienced.
pub(super) const CONGESTION_EXPERIENCED: u8 = 0b11;

/// Whether a packet of this traffic class may be marked, and has not been.
pub(super) const fn is_ecn_capable(traffic_class: u8) -> bool {
    matches!(traffic_class & ECN, 0b01 | 0b10)
}

/// How one direction between two addresses treats packets. Rates are shares of packets, 0.0 … 1.0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathConditions {
    /// From the end of a packet's serialisation to its arrival.
    pub latency: Duration,
    /// Bits per second; `None` takes no time. IP and UDP headers count.
    pub bandwidth: Option<u64>,
    /// How many bytes may wait for the wire; a packet beyond them is dropped. Without effect at infinite bandwidth.
    pub queue_bytes: u64,
    /// How the queue marks packets, if it does.
    pub ecn: Option<EcnMarking>,
    /// Packets lost.
    pub loss: f64,
    /// Packets that arrive twice; the copy takes a delay of its own, 0 … `jitter`.
    pub duplication: f64,
    /// Packets with one bit inverted, anywhere from BTH to ICRC.
    pub corruption: f64,
    /// Packets held back by 0 … `jitter`, so that later ones overtake them.
    pub reordering: f64,
    /// The longest extra delay that `reordering` and `duplication` give.
    pub jitter: Duration,
    /// ECN-capable packets marked "congestion experienced" whatever the queue.
    pub marking: f64,
    /// Packets at which the path stalls: until `stall_length` later nothing arrives, then everything at once.
    pub stalling: f64,
    /// How long a stall lasts.
    pub stall_length: Duration,
}

/// When a queue marks ECN-capable packets instead of dropping them: never below `minimum` bytes, always above
/// `maximum`, in between with a probability that rises to `probability` (the Kmin, Kmax and Pmax of DCQCN).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EcnMarking {
    /// Kmin in bytes.
    pub minimum: u64,
    /// Kmax in bytes.
    pub maximum: u64,
    /// Pmax, 0.0 … 1.0.
    pub probability: f64,
}

impl PathConditions {
    /// 10 µs of latency, and nothing else ever happens.
    pub const IDEAL: Self = Self {
        latency: Duration::from_micros(10),
        bandwidth: None,
        queue_bytes: u64::MAX,
        ecn: None,
        loss: 0.0,
        duplication: 0.0,
        corruption: 0.0,
        reordering: 0.0,
        jitter: Duration::from_micros(50),
        marking: 0.0,
        stalling: 0.0,
        stall_length: Duration::from_millis(1),
    };
}

impl Default for PathConditions {
    fn default() -> Self {
        Self::IDEAL
    }
}

impl EcnMarking {
    pub(super) fn chance(&self, waiting: u64) -> f64 {
        if waiting <= self.minimum {
            0.0
        } else if waiting > self.maximum {
            1.0
        } else {
            self.probability * (waiting - self.minimum) as f64 / (self.maximum - self.minimum) as f64
        }
    }
}

/// One copy of a packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passage {
    /// When it arrives.
    pub(super) at: Instant,
    /// Its TOS or traffic class then.
    pub(super) traffic_class: u8,
    /// The bit that has been inverted.
    pub(super) inverted_bit: Option<usize>,
    /// Whether it stays behind its predecessor and before its successor.
    pub(super) in_order: bool,
}

/// A direction's conditions and state.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) conditions: PathConditions,
    random: ChaCha8Rng,
    /// When the last bit that waits will be on the wire.
    busy_until: Instant,
    stalled_until: Instant,
}

impl Path {
    pub(super) fn new(conditions: PathConditions, seed: u64, from: IpAddr, to: IpAddr) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream(from, to));
        Self { conditions, random, busy_until: Instant::ZERO, stalled_until: Instant::ZERO }
    }

    /// Sends a packet of `length` bytes (`headers` more on the wire) and returns the copies of it that arrive.
    pub(super) fn carry(
        &mut self,
        now: Instant,
        traffic_class: u8,
        length: usize,
        headers: usize,
        counters: &mut NetworkCounters,
    ) -> [Option<Passage>; 2] {
        let conditions = self.conditions;
        counters.sent += 1;
        if self.happens(conditions.stalling) {
            counters.stalls += 1;
            self.stalled_until = self.stalled_until.max(now + conditions.stall_length);
        }
        let Some((on_wire, waiting)) = self.enqueue(now, (length + headers) as u64) else {
            counters.overflowed += 1;
            return [None; 2];
        };
        if self.happens(conditions.loss) {
            counters.lost += 1;
            return [None; 2];
        }
        let mut passage = Passage {
            at: (on_wire + conditions.latency).max(self.stalled_until),
            traffic_class,
            inverted_bit: None,
            in_order: true,
        };
        let marking = conditions.ecn.map_or(0.0, |ecn| ecn.chance(waiting)).max(conditions.marking);
        if is_ecn_capable(traffic_class) && self.happens(marking) {
            counters.marked += 1;
            passage.traffic_class |= CONGESTION_EXPERIENCED;
        }
        let mut copies = [None; 2];
        if self.happens(conditions.duplication) {
            counters.duplicated += 1;
            copies[1] = Some(Passage { at: passage.at + self.extra_delay(), in_order: false, ..passage });
        }
        if length > 0 && self.happens(conditions.corruption) {
            counters.corrupted += 1;
            passage.inverted_bit = Some(self.random.random_range(0..length as u64 * 8) as usize);
        }
        if self.happens(conditions.reordering) {
            counters.delayed += 1;
            passage = Passage { at: passage.at + self.extra_delay(), in_order: false, ..passage };
        }
        copies[0] = Some(passage);
        copies
    }

    /// Puts `bytes` behind what waits for the wire. Returns when the last of them is on it, and how many bytes
    /// waited before; `None` when the queue is full.
    fn enqueue(&mut self, now: Instant, bytes: u64) -> Option<(Instant, u64)> {
        let Some(bandwidth) = self.conditions.bandwidth.filter(|&bandwidth| bandwidth > 0) else {
            return Some((now, 0));
        };
        const BIT_NANOS: u128 = 8_000_000_000;
        let backlog = (self.busy_until - now).as_nanos();
        let waiting = (backlog * u128::from(bandwidth) / BIT_NANOS) as u64;
        if waiting.saturating_add(bytes) > self.conditions.queue_bytes {
            return None;
        }
        let nanos = (u128::from(bytes) * BIT_NANOS).div_ceil(u128::from(bandwidth));
        self.busy_until = self.busy_until.max(now) + Duration::from_nanos(nanos as u64);
        Some((self.busy_until, waiting))
    }

    fn happens(&mut self, rate: f64) -> bool {
        // No draw for what cannot happen: most simulations use few of the rates.
        rate > 0.0 && self.random.random_bool(rate.min(1.0))
    }

    fn extra_delay(&mut self) -> Duration {
        let most = u64::try_from(self.conditions.jitter.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.random.random_range(0..=most))
    }
}

/// The number of the random stream of a direction: the FNV-1a hash of its two addresses.
pub(super) fn stream(from: IpAddr, to: IpAddr) -> u64 {
    let octets = |address| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    octets(from)
        .into_iter()
        .chain(octets(to))
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
