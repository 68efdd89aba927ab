//! What a remote sender can try, against a live device: packets of any content with a right ICRC, from the very
//! address that the queue pair is connected to. docs/security.md lists these tests by what they fend off.
//!
//! Each test says what the sender hears, what the device counts, and that no byte of memory has changed; and where
//! the packet was to be ignored, that the connection still serves.

mod support;

use std::net::IpAddr;
use support::{ALL, Side, device, eventually, poll_one, send};
use uroce::{
    link::{Link, ReceiveBuffer, Train, UdpConfig, UdpLink},
    verbs::{
        AccessFlags, AsyncEventType, Connection, Counters, Mtu, QpCapabilities, QpState, RKey, SendOperation, WcOpcode,
        WcStatus,
    },
};
use uroce_protocol::{
    Instant, Psn,
    wire::{
        Aeth, AtomicEth, Bth, CreditCode, Extended, Msn, NakCode, Opcode, Operation, PKey, Packet, Qpn, ROCE_PORT,
        Repr, Reth, Service, Syndrome, icrc::Flow,
    },
};

const MEMORY: usize = 16 << 10;
const MTU: usize = 1024;
/// What the memory holds before anything reaches it.
const UNTOUCHED: u8 = 0xa5;
/// The PSN that the victim expects first, and the one that it sends first.
const PSN: u32 = 0xff_fffe;
const VICTIMS_PSN: u32 = 0x50_0000;
/// The sender's queue pair, as the victim knows it.
const SENDERS_QPN: Qpn = Qpn::new(0x666);
/// READs and atomics that the victim replays.
const RD_ATOMIC: u8 = 4;

/// A victim, and a sender that may send whatever it likes.
struct Scene {
    victim: Side,
    sender: Sender,
    /// The next PSN that the victim expects.
    psn: Psn,
}

struct Sender {
    link: UdpLink,
    flow: Flow,
    to: IpAddr,
}

/// What the sender heard.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    operation: Operation,
    psn: Psn,
    syndrome: Option<Syndrome>,
    payload: Vec<u8>,
}

impl Sender {
    fn new(to: IpAddr) -> Self {
        let link = UdpLink::open_loopback(&UdpConfig::default()).unwrap();
        Self { flow: Flow::new(link.address(), to, ROCE_PORT), link, to }
    }

    /// Sends bytes as they are.
    fn send_raw(&self, bytes: &[u8]) {
        let train = Train {
            destination: self.to,
            source_port: ROCE_PORT,
            traffic_class: 0,
            hop_limit: None,
            segment_size: bytes.len(),
            bytes,
        };
        self.link.send(Instant::ZERO, &train).unwrap();
    }

    /// Sends bytes after giving their last four the right ICRC.
    fn send(&self, mut bytes: Vec<u8>) {
        self.flow.stamp(0, &mut bytes);
        self.send_raw(&bytes);
    }

    /// What has arrived, and has not been asked for yet.
    fn answers(&self) -> Vec<Answer> {
        let mut buffer = ReceiveBuffer::new();
        let mut answers = Vec::new();
        while let Some(arrival) = self.link.receive(Instant::ZERO, &mut buffer).unwrap() {
            for segment in buffer.segments(&arrival) {
                let packet = Packet::new_checked(segment).expect("the victim sends packets");
                assert_eq!(packet.destination(), SENDERS_QPN);
                answers.push(Answer {
                    operation: packet.opcode().operation(),
                    psn: packet.psn(),
                    syndrome: packet.aeth().map(|aeth| aeth.syndrome),
                    payload: packet.payload().to_vec(),
                });
            }
        }
        answers
    }

    /// Waits for so many answers.
    fn wait(&self, count: usize) -> Vec<Answer> {
        let mut answers = Vec::new();
        eventually("an answer", || {
            answers.extend(self.answers());
            answers.len() >= count
        });
        assert_eq!(answers.len(), count, "{answers:?}");
        answers
    }
}

impl Scene {
    fn new() -> Self {
        Self::with_rights(ALL)
    }

    /// A victim whose queue pair gives these rights.
    fn with_rights(access: AccessFlags) -> Self {
        let scene = Self::unconnected();
        let connection = Connection {
            path_mtu: Mtu::from_bytes(MTU).unwrap(),
            local_psn: Psn::new(VICTIMS_PSN),
            remote_psn: Psn::new(PSN),
            max_rd_atomic: RD_ATOMIC,
            access,
            ..Connection::new(scene.sender.link.address().into(), SENDERS_QPN)
        };
        scene.victim.qp.connect(&connection).unwrap();
        scene
    }

    fn unconnected() -> Self {
        let device = device();
        let victim = Side::new(&device, QpCapabilities::default(), MEMORY);
        victim.mr.fill(0, MEMORY, UNTOUCHED).unwrap();
        Self { sender: Sender::new(device.address()), victim, psn: Psn::new(PSN) }
    }

    /// A request to the victim, less its ICRC's value.
    fn packet(&self, operation: Operation, psn: Psn, extended: Extended, payload: &[u8]) -> Vec<u8> {
        let bth = Bth::new(Opcode::rc(operation), self.victim.qp.qp_num(), psn);
        packet(Bth { ack_request: true, pad: Bth::pad_for(payload.len()), ..bth }, extended, payload)
    }

    /// Sends a request with the PSN that is due.
    fn request(&self, operation: Operation, extended: Extended, payload: &[u8]) {
        self.sender.send(self.packet(operation, self.psn, extended, payload));
    }

    /// The start of the victim's memory, by its own key.
    fn reth(&self, length: u32) -> Reth {
        Reth { address: self.victim.mr.address(), rkey: self.victim.mr.rkey(), length }
    }

    fn counters(&self) -> Counters {
        self.victim.context.device().counters()
    }

    /// Waits until the device has counted something so many times.
    fn counts(&self, what: &str, expected: u64, counter: fn(&Counters) -> u64) {
        eventually(what, || counter(&self.counters()) >= expected);
        assert_eq!(counter(&self.counters()), expected, "{what}");
    }

    fn assert_untouched(&self) {
        assert!(self.victim.bytes(0, MEMORY).iter().all(|&byte| byte == UNTOUCHED), "memory has changed");
    }

    /// What came before was ignored: no answer, no byte changed, and the PSN that was due still is.
    fn assert_still_serves(&mut self) {
        assert_eq!(self.sender.answers(), []);
        self.assert_untouched();
        let psn = self.psn;
        self.request(Operation::WriteOnly, Extended::Reth(self.reth(4)), b"good");
        let [answer] = &self.sender.wait(1)[..] else { unreachable!() };
        assert!(matches!(answer.syndrome, Some(Syndrome::Ack(_))), "{answer:?}");
        assert_eq!(answer.psn, psn);
        assert_eq!(self.victim.bytes(0, 4), b"good");
        self.victim.mr.fill(0, 4, UNTOUCHED).unwrap();
        self.psn += 1;
    }

    /// What came before was refused by a NAK that ends the connection, and by an event on the victim's side.
    fn assert_refused(&self, code: NakCode, event: AsyncEventType) {
        let [answer] = &self.sender.wait(1)[..] else { unreachable!() };
        assert_eq!(answer.syndrome, Some(Syndrome::Nak(code)));
        let found = self.victim.context.get_async_event().unwrap();
        assert_eq!((found.event_type, found.element), (event, self.victim.qp.element()));
        assert_eq!(self.victim.qp.state(), QpState::Err);
        self.assert_untouched();
    }

    fn assert_access_refused(&self) {
        self.assert_refused(NakCode::RemoteAccess, AsyncEventType::QpAccessErr);
    }

    fn assert_invalid(&self) {
        self.assert_refused(NakCode::InvalidRequest, AsyncEventType::QpReqErr);
    }
}

/// A packet with room for its ICRC. Pad follows the payload as the header says, whether that makes sense or not.
fn packet(bth: Bth, extended: Extended, payload: &[u8]) -> Vec<u8> {
    let repr = Repr::new(bth, extended);
    let mut bytes = vec![0; repr.header_len()];
    repr.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + usize::from(Bth::pad_for(payload.len())) + 4, 0);
    bytes
}

fn atomic(address: u64, rkey: RKey) -> Extended {
    Extended::Atomic(AtomicEth { address, rkey, swap_or_add: 7, compare: 0 })
}

#[test]
fn short_packets() {
    let mut scene = Scene::new();
    let whole = scene.packet(Operation::WriteOnly, scene.psn, Extended::Reth(scene.reth(4)), b"evil");
    let headers = Bth::LEN + 16 + 4;
    for length in 4..headers {
        scene.sender.send(whole[..length].to_vec());
    }
    for length in 1..4 {
        scene.sender.send_raw(&whole[..length]);
    }
    scene.counts("short packets", headers as u64 - 1, |counters| counters.drop_malformed);
    scene.assert_still_serves();
}

#[test]
fn forged_pads() {
    let mut scene = Scene::new();
    let mut sent = 0;
    // More pad than there is payload, and payload that pad does not fill to a multiple of four.
    for (pad, payload) in [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (2, 1)] {
        let bth = Bth::new(Opcode::rc(Operation::SendOnly), scene.victim.qp.qp_num(), scene.psn);
        let mut bytes = packet(Bth { pad, ..bth }, Extended::None, &[]);
        bytes.splice(Bth::LEN..Bth::LEN, std::iter::repeat_n(0, payload));
        scene.sender.send(bytes);
        sent += 1;
    }
    scene.counts("forged pads", sent, |counters| counters.drop_malformed);
    scene.assert_still_serves();
}

#[test]
fn opcodes_that_do_not_exist_or_are_of_another_service() {
    let mut scene = Scene::new();
    let (mut malformed, mut foreign, mut notifications) = (0, 0, 0);
    for first in 0..=u8::MAX {
        let mut bytes = scene.packet(Operation::SendOnly, scene.psn, Extended::None, &[0; 64]);
        bytes[0] = first;
        match Packet::new_checked(&bytes).map(|packet| packet.opcode().service()) {
            // No such opcode, or one that has no payload.
            Err(_) => malformed += 1,
            Ok(Service::Rc) => continue,
            Ok(Service::Cnp) => notifications += 1,
            Ok(_) => foreign += 1,
        }
        scene.sender.send(bytes);
    }
    scene.counts("malformed packets", malformed, |counters| counters.drop_malformed);
    scene.counts("foreign services", foreign, |counters| counters.drop_wrong_service);
    scene.counts("notifications", notifications, |counters| counters.rp_cnp_ignored);
    scene.assert_still_serves();
}

#[test]
fn packets_with_any_bit_flipped() {
    let mut scene = Scene::new();
    let mut whole = scene.packet(Operation::WriteOnly, scene.psn, Extended::Reth(scene.reth(4)), b"evil");
    scene.sender.flow.stamp(0, &mut whole);
    // Byte 4 holds the congestion marks, which routers set: the ICRC does not cover it.
    let bits: Vec<usize> = (0..8 * whole.len()).filter(|bit| bit / 8 != 4).collect();
    for &bit in &bits {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        scene.sender.send_raw(&bytes);
    }
    scene.counts("damaged packets", bits.len() as u64, |counters| {
        counters.rx_icrc_encapsulated + counters.drop_malformed
    });
    scene.assert_still_serves();
}

#[test]
fn packets_from_another_address() {
    let mut scene = Scene::new();
    let stranger = Sender::new(scene.sender.to);
    stranger.send(scene.packet(Operation::WriteOnly, scene.psn, Extended::Reth(scene.reth(4)), b"evil"));
    scene.counts("strangers", 1, |counters| counters.drop_wrong_source);
    assert_eq!(stranger.answers(), []);
    scene.assert_still_serves();
}

#[test]
fn foreign_partitions_and_transport_versions() {
    let mut scene = Scene::new();
    let bth = Bth::new(Opcode::rc(Operation::WriteOnly), scene.victim.qp.qp_num(), scene.psn);
    let extended = Extended::Reth(scene.reth(4));
    scene.sender.send(packet(Bth { pkey: PKey(0x1234), ..bth }, extended, b"evil"));
    scene.counts("foreign partitions", 1, |counters| counters.drop_pkey);
    for transport_version in 1..16 {
        scene.sender.send(packet(Bth { transport_version, ..bth }, extended, b"evil"));
    }
    scene.counts("transport versions", 15, |counters| counters.drop_transport_version);
    scene.assert_still_serves();
}

#[test]
fn a_flood_to_queue_pairs_that_do_not_exist() {
    let mut scene = Scene::new();
    let own = scene.victim.qp.qp_num();
    let flood: Vec<Qpn> =
        (0..20_000_u32).map(|n| Qpn::new(n.wrapping_mul(0x9e37_79b9))).filter(|&qpn| qpn != own).collect();
    // In portions that the victim's socket holds: what is lost is not counted.
    for (portion, qpns) in flood.chunks(50).enumerate() {
        for &qpn in qpns {
            let bth = Bth::new(Opcode::rc(Operation::WriteOnly), qpn, scene.psn);
            scene.sender.send(packet(bth, Extended::Reth(scene.reth(4)), b"evil"));
        }
        let so_far = (50 * portion + qpns.len()) as u64;
        eventually("the flood is over", || scene.counters().drop_unknown_qp == so_far);
    }
    scene.assert_still_serves();
}

#[test]
fn queue_pairs_that_are_not_ready() {
    let scene = Scene::unconnected();
    scene.request(Operation::WriteOnly, Extended::Reth(scene.reth(4)), b"evil");
    scene.counts("not ready", 1, |counters| counters.drop_qp_state);
    assert_eq!(scene.sender.answers(), []);
    scene.assert_untouched();
}

#[test]
fn guessed_keys() {
    for (operation, length, payload) in
        [(Operation::WriteOnly, 4, &b"evil"[..]), (Operation::WriteFirst, 2 * MTU as u32, &[0; MTU])]
    {
        let scene = Scene::new();
        let rkey = RKey(scene.victim.mr.rkey().0 ^ 0x100);
        scene.request(operation, Extended::Reth(Reth { rkey, ..scene.reth(length) }), payload);
        scene.assert_access_refused();
    }
    let scene = Scene::new();
    let rkey = RKey(!scene.victim.mr.rkey().0);
    scene.request(Operation::ReadRequest, Extended::Reth(Reth { rkey, ..scene.reth(4) }), &[]);
    scene.assert_access_refused();
    for operation in [Operation::CompareSwap, Operation::FetchAdd] {
        let scene = Scene::new();
        let rkey = RKey(scene.victim.mr.rkey().0.wrapping_add(1));
        scene.request(operation, atomic(scene.victim.mr.address(), rkey), &[]);
        scene.assert_access_refused();
    }
    let scene = Scene::new();
    scene.victim.receive(0, scene.victim.mr.sge(0, 64));
    scene.request(Operation::SendOnlyWithInvalidate, Extended::Invalidate(RKey(0x666)), b"");
    scene.assert_access_refused();
}

#[test]
fn keys_of_another_protection_domain() {
    let scene = Scene::new();
    let other = scene.victim.context.alloc_pd().unwrap().reg_mr(64, ALL).unwrap();
    let reth = Reth { address: other.address(), rkey: other.rkey(), length: 4 };
    scene.request(Operation::WriteOnly, Extended::Reth(reth), b"evil");
    scene.assert_access_refused();
    let mut bytes = [1; 64];
    other.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
}

#[test]
fn keys_that_have_been_deregistered() {
    let scene = Scene::new();
    let gone = scene.victim.pd.reg_mr(64, ALL).unwrap();
    let reth = Reth { address: gone.address(), rkey: gone.rkey(), length: 4 };
    gone.dereg().unwrap();
    // As many new ones as a stale key might be mistaken for.
    let _new: Vec<_> = (0..1000).map(|_| scene.victim.pd.reg_mr(64, ALL).unwrap()).collect();
    scene.request(Operation::ReadRequest, Extended::Reth(reth), &[]);
    scene.assert_access_refused();
}

#[test]
fn rights_that_the_region_does_not_give() {
    for (missing, operation) in [
        (AccessFlags::REMOTE_WRITE, Operation::WriteOnly),
        (AccessFlags::REMOTE_READ, Operation::ReadRequest),
        (AccessFlags::REMOTE_ATOMIC, Operation::FetchAdd),
    ] {
        let scene = Scene::new();
        let region = scene.victim.pd.reg_mr(64, ALL.difference(missing)).unwrap();
        let reth = Extended::Reth(Reth { address: region.address(), rkey: region.rkey(), length: 4 });
        match operation {
            Operation::WriteOnly => scene.request(operation, reth, b"evil"),
            Operation::ReadRequest => scene.request(operation, reth, &[]),
            _ => scene.request(operation, atomic(region.address(), region.rkey()), &[]),
        }
        scene.assert_access_refused();
        assert_eq!(region.load_u64(0).unwrap(), 0);
    }
}

#[test]
fn rights_that_the_queue_pair_does_not_give() {
    let scene = Scene::with_rights(AccessFlags::REMOTE_READ);
    scene.request(Operation::WriteOnly, Extended::Reth(scene.reth(4)), b"evil");
    let [answer] = &scene.sender.wait(1)[..] else { unreachable!() };
    assert!(matches!(answer.syndrome, Some(Syndrome::Nak(NakCode::InvalidRequest | NakCode::RemoteAccess))));
    scene.assert_untouched();
}

#[test]
fn addresses_outside_the_region() {
    let inside = |scene: &Scene| scene.victim.mr.address();
    let places: [fn(u64) -> u64; 6] = [
        // One byte too early, one too late, beyond, and three that wrap round the address space.
        |start| start - 1,
        |start| start + MEMORY as u64 - 3,
        |start| start + (1 << 40),
        |_| u64::MAX,
        |_| u64::MAX - 3,
        |start| start.wrapping_sub(1 << 63),
    ];
    for place in places {
        let scene = Scene::new();
        let address = place(inside(&scene));
        scene.request(Operation::WriteOnly, Extended::Reth(Reth { address, ..scene.reth(4) }), b"evil");
        scene.assert_access_refused();
        let scene = Scene::new();
        let address = place(inside(&scene));
        scene.request(Operation::ReadRequest, Extended::Reth(Reth { address, ..scene.reth(4) }), &[]);
        scene.assert_access_refused();
    }
}

#[test]
fn misaligned_atomics() {
    for offset in 1..8 {
        let scene = Scene::new();
        scene.request(Operation::FetchAdd, atomic(scene.victim.mr.address() + offset, scene.victim.mr.rkey()), &[]);
        scene.assert_invalid();
    }
}

#[test]
fn lengths_that_lie() {
    // Of a WRITE in one packet: more or less than the packet holds.
    for length in [0, 3, 5, 1024, 1 << 31, u32::MAX] {
        let scene = Scene::new();
        scene.request(Operation::WriteOnly, Extended::Reth(scene.reth(length)), b"evil");
        scene.assert_invalid();
    }
    // Of a message: more than 2^31 bytes.
    for operation in [Operation::WriteFirst, Operation::ReadRequest] {
        let scene = Scene::new();
        let payload = if operation == Operation::WriteFirst { &[0; MTU][..] } else { &[] };
        scene.request(operation, Extended::Reth(scene.reth(u32::MAX)), payload);
        let [answer] = &scene.sender.wait(1)[..] else { unreachable!() };
        assert!(
            matches!(answer.syndrome, Some(Syndrome::Nak(NakCode::InvalidRequest | NakCode::RemoteAccess))),
            "{answer:?}"
        );
        scene.assert_untouched();
    }
}

#[test]
fn a_read_of_more_than_the_region() {
    let scene = Scene::new();
    // One small packet that asks for two gigabytes.
    scene.request(Operation::ReadRequest, Extended::Reth(scene.reth(1 << 31)), &[]);
    scene.assert_access_refused();
}

#[test]
fn more_packets_than_the_write_announced() {
    let scene = Scene::new();
    let length = 2 * MTU as u32;
    let evil = [0x66; MTU];
    let send = |operation, psn, extended| scene.sender.send(scene.packet(operation, psn, extended, &evil));
    send(Operation::WriteFirst, scene.psn, Extended::Reth(scene.reth(length)));
    send(Operation::WriteMiddle, scene.psn + 1, Extended::None);
    send(Operation::WriteMiddle, scene.psn + 2, Extended::None);
    let invalid = Some(Syndrome::Nak(NakCode::InvalidRequest));
    eventually("a NAK", || scene.sender.answers().iter().any(|answer| answer.syndrome == invalid));
    assert_eq!(scene.victim.qp.state(), QpState::Err);
    assert!(scene.victim.bytes(length as usize, MEMORY - length as usize).iter().all(|&byte| byte == UNTOUCHED));
}

#[test]
fn packets_longer_than_the_path_mtu() {
    let scene = Scene::new();
    scene.victim.receive(0, scene.victim.mr.sge(0, MEMORY));
    scene.request(Operation::SendOnly, Extended::None, &[0x66; MTU + 4]);
    scene.assert_invalid();
}

#[test]
fn messages_without_a_beginning() {
    for operation in [Operation::SendMiddle, Operation::SendLast, Operation::WriteMiddle, Operation::WriteLast] {
        let scene = Scene::new();
        scene.victim.receive(0, scene.victim.mr.sge(0, MEMORY));
        scene.request(operation, Extended::None, &[0x66; MTU]);
        scene.assert_invalid();
    }
}

#[test]
fn a_message_within_a_message() {
    let scene = Scene::new();
    scene.victim.receive(0, scene.victim.mr.sge(0, 4 * MTU));
    scene.request(Operation::SendFirst, Extended::None, &[UNTOUCHED; MTU]);
    scene.sender.send(scene.packet(Operation::WriteOnly, scene.psn + 1, Extended::Reth(scene.reth(4)), b"evil"));
    eventually("the queue pair fails", || scene.victim.qp.state() == QpState::Err);
    scene.assert_untouched();
}

#[test]
fn guessed_psns_ahead() {
    let mut scene = Scene::new();
    for ahead in [1, 2, 1000, (1 << 23) - 1] {
        let reth = Extended::Reth(scene.reth(4));
        scene.sender.send(scene.packet(Operation::WriteOnly, scene.psn + ahead, reth, b"evil"));
    }
    // One NAK for all of them, which names the PSN that is due.
    let [answer] = &scene.sender.wait(1)[..] else { unreachable!() };
    assert_eq!((answer.syndrome, answer.psn), (Some(Syndrome::Nak(NakCode::PsnSequence)), scene.psn));
    scene.assert_still_serves();
}

#[test]
fn guessed_psns_behind() {
    let mut scene = Scene::new();
    scene.assert_still_serves();
    for behind in [1, 2, 1000, (1 << 23) - 1] {
        let psn = Psn::new(scene.psn.value().wrapping_sub(behind));
        let reth = Extended::Reth(scene.reth(4));
        scene.sender.send(scene.packet(Operation::WriteOnly, psn, reth, b"evil"));
        // A duplicate is acknowledged, and not executed.
        let [answer] = &scene.sender.wait(1)[..] else { unreachable!() };
        assert!(matches!(answer.syndrome, Some(Syndrome::Ack(_))), "{answer:?}");
        scene.assert_untouched();
    }
    scene.assert_still_serves();
}

#[test]
fn replayed_atomics() {
    let mut scene = Scene::new();
    let before = scene.victim.mr.load_u64(0).unwrap();
    let packet =
        scene.packet(Operation::FetchAdd, scene.psn, atomic(scene.victim.mr.address(), scene.victim.mr.rkey()), &[]);
    for _ in 0..10 {
        scene.sender.send(packet.clone());
        scene.sender.wait(1);
    }
    assert_eq!(scene.victim.mr.load_u64(0).unwrap(), before.wrapping_add(7), "executed once");
    scene.victim.mr.store_u64(0, before).unwrap();
    scene.psn += 1;
    scene.assert_still_serves();
}

#[test]
fn replayed_reads_with_another_range_or_key() {
    let mut scene = Scene::new();
    let secret = scene.victim.pd.reg_mr(64, AccessFlags::LOCAL_WRITE).unwrap();
    secret.fill(0, 64, 0x5e).unwrap();
    scene.request(Operation::ReadRequest, Extended::Reth(scene.reth(4)), &[]);
    scene.sender.wait(1);
    for reth in [
        Reth { address: secret.address(), rkey: secret.rkey(), length: 4 },
        Reth { address: scene.victim.mr.address() + MEMORY as u64, ..scene.reth(4) },
        scene.reth(1 << 31),
    ] {
        scene.request(Operation::ReadRequest, Extended::Reth(reth), &[]);
    }
    // Whatever is answered, nothing that was not given away before.
    scene.psn += 1;
    scene.request(Operation::WriteOnly, Extended::Reth(scene.reth(1)), &[UNTOUCHED]);
    let mut answers = Vec::new();
    eventually("an answer to the last request", || {
        answers.extend(scene.sender.answers());
        answers.iter().any(|answer| answer.psn == scene.psn) || scene.victim.qp.state() == QpState::Err
    });
    assert!(answers.iter().all(|answer| answer.payload.iter().all(|&byte| byte == UNTOUCHED)), "{answers:?}");
}

#[test]
fn more_reads_than_agreed() {
    let scene = Scene::new();
    for n in 0..200 {
        scene.sender.send(scene.packet(Operation::ReadRequest, scene.psn + n, Extended::Reth(scene.reth(4)), &[]));
    }
    // Each is answered or the connection ends: no queue grows without bound.
    let mut answers = 0;
    eventually("an end", || {
        answers += scene.sender.answers().len();
        answers == 200 || scene.victim.qp.state() == QpState::Err
    });
    scene.assert_untouched();
}

#[test]
fn sends_without_a_receive() {
    let scene = Scene::new();
    let send = || scene.request(Operation::SendOnly, Extended::None, &[UNTOUCHED; 64]);
    let hear = |what: &str, wanted: fn(Syndrome) -> bool| {
        eventually(what, || scene.sender.answers().into_iter().filter_map(|answer| answer.syndrome).any(wanted));
    };
    for _ in 0..100 {
        send();
    }
    hear("an RNR NAK", |syndrome| matches!(syndrome, Syndrome::RnrNak(_)));
    // The message is due again, once there is a receive for it.
    scene.victim.receive(1, scene.victim.mr.sge(0, 64));
    send();
    hear("an ACK", |syndrome| matches!(syndrome, Syndrome::Ack(_)));
    let completion = poll_one(&scene.victim.cq);
    assert_eq!((completion.wr_id, completion.status), (1, WcStatus::Success));
    scene.assert_untouched();
}

#[test]
fn messages_longer_than_the_receive() {
    let scene = Scene::new();
    scene.victim.receive(0, scene.victim.mr.sge(0, MTU + 1));
    scene.request(Operation::SendFirst, Extended::None, &[UNTOUCHED; MTU]);
    scene.sender.send(scene.packet(Operation::SendLast, scene.psn + 1, Extended::None, &[0x66; 2]));
    let completion = poll_one(&scene.victim.cq);
    assert_eq!((completion.status, completion.wr_id), (WcStatus::LocalLength, 0));
    // The NAK, with which the connection ends, may leave after the completion has been polled.
    eventually("the connection ends", || scene.victim.qp.state() == QpState::Err);
    assert!(scene.victim.bytes(MTU + 1, MEMORY - MTU - 1).iter().all(|&byte| byte == UNTOUCHED));
}

#[test]
fn empty_writes_touch_nothing_whatever_their_key() {
    let mut scene = Scene::new();
    let reth = Reth { address: u64::MAX, rkey: RKey(0x666), length: 0 };
    // The IBTA leaves the key of an empty request unchecked.
    scene.request(Operation::WriteOnly, Extended::Reth(reth), b"");
    assert!(matches!(scene.sender.wait(1)[0].syndrome, Some(Syndrome::Ack(_))));
    scene.psn += 1;
    scene.assert_still_serves();
}

fn ack(syndrome: Syndrome) -> Extended {
    Extended::Aeth(Aeth { syndrome, msn: Msn::new(1) })
}

#[test]
fn acknowledgements_of_what_was_never_sent() {
    let mut scene = Scene::new();
    let positive = ack(Syndrome::Ack(CreditCode::UNLIMITED));
    let forge = |scene: &Scene, operation, psn: u32, extended, payload: &[u8]| {
        scene.sender.send(scene.packet(operation, Psn::new(psn), extended, payload));
    };
    // With nothing outstanding.
    forge(&scene, Operation::Acknowledge, VICTIMS_PSN, positive, b"");
    forge(&scene, Operation::ReadResponseOnly, VICTIMS_PSN, positive, b"evil");
    forge(&scene, Operation::AtomicAcknowledge, VICTIMS_PSN, Extended::AtomicAck(aeth(), 0), b"");
    scene.assert_still_serves();

    // With one WRITE outstanding, of one packet.
    let write = SendOperation::Write { address: 0, rkey: RKey(0) };
    scene.victim.qp.post_send(&[send(3, write, &[scene.victim.mr.sge(0, 4)])]).unwrap();
    scene.sender.wait(1);
    for ahead in [1, 2, 1 << 22] {
        forge(&scene, Operation::Acknowledge, VICTIMS_PSN + ahead, positive, b"");
        forge(&scene, Operation::ReadResponseOnly, VICTIMS_PSN + ahead, positive, b"evil");
    }
    let mut completions = [uroce::verbs::WorkCompletion::default()];
    scene.counts("all responses", 1 + 3 + 6, |counters| counters.rcvd_pkts);
    assert_eq!(scene.victim.cq.poll(&mut completions).unwrap(), 0, "completed by a forged acknowledgement");
    scene.assert_untouched();
    forge(&scene, Operation::Acknowledge, VICTIMS_PSN, positive, b"");
    let completion = poll_one(&scene.victim.cq);
    assert_eq!((completion.wr_id, completion.status, completion.opcode), (3, WcStatus::Success, WcOpcode::Write));
}

fn aeth() -> Aeth {
    Aeth { syndrome: Syndrome::Ack(CreditCode::UNLIMITED), msn: Msn::new(1) }
}

#[test]
fn responses_longer_than_asked_for() {
    for (operation, payload) in
        [(Operation::ReadResponseOnly, 64), (Operation::ReadResponseFirst, MTU), (Operation::ReadResponseOnly, MTU)]
    {
        let scene = Scene::new();
        let read = SendOperation::Read { address: 0, rkey: RKey(0) };
        scene.victim.qp.post_send(&[send(0, read, &[scene.victim.mr.sge(64, 8)])]).unwrap();
        scene.sender.wait(1);
        let extended = Extended::Aeth(aeth());
        scene.sender.send(scene.packet(operation, Psn::new(VICTIMS_PSN), extended, &vec![0x66; payload]));
        let completion = poll_one(&scene.victim.cq);
        assert_eq!(completion.status, WcStatus::BadResponse);
        scene.assert_untouched();
    }
}

#[test]
fn syndromes_that_do_not_exist() {
    for byte in 0..=u8::MAX {
        let syndrome = Syndrome::from_byte(byte);
        if !matches!(syndrome, Syndrome::Reserved(_) | Syndrome::Nak(NakCode::Reserved(_))) {
            continue;
        }
        let scene = Scene::new();
        let write = SendOperation::Write { address: 0, rkey: RKey(0) };
        scene.victim.qp.post_send(&[send(0, write, &[scene.victim.mr.sge(0, 4)])]).unwrap();
        scene.sender.wait(1);
        scene.sender.send(scene.packet(Operation::Acknowledge, Psn::new(VICTIMS_PSN), ack(syndrome), b""));
        scene.counts("the answer", 1, |counters| counters.rcvd_pkts);
        let mut completions = [uroce::verbs::WorkCompletion::default()];
        if scene.victim.cq.poll(&mut completions).unwrap() == 1 {
            assert_ne!(completions[0].status, WcStatus::Success, "syndrome {byte:#04x}");
        }
    }
}
