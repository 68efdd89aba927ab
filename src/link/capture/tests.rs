use super::*;
use crate::link::{
    UdpConfig, UdpLink,
    fault::Fault,
    sim::{Network, PathConditions, SimLink},
    testing::train_of,
};
use parking_lot::Mutex;
use pcap_file::pcapng::{Block, PcapNgReader};
use proptest::prelude::*;
use std::{process::Command, time::Instant as WallInstant};
use uroce_protocol::wire::{Encapsulation, Frame, LinkLayer, Operation};

const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [10, 0, 0, 2];

/// A file in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A record as pcap-file reads it.
#[derive(Clone, Debug, PartialEq)]
struct Record {
    interface: String,
    outbound: bool,
    at: Duration,
    ip: Vec<u8>,
}

impl Record {
    fn frame(&self) -> Frame<'_> {
        Frame::parse(LinkLayer::Ip, &self.ip).unwrap()
    }

    fn ip_id(&self) -> u16 {
        u16::from_be_bytes([self.ip[4], self.ip[5]])
    }

    fn psn(&self) -> u32 {
        Packet::new_checked(self.frame().packet()).unwrap().psn().value()
    }
}

fn records(memory: &Memory) -> Vec<Record> {
    let bytes = memory.0.lock().clone();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let (mut interfaces, mut records) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.unwrap().into_owned() {
            Block::InterfaceDescription(interface) => {
                assert_eq!(interface.linktype, DataLink::RAW);
                assert!(interface.options.contains(&InterfaceDescriptionOption::IfTsResol(9)));
                let name = interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                });
                interfaces.push(name.unwrap());
            }
            Block::EnhancedPacket(packet) => {
                assert_eq!(packet.original_len as usize, packet.data.len());
                records.push(Record {
                    interface: interfaces[packet.interface_id as usize].clone(),
                    outbound: packet.options.contains(&EnhancedPacketOption::Flags(2)),
                    at: packet.timestamp,
                    ip: packet.data.into_owned(),
                });
            }
            _ => {}
        }
    }
    records
}

fn memory() -> (Memory, Arc<CaptureFile>) {
    let memory = Memory::default();
    let file = CaptureFile::new(Box::new(memory.clone())).unwrap();
    (memory, file)
}

fn simulated() -> (Network, SimLink, SimLink) {
    let network = Network::new(0, PathConditions::IDEAL);
    let (a, b) = (network.attach(A.into()).unwrap(), network.attach(B.into()).unwrap());
    (network, a, b)
}

fn send(from: &impl Link, to: IpAddr, psns: &[u32]) {
    let source_port = from.source_port(0xc000);
    let flow = Flow::new(from.address(), to, source_port);
    let bytes = train_of(&flow, Operation::SendMiddle, 17, 64, psns);
    let segment_size = bytes.len() / psns.len();
    let train =
        Train { destination: to, source_port, traffic_class: 0x02, hop_limit: None, segment_size, bytes: &bytes };
    from.send(Instant::from_nanos(7), &train).unwrap();
}

fn receive(link: &impl Link, at: Instant) {
    assert!(link.receive(at, &mut ReceiveBuffer::new()).unwrap().is_some());
}

fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[test]
fn each_packet_of_a_train_is_a_record_with_the_headers_of_the_wire() {
    let (memory, file) = memory();
    let (network, a, b) = simulated();
    let (a, b) = (Capture::new(a, file.clone(), "left").unwrap(), Capture::new(b, file.clone(), "right").unwrap());
    send(&a, B.into(), &[5, 6, 7]);
    receive(&b, network.next_event().unwrap());
    file.flush().unwrap();
    let records = records(&memory);
    let seen: Vec<_> =
        records.iter().map(|record| (&*record.interface, record.outbound, record.ip_id(), record.psn())).collect();
    assert_eq!(
        seen,
        [
            ("left 10.0.0.1", true, 0, 5),
            ("left 10.0.0.1", true, 1, 6),
            ("left 10.0.0.1", true, 2, 7),
            ("right 10.0.0.2", false, 0, 5),
            ("right 10.0.0.2", false, 1, 6),
            ("right 10.0.0.2", false, 2, 7),
        ]
    );
    for record in &records {
        let ip = &record.ip;
        assert_eq!((ip[0], ip[1], ip[6], ip[7], ip[8], ip[9]), (0x45, 0x02, 0x40, 0, 64, 17));
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
        assert_eq!(ones_complement_sum(&ip[..20]), 0xffff, "IPv4 header checksum");
        assert_eq!(ip[20..24], [0xc0, 0, 0x12, 0xb7], "ports");
        let pseudo_header = [&ip[12..20], &[0, 17], &ip[24..26]].concat();
        assert_eq!(ones_complement_sum(&[&pseudo_header, &ip[20..]].concat()), 0xffff, "UDP checksum");
        assert_eq!(record.frame().check_icrc(), Ok(()));
    }
}

#[test]
fn virtual_time_is_recorded_as_it_is() {
    let run = || {
        let (memory, file) = memory();
        let (network, a, b) = simulated();
        let (a, b) = (Capture::new(a, file.clone(), "a").unwrap(), Capture::new(b, file.clone(), "b").unwrap());
        send(&a, B.into(), &[1]);
        receive(&b, network.next_event().unwrap());
        assert_eq!(a.poll_timeout(), None, "a capture adds no events to a simulation");
        file.flush().unwrap();
        let bytes = memory.0.lock().clone();
        (records(&memory).iter().map(|record| record.at.as_nanos()).collect::<Vec<_>>(), bytes)
    };
    assert_eq!(run().0, [7, 10_007]);
    assert_eq!(run(), run(), "byte by byte");
}

#[test]
fn ipv6_packets_are_right_too() {
    let (memory, file) = memory();
    let network = Network::new(0, PathConditions::IDEAL);
    let link = Capture::new(network.attach("fd00::1".parse().unwrap()).unwrap(), file.clone(), "x").unwrap();
    send(&link, link.address(), &[1, 2]);
    receive(&link, network.next_event().unwrap());
    file.flush().unwrap();
    let records = records(&memory);
    assert_eq!(records.len(), 4);
    for record in &records {
        assert!(matches!(record.frame().encapsulation, Encapsulation::V2Ipv6 { .. }));
        assert_eq!((record.ip[0], record.ip[1], record.ip[7]), (0x60, 0x20, 64));
        assert_eq!(record.frame().check_icrc(), Ok(()));
    }
}

fn udp_pair(file: &Arc<CaptureFile>) -> (Capture<UdpLink>, Capture<UdpLink>) {
    let open = |name| Capture::new(UdpLink::open_loopback(&UdpConfig::default()).unwrap(), file.clone(), name).unwrap();
    (open("a"), open("b"))
}

fn receive_soon(link: &impl Link) {
    let started = WallInstant::now();
    while link.receive(Instant::ZERO, &mut ReceiveBuffer::new()).unwrap().is_none() {
        assert!(started.elapsed().as_secs() < 20);
    }
}

#[test]
fn the_identification_that_udp_hides_is_recovered() {
    let (memory, file) = memory();
    let (a, b) = udp_pair(&file);
    send(&a, b.address(), &(0..40).collect::<Vec<_>>());
    receive_soon(&b);
    // As a sender that counts its packets: Identification 0x1234, for which only the ICRC tells.
    let source_port = a.source_port(0xc000);
    let flow = Flow::new(a.address(), b.address(), source_port);
    let mut bytes = train_of(&flow, Operation::SendMiddle, 17, 64, &[99]);
    flow.stamp(0x1234, &mut bytes);
    let train = Train {
        destination: b.address(),
        source_port,
        traffic_class: 0,
        hop_limit: None,
        segment_size: bytes.len(),
        bytes: &bytes,
    };
    a.inner().send(Instant::ZERO, &train).unwrap();
    receive_soon(&b);
    file.flush().unwrap();
    let received: Vec<_> = records(&memory).into_iter().filter(|record| !record.outbound).collect();
    let ids: Vec<_> = received.iter().map(Record::ip_id).collect();
    assert_eq!(ids, (0..40).chain([0x1234]).collect::<Vec<_>>());
    assert!(received.iter().all(|record| record.frame().check_icrc().is_ok()));
}

#[test]
fn real_time_is_the_time_of_day_and_never_goes_back() {
    let (memory, file) = memory();
    let (a, b) = udp_pair(&file);
    let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    for psn in 0..10 {
        send(&a, b.address(), &[psn]);
        receive_soon(&b);
    }
    let after = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    file.flush().unwrap();
    let records = records(&memory);
    assert_eq!(records.len(), 20);
    assert!(records.is_sorted_by_key(|record| record.at));
    assert!(records.iter().all(|record| (before..=after).contains(&record.at)));
    assert!(records.iter().step_by(2).all(|record| record.outbound), "a packet is recorded before it arrives");
}

#[test]
fn records_reach_the_file_while_the_device_lives() {
    let (memory, file) = memory();
    let (a, b) = udp_pair(&file);
    send(&a, b.address(), &[1]);
    assert!(records(&memory).is_empty(), "still in memory");
    let at = a.poll_timeout().unwrap();
    a.handle_timeout(at);
    assert_eq!(records(&memory).len(), 1);
    assert_eq!(a.poll_timeout(), None);
    send(&a, b.address(), &[2]);
    drop((a, b, file));
    assert_eq!(records(&memory).len(), 2, "dropping completes the file");
}

#[test]
fn the_place_in_the_stack_decides_what_is_seen() {
    let (memory, file) = memory();
    let (network, a, b) = simulated();
    let wire = Capture::new(a, file.clone(), "wire").unwrap();
    let fault = Fault::new(wire, &"drop 2, dup 3, corrupt 4".parse().unwrap(), 1);
    let program = Capture::new(fault, file.clone(), "program").unwrap();
    send(&program, B.into(), &[1, 2, 3, 4]);
    drop((b, network));
    file.flush().unwrap();
    let seen = |name: &str| -> Vec<_> {
        let records = records(&memory).into_iter().filter(|record| record.interface.starts_with(name));
        records.map(|record| (record.psn(), record.frame().check_icrc().is_ok())).collect()
    };
    assert_eq!(seen("program"), [(1, true), (2, true), (3, true), (4, true)]);
    assert_eq!(seen("wire"), [(1, true), (3, true), (3, true), (4, false)]);
}

#[test]
fn a_sink_that_fails_stops_the_capture_and_not_the_link() {
    struct Full {
        room: usize,
    }
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.room = self.room.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let file = CaptureFile::new(Box::new(Full { room: 1 << 16 })).unwrap();
    let (network, a, _b) = simulated();
    let link = Capture::new(a, file.clone(), "a").unwrap();
    for psn in 0..2000 {
        send(&link, B.into(), &[psn; 10]);
    }
    assert_eq!(network.counters().sent, 20_000);
    assert_eq!(file.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_file_that_cannot_be_made_is_named() {
    let error = CaptureFile::create(Path::new("/nonexistent/x.pcapng")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/x.pcapng"), "{error}");
}

/// Wireshark's own verdict, where it is installed.
#[test]
fn tshark_finds_nothing_malformed() {
    let path = std::env::temp_dir().join(format!("uroce-capture-{}.pcapng", std::process::id()));
    let file = CaptureFile::create(&path).unwrap();
    let (network, a, b) = simulated();
    let (a, b) = (Capture::new(a, file.clone(), "a").unwrap(), Capture::new(b, file, "b").unwrap());
    send(&a, B.into(), &[1, 2, 3]);
    receive(&b, network.next_event().unwrap());
    drop((a, b));
    let run = Command::new("tshark")
        .args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-V", "-r"])
        .arg(&path)
        .output();
    let _ = std::fs::remove_file(&path);
    let Ok(output) = run else {
        eprintln!("skipped: tshark is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.matches("Header checksum status: Good").count(), 6, "{text}");
    assert_eq!(text.matches("Checksum Status: Good").count(), 6, "{text}");
    assert_eq!(text.matches("Opcode: Reliable Connection (RC) - SEND Middle (1)").count(), 6, "{text}");
    assert!(!text.contains("Malformed"), "{text}");
}

proptest! {
    #[test]
    fn whatever_passes_is_recorded_byte_by_byte(
        bytes in prop::collection::vec(any::<u8>(), 1..300),
        segment_size in 5_usize..100,
    ) {
        let (memory, file) = memory();
        let (network, a, b) = simulated();
        let (a, b) = (Capture::new(a, file.clone(), "a").unwrap(), Capture::new(b, file.clone(), "b").unwrap());
        let train = Train { destination: B.into(), source_port: 9, traffic_class: 1, hop_limit: None, segment_size, bytes: &bytes };
        a.send(Instant::ZERO, &train).unwrap();
        receive(&b, network.next_event().unwrap());
        file.flush().unwrap();
        let records = records(&memory);
        for outbound in [true, false] {
            let packets = records.iter().filter(|record| record.outbound == outbound);
            prop_assert_eq!(packets.map(|record| &record.ip[28..]).collect::<Vec<_>>().concat(), bytes.clone());
        }
    }
}
