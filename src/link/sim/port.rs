//! The switch port that leads to one address: where flows from everywhere meet, and queue.

use super::{
    Delivery, NetworkCounters,
    path::{CONGESTION_EXPERIENCED, EcnMarking, is_ecn_capable, stream},
};
use rand::RngExt;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use std::{collections::BTreeMap, net::IpAddr};
use uroce_protocol::{Instant, congestion::Rate};

/// How the port that leads to an address treats packets. What comes from any address waits there in one queue, behind
/// whatever its path has done to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PortConditions {
    /// How fast the queue empties. IP and UDP headers count.
    pub bandwidth: Rate,
    /// How many bytes may wait; a packet beyond them is dropped.
    pub queue_bytes: u64,
    /// How the queue marks packets, if it does.
    pub ecn: Option<EcnMarking>,
}

/// A port's conditions and state.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) conditions: PortConditions,
    random: ChaCha8Rng,
    /// When the last byte that waits will have left.
    busy_until: Instant,
    /// Packets on their way to the port, by the instant at which they get there.
    coming: BTreeMap<(Instant, u64), Delivery>,
    longest_queue: u64,
}

impl Port {
    pub(super) fn new(conditions: PortConditions, seed: u64, address: IpAddr) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // No path leads from an address to itself through a port, so the stream is free.
        random.set_stream(stream(address, address) ^ 1);
        Self { conditions, random, busy_until: Instant::ZERO, coming: BTreeMap::new(), longest_queue: 0 }
    }

    /// A packet will get here.
    pub(super) fn expect(&mut self, at: Instant, order: u64, packet: Delivery) {
        self.coming.insert((at, order), packet);
    }

    /// When the next packet gets here.
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.coming.first_key_value().map(|(&(at, _), _)| at)
    }

    /// The next packet that gets here by `now` and is not dropped, and when it will have left.
    pub(super) fn forward(&mut self, now: Instant, counters: &mut NetworkCounters) -> Option<(Instant, Delivery)> {
        while let Some(first) = self.coming.first_entry().filter(|first| first.key().0 <= now) {
            let at = first.key().0;
            let mut packet = first.remove();
            let PortConditions { bandwidth, queue_bytes, ecn } = self.conditions;
            let waiting = bandwidth.bytes_in(self.busy_until - at);
            let length = packet.wire_length() as u64;
            if waiting.saturating_add(length) > queue_bytes {
                counters.overflowed += 1;
                continue;
            }
            self.longest_queue = self.longest_queue.max(waiting);
            let chance = ecn.map_or(0.0, |ecn| ecn.chance(waiting));
            let traffic_class = &mut packet.arrival.traffic_class;
            if chance > 0.0 && is_ecn_capable(*traffic_class) && self.random.random_bool(chance.min(1.0)) {
                counters.marked += 1;
                *traffic_class |= CONGESTION_EXPERIENCED;
            }
            self.busy_until = self.busy_until.max(at) + bandwidth.time_for(length);
            return Some((self.busy_until, packet));
        }
        None
    }

    /// The most bytes that have waited since this was last asked.
    pub(super) fn take_longest_queue(&mut self) -> u64 {
        std::mem::take(&mut self.longest_queue)
    }
}
