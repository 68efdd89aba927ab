//! Packet sequence numbers: 24-bit serial arithmetic.
//!
//! PSNs live on a circle of 2²⁴. "Before" and "after" mean the shorter way round, so they are only meaningful
//! between numbers less than 2²³ apart (IBTA C9-2: a requester never has more than 2²³-1 PSNs outstanding).

use core::{
    fmt,
    ops::{Add, AddAssign, Sub},
};

/// A packet sequence number, 24 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// How many PSNs there are.
    pub const SPACE: u32 = 1 << 24;
    /// The largest PSN.
    pub const MAX: Self = Self(Self::SPACE - 1);

    /// The PSN of the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & (Self::SPACE - 1))
    }

    /// The number, 0 … 2²⁴-1.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The next PSN.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }

    /// The PSN before this one.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// How far `self` lies after `other`, -2²³ … 2²³-1; negative when it lies before.
    pub const fn distance_from(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Whether `self` comes before `other` on the shorter way round.
    pub const fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }

    /// Whether `self` comes after `other` on the shorter way round.
    pub const fn is_after(self, other: Self) -> bool {
        self.distance_from(other) > 0
    }
}

impl Add<u32> for Psn {
    type Output = Self;

    fn add(self, rhs: u32) -> Self {
        Self::new(self.0.wrapping_add(rhs))
    }
}

impl AddAssign<u32> for Psn {
    fn add_assign(&mut self, rhs: u32) {
        *self = *self + rhs;
    }
}

impl Sub<u32> for Psn {
    type Output = Self;

    fn sub(self, rhs: u32) -> Self {
        Self::new(self.0.wrapping_sub(rhs))
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wraps_at_24_bits() {
        assert_eq!(Psn::MAX.next(), Psn::new(0));
        assert_eq!(Psn::new(0).previous(), Psn::MAX);
        assert!(Psn::MAX.is_before(Psn::new(0)));
        assert!(Psn::new(3).is_after(Psn::MAX));
        assert_eq!(Psn::new(1).distance_from(Psn::MAX), 2);
    }

    #[test]
    fn half_the_space_is_the_horizon() {
        let zero = Psn::new(0);
        assert_eq!(Psn::new(0x7f_ffff).distance_from(zero), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).distance_from(zero), -0x80_0000);
    }

    proptest! {
        #[test]
        fn distance_inverts_addition(start in 0..Psn::SPACE, step in 0..0x80_0000_u32) {
            let psn = Psn::new(start);
            prop_assert_eq!((psn + step).distance_from(psn), step as i32);
            prop_assert_eq!(psn + step - step, psn);
        }
    }
}
