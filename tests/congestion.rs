//! Congestion control in the device, in virtual time: who is notified, who slows down, and when packets leave.

mod support;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};
use support::{Side, eventually, pair_of, pattern, send, world::World};
use uroce::{
    clock::Clock,
    congestion::{Congestion, DcqcnParameters, NotificationParameters, Rate, TimelyParameters},
    link::{
        Fault, FaultSpec, Link, ReceiveBuffer, Train, UdpConfig, UdpLink,
        sim::{Network, PathConditions, SimLink},
    },
    verbs::{
        Connection, Device, Mtu, Progress, Psn, QpCapabilities, QpRateLimit, QpType, Qpn, SendOperation, WcStatus,
    },
};
use uroce_protocol::{
    Instant,
    congestion::congestion_notification,
    time::Duration,
    wire::{
        Aeth, Bth, CreditCode, Extended, Msn, Opcode, Operation, PKey, Packet, ROCE_PORT, Repr, Syndrome, icrc::Flow,
    },
    work::{AddressVector, Source},
};

/// Where the captured notification came from and went to.
const DEVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 17, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 18, 1));
const PEERS_QPN: Qpn = Qpn::new(0x118);
/// What the device expects first, and what it sends first.
const PSN: Psn = Psn::new(100);
const DEVICES_PSN: Psn = Psn::new(5000);

const NOT_ECT: u8 = 0;
const ECT0: u8 = 2;
const MARKED: u8 = 3;

const MICROSECOND: Duration = Duration::from_micros(1);
/// What a link of a simulated network is taken to carry.
const LINE: Rate = Rate::from_gbps(25);

fn dcqcn() -> Congestion {
    Congestion::new(DcqcnParameters::PAPER)
}

/// A device on a simulated network, connected to a peer that is bytes.
struct Scene {
    network: Network,
    side: Side,
    peer: SimLink,
    psn: Psn,
}

/// A packet that the peer has received.
struct Heard {
    at: Instant,
    traffic_class: u8,
    source_port: u16,
    bytes: Vec<u8>,
}

impl Heard {
    fn operation(&self) -> Operation {
        Packet::new_checked(&self.bytes).unwrap().opcode().operation()
    }
}

impl Scene {
    fn new(congestion: Option<Congestion>) -> Self {
        Self::with_traffic_class(congestion, 0)
    }

    fn with_traffic_class(congestion: Option<Congestion>, traffic_class: u8) -> Self {
        let network = Network::new(1, PathConditions { latency: Duration::ZERO, ..PathConditions::IDEAL });
        let builder = Device::builder()
            .link(Arc::new(network.attach(DEVICE).unwrap()))
            .clock(network.clock())
            .progress(Progress::Manual);
        let device = match congestion {
            Some(congestion) => builder.congestion(congestion),
            None => builder,
        };
        let side = Side::new(&device.build().unwrap(), QpCapabilities::default(), 1 << 20);
        let connection = Connection {
            path_mtu: Mtu::Mtu1024,
            local_psn: DEVICES_PSN,
            remote_psn: PSN,
            traffic_class,
            ..Connection::new(PEER.into(), PEERS_QPN)
        };
        side.qp.connect(&connection).unwrap();
        let peer = network.attach(PEER).unwrap();
        Self { network, side, peer, psn: PSN }
    }

    fn device(&self) -> &Device {
        self.side.context.device()
    }

    fn now(&self) -> Instant {
        self.network.clock().now()
    }

    /// Sends from `source`'s link what `header` and `payload` say.
    fn send_from(&self, link: &SimLink, header: Repr, payload: &[u8], traffic_class: u8) {
        let mut bytes = vec![0; header.header_len()];
        header.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + Packet::ICRC_LEN, 0);
        Flow::new(link.address(), DEVICE, ROCE_PORT).stamp(0, &mut bytes);
        let train = Train {
            destination: DEVICE,
            source_port: ROCE_PORT,
            traffic_class,
            hop_limit: None,
            segment_size: bytes.len(),
            bytes: &bytes,
        };
        link.send(self.now(), &train).unwrap();
        self.device().progress();
    }

    /// The peer sends a message of one packet, for which the device has a receive.
    fn send_message(&mut self, traffic_class: u8) {
        self.side.receive(0, self.side.mr.sge(0, 64));
        let mut bth = Bth::new(Opcode::rc(Operation::SendOnly), self.side.qp.qp_num(), self.psn);
        bth.ack_request = true;
        self.psn += 1;
        self.send_from(&self.peer, Repr::new(bth, Extended::None), &[7; 64], traffic_class);
    }

    /// Somebody notifies the device's queue pair.
    fn notify_from(&self, link: &SimLink) {
        let to = AddressVector { peer: DEVICE, traffic_class: 0, flow_label: 0, hop_limit: 64 };
        let notification = congestion_notification(self.side.qp.qp_num(), PKey::DEFAULT, to);
        let Source::Inline(payload) = notification.source else { panic!("a CNP has a payload") };
        self.send_from(link, notification.header, payload, ECT0);
    }

    fn notify(&self) {
        self.notify_from(&self.peer);
    }

    /// The peer acknowledges everything up to the `packets`th packet of the device's.
    fn acknowledge(&self, packets: u32) {
        let aeth = Aeth { syndrome: Syndrome::Ack(CreditCode::UNLIMITED), msn: Msn::new(packets) };
        let psn = DEVICES_PSN + (packets - 1);
        let bth = Bth::new(Opcode::rc(Operation::Acknowledge), self.side.qp.qp_num(), psn);
        self.send_from(&self.peer, Repr::new(bth, Extended::Aeth(aeth)), &[], NOT_ECT);
    }

    fn write(&self, length: usize) {
        let operation = SendOperation::Write { address: 0, rkey: uroce::verbs::RKey(1) };
        self.side.qp.post_send(&[send(1, operation, &[self.side.mr.sge(0, length)])]).unwrap();
    }

    /// Lets `time` pass, and returns what the peer has heard then.
    fn pass(&self, time: Duration) -> Vec<Heard> {
        let end = self.now() + time;
        let mut heard = Vec::new();
        loop {
            while self.device().progress() {}
            let mut buffer = ReceiveBuffer::new();
            while let Some(arrival) = self.peer.receive(self.now(), &mut buffer).unwrap() {
                heard.extend(buffer.segments(&arrival).map(|bytes| Heard {
                    at: self.now(),
                    traffic_class: arrival.traffic_class,
                    source_port: arrival.source_port,
                    bytes: bytes.to_vec(),
                }));
            }
            let next = self.network.next_event().into_iter().chain(self.device().next_deadline()).min();
            let next = next.filter(|&next| next <= end);
            self.network.clock().advance_to(next.unwrap_or(end));
            if next.is_none() {
                return heard;
            }
        }
    }

    fn notifications(&self) -> usize {
        self.pass(Duration::ZERO).iter().filter(|heard| heard.operation() == Operation::CongestionNotification).count()
    }
}

/// The CNP of a ConnectX-4 Lx, BTH to payload, from scapy's published test vectors: its ICRC covers an Identification
/// and a UDP port that we would choose otherwise; `protocol` has the test of all of it.
const CONNECTX4_CNP: [u8; 28] =
    [0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn a_marked_packet_is_answered_by_the_notification_that_hardware_sends() {
    let mut scene = Scene::new(Some(dcqcn()));
    scene.send_message(MARKED);
    let heard = scene.pass(Duration::ZERO);
    let [cnp, ack] = &heard[..] else { panic!("{} packets", heard.len()) };
    assert_eq!(cnp.bytes[..28], CONNECTX4_CNP);
    assert_eq!(cnp.traffic_class, 0xc2);
    let flow = Flow::new(DEVICE, PEER, cnp.source_port);
    let policy = uroce::verbs::IpIdPolicy::Exact;
    assert!(flow.check(&Packet::new_checked(&cnp.bytes).unwrap(), 0, policy).is_ok());
    assert_eq!(ack.operation(), Operation::Acknowledge, "it leaves behind the notification");
    let counters = scene.device().counters();
    assert_eq!((counters.np_cnp_sent, counters.np_ecn_marked_roce_packets), (1, 1));
}

#[test]
fn dscp_and_interval_of_notifications_are_the_devices() {
    let notification = NotificationParameters {
        np_min_time_between_cnps: 10 * MICROSECOND,
        np_cnp_dscp: 11,
        ..NotificationParameters::MLX5
    };
    let mut scene = Scene::new(Some(dcqcn().with_notification(notification)));
    let mut answered = Vec::new();
    for at in 0..=30 {
        scene.send_message(MARKED);
        for cnp in scene.pass(MICROSECOND).iter().filter(|heard| heard.bytes[0] == 0x81) {
            assert_eq!(cnp.traffic_class, 11 << 2 | ECT0);
            answered.push(at);
        }
    }
    assert_eq!(answered, [0, 10, 20, 30]);
    assert_eq!(scene.device().counters().np_ecn_marked_roce_packets, 31);
}

#[test]
fn what_is_not_marked_data_is_not_answered() {
    let mut scene = Scene::new(Some(dcqcn()));
    for traffic_class in [NOT_ECT, 1, ECT0] {
        scene.send_message(traffic_class);
    }
    assert_eq!(scene.notifications(), 0);
    let aeth = Aeth { syndrome: Syndrome::Ack(CreditCode::UNLIMITED), msn: Msn::new(0) };
    let ack = Bth::new(Opcode::rc(Operation::Acknowledge), scene.side.qp.qp_num(), DEVICES_PSN);
    scene.send_from(&scene.peer, Repr::new(ack, Extended::Aeth(aeth)), &[], MARKED);
    assert_eq!(scene.notifications(), 0);
    scene.send_message(MARKED);
    assert_eq!(scene.notifications(), 1);
}

#[test]
fn fecn_counts_as_a_mark_where_it_is_asked_for() {
    for (fecn, expected) in [(false, 0), (true, 1)] {
        let notification = NotificationParameters { fecn, ..NotificationParameters::MLX5 };
        let scene = Scene::new(Some(dcqcn().with_notification(notification)));
        scene.side.receive(0, scene.side.mr.sge(0, 64));
        let mut bth = Bth::new(Opcode::rc(Operation::SendOnly), scene.side.qp.qp_num(), PSN);
        bth.fecn = true;
        scene.send_from(&scene.peer, Repr::new(bth, Extended::None), &[7; 64], NOT_ECT);
        assert_eq!(scene.notifications(), expected);
    }
}

#[test]
fn a_device_without_congestion_control_counts_marks_and_ignores_notifications() {
    let mut scene = Scene::new(None);
    scene.send_message(MARKED);
    assert_eq!(scene.notifications(), 0);
    scene.notify();
    assert_eq!(scene.side.qp.send_rate(), LINE);
    scene.write(1024);
    let heard = scene.pass(Duration::ZERO);
    assert_eq!(heard[0].traffic_class, NOT_ECT);
    let counters = scene.device().counters();
    assert_eq!((counters.np_ecn_marked_roce_packets, counters.np_cnp_sent), (1, 0));
    assert_eq!((counters.rp_cnp_ignored, counters.rp_cnp_handled), (1, 0));
}

#[test]
fn data_is_ecn_capable_where_marks_are_heeded() {
    for (congestion, wanted, expected) in [
        (Some(dcqcn()), 0xa0, 0xa0 | ECT0),
        (Some(dcqcn()), 0xa1, 0xa1),
        (Some(Congestion::new(TimelyParameters::PAPER)), 0xa0, 0xa0),
        (None, 0xa0, 0xa0),
    ] {
        let scene = Scene::with_traffic_class(congestion, wanted);
        scene.write(1024);
        assert_eq!(scene.pass(Duration::ZERO)[0].traffic_class, expected);
    }
}

#[test]
fn a_notification_halves_the_rate_which_then_recovers() {
    let scene = Scene::new(Some(dcqcn()));
    assert_eq!(scene.side.qp.send_rate(), LINE);
    scene.notify();
    assert_eq!(scene.side.qp.send_rate(), Rate::from_mbps(12_500));
    scene.pass(55 * MICROSECOND);
    assert_eq!(scene.side.qp.send_rate(), Rate::from_mbps(18_750), "half of the way back");
    assert_eq!(scene.device().counters().rp_cnp_handled, 1);
}

#[test]
fn only_the_peer_can_notify() {
    let scene = Scene::new(Some(dcqcn()));
    let stranger = scene.network.attach([10, 0, 19, 1].into()).unwrap();
    scene.notify_from(&stranger);
    assert_eq!(scene.side.qp.send_rate(), LINE);
    assert_eq!(scene.device().counters().rp_cnp_ignored, 1);
}

#[test]
fn a_reset_forgets_congestion() {
    let scene = Scene::new(Some(dcqcn()));
    scene.notify();
    let reset = uroce::verbs::QpAttributes { qp_state: uroce::verbs::QpState::Reset, ..Default::default() };
    scene.side.qp.modify(&reset, uroce::verbs::QpAttributeMask::STATE).unwrap();
    assert_eq!(scene.side.qp.send_rate(), LINE);
}

/// One queue pair may differ from its device, both ways, at any time.
#[test]
fn congestion_control_can_be_chosen_for_one_queue_pair() {
    let scene = Scene::new(None);
    scene.side.qp.set_congestion(Some(dcqcn())).unwrap();
    scene.notify();
    assert_eq!(scene.side.qp.send_rate(), Rate::from_mbps(12_500));
    scene.write(1024);
    assert_eq!(scene.pass(MICROSECOND)[0].traffic_class, ECT0);
    scene.side.qp.set_congestion(None).unwrap();
    assert_eq!(scene.side.qp.send_rate(), LINE);
    scene.acknowledge(1);
    scene.write(1024);
    assert_eq!(scene.pass(MICROSECOND)[0].traffic_class, NOT_ECT);

    let datagrams = Side::of_type(QpType::Ud, scene.device(), QpCapabilities::default(), 64);
    assert_eq!(datagrams.qp.set_congestion(Some(dcqcn())).unwrap_err().errno(), libc::EINVAL);
}

/// Bytes from IP header to ICRC, and no more than a burst at once.
#[test]
fn packets_leave_at_the_limit_in_bursts_of_the_size_asked_for() {
    let scene = Scene::new(None);
    // A packet takes 10 µs.
    let packet = 28 + 12 + 1024 + 4;
    let limit = QpRateLimit { rate_limit: packet * 8 * 100, max_burst_sz: 3 * packet, typical_pkt_sz: 0 };
    scene.side.qp.modify_rate_limit(&limit).unwrap();
    scene.write(60 << 10);
    let heard = scene.pass(590 * MICROSECOND);
    // The first packet is 16 bytes longer, and each burst may begin when the one before has had its time.
    assert!((59..=60).contains(&heard.len()), "{}", heard.len());
    let bursts: Vec<_> = heard.chunk_by(|a, b| a.at == b.at).collect();
    assert!(bursts.iter().all(|burst| burst.len() <= 3), "{:?}", bursts.iter().map(|b| b.len()).collect::<Vec<_>>());
    assert!(bursts.len() <= 22, "{} turns for 60 packets", bursts.len());

    // Above what the port is taken to carry, but the limit is the program's: 3 packets in 256 ns.
    let limit = QpRateLimit { rate_limit: 100_000_000, ..limit };
    scene.side.qp.modify_rate_limit(&limit).unwrap();
    scene.acknowledge(60);
    scene.write(60 << 10);
    let heard = scene.pass(MICROSECOND).len();
    assert!((12..=15).contains(&heard), "{heard}");
    scene.pass(10 * MICROSECOND);

    scene.side.qp.modify_rate_limit(&QpRateLimit::default()).unwrap();
    scene.acknowledge(120);
    scene.write(60 << 10);
    assert_eq!(scene.pass(MICROSECOND).len(), 60, "no limit any more");
}

#[test]
fn a_limit_that_makes_no_sense_is_refused() {
    let scene = Scene::new(None);
    let burst = QpRateLimit { max_burst_sz: 1, ..QpRateLimit::default() };
    assert_eq!(scene.side.qp.modify_rate_limit(&burst).unwrap_err().errno(), libc::EINVAL);
    let unconnected = Side::new(scene.device(), QpCapabilities::default(), 64);
    let limit = QpRateLimit { rate_limit: 1, ..QpRateLimit::default() };
    assert_eq!(unconnected.qp.modify_rate_limit(&limit).unwrap_err().errno(), libc::EINVAL);
}

/// A megabyte between two devices, at so many kbit/s, and how long it took.
fn transfer(world: &World, operation: &str, limit: u32) -> Duration {
    const LENGTH: usize = 1_000_000;
    let [near, far] = [&world.devices[0], &world.devices[1]];
    let (a, b) = pair_of(QpType::Rc, [near, far], LENGTH);
    let (sender, receiver) = if operation == "read" { (&b, &a) } else { (&a, &b) };
    sender.mr.write(0, &pattern(LENGTH, 3)).unwrap();
    let limit = QpRateLimit { rate_limit: limit, ..QpRateLimit::default() };
    sender.qp.modify_rate_limit(&limit).unwrap();
    let (address, rkey) = (b.mr.address(), b.mr.rkey());
    let operation = match operation {
        "read" => SendOperation::Read { address, rkey },
        "write" => SendOperation::Write { address, rkey },
        _ => SendOperation::Send,
    };
    if operation == SendOperation::Send {
        b.receive(2, b.mr.sge(0, LENGTH));
    }
    let begin = world.network.clock().now();
    a.post(1, operation, a.mr.sge(0, LENGTH));
    let [completions] = world.run([&a.cq]);
    assert_eq!(completions[0].status, WcStatus::Success);
    assert_eq!(receiver.bytes(0, LENGTH), pattern(LENGTH, 3));
    let counters = near.counters();
    assert_eq!((counters.retransmitted_pkts, counters.local_ack_timeout_err), (0, 0));
    completions[0].timestamp - begin
}

/// The limit is that of whoever sends the data, which with a READ is the responder. Where it is low, a full window takes
/// longer than a timeout, but nothing times out.
#[test]
fn every_operation_keeps_to_the_limit_and_nothing_times_out() {
    for operation in ["send", "write", "read"] {
        for limit in [500, 1_000_000] {
            let world = World::new(1, PathConditions::IDEAL, 2);
            let took = transfer(&world, operation, limit);
            // 244 full packets of 4096 bytes and their 44 bytes of headers, and a shorter one.
            let expected = Rate::from_kbps(limit.into()).time_for(1_000_000 + 245 * 44);
            let ratio = took.as_secs_f64() / expected.as_secs_f64();
            assert!((0.97..1.03).contains(&ratio), "{operation} at {limit} kbit/s: {took:?}, not {expected:?}");
        }
    }
}

/// READ responses are data too: their receiver notifies, and their sender slows down.
#[test]
fn read_responses_are_notified_about_and_slowed_down() {
    let [undisturbed, slowed] = [0.0, 1.0].map(|marking| {
        let conditions = PathConditions { marking, ..PathConditions::IDEAL };
        let world = World::with(1, conditions, 2, |builder| builder.congestion(dcqcn()));
        let (a, b) = pair_of(QpType::Rc, [&world.devices[0], &world.devices[1]], 1 << 20);
        b.mr.write(0, &pattern(1 << 20, 3)).unwrap();
        a.post(1, SendOperation::Read { address: b.mr.address(), rkey: b.mr.rkey() }, a.mr.sge(0, 1 << 20));
        let [completions] = world.run([&a.cq]);
        assert_eq!(completions[0].status, WcStatus::Success);
        assert_eq!(a.bytes(0, 1 << 20), pattern(1 << 20, 3));
        let [reader, responder] = [&world.devices[0], &world.devices[1]].map(Device::counters);
        assert_eq!(reader.np_cnp_sent > 1, marking > 0.0, "{reader}");
        assert_eq!(responder.rp_cnp_handled, reader.np_cnp_sent);
        completions[0].timestamp - Instant::ZERO
    });
    // A notification each 50 µs leaves little of 25 Gbit/s, at which a megabyte takes 335 µs.
    assert!(slowed > undisturbed * 5, "{slowed:?}, not {undisturbed:?}");
}

#[test]
fn timely_slows_down_when_round_trips_grow_and_heeds_no_notification() {
    let timely = || Congestion::new(TimelyParameters::PAPER);
    for (latency, is_slowed) in [(5, false), (1000, true)] {
        let conditions = PathConditions { latency: latency * MICROSECOND, ..PathConditions::IDEAL };
        let world = World::with(1, conditions, 2, |builder| builder.congestion(timely()));
        let (a, b) = pair_of(QpType::Rc, [&world.devices[0], &world.devices[1]], 1 << 16);
        for wr_id in 0..50 {
            a.post(wr_id, SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() }, a.mr.sge(0, 1 << 16));
        }
        let [completions] = world.run([&a.cq]);
        assert_eq!(completions.len(), 50);
        assert_eq!(a.qp.send_rate() < LINE, is_slowed, "{latency} µs: {}", a.qp.send_rate());
    }
    let scene = Scene::new(Some(timely()));
    scene.notify();
    assert_eq!(scene.side.qp.send_rate(), LINE);
    assert_eq!(scene.device().counters().rp_cnp_ignored, 1);
}

/// Retransmissions, duplicates and paced turns get along.
#[test]
fn congestion_control_loses_nothing_on_a_bad_network() {
    for seed in 0..20 {
        let conditions = PathConditions { marking: 0.1, ..support::world::BAD_WEATHER };
        let world = World::with(seed, conditions, 2, |builder| builder.congestion(dcqcn()));
        let (a, b) = pair_of(QpType::Rc, [&world.devices[0], &world.devices[1]], 1 << 17);
        for (side, seed) in [(&a, 1), (&b, 2)] {
            side.mr.write(0, &pattern(1 << 16, seed)).unwrap();
        }
        a.post(1, SendOperation::Read { address: b.mr.address(), rkey: b.mr.rkey() }, a.mr.sge(1 << 16, 1 << 16));
        let write = SendOperation::Write { address: b.mr.address() + (1 << 16), rkey: b.mr.rkey() };
        a.post(2, write, a.mr.sge(0, 1 << 16));
        let [completions] = world.run([&a.cq]);
        assert!(completions.iter().all(|completion| completion.status == WcStatus::Success), "{completions:?}");
        assert_eq!(a.bytes(1 << 16, 1 << 16), pattern(1 << 16, 2));
        assert_eq!(b.bytes(1 << 16, 1 << 16), pattern(1 << 16, 1));
    }
}

/// Somebody who is to drive the device may be late: what the rate would have let pass by then passes at once, in bursts.
#[test]
fn a_late_driver_costs_no_rate_and_leaves_nobody_waiting() {
    let scene = Scene::new(None);
    // A packet takes 10 µs, a burst is five.
    let limit = QpRateLimit { rate_limit: (28 + 12 + 1024 + 4) * 8 * 100, ..QpRateLimit::default() };
    scene.side.qp.modify_rate_limit(&limit).unwrap();
    scene.write(60 << 10);
    let mut heard = scene.pass(100 * MICROSECOND).len();
    scene.network.clock().advance_to(scene.now() + 300 * MICROSECOND);
    heard += scene.pass(Duration::ZERO).len();
    assert!((39..=46).contains(&heard), "{heard} packets after 400 µs");
    heard += scene.pass(200 * MICROSECOND).len();
    assert_eq!(heard, 60, "nobody waits for a timeout");
}

/// However often the peer notifies, the rate does not fall below the least, and data gets through.
#[test]
fn a_flood_of_notifications_slows_down_to_the_least_rate() {
    let scene = Scene::new(Some(dcqcn()));
    for _ in 0..10_000 {
        scene.notify();
    }
    assert_eq!(scene.side.qp.send_rate(), DcqcnParameters::PAPER.rp_min_rate);
    assert_eq!(scene.device().counters().rp_cnp_handled, 10_000);
    scene.write(4096);
    assert_eq!(scene.pass(Duration::from_millis(50)).len(), 4);
}

/// The ECN field that a link is given, its peer gets: over both IP versions, in sockets' control messages.
#[test]
fn ecn_passes_through_sockets() {
    let marks: FaultSpec = "mark-ce every 2 write".parse().unwrap();
    for address in ["127.0.0.1", "::1"] {
        let mut links = Vec::new();
        eventually("the address is free", || {
            let link = match address {
                "::1" => UdpLink::open(address.parse().unwrap(), &UdpConfig::default()),
                _ => UdpLink::open_loopback(&UdpConfig::default()),
            };
            links.extend(link.ok());
            !links.is_empty()
        });
        let link = Arc::new(Fault::new(links.remove(0), &marks, 1));
        let device = Device::builder().link(link.clone()).congestion(dcqcn()).build().unwrap();
        let (a, b) = pair_of(QpType::Rc, [&device, &device], 1 << 16);
        let write = SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() };
        for wr_id in 0..10 {
            a.post(wr_id, write, a.mr.sge(0, 1 << 10));
            assert_eq!(a.completion().status, WcStatus::Success);
        }
        let marked = link.counters().tx.marked;
        assert_eq!(marked, 5);
        let counters = device.counters();
        assert_eq!(counters.np_ecn_marked_roce_packets, marked, "{address}");
        assert!(counters.np_cnp_sent > 0 && counters.rp_cnp_handled == counters.np_cnp_sent, "{counters}");
    }
}
