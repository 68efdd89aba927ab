//! Where a device's time comes from: the machine's monotonic clock, or a simulation's.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};
use uroce_protocol::Instant;

/// A source of time. Readings never go backwards.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The time now, since the clock's own epoch.
    fn now(&self) -> Instant;
}

/// The machine's monotonic clock, counted from the clock's creation.
#[derive(Debug)]
pub struct MonotonicClock {
    epoch: std::time::Instant,
}

impl MonotonicClock {
    /// A clock that reads zero now.
    pub fn new() -> Self {
        Self { epoch: std::time::Instant::now() }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Instant {
        // Not `as_nanos`, whose 128 bits every poll would pay for: it takes centuries to get out of 64.
        let elapsed = self.epoch.elapsed();
        Instant::from_nanos(elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos()))
    }
}

/// A simulation's clock: it stands still until it is set.
#[derive(Debug, Default)]
pub struct VirtualClock {
    nanos: AtomicU64,
}

impl VirtualClock {
    /// A clock that reads zero.
    pub const fn new() -> Self {
        Self { nanos: AtomicU64::new(0) }
    }

    /// Moves the clock forward to `instant`; does nothing when it is later already.
    pub fn advance_to(&self, instant: Instant) {
        self.nanos.fetch_max(instant.as_nanos(), Ordering::AcqRel);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.nanos.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_begins_near_zero_and_never_goes_back() {
        let clock = MonotonicClock::new();
        let readings: Vec<_> = (0..100).map(|_| clock.now()).collect();
        assert!(readings.is_sorted());
        assert!(readings[0] < Instant::from_nanos(60_000_000_000));
    }

    #[test]
    fn the_virtual_clock_moves_forward_only_and_only_when_told() {
        let clock = VirtualClock::new();
        assert_eq!(clock.now(), Instant::ZERO);
        clock.advance_to(Instant::from_nanos(7));
        clock.advance_to(Instant::from_nanos(5));
        assert_eq!(clock.now(), Instant::from_nanos(7));
    }
}
