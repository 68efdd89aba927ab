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
        /// Remote addresses count from 0 at the region's start instead of from its virtual address.
        const ZERO_BASED = 1 << 5;
        /// A SEND with invalidate may take remote access away. Not of the verbs, where only memory windows can be
        /// invalidated from afar: an ordinary region needs this to be asked for.
        const REMOTE_INVALIDATE = 1 << 31;
    }
}

/// A scatter-gather element: a range of one local memory region (`struct ibv_sge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// Why a local buffer may not be used (`IBV_WC_LOC_PROT_ERR`).
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
    /// An atomic's address is not a multiple of 8.
    #[error("the address of an atomic is not a multiple of 8")]
    Misaligned,
}

/// The memory that one queue pair may reach: the regions of its protection domain.
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

    /// Takes remote access away from `rkey` (SEND with invalidate).
    fn invalidate(&self, rkey: RKey) -> Result<(), RemoteFault>;
}
