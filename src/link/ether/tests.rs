use super::*;
use crate::link::testing::train_of;
use std::{env, fs, os::unix::net::UnixDatagram, path::Path, process, thread};
use uroce_protocol::wire::{
    Operation, Packet,
    icrc::{Flow, IpIdPolicy},
};

const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// A folder for sockets; gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("uroce-{name}-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn config(address: &str) -> EtherConfig {
    EtherConfig { address: address.parse().unwrap(), mac: None, gateway: None }
}

fn open(local: &Path, remote: &Path, address: &str) -> EtherLink {
    EtherLink::on_datagrams(local.into(), remote.into(), 1500, &config(address)).unwrap()
}

/// What arrives at a link within a second, while the other one does what it has to.
fn arrivals(link: &EtherLink, other: &EtherLink, count: usize) -> Vec<(Arrival, Vec<u8>)> {
    let mut buffer = ReceiveBuffer::new();
    let mut arrived = Vec::new();
    for _ in 0..1000 {
        while let Some(arrival) = link.receive(NOW, &mut buffer).unwrap() {
            arrived.push((arrival, buffer.as_bytes()[..arrival.length].to_vec()));
        }
        if arrived.len() >= count {
            break;
        }
        assert!(other.receive(NOW, &mut ReceiveBuffer::new()).unwrap().is_none());
        other.handle_timeout(NOW);
        thread::sleep(Duration::from_millis(1));
    }
    arrived
}

#[test]
fn packets_cross_both_ways_from_the_first_on_over_ipv4_and_ipv6() {
    for network in ["10.77.0.", "fd00:77::"] {
        let folder = Folder::new("ether-cross");
        let ends = [folder.path("a"), folder.path("b")];
        let addresses = [1, 2].map(|host| format!("{network}{host}"));
        let links = [0, 1].map(|side| open(&ends[side], &ends[1 - side], &addresses[side]));
        for (near, far) in [(&links[0], &links[1]), (&links[1], &links[0])] {
            let flow = Flow::new(near.address(), far.address(), 50_000);
            let bytes = train_of(&flow, Operation::SendMiddle, 0x12, 256, &[7, 8, 9]);
            let segment_size = bytes.len() / 3;
            let train = Train {
                destination: far.address(),
                source_port: 50_000,
                traffic_class: 0x6a,
                hop_limit: None,
                segment_size,
                bytes: &bytes,
            };
            near.send(NOW, &train).unwrap();
            let arrived = arrivals(far, near, 3);
            assert_eq!(arrived.len(), 3);
            for (index, (arrival, packet)) in arrived.iter().enumerate() {
                assert!(packet[..] == bytes[index * segment_size..][..segment_size]);
                assert_eq!((arrival.source, arrival.destination), (near.address(), far.address()));
                assert_eq!((arrival.source_port, arrival.traffic_class), (50_000, 0x6a));
                assert_eq!(arrival.segment_size, segment_size);
                assert_eq!(arrival.ip_id, near.address().is_ipv4().then_some(index as u16));
                let packet = Packet::new_checked(packet).unwrap();
                assert!(flow.check(&packet, index as u16, IpIdPolicy::Exact).is_ok());
            }
        }
    }
}

#[test]
fn packets_to_the_own_address_come_back_without_the_wire() {
    let bare = Bare::new("ether-self", "10.77.0.", None);
    let address = bare.link.address;
    let flow = Flow::new(address, address, 50_000);
    let bytes = train_of(&flow, Operation::SendMiddle, 0x12, 256, &[7, 8]);
    let train = Train {
        destination: address,
        source_port: 50_000,
        traffic_class: 2,
        hop_limit: None,
        segment_size: bytes.len() / 2,
        bytes: &bytes,
    };
    assert_eq!(bare.link.poll_timeout(), None);
    bare.link.send(NOW, &train).unwrap();
    assert!(bare.link.poll_timeout().is_some_and(|deadline| deadline <= NOW));
    let mut buffer = ReceiveBuffer::new();
    let arrival = bare.link.receive(NOW, &mut buffer).unwrap().unwrap();
    assert!(buffer.as_bytes()[..arrival.length] == bytes);
    for (index, packet) in buffer.segments(&arrival).enumerate() {
        let packet = Packet::new_checked(packet).unwrap();
        assert!(flow.check(&packet, arrival.ip_id.unwrap() + index as u16, IpIdPolicy::Exact).is_ok());
    }
    assert!(bare.sent().is_empty());
    assert_eq!(bare.link.poll_timeout(), None);

    for _ in 0..10_000 {
        bare.link.send(NOW, &train).unwrap();
    }
    assert!(bare.link.own.lock().bytes <= bare.link.limits.receive_capacity);
}

/// A link and the bare other end of its wire, which it believes to be a neighbour at host 2.
struct Bare {
    _folder: Folder,
    link: EtherLink,
    far: UnixDatagram,
}

const FAR_MAC: [u8; 6] = [2, 0, 10, 77, 0, 2];

impl Bare {
    fn new(name: &str, network: &str, gateway: Option<Gateway>) -> Self {
        let folder = Folder::new(name);
        let far = UnixDatagram::bind(folder.path("far")).unwrap();
        far.set_nonblocking(true).unwrap();
        let config = EtherConfig { gateway, ..config(&format!("{network}1")) };
        let link = EtherLink::on_datagrams(folder.path("near"), folder.path("far"), 1500, &config).unwrap();
        far.connect(folder.path("near")).unwrap();
        let bare = Self { _folder: folder, link, far };
        assert_eq!(bare.sent().len(), 1, "an announcement");
        bare
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        let mut buffer = [0; 9000];
        std::iter::from_fn(|| {
            let length = self.far.recv(&mut buffer).ok()?;
            Some(buffer[..length].to_vec())
        })
        .collect()
    }

    fn receive(&self, frame: &[u8]) -> Option<(Arrival, Vec<u8>)> {
        self.far.send(frame).unwrap();
        let mut buffer = ReceiveBuffer::new();
        let arrival = self.link.receive(NOW, &mut buffer).unwrap()?;
        Some((arrival, buffer.as_bytes()[..arrival.length].to_vec()))
    }

    /// A frame as the neighbour would send it, and the packet in it.
    fn frame(&self, ip_id: u16) -> (Vec<u8>, Vec<u8>) {
        let source = match self.link.address {
            IpAddr::V4(_) => "10.77.0.2".parse().unwrap(),
            IpAddr::V6(_) => "fd00:77::2".parse().unwrap(),
        };
        let flow = Flow::new(source, self.link.address, 50_000);
        let mut packet = train_of(&flow, Operation::SendOnly, 0x12, 64, &[7]);
        flow.stamp(ip_id, &mut packet);
        let header = DatagramHeader {
            source,
            destination: self.link.address,
            source_port: 50_000,
            traffic_class: 3,
            hop_limit: 64,
            ip_id,
            udp_checksum: false,
        };
        let mut frame = self.link.mac.0.to_vec();
        frame.extend(FAR_MAC);
        frame.extend(if source.is_ipv4() { [8, 0] } else { [0x86, 0xdd] });
        header.emit(&packet, &mut frame);
        (frame, packet)
    }
}

/// Makes the checksum of a frame's IPv4 header right again.
fn mend(frame: &mut [u8]) {
    let end = ETHERNET_LEN + 4 * usize::from(frame[14] & 15);
    frame[24..26].fill(0);
    let header = &frame[ETHERNET_LEN..end];
    let sum = etherparse::checksum::Sum16BitWords::new().add_slice(header).ones_complement();
    frame[24..26].copy_from_slice(&sum.to_ne_bytes());
}

#[test]
fn every_field_that_a_socket_hides_is_seen() {
    for network in ["10.77.0.", "fd00:77::"] {
        let bare = Bare::new("ether-fields", network, None);
        let (mut frame, packet) = bare.frame(0xbeef);
        // Ethernet pads.
        frame.extend([0; 9]);
        let (arrival, bytes) = bare.receive(&frame).unwrap();
        assert!(bytes == packet);
        assert_eq!(arrival.ip_id, bare.link.address.is_ipv4().then_some(0xbeef));
        assert_eq!((arrival.traffic_class, arrival.source_port, arrival.length), (3, 50_000, packet.len()));
    }
}

#[test]
fn udp_checksums_are_not_looked_at() {
    for network in ["10.77.0.", "fd00:77::"] {
        let bare = Bare::new("ether-checksum", network, None);
        let (mut frame, packet) = bare.frame(1);
        let at = frame.len() - packet.len() - 2;
        frame[at..at + 2].copy_from_slice(&[0x12, 0x34]);
        assert!(bare.receive(&frame).is_some());
    }
}

#[test]
fn what_no_roce_device_sends_is_refused() {
    let bare = Bare::new("ether-refused-4", "10.77.0.", None);
    let (good, _) = bare.frame(1);
    assert!(bare.receive(&good).is_some());
    let change = |what: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        what(&mut frame);
        mend(&mut frame);
        frame
    };
    for (what, frame) in [
        (
            "options",
            change(&|frame| {
                frame[14] = 0x46;
                frame[17] += 4;
                frame.splice(34..34, [1; 4]);
            }),
        ),
        ("more fragments", change(&|frame| frame[20] = 0x20)),
        ("a later fragment", change(&|frame| frame[21] = 1)),
        ("TCP", change(&|frame| frame[23] = 6)),
        ("another port", change(&|frame| frame[37] = 1)),
        ("another address", change(&|frame| frame[33] = 9)),
        ("another station", change(&|frame| frame[5] ^= 1)),
        ("a longer datagram than the frame", change(&|frame| frame[39] += 1)),
        ("a datagram without anything", change(&|frame| frame[38..40].copy_from_slice(&[0, 8]))),
        ("a datagram shorter than its header", change(&|frame| frame[38..40].copy_from_slice(&[0, 7]))),
        ("version 6", change(&|frame| frame[14] = 0x65)),
    ] {
        assert!(bare.receive(&frame).is_none(), "{what}");
    }
    let mut vlan = good.clone();
    vlan.splice(12..12, [0x81, 0, 0, 5]);
    assert!(bare.receive(&vlan).is_none(), "a VLAN tag");
    let mut damaged = good.clone();
    damaged[22] ^= 1;
    assert!(bare.receive(&damaged).is_none(), "a header checksum");
    for length in 0..good.len() {
        assert!(bare.receive(&good[..length]).is_none(), "{length} bytes");
    }
    assert!(bare.receive(&good).is_some());
}

#[test]
fn what_no_roce_device_sends_is_refused_over_ipv6() {
    let bare = Bare::new("ether-refused-6", "fd00:77::", None);
    let (good, _) = bare.frame(0);
    for (what, at, value) in [
        ("an extension header", 20, 0),
        ("another address", 53, 9),
        ("another port", 57, 1),
        ("a longer datagram than the frame", 59, 0xff),
    ] {
        let mut frame = good.clone();
        frame[at] = value;
        assert!(bare.receive(&frame).is_none(), "{what}");
    }
    for length in 0..good.len() {
        assert!(bare.receive(&good[..length]).is_none(), "{length} bytes");
    }
    assert!(bare.receive(&good).is_some());
}

#[test]
fn addresses_beyond_the_own_network_are_behind_the_gateway() {
    let gateway = Gateway { address: "10.77.0.254".parse().unwrap(), prefix_len: 24 };
    let bare = Bare::new("ether-gateway", "10.77.0.", Some(gateway));
    let flow = Flow::new(bare.link.address, "192.0.2.1".parse().unwrap(), 50_000);
    let bytes = train_of(&flow, Operation::SendOnly, 0x12, 64, &[7]);
    for (destination, asked) in [("192.0.2.1", [10, 77, 0, 254]), ("10.77.0.9", [10, 77, 0, 9])] {
        let destination = destination.parse().unwrap();
        let train = Train {
            destination,
            source_port: 1,
            traffic_class: 0,
            hop_limit: None,
            segment_size: bytes.len(),
            bytes: &bytes,
        };
        bare.link.send(NOW, &train).unwrap();
        let frames = bare.sent();
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0][38..42], asked);
    }
}

#[test]
fn a_peer_that_is_not_there_yet_costs_packets_and_no_more() {
    let folder = Folder::new("ether-absent");
    let (near, far) = (folder.path("near"), folder.path("far"));
    let link = open(&near, &far, "10.77.0.1");
    let flow = Flow::new(link.address(), "10.77.0.2".parse().unwrap(), 50_000);
    let bytes = train_of(&flow, Operation::SendOnly, 0x12, 64, &[7]);
    let train = Train {
        destination: "10.77.0.2".parse().unwrap(),
        source_port: 50_000,
        traffic_class: 0,
        hop_limit: None,
        segment_size: bytes.len(),
        bytes: &bytes,
    };
    link.send(NOW, &train).unwrap();
    let peer = open(&far, &near, "10.77.0.2");
    link.handle_timeout(NOW + Duration::from_secs(1));
    assert_eq!(arrivals(&peer, &link, 1).len(), 1, "what waited goes out after the next question");
}

#[test]
fn what_was_taken_arrives_however_slow_the_wire_is() {
    let folder = Folder::new("ether-slow");
    let far = UnixDatagram::bind(folder.path("far")).unwrap();
    far.set_nonblocking(true).unwrap();
    let link = open(&folder.path("near"), &folder.path("far"), "10.77.0.1");
    let destination = "10.77.0.2".parse().unwrap();
    let bytes = train_of(&Flow::new(link.address, destination, 50_000), Operation::SendMiddle, 0x12, 1024, &[7]);
    let (source_port, segment_size) = (50_000, bytes.len());
    let train = Train { destination, source_port, traffic_class: 0, hop_limit: None, segment_size, bytes: &bytes };
    let offer = || match link.send(NOW, &train) {
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            0
        }
        Ok(()) => 1,
    };
    // More than fit on the wire wait for the neighbour, and all of them are in front of what comes after.
    let mut taken: usize = (0..100).map(|_| offer()).sum();
    let mut others = Neighbours::new(destination, MacAddress(FAR_MAC), true);
    others.announce();
    far.send_to(others.poll_transmit().unwrap(), folder.path("near")).unwrap();
    assert!(link.receive(NOW, &mut ReceiveBuffer::new()).unwrap().is_none());
    let mut arrived = 0;
    let mut frame = [0; 2000];
    for round in 0..3000 {
        taken += offer();
        if round % 3 == 0 {
            arrived += far.recv(&mut frame).map_or(0, |length| usize::from(length > segment_size));
        }
    }
    link.handle_timeout(NOW);
    while let Ok(length) = far.recv(&mut frame) {
        arrived += usize::from(length > segment_size);
        link.handle_timeout(NOW);
    }
    assert_eq!(arrived, taken);
    assert!(arrived > 500, "{arrived}");
}

#[test]
fn a_socket_that_was_left_behind_is_replaced_and_a_live_one_is_not() {
    let folder = Folder::new("ether-left");
    let path = folder.path("a");
    drop(UnixDatagram::bind(&path).unwrap());
    let link = open(&path, &folder.path("b"), "10.77.0.1");
    let error = EtherLink::on_datagrams(path.clone(), folder.path("b"), 1500, &config("10.77.0.1")).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("ether-left"), "{error}");
    drop(link);
    assert!(!path.exists());
}

#[test]
fn addresses_that_no_device_can_have_are_refused() {
    let folder = Folder::new("ether-addresses");
    for address in ["0.0.0.0", "224.0.0.1", "127.0.0.1", "::", "ff02::1", "::1"] {
        let link = EtherLink::on_datagrams(folder.path("a"), folder.path("b"), 1500, &config(address));
        assert_eq!(link.unwrap_err().kind(), io::ErrorKind::InvalidInput, "{address}");
    }
    let group = EtherConfig { mac: Some(MacAddress([1; 6])), ..config("10.77.0.1") };
    assert!(EtherLink::on_datagrams(folder.path("a"), folder.path("b"), 1500, &group).is_err());
}

#[test]
fn prefixes_say_who_is_a_neighbour() {
    let shares = |one: &str, other: &str, bits| shares_prefix(one.parse().unwrap(), other.parse().unwrap(), bits);
    assert!(shares("10.77.0.1", "10.77.0.254", 24) && !shares("10.77.0.1", "10.77.1.1", 24));
    assert!(shares("10.77.0.1", "192.0.2.1", 0) && !shares("10.77.0.1", "10.77.0.2", 32));
    assert!(shares("fd00::1", "fd00::2", 64) && !shares("fd00::1", "fd00:0:0:1::1", 64));
}
