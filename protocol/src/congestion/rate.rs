//! Bits per second.

use crate::time::Duration;
use core::fmt;

/// A rate in bits per second; counted from the IP header to the ICRC where packets are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

/// Nanoseconds that one bit takes at one bit per second, times the bits of a byte.
const BYTE_NANOS: u128 = 8_000_000_000;

impl Rate {
    /// `bits` per second.
    pub const fn from_bps(bits: u64) -> Self {
        Self(bits)
    }

    /// Thousands of bits per second, the unit of `ibv_modify_qp_rate_limit`.
    pub const fn from_kbps(kilobits: u64) -> Self {
        Self(kilobits.saturating_mul(1_000))
    }

    /// Millions of bits per second, the unit of mlx5's parameters.
    pub const fn from_mbps(megabits: u64) -> Self {
        Self(megabits.saturating_mul(1_000_000))
    }

    /// Billions of bits per second.
    pub const fn from_gbps(gigabits: u64) -> Self {
        Self(gigabits.saturating_mul(1_000_000_000))
    }

    /// Bits per second.
    pub const fn bps(self) -> u64 {
        self.0
    }

    /// How long `bytes` take at this rate, rounded up to a nanosecond; for ever (584 years) at rate 0.
    pub const fn time_for(self, bytes: u64) -> Duration {
        if self.0 == 0 {
            return Duration::from_nanos(u64::MAX);
        }
        let nanos = (bytes as u128 * BYTE_NANOS).div_ceil(self.0 as u128);
        Duration::from_nanos(if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 })
    }

    /// How many bytes pass in `time` at this rate, rounded down.
    pub const fn bytes_in(self, time: Duration) -> u64 {
        let bytes = (time.as_nanos()).saturating_mul(self.0 as u128) / BYTE_NANOS;
        if bytes > u64::MAX as u128 { u64::MAX } else { bytes as u64 }
    }
}

impl fmt::Display for Rate {
    /// In the largest unit of which there is one: "2.50 Gbit/s".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 as f64;
        match self.0 {
            1_000_000_000.. => write!(f, "{:.2} Gbit/s", bits / 1e9),
            1_000_000.. => write!(f, "{:.2} Mbit/s", bits / 1e6),
            1_000.. => write!(f, "{:.2} kbit/s", bits / 1e3),
            _ => write!(f, "{} bit/s", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_time() {
        let rate = Rate::from_gbps(40);
        assert_eq!(rate.time_for(5000), Duration::from_micros(1));
        assert_eq!(rate.bytes_in(Duration::from_micros(1)), 5000);
        assert_eq!(Rate::from_bps(3).time_for(1), Duration::from_nanos(2_666_666_667), "rounded up");
        assert_eq!(Rate::from_bps(3).bytes_in(Duration::from_secs(3)), 1, "rounded down");
    }

    #[test]
    fn extremes_saturate() {
        assert_eq!(Rate::from_bps(0).time_for(1), Duration::from_nanos(u64::MAX));
        assert_eq!(Rate::from_bps(1).time_for(u64::MAX), Duration::from_nanos(u64::MAX));
        assert_eq!(Rate::from_gbps(u64::MAX).bytes_in(Duration::MAX), u64::MAX);
        assert_eq!(Rate::from_bps(0).bytes_in(Duration::MAX), 0);
    }

    #[test]
    fn reads_in_the_largest_unit() {
        let text = [0, 999, 1_500, 2_500_000, 40_000_000_000].map(|bits| Rate::from_bps(bits).to_string());
        assert_eq!(text, ["0 bit/s", "999 bit/s", "1.50 kbit/s", "2.50 Mbit/s", "40.00 Gbit/s"]);
    }
}
