//! What keeps memory that was not shared from being touched: protection domains, access flags, bounds, and the end
//! of a registration, traffic or not.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use support::{ALL, Side, async_event, connect, device, eventually, pair, pattern, send};
use uroce::verbs::{AccessFlags, AsyncEventType, MemoryRegion, QpCapabilities, SendOperation, Sge, WcStatus};

fn write_to(region: &MemoryRegion) -> SendOperation {
    SendOperation::Write { address: region.address(), rkey: region.rkey() }
}

/// How a request of `a` ends that goes to memory it may not reach.
fn status_of(a: &Side, operation: SendOperation, sge: Sge) -> WcStatus {
    a.post(1, operation, sge);
    a.completion().status
}

#[test]
fn a_remote_key_of_another_protection_domain_is_refused() {
    let (a, b) = pair(4096);
    let elsewhere = b.context.alloc_pd().unwrap().reg_mr(4096, ALL).unwrap();
    assert_eq!(status_of(&a, write_to(&elsewhere), a.mr.sge(0, 8)), WcStatus::RemoteAccess);
    assert_eq!(async_event(&b.context).event_type, AsyncEventType::QpAccessErr);
}

#[test]
fn a_local_key_of_another_protection_domain_is_refused() {
    let (a, b) = pair(4096);
    let elsewhere = a.context.alloc_pd().unwrap().reg_mr(4096, ALL).unwrap();
    assert_eq!(status_of(&a, write_to(&b.mr), elsewhere.sge(0, 8)), WcStatus::LocalProtection);
}

#[test]
fn each_remote_access_needs_its_flag() {
    let local = AccessFlags::LOCAL_WRITE;
    type Operation = fn(&MemoryRegion) -> SendOperation;
    let operations: [(AccessFlags, Operation); 3] = [
        (AccessFlags::REMOTE_WRITE, write_to),
        (AccessFlags::REMOTE_READ, |region| SendOperation::Read { address: region.address(), rkey: region.rkey() }),
        (AccessFlags::REMOTE_ATOMIC, |region| SendOperation::FetchAdd {
            address: region.address(),
            rkey: region.rkey(),
            add: 1,
        }),
    ];
    for (flag, operation) in operations {
        let (a, b) = pair(4096);
        let region = b.pd.reg_mr(64, local | flag).unwrap();
        assert_eq!(status_of(&a, operation(&region), a.mr.sge(0, 8)), WcStatus::Success, "{flag:?} given");
        let region = b.pd.reg_mr(64, ALL - flag).unwrap();
        assert_eq!(status_of(&a, operation(&region), a.mr.sge(0, 8)), WcStatus::RemoteAccess, "{flag:?} not given");
    }
}

#[test]
fn remote_writing_without_local_writing_cannot_be_registered() {
    let pd = device().open().unwrap().alloc_pd().unwrap();
    for access in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC] {
        assert_eq!(pd.reg_mr(64, access).unwrap_err().errno(), libc::EINVAL);
    }
}

#[test]
fn a_receive_into_read_only_memory_fails() {
    let (a, b) = pair(4096);
    let read_only = b.pd.reg_mr(64, AccessFlags::empty()).unwrap();
    b.receive(1, read_only.sge(0, 64));
    assert_eq!(status_of(&a, SendOperation::Send, a.mr.sge(0, 8)), WcStatus::RemoteOperation);
    assert_eq!(b.completion().status, WcStatus::LocalProtection);
    assert_eq!(async_event(&b.context).event_type, AsyncEventType::QpFatal);
}

#[test]
fn nothing_beyond_a_region_is_reached() {
    for (offset, length) in [(4089_u64, 8), (4096, 1), (u64::MAX, 1), (u64::MAX - 100, 200)] {
        let (a, b) = pair(4096);
        let address = b.mr.address().wrapping_add(offset);
        let operation = SendOperation::Write { address, rkey: b.mr.rkey() };
        assert_eq!(status_of(&a, operation, a.mr.sge(0, length)), WcStatus::RemoteAccess, "{offset:#x}");
    }
    let (a, b) = pair(4096);
    assert_eq!(status_of(&a, write_to(&b.mr), a.mr.sge(4089, 8)), WcStatus::LocalProtection);
}

#[test]
fn zero_based_and_iova_regions_count_their_own_addresses() {
    let (a, b) = pair(4096);
    a.mr.write(0, &pattern(16, 2)).unwrap();
    let zero_based = b.pd.reg_mr(64, ALL | AccessFlags::ZERO_BASED).unwrap();
    assert_eq!(zero_based.address(), 0);
    let operation = SendOperation::Write { address: 8, rkey: zero_based.rkey() };
    assert_eq!(status_of(&a, operation, a.mr.sge(0, 16)), WcStatus::Success);
    let mut bytes = [0; 16];
    zero_based.read(8, &mut bytes).unwrap();
    assert_eq!(bytes[..], pattern(16, 2));

    let mut memory = vec![0_u64; 8];
    // SAFETY: `memory` outlives the registration, and is not looked at while the device may write to it.
    let region = unsafe { b.pd.reg_mr_raw_iova(memory.as_mut_ptr().cast(), 64, 0x1000_0000, ALL).unwrap() };
    let operation = SendOperation::FetchAdd { address: 0x1000_0008, rkey: region.rkey(), add: 5 };
    assert_eq!(status_of(&a, operation, a.mr.sge(0, 8)), WcStatus::Success);
    region.dereg().unwrap();
    assert_eq!(memory[1], 5);
}

#[test]
fn keys_die_with_their_registration() {
    let (a, b) = pair(4096);
    let region = b.pd.reg_mr(64, ALL).unwrap();
    let operation = write_to(&region);
    let key = region.rkey();
    drop(region);
    let others: Vec<_> = (0..100).map(|_| b.pd.reg_mr(64, ALL).unwrap()).collect();
    assert!(others.iter().all(|other| other.rkey() != key));
    assert_eq!(status_of(&a, operation, a.mr.sge(0, 8)), WcStatus::RemoteAccess);
}

#[test]
fn a_reregistered_region_keeps_its_keys_and_allows_what_it_now_does() {
    let (a, b) = pair(4096);
    let region = b.pd.reg_mr(64, ALL - AccessFlags::REMOTE_WRITE).unwrap();
    let operation = write_to(&region);
    region.rereg(None, Some(ALL)).unwrap();
    assert_eq!(write_to(&region), operation);
    assert_eq!(status_of(&a, operation, a.mr.sge(0, 8)), WcStatus::Success);
    region.rereg(None, Some(AccessFlags::LOCAL_WRITE)).unwrap();
    assert_eq!(status_of(&a, operation, a.mr.sge(0, 8)), WcStatus::RemoteAccess);
}

#[test]
fn a_region_may_move_to_another_protection_domain_and_back() {
    let (a, b) = pair(4096);
    let region = b.pd.reg_mr(64, ALL).unwrap();
    let elsewhere = b.context.alloc_pd().unwrap();
    region.rereg(Some(&elsewhere), None).unwrap();
    assert_eq!(elsewhere.dealloc().unwrap_err().errno(), libc::EBUSY);
    region.rereg(Some(&b.pd), None).unwrap();
    assert_eq!(status_of(&a, write_to(&region), a.mr.sge(0, 8)), WcStatus::Success);
    region.rereg(Some(&elsewhere), None).unwrap();
    assert_eq!(status_of(&a, write_to(&region), a.mr.sge(0, 8)), WcStatus::RemoteAccess);
}

#[test]
fn a_region_may_move_to_other_memory() {
    let (a, b) = pair(4096);
    a.mr.write(0, &pattern(64, 3)).unwrap();
    let region = b.pd.reg_mr(4096, ALL).unwrap();
    let (old, key) = (write_to(&region), region.rkey());
    let mut memory = vec![0_u64; 8];
    // SAFETY: `memory` outlives the registration, and is not looked at while the device may write to it.
    unsafe { region.rereg_raw(memory.as_mut_ptr().cast(), 64, None, None).unwrap() };
    assert_eq!((region.rkey(), region.length()), (key, 64));
    assert_eq!(region.address(), memory.as_ptr() as u64);
    assert_eq!(status_of(&a, write_to(&region), a.mr.sge(0, 64)), WcStatus::Success);
    assert_eq!(status_of(&a, old, a.mr.sge(0, 64)), WcStatus::RemoteAccess, "the address before");
    region.dereg().unwrap();
    assert!(memory.iter().flat_map(|word| word.to_ne_bytes()).eq(pattern(64, 3)));
}

#[test]
fn a_deregistered_region_is_gone_for_everybody() {
    let (a, b) = pair(4096);
    let region = b.pd.reg_mr(64, ALL).unwrap();
    let operation = write_to(&region);
    region.dereg().unwrap();
    assert_eq!(region.dereg().unwrap_err().errno(), libc::EINVAL);
    assert_eq!(region.read(0, &mut [0]).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(region.rereg(None, None).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(status_of(&a, operation, a.mr.sge(0, 8)), WcStatus::RemoteAccess);
}

#[test]
fn a_failed_reregistration_leaves_the_region_as_it_was() {
    let (a, b) = pair(4096);
    let region = b.pd.reg_mr(64, ALL).unwrap();
    let key = region.rkey();
    assert_eq!(region.rereg(None, Some(AccessFlags::REMOTE_WRITE)).unwrap_err().errno(), libc::EINVAL);
    assert_eq!((region.rkey(), region.access()), (key, ALL));
    assert_eq!(status_of(&a, write_to(&region), a.mr.sge(0, 8)), WcStatus::Success);
}

#[test]
fn deregistering_under_traffic_ends_it_cleanly() {
    const LENGTH: usize = 64 << 10;
    for round in 0..20 {
        let (a, b) = pair(LENGTH);
        let mut memory = vec![0_u8; LENGTH];
        // SAFETY: `memory` outlives the registration, and is not looked at before that has ended.
        let region = unsafe { b.pd.reg_mr_raw(memory.as_mut_ptr(), LENGTH, ALL).unwrap() };
        let operation = write_to(&region);
        a.mr.fill(0, LENGTH, 0xff).unwrap();
        let started = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let list = [a.mr.sge(0, LENGTH)];
                loop {
                    a.qp.post_send(&[send(1, operation, &list)]).unwrap();
                    let status = a.completion().status;
                    started.store(true, Ordering::Release);
                    if status != WcStatus::Success {
                        assert_eq!(status, WcStatus::RemoteAccess);
                        break;
                    }
                }
            });
            eventually("traffic runs", || started.load(Ordering::Acquire));
            std::thread::sleep(std::time::Duration::from_micros(round * 50));
            region.dereg().unwrap();
            // From here on the memory is the test's own again.
            memory.fill(7);
        });
        assert!(memory.iter().all(|&byte| byte == 7), "the device wrote after the deregistration");
    }
}

#[test]
fn a_source_that_is_deregistered_in_flight_fails_its_request() {
    let (a, b) = pair(4096);
    let source = a.pd.reg_mr(4096, ALL).unwrap();
    let sge = source.sge(0, 4096);
    source.dereg().unwrap();
    assert_eq!(status_of(&a, write_to(&b.mr), sge), WcStatus::LocalProtection);
}

#[test]
fn regions_of_two_queue_pairs_in_one_domain_are_shared() {
    let device = device();
    let a = Side::new(&device, QpCapabilities::default(), 4096);
    let b = Side::new(&device, QpCapabilities::default(), 4096);
    connect(&a, &b);
    // The same key works for any queue pair of the region's domain, and for none of another.
    assert_eq!(status_of(&a, write_to(&b.mr), a.mr.sge(0, 8)), WcStatus::Success);
    assert_eq!(status_of(&a, write_to(&a.mr), a.mr.sge(0, 8)), WcStatus::RemoteAccess);
}
