//! Keys of memory regions: hard to guess, and never given twice.
//!
//! A counter, seen through a permutation of 32-bit numbers that differs from device to device. A permutation
//! never repeats before the counter wraps, so a key that has been taken back stays dead.

/// The rounds of the Feistel network; four make it a pseudorandom permutation (Luby and Rackoff, 1988).
const ROUNDS: usize = 4;

/// Where a device's random numbers come from: SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

const fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Gives out keys.
#[derive(Debug)]
pub(crate) struct KeySequence {
    rounds: [u64; ROUNDS],
    given: u32,
}

impl KeySequence {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self { rounds: std::array::from_fn(|_| random.next()), given: 0 }
    }

    /// A key that was never given before, nor is 0 (which some programs take for "none"); `None` once all have
    /// been given.
    pub(crate) fn next(&mut self) -> Option<u32> {
        loop {
            self.given = self.given.checked_add(1)?;
            let key = self.permute(self.given);
            if key != 0 {
                return Some(key);
            }
        }
    }

    fn permute(&self, value: u32) -> u32 {
        let (mut left, mut right) = ((value >> 16) as u16, value as u16);
        for round in self.rounds {
            (left, right) = (right, left ^ mix(round ^ u64::from(right)) as u16);
        }
        u32::from(left) << 16 | u32::from(right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_do_not_repeat() {
        let mut keys = KeySequence::new(&mut Random::new(1));
        let mut seen = HashSet::new();
        assert!((0..10_000).all(|_| seen.insert(keys.next().unwrap())));
        assert!(!seen.contains(&0));
    }

    #[test]
    fn devices_differ_and_a_seed_repeats() {
        let first = |seed| KeySequence::new(&mut Random::new(seed)).next();
        assert_ne!(first(1), first(2));
        assert_eq!(first(1), first(1));
    }
}
