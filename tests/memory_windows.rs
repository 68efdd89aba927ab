//! Memory windows: bound by work requests, open to the peer, closed again.

mod support;

use support::{ALL, Side, async_event, pair, pattern, send};
use uroce::verbs::{
    AccessFlags, AsyncEventType, MemoryRegion, MemoryWindow, MemoryWindowType, RKey, SendOperation, WcOpcode, WcStatus,
    WindowBind, WindowBindInfo, inc_rkey,
};

const BINDABLE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND);
const REMOTE: AccessFlags = AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ);

/// The second half of a region.
fn half(region: &MemoryRegion, access: AccessFlags) -> WindowBindInfo<'_> {
    let length = region.length() as u64 / 2;
    WindowBindInfo { mr: Some(region), address: region.address() + length, length, access }
}

/// Binds a window of type 1 and sees it done.
fn bind(side: &Side, window: &MemoryWindow, info: WindowBindInfo<'_>) -> RKey {
    let bind = WindowBind { wr_id: 70, info, signaled: true, fence: false };
    let key = side.qp.bind_mw(window, &bind).unwrap();
    let completion = side.completion();
    assert_eq!((completion.wr_id, completion.status), (70, WcStatus::Success));
    assert_eq!(completion.opcode, WcOpcode::BindMemoryWindow);
    assert_eq!(window.rkey(), key);
    key
}

/// Binds a window of type 2 under its next key and sees it done.
fn bind_type_2(side: &Side, window: &MemoryWindow, info: &WindowBindInfo<'_>) -> RKey {
    let key = inc_rkey(window.rkey());
    let operation = SendOperation::BindMemoryWindow(window.binding(key, info).unwrap());
    side.qp.post_send(&[send(71, operation, &[])]).unwrap();
    assert_eq!(side.completion().status, WcStatus::Success);
    key
}

fn write(side: &Side, address: u64, rkey: RKey) -> WcStatus {
    side.post(1, SendOperation::Write { address, rkey }, side.mr.sge(0, 64));
    side.completion().status
}

#[test]
fn a_window_of_type_1_opens_what_the_region_does_not() {
    let (a, b) = pair(4096);
    a.mr.write(0, &pattern(64, 9)).unwrap();
    let region = b.pd.reg_mr(4096, BINDABLE).unwrap();
    let window = b.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    let key = bind(&b, &window, half(&region, REMOTE | AccessFlags::LOCAL_WRITE));
    assert_eq!(write(&a, region.address() + 2048, key), WcStatus::Success);
    let mut bytes = [0; 64];
    region.read(2048, &mut bytes).unwrap();
    assert_eq!(bytes[..], pattern(64, 9));
    assert_eq!(write(&a, region.address() + 2047, key), WcStatus::RemoteAccess);
    assert_eq!(async_event(&b.context).event_type, AsyncEventType::QpAccessErr);
}

#[test]
fn binding_nothing_closes_a_window_of_type_1() {
    let (a, b) = pair(4096);
    let window = b.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    let key = bind(&b, &window, half(&b.mr, REMOTE));
    assert_eq!(write(&a, b.mr.address() + 2048, key), WcStatus::Success);
    let nothing = WindowBindInfo { mr: Some(&b.mr), address: b.mr.address(), length: 0, access: AccessFlags::empty() };
    let key = bind(&b, &window, nothing);
    assert_eq!(write(&a, b.mr.address() + 2048, key), WcStatus::RemoteAccess);
}

#[test]
fn a_key_may_be_told_on_the_same_queue_pair_before_the_bind_is_seen() {
    let (a, b) = pair(4096);
    let window = b.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    for round in 0..100 {
        a.receive(2, a.mr.sge(0, 4));
        let bind = WindowBind { wr_id: 1, info: half(&b.mr, REMOTE), signaled: false, fence: false };
        let key = b.qp.bind_mw(&window, &bind).unwrap();
        b.mr.write(0, &key.0.to_ne_bytes()).unwrap();
        b.post(3, SendOperation::Send, b.mr.sge(0, 4));
        assert!(a.completion().is_success());
        let told = u32::from_ne_bytes(a.bytes(0, 4).try_into().unwrap());
        assert_eq!(write(&a, b.mr.address() + 2048, RKey(told)), WcStatus::Success, "{round}");
        assert!(b.completion().is_success());
    }
}

#[test]
fn a_window_of_type_2_is_bound_by_a_work_request_and_invalidated_by_either_side() {
    let (a, b) = pair(4096);
    let window = b.pd.alloc_mw(MemoryWindowType::Type2).unwrap();
    let key = bind_type_2(&b, &window, &half(&b.mr, REMOTE | AccessFlags::ZERO_BASED));
    assert_eq!(write(&a, 0, key), WcStatus::Success);
    assert_eq!(b.bytes(2048, 64), a.bytes(0, 64));

    b.qp.post_send(&[send(5, SendOperation::LocalInvalidate(key), &[])]).unwrap();
    let completion = b.completion();
    assert_eq!((completion.status, completion.opcode), (WcStatus::Success, WcOpcode::LocalInvalidate));

    // Any tag of the window's index will do.
    let key = RKey(key.0 ^ 0x55);
    let binding = window.binding(key, &half(&b.mr, REMOTE)).unwrap();
    b.qp.post_send(&[send(6, SendOperation::BindMemoryWindow(binding), &[])]).unwrap();
    assert!(b.completion().is_success());
    assert_eq!(write(&a, b.mr.address() + 2048, key), WcStatus::Success);
    b.receive(7, b.mr.sge(0, 64));
    a.post(8, SendOperation::SendWithInvalidate(key), a.mr.sge(0, 8));
    assert!(a.completion().is_success());
    assert_eq!(b.completion().invalidated_rkey, Some(key));
    assert_eq!(write(&a, b.mr.address() + 2048, key), WcStatus::RemoteAccess);
}

#[test]
fn a_window_of_type_2_answers_through_its_queue_pair_alone() {
    let (a, b) = pair(4096);
    let (c, mut d) = pair(4096);
    // Another connection into the same protection domain.
    d.pd = b.pd.clone();
    let qp = b.pd.create_qp(&uroce::verbs::QpInitAttributes::new(&b.cq)).unwrap();
    d.qp = qp;
    d.context = b.context.clone();
    c.qp.modify(&reset(), uroce::verbs::QpAttributeMask::STATE).unwrap();
    support::connect(&c, &d);
    let window = b.pd.alloc_mw(MemoryWindowType::Type2).unwrap();
    let key = bind_type_2(&b, &window, &half(&b.mr, REMOTE));
    assert_eq!(write(&a, b.mr.address() + 2048, key), WcStatus::Success);
    assert_eq!(write(&c, b.mr.address() + 2048, key), WcStatus::RemoteAccess);
    // A queue pair that goes takes its windows with it.
    b.qp.destroy().unwrap();
    b.mr.dereg().unwrap();
}

fn reset() -> uroce::verbs::QpAttributes {
    uroce::verbs::QpAttributes { qp_state: uroce::verbs::QpState::Reset, ..Default::default() }
}

#[test]
fn a_bind_that_the_region_does_not_allow_fails_when_it_is_done() {
    let cases = [
        (AccessFlags::LOCAL_WRITE, AccessFlags::REMOTE_READ),
        (AccessFlags::MW_BIND, AccessFlags::REMOTE_WRITE),
        (ALL | AccessFlags::ZERO_BASED, AccessFlags::REMOTE_READ),
    ];
    for (region, access) in cases {
        let (a, b) = pair(4096);
        let region = b.pd.reg_mr(4096, region).unwrap();
        let window = b.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
        let bind = WindowBind { wr_id: 1, info: half(&region, access), signaled: false, fence: false };
        b.qp.bind_mw(&window, &bind).unwrap();
        b.post(2, SendOperation::Send, b.mr.sge(0, 8));
        let (bound, sent) = (b.completion(), b.completion());
        assert_eq!((bound.wr_id, bound.status), (1, WcStatus::MemoryWindowBind), "{access:?}");
        assert_eq!((sent.wr_id, sent.status), (2, WcStatus::WorkRequestFlushed));
        drop(a);
    }
}

#[test]
fn what_makes_no_sense_is_not_posted() {
    let (_a, b) = pair(4096);
    let one = b.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    let two = b.pd.alloc_mw(MemoryWindowType::Type2).unwrap();
    let info = half(&b.mr, REMOTE);
    let errno = |window: &MemoryWindow, info| {
        b.qp.bind_mw(window, &WindowBind { wr_id: 1, info, signaled: true, fence: false }).unwrap_err().errno()
    };
    assert_eq!(errno(&two, info), libc::EINVAL);
    assert_eq!(errno(&one, WindowBindInfo { access: AccessFlags::ZERO_BASED, ..info }), libc::EINVAL);
    assert_eq!(errno(&one, WindowBindInfo { mr: None, ..info }), libc::EINVAL);
    assert_eq!(one.binding(one.rkey(), &info).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(two.binding(RKey(two.rkey().0 ^ 0x100), &info).unwrap_err().errno(), libc::EINVAL);
    let before = one.rkey();
    one.dealloc().unwrap();
    assert_eq!(one.dealloc().unwrap_err().errno(), libc::EINVAL);
    assert_eq!(errno(&one, info), libc::EINVAL);
    assert_eq!(one.rkey(), before, "a refused bind does not change the key");
}

#[test]
fn a_bound_window_holds_its_region_and_domain() {
    let (_a, b) = pair(4096);
    let region = b.pd.reg_mr(4096, BINDABLE).unwrap();
    let window = b.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    bind(&b, &window, half(&region, REMOTE));
    assert_eq!(region.dereg().unwrap_err().errno(), libc::EBUSY);
    assert_eq!(region.rereg(None, Some(ALL)).unwrap_err().errno(), libc::EBUSY);
    assert_eq!(region.access(), BINDABLE);
    window.dealloc().unwrap();
    region.rereg(None, Some(ALL)).unwrap();
    region.dereg().unwrap();

    let alone = b.context.alloc_pd().unwrap();
    let window = alone.alloc_mw(MemoryWindowType::Type2).unwrap();
    assert_eq!(alone.dealloc().unwrap_err().errno(), libc::EBUSY);
    drop(window);
    alone.dealloc().unwrap();
}

#[test]
fn a_window_that_is_deallocated_or_loses_its_region_is_closed() {
    for lose_region in [false, true] {
        let (a, b) = pair(4096);
        let region = b.pd.reg_mr(4096, BINDABLE).unwrap();
        let address = region.address() + 2048;
        let window = b.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
        let key = bind(&b, &window, half(&region, REMOTE));
        assert_eq!(write(&a, address, key), WcStatus::Success);
        if lose_region {
            drop(region);
        } else {
            drop(window);
        }
        assert_eq!(write(&a, address, key), WcStatus::RemoteAccess);
    }
}
