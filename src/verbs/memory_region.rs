//! Registered memory.

use super::{AccessFlags, ProtectionDomain, RKey, Result, Sge};
use std::sync::Arc;

/// A memory region (`struct ibv_mr`): bytes that the device may read and write.
///
/// The bytes are shared with the device, and through it with remote peers, as with hardware DMA: see
/// [the module](super#memory). Accessors copy; none of them tears an aligned 8-byte word.
#[derive(Clone, Debug)]
pub struct MemoryRegion {
    inner: Arc<()>,
}

impl MemoryRegion {
    /// The protection domain that it belongs to.
    pub fn pd(&self) -> ProtectionDomain {
        let _ = &self.inner;
        todo!()
    }

    /// The key that local scatter-gather elements name it by.
    pub fn lkey(&self) -> u32 {
        todo!()
    }

    /// The key that remote requests name it by.
    pub fn rkey(&self) -> RKey {
        todo!()
    }

    /// The address of its first byte, as requests count: the memory's own address, the IOVA, or 0.
    pub fn address(&self) -> u64 {
        todo!()
    }

    /// How many bytes it has.
    pub fn length(&self) -> usize {
        todo!()
    }

    /// Where its memory lies in this process (`ibv_mr.addr`).
    pub fn as_ptr(&self) -> *mut u8 {
        todo!()
    }

    /// What it allows.
    pub fn access(&self) -> AccessFlags {
        todo!()
    }

    /// A scatter-gather element of `length` bytes that begins `offset` bytes into the region.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            address: self.address().wrapping_add(offset as u64),
            length: u32::try_from(length).unwrap_or(u32::MAX),
            lkey: self.lkey(),
        }
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `EINVAL` when the range is not inside the region, or the region has been deregistered.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let _ = (offset, bytes);
        todo!()
    }

    /// Copies bytes in; errors as [`Self::read`]. What the region allows the device does not matter.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let _ = (offset, bytes);
        todo!()
    }

    /// Sets `length` bytes to one value; errors as [`Self::read`].
    pub fn fill(&self, offset: usize, length: usize, value: u8) -> Result<()> {
        let _ = (offset, length, value);
        todo!()
    }

    /// Reads the word at `offset`, in host order, with acquire ordering: made for spinning until a peer's WRITE
    /// arrives.
    ///
    /// # Errors
    /// As [`Self::read`]; `EINVAL` also when the word is not 8-byte aligned in memory.
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        let _ = offset;
        todo!()
    }

    /// Writes the word at `offset`, in host order, with release ordering; errors as [`Self::load_u64`].
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        let _ = (offset, value);
        todo!()
    }

    /// Reads the byte at `offset` with acquire ordering; errors as [`Self::read`].
    pub fn load_u8(&self, offset: usize) -> Result<u8> {
        let _ = offset;
        todo!()
    }

    /// Changes protection domain, access, or both (`ibv_rereg_mr`). The keys change: whoever holds an old one has
    /// lost access.
    ///
    /// # Errors
    /// As [`ProtectionDomain::reg_mr`]; the region is then as it was.
    pub fn rereg(&self, pd: Option<&ProtectionDomain>, access: Option<AccessFlags>) -> Result<()> {
        let _ = (pd, access);
        todo!()
    }

    /// Deregisters it (`ibv_dereg_mr`), traffic or not: when this returns, the device no longer touches the memory.
    /// Work that still refers to it ends in an error.
    ///
    /// # Errors
    /// `EINVAL` when it has been deregistered before.
    pub fn dereg(&self) -> Result<()> {
        todo!()
    }
}
