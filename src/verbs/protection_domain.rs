//! Protection domains, and what is made in them.

use super::{AccessFlags, Context, Error, MemoryRegion, QpInitAttributes, QueuePair, Result, uses::Uses};
use crate::nic::{HostMemory, OwnedMemory};
use std::sync::Arc;

/// A protection domain (`struct ibv_pd`): queue pairs reach only the memory regions of their own.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    context: Context,
    number: u32,
    uses: Uses,
}

impl ProtectionDomain {
    pub(super) fn new(context: Context) -> Self {
        let number = context.nic().next_number();
        Self { shared: Arc::new(Shared { context, number, uses: Uses::default() }) }
    }

    pub(super) fn number(&self) -> u32 {
        self.shared.number
    }

    pub(super) fn uses(&self) -> &Uses {
        &self.shared.uses
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Registers `length` zeroed bytes that the region owns, page-aligned.
    ///
    /// # Errors
    /// `EINVAL` when remote write or atomic access is asked for without local write; `ENOMEM` when memory or keys
    /// are used up.
    pub fn reg_mr(&self, length: usize, access: AccessFlags) -> Result<MemoryRegion> {
        let owned = OwnedMemory::new(length).ok_or(Error::Exhausted("there is not as much memory"))?;
        // SAFETY: the region owns the memory, and deregisters it before it frees it. Nobody is given a reference.
        let memory = unsafe { HostMemory::new(owned.as_ptr(), length) };
        MemoryRegion::new(self.clone(), memory, None, access, Some(owned))
    }

    /// Registers memory of the caller's (`ibv_reg_mr`). Addresses count from `start`, or from 0 with
    /// [`AccessFlags::ZERO_BASED`].
    ///
    /// # Safety
    /// From now until [`MemoryRegion::dereg`] has returned or the last handle is gone, the `length` bytes at
    /// `start` must be valid for reads, and for writes where `access` has [`AccessFlags::LOCAL_WRITE`]; and no
    /// reference to them may be live while the device may access them, which is whenever a work request or a remote
    /// key allows it to.
    ///
    /// # Errors
    /// As [`Self::reg_mr`].
    pub unsafe fn reg_mr_raw(&self, start: *mut u8, length: usize, access: AccessFlags) -> Result<MemoryRegion> {
        // SAFETY: the caller's promise, which is the same.
        let memory = unsafe { HostMemory::new(start, length) };
        MemoryRegion::new(self.clone(), memory, None, access, None)
    }

    /// Registers memory of the caller's so that addresses count from `iova` (`ibv_reg_mr_iova2`).
    ///
    /// # Safety
    /// As [`Self::reg_mr_raw`].
    ///
    /// # Errors
    /// As [`Self::reg_mr`]; `EINVAL` also when the range of addresses wraps round.
    pub unsafe fn reg_mr_raw_iova(
        &self,
        start: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion> {
        // SAFETY: the caller's promise, which is the same.
        let memory = unsafe { HostMemory::new(start, length) };
        MemoryRegion::new(self.clone(), memory, Some(iova), access, None)
    }

    /// Makes a queue pair (`ibv_create_qp`), in state RESET.
    ///
    /// # Errors
    /// `EINVAL` when a capability exceeds the device's, or a completion queue is another context's; `ENOMEM` when
    /// there are no queue pairs left.
    pub fn create_qp(&self, attributes: &QpInitAttributes<'_>) -> Result<QueuePair> {
        QueuePair::new(self.clone(), attributes)
    }

    /// Frees it (`ibv_dealloc_pd`): `EBUSY` while it has memory regions or queue pairs.
    pub fn dealloc(&self) -> Result<()> {
        self.shared.uses.retire("the protection domain has memory regions or queue pairs")
    }
}
