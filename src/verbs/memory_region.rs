//! Registered memory.

use super::{AccessFlags, Error, ProtectionDomain, RKey, Result, Sge};
use crate::nic::{HostMemory, OwnedMemory, Registration};
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

    /// Ends the registration; returns whether there was one.
    fn deregister(&mut self) -> bool {
        let was_registered = std::mem::replace(&mut self.is_registered, false);
        if was_registered {
            self.pd.context().nic().deregister(self.key);
            self.pd.uses().release();
        }
        was_registered
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.state.get_mut().deregister();
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
        if !state.is_registered {
            return Err(Error::InvalidArgument("the memory region has been deregistered"));
        }
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

    /// Changes protection domain, access, or both (`ibv_rereg_mr`). The keys change: whoever holds an old one has
    /// lost access.
    ///
    /// # Errors
    /// As [`ProtectionDomain::reg_mr`], and `EINVAL` for another context's protection domain or a deregistered
    /// region; the region is then as it was.
    pub fn rereg(&self, pd: Option<&ProtectionDomain>, access: Option<AccessFlags>) -> Result<()> {
        let mut state = self.shared.state.write();
        if !state.is_registered {
            return Err(Error::InvalidArgument("the memory region has been deregistered"));
        }
        let pd = pd.unwrap_or(&state.pd).clone();
        if !pd.context().is_same(state.pd.context()) {
            return Err(Error::InvalidArgument("the protection domain is another context's"));
        }
        pd.uses().acquire()?;
        let mut new = State {
            pd,
            key: state.key,
            memory: state.memory,
            address: state.address,
            access: access.unwrap_or(state.access),
            is_registered: true,
        };
        match new.pd.context().nic().reregister(state.key, new.registration()) {
            Ok(key) => new.key = key,
            Err(error) => {
                new.pd.uses().release();
                return Err(error);
            }
        }
        state.pd.uses().release();
        *state = new;
        Ok(())
    }

    /// Deregisters it (`ibv_dereg_mr`), traffic or not: when this returns, the device no longer touches the memory.
    /// Work that still refers to it ends in an error.
    ///
    /// # Errors
    /// `EINVAL` when it has been deregistered before.
    pub fn dereg(&self) -> Result<()> {
        if self.shared.state.write().deregister() {
            Ok(())
        } else {
            Err(Error::InvalidArgument("the memory region has been deregistered before"))
        }
    }
}
