//! Bytes that are not ours alone: the only place where pointers are dereferenced.
//!
//! Registered memory is shared with the program, as with hardware that does DMA; the rings of
//! [`shm`](crate::link::shm) with another process. Nothing here makes a reference to such bytes; they are copied through
//! raw pointers, and whole words where somebody may spin on them.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU8, AtomicU64, Ordering, fence},
};
use uroce_protocol::AtomicOperation;

const PAGE: usize = 4096;

/// A stretch of memory that somebody has promised to keep valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostMemory {
    start: *mut u8,
    length: usize,
}

// SAFETY: the pointer is only dereferenced under the promise made to `HostMemory::new`, which is not bound to a
// thread.
unsafe impl Send for HostMemory {}
// SAFETY: as above; concurrent access to the bytes is what registered memory is for.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// The `length` bytes at `start`.
    ///
    /// # Safety
    /// As long as a method of the value or of a copy of it may be called, the bytes are valid for reads, and for
    /// writes where a writing method is called; and no Rust reference to them is live while it is called.
    pub(crate) const unsafe fn new(start: *mut u8, length: usize) -> Self {
        Self { start, length }
    }

    pub(crate) const fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    pub(crate) const fn len(&self) -> usize {
        self.length
    }

    /// The `length` bytes from `offset`; `None` when they are not all inside.
    #[must_use]
    pub(crate) fn part(&self, offset: usize, length: usize) -> Option<Self> {
        // What was promised of all the bytes holds of some of them.
        self.at(offset, length).map(|start| Self { start, length })
    }

    /// Where `length` bytes from `offset` begin, `None` when they are not all inside.
    fn at(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        // `wrapping_add` stays inside the allocation because `end` does.
        (end <= self.length).then(|| self.start.wrapping_add(offset))
    }

    /// As [`Self::at`], for one aligned word.
    fn word_at(&self, offset: usize) -> Option<*mut u64> {
        let word = self.at(offset, 8)?.cast::<u64>();
        word.is_aligned().then_some(word)
    }

    /// Copies bytes out; `None` when the range is not inside.
    #[must_use]
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Option<()> {
        let from = self.at(offset, to.len())?;
        // SAFETY: `at` has checked the range, which `new` was promised to be readable; `to` is an exclusive
        // reference, so no registered memory (to which no reference may be live) overlaps it.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Some(())
    }

    /// Copies bytes in; `None` when the range is not inside.
    ///
    /// The last byte becomes visible last, and with it the last eight bytes when they are one aligned word:
    /// programs spin on the end of the buffer that a peer's WRITE fills.
    #[must_use]
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Option<()> {
        let to = self.at(offset, from.len())?;
        let Some((&last, body)) = from.split_last() else { return Some(()) };
        if let Some((body, last_word)) = from.split_last_chunk::<8>()
            && let Some(word) = self.word_at(offset + body.len())
        {
            // SAFETY: `at` has checked the whole range, which `new` was promised to be writable; `from` is a
            // reference, so it does not overlap registered memory.
            unsafe { ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) };
            // SAFETY: `word_at` has checked range and alignment; see above for validity.
            unsafe { AtomicU64::from_ptr(word) }.store(u64::from_ne_bytes(*last_word), Ordering::Release);
        } else {
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) };
            // SAFETY: the last byte of the checked range; a byte is always aligned.
            unsafe { AtomicU8::from_ptr(to.wrapping_add(body.len())) }.store(last, Ordering::Release);
        }
        Some(())
    }

    /// Sets bytes to one value; `None` when the range is not inside.
    #[must_use]
    pub(crate) fn fill(&self, offset: usize, length: usize, value: u8) -> Option<()> {
        let to = self.at(offset, length)?;
        // SAFETY: `at` has checked the range, which `new` was promised to be writable.
        unsafe { ptr::write_bytes(to, value, length) };
        fence(Ordering::Release);
        Some(())
    }

    /// Reads an aligned word in host order, with acquire ordering; `None` when it is not inside, or not aligned.
    #[must_use]
    pub(crate) fn load_u64(&self, offset: usize) -> Option<u64> {
        let word = self.word_at(offset)?;
        // SAFETY: `word_at` has checked range and alignment; `new` was promised that the bytes are readable.
        Some(unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire))
    }

    /// Writes an aligned word in host order, with release ordering; `None` as for [`Self::load_u64`].
    #[must_use]
    pub(crate) fn store_u64(&self, offset: usize, value: u64) -> Option<()> {
        let word = self.word_at(offset)?;
        // SAFETY: `word_at` has checked range and alignment; `new` was promised that the bytes are writable.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
        Some(())
    }

    /// Reads a byte with acquire ordering; `None` when it is not inside.
    #[must_use]
    pub(crate) fn load_u8(&self, offset: usize) -> Option<u8> {
        let byte = self.at(offset, 1)?;
        // SAFETY: `at` has checked the range, which `new` was promised to be readable.
        Some(unsafe { AtomicU8::from_ptr(byte) }.load(Ordering::Acquire))
    }

    /// Executes an atomic on an aligned word in host order and returns its value before: atomic for this
    /// device, for every other and for the processor. `None` as for [`Self::load_u64`].
    #[must_use]
    pub(crate) fn atomic(&self, offset: usize, operation: AtomicOperation) -> Option<u64> {
        let word = self.word_at(offset)?;
        // SAFETY: `word_at` has checked range and alignment; `new` was promised that the bytes are writable.
        let word = unsafe { AtomicU64::from_ptr(word) };
        Some(match operation {
            AtomicOperation::CompareSwap { compare, swap } => {
                match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(before) | Err(before) => before,
                }
            }
            AtomicOperation::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
        })
    }
}

/// Zeroed, page-aligned bytes of the device's own, for regions that own their memory.
#[derive(Debug)]
pub(crate) struct OwnedMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its allocation, and hands out nothing but `HostMemory`.
unsafe impl Send for OwnedMemory {}
// SAFETY: as above.
unsafe impl Sync for OwnedMemory {}

impl OwnedMemory {
    /// `None` when there is no memory of that size to be had.
    pub(crate) fn new(length: usize) -> Option<Self> {
        let layout = Layout::from_size_align(length.max(1), PAGE).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    pub(crate) const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory(length: usize) -> (OwnedMemory, HostMemory) {
        let owned = OwnedMemory::new(length).unwrap();
        // SAFETY: `owned` is returned beside it and outlives it in every test.
        let memory = unsafe { HostMemory::new(owned.as_ptr(), length) };
        (owned, memory)
    }

    #[test]
    fn nothing_reaches_outside() {
        let (_owned, memory) = memory(16);
        let mut byte = [0];
        assert!(memory.read(16, &mut byte).is_none());
        assert!(memory.read(usize::MAX, &mut byte).is_none());
        assert!(memory.write(9, &[0; 8]).is_none());
        assert!(memory.fill(1, usize::MAX, 1).is_none());
        assert!(memory.load_u64(16).is_none());
        assert!(memory.load_u64(12).is_none());
        assert!(memory.read(16, &mut []).is_some());
    }

    #[test]
    fn a_word_must_be_aligned() {
        let (_owned, memory) = memory(24);
        assert!(memory.load_u64(4).is_none());
        assert!(memory.store_u64(8, 7).is_some());
        assert_eq!(memory.load_u64(8), Some(7));
    }

    #[test]
    fn atomics_return_the_value_before() {
        let (_owned, memory) = memory(8);
        assert_eq!(memory.atomic(0, AtomicOperation::FetchAdd { add: 5 }), Some(0));
        assert_eq!(memory.atomic(0, AtomicOperation::CompareSwap { compare: 4, swap: 9 }), Some(5));
        assert_eq!(memory.atomic(0, AtomicOperation::CompareSwap { compare: 5, swap: 9 }), Some(5));
        assert_eq!(memory.load_u64(0), Some(9));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(offset in 0_usize..40, bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let (_owned, memory) = memory(128);
            memory.fill(0, 128, 0xee).unwrap();
            memory.write(offset, &bytes).unwrap();
            let mut all = [0; 128];
            memory.read(0, &mut all).unwrap();
            prop_assert!(all[..offset].iter().all(|&byte| byte == 0xee));
            prop_assert_eq!(&all[offset..offset + bytes.len()], &bytes[..]);
            prop_assert!(all[offset + bytes.len()..].iter().all(|&byte| byte == 0xee));
        }
    }
}
