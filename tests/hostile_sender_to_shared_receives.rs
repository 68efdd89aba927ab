//! What a remote sender can try against receives that others share: a shared receive queue, and the targets of extended
//! reliable connections, which reach every queue of a domain. The sender speaks from the address that the queue pair is
//! connected to, with a right ICRC. docs/security.md lists these tests by what they fend off.
//!
//! Others must not suffer: each test ends with a message that arrives by another connection.

mod support;

use support::{ALL, device, eventually, poll_one, sender::Sender};
use uroce::verbs::{
    AsyncEventType, CompletionQueue, Connection, Context, Counters, MemoryRegion, Mtu, ProtectionDomain,
    QpInitAttributes, QpState, QpType, QueuePair, RKey, ReceiveWorkRequest, SharedReceiveQueue, SrqAttributeMask,
    SrqAttributes, SrqInitAttributes, WcStatus, XrcDomain, XrcDomainInitAttributes,
};
use uroce_protocol::{
    Psn,
    wire::{
        Aeth, AtomicEth, Bth, CreditCode, Extended, Msn, NakCode, Opcode, Operation, Packet, Qpn, Repr, Reth, Service,
        Syndrome, XrcEth, XrcSrqn,
    },
};

const MEMORY: usize = 16 << 10;
const MTU: usize = 1024;
/// What the memory holds before anything reaches it.
const UNTOUCHED: u8 = 0xa5;
/// The PSN that every queue pair expects first.
const PSN: Psn = Psn::new(0xff_fffe);
/// The senders' queue pair, as the victim knows it.
const SENDERS_QPN: Qpn = Qpn::new(0x666);
const NEW_DOMAIN: XrcDomainInitAttributes<'static> =
    XrcDomainInitAttributes { file: None, create: true, exclusive: false };
use Operation as Op;

/// A protection domain with memory and a receive queue.
struct Receives {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    mr: MemoryRegion,
    srq: SharedReceiveQueue,
}

impl Receives {
    fn new(context: &Context, domain: Option<&XrcDomain>) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64, 0, None).unwrap();
        let xrc = domain.map(|domain| (domain, &cq));
        let srq = pd.create_srq(&SrqInitAttributes { xrc, ..SrqInitAttributes::default() }).unwrap();
        let mr = pd.reg_mr(MEMORY, ALL).unwrap();
        mr.fill(0, MEMORY, UNTOUCHED).unwrap();
        Self { pd, cq, mr, srq }
    }

    fn post(&self, wr_id: u64, length: usize) {
        let sge = self.mr.sge(wr_id as usize * MTU, length);
        self.srq.post_recv(&[ReceiveWorkRequest { wr_id, sg_list: &[sge] }]).unwrap();
    }

    fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.mr.read(offset, &mut bytes).unwrap();
        bytes
    }

    fn assert_untouched(&self) {
        assert!(self.bytes(0, MEMORY).iter().all(|&byte| byte == UNTOUCHED), "memory has changed");
    }

    /// Nothing has been taken from the queue and finished.
    fn assert_silent(&self) {
        assert_eq!(self.cq.poll(&mut [Default::default()]).unwrap(), 0);
    }

    fn reth(&self, length: u32) -> Extended {
        Extended::Reth(Reth { address: self.mr.address(), rkey: self.mr.rkey(), length })
    }

    fn number(&self) -> XrcSrqn {
        XrcSrqn::new(self.srq.number())
    }
}

/// A connection to a victim's queue pair, and who speaks at its other end.
struct Connected {
    qp: QueuePair,
    context: Context,
    service: Service,
    sender: Sender,
    psn: Psn,
}

impl Connected {
    fn new(context: &Context, qp: QueuePair) -> Self {
        let sender = Sender::new();
        let connection = Connection {
            path_mtu: Mtu::from_bytes(MTU).unwrap(),
            remote_psn: PSN,
            access: ALL,
            ..Connection::new(sender.address().into(), SENDERS_QPN)
        };
        qp.connect(&connection).unwrap();
        let service = if qp.qp_type() == QpType::Rc { Service::Rc } else { Service::Xrc };
        Self { qp, context: context.clone(), service, sender, psn: PSN }
    }

    /// To a target of a domain.
    fn to_target(context: &Context, domain: &XrcDomain) -> Self {
        Self::new(context, domain.create_qp(0).unwrap())
    }

    /// To a reliable connection that shares `receives`.
    fn to_sharer(context: &Context, receives: &Receives) -> Self {
        let attributes = QpInitAttributes { srq: Some(&receives.srq), ..QpInitAttributes::new(&receives.cq) };
        Self::new(context, receives.pd.create_qp(&attributes).unwrap())
    }

    /// Sends the request that is due. Only those of XRC name a queue.
    fn request(&mut self, operation: Op, srqn: XrcSrqn, extended: Extended, payload: &[u8]) {
        let opcode = Opcode::new(self.service, operation).unwrap();
        let bth = Bth { ack_request: true, ..Bth::new(opcode, self.qp.qp_num(), self.psn) };
        let xrceth = (self.service == Service::Xrc).then_some(XrcEth { srqn, reserved: 0xff });
        self.sender.send_packet(self.context.device().address(), Repr { bth, xrceth, extended }, payload);
        self.psn = self.psn.next();
    }

    fn assert_acknowledged(&self) {
        let answer = self.sender.answer();
        assert!(matches!(answer, (Op::Acknowledge, Some(Syndrome::Ack(_)))), "{answer:?}");
    }

    /// What came last has ended the connection, and the victim has been told.
    fn assert_refused(&self, code: NakCode, event: AsyncEventType) {
        assert_eq!(self.sender.answer(), (Op::Acknowledge, Some(Syndrome::Nak(code))));
        let told = self.context.get_async_event().unwrap();
        assert_eq!((told.event_type, told.element), (event, self.qp.element()));
        assert_eq!(self.qp.state(), QpState::Err);
    }

    fn assert_invalid(&self) {
        self.assert_refused(NakCode::InvalidRequest, AsyncEventType::QpReqErr);
    }

    /// A message arrives in the receive that comes first.
    fn still_serves(&mut self, receives: &Receives, wr_id: u64) {
        self.request(Op::SendOnly, receives.number(), Extended::None, b"good");
        self.assert_acknowledged();
        let received = poll_one(&receives.cq);
        assert_eq!((received.wr_id, received.status, received.byte_len), (wr_id, WcStatus::Success, 4));
        assert_eq!(received.qp_num, self.qp.qp_num());
        assert_eq!(receives.bytes(wr_id as usize * MTU, 4), b"good");
    }

    fn counters(&self) -> Counters {
        self.context.device().counters()
    }
}

fn victim() -> (Context, XrcDomain, Receives) {
    let context = device().open().unwrap();
    let domain = context.open_xrcd(&NEW_DOMAIN).unwrap();
    let receives = Receives::new(&context, Some(&domain));
    (context, domain, receives)
}

#[test]
fn queues_that_are_not_the_domains() {
    let (context, domain, receives) = victim();
    let elsewhere = Receives::new(&context, Some(&context.open_xrcd(&NEW_DOMAIN).unwrap()));
    let ordinary = Receives::new(&context, None);
    for other in [&elsewhere, &ordinary, &receives] {
        other.post(1, MTU);
    }
    let guessed = [0, receives.srq.number() ^ 1, 0xff_ffff].map(XrcSrqn::new);
    for srqn in [elsewhere.number(), ordinary.number()].into_iter().chain(guessed) {
        for operation in [Op::SendOnly, Op::SendFirst, Op::WriteOnly, Op::ReadRequest] {
            let mut stranger = Connected::to_target(&context, &domain);
            let (extended, payload) = match operation {
                Op::SendOnly | Op::SendFirst => (Extended::None, &[0x66; MTU][..]),
                Op::ReadRequest => (elsewhere.reth(MTU as u32), &[][..]),
                _ => (elsewhere.reth(MTU as u32), &[0x66; MTU][..]),
            };
            stranger.request(operation, srqn, extended, payload);
            stranger.assert_invalid();
        }
    }
    for other in [&elsewhere, &ordinary, &receives] {
        other.assert_untouched();
        other.assert_silent();
    }
    Connected::to_target(&context, &domain).still_serves(&receives, 1);
}

#[test]
fn memory_of_another_queue_of_the_domain() {
    let (context, domain, receives) = victim();
    let others = Receives::new(&context, Some(&domain));
    let atomic = Extended::Atomic(AtomicEth {
        address: others.mr.address(),
        rkey: others.mr.rkey(),
        swap_or_add: 1,
        compare: 0,
    });
    for (operation, extended, payload) in [
        (Op::WriteOnly, others.reth(4), &b"evil"[..]),
        (Op::ReadRequest, others.reth(4), b""),
        (Op::FetchAdd, atomic, b""),
    ] {
        let mut stranger = Connected::to_target(&context, &domain);
        stranger.request(operation, receives.number(), extended, payload);
        stranger.assert_refused(NakCode::RemoteAccess, AsyncEventType::QpAccessErr);
    }
    // A second packet of a WRITE cannot change whose memory it goes to.
    let mut stranger = Connected::to_target(&context, &domain);
    stranger.request(Op::WriteFirst, receives.number(), receives.reth(2 * MTU as u32), &[UNTOUCHED; MTU]);
    stranger.assert_acknowledged();
    stranger.request(Op::WriteLast, others.number(), Extended::None, &[0x66; MTU]);
    stranger.assert_invalid();
    receives.assert_untouched();
    others.assert_untouched();
    others.post(1, MTU);
    Connected::to_target(&context, &domain).still_serves(&others, 1);
}

#[test]
fn a_queue_that_changes_within_a_message() {
    let (context, domain, receives) = victim();
    let others = Receives::new(&context, Some(&domain));
    receives.post(1, 2 * MTU);
    receives.post(3, MTU);
    others.post(1, 2 * MTU);
    let mut stranger = Connected::to_target(&context, &domain);
    stranger.request(Op::SendFirst, receives.number(), Extended::None, &[UNTOUCHED; MTU]);
    stranger.assert_acknowledged();
    stranger.request(Op::SendLast, others.number(), Extended::None, &[0x66; MTU]);
    stranger.assert_invalid();
    // The receive that the message had begun with goes back to its owner, and no other.
    let ended = poll_one(&receives.cq);
    assert_eq!((ended.wr_id, ended.status), (1, WcStatus::WorkRequestFlushed));
    others.assert_silent();
    receives.assert_untouched();
    others.assert_untouched();
    let mut good = Connected::to_target(&context, &domain);
    good.still_serves(&receives, 3);
    good.still_serves(&others, 1);
}

#[test]
fn packets_that_are_no_requests_of_the_service() {
    let (context, domain, receives) = victim();
    receives.post(1, MTU);
    let mut target = Connected::to_target(&context, &domain);
    let to = context.device().address();
    let at = (target.qp.qp_num(), PSN);
    for service in [Service::Rc, Service::Uc] {
        target.sender.send(to, service, Op::SendOnly, at, Extended::None, b"evil");
    }
    eventually("other services are dropped", || target.counters().drop_wrong_service == 2);
    // A packet that ends before, or within, the number of the queue.
    let opcode = Opcode::new(Service::Xrc, Op::SendOnly).unwrap();
    let xrceth = Some(XrcEth { srqn: receives.number(), reserved: 0 });
    let mut whole = [0; Bth::LEN + XrcEth::LEN];
    Repr { bth: Bth::new(opcode, at.0, at.1), xrceth, extended: Extended::None }.emit(&mut whole);
    for length in Bth::LEN..whole.len() {
        target.sender.send_bytes(to, [&whole[..length], &[0; Packet::ICRC_LEN]].concat());
    }
    eventually("short packets are dropped", || target.counters().drop_malformed == 4);
    // Nobody has asked for anything.
    let ack = Extended::Aeth(Aeth { syndrome: Syndrome::Ack(CreditCode::UNLIMITED), msn: Msn::new(1) });
    target.sender.send(to, Service::Xrc, Op::Acknowledge, at, ack, b"");
    target.sender.send(to, Service::Xrc, Op::ReadResponseOnly, at, ack, b"evil");
    receives.assert_silent();
    receives.assert_untouched();
    target.still_serves(&receives, 1);
}

#[test]
fn requests_to_an_initiator() {
    let (context, domain, receives) = victim();
    receives.post(1, MTU);
    let attributes = QpInitAttributes { qp_type: QpType::XrcSend, ..QpInitAttributes::new(&receives.cq) };
    let mut initiator = Connected::new(&context, receives.pd.create_qp(&attributes).unwrap());
    initiator.request(Op::SendOnly, receives.number(), Extended::None, b"evil");
    initiator.request(Op::WriteOnly, receives.number(), receives.reth(4), b"evil");
    initiator.request(Op::ReadRequest, receives.number(), receives.reth(4), b"");
    eventually("they have arrived", || initiator.counters().rcvd_pkts == 3);
    let mut target = Connected::to_target(&context, &domain);
    target.still_serves(&receives, 1);
    assert_eq!(initiator.sender.answers(), []);
    assert_eq!(initiator.qp.state(), QpState::Rts);
    assert!(receives.bytes(0, MTU).iter().all(|&byte| byte == UNTOUCHED));
}

#[test]
fn messages_that_never_end() {
    let context = device().open().unwrap();
    let receives = Receives::new(&context, None);
    for wr_id in 0..4 {
        receives.post(wr_id, MTU);
    }
    // Each connection holds one receive, however often it begins: a second beginning ends the connection.
    let mut strangers: Vec<_> = (0..3).map(|_| Connected::to_sharer(&context, &receives)).collect();
    for stranger in &mut strangers {
        stranger.request(Op::SendFirst, receives.number(), Extended::None, &[UNTOUCHED; MTU]);
        stranger.assert_acknowledged();
    }
    receives.assert_silent();
    let mut good = Connected::to_sharer(&context, &receives);
    good.still_serves(&receives, 3);
    let stranger = &mut strangers[0];
    stranger.request(Op::SendFirst, receives.number(), Extended::None, &[UNTOUCHED; MTU]);
    stranger.assert_invalid();
    let ended = poll_one(&receives.cq);
    assert_eq!((ended.wr_id, ended.status), (0, WcStatus::WorkRequestFlushed));
    // And who destroys its queue pair has the memory of the receive that it held for himself again.
    strangers[1].qp.destroy().unwrap();
    receives.post(1, MTU);
    good.still_serves(&receives, 1);
}

#[test]
fn a_flood_takes_the_receives_that_are_there_and_no_more() {
    let context = device().open().unwrap();
    let receives = Receives::new(&context, None);
    for wr_id in 0..4 {
        receives.post(wr_id, MTU);
    }
    let limit = SrqAttributes { srq_limit: 2, ..SrqAttributes::default() };
    receives.srq.modify(&limit, SrqAttributeMask::LIMIT).unwrap();
    let mut stranger = Connected::to_sharer(&context, &receives);
    for _ in 0..50 {
        stranger.request(Op::SendOnly, receives.number(), Extended::None, b"more");
    }
    for wr_id in 0..4 {
        let received = poll_one(&receives.cq);
        assert_eq!((received.wr_id, received.status), (wr_id, WcStatus::Success));
    }
    eventually("everything has arrived", || stranger.counters().rcvd_pkts == 50);
    receives.assert_silent();
    assert_eq!(context.get_async_event().unwrap().event_type, AsyncEventType::SrqLimitReached);
    let naks = stranger.sender.answers().into_iter();
    let not_ready = naks.filter(|(_, syndrome)| matches!(syndrome, Some(Syndrome::RnrNak(_)))).count();
    assert!(not_ready <= 1, "{not_ready} RNR NAKs for one missing receive");
    context.set_nonblocking(true).unwrap();
    assert!(context.get_async_event().is_err(), "the limit is told once");
    receives.post(5, MTU);
    Connected::to_sharer(&context, &receives).still_serves(&receives, 5);
}

#[test]
fn keys_of_another_protection_domain_than_the_connections() {
    let context = device().open().unwrap();
    let (receives, others) = (Receives::new(&context, None), Receives::new(&context, None));
    // The queue pair's own domain counts, not that of the receive queue that it shares.
    let attributes = QpInitAttributes { srq: Some(&receives.srq), ..QpInitAttributes::new(&receives.cq) };
    let mut stranger = Connected::new(&context, others.pd.create_qp(&attributes).unwrap());
    stranger.request(Op::WriteOnly, receives.number(), receives.reth(4), b"evil");
    stranger.assert_refused(NakCode::RemoteAccess, AsyncEventType::QpAccessErr);
    receives.assert_untouched();
    let unknown = Extended::Reth(Reth { address: receives.mr.address(), rkey: RKey(0x666), length: 4 });
    let mut stranger = Connected::to_sharer(&context, &receives);
    stranger.request(Op::WriteOnly, receives.number(), unknown, b"evil");
    assert_eq!(stranger.sender.answer(), (Op::Acknowledge, Some(Syndrome::Nak(NakCode::RemoteAccess))));
    receives.assert_untouched();
    receives.post(1, MTU);
    Connected::to_sharer(&context, &receives).still_serves(&receives, 1);
}
