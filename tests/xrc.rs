//! Extended reliable connections: domains, shared receive queues, initiators and targets.

mod support;

use std::{fs::File, os::fd::AsFd};
use support::{
    async_event, device, eventually, pattern, send,
    world::{BAD_WEATHER, World},
};
use uroce::{
    link::sim::PathConditions,
    verbs::{
        AsyncEventType, CompletionQueue, Connection, Context, Device, Gid, MemoryRegion, PostError, ProtectionDomain,
        QpAttributeMask, QpAttributes, QpCapabilities, QpInitAttributes, QpState, QpType, Qpn, QueuePair,
        ReceiveWorkRequest, SendOperation, SendWorkRequest, Sge, SharedReceiveQueue, SrqAttributes, SrqInitAttributes,
        Target, WcStatus, XrcDomain, XrcDomainInitAttributes,
    },
};

const ANONYMOUS: XrcDomainInitAttributes<'static> =
    XrcDomainInitAttributes { file: None, create: true, exclusive: false };

/// One process' share of an XRC domain: a protection domain with memory, and shared receive queues.
struct Member {
    context: Context,
    domain: XrcDomain,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    mr: MemoryRegion,
    srq: SharedReceiveQueue,
}

impl Member {
    fn new(device: &Device) -> Self {
        let context = device.open().unwrap();
        let domain = context.open_xrcd(&ANONYMOUS).unwrap();
        Self::of(context, domain)
    }

    fn of(context: Context, domain: XrcDomain) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024, 0, None).unwrap();
        let mr = pd.reg_mr(1 << 16, support::ALL).unwrap();
        let srq = xrc_srq(&pd, &domain, &cq);
        Self { context, domain, pd, cq, mr, srq }
    }

    /// A queue pair that sends.
    fn initiator(&self) -> QueuePair {
        let cap = QpCapabilities { max_send_sge: 2, ..QpCapabilities::default() };
        let attributes = QpInitAttributes { qp_type: QpType::XrcSend, cap, ..QpInitAttributes::new(&self.cq) };
        self.pd.create_qp(&attributes).unwrap()
    }

    fn post(&self, wr_id: u64) {
        let sge = self.mr.sge(wr_id as usize % 16 * 4096, 4096);
        self.srq.post_recv(&[ReceiveWorkRequest { wr_id, sg_list: &[sge] }]).unwrap();
    }

    fn target(&self) -> Target {
        Target::SharedReceiveQueue(self.srq.number())
    }
}

fn xrc_srq(pd: &ProtectionDomain, domain: &XrcDomain, cq: &CompletionQueue) -> SharedReceiveQueue {
    let attr = SrqAttributes::default();
    pd.create_srq(&SrqInitAttributes { attr, xrc: Some((domain, cq)), srq_context: 0 }).unwrap()
}

/// Takes a queue pair to RTS with the attributes that its half of XRC asks for.
fn bring_up(qp: &QueuePair, gid: Gid, peer: Qpn) {
    let connection = Connection { timeout: 17, access: support::ALL, ..Connection::new(gid, peer) };
    qp.connect(&connection).unwrap();
}

/// A connection from `from` to a target in `to`'s domain.
fn connect(from: &Member, to: &Member) -> (QueuePair, QueuePair) {
    let (initiator, target) = (from.initiator(), to.domain.create_qp(0).unwrap());
    bring_up(&initiator, to.context.device().gid(), target.qp_num());
    bring_up(&target, from.context.device().gid(), initiator.qp_num());
    (initiator, target)
}

fn request<'a>(wr_id: u64, operation: SendOperation, target: Target, list: &'a [Sge]) -> SendWorkRequest<'a> {
    SendWorkRequest { target, ..send(wr_id, operation, list) }
}

/// How a request of `qp` ends.
fn status_of(qp: &QueuePair, member: &Member, operation: SendOperation, target: Target) -> WcStatus {
    qp.post_send(&[request(1, operation, target, &[member.mr.sge(0, 8)])]).unwrap();
    support::poll_one(&member.cq).status
}

fn write_to(region: &MemoryRegion) -> SendOperation {
    SendOperation::Write { address: region.address(), rkey: region.rkey() }
}

#[test]
fn one_connection_reaches_every_queue_of_the_domain() {
    let (a, b) = (Member::new(&device()), Member::new(&device()));
    // Another member of the same domain, with a protection domain and completion queue of its own.
    let c = Member::of(b.context.clone(), b.domain.clone());
    let (initiator, target) = connect(&a, &b);
    assert_eq!((initiator.qp_type(), target.qp_type()), (QpType::XrcSend, QpType::XrcRecv));
    for (round, to) in [&b, &c, &b, &c, &c].into_iter().enumerate() {
        a.mr.write(0, &pattern(3000, round as u8)).unwrap();
        to.post(round as u64);
        let list = [a.mr.sge(0, 3000)];
        let send = request(1, SendOperation::SendWithImmediate(7), to.target(), &list);
        initiator.post_send(&[send]).unwrap();
        let received = support::poll_one(&to.cq);
        assert_eq!((received.wr_id, received.status), (round as u64, WcStatus::Success));
        assert_eq!((received.byte_len, received.imm_data), (3000, Some(7)));
        assert_eq!(received.qp_num, target.qp_num());
        let mut bytes = vec![0; 3000];
        to.mr.read(round * 4096, &mut bytes).unwrap();
        assert_eq!(bytes, pattern(3000, round as u8));
        assert!(support::poll_one(&a.cq).is_success());
    }
}

#[test]
fn one_sided_operations_reach_the_memory_of_the_queue_that_they_name() {
    let (a, b) = (Member::new(&device()), Member::new(&device()));
    let c = Member::of(b.context.clone(), b.domain.clone());
    let (initiator, _target) = connect(&a, &b);
    a.mr.write(0, &pattern(5000, 3)).unwrap();
    for to in [&b, &c] {
        let (address, rkey) = (to.mr.address(), to.mr.rkey());
        let operations = [
            (SendOperation::Write { address, rkey }, a.mr.sge(0, 5000)),
            (SendOperation::Read { address, rkey }, a.mr.sge(8192, 5000)),
            (SendOperation::FetchAdd { address: address + 8192, rkey, add: 3 }, a.mr.sge(16384, 8)),
        ];
        for (operation, sge) in operations {
            initiator.post_send(&[request(1, operation, to.target(), &[sge])]).unwrap();
            assert_eq!(support::poll_one(&a.cq).status, WcStatus::Success);
        }
        let mut bytes = vec![0; 5000];
        a.mr.read(8192, &mut bytes).unwrap();
        assert_eq!(bytes, pattern(5000, 3));
        assert_eq!(to.mr.load_u64(8192).unwrap(), 3);
    }
    // b's memory through c's queue is another protection domain's.
    assert_eq!(status_of(&initiator, &a, write_to(&b.mr), c.target()), WcStatus::RemoteAccess);
    assert_eq!(async_event(&b.context).event_type, AsyncEventType::QpAccessErr);
}

#[test]
fn queues_that_are_not_the_domains_are_refused() {
    let b = Member::new(&device());
    let foreign = Member::new(b.context.device());
    let ordinary = b.pd.create_srq(&SrqInitAttributes::default()).unwrap();
    let gone = xrc_srq(&b.pd, &b.domain, &b.cq);
    let number = gone.number();
    gone.destroy().unwrap();
    for number in [foreign.srq.number(), ordinary.number(), number, 0] {
        let a = Member::new(&device());
        let (initiator, _target) = connect(&a, &b);
        let status = status_of(&initiator, &a, SendOperation::Send, Target::SharedReceiveQueue(number));
        assert_eq!(status, WcStatus::RemoteInvalidRequest);
        assert_eq!(async_event(&b.context).event_type, AsyncEventType::QpReqErr);
    }
}

#[test]
fn each_half_does_its_own_and_no_more() {
    let (a, b) = (Member::new(&device()), Member::new(&device()));
    let (initiator, target) = connect(&a, &b);
    let (list, receive) = ([a.mr.sge(0, 8)], ReceiveWorkRequest { wr_id: 1, sg_list: &[] });
    let errno = |result: Result<(), PostError>| result.unwrap_err().error.errno();
    assert_eq!(errno(target.post_send(&[request(1, SendOperation::Send, a.target(), &list)])), libc::EINVAL);
    assert_eq!(errno(target.post_recv(&[receive])), libc::EINVAL);
    assert_eq!(errno(initiator.post_recv(&[receive])), libc::EINVAL);
    assert_eq!(errno(initiator.post_send(&[send(1, SendOperation::Send, &list)])), libc::EINVAL, "no queue named");
    assert!(target.pd().is_none() && target.send_cq().is_none() && target.recv_cq().is_none());
    // In error too.
    let error = QpAttributes { qp_state: QpState::Err, ..QpAttributes::default() };
    target.modify(&error, QpAttributeMask::STATE).unwrap();
    assert_eq!(errno(target.post_send(&[request(1, SendOperation::Send, a.target(), &list)])), libc::EINVAL);
    assert_eq!(errno(target.post_recv(&[receive])), libc::EINVAL);

    let attributes = QpInitAttributes { qp_type: QpType::XrcRecv, ..QpInitAttributes::new(&a.cq) };
    assert_eq!(a.pd.create_qp(&attributes).unwrap_err().errno(), libc::EINVAL);
    let attributes = QpInitAttributes { srq: Some(&a.srq), ..QpInitAttributes::new(&a.cq) };
    assert_eq!(a.pd.create_qp(&attributes).unwrap_err().errno(), libc::EINVAL, "an XRC queue is no ordinary one");
}

#[test]
fn an_error_in_mid_message_flushes_its_receive_where_it_belongs() {
    let world = World::new(1, PathConditions::IDEAL, 2);
    let (a, b) = (Member::new(&world.devices[0]), Member::new(&world.devices[1]));
    let c = Member::of(b.context.clone(), b.domain.clone());
    let (initiator, target) = connect(&a, &b);
    c.post(3);
    // Its first packets leave; the source of the last cannot be read.
    let list = [a.mr.sge(0, 2048), Sge { lkey: 0xbad, ..a.mr.sge(0, 8) }];
    initiator.post_send(&[request(1, SendOperation::Send, c.target(), &list)]).unwrap();
    let [sent, received] = world.run([&a.cq, &c.cq]);
    assert_eq!(sent[0].status, WcStatus::LocalProtection);
    assert!(received.is_empty(), "the message is in progress");
    let error = QpAttributes { qp_state: QpState::Err, ..QpAttributes::default() };
    target.modify(&error, QpAttributeMask::STATE).unwrap();
    let [flushed] = world.run([&c.cq]);
    assert_eq!((flushed[0].wr_id, flushed[0].status), (3, WcStatus::WorkRequestFlushed));
}

#[test]
fn an_empty_queue_makes_the_initiator_wait() {
    let (a, b) = (Member::new(&device()), Member::new(&device()));
    let (initiator, _target) = connect(&a, &b);
    initiator.post_send(&[request(1, SendOperation::Send, b.target(), &[a.mr.sge(0, 8)])]).unwrap();
    eventually("the initiator is told to wait", || b.context.device().counters().send_rnr_err > 0);
    b.post(4);
    assert_eq!(support::poll_one(&b.cq).wr_id, 4);
    assert!(support::poll_one(&a.cq).is_success());
}

#[test]
fn a_domain_belongs_to_a_file() {
    let path = std::env::temp_dir().join(format!("uroce-xrc-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    let again = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let device = device();
    let context = device.open().unwrap();
    let other = device.open().unwrap();
    let open = |context: &Context, file: &File, create, exclusive| {
        context
            .open_xrcd(&XrcDomainInitAttributes { file: Some(file.as_fd()), create, exclusive })
            .map_err(|error| error.errno())
    };
    assert_eq!(open(&context, &file, false, false).unwrap_err(), libc::EAGAIN);
    let first = open(&context, &file, true, true).unwrap();
    let second = open(&other, &again, false, false).unwrap();
    assert!(first.is_same(&second), "the same inode");
    assert_eq!(open(&other, &again, true, true).unwrap_err(), libc::EINVAL);
    assert!(!first.is_same(&context.open_xrcd(&ANONYMOUS).unwrap()));
    // A queue that one has made is reached through a target that the other has made.
    let member = Member::of(other.clone(), second.clone());
    let target = first.create_qp(0).unwrap();
    let sender = Member::new(&support::device());
    let initiator = sender.initiator();
    bring_up(&initiator, device.gid(), target.qp_num());
    bring_up(&target, sender.context.device().gid(), initiator.qp_num());
    member.post(1);
    assert_eq!(status_of(&initiator, &sender, SendOperation::Send, member.target()), WcStatus::Success);
    assert_eq!(support::poll_one(&member.cq).wr_id, 1);
    drop((first, second, member, target));
    assert_eq!(open(&context, &file, false, false).unwrap_err(), libc::EAGAIN, "it went with its last handle");
}

#[test]
fn a_target_may_be_opened_by_others_and_lives_until_the_last_has_destroyed_it() {
    let b = Member::new(&device());
    let a = Member::new(&device());
    let (initiator, target) = connect(&a, &b);
    let opened = b.domain.open_qp(target.qp_num(), 5).unwrap();
    assert_eq!((opened.qp_num(), opened.qp_context()), (target.qp_num(), 5));
    let foreign = b.context.open_xrcd(&ANONYMOUS).unwrap();
    assert_eq!(foreign.open_qp(target.qp_num(), 0).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(b.domain.open_qp(initiator.qp_num(), 0).unwrap_err().errno(), libc::EINVAL);
    target.destroy().unwrap();
    assert_eq!(target.destroy().unwrap_err().errno(), libc::EINVAL);
    b.post(1);
    assert_eq!(status_of(&initiator, &a, SendOperation::Send, b.target()), WcStatus::Success);
    assert_eq!(opened.state(), QpState::Rts);
    opened.destroy().unwrap();
    assert_eq!(b.domain.open_qp(opened.qp_num(), 0).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn each_handle_of_a_target_has_events_of_its_own() {
    let (a, b) = (Member::new(&device()), Member::new(&device()));
    let (initiator, target) = connect(&a, &b);
    let [first, second, last] = [1, 2, 3].map(|qp_context| b.domain.open_qp(target.qp_num(), qp_context).unwrap());
    first.destroy().unwrap();
    let status = status_of(&initiator, &a, SendOperation::Send, Target::SharedReceiveQueue(0));
    assert_eq!(status, WcStatus::RemoteInvalidRequest);
    // Nobody is told of who has gone: neither before the event, nor after it.
    eventually("the error has been told", || target.state() == QpState::Err);
    last.destroy().unwrap();
    let mut elements = vec![target.element(), second.element()];
    while !elements.is_empty() {
        let event = async_event(&b.context);
        assert_eq!(event.event_type, AsyncEventType::QpReqErr);
        let at = elements.iter().position(|element| *element == event.element);
        elements.swap_remove(at.unwrap_or_else(|| panic!("{event:?} is of none of {elements:?}")));
    }
    b.context.set_nonblocking(true).unwrap();
    assert_eq!(b.context.get_async_event().unwrap_err().errno(), libc::EAGAIN);
}

#[test]
fn a_domain_stays_while_something_is_in_it() {
    let b = Member::new(&device());
    let target = b.domain.create_qp(0).unwrap();
    assert_eq!(b.domain.close().unwrap_err().errno(), libc::EBUSY);
    target.destroy().unwrap();
    assert_eq!(b.domain.close().unwrap_err().errno(), libc::EBUSY);
    assert_eq!(b.cq.destroy().unwrap_err().errno(), libc::EBUSY);
    b.srq.destroy().unwrap();
    b.domain.close().unwrap();
    assert_eq!(b.domain.create_qp(0).unwrap_err().errno(), libc::EINVAL);
    b.cq.destroy().unwrap();
}

#[test]
fn a_bad_network_changes_nothing() {
    for seed in 0..20 {
        let world = World::new(seed, BAD_WEATHER, 2);
        let (a, b) = (Member::new(&world.devices[0]), Member::new(&world.devices[1]));
        let c = Member::of(b.context.clone(), b.domain.clone());
        let (initiator, _target) = connect(&a, &b);
        a.mr.write(0, &pattern(20_000, seed as u8)).unwrap();
        for index in 0..12_u64 {
            let to = if index % 2 == 0 { &b } else { &c };
            to.post(index);
            let rkey = to.mr.rkey();
            let counter = to.mr.address() + (1 << 16) - 8;
            let operations = [
                (SendOperation::SendWithImmediate(index as u32), a.mr.sge(index as usize * 1500, 1500)),
                (SendOperation::FetchAdd { address: counter, rkey, add: 1 }, a.mr.sge(40_000, 8)),
                (SendOperation::Read { address: to.mr.address(), rkey }, a.mr.sge(44_000, 3000)),
            ];
            for (step, (operation, sge)) in operations.into_iter().enumerate() {
                initiator.post_send(&[request(3 * index + step as u64, operation, to.target(), &[sge])]).unwrap();
            }
        }
        let [sent, of_b, of_c] = world.run([&a.cq, &b.cq, &c.cq]);
        assert!(sent.iter().map(|end| (end.wr_id, end.status)).eq((0..36).map(|wr_id| (wr_id, WcStatus::Success))));
        assert!(of_b.iter().map(|end| end.wr_id).eq((0..12).step_by(2)));
        assert!(of_c.iter().map(|end| end.wr_id).eq((1..12).step_by(2)));
        for (index, to) in (0..12).map(|index| (index, if index % 2 == 0 { &b } else { &c })) {
            let mut bytes = vec![0; 1500];
            to.mr.read(index * 4096, &mut bytes).unwrap();
            assert!(bytes == pattern(20_000, seed as u8)[index * 1500..][..1500]);
        }
        for to in [&b, &c] {
            assert_eq!(to.mr.load_u64((1 << 16) - 8).unwrap(), 6);
        }
    }
}
