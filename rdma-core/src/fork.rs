//! What fork() does to a device: it copies the memory, and leaves the thread, the connections and the right to the
//! socket with the parent.
//!
//! A child may open the device anew. What it has inherited it must not touch: locks may have been held by threads that
//! do not exist in the child, and packets it sent would be the parent's. So every object remembers the process that
//! made it, and every entry point asks.

use crate::{
    device,
    entry::{Refusal, Result},
};
use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering},
};

/// How many forks lie between the first process of the family and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process that made an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth(u32);

impl Birth {
    pub(crate) fn now() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// `EIO` when a fork lies between the object and this process.
    pub(crate) fn check(self) -> Result<()> {
        if self.0 == GENERATION.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err(Refusal::new(libc::EIO, "the object is the parent process's: open the device anew after fork()"))
        }
    }
}

/// Has forks noticed from now on.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are functions of this library, which glibc forgets when the library is unloaded.
        let refused = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        if refused != 0 {
            tracing::warn!("no memory to watch for forks: a forked child must not use the device");
        }
    });
}

/// Nobody opens or closes the device while the process forks, so that the child finds its registry whole.
extern "C" fn prepare() {
    device::hold_registry();
}

extern "C" fn in_parent() {
    device::release_registry();
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    device::forget_registry();
    device::release_registry();
}
