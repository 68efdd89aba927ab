//! Protection domains, and what is made in them.

use super::{
    AccessFlags, AddressHandle, AddressHandleAttributes, Context, Error, MemoryRegion, MemoryWindow, MemoryWindowType,
    QpInitAttributes, QueuePair, Result, SharedReceiveQueue, SrqInitAttributes, WorkCompletion, uses::Uses,
};
use crate::host_memory::{HostMemory, OwnedMemory};
use std::sync::Arc;
use uroce_protocol::wire::GRH_LEN;

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
    /// The domain that this is a parent domain of.
    child: Option<ProtectionDomain>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Unless it has been deallocated by name.
        if self.uses.retire("").is_ok() {
            self.leave();
        }
    }
}

impl Shared {
    fn leave(&self) {
        if let Some(child) = &self.child {
            child.shared.uses.release();
        }
    }
}

impl ProtectionDomain {
    pub(super) fn new(context: Context) -> Self {
        let number = context.nic().next_number();
        Self { shared: Arc::new(Shared { context, number, uses: Uses::default(), child: None }) }
    }

    /// Its number (`ibv_pd.handle`).
    pub fn number(&self) -> u32 {
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

    /// Makes a memory window, bound to nothing (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// `ENOMEM` when there are as many as there can be.
    pub fn alloc_mw(&self, window_type: MemoryWindowType) -> Result<MemoryWindow> {
        MemoryWindow::new(self.clone(), window_type)
    }

    /// Makes a shared receive queue (`ibv_create_srq`, `ibv_create_srq_ex`).
    ///
    /// # Errors
    /// `EINVAL` when a capability exceeds the device's, or the XRC domain or completion queue is another context's;
    /// `ENOMEM` when there are no shared receive queues left.
    pub fn create_srq(&self, attributes: &SrqInitAttributes<'_>) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::new(self.clone(), attributes)
    }

    /// Makes an address handle (`ibv_create_ah`): a way to a host, or to a multicast group.
    ///
    /// # Errors
    /// `EINVAL` when the attributes do not name a way that the device has.
    pub fn create_ah(&self, attributes: &AddressHandleAttributes) -> Result<AddressHandle> {
        AddressHandle::new(self.clone(), attributes)
    }

    /// Makes an address handle of the way back to whoever sent a datagram (`ibv_create_ah_from_wc`): see
    /// [`Context::init_ah_from_wc`].
    ///
    /// # Errors
    /// As [`Self::create_ah`] and [`Context::init_ah_from_wc`].
    pub fn create_ah_from_wc(
        &self,
        completion: &WorkCompletion,
        grh: &[u8; GRH_LEN],
        port_num: u8,
    ) -> Result<AddressHandle> {
        self.create_ah(&self.context().init_ah_from_wc(port_num, completion, grh)?)
    }

    /// Makes a queue pair (`ibv_create_qp`), in state RESET.
    ///
    /// # Errors
    /// `EINVAL` when a capability exceeds the device's, or a completion queue is another context's; `ENOMEM` when
    /// there are no queue pairs left.
    pub fn create_qp(&self, attributes: &QpInitAttributes<'_>) -> Result<QueuePair> {
        QueuePair::new(self.clone(), attributes)
    }

    /// Makes a parent domain of it (`ibv_alloc_parent_domain`): what is made in that is of this protection domain, but
    /// comes and goes with the parent.
    ///
    /// # Errors
    /// `EINVAL` when it has been deallocated, or is a parent domain itself.
    pub fn alloc_parent_domain(&self) -> Result<Self> {
        if self.shared.child.is_some() {
            return Err(Error::InvalidArgument("this is a parent domain already"));
        }
        self.shared.uses.acquire()?;
        let Shared { context, number, .. } = &*self.shared;
        let shared =
            Shared { context: context.clone(), number: *number, uses: Uses::default(), child: Some(self.clone()) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Frees it (`ibv_dealloc_pd`): `EBUSY` while anything is made in it.
    pub fn dealloc(&self) -> Result<()> {
        self.shared.uses.retire("something still belongs to the protection domain")?;
        self.shared.leave();
        Ok(())
    }
}
