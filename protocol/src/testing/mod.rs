//! What tests of the state machines stand on: memory that is a map, packets made of headers and payload, and two
//! queue pairs with a wire between them.
//!
//! Only compiled for this crate's own tests and with the feature `testing`.

mod hostile;
mod pair;
mod workload;

pub use hostile::feed_any_bytes;
pub use pair::{Endpoint, Fate, Pair, PairConfig, Side, add_to, all_access_but, read_from, request, write_to};
pub use workload::{Kind, Planned, Workload, noise};

use crate::{
    AccessFlags, AtomicOperation, LocalFault, Memory, RemoteFault, Sge, WindowBinding,
    rc::{Source, Transmit},
    wire::{Packet, RKey, Repr},
};
use std::{cell::RefCell, collections::BTreeMap};

/// A protection domain's regions as plain vectors, at whatever addresses a test likes. A region's local and remote
/// key are the same number. Windows need no allocation: binding one under a new key makes it.
#[derive(Clone, Debug, Default)]
pub struct TestMemory {
    regions: RefCell<BTreeMap<u32, Region>>,
    windows: RefCell<BTreeMap<u32, WindowBinding>>,
    flushes: RefCell<Vec<(u64, Option<u64>)>>,
}

#[derive(Clone, Debug)]
struct Region {
    address: u64,
    bytes: Vec<u8>,
    access: AccessFlags,
    invalidated: bool,
}

impl Region {
    /// The indices of `length` bytes at `address`, `None` when they are not all inside.
    fn range(&self, address: u64, length: u64) -> Option<core::ops::Range<usize>> {
        let start = address.checked_sub(self.address)?;
        let end = start.checked_add(length)?;
        (end <= self.bytes.len() as u64).then_some(start as usize..end as usize)
    }
}

impl TestMemory {
    /// Every right that a region can give.
    pub const ALL_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
        .union(AccessFlags::REMOTE_WRITE)
        .union(AccessFlags::REMOTE_READ)
        .union(AccessFlags::REMOTE_ATOMIC)
        .union(AccessFlags::MW_BIND)
        .union(AccessFlags::FLUSH_GLOBAL);

    /// Memory without regions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `bytes` at `address` with the rights `access`, in place of any earlier region of the same key.
    pub fn register(&self, key: u32, address: u64, bytes: Vec<u8>, access: AccessFlags) {
        self.regions.borrow_mut().insert(key, Region { address, bytes, access, invalidated: false });
    }

    /// Forgets a region.
    pub fn deregister(&self, key: u32) {
        self.regions.borrow_mut().remove(&key);
    }

    /// What a region holds.
    ///
    /// # Panics
    /// When there is no such region.
    pub fn bytes(&self, key: u32) -> Vec<u8> {
        self.regions.borrow()[&key].bytes.clone()
    }

    /// What FLUSHes have asked for, in order: first address and length, `None` for a whole region.
    pub fn flushes(&self) -> Vec<(u64, Option<u64>)> {
        self.flushes.borrow().clone()
    }

    /// Whether remote access has been taken away from a region by an invalidation.
    ///
    /// # Panics
    /// When there is no such region.
    pub fn is_invalidated(&self, key: u32) -> bool {
        self.regions.borrow()[&key].invalidated
    }

    /// The payload of a packet to send, `None` when it may not be read (any more).
    pub fn gather(&self, source: &Source<'_>) -> Option<Vec<u8>> {
        match *source {
            Source::Empty => Some(Vec::new()),
            Source::Inline(bytes) => Some(bytes.to_vec()),
            Source::Local { list, offset, length } => {
                let mut all = Vec::new();
                for sge in list {
                    let regions = self.regions.borrow();
                    let region = regions.get(&sge.lkey)?;
                    all.extend_from_slice(&region.bytes[region.range(sge.address, sge.length.into())?]);
                }
                Some(all[offset as usize..][..length].to_vec())
            }
            Source::Remote { rkey, address, length, .. } => {
                self.remote(rkey, address, length as u64, AccessFlags::REMOTE_READ, |bytes| bytes.to_vec()).ok()
            }
        }
    }

    fn remote<T>(
        &self,
        rkey: RKey,
        address: u64,
        length: u64,
        access: AccessFlags,
        act: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, RemoteFault> {
        let window = self.windows.borrow().get(&rkey.0).copied();
        let (key, allowed) = match window {
            Some(WindowBinding { lkey, address: start, length: size, access: allowed, .. }) => {
                if address < start || address + length > start + size {
                    return Err(RemoteFault::OutOfRange);
                }
                (lkey, Some(allowed))
            }
            None => (rkey.0, None),
        };
        let mut regions = self.regions.borrow_mut();
        let region = regions.get_mut(&key).filter(|region| !region.invalidated).ok_or(RemoteFault::UnknownKey)?;
        let range = region.range(address, length).ok_or(RemoteFault::OutOfRange)?;
        if !allowed.unwrap_or(region.access).contains(access) {
            return Err(RemoteFault::AccessDenied);
        }
        Ok(act(&mut region.bytes[range]))
    }
}

impl Memory for TestMemory {
    fn check_local(&self, list: &[Sge], write: bool) -> Result<(), LocalFault> {
        let regions = self.regions.borrow();
        for sge in list {
            let region = regions.get(&sge.lkey).ok_or(LocalFault::UnknownKey)?;
            region.range(sge.address, sge.length.into()).ok_or(LocalFault::OutOfRange)?;
            if write && !region.access.contains(AccessFlags::LOCAL_WRITE) {
                return Err(LocalFault::AccessDenied);
            }
        }
        Ok(())
    }

    fn scatter(&self, list: &[Sge], mut offset: u64, mut bytes: &[u8]) -> Result<(), LocalFault> {
        self.check_local(list, true)?;
        let mut regions = self.regions.borrow_mut();
        for sge in list {
            let length = u64::from(sge.length);
            if offset >= length {
                offset -= length;
                continue;
            }
            let (now, later) = bytes.split_at(bytes.len().min((length - offset) as usize));
            let region = regions.get_mut(&sge.lkey).ok_or(LocalFault::UnknownKey)?;
            let range = region.range(sge.address + offset, now.len() as u64).ok_or(LocalFault::OutOfRange)?;
            region.bytes[range].copy_from_slice(now);
            (offset, bytes) = (0, later);
        }
        assert!(bytes.is_empty(), "the caller guarantees that offset and length lie inside the list");
        Ok(())
    }

    fn check_remote(&self, rkey: RKey, address: u64, length: u64, access: AccessFlags) -> Result<(), RemoteFault> {
        assert_ne!(length, 0, "the key of an empty request is never asked about");
        self.remote(rkey, address, length, access, |_| ())
    }

    fn write_remote(&self, rkey: RKey, address: u64, bytes: &[u8]) -> Result<(), RemoteFault> {
        self.remote(rkey, address, bytes.len() as u64, AccessFlags::REMOTE_WRITE, |target| {
            target.copy_from_slice(bytes);
        })
    }

    fn atomic(&self, rkey: RKey, address: u64, operation: AtomicOperation) -> Result<u64, RemoteFault> {
        if !address.is_multiple_of(8) {
            return Err(RemoteFault::Misaligned);
        }
        self.remote(rkey, address, 8, AccessFlags::REMOTE_ATOMIC, |target| {
            let mut word = [0; 8];
            word.copy_from_slice(target);
            let before = u64::from_ne_bytes(word);
            let after = match operation {
                AtomicOperation::CompareSwap { compare, swap } if before == compare => swap,
                AtomicOperation::CompareSwap { .. } => before,
                AtomicOperation::FetchAdd { add } => before.wrapping_add(add),
            };
            target.copy_from_slice(&after.to_ne_bytes());
            before
        })
    }

    fn atomic_write(&self, rkey: RKey, address: u64, bytes: [u8; 8]) -> Result<(), RemoteFault> {
        if !address.is_multiple_of(8) {
            return Err(RemoteFault::Misaligned);
        }
        self.write_remote(rkey, address, &bytes)
    }

    fn flush(&self, rkey: RKey, address: u64, length: Option<u64>) -> Result<(), RemoteFault> {
        if let Some(length) = length {
            self.remote(rkey, address, length, AccessFlags::FLUSH_GLOBAL, |_| ())?;
        } else {
            let regions = self.regions.borrow();
            let region = regions.get(&rkey.0).filter(|region| !region.invalidated).ok_or(RemoteFault::UnknownKey)?;
            if !region.access.contains(AccessFlags::FLUSH_GLOBAL) {
                return Err(RemoteFault::AccessDenied);
            }
        }
        self.flushes.borrow_mut().push((address, length));
        Ok(())
    }

    fn invalidate(&self, rkey: RKey) -> Result<(), RemoteFault> {
        if self.windows.borrow_mut().remove(&rkey.0).is_some() {
            return Ok(());
        }
        let mut regions = self.regions.borrow_mut();
        regions.get_mut(&rkey.0).ok_or(RemoteFault::UnknownKey)?.invalidated = true;
        Ok(())
    }

    fn invalidate_local(&self, rkey: RKey) -> Result<(), LocalFault> {
        self.invalidate(rkey).map_err(|_| LocalFault::UnknownKey)
    }

    fn bind_window(&self, binding: &WindowBinding) -> Result<(), LocalFault> {
        let regions = self.regions.borrow();
        let region = regions.get(&binding.lkey).ok_or(LocalFault::UnknownKey)?;
        region.range(binding.address, binding.length).ok_or(LocalFault::OutOfRange)?;
        if !region.access.contains(AccessFlags::MW_BIND) {
            return Err(LocalFault::AccessDenied);
        }
        match self.windows.borrow_mut().insert(binding.key.0, *binding) {
            None => Ok(()),
            Some(_) => Err(LocalFault::WindowState),
        }
    }
}

/// A packet that owns its bytes. Its ICRC is left 0: the state machines never look at it.
#[derive(Clone, PartialEq, Eq)]
pub struct OwnedPacket(Vec<u8>);

impl OwnedPacket {
    /// `header` (whose pad is set here), `payload`, pad, ICRC.
    ///
    /// # Panics
    /// When the header's opcode and its extended headers do not belong together.
    pub fn new(mut header: Repr, payload: &[u8]) -> Self {
        header.bth.pad = (payload.len().wrapping_neg() & 3) as u8;
        let mut bytes = vec![0; header.header_len()];
        header.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + usize::from(header.bth.pad) + 4, 0);
        let packet = Self(bytes);
        packet.view();
        packet
    }

    /// A copy of a packet.
    pub fn from_view(packet: &Packet<'_>) -> Self {
        Self(packet.as_bytes().to_vec())
    }

    /// What the driver would put on the wire for `transmit`; `None` when its payload cannot be read.
    ///
    /// # Panics
    /// When the pad that the state machine chose does not suit the payload.
    pub fn of(transmit: &Transmit<'_>, memory: &TestMemory) -> Option<Self> {
        let payload = memory.gather(&transmit.source)?;
        assert_eq!(usize::from(transmit.header.bth.pad), payload.len().wrapping_neg() & 3, "the header's pad");
        Some(Self::new(transmit.header, &payload))
    }

    /// The packet as the receiver sees it.
    ///
    /// # Panics
    /// Never: the bytes were checked when it was made.
    pub fn view(&self) -> Packet<'_> {
        Packet::new_checked(&self.0).expect("a packet that was made from its own headers")
    }
}

impl core::fmt::Debug for OwnedPacket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let packet = self.view();
        write!(f, "{:?} + {} bytes", Repr::parse(&packet), packet.payload().len())
    }
}
