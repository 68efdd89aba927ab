//! What the state machines ask of memory: protection checks, and placing bytes that arrived.
//!
//! The transport knows addresses, keys and lengths, never pointers. Whoever owns the memory (the NIC's region
//! table, a test's hash map) implements [`Memory`] for one protection domain; a key of another domain is unknown
//! to it. Bytes that *leave* do not pass through here: the driver gathers them as [`crate::rc::Source`] says.

use crate::wire::RKey;
use thiserror::Error;

bitflags::bitflags! {
    /// What a memory region allows, with the values of `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// The device may write to it on behalf of its owner (receives, READ responses, atomic results).
        const LOCAL_WRITE = 1 << 0;
        /// A remote WRITE may target it; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// A remote READ may read it.
        const REMOTE_READ = 1 << 2;
        /// A remote atomic may target it; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Remote addresses count from 0 at the region's start instead of from its virtual address.
        const ZERO_BASED = 1 << 5;
        /// A remote FLUSH may ask for global visibility. (Persistence, 1 << 9 in the verbs, is not to be had here.)
        const FLUSH_GLOBAL = 1 << 8;
        /// A SEND with invalidate, or a local invalidate, may take remote access away. Not of the verbs, where of
        /// user memory only windows can be invalidated: an ordinary region needs this to be asked for.
        const REMOTE_INVALIDATE = 1 << 31;
    }
}

/// A scatter-gather element: a range of one local memory region. It is laid out as `struct ibv_sge`, so that a list
/// from C need not be copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// The range's first address, as the region counts addresses.
    pub address: u64,
    /// The range's length in bytes.
    pub length: u32,
    /// The region's local key.
    pub lkey: u32,
}

impl Sge {
    /// The bytes that a whole list describes.
    pub fn total_length(list: &[Self]) -> u64 {
        list.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// The parameters of an atomic operation on a 64-bit big- or little-endian word (host order at the responder).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Store `swap` if the word equals `compare`.
    CompareSwap {
        /// The value to compare the word with.
        compare: u64,
        /// The value to store when they are equal.
        swap: u64,
    },
    /// Add to the word, wrapping.
    FetchAdd {
        /// The summand.
        add: u64,
    },
}

/// A memory window's new place (`struct ibv_mw_bind_info`, and the key that the window shall have).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding {
    /// The window's new key: its index as it is, in the low 8 bits a tag of the binder's choice.
    pub key: RKey,
    /// The local key of the region that it opens.
    pub lkey: u32,
    /// Where it begins, as the region counts addresses.
    pub address: u64,
    /// How many bytes it opens; 0 closes a window of type 1.
    pub length: u64,
    /// What it allows: remote rights, and `ZERO_BASED`. The region needs none of the remote rights, but
    /// `MW_BIND`, and `LOCAL_WRITE` for what writes.
    pub access: AccessFlags,
}

/// Why local memory may not be used: a buffer (`IBV_WC_LOC_PROT_ERR`), or what a window is bound to
/// (`IBV_WC_MW_BIND_ERR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LocalFault {
    /// No region of this protection domain has the key (or it has been deregistered).
    #[error("no memory region of this protection domain has the local key")]
    UnknownKey,
    /// The range is not wholly inside its region.
    #[error("the range is not inside its memory region")]
    OutOfRange,
    /// The region lacks the access the operation needs.
    #[error("the memory region does not allow this access")]
    AccessDenied,
    /// The window is bound already (type 2), or cannot be bound or invalidated that way.
    #[error("the memory window's type or state does not allow this")]
    WindowState,
}

/// Why a remote request may not touch memory (NAK remote access error, or invalid request for misalignment).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RemoteFault {
    /// No region of this protection domain has the key (or it was deregistered or invalidated).
    #[error("no memory region of this protection domain has the remote key")]
    UnknownKey,
    /// The range is not wholly inside its region, or wraps round the address space.
    #[error("the range is not inside its memory region")]
    OutOfRange,
    /// The region lacks the access the operation needs.
    #[error("the memory region does not allow this access")]
    AccessDenied,
    /// The address of an atomic or ATOMIC WRITE is not a multiple of 8.
    #[error("the address of an atomic is not a multiple of 8")]
    Misaligned,
}

/// The memory that one queue pair may reach: the regions of its protection domain, and the windows bound to them.
/// A remote key is a region's or a window's.
///
/// Every method checks everything it needs; a caller that has checked before gains nothing and loses nothing when
/// the region disappears in between.
pub trait Memory {
    /// Whether every element of `list` lies in a region that allows the access.
    ///
    /// `write` asks for `LOCAL_WRITE`; reading local memory needs no flag.
    fn check_local(&self, list: &[Sge], write: bool) -> Result<(), LocalFault>;

    /// Copies `bytes` into the buffers of `list`, starting `offset` bytes into the list's concatenation.
    ///
    /// The caller guarantees that offset and length lie inside the list. Nothing is written on error.
    fn scatter(&self, list: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), LocalFault>;

    /// Whether `[address, address + length)` lies in the region of `rkey` and `access` is allowed. A zero length
    /// is never asked about: the IBTA leaves the key of an empty request unchecked (C9-88, o9-54).
    fn check_remote(&self, rkey: RKey, address: u64, length: u64, access: AccessFlags) -> Result<(), RemoteFault>;

    /// Writes `bytes` at `address` of the region of `rkey`, which must allow `REMOTE_WRITE`.
    fn write_remote(&self, rkey: RKey, address: u64, bytes: &[u8]) -> Result<(), RemoteFault>;

    /// Executes an atomic on the 8 bytes at `address` and returns their value before, in host order. Atomic
    /// with respect to every other atomic of the device (`IBV_ATOMIC_HCA`).
    fn atomic(&self, rkey: RKey, address: u64, operation: AtomicOperation) -> Result<u64, RemoteFault>;

    /// Stores 8 bytes at `address` of the region of `rkey`, which must allow `REMOTE_WRITE`, in one piece and after
    /// everything that was written before (ATOMIC WRITE).
    fn atomic_write(&self, rkey: RKey, address: u64, bytes: [u8; 8]) -> Result<(), RemoteFault>;

    /// Makes everything that was written to `length` bytes at `address` of the region of `rkey` (to all of it for
    /// `None`) visible to everybody (FLUSH); the region must allow `FLUSH_GLOBAL`.
    fn flush(&self, rkey: RKey, address: u64, length: Option<u64>) -> Result<(), RemoteFault>;

    /// Takes remote access away from `rkey` (SEND with invalidate).
    fn invalidate(&self, rkey: RKey) -> Result<(), RemoteFault>;

    /// Takes remote access away from `rkey` on behalf of its owner (local invalidate).
    fn invalidate_local(&self, rkey: RKey) -> Result<(), LocalFault>;

    /// Binds a memory window, or closes it. What it allowed before it does not allow any more.
    fn bind_window(&self, binding: &WindowBinding) -> Result<(), LocalFault>;
}
