use super::*;
use crate::link::{MAX_TRAIN_BYTES, ReceiveBuffer};
use std::{
    net::Ipv6Addr,
    time::{Duration, Instant as WallInstant},
};

const IPV6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// There is only one IPv6 loopback address, so tests take turns at it, those of other processes too.
fn open_ipv6(config: &UdpConfig) -> UdpLink {
    let started = WallInstant::now();
    loop {
        match UdpLink::open(IPV6, config) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && started.elapsed().as_secs() < 60 => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result.unwrap(),
        }
    }
}

fn open(config: &UdpConfig) -> UdpLink {
    UdpLink::open_loopback(config).unwrap()
}

/// Packets of `size` bytes, the last of `last`, whose bytes tell position from position.
fn packets(count: usize, size: usize, last: usize) -> Vec<u8> {
    (0..(count - 1) * size + last).map(|at| (at * 7 + at / size) as u8).collect()
}

fn train<'a>(destination: &UdpLink, segment_size: usize, bytes: &'a [u8]) -> Train<'a> {
    Train {
        destination: destination.address(),
        source_port: ROCE_PORT,
        traffic_class: 0,
        hop_limit: None,
        segment_size,
        bytes,
    }
}

/// Waits for as many bytes as were sent; returns the first arrival, all packets, and how many trains they came in.
fn receive(link: &UdpLink, bytes: usize) -> (Arrival, Vec<Vec<u8>>, usize) {
    let mut buffer = ReceiveBuffer::new();
    let (mut first, mut got, mut trains) = (None, Vec::new(), 0);
    let started = WallInstant::now();
    while got.iter().map(Vec::len).sum::<usize>() < bytes {
        assert!(started.elapsed().as_secs() < 20, "only {} packets came", got.len());
        let Some(arrival) = link.receive(Instant::ZERO, &mut buffer).unwrap() else {
            std::thread::yield_now();
            continue;
        };
        trains += 1;
        got.extend(buffer.segments(&arrival).map(<[u8]>::to_vec));
        first.get_or_insert(arrival);
    }
    (first.unwrap(), got, trains)
}

fn assert_arrives(from: &UdpLink, to: &UdpLink, segment_size: usize, bytes: &[u8]) -> usize {
    let train = train(to, segment_size, bytes);
    from.send(Instant::ZERO, &train).unwrap();
    let (arrival, got, trains) = receive(to, bytes.len());
    assert_eq!(got, train.segments().map(<[u8]>::to_vec).collect::<Vec<_>>());
    assert_eq!((arrival.source, arrival.source_port), (from.address(), ROCE_PORT));
    assert_eq!(arrival.destination, to.address());
    trains
}

#[test]
fn a_train_arrives_whole() {
    let (a, b) = (open(&UdpConfig::default()), open(&UdpConfig::default()));
    assert_eq!(assert_arrives(&a, &b, 1060, &packets(61, 1060, 1060)), 1);
    assert_eq!(assert_arrives(&a, &b, 4156, &packets(15, 4156, 20)), 1);
    assert_eq!(assert_arrives(&a, &b, 16, &packets(128, 16, 16)), 1);
    assert_eq!(assert_arrives(&a, &b, 16, &packets(1, 16, 16)), 1);
}

#[test]
fn a_train_arrives_whole_over_ipv6() {
    let link = open_ipv6(&UdpConfig::default());
    assert_eq!(assert_arrives(&link, &link, 1060, &packets(61, 1060, 300)), 1);
    assert_eq!(assert_arrives(&link, &link, 4156, &packets(15, 4156, 4156)), 1);
}

#[test]
fn without_receive_offload_packets_arrive_singly() {
    let (a, b) = (open(&UdpConfig::default()), open(&UdpConfig { receive_offload: false, ..UdpConfig::default() }));
    assert_eq!(assert_arrives(&a, &b, 1060, &packets(20, 1060, 100)), 20);
}

#[test]
fn without_segmentation_offload_trains_hold_one_packet() {
    let config = UdpConfig { segmentation_offload: false, ..UdpConfig::default() };
    let (a, b) = (open(&config), open(&UdpConfig::default()));
    assert_eq!(a.limits().train_segments, 1);
    assert_arrives(&a, &b, 1060, &packets(1, 1060, 1060));
    let link = open_ipv6(&config);
    assert_arrives(&link, &link, 1060, &packets(9, 1060, 28));
}

#[test]
fn a_train_too_long_for_the_link_is_numbered_anew() {
    let a = open(&UdpConfig { segmentation_offload: false, ..UdpConfig::default() });
    let b = open(&UdpConfig::default());
    let bytes = packets(5, 100, 60);
    a.send(Instant::ZERO, &train(&b, 100, &bytes)).unwrap();
    let (_, got, _) = receive(&b, bytes.len());
    for (id, (got, sent)) in got.iter().zip(bytes.chunks(100)).enumerate() {
        let mut expected = sent.to_vec();
        restamp(&mut expected, id as u16, 0);
        assert_eq!(*got, expected);
    }
    // IPv6 has no Identification, so nothing changes there: see `without_segmentation_offload_…`.
}

#[test]
fn the_traffic_class_crosses_in_both_directions() {
    let (a, b) = (open(&UdpConfig::default()), open(&UdpConfig::default()));
    let v6 = open_ipv6(&UdpConfig::default());
    let bytes = packets(3, 64, 64);
    for class in [0, 0x01, 0x02, 0x03, 0xc2, 0xff] {
        for (from, to) in [(&a, &b), (&b, &a), (&v6, &v6)] {
            from.send(Instant::ZERO, &Train { traffic_class: class, ..train(to, 64, &bytes) }).unwrap();
            assert_eq!(receive(to, bytes.len()).0.traffic_class, class);
        }
    }
}

#[test]
fn packets_leave_from_the_port_that_was_answered() {
    let (a, b) = (open(&UdpConfig::default()), open(&UdpConfig::default()));
    let bytes = packets(2, 64, 64);
    for wanted in [0xc001, 0xf00d, 0xc001 + SOURCE_PORTS as u16, ROCE_PORT] {
        let port = a.source_port(wanted);
        assert_eq!(a.source_port(port), port, "asking for the answer gives the answer");
        a.send(Instant::ZERO, &Train { source_port: port, ..train(&b, 64, &bytes) }).unwrap();
        assert_eq!(receive(&b, bytes.len()).0.source_port, port);
    }
}

#[test]
fn source_ports_are_many_but_bounded() {
    let link = open(&UdpConfig::default());
    let mut ports: Vec<_> = (0xc000..=0xffff).map(|wanted| link.source_port(wanted)).collect();
    ports.sort_unstable();
    ports.dedup();
    assert!(ports.len() <= SOURCE_PORTS, "{} ports", ports.len());
    assert!(ports.len() > SOURCE_PORTS / 2, "{} ports", ports.len());
}

#[test]
fn a_taken_source_port_is_replaced() {
    let link = open(&UdpConfig::default());
    let taken = std::net::UdpSocket::bind((link.address(), 0)).unwrap();
    let wanted = taken.local_addr().unwrap().port();
    let port = link.source_port(wanted);
    assert_ne!(port, wanted);
    assert_eq!(link.source_port(port), port);
}

#[test]
fn limits_are_those_of_the_loopback_interface() {
    let limits = open(&UdpConfig::default()).limits();
    assert_eq!(limits.network_mtu, sys::interface_of(IpAddr::from([127, 0, 0, 1])).unwrap().unwrap().mtu);
    assert!(limits.train_segments >= 64, "{limits:?}");
    let small = open(&UdpConfig { receive_buffer: 1 << 16, ..UdpConfig::default() }).limits();
    // The kernel doubles what is asked for.
    assert_eq!(small.receive_capacity, (2 << 16) / 5 * 2);
    assert!(limits.receive_capacity > small.receive_capacity);
}

#[test]
fn what_the_receive_capacity_promises_fits() {
    let a = open(&UdpConfig::default());
    for size in [16, 64, 512, 1060, 4156] {
        let b = open(&UdpConfig { receive_buffer: 1 << 18, ..UdpConfig::default() });
        let packet = packets(1, size, size);
        let count = b.limits().receive_capacity / size.max(512);
        for _ in 0..count {
            a.send(Instant::ZERO, &train(&b, size, &packet)).unwrap();
        }
        assert_eq!(receive(&b, count * size).1.len(), count, "packets of {size} bytes");
    }
}

#[test]
fn errors_name_what_to_mend() {
    let config = UdpConfig::default();
    let link = open(&config);
    let error = UdpLink::open(link.address(), &config).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("taken, by another uroce device"), "{error}");
    let error = UdpLink::open(IpAddr::from([203, 0, 113, 7]), &config).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    assert!(error.to_string().contains("`ip address`"), "{error}");
    for address in ["0.0.0.0", "224.0.0.1", "::", "ff02::1"] {
        let error = UdpLink::open(address.parse().unwrap(), &config).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{address}");
    }
}

#[test]
fn trains_that_cannot_be_sent_are_refused() {
    let (a, b) = (open(&UdpConfig::default()), open(&UdpConfig::default()));
    let bytes = packets(1, 64, 64);
    let good = train(&b, 64, &bytes);
    let long = vec![0; MAX_TRAIN_BYTES + 1];
    for bad in [
        Train { segment_size: 0, ..good },
        Train { bytes: &[], ..good },
        Train { bytes: &long, ..good },
        Train { destination: IPV6, ..good },
    ] {
        assert_eq!(a.send(Instant::ZERO, &bad).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn readiness_tells_of_arrivals() {
    let (a, b) = (open(&UdpConfig::default()), open(&UdpConfig::default()));
    let readable = |link: &UdpLink| {
        let mut poll = mio::Poll::new().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&link.readiness().unwrap());
        poll.registry().register(&mut mio::unix::SourceFd(&fd), mio::Token(0), mio::Interest::READABLE).unwrap();
        let mut events = mio::Events::with_capacity(1);
        poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        !events.is_empty()
    };
    assert!(!readable(&b));
    a.send(Instant::ZERO, &train(&b, 64, &packets(1, 64, 64))).unwrap();
    assert!(readable(&b));
}

fn octets(link: &UdpLink) -> [u8; 4] {
    let IpAddr::V4(address) = link.address() else { panic!("{link:?}") };
    address.octets()
}

/// What every ICRC over IPv4 relies on. Reading IP headers takes a raw socket, so this one needs CAP_NET_RAW.
#[test]
fn packets_carry_identification_zero_and_dont_fragment() {
    let (a, b) = (open(&UdpConfig::default()), open(&UdpConfig::default()));
    let Ok(raw) = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)) else {
        eprintln!("skipped: a raw socket needs CAP_NET_RAW");
        return;
    };
    raw.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    raw.bind(&SocketAddr::new(b.address(), 0).into()).unwrap();
    let port = a.source_port(0xc0de);
    let bytes = packets(3, 333, 333);
    // On loopback a train stays one packet, whose Identification is that of its first segment.
    for (source_port, count) in [(ROCE_PORT, 1), (port, 1), (ROCE_PORT, 3), (port, 3), (ROCE_PORT, 1), (port, 1)] {
        a.send(Instant::ZERO, &Train { source_port, ..train(&b, 333, &bytes[..333 * count]) }).unwrap();
        let mut packet = [0_u8; 2048];
        let length = loop {
            let length = io::Read::read(&mut &raw, &mut packet).unwrap();
            // The socket has seen everybody's packets before it was bound.
            if packet[12..20] == [octets(&a), octets(&b)].concat() {
                break length;
            }
        };
        assert_eq!(length, 20 + 8 + 333 * count);
        assert_eq!(packet[4..8], [0, 0, 0x40, 0], "Identification 0, DF alone");
        assert_eq!(packet[8], 64, "time to live");
        assert_eq!(packet[20..22], source_port.to_be_bytes());
    }
}

/// Linux rxe and most hardware send UDP checksum 0, over IPv6 too, where a socket refuses it unless told.
#[test]
fn datagrams_without_a_checksum_arrive() {
    for link in [open(&UdpConfig::default()), open_ipv6(&UdpConfig::default())] {
        let sender = Local { address: link.address(), interface: 0 }.bind(0).unwrap();
        match link.address() {
            IpAddr::V4(_) => sys::set_option(sender.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap(),
            IpAddr::V6(_) => sys::set_option(sender.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).unwrap(),
        }
        let bytes = packets(1, 100, 100);
        send_one(&sender, &link.socket_address(link.address()).unwrap(), &train(&link, 100, &bytes)).unwrap();
        let (_, got, _) = receive(&link, bytes.len());
        assert!(got == [bytes]);
    }
}
