//! An ACK that is held back in the hope of covering more leaves in time, whatever the program does next.

use std::{net::IpAddr, sync::Arc};
use uroce::{
    link::sim::{Network, PathConditions},
    verbs::{
        AccessFlags, Buffers, CompletionQueue, Connection, Device, MemoryRegion, Progress, QpAttributeMask,
        QpAttributes, QpInitAttributes, QpState, QueuePair, ReceiveWorkRequest, SendOperation, SendWorkRequest, Sge,
        Target, WcStatus, WorkCompletion,
    },
};
use uroce_protocol::{Instant, time::Duration};

const ALL_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

struct End {
    device: Device,
    cq: CompletionQueue,
    qp: QueuePair,
    mr: MemoryRegion,
}

impl End {
    fn new(network: &Network, address: IpAddr) -> Self {
        let device = Device::builder()
            .link(Arc::new(network.attach(address).unwrap()))
            .clock(network.clock())
            .progress(Progress::Manual)
            .build()
            .unwrap();
        let context = device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, 0, None).unwrap();
        let qp = pd.create_qp(&QpInitAttributes::new(&cq)).unwrap();
        let mr = pd.reg_mr(8192, ALL_ACCESS).unwrap();
        Self { device, cq, qp, mr }
    }

    fn connect(&self, peer: &Self) {
        self.qp.connect(&Connection::new(peer.device.gid(), peer.qp.qp_num())).unwrap();
    }

    fn poll(&self) -> Vec<WcStatus> {
        let mut completions = [WorkCompletion::default(); 16];
        let count = self.cq.poll(&mut completions).unwrap();
        completions[..count].iter().map(|completion| completion.status).collect()
    }
}

fn pair() -> (Network, End, End) {
    let network = Network::new(1, PathConditions::IDEAL);
    let a = End::new(&network, [10, 0, 0, 1].into());
    let b = End::new(&network, [10, 0, 0, 2].into());
    a.connect(&b);
    b.connect(&a);
    (network, a, b)
}

fn post(operation: SendOperation, list: &[Sge]) -> SendWorkRequest<'_> {
    SendWorkRequest {
        wr_id: 0,
        operation,
        buffers: Buffers::List(list),
        signaled: true,
        solicited: false,
        fence: false,
        target: Target::Peer,
    }
}

/// Moves to the next arrival, if there is one within a millisecond: long before any timeout.
fn wait(network: &Network) -> bool {
    let soon = Instant::ZERO + Duration::from_millis(1);
    match network.next_event().filter(|event| *event < soon) {
        Some(event) => {
            network.clock().advance_to(event);
            true
        }
        None => false,
    }
}

/// What becomes of A's SEND when B ends its queue pair as soon as it has polled the receive's completion.
fn after_the_last_receive(end: impl FnOnce(&QueuePair)) {
    let (network, a, b) = pair();
    let list = [b.mr.sge(0, 64)];
    b.qp.post_recv(&[ReceiveWorkRequest { wr_id: 0, sg_list: &list }]).unwrap();
    let list = [a.mr.sge(0, 64)];
    a.qp.post_send(&[post(SendOperation::Send, &list)]).unwrap();
    while b.poll().is_empty() {
        assert!(wait(&network), "the message arrives");
    }
    end(&b.qp);
    loop {
        let statuses = a.poll();
        if !statuses.is_empty() {
            assert_eq!(statuses, [WcStatus::Success]);
            break;
        }
        assert!(wait(&network), "the ACK of what B has received arrives");
    }
}

#[test]
fn a_queue_pair_that_is_destroyed_has_acknowledged_what_was_received() {
    after_the_last_receive(|qp| qp.destroy().unwrap());
}

#[test]
fn a_queue_pair_that_is_reset_has_acknowledged_what_was_received() {
    let reset = QpAttributes { qp_state: QpState::Reset, ..QpAttributes::default() };
    after_the_last_receive(|qp| qp.modify(&reset, QpAttributeMask::STATE).unwrap());
}

#[test]
fn the_ack_behind_a_read_response_leaves_with_it() {
    let (network, a, b) = pair();
    let (far, near) = ([a.mr.sge(0, 1500)], [a.mr.sge(2000, 8)]);
    let (address, rkey) = (b.mr.address(), b.mr.rkey());
    let requests =
        [post(SendOperation::Read { address, rkey }, &far), post(SendOperation::Write { address, rkey }, &near)];
    a.qp.post_send(&requests).unwrap();
    let mut statuses = Vec::new();
    loop {
        let busy = a.device.progress() | b.device.progress();
        statuses.extend(a.poll());
        if !busy && !wait(&network) {
            break;
        }
    }
    assert_eq!(statuses, [WcStatus::Success; 2]);
}
