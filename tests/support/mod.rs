//! What tests of the verbs stand on: pairs of connected queue pairs on devices that the test opens.
#![allow(dead_code, unreachable_pub, reason = "each test file is a crate of its own and uses its own part")]

#[cfg(feature = "cli")]
pub mod launch;
#[cfg(feature = "cli")]
pub mod library;
pub mod sender;
pub mod world;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    net::Ipv6Addr,
    os::fd::AsFd,
    time::{Duration, Instant},
};
use uroce::{
    settings::Settings,
    verbs::{
        AccessFlags, AsyncEvent, Buffers, CompletionChannel, CompletionQueue, Connection, Context, Device,
        MemoryRegion, ProtectionDomain, Psn, QpCapabilities, QpInitAttributes, QpType, QueuePair, ReceiveWorkRequest,
        SendOperation, SendWorkRequest, Sge, Target, WorkCompletion,
    },
};

/// Every right that a region can give.
pub const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND)
    .union(AccessFlags::FLUSH_GLOBAL);

/// How long a test waits before it calls something lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// One side of a connection.
pub struct Side {
    pub context: Context,
    pub pd: ProtectionDomain,
    pub cq: CompletionQueue,
    pub qp: QueuePair,
    pub mr: MemoryRegion,
}

impl Side {
    pub fn new(device: &Device, cap: QpCapabilities, memory: usize) -> Self {
        Self::of_type(QpType::Rc, device, cap, memory)
    }

    pub fn of_type(qp_type: QpType, device: &Device, cap: QpCapabilities, memory: usize) -> Self {
        let context = device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024, 0, None).unwrap();
        let qp = pd.create_qp(&QpInitAttributes { cap, qp_type, ..QpInitAttributes::new(&cq) }).unwrap();
        let mr = pd.reg_mr(memory, ALL).unwrap();
        Self { context, pd, cq, qp, mr }
    }

    pub fn connection_to(&self, peer: &Self) -> Connection {
        Connection {
            path_mtu: self.context.query_port(1).unwrap().active_mtu,
            // Half a second: a test machine may leave a thread waiting for longer than the usual 67 ms.
            timeout: 17,
            local_psn: Psn::new(0xff_fff0),
            remote_psn: Psn::new(0xff_fff0),
            ..Connection::new(peer.context.device().gid(), peer.qp.qp_num())
        }
    }

    pub fn post(&self, wr_id: u64, operation: SendOperation, sge: Sge) {
        self.qp.post_send(&[send(wr_id, operation, &[sge])]).unwrap();
    }

    pub fn receive(&self, wr_id: u64, sge: Sge) {
        self.qp.post_recv(&[ReceiveWorkRequest { wr_id, sg_list: &[sge] }]).unwrap();
    }

    /// Polls for one completion.
    pub fn completion(&self) -> WorkCompletion {
        poll_one(&self.cq)
    }

    /// The region's bytes.
    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.mr.read(offset, &mut bytes).unwrap();
        bytes
    }
}

/// A signalled work request.
pub fn send<'a>(wr_id: u64, operation: SendOperation, list: &'a [Sge]) -> SendWorkRequest<'a> {
    SendWorkRequest {
        wr_id,
        operation,
        buffers: Buffers::List(list),
        signaled: true,
        solicited: false,
        fence: false,
        target: Target::Peer,
    }
}

/// Polls a completion queue until it yields.
pub fn poll_one(cq: &CompletionQueue) -> WorkCompletion {
    let start = Instant::now();
    let mut completion = [WorkCompletion::default()];
    while cq.poll(&mut completion).unwrap() == 0 {
        assert!(start.elapsed() < PATIENCE, "no completion came");
        std::hint::spin_loop();
    }
    completion[0]
}

/// Waits for a context's next asynchronous event.
pub fn async_event(context: &Context) -> AsyncEvent {
    wait_readable(context);
    context.get_async_event().unwrap()
}

/// Waits for a channel's next event, and acknowledges it.
pub fn channel_event(channel: &CompletionChannel) -> CompletionQueue {
    wait_readable(channel);
    let woken = channel.get_event().unwrap();
    woken.ack_events(1);
    woken
}

fn wait_readable(fd: &impl AsFd) {
    let timeout = Timespec::try_from(PATIENCE).unwrap();
    let ready = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).unwrap();
    assert!(ready > 0, "no event came");
}

/// Waits until something holds.
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    wait_until(what, holds, || std::thread::sleep(Duration::from_millis(1)));
}

/// The same for what has to be seen at once.
pub fn spin_until(what: &str, holds: impl FnMut() -> bool) {
    wait_until(what, holds, std::thread::yield_now);
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool, pause: impl Fn()) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        pause();
    }
}

/// A device on a loopback address of its own, and on the wire that `UROCE_LINK` names.
pub fn device() -> Device {
    Settings::from_env().unwrap().device().unwrap().build().unwrap()
}

/// A device on the IPv6 loopback address, of which there is one: waits until it is free.
pub fn ipv6_device() -> Device {
    let mut device = None;
    eventually("::1 is free", || {
        match Device::builder().address(Ipv6Addr::LOCALHOST.into()).build() {
            Ok(open) => device = Some(open),
            Err(error) => assert_eq!(error.errno(), libc::EADDRINUSE, "{error}"),
        }
        device.is_some()
    });
    device.unwrap()
}

pub fn connect(a: &Side, b: &Side) {
    a.qp.connect(&a.connection_to(b)).unwrap();
    b.qp.connect(&b.connection_to(a)).unwrap();
}

/// Two reliably connected sides on two devices, with `memory` bytes each.
pub fn pair(memory: usize) -> (Side, Side) {
    pair_of(QpType::Rc, [&device(), &device()], memory)
}

/// Two connected sides on these devices, with `memory` bytes each.
pub fn pair_of(qp_type: QpType, devices: [&Device; 2], memory: usize) -> (Side, Side) {
    let cap = QpCapabilities { max_send_sge: 4, max_recv_sge: 4, ..QpCapabilities::default() };
    let [a, b] = devices.map(|device| Side::of_type(qp_type, device, cap, memory));
    connect(&a, &b);
    (a, b)
}

/// Polls until nothing has come for a while.
pub fn poll_all(cq: &CompletionQueue) -> Vec<WorkCompletion> {
    const QUIET: Duration = Duration::from_millis(50);
    let mut completions = Vec::new();
    let mut last = Instant::now();
    while last.elapsed() < QUIET {
        let mut completion = [WorkCompletion::default()];
        if cq.poll(&mut completion).unwrap() > 0 {
            completions.push(completion[0]);
            last = Instant::now();
        }
    }
    completions
}

/// Bytes that differ from place to place.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}
