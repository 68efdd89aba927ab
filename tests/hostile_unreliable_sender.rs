//! What a remote sender can try against unreliable connections, datagrams and multicast groups of a live device, with
//! packets of any content and a right ICRC. docs/security.md lists these tests by what they fend off.
//!
//! Nothing is ever answered, and nothing a stranger sends stops a queue pair: each test ends with a message that
//! arrives.

mod support;

use std::net::IpAddr;
use support::{ALL, Side, device, eventually, poll_one, sender::Sender};
use uroce::verbs::{AccessFlags, Connection, Counters, Device, Gid, Mtu, QKey, QpCapabilities, QpState, QpType, RKey};
use uroce_protocol::{
    Psn,
    wire::{Deth, Extended, Operation, Qpn, Reth, Service},
};

const MEMORY: usize = 16 << 10;
const MTU: usize = 1024;
/// What the memory holds before anything reaches it.
const UNTOUCHED: u8 = 0xa5;
/// The PSN that an unreliable connection expects first.
const PSN: u32 = 0xff_fffe;
const QKEY: QKey = QKey(0x1122_3344);
const GRH: usize = 40;
const EVERYBODY: Qpn = Qpn::new(0xff_ffff);
use Operation as Op;

fn counters(victim: &Side) -> Counters {
    victim.context.device().counters()
}

/// Every byte of the victim's memory.
fn memory(victim: &Side) -> Vec<u8> {
    victim.bytes(0, MEMORY)
}

/// Does something, and waits until `counter` has counted it `times`.
fn is_counted(victim: &Side, times: u64, counter: impl Fn(&Counters) -> u64, act: impl FnOnce()) {
    let before = counter(&counters(victim));
    act();
    eventually("it is counted", || counter(&counters(victim)) >= before + times);
    assert_eq!(counter(&counters(victim)), before + times);
}

/// An unreliable connection, and whoever speaks from its peer's address.
struct Connected {
    victim: Side,
    sender: Sender,
    psn: Psn,
}

impl Connected {
    fn new() -> Self {
        let sender = Sender::new();
        let victim = Side::of_type(QpType::Uc, &device(), QpCapabilities::default(), MEMORY);
        let connection = Connection {
            path_mtu: Mtu::Mtu1024,
            remote_psn: Psn::new(PSN),
            access: AccessFlags::REMOTE_WRITE,
            ..Connection::new(Gid::from(sender.address()), Qpn::new(0x666))
        };
        victim.qp.connect(&connection).unwrap();
        victim.mr.write(0, &[UNTOUCHED; MEMORY]).unwrap();
        Self { victim, sender, psn: Psn::new(PSN) }
    }

    /// Sends a packet in sequence.
    fn send(&mut self, operation: Op, extended: Extended, payload: &[u8]) {
        let at = (self.victim.qp.qp_num(), self.psn);
        let to = self.victim.context.device().address();
        self.sender.send(to, Service::Uc, operation, at, extended, payload);
        self.psn = self.psn.next();
    }

    fn write(&mut self, operation: Op, (address, rkey, length): (u64, RKey, usize), payload: &[u8]) {
        self.send(operation, Extended::Reth(Reth { address, rkey, length: length as u32 }), payload);
    }

    /// A good message still arrives, and nothing has been answered.
    fn still_serves(&mut self) {
        self.victim.receive(99, self.victim.mr.sge(0, 8));
        self.send(Op::SendOnly, Extended::None, b"the next");
        let done = self.victim.completion();
        assert!(done.is_success() && done.byte_len == 8, "{done:?}");
        assert!(self.victim.bytes(0, 8) == b"the next");
        assert_eq!(self.victim.qp.state(), QpState::Rts);
        assert_eq!(counters(&self.victim).sent_pkts, 0);
    }
}

#[test]
fn messages_longer_than_the_receive() {
    let mut scene = Connected::new();
    scene.victim.receive(1, scene.victim.mr.sge(8, 8));
    let victim = scene.victim.context.clone();
    scene.send(Op::SendOnly, Extended::None, b"too long for it");
    scene.send(Op::SendFirst, Extended::None, &[1; MTU]);
    scene.send(Op::SendLast, Extended::None, &[1; 8]);
    eventually("both are dropped", || victim.device().counters().drop_message == 2);
    assert!(memory(&scene.victim) == [UNTOUCHED; MEMORY]);
    scene.send(Op::SendOnly, Extended::None, b"it fits");
    assert_eq!(scene.victim.completion().wr_id, 1, "the receive is still there");
    scene.still_serves();
}

#[test]
fn endless_messages() {
    let mut scene = Connected::new();
    scene.victim.receive(1, scene.victim.mr.sge(0, 4 * MTU));
    scene.send(Op::SendFirst, Extended::None, &[1; MTU]);
    for _ in 0..20 {
        scene.send(Op::SendMiddle, Extended::None, &[1; MTU]);
    }
    let victim = scene.victim.context.clone();
    eventually("it is dropped", || victim.device().counters().drop_message == 1);
    assert!(scene.victim.bytes(4 * MTU, MEMORY - 4 * MTU) == [UNTOUCHED; MEMORY - 4 * MTU]);
    scene.send(Op::SendOnly, Extended::None, b"instead");
    assert_eq!(scene.victim.completion().byte_len, 7);
    scene.still_serves();
}

#[test]
fn messages_without_a_beginning_and_within_each_other() {
    let mut scene = Connected::new();
    scene.victim.receive(1, scene.victim.mr.sge(0, 4 * MTU));
    let (address, rkey) = (scene.victim.mr.address() + 8192, scene.victim.mr.rkey());
    scene.send(Op::SendMiddle, Extended::None, &[1; MTU]);
    scene.send(Op::SendLast, Extended::None, &[1; 8]);
    scene.send(Op::WriteLast, Extended::None, &[1; 8]);
    scene.send(Op::SendFirst, Extended::None, &[2; MTU]);
    scene.send(Op::WriteLast, Extended::None, &[2; 8]);
    scene.write(Op::WriteFirst, (address, rkey, MTU + 8), &[2; MTU]);
    scene.send(Op::SendLast, Extended::None, &[3; 8]);
    scene.send(Op::WriteLast, Extended::None, &[3; 8]);
    scene.send(Op::SendOnly, Extended::None, b"whole");
    let done = scene.victim.completion();
    assert_eq!((done.wr_id, done.byte_len), (1, 5));
    assert_eq!(counters(&scene.victim).rx_write_requests, 0);
    assert!(scene.victim.bytes(8192 + MTU, 8) == [UNTOUCHED; 8]);
    scene.still_serves();
}

#[test]
fn writes_to_where_they_may_not() {
    let mut scene = Connected::new();
    let (address, rkey) = (scene.victim.mr.address(), scene.victim.mr.rkey());
    let elsewhere = scene.victim.context.alloc_pd().unwrap().reg_mr(64, ALL).unwrap();
    let read_only = scene.victim.pd.reg_mr(64, ALL - AccessFlags::REMOTE_WRITE).unwrap();
    let gone = scene.victim.pd.reg_mr(64, ALL).unwrap();
    let gone_at = (gone.address(), gone.rkey(), 8);
    gone.dereg().unwrap();
    let attempts = [
        (address, RKey(rkey.0 ^ 0x100), 8),
        (address + MEMORY as u64 - 7, rkey, 8),
        (address - 1, rkey, 8),
        (u64::MAX - 3, rkey, 8),
        (elsewhere.address(), elsewhere.rkey(), 8),
        (read_only.address(), read_only.rkey(), 8),
        gone_at,
    ];
    let context = scene.victim.context.clone();
    for (count, attempt) in (1..).zip(attempts) {
        scene.write(Op::WriteOnly, attempt, &[1; 8]);
        eventually("it is dropped", || context.device().counters().resp_remote_access_errors == count);
    }
    assert!(memory(&scene.victim) == [UNTOUCHED; MEMORY]);
    scene.still_serves();
}

#[test]
fn lengths_that_lie() {
    let mut scene = Connected::new();
    let (address, rkey) = (scene.victim.mr.address(), scene.victim.mr.rkey());
    scene.write(Op::WriteOnly, (address, rkey, 4), &[1; 8]);
    scene.write(Op::WriteOnly, (address, rkey, 0x8000_0001), &[1; 8]);
    scene.write(Op::WriteOnly, (address, rkey, 2 * MTU), &[1; 2 * MTU]);
    scene.send(Op::SendOnly, Extended::None, &[1; MTU + 4]);
    let context = scene.victim.context.clone();
    eventually("all are dropped", || context.device().counters().drop_message >= 3);
    assert!(memory(&scene.victim) == [UNTOUCHED; MEMORY]);
    // What was announced, and then more of it.
    scene.write(Op::WriteFirst, (address, rkey, MTU + 8), &[1; MTU]);
    scene.send(Op::WriteMiddle, Extended::None, &[2; MTU]);
    scene.send(Op::WriteLast, Extended::None, &[2; 8]);
    scene.still_serves();
    assert!(scene.victim.bytes(MTU, MEMORY - MTU) == [UNTOUCHED; MEMORY - MTU]);
}

#[test]
fn guessed_psns_behind_and_a_strangers_address() {
    let mut scene = Connected::new();
    scene.victim.receive(1, scene.victim.mr.sge(0, 8));
    let to = scene.victim.context.device().address();
    let qpn = scene.victim.qp.qp_num();
    let behind = Psn::new(PSN) - 5;
    is_counted(
        &scene.victim,
        1,
        |counters| counters.duplicate_request,
        || {
            scene.sender.send(to, Service::Uc, Op::SendOnly, (qpn, behind), Extended::None, b"again");
        },
    );
    let stranger = Sender::new();
    is_counted(
        &scene.victim,
        1,
        |counters| counters.drop_wrong_source,
        || {
            stranger.send(to, Service::Uc, Op::SendOnly, (qpn, scene.psn), Extended::None, b"who?");
        },
    );
    assert!(memory(&scene.victim) == [UNTOUCHED; MEMORY]);
    scene.send(Op::SendOnly, Extended::None, b"due");
    assert_eq!(scene.victim.completion().byte_len, 3);
    scene.still_serves();
}

/// A datagram queue pair, and whoever sends to it.
struct Datagrams {
    victim: Side,
    sender: Sender,
}

impl Datagrams {
    fn new() -> Self {
        Self::on(&device())
    }

    fn on(device: &Device) -> Self {
        let victim = Side::of_type(QpType::Ud, device, QpCapabilities::default(), MEMORY);
        victim.qp.open_datagrams(QKEY).unwrap();
        victim.mr.write(0, &[UNTOUCHED; MEMORY]).unwrap();
        Self { victim, sender: Sender::new() }
    }

    fn address(&self) -> IpAddr {
        self.victim.context.device().address()
    }

    fn send(&self, to: IpAddr, qpn: Qpn, qkey: QKey, payload: &[u8]) {
        let deth = Extended::Deth(Deth { qkey, source: Qpn::new(0x666), reserved: 0 });
        self.sender.send(to, Service::Ud, Op::SendOnly, (qpn, Psn::new(7)), deth, payload);
    }

    fn still_serves(&self) {
        self.victim.receive(99, self.victim.mr.sge(0, GRH + 8));
        self.send(self.address(), self.victim.qp.qp_num(), QKEY, b"the next");
        let done = self.victim.completion();
        assert!(done.is_success() && done.byte_len as usize == GRH + 8, "{done:?}");
        assert!(self.victim.bytes(GRH, 8) == b"the next");
        assert_eq!(self.victim.qp.state(), QpState::Rts);
        assert_eq!(counters(&self.victim).sent_pkts, 0);
    }
}

#[test]
fn datagrams_with_guessed_keys() {
    let scene = Datagrams::new();
    let qpn = scene.victim.qp.qp_num();
    scene.victim.receive(1, scene.victim.mr.sge(0, 100));
    is_counted(
        &scene.victim,
        100,
        |counters| counters.drop_qkey,
        || {
            for key in 0..100 {
                scene.send(scene.address(), qpn, QKey(QKEY.0 ^ (1 << (key % 32))), b"let me in");
            }
        },
    );
    assert!(memory(&scene.victim) == [UNTOUCHED; MEMORY]);
    assert_eq!(scene.victim.context.query_port(1).unwrap().qkey_viol_cntr, 100);
    scene.send(scene.address(), qpn, QKEY, b"I know it");
    assert_eq!(scene.victim.completion().wr_id, 1);
    scene.still_serves();
}

#[test]
fn datagrams_that_do_not_fit() {
    let small = Device::builder().mtu(Mtu::Mtu1024).build().unwrap();
    let scene = Datagrams::on(&small);
    let qpn = scene.victim.qp.qp_num();
    is_counted(
        &scene.victim,
        1,
        |counters| counters.out_of_buffer,
        || {
            scene.send(scene.address(), qpn, QKEY, b"no receive");
        },
    );
    scene.victim.receive(1, scene.victim.mr.sge(0, GRH + 8));
    scene.victim.receive(2, scene.victim.mr.sge(0, MEMORY));
    is_counted(
        &scene.victim,
        1,
        |counters| counters.drop_message,
        || {
            scene.send(scene.address(), qpn, QKEY, b"too long for it");
        },
    );
    assert!(memory(&scene.victim) == [UNTOUCHED; MEMORY]);
    scene.send(scene.address(), qpn, QKEY, b"it fits!");
    assert_eq!(scene.victim.completion().wr_id, 1);
    is_counted(
        &scene.victim,
        1,
        |counters| counters.drop_message,
        || {
            scene.send(scene.address(), qpn, QKEY, &[1; MTU + 4]);
        },
    );
    scene.send(scene.address(), qpn, QKEY, &[1; MTU]);
    assert_eq!(scene.victim.completion().wr_id, 2);
    scene.still_serves();
}

#[test]
fn packets_of_other_services_to_a_datagram_queue_pair() {
    let scene = Datagrams::new();
    let at = (scene.victim.qp.qp_num(), Psn::new(0));
    scene.victim.receive(1, scene.victim.mr.sge(0, MEMORY));
    is_counted(
        &scene.victim,
        2,
        |counters| counters.drop_wrong_service,
        || {
            scene.sender.send(scene.address(), Service::Rc, Op::SendOnly, at, Extended::None, b"reliable");
            scene.sender.send(scene.address(), Service::Uc, Op::SendOnly, at, Extended::None, b"unreliable");
        },
    );
    assert!(memory(&scene.victim) == [UNTOUCHED; MEMORY]);
}

/// A group of this test's own, so that tests may run at the same time.
fn group(test: u8) -> IpAddr {
    [239, 79, std::process::id() as u8, test].into()
}

#[test]
fn a_group_is_no_way_to_a_single_queue_pair() {
    let scene = Datagrams::new();
    let group = group(1);
    scene.victim.qp.attach_mcast(&Gid::from(group), 0).unwrap();
    scene.victim.receive(1, scene.victim.mr.sge(0, 100));
    let connected = Side::new(scene.victim.context.device(), QpCapabilities::default(), 64);
    let connection = Connection::new(Gid::from(scene.sender.address()), Qpn::new(0x666));
    connected.qp.connect(&connection).unwrap();
    is_counted(
        &scene.victim,
        2,
        |counters| counters.drop_unknown_qp,
        || {
            scene.send(group, scene.victim.qp.qp_num(), QKEY, b"to one");
            let at = (connected.qp.qp_num(), Psn::new(0));
            scene.sender.send(group, Service::Rc, Op::SendOnly, at, Extended::None, b"to another");
        },
    );
    assert!(memory(&scene.victim) == [UNTOUCHED; MEMORY]);
    scene.send(group, EVERYBODY, QKEY, b"to all");
    assert_eq!(scene.victim.completion().wr_id, 1);
    scene.still_serves();
}

#[test]
fn everybody_is_only_reached_through_a_group() {
    let scene = Datagrams::new();
    let group = group(2);
    scene.victim.qp.attach_mcast(&Gid::from(group), 0).unwrap();
    scene.victim.receive(1, scene.victim.mr.sge(0, 100));
    is_counted(
        &scene.victim,
        1,
        |counters| counters.drop_unknown_qp,
        || {
            scene.send(scene.address(), EVERYBODY, QKEY, b"all of you");
        },
    );
    is_counted(
        &scene.victim,
        1,
        |counters| counters.drop_qkey,
        || {
            scene.send(group, EVERYBODY, QKey(0), b"without the key");
        },
    );
    is_counted(
        &scene.victim,
        1,
        |counters| counters.drop_wrong_service,
        || {
            let at = (EVERYBODY, Psn::new(0));
            scene.sender.send(group, Service::Rc, Op::SendOnly, at, Extended::None, b"reliably");
        },
    );
    assert!(memory(&scene.victim) == [UNTOUCHED; MEMORY]);
    scene.victim.qp.detach_mcast(&Gid::from(group), 0).unwrap();
    scene.send(group, EVERYBODY, QKEY, b"to nobody");
    scene.send(scene.address(), scene.victim.qp.qp_num(), QKEY, b"to one");
    assert_eq!(poll_one(&scene.victim.cq).byte_len as usize, GRH + 6);
    scene.still_serves();
}
