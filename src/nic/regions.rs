//! The memory regions and windows of a device, and what a queue pair sees of them.

use super::{
    Error, Result,
    keys::{KeySequence, Random, index},
    windows::{MemoryWindowType, Window},
};
use crate::host_memory::HostMemory;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use uroce_protocol::{
    AccessFlags, AtomicOperation, LocalFault, Memory, RemoteFault, Sge, WindowBinding,
    wire::{Qpn, RKey},
};

/// What a caller registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration {
    pub(crate) memory: HostMemory,
    /// The address that requests name the first byte by.
    pub(crate) base: u64,
    pub(crate) access: AccessFlags,
    pub(crate) pd: u32,
}

impl Registration {
    /// How far into the region a range begins, if it is wholly inside. A range that would wrap round is not.
    pub(super) fn offset(&self, address: u64, length: u64) -> Option<usize> {
        let offset = address.checked_sub(self.base)?;
        let end = offset.checked_add(length)?;
        (end <= self.memory.len() as u64).then_some(offset as usize)
    }

    /// How far into the region a range begins that a remote request names, if it may.
    fn locate(&self, address: u64, length: u64, access: AccessFlags) -> Result<usize, RemoteFault> {
        let offset = self.offset(address, length).ok_or(RemoteFault::OutOfRange)?;
        if self.access.contains(access) { Ok(offset) } else { Err(RemoteFault::AccessDenied) }
    }

    fn check(&self) -> Result<()> {
        let needs_local_write = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        if self.access.intersects(needs_local_write) && !self.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(Error::InvalidArgument("remote write and remote atomic access need local write access"));
        }
        if self.base.checked_add(self.memory.len() as u64).is_none() {
            return Err(Error::InvalidArgument("the region's addresses would wrap round"));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Region {
    registered: Registration,
    /// Whether remote requests may still use the key: an invalidation takes that away.
    remote: AtomicBool,
    /// How many windows are bound to it. They are bound under the table's read lock.
    windows: AtomicUsize,
}

impl Region {
    const fn new(registered: Registration) -> Self {
        Self { registered, remote: AtomicBool::new(true), windows: AtomicUsize::new(0) }
    }

    fn check_unbound(&self) -> Result<()> {
        if self.windows.load(Ordering::Acquire) == 0 {
            Ok(())
        } else {
            Err(Error::Busy("a memory window is bound to the region"))
        }
    }
}

/// Every region of a device, by key (local and remote key are the same number), and every window, by its keys'
/// index. No region's key has a window's index.
#[derive(Debug)]
pub(crate) struct RegionTable {
    regions: FxHashMap<u32, Region>,
    windows: FxHashMap<u32, Window>,
    keys: KeySequence,
}

impl RegionTable {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self { regions: FxHashMap::default(), windows: FxHashMap::default(), keys: KeySequence::new(random) }
    }

    /// Registers memory and returns its key.
    pub(crate) fn insert(&mut self, registered: Registration) -> Result<u32> {
        registered.check()?;
        let key = self.keys.next_region().ok_or(Error::Exhausted("every key has been given out"))?;
        self.regions.insert(key, Region::new(registered));
        Ok(key)
    }

    /// Registers something else under a region's key. On an error, the region is as it was.
    pub(crate) fn replace(&mut self, key: u32, registered: Registration) -> Result<()> {
        registered.check()?;
        let region = self.regions.get_mut(&key).ok_or(Error::InvalidArgument("there is no such memory region"))?;
        region.check_unbound()?;
        *region = Region::new(registered);
        Ok(())
    }

    /// Forgets a region: `EBUSY` while windows are bound to it.
    pub(crate) fn remove(&mut self, key: u32) -> Result<()> {
        if let Some(region) = self.regions.get(&key) {
            region.check_unbound()?;
            self.regions.remove(&key);
        }
        Ok(())
    }

    /// Forgets a region whose last handle has gone, and closes the windows that are bound to it.
    pub(crate) fn purge(&mut self, key: u32) {
        if self.remove(key).is_err() {
            self.windows.values().for_each(|window| window.close_if_bound_to(self, key));
            self.regions.remove(&key);
        }
    }

    /// Makes a window, bound to nothing, and returns its key.
    pub(crate) fn insert_window(&mut self, window_type: MemoryWindowType, pd: u32) -> Result<u32> {
        let key = self.keys.next_window().ok_or(Error::Exhausted("there are no memory windows left"))?;
        self.windows.insert(index(key), Window::new(window_type, pd, key));
        Ok(key)
    }

    /// Closes a window and forgets it; any of its keys will do.
    pub(crate) fn remove_window(&mut self, key: u32) {
        if let Some(window) = self.windows.remove(&index(key)) {
            let last = window.retire(self);
            self.keys.return_window(last);
        }
    }

    /// Closes the windows of type 2 that were bound on a queue pair which goes away.
    pub(crate) fn close_windows_of(&self, qp: Qpn) {
        self.windows.values().for_each(|window| window.close_if_bound_on(self, qp));
    }

    /// What a region's key stands for.
    pub(super) fn registration(&self, key: u32) -> Option<&Registration> {
        self.regions.get(&key).map(|region| &region.registered)
    }

    /// One window more, or one less, is bound to a region.
    pub(super) fn count_windows(&self, key: u32, difference: isize) {
        if let Some(region) = self.regions.get(&key) {
            region.windows.fetch_add(difference as usize, Ordering::AcqRel);
        }
    }

    /// What queue pair `qp` of protection domain `pd` sees.
    pub(crate) const fn view(&self, pd: u32, qp: Qpn) -> MemoryView<'_> {
        MemoryView { table: self, pd, qp }
    }
}

/// What one queue pair sees: [`Memory`] as the state machines know it, and the way out for payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryView<'a> {
    table: &'a RegionTable,
    pd: u32,
    /// The queue pair, for which some windows are open that are closed to others.
    qp: Qpn,
}

impl<'a> MemoryView<'a> {
    /// What the queue pair sees of another protection domain (XRC).
    pub(crate) const fn of(self, pd: u32) -> Self {
        Self { pd, ..self }
    }

    fn region(&self, key: u32) -> Option<&'a Region> {
        self.table.regions.get(&key).filter(|region| region.registered.pd == self.pd)
    }

    fn window(&self, key: u32) -> Option<&'a Window> {
        self.table.windows.get(&index(key)).filter(|window| window.pd == self.pd)
    }

    fn local(&self, sge: &Sge, write: bool) -> Result<(HostMemory, usize), LocalFault> {
        let region = self.region(sge.lkey).ok_or(LocalFault::UnknownKey)?;
        let offset = region.registered.offset(sge.address, sge.length.into()).ok_or(LocalFault::OutOfRange)?;
        if write && !region.registered.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(LocalFault::AccessDenied);
        }
        Ok((region.registered.memory, offset))
    }

    /// Does something with what a remote key opens.
    fn with_opened<T>(
        &self,
        rkey: RKey,
        act: impl FnOnce(&Registration) -> Result<T, RemoteFault>,
    ) -> Result<T, RemoteFault> {
        if let Some(region) = self.region(rkey.0) {
            return if region.remote.load(Ordering::Acquire) {
                act(&region.registered)
            } else {
                Err(RemoteFault::UnknownKey)
            };
        }
        self.window(rkey.0).ok_or(RemoteFault::UnknownKey)?.with_opened(rkey.0, self.qp, act)
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
        self.with_opened(rkey, |opened| {
            let at = opened.locate(address, to.len() as u64, AccessFlags::REMOTE_READ)?;
            opened.memory.read(at, to).ok_or(RemoteFault::OutOfRange)
        })
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
        self.with_opened(rkey, |opened| opened.locate(address, length, access).map(|_| ()))
    }

    fn write_remote(&self, rkey: RKey, address: u64, bytes: &[u8]) -> Result<(), RemoteFault> {
        self.with_opened(rkey, |opened| {
            let at = opened.locate(address, bytes.len() as u64, AccessFlags::REMOTE_WRITE)?;
            opened.memory.write(at, bytes).ok_or(RemoteFault::OutOfRange)
        })
    }

    fn atomic(&self, rkey: RKey, address: u64, operation: AtomicOperation) -> Result<u64, RemoteFault> {
        if !address.is_multiple_of(8) {
            return Err(RemoteFault::Misaligned);
        }
        self.with_opened(rkey, |opened| {
            let at = opened.locate(address, 8, AccessFlags::REMOTE_ATOMIC)?;
            // An aligned address of a region whose memory is not (zero-based, IOVA) is misaligned where it counts.
            opened.memory.atomic(at, operation).ok_or(RemoteFault::Misaligned)
        })
    }

    fn atomic_write(&self, rkey: RKey, address: u64, bytes: [u8; 8]) -> Result<(), RemoteFault> {
        if !address.is_multiple_of(8) {
            return Err(RemoteFault::Misaligned);
        }
        self.with_opened(rkey, |opened| {
            let at = opened.locate(address, 8, AccessFlags::REMOTE_WRITE)?;
            opened.memory.store_u64(at, u64::from_ne_bytes(bytes)).ok_or(RemoteFault::Misaligned)
        })
    }

    fn flush(&self, rkey: RKey, address: u64, length: Option<u64>) -> Result<(), RemoteFault> {
        self.with_opened(rkey, |opened| {
            let (address, length) = match length {
                Some(length) => (address, length),
                None => (opened.base, opened.memory.len() as u64),
            };
            opened.locate(address, length, AccessFlags::FLUSH_GLOBAL)?;
            // Whoever sees anything that this thread does from now on sees what it has placed before.
            fence(Ordering::SeqCst);
            Ok(())
        })
    }

    fn invalidate(&self, rkey: RKey) -> Result<(), RemoteFault> {
        let Some(region) = self.region(rkey.0) else {
            let window = self.window(rkey.0).ok_or(RemoteFault::UnknownKey)?;
            return window.invalidate(self.table, rkey.0, Some(self.qp));
        };
        if !region.registered.access.contains(AccessFlags::REMOTE_INVALIDATE) {
            return Err(RemoteFault::AccessDenied);
        }
        // The second of two invalidations finds the key gone.
        if region.remote.swap(false, Ordering::AcqRel) { Ok(()) } else { Err(RemoteFault::UnknownKey) }
    }

    fn invalidate_local(&self, rkey: RKey) -> Result<(), LocalFault> {
        let result = match self.window(rkey.0) {
            Some(window) => window.invalidate(self.table, rkey.0, None),
            None => self.invalidate(rkey),
        };
        result.map_err(|fault| match fault {
            RemoteFault::AccessDenied => LocalFault::WindowState,
            _ => LocalFault::UnknownKey,
        })
    }

    fn bind_window(&self, binding: &WindowBinding) -> Result<(), LocalFault> {
        self.window(binding.key.0).ok_or(LocalFault::UnknownKey)?.bind(self.table, binding, self.qp)
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
    use super::*;
    use crate::host_memory::OwnedMemory;
    use proptest::prelude::*;

    const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
        .union(AccessFlags::REMOTE_WRITE)
        .union(AccessFlags::REMOTE_READ)
        .union(AccessFlags::REMOTE_ATOMIC);

    const QP: Qpn = Qpn::new(0x11);

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
        assert_eq!(fixture.table.view(1, QP).check_local(&[sge], true), Ok(()));
        assert_eq!(fixture.table.view(2, QP).check_local(&[sge], true), Err(LocalFault::UnknownKey));
        assert_eq!(fixture.table.view(2, QP).write_remote(RKey(key), 0, &[1]), Err(RemoteFault::UnknownKey));
        assert_eq!(fixture.table.view(2, QP).invalidate(RKey(key)), Err(RemoteFault::UnknownKey));
    }

    #[test]
    fn each_access_is_checked() {
        let mut fixture = Fixture::new();
        let key = RKey(fixture.register(0, 64, AccessFlags::LOCAL_WRITE, 1).unwrap());
        let view = fixture.table.view(1, QP);
        assert_eq!(view.write_remote(key, 0, &[1]), Err(RemoteFault::AccessDenied));
        assert_eq!(view.read_remote(key, 0, &mut [0]), Err(RemoteFault::AccessDenied));
        assert_eq!(view.atomic(key, 0, AtomicOperation::FetchAdd { add: 1 }), Err(RemoteFault::AccessDenied));
        assert_eq!(view.invalidate(key), Err(RemoteFault::AccessDenied));

        let key = fixture.register(0, 64, AccessFlags::empty(), 1).unwrap();
        let sge = Sge { address: 0, length: 8, lkey: key };
        let view = fixture.table.view(1, QP);
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
        let view = fixture.table.view(1, QP);
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
        let view = fixture.table.view(1, QP);
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
        let view = fixture.table.view(1, QP);
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
            let view = fixture.table.view(1, QP);
            view.scatter(&list, offset, &bytes).unwrap();
            let mut back = vec![0; amount];
            view.gather(&list, offset, &mut back).unwrap();
            prop_assert_eq!(back, bytes);
        }
    }
}
