//! Memory windows.

use super::{AccessFlags, Error, MemoryRegion, MemoryWindowType, ProtectionDomain, RKey, Result};
use crate::nic::{have_same_index, with_next_tag};
use parking_lot::Mutex;
use std::sync::Arc;
use uroce_protocol::WindowBinding;

/// A memory window (`struct ibv_mw`): a remote key that opens part of a memory region, once it is bound to one.
///
/// A window of type 1 is bound, and closed, by [`QueuePair::bind_mw`](super::QueuePair::bind_mw). One of type 2 is bound by posting
/// [`SendOperation::BindMemoryWindow`](super::SendOperation::BindMemoryWindow) with what [`Self::binding`] makes, answers through that
/// queue pair alone, and is closed by a local invalidate or by the peer's SEND with invalidate.
#[derive(Clone, Debug)]
pub struct MemoryWindow {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pd: ProtectionDomain,
    window_type: MemoryWindowType,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The key that it has, or will have once what has been posted is done.
    key: u32,
    is_allocated: bool,
}

impl Shared {
    fn dealloc(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.check()?;
        self.pd.context().nic().destroy_window(state.key);
        state.is_allocated = false;
        self.pd.uses().release();
        Ok(())
    }
}

impl State {
    const fn check(&self) -> Result<()> {
        if self.is_allocated { Ok(()) } else { Err(Error::InvalidArgument("the memory window has been deallocated")) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Fails when it has been deallocated by name.
        let _ = self.dealloc();
    }
}

/// What a window is to be bound to (`struct ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug)]
pub struct WindowBindInfo<'a> {
    /// The region; none only to close a window of type 1.
    pub mr: Option<&'a MemoryRegion>,
    /// Where the window begins, as the region counts addresses.
    pub address: u64,
    /// How many bytes it opens; 0 closes a window of type 1.
    pub length: u64,
    /// What it allows: remote rights and, type 2 only, [`AccessFlags::ZERO_BASED`].
    pub access: AccessFlags,
}

/// A request to bind a window of type 1 (`struct ibv_mw_bind`).
#[derive(Clone, Copy, Debug)]
pub struct WindowBind<'a> {
    /// Returned with the completion.
    pub wr_id: u64,
    /// What the window is to be bound to.
    pub info: WindowBindInfo<'a>,
    /// Whether success makes a completion.
    pub signaled: bool,
    /// Whether to wait until all earlier READs and atomics have completed.
    pub fence: bool,
}

impl MemoryWindow {
    pub(super) fn new(pd: ProtectionDomain, window_type: MemoryWindowType) -> Result<Self> {
        pd.uses().acquire()?;
        let key = match pd.context().nic().create_window(window_type, pd.number()) {
            Ok(key) => key,
            Err(error) => {
                pd.uses().release();
                return Err(error);
            }
        };
        let state = Mutex::new(State { key, is_allocated: true });
        Ok(Self { shared: Arc::new(Shared { pd, window_type, state }) })
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.shared.pd
    }

    /// Its type.
    pub fn window_type(&self) -> MemoryWindowType {
        self.shared.window_type
    }

    /// The key that remote requests name it by, once what has been posted to bind it is done. Of a window of type 2
    /// it is the key that it was allocated with: the program chooses those that it is bound by.
    pub fn rkey(&self) -> RKey {
        RKey(self.shared.state.lock().key)
    }

    /// The work request that binds a window of type 2 and gives it the key `rkey`, which may differ from its other
    /// keys in the low 8 bits (`ibv_inc_rkey`, [`inc_rkey`]).
    ///
    /// # Errors
    /// `EINVAL` for a window of type 1, one that has been deallocated, or a key that cannot be this window's.
    pub fn binding(&self, rkey: RKey, info: &WindowBindInfo<'_>) -> Result<WindowBinding> {
        // Before the lock, which `bind` holds while it posts: this may be called while posting.
        if self.shared.window_type == MemoryWindowType::Type1 {
            return Err(Error::InvalidArgument("a memory window of type 1 is bound by bind_mw"));
        }
        let state = self.shared.state.lock();
        state.check()?;
        if !have_same_index(state.key, rkey.0) {
            return Err(Error::InvalidArgument("the key's upper 24 bits are not the memory window's"));
        }
        Ok(info.with_key(rkey))
    }

    /// Has `post` post the work request that binds a window of type 1, and takes its next key when it is taken.
    pub(super) fn bind(
        &self,
        info: &WindowBindInfo<'_>,
        post: impl FnOnce(WindowBinding) -> Result<()>,
    ) -> Result<RKey> {
        let mut state = self.shared.state.lock();
        state.check()?;
        if self.shared.window_type != MemoryWindowType::Type1 {
            return Err(Error::InvalidArgument("a memory window of type 2 is bound by a work request"));
        }
        if info.access.contains(AccessFlags::ZERO_BASED) {
            return Err(Error::InvalidArgument("a memory window of type 1 cannot be zero-based"));
        }
        if info.mr.is_none() && (info.address != 0 || info.length != 0) {
            return Err(Error::InvalidArgument("a memory window is bound to a region"));
        }
        let key = with_next_tag(state.key);
        post(info.with_key(RKey(key)))?;
        state.key = key;
        Ok(RKey(key))
    }

    /// Closes it, if it is bound, and frees it (`ibv_dealloc_mw`).
    ///
    /// # Errors
    /// `EINVAL` when it has been deallocated before.
    pub fn dealloc(&self) -> Result<()> {
        self.shared.dealloc()
    }
}

impl WindowBindInfo<'_> {
    fn with_key(&self, key: RKey) -> WindowBinding {
        let lkey = self.mr.map_or(0, MemoryRegion::lkey);
        WindowBinding { key, lkey, address: self.address, length: self.length, access: self.access }
    }
}

/// The key after `rkey` of the same memory window: its low 8 bits one further (`ibv_inc_rkey`).
pub const fn inc_rkey(rkey: RKey) -> RKey {
    RKey(with_next_tag(rkey.0))
}
