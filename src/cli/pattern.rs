//! Bytes that are easy to make twice and hard to get right by accident: what tests send, and compare.

use uroce::verbs::{MemoryRegion, Result};

/// How many bytes are made or compared at a time.
const CHUNK: usize = 64 << 10;

/// An endless sequence of bytes that depends on a seed alone (splitmix64).
#[derive(Clone, Debug)]
struct Sequence {
    state: u64,
}

impl Sequence {
    const fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.next().to_le_bytes()[..piece.len()]);
        }
    }
}

/// The first `length` bytes of the sequence of `seed`.
pub(crate) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Sequence::new(seed).fill(&mut bytes);
    bytes
}

/// Fills `length` bytes of a region from `offset` with the sequence of `seed`.
pub(crate) fn fill(region: &MemoryRegion, offset: usize, length: usize, seed: u64) -> Result<()> {
    let mut sequence = Sequence::new(seed);
    let mut chunk = vec![0; CHUNK.min(length)];
    for start in (0..length).step_by(CHUNK) {
        let part = &mut chunk[..CHUNK.min(length - start)];
        sequence.fill(part);
        region.write(offset + start, part)?;
    }
    Ok(())
}

/// Where `length` bytes of a region from `offset` first differ from the sequence of `seed`; counted from `offset`.
pub(crate) fn difference(region: &MemoryRegion, offset: usize, length: usize, seed: u64) -> Result<Option<usize>> {
    let mut sequence = Sequence::new(seed);
    let mut expected = vec![0; CHUNK.min(length)];
    let mut found = expected.clone();
    for start in (0..length).step_by(CHUNK) {
        let size = CHUNK.min(length - start);
        sequence.fill(&mut expected[..size]);
        region.read(offset + start, &mut found[..size])?;
        if expected[..size] != found[..size] {
            let at = expected.iter().zip(&found).position(|(expected, found)| expected != found);
            return Ok(Some(start + at.unwrap_or(0)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence() {
        assert_eq!(bytes(7, 100), bytes(7, 100));
        assert_eq!(bytes(7, 100)[..13], bytes(7, 13));
        assert_ne!(bytes(7, 100), bytes(8, 100));
    }
}
