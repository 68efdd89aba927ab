//! Linux rxe's unreliable connections and datagrams, replayed: our receiving halves take what rxe sent, and our
//! sending halves, given the same work, send the same bytes. `pcaps/README.md` says how the captures came about.

use std::{collections::BTreeMap, fs, net::IpAddr, path::Path};
use uroce::capture::{CaptureReader, Dissection};
use uroce_protocol::{
    AccessFlags, Sge,
    testing::{OwnedPacket, TestMemory, request},
    uc, ud,
    wire::{DatagramHeader, Deth, Encapsulation, GRH_LEN, Mtu, Operation, PKey, Packet, QKey, Qpn, Repr, Service},
    work::{AddressVector, Completion, SendOperation, SendRequest, Target, WcStatus},
};

/// Where the network header begins in a frame.
const ETHERNET_LEN: usize = 14;
const KEY: u32 = 0x51;
const SIZE: usize = 1 << 18;

/// A packet as it was captured.
#[derive(Clone)]
struct Captured {
    /// Its position in the file.
    number: usize,
    header: DatagramHeader,
    /// The 40 bytes that a datagram queue pair learns of its network header.
    grh: Vec<u8>,
    bytes: Vec<u8>,
}

impl Captured {
    fn packet(&self) -> Packet<'_> {
        Packet::new_checked(&self.bytes).expect("a packet that rxe sent")
    }

    /// BTH to payload: what is ours to make.
    fn covered(&self) -> &[u8] {
        &self.bytes[..self.bytes.len() - Packet::ICRC_LEN]
    }
}

/// Every packet of a service between ordinary queue pairs, by capture, sender and receiver, in order.
fn flows(service: Service) -> BTreeMap<(String, IpAddr, Qpn), Vec<Captured>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("pcaps");
    let mut flows: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if path.extension().is_none_or(|extension| extension != "pcap") {
            continue;
        }
        let capture = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut reader = CaptureReader::open(&path).unwrap();
        while let Some(frame) = reader.next_frame().unwrap() {
            let Ok(Dissection { frame: inside, packet: Ok(packet), .. }) = Dissection::new(&frame) else { continue };
            // Management has a queue pair of its own, with habits of its own.
            if packet.opcode().service() != service || packet.destination() == Qpn::new(1) {
                continue;
            }
            let Encapsulation::V2Ipv4 { ip_id, source_port } = inside.encapsulation else {
                panic!("RoCE v2 over IPv4")
            };
            let header = DatagramHeader {
                source: inside.source,
                destination: inside.destination,
                source_port,
                traffic_class: inside.traffic_class,
                hop_limit: inside.hop_limit,
                ip_id,
                udp_checksum: false,
            };
            let ip_header = &frame.bytes[ETHERNET_LEN..][..20];
            let captured = Captured {
                number: frame.number as usize,
                header,
                grh: [&[0; 20], ip_header].concat(),
                bytes: packet.as_bytes().to_vec(),
            };
            flows.entry((capture.clone(), inside.source, packet.destination())).or_default().push(captured);
        }
    }
    flows
}

fn memory() -> TestMemory {
    let memory = TestMemory::new();
    memory.register(KEY, 0, vec![0; SIZE], AccessFlags::LOCAL_WRITE);
    memory
}

const fn range(offset: usize, length: usize) -> Sge {
    Sge { address: offset as u64, length: length as u32, lkey: KEY }
}

fn bytes(memory: &TestMemory, offset: usize, length: usize) -> Vec<u8> {
    memory.bytes(KEY)[offset..][..length].to_vec()
}

/// The messages of a flow: whether they are whole is the caller's business.
fn messages(packets: &[Captured]) -> Vec<Vec<Captured>> {
    let mut messages: Vec<Vec<Captured>> = Vec::new();
    for packet in packets {
        match messages.last_mut() {
            Some(message) if !packet.packet().opcode().operation().starts_message() => message.push(packet.clone()),
            _ => messages.push(vec![packet.clone()]),
        }
    }
    messages
}

fn payload(message: &[Captured]) -> Vec<u8> {
    message.iter().flat_map(|captured| captured.packet().payload().to_vec()).collect()
}

/// Feeds packets, all but those `lost`, to our receiving half; returns the messages that it delivers.
fn delivered(packets: &[Captured], is_lost: impl Fn(&Captured) -> bool) -> Vec<Vec<u8>> {
    let memory = memory();
    let mut responder = uc::Responder::new(64);
    responder.connect(uc::ResponderAttributes {
        mtu: Mtu::Mtu1024,
        first_psn: packets[0].packet().psn(),
        access: AccessFlags::empty(),
    });
    let mut delivered = Vec::new();
    responder.post(0, &[range(0, SIZE)]).unwrap();
    for captured in packets.iter().filter(|captured| !is_lost(captured)) {
        responder.handle_packet(&captured.packet(), &memory, None);
        while let Some(done) = responder.poll_completion() {
            assert_eq!(done.status, WcStatus::Success);
            delivered.push(bytes(&memory, 0, done.byte_length as usize));
            responder.post(0, &[range(0, SIZE)]).unwrap();
        }
    }
    delivered
}

#[test]
fn our_unreliable_responder_takes_every_message() {
    let flows = flows(Service::Uc);
    let mut count = 0;
    for ((capture, ..), packets) in &flows {
        // Here the wire made it of a packet of another service.
        if capture == "mut_opcode_uc" {
            continue;
        }
        let messages = messages(packets);
        let expected: Vec<_> = messages.iter().map(|message| payload(message)).collect();
        assert!(delivered(packets, |_| false) == expected, "{capture}");
        count += messages.len();
    }
    assert!(count > 20, "{count} messages");
}

#[test]
fn our_unreliable_responder_loses_the_message_that_lost_a_packet() {
    let flows = flows(Service::Uc);
    let (_, packets) = flows.iter().find(|((capture, ..), _)| capture == "uc_loss").unwrap();
    let messages = messages(packets);
    assert_eq!(messages.len(), 3);
    // The wire dropped frame 2. Of the two messages behind it rxe delivered one; the IBTA has both delivered.
    let expected: Vec<_> = messages[1..].iter().map(|message| payload(message)).collect();
    assert!(delivered(packets, |captured| captured.number == 2) == expected);
}

#[test]
fn our_unreliable_requester_sends_what_rxe_sent() {
    let mut count = 0;
    for ((capture, _, destination), packets) in flows(Service::Uc) {
        if capture == "mut_opcode_uc" {
            continue;
        }
        let memory = memory();
        let mut requester = uc::Requester::new(64);
        requester.connect(uc::RequesterAttributes {
            destination,
            mtu: Mtu::Mtu1024,
            pkey: PKey::DEFAULT,
            first_psn: packets[0].packet().psn(),
        });
        for message in messages(&packets) {
            let payload = payload(&message);
            memory.register(KEY, 0, payload.clone(), AccessFlags::empty());
            let list = [range(0, payload.len())];
            requester.post(&request(0, SendOperation::Send, &list)).unwrap();
            for captured in &message {
                let transmit = requester.poll_transmit().expect("as many packets as rxe");
                let ours = OwnedPacket::of(&transmit, &memory).unwrap();
                let ours = ours.view().as_bytes().to_vec();
                assert!(ours[..ours.len() - Packet::ICRC_LEN] == *captured.covered(), "{capture} {}", captured.number);
                count += 1;
            }
            assert!(requester.poll_transmit().is_none(), "no more packets than rxe");
            requester.transmitted();
        }
    }
    assert!(count > 60, "{count} packets");
}

/// What our receiving half makes of datagrams that must bring `qkey`.
fn taken(packets: &[Captured], qkey: QKey) -> Vec<(Completion, Vec<u8>)> {
    let memory = memory();
    let mut responder = ud::Responder::new(64);
    responder.connect(ud::ResponderAttributes { mtu: Mtu::Mtu1024, qkey });
    let mut taken = Vec::new();
    responder.post(0, &[range(0, SIZE)]).unwrap();
    for captured in packets {
        responder.handle_packet(&captured.packet(), || captured.header.grh(captured.bytes.len()), &memory, None);
        while let Some(done) = responder.poll_completion() {
            taken.push((done, bytes(&memory, 0, done.byte_length as usize)));
            responder.post(0, &[range(0, SIZE)]).unwrap();
        }
    }
    taken
}

fn deth(captured: &Captured) -> Deth {
    captured.packet().deth().expect("datagrams have a DETH")
}

#[test]
fn our_datagram_responder_takes_every_datagram_behind_its_captured_header() {
    let mut count = 0;
    for ((capture, ..), packets) in flows(Service::Ud) {
        if capture == "mut_qkey_bad" {
            continue;
        }
        let taken = taken(&packets, deth(&packets[0]).qkey);
        assert_eq!(taken.len(), packets.len(), "{capture}");
        for ((done, bytes), captured) in taken.iter().zip(&packets) {
            assert_eq!((done.status, done.source), (WcStatus::Success, Some(deth(captured).source)));
            assert_eq!(done.immediate, captured.packet().immediate());
            assert!(bytes[..GRH_LEN] == captured.grh, "{capture} {}: the network header", captured.number);
            assert!(bytes[GRH_LEN..] == *captured.packet().payload(), "{capture} {}", captured.number);
            count += 1;
        }
    }
    assert!(count > 20, "{count} datagrams");
}

#[test]
fn our_datagram_responder_drops_the_wrong_key_as_rxe_does() {
    let flows = flows(Service::Ud);
    let (_, packets) = flows.iter().find(|((capture, ..), _)| capture == "mut_qkey_bad").unwrap();
    let [original, changed] = &packets[..] else { panic!("the packet, and what the wire made of it") };
    assert_eq!(taken(std::slice::from_ref(original), QKey(0x1122_3344)).len(), 1);
    assert!(taken(std::slice::from_ref(changed), QKey(0x1122_3344)).is_empty());
}

#[test]
fn our_datagram_requester_sends_what_rxe_sent() {
    let mut count = 0;
    for ((capture, ..), packets) in flows(Service::Ud) {
        if capture == "mut_qkey_bad" {
            continue;
        }
        let first = &packets[0];
        let memory = memory();
        let mut requester = ud::Requester::new(64);
        requester.connect(ud::RequesterAttributes {
            source: deth(first).source,
            mtu: Mtu::Mtu1024,
            pkey: PKey::DEFAULT,
            first_psn: first.packet().psn(),
            qkey: QKey(0),
        });
        for captured in &packets {
            let packet = captured.packet();
            memory.register(KEY, 0, packet.payload().to_vec(), AccessFlags::empty());
            let address = AddressVector {
                peer: captured.header.destination,
                traffic_class: captured.header.traffic_class,
                flow_label: 0,
                hop_limit: captured.header.hop_limit,
            };
            let operation = match packet.opcode().operation() {
                Operation::SendOnlyWithImmediate => SendOperation::SendWithImmediate(packet.immediate().unwrap()),
                _ => SendOperation::Send,
            };
            let list = [range(0, packet.payload().len())];
            let target = Target::Datagram { address, qpn: packet.destination(), qkey: deth(captured).qkey };
            requester.post(&SendRequest { target, ..request(0, operation, &list) }).unwrap();
            let transmit = requester.poll_transmit().unwrap();
            assert_eq!(transmit.to, Some(address));
            let ours = OwnedPacket::of(&transmit, &memory).unwrap();
            assert_eq!(Repr::parse(&ours.view()), Repr::parse(&packet), "{capture} {}", captured.number);
            assert!(ours.view().payload() == packet.payload());
            requester.transmitted();
            count += 1;
        }
    }
    assert!(count > 20, "{count} datagrams");
}

#[test]
fn multicast_goes_to_the_queue_pair_of_everybody() {
    let flows = flows(Service::Ud);
    let ((_, _, destination), packets) = flows.iter().find(|((capture, ..), _)| capture == "mckey_ud").unwrap();
    assert_eq!(*destination, ud::MULTICAST);
    assert!(packets.iter().all(|captured| captured.header.destination.is_multicast()));
}
