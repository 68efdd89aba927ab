use super::*;
use crate::link::MAX_TRAIN_BYTES;
use proptest::prelude::*;
use uroce_protocol::{congestion::Rate, time::Duration};

const MICROSECOND: u64 = 1000;

fn pair(seed: u64, conditions: PathConditions) -> (Network, SimLink, SimLink) {
    let network = Network::new(seed, conditions);
    let (a, b) = (network.attach([10, 0, 0, 1].into()).unwrap(), network.attach([10, 0, 0, 2].into()).unwrap());
    (network, a, b)
}

fn train<'a>(to: &SimLink, segment_size: usize, bytes: &'a [u8]) -> Train<'a> {
    Train { destination: to.address(), source_port: 0xc123, traffic_class: 0x02, hop_limit: None, segment_size, bytes }
}

/// Takes in everything that is on its way to `link`: arrival instant in nanoseconds, arrival, packets.
fn drain(network: &Network, link: &SimLink) -> Vec<(u64, Arrival, Vec<Vec<u8>>)> {
    let (clock, mut buffer, mut got) = (network.clock(), ReceiveBuffer::new(), Vec::new());
    while let Some(event) = network.next_event() {
        clock.advance_to(event);
        let arrival = link.receive(clock.now(), &mut buffer).unwrap().expect("the event is for this link");
        got.push((event.as_nanos(), arrival, buffer.segments(&arrival).map(<[u8]>::to_vec).collect()));
    }
    got
}

#[test]
fn an_undisturbed_train_stays_whole() {
    let (network, a, b) = pair(1, PathConditions::IDEAL);
    let bytes: Vec<u8> = (0..250).collect();
    a.send(Instant::from_nanos(5), &train(&b, 100, &bytes)).unwrap();
    let mut buffer = ReceiveBuffer::new();
    assert_eq!(network.next_event(), Some(Instant::from_nanos(5 + 10 * MICROSECOND)));
    assert!(b.receive(Instant::from_nanos(10 * MICROSECOND), &mut buffer).unwrap().is_none(), "not yet there");
    let got = drain(&network, &b);
    assert_eq!(got.len(), 1);
    let (at, arrival, packets) = &got[0];
    assert_eq!(*at, 5 + 10 * MICROSECOND);
    assert_eq!((arrival.source, arrival.destination), (a.address(), b.address()));
    assert_eq!((arrival.source_port, arrival.traffic_class, arrival.ip_id), (0xc123, 0x02, Some(0)));
    assert_eq!(packets.concat(), bytes);
    assert_eq!(packets.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 50]);
}

#[test]
fn a_disturbed_train_arrives_as_single_packets_with_their_numbers() {
    let (network, a, b) = pair(3, PathConditions { loss: 0.5, ..PathConditions::IDEAL });
    let bytes: Vec<u8> = (0..=255).collect();
    a.send(Instant::ZERO, &train(&b, 8, &bytes)).unwrap();
    let got = drain(&network, &b);
    assert_eq!(got.len() as u64, 32 - network.counters().lost);
    assert!((1..32).contains(&got.len()));
    for (_, arrival, packets) in got {
        let id = usize::from(arrival.ip_id.unwrap());
        assert_eq!(packets, [bytes[id * 8..id * 8 + 8].to_vec()]);
    }
}

#[test]
fn ipv6_has_no_identification() {
    let network = Network::new(0, PathConditions::IDEAL);
    let link = network.attach("fd00::1".parse().unwrap()).unwrap();
    link.send(Instant::ZERO, &train(&link, 8, &[0; 24])).unwrap();
    assert_eq!(drain(&network, &link)[0].1.ip_id, None);
}

#[test]
fn bandwidth_spaces_packets_and_a_full_queue_drops_them() {
    // 1 byte takes 1 ns; 28 bytes of headers.
    let conditions = PathConditions {
        latency: Duration::ZERO,
        bandwidth: Some(8_000_000_000),
        queue_bytes: 3000,
        ..PathConditions::IDEAL
    };
    let (network, a, b) = pair(1, conditions);
    for _ in 0..5 {
        a.send(Instant::ZERO, &train(&b, 972, &[0; 972])).unwrap();
    }
    let times: Vec<u64> = drain(&network, &b).iter().map(|got| got.0).collect();
    assert_eq!(times, [1000, 2000, 3000]);
    assert_eq!(network.counters().overflowed, 2);
    a.send(Instant::from_nanos(10_000), &train(&b, 972, &[0; 972])).unwrap();
    assert_eq!(drain(&network, &b)[0].0, 11_000, "the queue has drained meanwhile");
}

/// Two senders, `c` a microsecond further away than `a`, and a port to `b` that takes 1 ns a byte.
fn port(ecn: Option<EcnMarking>) -> (Network, [SimLink; 3]) {
    let conditions = PathConditions { latency: Duration::from_micros(1), ..PathConditions::IDEAL };
    let (network, a, b) = pair(1, conditions);
    let c = network.attach([10, 0, 0, 3].into()).unwrap();
    let far = PathConditions { latency: Duration::from_micros(2), ..conditions };
    network.set_path(c.address(), b.address(), far);
    let conditions = PortConditions { bandwidth: Rate::from_gbps(8), queue_bytes: 5000, ecn };
    network.set_port(b.address(), Some(conditions));
    (network, [a, b, c])
}

/// Lets the network run, and returns when `link` got what from whom: the last byte of the sender's address.
fn arrivals(network: &Network, link: &SimLink) -> Vec<(u64, u8, usize)> {
    let (clock, mut buffer, mut got) = (network.clock(), ReceiveBuffer::new(), Vec::new());
    while let Some(event) = network.next_event() {
        clock.advance_to(event);
        while let Some(arrival) = link.receive(clock.now(), &mut buffer).unwrap() {
            let IpAddr::V4(source) = arrival.source else { panic!("only IPv4 here") };
            got.push((clock.now().as_nanos(), source.octets()[3], arrival.length));
        }
    }
    got
}

#[test]
fn flows_from_everywhere_meet_in_one_queue_in_the_order_of_their_coming() {
    let (network, [a, b, c]) = port(None);
    // Two packets of a at 1 µs, one of c at 2 µs, though it was sent first, one of a at 2.5 µs.
    c.send(Instant::ZERO, &train(&b, 972, &[0; 972])).unwrap();
    a.send(Instant::ZERO, &train(&b, 972, &[0; 1944])).unwrap();
    network.clock().advance_to(Instant::from_nanos(1500));
    a.send(Instant::from_nanos(1500), &train(&b, 972, &[0; 972])).unwrap();
    assert_eq!(arrivals(&network, &b), [(2000, 1, 972), (3000, 1, 972), (4000, 3, 972), (5000, 1, 972)]);
    assert_eq!(network.take_longest_queue(b.address()), 1500);
    assert_eq!(network.take_longest_queue(b.address()), 0, "since it was last asked");
    assert_eq!(network.take_longest_queue(a.address()), 0, "no port leads there");
}

#[test]
fn a_full_port_drops_and_a_long_queue_of_it_marks() {
    let (network, [a, b, c]) = port(Some(EcnMarking { minimum: 0, maximum: 1999, probability: 0.0 }));
    for link in [&a, &c] {
        link.send(Instant::ZERO, &train(&b, 972, &[0; 3888])).unwrap();
    }
    // Of a's four the fourth waits behind three; c's come when a's second is being sent.
    let mut marks = Vec::new();
    let mut buffer = ReceiveBuffer::new();
    while let Some(event) = network.next_event() {
        network.clock().advance_to(event);
        while let Some(arrival) = b.receive(event, &mut buffer).unwrap() {
            marks.push(arrival.traffic_class & 1 == 1);
        }
    }
    assert_eq!(marks, [false, false, true, true, true, true]);
    assert_eq!((network.counters().overflowed, network.counters().marked), (2, 4));
}

#[test]
fn without_its_port_an_address_is_reached_as_before() {
    let (network, [a, b, _c]) = port(None);
    network.set_port(b.address(), None);
    a.send(Instant::ZERO, &train(&b, 972, &[0; 1944])).unwrap();
    assert_eq!(arrivals(&network, &b), [(1000, 1, 1944)]);
}

#[test]
fn a_long_queue_marks_packets_that_can_be_marked() {
    let conditions = PathConditions {
        bandwidth: Some(8_000_000_000),
        ecn: Some(EcnMarking { minimum: 5000, maximum: 10_000, probability: 0.5 }),
        ..PathConditions::IDEAL
    };
    let (network, a, b) = pair(1, conditions);
    for _ in 0..100 {
        a.send(Instant::ZERO, &train(&b, 972, &[0; 972])).unwrap();
    }
    let marks: Vec<bool> = drain(&network, &b).iter().map(|got| got.1.traffic_class == 0x03).collect();
    assert!(marks[..6].iter().all(|&mark| !mark), "below Kmin: {marks:?}");
    assert!(marks[11..].iter().all(|&mark| mark), "above Kmax: {marks:?}");
    // A sender that does not say that it understands ECN is left alone.
    let now = network.clock().now() + Duration::from_secs(1);
    for _ in 0..100 {
        a.send(now, &Train { traffic_class: 0, ..train(&b, 972, &[0; 972]) }).unwrap();
    }
    assert!(drain(&network, &b).iter().all(|got| got.1.traffic_class == 0));
}

#[test]
fn rates_are_met() {
    let conditions = PathConditions {
        loss: 0.1,
        duplication: 0.2,
        corruption: 0.05,
        reordering: 0.3,
        marking: 0.15,
        ..PathConditions::IDEAL
    };
    let (network, a, b) = pair(7, conditions);
    for number in 0..10_000_u32 {
        a.send(Instant::from_nanos(u64::from(number)), &train(&b, 4, &number.to_be_bytes())).unwrap();
    }
    let got = drain(&network, &b);
    let counters = network.counters();
    for (count, expected) in [
        (counters.lost, 1000),
        (counters.duplicated, 1800),
        (counters.corrupted, 450),
        (counters.delayed, 2700),
        (counters.marked, 1350),
    ] {
        assert!(count.abs_diff(expected) < expected / 5, "{count} for {expected}: {counters:?}");
    }
    assert_eq!(got.len() as u64, counters.sent - counters.lost + counters.duplicated);
    let numbers: Vec<u32> = got.iter().map(|got| u32::from_be_bytes(got.2[0][..].try_into().unwrap())).collect();
    assert!(!numbers.is_sorted(), "some overtake others");
}

#[test]
fn corruption_inverts_exactly_one_bit() {
    let (network, a, b) = pair(5, PathConditions { corruption: 1.0, ..PathConditions::IDEAL });
    a.send(Instant::ZERO, &train(&b, 64, &[0; 64 * 20])).unwrap();
    let got = drain(&network, &b);
    assert_eq!(got.len(), 20);
    for (_, _, packets) in got {
        assert_eq!(packets[0].iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    }
}

#[test]
fn a_stall_holds_everything_and_lets_it_go_at_once() {
    let (network, a, b) = pair(1, PathConditions { stalling: 1.0, ..PathConditions::IDEAL });
    a.send(Instant::ZERO, &train(&b, 4, &[1; 4])).unwrap();
    network.set_conditions(PathConditions::IDEAL);
    a.send(Instant::from_nanos(500 * MICROSECOND), &train(&b, 4, &[2; 4])).unwrap();
    a.send(Instant::from_nanos(5000 * MICROSECOND), &train(&b, 4, &[3; 4])).unwrap();
    let times: Vec<u64> = drain(&network, &b).iter().map(|got| got.0 / MICROSECOND).collect();
    assert_eq!(times, [1000, 1000, 5010]);
    assert_eq!(network.counters().stalls, 1);
}

#[test]
fn directions_have_conditions_of_their_own() {
    let (network, a, b) = pair(1, PathConditions::IDEAL);
    network.set_path(a.address(), b.address(), PathConditions { loss: 1.0, ..PathConditions::IDEAL });
    a.send(Instant::ZERO, &train(&b, 4, &[1; 4])).unwrap();
    assert_eq!(network.next_event(), None);
    b.send(Instant::ZERO, &train(&a, 4, &[1; 4])).unwrap();
    assert_eq!(drain(&network, &a).len(), 1);
}

#[test]
fn a_link_reaches_itself_and_nobody_else() {
    let (network, a, b) = pair(1, PathConditions::IDEAL);
    a.send(Instant::ZERO, &train(&a, 4, &[1; 4])).unwrap();
    assert_eq!(drain(&network, &a).len(), 1);
    let address = b.address();
    drop(b);
    a.send(Instant::ZERO, &Train { destination: address, ..train(&a, 4, &[1; 12]) }).unwrap();
    assert_eq!((network.next_event(), network.counters().unreachable), (None, 3));
    network.attach(address).expect("the address is free again");
    assert_eq!(network.attach(a.address()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn limits_are_enforced() {
    let network = Network::new(1, PathConditions::IDEAL);
    let limits = LinkLimits { network_mtu: 1500, train_segments: 2, receive_capacity: 0, ..Network::DEFAULT_LIMITS };
    let link = network.attach_with([10, 0, 0, 1].into(), limits).unwrap();
    let bytes = [0; 4000];
    link.send(Instant::ZERO, &train(&link, 1472, &bytes[..2944])).unwrap();
    let error = link.send(Instant::ZERO, &train(&link, 1473, &bytes[..2944])).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    let error = link.send(Instant::ZERO, &train(&link, 1000, &bytes[..2001])).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let roomy = LinkLimits { train_segments: 1000, ..limits };
    let link = network.attach_with([10, 0, 0, 2].into(), roomy).unwrap();
    let error = link.send(Instant::ZERO, &train(&link, 1000, &[0; MAX_TRAIN_BYTES + 1])).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn this_seed_gives_these_deliveries_on_every_machine() {
    let conditions = PathConditions { loss: 0.3, reordering: 0.3, ..PathConditions::IDEAL };
    let (network, a, b) = pair(2024, conditions);
    for number in 0..10 {
        a.send(Instant::from_nanos(number * MICROSECOND), &train(&b, 1, &[number as u8])).unwrap();
    }
    let got: Vec<_> = drain(&network, &b).into_iter().map(|(at, _, packets)| (at, packets[0][0])).collect();
    assert_eq!(
        got,
        [(10_000, 0), (13_000, 3), (14_000, 4), (15_000, 5), (16_000, 6), (17_000, 7), (18_000, 8), (60_589, 9)]
    );
}

fn conditions() -> impl Strategy<Value = PathConditions> {
    (0.0..0.5, 0.0..0.5, 0.0..0.5, 0.0..0.5, 0.0..0.1, proptest::option::of(1_000_000_u64..1_000_000_000)).prop_map(
        |(loss, duplication, corruption, reordering, stalling, bandwidth)| PathConditions {
            bandwidth,
            queue_bytes: 20_000,
            loss,
            duplication,
            corruption,
            reordering,
            marking: loss,
            stalling,
            ..PathConditions::IDEAL
        },
    )
}

/// What happens on one path, with or without traffic on another.
fn history(seed: u64, conditions: PathConditions, trains: &[(u64, usize, usize)], noise: bool) -> Vec<String> {
    let (network, a, b) = pair(seed, conditions);
    let c = network.attach([10, 0, 0, 3].into()).unwrap();
    let bytes: Vec<u8> = (0..4096).map(|at| (at * 31 / 7) as u8).collect();
    let mut now = Instant::ZERO;
    for &(gap, size, count) in trains {
        now = now + Duration::from_nanos(gap);
        a.send(now, &train(&b, size, &bytes[..size * count])).unwrap();
        if noise {
            c.send(now, &train(&c, size, &bytes[..size])).unwrap();
        }
    }
    drop(c);
    drain(&network, &b).into_iter().map(|got| format!("{got:?}")).collect()
}

proptest! {
    #[test]
    fn a_seed_is_a_history(
        seed: u64,
        conditions in conditions(),
        trains in prop::collection::vec((0_u64..100_000, 1_usize..64, 1_usize..60), 1..20),
    ) {
        let once = history(seed, conditions, &trains, false);
        prop_assert_eq!(&once, &history(seed, conditions, &trains, false));
        prop_assert_eq!(&once, &history(seed, conditions, &trains, true), "other paths do not matter");
    }
}
