//! Completion queues and channels: bounds, events, and who is woken by what.

mod support;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    os::fd::AsFd,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use support::{ALL, Side, async_event, channel_event, connect, device, eventually, poll_one, send};
use uroce::verbs::{
    AsyncElement, AsyncEventType, CompletionChannel, CompletionQueue, Context, Device, Notify, ProtectionDomain,
    QpAttributeMask as Mask, QpAttributes, QpCapabilities, QpInitAttributes, QpState, QueuePair, ReceiveWorkRequest,
    SendOperation, SendWorkRequest, WcStatus, WorkCompletion,
};

/// A queue pair connected to itself, whose receives complete in a queue with a channel.
struct Fixture {
    context: Context,
    pd: ProtectionDomain,
    channel: CompletionChannel,
    receives: CompletionQueue,
    side: Side,
    qp: QueuePair,
}

impl Fixture {
    fn new() -> Self {
        let side = Side::new(&device(), QpCapabilities::default(), 4096);
        let context = side.context.clone();
        let channel = context.create_comp_channel().unwrap();
        let receives = context.create_cq(64, 77, Some(&channel)).unwrap();
        let attributes = QpInitAttributes { recv_cq: &receives, ..QpInitAttributes::new(&side.cq) };
        let qp = side.pd.create_qp(&attributes).unwrap();
        let mut to_itself = side.connection_to(&side);
        to_itself.qpn = qp.qp_num();
        qp.connect(&to_itself).unwrap();
        Self { pd: side.pd.clone(), context, channel, receives, side, qp }
    }

    fn receive(&self, wr_id: u64) {
        let list = [self.side.mr.sge(0, 8)];
        self.qp.post_recv(&[ReceiveWorkRequest { wr_id, sg_list: &list }]).unwrap();
    }

    fn send(&self, solicited: bool) {
        let list = [self.side.mr.sge(8, 8)];
        let request = SendWorkRequest { solicited, ..send(1, SendOperation::Send, &list) };
        self.qp.post_send(&[request]).unwrap();
        assert!(poll_one(&self.side.cq).is_success());
    }
}

/// Whether a descriptor is readable now.
fn is_readable(fd: &impl AsFd) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn an_armed_queue_wakes_its_channel_once() {
    let fixture = Fixture::new();
    fixture.receive(1);
    fixture.receive(2);
    fixture.receives.req_notify(Notify::Next).unwrap();
    assert!(!is_readable(&fixture.channel));
    fixture.send(false);
    let woken = channel_event(&fixture.channel);
    assert_eq!((woken.number(), woken.cq_context()), (fixture.receives.number(), 77));
    fixture.send(false);
    eventually("the second completion is there", || {
        fixture.receives.poll(&mut [WorkCompletion::default(); 2]).unwrap() == 2
    });
    assert!(!is_readable(&fixture.channel), "it was armed for one event");
}

#[test]
fn a_sleeping_program_is_woken_by_its_peer() {
    let a = Side::new(&device(), QpCapabilities::default(), 4096);
    let b_device = device();
    let context = b_device.open().unwrap();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(64, 0, Some(&channel)).unwrap();
    let pd = context.alloc_pd().unwrap();
    let mr = pd.reg_mr(4096, ALL).unwrap();
    let qp = pd.create_qp(&QpInitAttributes::new(&cq)).unwrap();
    let b = Side { context, pd, cq, qp, mr };
    connect(&a, &b);
    for wr_id in 0..100 {
        b.receive(wr_id, b.mr.sge(0, 64));
        b.cq.req_notify(Notify::Next).unwrap();
        assert_eq!(b.cq.poll(&mut [WorkCompletion::default()]).unwrap(), 0);
        a.post(wr_id, SendOperation::Send, a.mr.sge(0, 64));
        channel_event(&channel);
        assert_eq!(b.completion().wr_id, wr_id);
        assert!(a.completion().is_success());
    }
}

#[test]
fn armed_for_solicited_events_others_do_not_wake() {
    let fixture = Fixture::new();
    fixture.receive(1);
    fixture.receive(2);
    fixture.receives.req_notify(Notify::Solicited).unwrap();
    fixture.send(false);
    eventually("the completion is there", || fixture.receives.poll(&mut [WorkCompletion::default()]).unwrap() == 1);
    assert!(!is_readable(&fixture.channel));
    fixture.send(true);
    channel_event(&fixture.channel);
}

#[test]
fn an_error_wakes_whoever_waits_for_solicited_events() {
    let fixture = Fixture::new();
    fixture.receive(1);
    fixture.receives.req_notify(Notify::Solicited).unwrap();
    let to_error = QpAttributes { qp_state: QpState::Err, ..Default::default() };
    fixture.qp.modify(&to_error, Mask::STATE).unwrap();
    channel_event(&fixture.channel);
    assert_eq!(poll_one(&fixture.receives).status, WcStatus::WorkRequestFlushed);
}

#[test]
fn a_nonblocking_channel_does_not_wait() {
    let fixture = Fixture::new();
    fixture.channel.set_nonblocking(true).unwrap();
    assert_eq!(fixture.channel.get_event().unwrap_err().errno(), libc::EAGAIN);
    fixture.context.set_nonblocking(true).unwrap();
    assert_eq!(fixture.context.get_async_event().unwrap_err().errno(), libc::EAGAIN);
}

#[test]
fn a_queue_without_a_channel_cannot_be_armed() {
    let side = Side::new(&device(), QpCapabilities::default(), 64);
    assert_eq!(side.cq.req_notify(Notify::Next).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn a_queue_is_never_made_smaller_than_what_it_holds() {
    let fixture = Fixture::new();
    for wr_id in 0..3 {
        fixture.receive(wr_id);
        fixture.send(false);
    }
    assert_eq!(fixture.receives.resize(2).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(fixture.receives.cqe(), 64);
    fixture.receives.resize(3).unwrap();
    assert_eq!(fixture.receives.cqe(), 3);
    assert_eq!(fixture.receives.resize(0).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(fixture.context.create_cq(0, 0, None).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn an_overrun_queue_fails_its_queue_pairs() {
    let fixture = Fixture::new();
    let other = fixture.pd.create_qp(&QpInitAttributes::new(&fixture.receives)).unwrap();
    let mut to_itself = fixture.side.connection_to(&fixture.side);
    to_itself.qpn = other.qp_num();
    other.connect(&to_itself).unwrap();

    fixture.receives.resize(2).unwrap();
    for wr_id in 0..3 {
        fixture.receive(wr_id);
    }
    let list = [fixture.side.mr.sge(8, 8)];
    for _ in 0..3 {
        fixture.qp.post_send(&[send(1, SendOperation::Send, &list)]).unwrap();
    }
    let mut events: Vec<_> = (0..3).map(|_| async_event(&fixture.context)).collect();
    assert_eq!(events[0].event_type, AsyncEventType::CqErr);
    assert_eq!(events.remove(0).element, AsyncElement::CompletionQueue(fixture.receives.number()));
    for event in events {
        assert_eq!(event.event_type, AsyncEventType::QpFatal);
        let qps = [&fixture.qp, &other].map(QueuePair::element);
        assert!(qps.contains(&event.element));
    }
    assert_eq!((fixture.qp.state(), other.state()), (QpState::Err, QpState::Err));
    // What it held can still be taken; then it says that it has lost something.
    let mut completions = [WorkCompletion::default(); 4];
    assert_eq!(fixture.receives.poll(&mut completions).unwrap(), 2);
    assert_eq!(fixture.receives.poll(&mut completions).unwrap_err().errno(), libc::EIO);
}

#[test]
fn an_event_of_a_queue_that_is_gone_is_not_delivered() {
    let fixture = Fixture::new();
    fixture.receive(1);
    fixture.receives.req_notify(Notify::Next).unwrap();
    fixture.send(false);
    eventually("an event waits", || is_readable(&fixture.channel));
    fixture.qp.destroy().unwrap();
    fixture.receives.destroy().unwrap();
    fixture.channel.set_nonblocking(true).unwrap();
    assert_eq!(fixture.channel.get_event().unwrap_err().errno(), libc::EAGAIN);
}

#[test]
fn destroying_a_queue_waits_for_acknowledgements() {
    let fixture = Fixture::new();
    fixture.receive(1);
    fixture.receives.req_notify(Notify::Next).unwrap();
    fixture.send(false);
    let event = fixture.channel.get_event().unwrap();
    fixture.qp.destroy().unwrap();
    std::thread::scope(|scope| {
        let destroying = scope.spawn(|| fixture.receives.destroy());
        eventually("the queue is on its way out", || fixture.receives.resize(9).is_err());
        assert!(!destroying.is_finished());
        event.ack_events(1);
        destroying.join().unwrap().unwrap();
    });
}

#[test]
fn dropping_a_device_with_everything_open_is_fine() {
    let device: Device = device();
    let context = device.open().unwrap();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(16, 0, Some(&channel)).unwrap();
    cq.req_notify(Notify::Next).unwrap();
    drop((device, context, channel, cq));
}

#[test]
fn completions_carry_the_time_on_the_device_s_clock() {
    let fixture = Fixture::new();
    let before = fixture.context.raw_clock();
    fixture.receive(1);
    let list = [fixture.side.mr.sge(8, 8)];
    fixture.qp.post_send(&[send(1, SendOperation::Send, &list)]).unwrap();
    let received = poll_one(&fixture.receives);
    let sent = poll_one(&fixture.side.cq);
    let after = fixture.context.raw_clock();
    assert!(before <= received.timestamp, "{before:?} {received:?}");
    assert!(received.timestamp <= sent.timestamp, "{received:?} {sent:?}");
    assert!(sent.timestamp <= after, "{sent:?} {after:?}");
}

#[test]
fn a_queue_pair_that_is_reset_leaves_no_completions() {
    let fixture = Fixture::new();
    let other = fixture.pd.create_qp(&QpInitAttributes::new(&fixture.receives)).unwrap();
    let to_init = QpAttributes { qp_state: QpState::Init, port_num: 1, ..QpAttributes::default() };
    let in_init = Mask::STATE | Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
    other.modify(&to_init, in_init).unwrap();
    let list = [fixture.side.mr.sge(0, 8)];
    other.post_recv(&[ReceiveWorkRequest { wr_id: 50, sg_list: &list }]).unwrap();
    fixture.receive(1);
    fixture.receive(2);
    let to = |qp_state| QpAttributes { qp_state, ..QpAttributes::default() };
    for qp in [&fixture.qp, &other] {
        qp.modify(&to(QpState::Err), Mask::STATE).unwrap();
    }
    fixture.qp.modify(&to(QpState::Reset), Mask::STATE).unwrap();
    // The other queue pair's stays.
    assert_eq!(poll_one(&fixture.receives).wr_id, 50);
    assert_eq!(fixture.receives.poll(&mut [WorkCompletion::default()]).unwrap(), 0);
}

extern "C" fn do_nothing(_signal: libc::c_int) {}

#[test]
fn a_signal_ends_the_wait_for_an_event() {
    let fixture = Fixture::new();
    // SAFETY: the handler does nothing, and no other test uses this signal.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = do_nothing as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
    }
    let is_done = AtomicBool::new(false);
    // SAFETY: no precondition.
    let waiting = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                // SAFETY: the thread waits for this one to end.
                unsafe { libc::pthread_kill(waiting, libc::SIGUSR2) };
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert_eq!(fixture.channel.get_event().unwrap_err().errno(), libc::EINTR);
        is_done.store(true, Ordering::Release);
    });
}
