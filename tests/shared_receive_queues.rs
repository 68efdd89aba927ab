//! Shared receive queues: receives for several queue pairs, limits, resizing, and what happens at the end.

mod support;

use std::collections::BTreeSet;
use support::{
    Side, async_event, connect, device, eventually, pattern, send,
    world::{BAD_WEATHER, World},
};
use uroce::verbs::{
    AsyncElement, AsyncEventType, CompletionQueue, Connection, Context, Device, MemoryRegion, ProtectionDomain,
    QpAttributeMask, QpAttributes, QpCapabilities, QpInitAttributes, QpState, QueuePair, ReceiveWorkRequest,
    SendOperation, SharedReceiveQueue, SrqAttributeMask as Mask, SrqAttributes, SrqInitAttributes, WcStatus,
};

/// A receiver whose queue pairs share a receive queue.
struct Server {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    mr: MemoryRegion,
}

impl Server {
    fn new(device: &Device, max_wr: u32) -> Self {
        let context = device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024, 0, None).unwrap();
        let srq = pd.create_srq(&srq_attributes(max_wr)).unwrap();
        let mr = pd.reg_mr(1 << 16, support::ALL).unwrap();
        Self { context, pd, cq, srq, mr }
    }

    fn qp(&self) -> QueuePair {
        self.pd.create_qp(&QpInitAttributes { srq: Some(&self.srq), ..QpInitAttributes::new(&self.cq) }).unwrap()
    }

    /// A queue pair that is connected to a client's.
    fn accept(&self, client: &Side) -> QueuePair {
        let qp = self.qp();
        let connection =
            |device: &Device, qp: &QueuePair| Connection { timeout: 17, ..Connection::new(device.gid(), qp.qp_num()) };
        qp.connect(&connection(client.context.device(), &client.qp)).unwrap();
        client.qp.connect(&connection(self.context.device(), &qp)).unwrap();
        qp
    }

    fn post(&self, wr_id: u64, length: usize) {
        let sge = self.mr.sge(wr_id as usize % 64 * 1024, length);
        self.srq.post_recv(&[ReceiveWorkRequest { wr_id, sg_list: &[sge] }]).unwrap();
    }
}

const fn srq_attributes(max_wr: u32) -> SrqInitAttributes<'static> {
    SrqInitAttributes { attr: SrqAttributes { max_wr, max_sge: 1, srq_limit: 0 }, xrc: None, srq_context: 0 }
}

fn client(device: &Device) -> Side {
    Side::new(device, QpCapabilities::default(), 1 << 16)
}

#[test]
fn messages_of_many_queue_pairs_take_receives_in_turn() {
    let server = Server::new(&device(), 64);
    let clients: Vec<_> = (0..4).map(|_| client(&device())).collect();
    let qps: Vec<_> = clients.iter().map(|client| server.accept(client)).collect();
    for wr_id in 0..40 {
        server.post(wr_id, 1024);
    }
    for round in 0..10_u64 {
        for (index, client) in clients.iter().enumerate() {
            client.mr.write(0, &pattern(500, index as u8)).unwrap();
            client.post(round, SendOperation::Send, client.mr.sge(0, 500));
            let received = support::poll_one(&server.cq);
            assert_eq!(received.status, WcStatus::Success);
            assert_eq!(received.wr_id, round * 4 + index as u64, "first in first out");
            assert_eq!(received.qp_num, qps[index].qp_num());
            let mut bytes = vec![0; 500];
            server.mr.read(received.wr_id as usize * 1024, &mut bytes).unwrap();
            assert_eq!(bytes, pattern(500, index as u8));
            assert!(client.completion().is_success());
        }
    }
}

#[test]
fn an_empty_queue_makes_senders_wait() {
    let server = Server::new(&device(), 4);
    let client = client(&device());
    let _qp = server.accept(&client);
    client.post(1, SendOperation::Send, client.mr.sge(0, 100));
    eventually("the sender is told to wait", || server.context.device().counters().send_rnr_err > 0);
    server.post(7, 1024);
    assert_eq!(support::poll_one(&server.cq).wr_id, 7);
    assert!(client.completion().is_success());
}

#[test]
fn the_limit_is_told_once_each_time_that_it_is_armed() {
    let server = Server::new(&device(), 16);
    let client = client(&device());
    let _qp = server.accept(&client);
    for wr_id in 0..8 {
        server.post(wr_id, 1024);
    }
    server.context.set_nonblocking(true).unwrap();
    let arm = |srq_limit| server.srq.modify(&SrqAttributes { srq_limit, ..SrqAttributes::default() }, Mask::LIMIT);
    let exchange = || {
        client.post(1, SendOperation::Send, client.mr.sge(0, 8));
        assert!(support::poll_one(&server.cq).is_success() && client.completion().is_success());
        server.context.get_async_event().ok()
    };
    arm(6).unwrap();
    assert_eq!(server.srq.query().srq_limit, 6);
    assert_eq!(exchange(), None, "7 are left");
    assert_eq!(exchange(), None, "6 are left");
    let event = exchange().expect("5 are left");
    assert_eq!(event.event_type, AsyncEventType::SrqLimitReached);
    assert_eq!(event.element, AsyncElement::SharedReceiveQueue(server.srq.number()));
    assert_eq!(server.srq.query().srq_limit, 0, "no longer armed");
    assert_eq!(exchange(), None);
    arm(6).unwrap();
    assert_eq!(exchange().map(|event| event.event_type), Some(AsyncEventType::SrqLimitReached));
}

#[test]
fn sizes_and_limits_are_checked() {
    let server = Server::new(&device(), 8);
    let limits = server.context.query_device();
    let refused = |attributes| server.pd.create_srq(&attributes).unwrap_err().errno();
    assert_eq!(refused(srq_attributes(0)), libc::EINVAL);
    assert_eq!(refused(srq_attributes(limits.max_srq_wr + 1)), libc::EINVAL);
    let attr = SrqAttributes { max_sge: limits.max_srq_sge + 1, ..SrqAttributes::default() };
    assert_eq!(refused(SrqInitAttributes { attr, ..SrqInitAttributes::default() }), libc::EINVAL);

    let modify = |max_wr, srq_limit, mask| {
        let result = server.srq.modify(&SrqAttributes { max_wr, max_sge: 9, srq_limit }, mask);
        result.map_err(|error| error.errno())
    };
    for wr_id in 0..6 {
        server.post(wr_id, 8);
    }
    assert_eq!(modify(0, 9, Mask::LIMIT), Err(libc::EINVAL), "more than it holds");
    assert_eq!(modify(5, 0, Mask::MAX_WR), Err(libc::EINVAL), "more are posted");
    assert_eq!(modify(limits.max_srq_wr + 1, 0, Mask::MAX_WR), Err(libc::EINVAL));
    assert_eq!(modify(7, 8, Mask::MAX_WR | Mask::LIMIT), Err(libc::EINVAL));
    assert_eq!(server.srq.query(), SrqAttributes { max_wr: 8, max_sge: 1, srq_limit: 0 });
    assert_eq!(modify(7, 3, Mask::MAX_WR | Mask::LIMIT), Ok(()));
    assert_eq!(modify(2, 0, Mask::MAX_WR), Err(libc::EINVAL), "less than the limit");
    assert_eq!(server.srq.query(), SrqAttributes { max_wr: 7, max_sge: 1, srq_limit: 3 });
    server.post(6, 8);
    let full = server.srq.post_recv(&[ReceiveWorkRequest { wr_id: 7, sg_list: &[] }]).unwrap_err();
    assert_eq!((full.index, full.error.errno()), (0, libc::ENOMEM));
    let long = [server.mr.sge(0, 1); 2];
    let refused = server.srq.post_recv(&[ReceiveWorkRequest { wr_id: 7, sg_list: &long }]).unwrap_err();
    assert_eq!(refused.error.errno(), libc::EINVAL);
}

#[test]
fn a_queue_pair_has_either_its_own_queue_or_a_shared_one() {
    let server = Server::new(&device(), 8);
    let qp = server.qp();
    assert_eq!((qp.capabilities().max_recv_wr, qp.capabilities().max_recv_sge), (0, 0));
    let client = client(&device());
    let qp = server.accept(&client);
    let refused = qp.post_recv(&[ReceiveWorkRequest { wr_id: 1, sg_list: &[] }]).unwrap_err();
    assert_eq!(refused.error.errno(), libc::EINVAL);

    let elsewhere = Server::new(server.context.device(), 8);
    let attributes = QpInitAttributes { srq: Some(&elsewhere.srq), ..QpInitAttributes::new(&server.cq) };
    assert_eq!(server.pd.create_qp(&attributes).unwrap_err().errno(), libc::EINVAL, "another context's");
}

#[test]
fn a_queue_pair_in_error_tells_that_it_takes_no_more() {
    let server = Server::new(&device(), 8);
    let client = client(&device());
    let qp = server.accept(&client);
    server.post(1, 1024);
    server.post(2, 1024);
    qp.modify(&QpAttributes { qp_state: QpState::Err, ..QpAttributes::default() }, QpAttributeMask::STATE).unwrap();
    let event = async_event(&server.context);
    assert_eq!(event.event_type, AsyncEventType::QpLastWqeReached);
    assert_eq!(event.element, qp.element());
    assert_eq!(server.cq.poll(&mut [Default::default()]).unwrap(), 0, "what is posted stays for others");
    let other = Side::new(&device(), QpCapabilities::default(), 4096);
    let _qp = server.accept(&other);
    other.post(1, SendOperation::Send, other.mr.sge(0, 8));
    assert_eq!(support::poll_one(&server.cq).wr_id, 1);
}

#[test]
fn a_message_that_does_not_fit_costs_one_receive_and_one_connection() {
    let server = Server::new(&device(), 8);
    let clients = [client(&device()), client(&device())];
    let _qps = clients.each_ref().map(|client| server.accept(client));
    server.post(1, 10);
    server.post(2, 1024);
    clients[0].post(1, SendOperation::Send, clients[0].mr.sge(0, 11));
    assert_eq!(clients[0].completion().status, WcStatus::RemoteInvalidRequest);
    let received = support::poll_one(&server.cq);
    assert_eq!((received.wr_id, received.status), (1, WcStatus::LocalLength));
    let events = [async_event(&server.context), async_event(&server.context)];
    let events: BTreeSet<_> = events.iter().map(|event| event.event_type as u8).collect();
    assert_eq!(events, BTreeSet::from([AsyncEventType::QpFatal as u8, AsyncEventType::QpLastWqeReached as u8]));
    clients[1].post(1, SendOperation::Send, clients[1].mr.sge(0, 100));
    assert_eq!(support::poll_one(&server.cq).wr_id, 2);
}

#[test]
fn it_stays_while_queue_pairs_use_it() {
    let server = Server::new(&device(), 8);
    let qp = server.qp();
    assert_eq!(server.srq.destroy().unwrap_err().errno(), libc::EBUSY);
    qp.destroy().unwrap();
    assert_eq!(server.pd.dealloc().unwrap_err().errno(), libc::EBUSY);
    server.srq.destroy().unwrap();
    assert_eq!(server.srq.destroy().unwrap_err().errno(), libc::EINVAL);
    let late = server.srq.post_recv(&[ReceiveWorkRequest { wr_id: 1, sg_list: &[] }]).unwrap_err();
    assert_eq!(late.error.errno(), libc::EINVAL);
    assert_eq!(server.srq.modify(&SrqAttributes::default(), Mask::LIMIT).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn many_threads_may_post_while_messages_arrive() {
    const MESSAGES: u64 = 2000;
    let server = Server::new(&device(), 256);
    let clients = [client(&device()), client(&device())];
    let _qps = clients.each_ref().map(|client| server.accept(client));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let server = &server;
            scope.spawn(move || {
                for index in 0..MESSAGES {
                    let sge = server.mr.sge(0, 64);
                    let receive = ReceiveWorkRequest { wr_id: thread * MESSAGES + index, sg_list: &[sge] };
                    while server.srq.post_recv(&[receive]).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for client in &clients {
            scope.spawn(|| {
                for index in 0..MESSAGES {
                    client.qp.post_send(&[send(index, SendOperation::Send, &[client.mr.sge(0, 64)])]).unwrap();
                    assert!(client.completion().is_success());
                }
            });
        }
        let received: BTreeSet<_> = (0..2 * MESSAGES).map(|_| support::poll_one(&server.cq).wr_id).collect();
        assert_eq!(received.len() as u64, 2 * MESSAGES, "each receive once");
    });
}

#[test]
fn a_bad_network_changes_nothing() {
    for seed in 0..10 {
        let world = World::new(seed, BAD_WEATHER, 3);
        let server = Server::new(&world.devices[0], 64);
        let clients = [1, 2].map(|index| client(&world.devices[index]));
        let qps = clients.each_ref().map(|client| server.accept(client));
        for wr_id in 0..64 {
            server.post(wr_id, 1024);
        }
        for index in 0..20_u64 {
            for client in &clients {
                client.post(index, SendOperation::SendWithImmediate(index as u32), client.mr.sge(0, 1000));
            }
        }
        let [received, first, second] = world.run([&server.cq, &clients[0].cq, &clients[1].cq]);
        for ends in [first, second] {
            assert!(ends.iter().map(|end| (end.wr_id, end.status)).eq((0..20).map(|wr_id| (wr_id, WcStatus::Success))));
        }
        assert!(received.iter().map(|end| end.wr_id).collect::<BTreeSet<_>>().into_iter().eq(0..40));
        for qp in &qps {
            let of_qp = received.iter().filter(|end| end.qp_num == qp.qp_num());
            assert!(of_qp.map(|end| end.imm_data).eq((0..20).map(Some)), "in order, each once");
        }
    }
}

#[test]
fn resetting_gives_the_queue_pair_to_another_connection() {
    let server = Server::new(&device(), 8);
    let first = client(&device());
    let qp = server.accept(&first);
    qp.modify(&QpAttributes::default(), QpAttributeMask::STATE).unwrap();
    let second = Side { qp: qp.clone(), ..client(server.context.device()) };
    let peer = client(&device());
    connect(&second, &peer);
    server.post(5, 1024);
    peer.post(1, SendOperation::Send, peer.mr.sge(0, 8));
    assert_eq!(support::poll_one(&server.cq).wr_id, 5);
}
