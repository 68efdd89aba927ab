//! Keys of memory regions and windows: hard to guess, and a region's never given twice.
//!
//! A key is an *index* in its upper 24 bits and a *tag* in its low 8, as ConnectX lays keys out and `ibv_inc_rkey`
//! expects: whoever binds a memory window chooses the new key's tag, so all 256 keys of its index are the window's
//! as long as it lives. Indices come from a counter, seen through a permutation that differs from device to device,
//! and regions and windows never share one:
//!
//! - A region takes one key. The counter goes through all indices of regions with one tag each, and through all of
//!   them again with others, so that 2³² less 2²⁴ registrations pass before a key would come again: one that has
//!   been taken back stays dead. After that there are none left.
//! - A window's index is used again, by windows, once all of theirs have been used: the one longest unused first,
//!   and with the tag after its last, so that a dead key does not come alive soon. That it never does nobody can
//!   promise, because the tags are the program's.

use std::collections::VecDeque;

/// The rounds of the Feistel network; four make it a pseudorandom permutation (Luby and Rackoff, 1988).
const ROUNDS: usize = 4;

/// How many indices there are.
const INDICES: u32 = 1 << 24;

/// How many of them are windows'.
pub(crate) const WINDOW_INDICES: u32 = 1 << 16;

const REGION_INDICES: u32 = INDICES - WINDOW_INDICES;

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

/// The index of a key, 0 … 2²⁴-1.
pub(crate) const fn index(key: u32) -> u32 {
    key >> 8
}

/// Whether two keys can be one window's.
pub(crate) const fn have_same_index(one: u32, other: u32) -> bool {
    index(one) == index(other)
}

/// The key of the same index with the next tag (`ibv_inc_rkey`).
pub(crate) const fn with_next_tag(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}

/// Gives out keys.
#[derive(Debug)]
pub(crate) struct KeySequence {
    rounds: [u64; ROUNDS],
    /// What tags are derived from.
    tags: u64,
    /// How many keys regions have been given.
    regions: u32,
    /// How many indices windows have been given.
    windows: u32,
    /// Last keys of windows that are gone, longest gone first.
    returned: VecDeque<u32>,
}

impl KeySequence {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self {
            rounds: std::array::from_fn(|_| random.next()),
            tags: random.next(),
            regions: 0,
            windows: 0,
            returned: VecDeque::new(),
        }
    }

    /// A key for a region, which was never given before; `None` once all have been given.
    pub(crate) fn next_region(&mut self) -> Option<u32> {
        loop {
            let (round, position) = (self.regions / REGION_INDICES, self.regions % REGION_INDICES);
            let round = u8::try_from(round).ok()?;
            self.regions += 1;
            let index = self.permute(position);
            // Some programs take key 0 for "none": nobody gets its index.
            if index != 0 {
                return Some(index << 8 | u32::from(self.tag(index) ^ round));
            }
        }
    }

    /// A key for a window, whose index is nobody else's; `None` when as many windows exist as there can be.
    pub(crate) fn next_window(&mut self) -> Option<u32> {
        while self.windows < WINDOW_INDICES {
            let index = self.permute(REGION_INDICES + self.windows);
            self.windows += 1;
            if index != 0 {
                return Some(first_key(index << 8 | u32::from(self.tag(index))));
            }
        }
        self.returned.pop_front().map(first_key)
    }

    /// Takes a window's index back; `key` is the last that it had.
    pub(crate) fn return_window(&mut self, key: u32) {
        self.returned.push_back(with_next_tag(key));
    }

    fn tag(&self, index: u32) -> u8 {
        mix(self.tags ^ u64::from(index)) as u8
    }

    fn permute(&self, value: u32) -> u32 {
        let (mut left, mut right) = (value >> 12, value & 0xfff);
        for round in self.rounds {
            (left, right) = (right, left ^ (mix(round ^ u64::from(right)) as u32 & 0xfff));
        }
        left << 12 | right
    }
}

/// A new window's key: its tag leaves room for programs that add a little to the key where they should use
/// `ibv_inc_rkey` (pyverbs adds 12), which must not carry into the index.
const fn first_key(key: u32) -> u32 {
    key & !0x80
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn sequence(seed: u64) -> KeySequence {
        KeySequence::new(&mut Random::new(seed))
    }

    #[test]
    fn keys_do_not_repeat() {
        let mut keys = sequence(1);
        let mut seen = HashSet::new();
        assert!((0..10_000).all(|_| seen.insert(keys.next_region().unwrap())));
        assert!(seen.iter().all(|&key| index(key) != 0));
    }

    #[test]
    fn the_next_round_has_the_same_indices_and_other_tags() {
        let mut keys = sequence(2);
        let first: Vec<_> = (0..1000).map(|_| keys.next_region().unwrap()).collect();
        keys.regions = REGION_INDICES;
        let second: Vec<_> = (0..1000).map(|_| keys.next_region().unwrap()).collect();
        assert!(first.iter().zip(&second).all(|(one, other)| index(*one) == index(*other) && one != other));
        keys.regions = REGION_INDICES * 255 + REGION_INDICES - 1;
        keys.next_region().unwrap();
        assert_eq!(keys.next_region(), None, "every key has been given");
    }

    #[test]
    fn regions_and_windows_never_share_an_index() {
        let mut keys = sequence(3);
        let indices: HashSet<_> = (0..INDICES).map(|value| keys.permute(value)).collect();
        assert_eq!(indices.len() as u32, INDICES, "a permutation");
        let windows: HashSet<_> = std::iter::from_fn(|| keys.next_window()).map(index).collect();
        assert!(windows.len() as u32 >= WINDOW_INDICES - 1);
        assert!((0..REGION_INDICES).all(|value| !windows.contains(&keys.permute(value))));
    }

    #[test]
    fn a_windows_index_comes_again_late_and_with_another_tag() {
        let mut keys = sequence(4);
        let (first, second) = (keys.next_window().unwrap(), keys.next_window().unwrap());
        keys.return_window(first);
        assert_ne!(index(keys.next_window().unwrap()), index(first), "unused ones first");
        keys.return_window(second);
        while keys.windows < WINDOW_INDICES {
            keys.next_window().unwrap();
        }
        let again = keys.next_window().unwrap();
        assert_eq!(index(again), index(first), "then the one longest unused");
        assert_ne!(again, first);
        assert_eq!(index(keys.next_window().unwrap()), index(second));
        assert_eq!(keys.next_window(), None);
    }

    #[test]
    fn a_little_may_be_added_to_a_new_windows_key() {
        let mut keys = sequence(5);
        assert!((0..1000).map(|_| keys.next_window().unwrap()).all(|key| index(key + 12) == index(key)));
    }

    #[test]
    fn the_next_tag_stays_within_the_index() {
        assert_eq!(with_next_tag(0x1234_56ff), 0x1234_5600);
        assert_eq!(with_next_tag(0x1234_5600), 0x1234_5601);
    }

    #[test]
    fn devices_differ_and_a_seed_repeats() {
        let first = |seed| sequence(seed).next_region();
        assert_ne!(first(1), first(2));
        assert_eq!(first(1), first(1));
    }
}
