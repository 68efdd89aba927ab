//! Time as the state machines see it: nanoseconds since an epoch that the caller chooses.
//!
//! A real device counts from when it was opened, a simulation from zero. Nothing in this crate reads a clock.

use core::{
    fmt,
    ops::{Add, Sub},
};

pub use core::time::Duration;

/// A point in time: nanoseconds since an epoch of the caller's choosing (584 years fit).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The epoch itself.
    pub const ZERO: Self = Self(0);

    /// The instant `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `duration` before this one, the epoch at the earliest.
    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time from `earlier` to `self`, zero when `earlier` is later.
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, rhs: Self) -> Duration {
        self.saturating_duration_since(rhs)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// The time that a 5-bit timeout attribute stands for: 4.096 µs · 2ⁿ, and none (wait for ever) for 0.
///
/// Source: IBTA vol 1, 9.7.6.1.3 (local ACK timeout) and 12.7.34 (CM timeouts, which use the same code).
pub fn timeout_from_code(code: u8) -> Option<Duration> {
    match code & 0x1f {
        0 => None,
        n => Some(Duration::from_nanos(4096 << n)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_codes() {
        assert_eq!(timeout_from_code(0), None);
        assert_eq!(timeout_from_code(1), Some(Duration::from_nanos(8192)));
        assert_eq!(timeout_from_code(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(timeout_from_code(31), Some(Duration::from_nanos(4096 << 31)));
    }

    #[test]
    fn arithmetic_saturates() {
        let late = Instant::from_nanos(u64::MAX);
        assert_eq!(late + Duration::from_secs(1), late);
        assert_eq!(Instant::ZERO - late, Duration::ZERO);
    }
}
