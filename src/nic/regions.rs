//! The memory regions of a device, and what a protection domain sees of them.

use super::{
    Error, Result,
    host_memory::HostMemory,
    keys::{KeySequence, Random},
};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use uroce_protocol::{AccessFlags, AtomicOperation, LocalFault, Memory, RemoteFault, Sge, wire::RKey};

/// What a caller registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration {
    pub(crate) memory: HostMemory,
    /// The address that requests name the first byte by.
    pub(crate) base: u64,
    pub(crate) access: AccessFlags,
    pub(crate) pd: u32,
}

#[derive(Debug)]
struct Region {
    registered: Registration,
    /// Whether remote requests may still use the key: a SEND with invalidate takes that away.
    remote: AtomicBool,
}

impl Region {
    /// How far into the region a range begins, if it is wholly inside. A range that would wrap round is not.
    fn offset(&self, address: u64, length: u64) -> Option<usize> {
        let offset = address.checked_sub(self.registered.base)?;
        let end = offset.checked_add(length)?;
        (end <= self.registered.memory.len() as u64).then_some(offset as usize)
    }
}

/// Every region of a device, by key. Local and remote key are the same number.
#[derive(Debug)]
pub(crate) struct RegionTable {
    regions: FxHashMap<u32, Region>,
    keys: KeySequence,
}

impl RegionTable {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self { regions: FxHashMap::default(), keys: KeySequence::new(random) }
    }

    /// Registers memory and returns its key.
    pub(crate) fn insert(&mut self, registered: Registration) -> Result<u32> {
        let needs_local_write = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        if registered.access.intersects(needs_local_write) && !registered.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(Error::InvalidArgument("remote write and remote atomic access need local write access"));
        }
        if registered.base.checked_add(registered.memory.len() as u64).is_none() {
            return Err(Error::InvalidArgument("the region's addresses would wrap round"));
        }
        let key = self.keys.next().ok_or(Error::Exhausted("every key has been given out"))?;
        self.regions.insert(key, Region { registered, remote: AtomicBool::new(true) });
        Ok(key)
    }

    /// Forgets a region; returns what was registered.
    pub(crate) fn remove(&mut self, key: u32) -> Option<Registration> {
        self.regions.remove(&key).map(|region| region.registered)
    }

    /// What queue pairs of protection domain `pd` see.
    pub(crate) const fn view(&self, pd: u32) -> MemoryView<'_> {
        MemoryView { table: self, pd }
    }
}

/// The regions of one protection domain: [`Memory`] as the state machines know it, and the way out for payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryView<'a> {
    table: &'a RegionTable,
    pd: u32,
}

impl<'a> MemoryView<'a> {
    fn region(&self, key: u32) -> Option<&'a Region> {
        self.table.regions.get(&key).filter(|region| region.registered.pd == self.pd)
    }

    fn local(&self, sge: &Sge, write: bool) -> Result<(HostMemory, usize), LocalFault> {
        let region = self.region(sge.lkey).ok_or(LocalFault::UnknownKey)?;
        let offset = region.offset(sge.address, sge.length.into()).ok_or(LocalFault::OutOfRange)?;
        if write && !region.registered.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(LocalFault::AccessDenied);
        }
        Ok((region.registered.memory, offset))
    }

    fn remote(
        &self,
        rkey: RKey,
        address: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<(HostMemory, usize), RemoteFault> {
        let region = self
            .region(rkey.0)
            .filter(|region| region.remote.load(Ordering::Acquire))
            .ok_or(RemoteFault::UnknownKey)?;
        let offset = region.offset(address, length).ok_or(RemoteFault::OutOfRange)?;
        if !region.registered.access.contains(access) {
            return Err(RemoteFault::AccessDenied);
        }
        Ok((region.registered.memory, offset))
    }

    /// Fills `to` from the concatenation of `list`, starting `offset` bytes into it.
    pub(crate) fn gather(&self, list: &[Sge], offset: u64, mut to: &mut [u8]) -> Result<(), LocalFault> {
        for piece in Pieces::new(list, offset, to.len()) {
            let (now, later) = to.split_at_mut(piece.length as usize);
            let (memory, at) = self.local(&piece, false)?;
            memory.read(at, now).ok_or(LocalFault::OutOfRange)?;
            to = later;
        }
        if to.is_empty() { Ok(()) } else { Err(LocalFault::OutOfRange) }
    }

    /// Fills `to` from `address` of the region of `rkey`, which must allow remote reads.
    pub(crate) fn read_remote(&self, rkey: RKey, address: u64, to: &mut [u8]) -> Result<(), RemoteFault> {
        let (memory, at) = self.remote(rkey, address, to.len() as u64, AccessFlags::REMOTE_READ)?;
        memory.read(at, to).ok_or(RemoteFault::OutOfRange)
    }
}

impl Memory for MemoryView<'_> {
    fn check_local(&self, list: &[Sge], write: bool) -> Result<(), LocalFault> {
        // An empty element names nothing, so its key is not looked at.
        list.iter().filter(|sge| sge.length > 0).try_for_each(|sge| self.local(sge, write).map(|_| ()))
    }

    fn scatter(&self, list: &[Sge], offset: u64, mut bytes: &[u8]) -> Result<(), LocalFault> {
        let pieces = Pieces::new(list, offset, bytes.len());
        // Nothing is written on an error: look at every piece before writing the first. One piece is its own check.
        if pieces.clone().nth(1).is_some() {
            pieces.clone().try_for_each(|piece| self.local(&piece, true).map(|_| ()))?;
        }
        for piece in pieces {
            let (now, later) = bytes.split_at(piece.length as usize);
            let (memory, at) = self.local(&piece, true)?;
            memory.write(at, now).ok_or(LocalFault::OutOfRange)?;
            bytes = later;
        }
        if bytes.is_empty() { Ok(()) } else { Err(LocalFault::OutOfRange) }
    }

    fn check_remote(&self, rkey: RKey, address: u64, length: u64, access: AccessFlags) -> Result<(), RemoteFault> {
        self.remote(rkey, address, length, access).map(|_| ())
    }

    fn write_remote(&self, rkey: RKey, address: u64, bytes: &[u8]) -> Result<(), RemoteFault> {
        let (memory, at) = self.remote(rkey, address, bytes.len() as u64, AccessFlags::REMOTE_WRITE)?;
        memory.write(at, bytes).ok_or(RemoteFault::OutOfRange)
    }

    fn atomic(&self, rkey: RKey, address: u64, operation: AtomicOperation) -> Result<u64, RemoteFault> {
        if !address.is_multiple_of(8) {
            return Err(RemoteFault::Misaligned);
        }
        let (memory, at) = self.remote(rkey, address, 8, AccessFlags::REMOTE_ATOMIC)?;
        // An aligned address of a region whose memory is not (zero-based, IOVA) is misaligned where it counts.
        memory.atomic(at, operation).ok_or(RemoteFault::Misaligned)
    }

    fn invalidate(&self, rkey: RKey) -> Result<(), RemoteFault> {
        let region = self.region(rkey.0).ok_or(RemoteFault::UnknownKey)?;
        if !region.registered.access.contains(AccessFlags::REMOTE_INVALIDATE) {
            return Err(RemoteFault::AccessDenied);
        }
        // The second of two invalidations finds the key gone.
        if region.remote.swap(false, Ordering::AcqRel) { Ok(()) } else { Err(RemoteFault::UnknownKey) }
    }
}

/// What a stretch of a scatter-gather list's concatenation consists of: non-empty parts of its elements, in order.
#[derive(Clone, Debug)]
struct Pieces<'a> {
    list: std::slice::Iter<'a, Sge>,
    skip: u64,
    left: usize,
}

impl<'a> Pieces<'a> {
    fn new(list: &'a [Sge], offset: u64, length: usize) -> Self {
        Self { list: list.iter(), skip: offset, left: length }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Sge;

    fn next(&mut self) -> Option<Sge> {
        while self.left > 0 {
            let sge = self.list.next()?;
            let length = u64::from(sge.length);
            if self.skip >= length {
                self.skip -= length;
                continue;
            }
            let take = (length - self.skip).min(self.left as u64);
            // An element whose addresses wrap is outside its region, wherever that is: saturate, and be refused.
            let address = sge.address.saturating_add(self.skip);
            self.skip = 0;
            self.left -= take as usize;
            return Some(Sge { address, length: take as u32, lkey: sge.lkey });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{super::host_memory::OwnedMemory, *};
    use proptest::prelude::*;

    const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
        .union(AccessFlags::REMOTE_WRITE)
        .union(AccessFlags::REMOTE_READ)
        .union(AccessFlags::REMOTE_ATOMIC);

    struct Fixture {
        owned: OwnedMemory,
        table: RegionTable,
    }

    impl Fixture {
        fn new() -> Self {
            Self { owned: OwnedMemory::new(4096).unwrap(), table: RegionTable::new(&mut Random::new(7)) }
        }

        fn register(&mut self, base: u64, length: usize, access: AccessFlags, pd: u32) -> Result<u32> {
            assert!(length <= 4096);
            // SAFETY: the fixture owns the memory and outlives the table's use.
            let memory = unsafe { HostMemory::new(self.owned.as_ptr(), length) };
            self.table.insert(Registration { memory, base, access, pd })
        }
    }

    #[test]
    fn remote_writing_needs_local_write() {
        let mut fixture = Fixture::new();
        for access in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC] {
            assert_eq!(fixture.register(0, 8, access, 1).unwrap_err().errno(), libc::EINVAL);
        }
        fixture.register(0, 8, AccessFlags::REMOTE_READ, 1).unwrap();
    }

    #[test]
    fn another_protection_domain_sees_nothing() {
        let mut fixture = Fixture::new();
        let key = fixture.register(0, 64, ALL, 1).unwrap();
        let sge = Sge { address: 0, length: 8, lkey: key };
        assert_eq!(fixture.table.view(1).check_local(&[sge], true), Ok(()));
        assert_eq!(fixture.table.view(2).check_local(&[sge], true), Err(LocalFault::UnknownKey));
        assert_eq!(fixture.table.view(2).write_remote(RKey(key), 0, &[1]), Err(RemoteFault::UnknownKey));
        assert_eq!(fixture.table.view(2).invalidate(RKey(key)), Err(RemoteFault::UnknownKey));
    }

    #[test]
    fn each_access_is_checked() {
        let mut fixture = Fixture::new();
        let key = RKey(fixture.register(0, 64, AccessFlags::LOCAL_WRITE, 1).unwrap());
        let view = fixture.table.view(1);
        assert_eq!(view.write_remote(key, 0, &[1]), Err(RemoteFault::AccessDenied));
        assert_eq!(view.read_remote(key, 0, &mut [0]), Err(RemoteFault::AccessDenied));
        assert_eq!(view.atomic(key, 0, AtomicOperation::FetchAdd { add: 1 }), Err(RemoteFault::AccessDenied));
        assert_eq!(view.invalidate(key), Err(RemoteFault::AccessDenied));

        let key = fixture.register(0, 64, AccessFlags::empty(), 1).unwrap();
        let sge = Sge { address: 0, length: 8, lkey: key };
        let view = fixture.table.view(1);
        assert_eq!(view.check_local(&[sge], true), Err(LocalFault::AccessDenied));
        assert_eq!(view.scatter(&[sge], 0, &[1]), Err(LocalFault::AccessDenied));
        assert_eq!(view.gather(&[sge], 0, &mut [0; 8]), Ok(()));
    }

    #[test]
    fn ranges_that_wrap_are_outside() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.register(u64::MAX - 7, 16, ALL, 1).unwrap_err().errno(), libc::EINVAL);
        let base = u64::MAX - 16;
        let key = RKey(fixture.register(base, 16, ALL, 1).unwrap());
        let view = fixture.table.view(1);
        assert_eq!(view.check_remote(key, base, 16, ALL), Ok(()));
        assert_eq!(view.check_remote(key, base, 17, ALL), Err(RemoteFault::OutOfRange));
        assert_eq!(view.check_remote(key, base + 8, u64::MAX, ALL), Err(RemoteFault::OutOfRange));
        assert_eq!(view.check_remote(key, 0, 1, ALL), Err(RemoteFault::OutOfRange));
        let wrapping = Sge { address: u64::MAX, length: 64, lkey: key.0 };
        assert_eq!(view.gather(&[wrapping], 32, &mut [0; 8]), Err(LocalFault::OutOfRange));
    }

    #[test]
    fn invalidation_ends_remote_access_only() {
        let mut fixture = Fixture::new();
        let key = fixture.register(0, 64, ALL | AccessFlags::REMOTE_INVALIDATE, 1).unwrap();
        let view = fixture.table.view(1);
        assert_eq!(view.invalidate(RKey(key)), Ok(()));
        assert_eq!(view.write_remote(RKey(key), 0, &[1]), Err(RemoteFault::UnknownKey));
        assert_eq!(view.invalidate(RKey(key)), Err(RemoteFault::UnknownKey));
        assert_eq!(view.scatter(&[Sge { address: 0, length: 8, lkey: key }], 0, &[1]), Ok(()));
    }

    #[test]
    fn nothing_is_written_on_an_error() {
        let mut fixture = Fixture::new();
        let key = fixture.register(0, 64, ALL, 1).unwrap();
        let list = [Sge { address: 0, length: 4, lkey: key }, Sge { address: 62, length: 4, lkey: key }];
        let view = fixture.table.view(1);
        assert_eq!(view.scatter(&list, 0, &[9; 8]), Err(LocalFault::OutOfRange));
        let mut start = [0xff; 4];
        view.gather(&list[..1], 0, &mut start).unwrap();
        assert_eq!(start, [0; 4]);
    }

    proptest! {
        #[test]
        fn gather_inverts_scatter(lengths in proptest::collection::vec(0_u32..40, 1..8), start in any::<u64>(),
                                  amount in any::<usize>(), seed in any::<u8>()) {
            let mut fixture = Fixture::new();
            let key = fixture.register(1 << 40, 4096, ALL, 1).unwrap();
            let list: Vec<_> = lengths.iter().enumerate()
                .map(|(i, &length)| Sge { address: (1 << 40) + 64 * i as u64, length, lkey: key }).collect();
            let total = Sge::total_length(&list);
            let offset = if total == 0 { 0 } else { start % total };
            let amount = amount % (total - offset + 1) as usize;
            let bytes: Vec<u8> = (0..amount).map(|i| seed.wrapping_add(i as u8)).collect();
            let view = fixture.table.view(1);
            view.scatter(&list, offset, &bytes).unwrap();
            let mut back = vec![0; amount];
            view.gather(&list, offset, &mut back).unwrap();
            prop_assert_eq!(back, bytes);
        }
    }
}
