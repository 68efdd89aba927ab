//! Memory windows: keys that open part of a memory region to remote requests, for as long as the program likes.
//!
//! A window is bound, and taken away again, by work requests of a send queue; the two types differ in how
//! (IBTA 10.6.7, `ibv_alloc_mw`). Type 1 is bound as often as one likes, and closed by binding nothing; every queue
//! pair of its protection domain answers for it. Type 2 (2B) is bound once, until it is invalidated, and answers
//! through the queue pair alone that it was bound on.

use super::regions::{RegionTable, Registration};
use parking_lot::Mutex;
use uroce_protocol::{AccessFlags, LocalFault, RemoteFault, WindowBinding, wire::Qpn};

/// The type of a memory window (`enum ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MemoryWindowType {
    /// Bound by `ibv_bind_mw`, which chooses the key; open to every queue pair of the protection domain.
    Type1 = 1,
    /// Bound by a work request that names the key (2B); open to the queue pair that it was bound on.
    Type2 = 2,
}

/// What a window may allow.
const ALLOWED: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::FLUSH_GLOBAL)
    .union(AccessFlags::ZERO_BASED)
    // Says nothing of a window, but programs set it beside the remote rights that need it of a region.
    .union(AccessFlags::LOCAL_WRITE);

/// A memory window.
#[derive(Debug)]
pub(super) struct Window {
    window_type: MemoryWindowType,
    pub(super) pd: u32,
    /// A leaf among locks. It is held while a remote request touches memory through the window, so that nothing is
    /// touched any more once the window is closed.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    key: u32,
    bound: Option<Bound>,
}

#[derive(Debug)]
struct Bound {
    /// The region's memory as far as the window opens it.
    opened: Registration,
    /// The region.
    lkey: u32,
    /// The only queue pair that it answers through; of type 2.
    qp: Option<Qpn>,
}

impl Window {
    pub(super) const fn new(window_type: MemoryWindowType, pd: u32, key: u32) -> Self {
        Self { window_type, pd, state: Mutex::new(State { key, bound: None }) }
    }

    /// Does something with what the window opens to a queue pair, if `key` is its key.
    pub(super) fn with_opened<T>(
        &self,
        key: u32,
        qp: Qpn,
        act: impl FnOnce(&Registration) -> Result<T, RemoteFault>,
    ) -> Result<T, RemoteFault> {
        let state = self.state.lock();
        let bound = state.bound.as_ref().filter(|bound| state.key == key && bound.qp.is_none_or(|bound| bound == qp));
        act(&bound.ok_or(RemoteFault::UnknownKey)?.opened)
    }

    /// Closes it if it is bound to a region of that key, because the region goes away.
    pub(super) fn close_if_bound_to(&self, table: &RegionTable, lkey: u32) {
        self.close_if(table, |_, bound| bound.lkey == lkey);
    }

    /// Closes it if it was bound on that queue pair, because the queue pair goes away.
    pub(super) fn close_if_bound_on(&self, table: &RegionTable, qp: Qpn) {
        self.close_if(table, |_, bound| bound.qp == Some(qp));
    }

    /// Closes it, because it goes away itself, and returns its last key.
    pub(super) fn retire(&self, table: &RegionTable) -> u32 {
        self.close_if(table, |_, _| true);
        self.state.lock().key
    }

    /// Closes it if it is of type 2, bound, and `key` is its key; on behalf of its owner, or (`remote`) of the peer
    /// of the queue pair that it was bound on.
    pub(super) fn invalidate(&self, table: &RegionTable, key: u32, remote: Option<Qpn>) -> Result<(), RemoteFault> {
        if self.window_type == MemoryWindowType::Type1 {
            return Err(RemoteFault::AccessDenied);
        }
        let is_meant = |now, bound: &Bound| now == key && (remote.is_none() || bound.qp == remote);
        if self.close_if(table, is_meant) { Ok(()) } else { Err(RemoteFault::UnknownKey) }
    }

    /// Closes it if it is bound and `condition` holds for its key and binding. Returns whether it did.
    fn close_if(&self, table: &RegionTable, condition: impl FnOnce(u32, &Bound) -> bool) -> bool {
        let mut state = self.state.lock();
        let key = state.key;
        let Some(bound) = state.bound.take_if(|bound| condition(key, bound)) else { return false };
        table.count_windows(bound.lkey, -1);
        true
    }

    /// Binds it to part of a region, on behalf of a queue pair of its protection domain.
    ///
    /// The rules are the IBTA's: C10-72 to C10-75 and o10-37.2.30, o10-37.2.40 as Linux rxe cites them.
    pub(super) fn bind(&self, table: &RegionTable, binding: &WindowBinding, qp: Qpn) -> Result<(), LocalFault> {
        let mut state = self.state.lock();
        let (is_type_2, closes) = (self.window_type == MemoryWindowType::Type2, binding.length == 0);
        if is_type_2 && (closes || state.bound.is_some()) {
            return Err(LocalFault::WindowState);
        }
        let bound = if closes {
            None
        } else {
            let opened = self.open(table, binding)?;
            Some(Bound { opened, lkey: binding.lkey, qp: is_type_2.then_some(qp) })
        };
        // The new region before the old one, which may be the same: its count must not pass through 0.
        if let Some(bound) = &bound {
            table.count_windows(bound.lkey, 1);
        }
        if let Some(before) = std::mem::replace(&mut state.bound, bound) {
            table.count_windows(before.lkey, -1);
        }
        state.key = binding.key.0;
        Ok(())
    }

    /// The part of a region that a binding opens.
    fn open(&self, table: &RegionTable, binding: &WindowBinding) -> Result<Registration, LocalFault> {
        let &WindowBinding { lkey, address, length, access, .. } = binding;
        let region = table.registration(lkey).filter(|region| region.pd == self.pd).ok_or(LocalFault::UnknownKey)?;
        let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        let lacks_local_write = access.intersects(writes) && !region.access.contains(AccessFlags::LOCAL_WRITE);
        let forbids_windows =
            !region.access.contains(AccessFlags::MW_BIND) || region.access.contains(AccessFlags::ZERO_BASED);
        if !ALLOWED.contains(access) || lacks_local_write || forbids_windows {
            return Err(LocalFault::AccessDenied);
        }
        let offset = region.offset(address, length).ok_or(LocalFault::OutOfRange)?;
        let memory = region.memory.part(offset, length as usize).ok_or(LocalFault::OutOfRange)?;
        let base = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { address };
        Ok(Registration { memory, base, access, pd: self.pd })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::keys::{Random, with_next_tag},
        *,
    };
    use crate::host_memory::{HostMemory, OwnedMemory};
    use MemoryWindowType::{Type1, Type2};
    use uroce_protocol::{Memory, wire::RKey};

    const QP: Qpn = Qpn::new(0x11);
    const OTHER_QP: Qpn = Qpn::new(0x12);
    const PD: u32 = 1;
    const OTHER_PD: u32 = 2;
    const BINDABLE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND);

    /// A region of 4 KiB at address 0x1000 of which windows open a part.
    struct Fixture {
        owned: OwnedMemory,
        table: RegionTable,
        lkey: u32,
    }

    impl Fixture {
        fn new(access: AccessFlags) -> Self {
            let owned = OwnedMemory::new(4096).unwrap();
            let mut fixture = Self { owned, table: RegionTable::new(&mut Random::new(3)), lkey: 0 };
            fixture.lkey = fixture.table.insert(fixture.registration(access)).unwrap();
            fixture
        }

        fn registration(&self, access: AccessFlags) -> Registration {
            // SAFETY: the fixture owns the memory and outlives the table's use.
            let memory = unsafe { HostMemory::new(self.owned.as_ptr(), 4096) };
            let base = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { 0x1000 };
            Registration { memory, base, access, pd: PD }
        }

        fn window(&mut self, window_type: MemoryWindowType) -> u32 {
            self.table.insert_window(window_type, PD).unwrap()
        }

        /// 64 bytes at 0x1100 of the region, for the window's next key.
        fn binding(&self, key: u32) -> WindowBinding {
            WindowBinding {
                key: RKey(with_next_tag(key)),
                lkey: self.lkey,
                address: 0x1100,
                length: 64,
                access: AccessFlags::REMOTE_WRITE,
            }
        }

        fn bind(&self, binding: &WindowBinding) -> Result<u32, LocalFault> {
            self.table.view(PD, QP).bind_window(binding).map(|()| binding.key.0)
        }

        fn write(&self, key: u32, address: u64, length: usize) -> Result<(), RemoteFault> {
            self.table.view(PD, QP).write_remote(RKey(key), address, &vec![7; length])
        }
    }

    #[test]
    fn opens_its_part_of_the_region_and_no_more() {
        for window_type in [Type1, Type2] {
            let mut fixture = Fixture::new(BINDABLE);
            let unbound = fixture.window(window_type);
            assert_eq!(fixture.write(unbound, 0x1100, 8), Err(RemoteFault::UnknownKey));
            let key = fixture.bind(&fixture.binding(unbound)).unwrap();
            assert_eq!(fixture.write(key, 0x1100, 64), Ok(()));
            assert_eq!(fixture.write(key, 0x1100, 65), Err(RemoteFault::OutOfRange));
            assert_eq!(fixture.write(key, 0x10ff, 8), Err(RemoteFault::OutOfRange));
            assert_eq!(fixture.write(unbound, 0x1100, 8), Err(RemoteFault::UnknownKey), "its key before");
            assert_eq!(fixture.write(fixture.lkey, 0x1100, 8), Err(RemoteFault::AccessDenied), "the region itself");
            let view = fixture.table.view(PD, QP);
            assert_eq!(view.read_remote(RKey(key), 0x1100, &mut [0]), Err(RemoteFault::AccessDenied));
            assert_eq!(view.check_local(&[sge(key)], false), Err(LocalFault::UnknownKey), "it is no local key");
        }
    }

    fn sge(lkey: u32) -> uroce_protocol::Sge {
        uroce_protocol::Sge { address: 0x1100, length: 8, lkey }
    }

    #[test]
    fn a_zero_based_one_counts_from_its_own_start() {
        let mut fixture = Fixture::new(BINDABLE);
        let key = fixture.window(Type2);
        let access = AccessFlags::REMOTE_WRITE | AccessFlags::ZERO_BASED;
        let key = fixture.bind(&WindowBinding { access, ..fixture.binding(key) }).unwrap();
        assert_eq!(fixture.write(key, 0, 64), Ok(()));
        assert_eq!(fixture.write(key, 1, 64), Err(RemoteFault::OutOfRange));
        let mut bytes = [0; 66];
        fixture
            .table
            .view(PD, QP)
            .gather(&[uroce_protocol::Sge { address: 0x10ff, length: 66, lkey: fixture.lkey }], 0, &mut bytes)
            .unwrap();
        assert_eq!((bytes[0], bytes[1], bytes[64], bytes[65]), (0, 7, 7, 0));
    }

    #[test]
    fn what_cannot_be_bound() {
        let (denied, outside) = (Err(LocalFault::AccessDenied), Err(LocalFault::OutOfRange));
        for (region, access, expected) in [
            (AccessFlags::LOCAL_WRITE, AccessFlags::REMOTE_READ, denied),
            (AccessFlags::MW_BIND, AccessFlags::REMOTE_WRITE, denied),
            (AccessFlags::MW_BIND, AccessFlags::REMOTE_ATOMIC, denied),
            (BINDABLE | AccessFlags::ZERO_BASED, AccessFlags::REMOTE_READ, denied),
            (BINDABLE, AccessFlags::MW_BIND, denied),
        ] {
            let mut fixture = Fixture::new(region);
            let key = fixture.window(Type2);
            assert_eq!(
                fixture.bind(&WindowBinding { access, ..fixture.binding(key) }),
                expected,
                "{region:?} {access:?}"
            );
        }
        let mut fixture = Fixture::new(BINDABLE);
        let key = fixture.window(Type2);
        for (address, length) in [(0xfff, 8), (0x1ff9, 8), (0x1000, 4097), (u64::MAX, 2), (0x1000, u64::MAX)] {
            let binding = WindowBinding { address, length, ..fixture.binding(key) };
            assert_eq!(fixture.bind(&binding), outside, "{address:#x} {length}");
        }
        let unknown = Err(LocalFault::UnknownKey);
        assert_eq!(fixture.bind(&WindowBinding { lkey: 7, ..fixture.binding(key) }), unknown);
        assert_eq!(fixture.bind(&fixture.binding(key ^ 0x100)), unknown, "no such window");
        let binding = fixture.binding(key);
        assert_eq!(
            fixture.table.view(OTHER_PD, QP).bind_window(&binding),
            unknown.map(|_: u32| ()),
            "another domain's"
        );
        fixture.bind(&binding).unwrap();
    }

    #[test]
    fn one_of_type_1_is_bound_again_and_closed_by_binding_nothing() {
        let mut fixture = Fixture::new(BINDABLE);
        let key = fixture.window(Type1);
        let first = fixture.bind(&fixture.binding(key)).unwrap();
        let second = fixture.bind(&WindowBinding { address: 0x1200, ..fixture.binding(first) }).unwrap();
        assert_eq!(fixture.write(first, 0x1100, 8), Err(RemoteFault::UnknownKey));
        assert_eq!(fixture.write(second, 0x1200, 8), Ok(()));
        let nothing = WindowBinding { lkey: 0, address: 0, length: 0, ..fixture.binding(second) };
        let third = fixture.bind(&nothing).unwrap();
        for key in [second, third] {
            assert_eq!(fixture.write(key, 0x1200, 8), Err(RemoteFault::UnknownKey));
        }
        assert_eq!(fixture.table.view(PD, QP).invalidate_local(RKey(third)), Err(LocalFault::WindowState));
        fixture.table.remove(fixture.lkey).unwrap();
    }

    #[test]
    fn one_of_type_2_is_bound_once_until_it_is_invalidated() {
        let mut fixture = Fixture::new(BINDABLE);
        let key = fixture.window(Type2);
        let first = fixture.bind(&fixture.binding(key)).unwrap();
        assert_eq!(fixture.bind(&fixture.binding(first)), Err(LocalFault::WindowState));
        let view = fixture.table.view(PD, QP);
        assert_eq!(view.invalidate_local(RKey(key)), Err(LocalFault::UnknownKey), "an older key");
        assert_eq!(view.invalidate_local(RKey(first)), Ok(()));
        assert_eq!(view.invalidate_local(RKey(first)), Err(LocalFault::UnknownKey), "it is closed already");
        assert_eq!(fixture.write(first, 0x1100, 8), Err(RemoteFault::UnknownKey));
        let nothing = WindowBinding { length: 0, ..fixture.binding(first) };
        assert_eq!(fixture.bind(&nothing), Err(LocalFault::WindowState));
        let second = fixture.bind(&fixture.binding(first)).unwrap();
        assert_eq!(fixture.write(second, 0x1100, 8), Ok(()));
        assert_eq!(fixture.table.view(PD, QP).invalidate(RKey(second)), Ok(()), "the peer may, too");
        assert_eq!(fixture.write(second, 0x1100, 8), Err(RemoteFault::UnknownKey));
    }

    #[test]
    fn one_of_type_2_is_open_to_its_queue_pair_alone() {
        let mut fixture = Fixture::new(BINDABLE);
        let (one, two) = (fixture.window(Type1), fixture.window(Type2));
        let one = RKey(fixture.bind(&fixture.binding(one)).unwrap());
        let two = RKey(fixture.bind(&fixture.binding(two)).unwrap());
        let view = fixture.table.view(PD, OTHER_QP);
        assert_eq!(view.write_remote(one, 0x1100, &[1]), Ok(()));
        assert_eq!(view.write_remote(two, 0x1100, &[1]), Err(RemoteFault::UnknownKey));
        assert_eq!(view.invalidate(one), Err(RemoteFault::AccessDenied));
        assert_eq!(view.invalidate(two), Err(RemoteFault::UnknownKey));
        let view = fixture.table.view(OTHER_PD, QP);
        assert_eq!(view.write_remote(one, 0x1100, &[1]), Err(RemoteFault::UnknownKey));
        assert_eq!(view.write_remote(two, 0x1100, &[1]), Err(RemoteFault::UnknownKey));
        assert_eq!(view.invalidate_local(two), Err(LocalFault::UnknownKey));
    }

    #[test]
    fn a_region_stays_while_windows_are_bound_to_it() {
        let mut fixture = Fixture::new(BINDABLE);
        let (one, two) = (fixture.window(Type1), fixture.window(Type2));
        let one = fixture.bind(&fixture.binding(one)).unwrap();
        let two = fixture.bind(&fixture.binding(two)).unwrap();
        // Bound to the same region anew: still one window.
        let one = fixture.bind(&fixture.binding(one)).unwrap();
        assert_eq!(fixture.table.remove(fixture.lkey).unwrap_err().errno(), libc::EBUSY);
        let smaller = fixture.registration(AccessFlags::empty());
        assert_eq!(fixture.table.replace(fixture.lkey, smaller).unwrap_err().errno(), libc::EBUSY);
        fixture.table.remove_window(one);
        assert_eq!(fixture.table.remove(fixture.lkey).unwrap_err().errno(), libc::EBUSY);
        fixture.table.view(PD, QP).invalidate_local(RKey(two)).unwrap();
        fixture.table.remove(fixture.lkey).unwrap();
    }

    #[test]
    fn a_region_whose_last_handle_goes_closes_its_windows() {
        let mut fixture = Fixture::new(BINDABLE);
        let key = fixture.window(Type2);
        let key = fixture.bind(&fixture.binding(key)).unwrap();
        fixture.table.purge(fixture.lkey);
        assert_eq!(fixture.write(key, 0x1100, 8), Err(RemoteFault::UnknownKey));
        fixture.table.remove_window(key);
    }

    #[test]
    fn a_queue_pair_that_goes_closes_the_windows_bound_on_it() {
        let mut fixture = Fixture::new(BINDABLE);
        let (one, two) = (fixture.window(Type1), fixture.window(Type2));
        let one = fixture.bind(&fixture.binding(one)).unwrap();
        let two = fixture.bind(&fixture.binding(two)).unwrap();
        fixture.table.close_windows_of(OTHER_QP);
        assert_eq!(fixture.write(two, 0x1100, 8), Ok(()));
        fixture.table.close_windows_of(QP);
        assert_eq!(fixture.write(two, 0x1100, 8), Err(RemoteFault::UnknownKey));
        assert_eq!(fixture.write(one, 0x1100, 8), Ok(()));
    }

    #[test]
    fn flushes_need_their_right() {
        let mut fixture = Fixture::new(BINDABLE | AccessFlags::FLUSH_GLOBAL);
        let key = fixture.window(Type2);
        let access = AccessFlags::REMOTE_READ | AccessFlags::FLUSH_GLOBAL;
        let binding = WindowBinding { access, ..fixture.binding(key) };
        let view = fixture.table.view(PD, QP);
        for key in [RKey(fixture.lkey), RKey(fixture.bind(&binding).unwrap())] {
            assert_eq!(view.flush(key, 0x1100, Some(64)), Ok(()));
            assert_eq!(view.flush(key, 0x1fff, Some(64)), Err(RemoteFault::OutOfRange));
            assert_eq!(view.flush(key, 0, None), Ok(()));
        }
        view.invalidate(binding.key).unwrap();
        let key = fixture.bind(&fixture.binding(key)).unwrap();
        assert_eq!(view.flush(RKey(key), 0x1100, Some(64)), Err(RemoteFault::AccessDenied));
    }
}
