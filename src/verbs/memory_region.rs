//! Registered memory.

use super::{AccessFlags, Error, ProtectionDomain, RKey, Result, Sge};
use crate::{
    host_memory::{HostMemory, OwnedMemory},
    nic::Registration,
};
use parking_lot::RwLock;
use std::sync::Arc;

/// A memory region (`struct ibv_mr`): bytes that the device may read and write.
///
/// The bytes are shared with the device, and through it with remote peers, as with hardware DMA: see
/// [the module](super#memory). Accessors copy.
#[derive(Clone, Debug)]
pub struct MemoryRegion {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Read by accessors, so that none of them touches memory that a [`MemoryRegion::dereg`] has let go.
    state: RwLock<State>,
    /// The memory, where it is the region's own.
    _owned: Option<OwnedMemory>,
}

#[derive(Debug)]
struct State {
    pd: ProtectionDomain,
    key: u32,
    memory: HostMemory,
    /// The address that requests name the first byte by, unless access is zero-based.
    address: u64,
    access: AccessFlags,
    is_registered: bool,
}

impl State {
    fn registration(&self) -> Registration {
        let is_zero_based = self.access.contains(AccessFlags::ZERO_BASED);
        Registration {
            memory: self.memory,
            base: if is_zero_based { 0 } else { self.address },
            access: self.access,
            pd: self.pd.number(),
        }
    }

    /// Ends the registration, unless memory windows are bound to it and it is not to be `forced`.
    fn deregister(&mut self, forced: bool) -> Result<()> {
        self.check()?;
        let nic = self.pd.context().nic();
        if forced {
            nic.purge_registration(self.key);
        } else {
            nic.deregister(self.key)?;
        }
        self.is_registered = false;
        self.pd.uses().release();
        Ok(())
    }

    const fn check(&self) -> Result<()> {
        if self.is_registered { Ok(()) } else { Err(Error::InvalidArgument("the memory region has been deregistered")) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Fails when it has been deregistered by name.
        let _ = self.state.get_mut().deregister(true);
    }
}

impl MemoryRegion {
    /// Registers memory; addresses count from `iova`, or from where it lies.
    pub(super) fn new(
        pd: ProtectionDomain,
        memory: HostMemory,
        iova: Option<u64>,
        access: AccessFlags,
        owned: Option<OwnedMemory>,
    ) -> Result<Self> {
        pd.uses().acquire()?;
        let address = iova.unwrap_or(memory.as_ptr() as u64);
        let mut state = State { pd, key: 0, memory, address, access, is_registered: true };
        match state.pd.context().nic().register(state.registration()) {
            Ok(key) => state.key = key,
            Err(error) => {
                state.pd.uses().release();
                return Err(error);
            }
        }
        Ok(Self { shared: Arc::new(Shared { state: RwLock::new(state), _owned: owned }) })
    }

    /// Does something with the memory, if it is still registered and the range is inside.
    fn with<T>(&self, act: impl FnOnce(&HostMemory) -> Option<T>) -> Result<T> {
        let state = self.shared.state.read();
        state.check()?;
        act(&state.memory).ok_or(Error::InvalidArgument("not inside the memory region, or not aligned"))
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> ProtectionDomain {
        self.shared.state.read().pd.clone()
    }

    /// The key that local scatter-gather elements name it by.
    pub fn lkey(&self) -> u32 {
        self.shared.state.read().key
    }

    /// The key that remote requests name it by.
    pub fn rkey(&self) -> RKey {
        RKey(self.lkey())
    }

    /// The address of its first byte, as requests count: the memory's own address, the IOVA, or 0.
    pub fn address(&self) -> u64 {
        self.shared.state.read().registration().base
    }

    /// How many bytes it has.
    pub fn length(&self) -> usize {
        self.shared.state.read().memory.len()
    }

    /// Where its memory lies in this process (`ibv_mr.addr`).
    pub fn as_ptr(&self) -> *mut u8 {
        self.shared.state.read().memory.as_ptr()
    }

    /// What it allows.
    pub fn access(&self) -> AccessFlags {
        self.shared.state.read().access
    }

    /// A scatter-gather element of `length` bytes that begins `offset` bytes into the region.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        let state = self.shared.state.read();
        Sge {
            address: state.registration().base.wrapping_add(offset as u64),
            length: u32::try_from(length).unwrap_or(u32::MAX),
            lkey: state.key,
        }
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `EINVAL` when the range is not inside the region, or the region has been deregistered.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.with(|memory| memory.read(offset, bytes))
    }

    /// Copies bytes in; errors as [`Self::read`]. What the region allows the device does not matter.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.with(|memory| memory.write(offset, bytes))
    }

    /// Sets `length` bytes to one value; errors as [`Self::read`].
    pub fn fill(&self, offset: usize, length: usize, value: u8) -> Result<()> {
        self.with(|memory| memory.fill(offset, length, value))
    }

    /// Reads the word at `offset`, in host order, with acquire ordering: made for spinning until a peer's WRITE
    /// arrives.
    ///
    /// # Errors
    /// As [`Self::read`]; `EINVAL` also when the word is not 8-byte aligned in memory.
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        self.with(|memory| memory.load_u64(offset))
    }

    /// Writes the word at `offset`, in host order, with release ordering; errors as [`Self::load_u64`].
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        self.with(|memory| memory.store_u64(offset, value))
    }

    /// Reads the byte at `offset` with acquire ordering; errors as [`Self::read`].
    pub fn load_u8(&self, offset: usize) -> Result<u8> {
        self.with(|memory| memory.load_u8(offset))
    }

    /// Changes protection domain, access, or both (`ibv_rereg_mr`). The keys stay: whoever holds the remote key
    /// has from now on what the region now allows, and remote access that was invalidated is restored.
    ///
    /// # Errors
    /// As [`ProtectionDomain::reg_mr`]; `EINVAL` for another context's protection domain or a deregistered region;
    /// `EBUSY` while memory windows are bound to it. The region is then as it was.
    pub fn rereg(&self, pd: Option<&ProtectionDomain>, access: Option<AccessFlags>) -> Result<()> {
        self.reregister(None, pd, access)
    }

    /// Changes where the memory is (`IBV_REREG_MR_CHANGE_TRANSLATION`) and, as [`Self::rereg`], what else is
    /// given, in one step. Addresses count from `start` from now on. When this returns, the device no longer
    /// touches the memory that the region had before; memory that the region owns is freed with its last handle.
    ///
    /// # Safety
    /// As [`ProtectionDomain::reg_mr_raw`].
    ///
    /// # Errors
    /// As [`Self::rereg`].
    pub unsafe fn rereg_raw(
        &self,
        start: *mut u8,
        length: usize,
        pd: Option<&ProtectionDomain>,
        access: Option<AccessFlags>,
    ) -> Result<()> {
        // SAFETY: the caller's promise, which is the same.
        let memory = unsafe { HostMemory::new(start, length) };
        self.reregister(Some(memory), pd, access)
    }

    fn reregister(
        &self,
        memory: Option<HostMemory>,
        pd: Option<&ProtectionDomain>,
        access: Option<AccessFlags>,
    ) -> Result<()> {
        let mut state = self.shared.state.write();
        state.check()?;
        let pd = pd.unwrap_or(&state.pd).clone();
        if !pd.context().is_same(state.pd.context()) {
            return Err(Error::InvalidArgument("the protection domain is another context's"));
        }
        pd.uses().acquire()?;
        let new = State {
            pd,
            key: state.key,
            memory: memory.unwrap_or(state.memory),
            address: memory.map_or(state.address, |memory| memory.as_ptr() as u64),
            access: access.unwrap_or(state.access),
            is_registered: true,
        };
        if let Err(error) = new.pd.context().nic().reregister(state.key, new.registration()) {
            new.pd.uses().release();
            return Err(error);
        }
        state.pd.uses().release();
        *state = new;
        Ok(())
    }

    /// Deregisters it (`ibv_dereg_mr`), traffic or not: when this returns, the device no longer touches the memory.
    /// Work that still refers to it ends in an error.
    ///
    /// # Errors
    /// `EINVAL` when it has been deregistered before; `EBUSY` while a memory window is bound to it.
    pub fn dereg(&self) -> Result<()> {
        self.shared.state.write().deregister(false)
    }
}
