//! What the tests against a real rxe read out of captures, without one: where those of the two sides part, and whether
//! rxe has renumbered its requests.

#[path = "interop_rxe/compare.rs"]
mod compare;
#[allow(dead_code, reason = "tests/interop_rxe uses all of it")]
#[path = "interop_rxe/report.rs"]
mod report;
mod support;

use compare::{Difference, Fate, Point, compare, differences};
use report::{Packets, Seen};
use std::{collections::BTreeSet, fs, net::IpAddr, path::Path};
use support::sender::packet;
use uroce::capture::CaptureReader;
use uroce_protocol::{
    Psn,
    wire::{
        Aeth, Bth, CreditCode, DatagramHeader, Extended, Msn, NakCode, Opcode, Operation, Qpn, RKey, ROCE_PORT, Repr,
        Reth, Syndrome, icrc::Flow,
    },
};

const UROCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2));
const RXE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1));

/// A packet on the wire.
#[derive(Clone)]
struct Sent {
    header: DatagramHeader,
    bytes: Vec<u8>,
}

/// A packet of `operation` of a reliable connection.
fn sent_by(source: IpAddr, operation: Operation, psn: u32) -> Sent {
    let syndrome = Syndrome::Ack(CreditCode::UNLIMITED);
    // A message's last packet asks for an acknowledgement.
    let asks = !matches!(operation, Operation::SendFirst | Operation::SendMiddle);
    rc_packet(source, operation, psn, asks, syndrome)
}

fn nak(psn: u32, syndrome: Syndrome) -> Sent {
    rc_packet(UROCE, Operation::Acknowledge, psn, false, syndrome)
}

fn rc_packet(source: IpAddr, operation: Operation, psn: u32, asks: bool, syndrome: Syndrome) -> Sent {
    let destination = if source == UROCE { RXE } else { UROCE };
    let (extended, payload): (_, &[u8]) = match operation {
        Operation::Acknowledge
        | Operation::ReadResponseFirst
        | Operation::ReadResponseLast
        | Operation::ReadResponseOnly => (Extended::Aeth(Aeth { syndrome, msn: Msn::new(1) }), &[]),
        Operation::ReadRequest => (Extended::Reth(Reth { address: 0x1000, rkey: RKey(7), length: 4096 }), &[]),
        _ => (Extended::None, &[0x5a; 64]),
    };
    let bth = Bth::new(Opcode::rc(operation), Qpn::new(0x11), Psn::new(psn));
    let repr = Repr::new(Bth { ack_request: asks, ..bth }, extended);
    let header = DatagramHeader {
        source,
        destination,
        source_port: ROCE_PORT,
        traffic_class: 0,
        hop_limit: 64,
        ip_id: psn as u16,
        udp_checksum: false,
    };
    let mut bytes = packet(repr, payload);
    Flow::new(source, destination, ROCE_PORT).stamp(header.ip_id, &mut bytes);
    Sent { header, bytes }
}

/// SENDs of one packet each from uroce to rxe.
fn sends<const N: usize>(psns: [u32; N]) -> Vec<Sent> {
    psns.map(|psn| sent_by(UROCE, Operation::SendOnly, psn)).to_vec()
}

/// What is read of a pcap file of raw IP packets.
fn capture(packets: &[Sent]) -> Packets {
    const RAW_IP: u32 = 101;
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    // Magic number, version 2.4, time zone, accuracy, snap length, link type.
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, RAW_IP]);
    for sent in packets {
        let mut bytes = Vec::new();
        sent.header.emit(&sent.bytes, &mut bytes);
        file.extend(words(&[0, 0, bytes.len() as u32, bytes.len() as u32]));
        file.extend(bytes);
    }
    Packets::read_from(CaptureReader::new(&file[..]).unwrap(), UROCE)
}

/// What happened to packets that uroce sent.
fn happened(sent: &[Sent], came: &[Sent]) -> Vec<(Fate, usize, usize)> {
    let (sent, came) = (capture(sent), capture(came));
    let [sent, came] = [&sent, &came].map(|packets| packets.list.iter().collect::<Vec<&Seen>>());
    let found = differences(&sent, &came);
    found.into_iter().map(|Difference { fate, sent, came }| (fate, sent, came)).collect()
}

#[test]
fn what_came_as_it_was_sent_is_not_told() {
    let packets = sends([1, 2, 3]);
    assert_eq!(happened(&packets, &packets), []);
    assert_eq!(compare(Point("here", &capture(&packets)), Point("there", &capture(&packets))), None);
}

#[test]
fn the_number_that_a_kernel_gives_is_not_compared() {
    let packets = sends([1, 2, 3]);
    let mut renumbered = packets.clone();
    for packet in &mut renumbered {
        packet.header.ip_id = 0;
        Flow::new(UROCE, RXE, ROCE_PORT).stamp(0, &mut packet.bytes);
    }
    assert_eq!(happened(&packets, &renumbered), []);
}

#[test]
fn a_lost_packet_is_named_with_what_came_next() {
    assert_eq!(happened(&sends([1, 2, 3]), &sends([1, 3])), [(Fate::Lost, 1, 1)]);
    assert_eq!(happened(&sends([1, 2, 3]), &sends([1, 2])), [(Fate::Lost, 2, 2)]);
}

/// It is sent again because it was lost: the first is, and not the second.
#[test]
fn a_lost_packet_is_not_mistaken_for_its_repetition() {
    assert_eq!(happened(&sends([1, 2, 3, 1, 2, 3]), &sends([2, 3, 1, 2, 3])), [(Fate::Lost, 0, 0)]);
    assert_eq!(happened(&sends([1, 2, 3, 3, 4]), &sends([1, 2, 3, 4])).len(), 1);
}

#[test]
fn a_packet_that_comes_twice_is_told_from_one_that_nobody_sent() {
    assert_eq!(happened(&sends([1, 2, 3]), &sends([1, 2, 3, 2])), [(Fate::Repeated, 3, 3)]);
    assert_eq!(happened(&sends([1, 2, 3]), &sends([1, 9, 2, 3])), [(Fate::Unsent, 1, 1)]);
}

#[test]
fn packets_that_change_places_are_neither_lost_nor_unsent() {
    assert_eq!(happened(&sends([1, 2, 3, 4]), &sends([2, 3, 1, 4])), [(Fate::Overtaken(2), 0, 2)]);
    assert_eq!(happened(&sends([1, 2, 3, 4]), &sends([4, 1, 2, 3])), [(Fate::Early(3), 3, 0)]);
}

#[test]
fn a_damaged_packet_is_compared_field_by_field() {
    let packets = sends([1, 2, 3]);
    let change = |change: fn(&mut Sent)| {
        let mut came = packets.clone();
        change(&mut came[1]);
        match &happened(&packets, &came)[..] {
            [(Fate::Changed(what), 1, 1)] => what.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(change(|packet| packet.bytes[11] ^= 1), "PSN (byte 11) 0x02 → 0x03, ICRC right → wrong");
    assert_eq!(change(|packet| packet.bytes[20] ^= 0x80), "payload (byte 20) 0x5a → 0xda, ICRC right → wrong");
    assert_eq!(change(|packet| *packet.bytes.last_mut().unwrap() ^= 1), "ICRC right → wrong");
    assert_eq!(change(|packet| packet.header.traffic_class = 3), "traffic class 0 → 3");
    // A number that changes on the way shows in the ICRC, which covers it.
    assert_eq!(change(|packet| packet.header.ip_id += 1), "ICRC right → wrong");
}

/// One is lost, and the next is damaged.
#[test]
fn a_damaged_packet_is_not_mistaken_for_the_lost_one_before_it() {
    let mut came = sends([1, 3, 4]);
    came[1].bytes[30] ^= 1;
    let happened = happened(&sends([1, 2, 3, 4]), &came);
    assert_eq!(happened[0], (Fate::Lost, 1, 1));
    assert!(matches!(happened[1], (Fate::Changed(_), 2, 1)), "{happened:?}");
    assert_eq!(happened.len(), 2);
}

#[test]
fn each_direction_is_told_in_words() {
    let ack = |psn| sent_by(RXE, Operation::Acknowledge, psn);
    let near = capture(&[sends([1, 2]), vec![ack(1), ack(2)]].concat());
    let far = capture(&[sends([1]), vec![ack(1), ack(2)]].concat());
    let words = compare(Point("uroce's link", &near), Point("rxe's card", &far)).unwrap();
    assert_eq!(
        words,
        "
      of the 2 packets that uroce sent, 1 differ between uroce's link and rxe's card; the first was lost:
        uroce's link: packet 2: 10.77.0.2 → 10.77.0.1  RC SEND Only QP=0x000011 PSN=0x000002 A Len=64
      and what came next was
        rxe's card: nothing more"
    );
    // Seen from the other end.
    let words = compare(Point("uroce's link", &far), Point("rxe's card", &near)).unwrap();
    assert!(words.contains("of the 1 packets that uroce sent") && words.contains("was never sent:\n"), "{words}");
}

#[test]
fn the_first_packet_of_a_disturbed_exchange_is_told() {
    let oddity = |packets: &[Sent]| capture(packets).first_oddity().unwrap_or_default();
    let ack = |psn| sent_by(UROCE, Operation::Acknowledge, psn);
    assert_eq!(oddity(&[sends([1, 2]), vec![ack(2)], sends([3])].concat()), "");
    let told = oddity(&[sends([1, 2]), vec![ack(2)], sends([4, 3])].concat());
    assert!(
        told.starts_with("a PSN is left out:\n      packet 2:") && told.ends_with("PSN=0x000004 A Len=64"),
        "{told}"
    );
    let told = oddity(&[sends([1, 2]), vec![ack(2)], sends([2, 3])].concat());
    assert!(told.starts_with("a request is sent again:") && told.ends_with("PSN=0x000002 A Len=64"), "{told}");
    assert!(
        oddity(&[sends([1]), vec![nak(1, Syndrome::RnrNak(1))]].concat()).starts_with("a receiver that is not ready:")
    );
    assert!(
        oddity(&[sends([1]), vec![nak(1, Syndrome::Nak(NakCode::RemoteAccess))]].concat())
            .starts_with("a request is refused:")
    );
    // A READ takes as many PSNs as its answer has packets.
    let read = sent_by(UROCE, Operation::ReadRequest, 1);
    assert_eq!(oddity(&[vec![read], sends([5])].concat()), "");
    let mut damaged = sends([1, 2]);
    damaged[1].bytes[30] ^= 1;
    assert!(oddity(&damaged).starts_with("a damaged packet:"));
}

/// docs/rxe-findings.md, "renumbers": pieces of a real exchange. rxe goes back twice, the first time as it should.
#[test]
fn captured_renumbered_requests_are_recognised() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop_rxe/renumbered.pcap");
    let spoilt = Packets::read(&path, UROCE);
    let told = spoilt.renumbered().expect("it is");
    let [was, is] = told.split("\n      ").collect::<Vec<_>>()[..] else { panic!("{told}") };
    assert!(was.starts_with("packet 3:") && was.ends_with("SEND First QP=0x00bc0e PSN=0x0000f0 Len=1024"), "{was}");
    assert!(is.starts_with("packet 18:") && is.ends_with("SEND Only QP=0x00bc0e PSN=0x0000f0 A Len=0"), "{is}");
    let before = Packets { list: spoilt.list[..17].to_vec() };
    assert_eq!((before.renumbered(), before.first_oddity().is_some()), (None, true));
}

/// The same, as it was seen first.
#[test]
fn renumbered_requests_are_recognised() {
    const LENGTH: u32 = 64;
    let message = |first: u32| {
        (0..LENGTH).map(move |i| {
            let operation = match i {
                0 => Operation::SendFirst,
                i if i == LENGTH - 1 => Operation::SendLast,
                _ => Operation::SendMiddle,
            };
            sent_by(RXE, operation, first + i)
        })
    };
    let first_of = |psn| sent_by(RXE, Operation::SendFirst, psn);
    let sent: Vec<_> = message(0x9c_8510).chain(message(0x9c_8550)).chain([first_of(0x9c_8590)]).collect();
    let again: Vec<_> = message(0x9c_8511).chain(message(0x9c_8551)).chain([first_of(0x9c_8591)]).collect();
    let spoilt = capture(&[sent.clone(), again].concat()).renumbered().expect("it is");
    let [was, is] = spoilt.split("\n      ").collect::<Vec<_>>()[..] else { panic!("{spoilt}") };
    assert!(was.starts_with("packet 2:") && was.contains("Middle") && was.contains("PSN=0x9c8511"), "{was}");
    assert!(is.starts_with("packet 130:") && is.contains("First") && is.contains("PSN=0x9c8511"), "{is}");
    // The same messages again under their own numbers, from the first and from within.
    assert_eq!(capture(&[sent.clone(), sent.clone()].concat()).renumbered(), None);
    assert_eq!(capture(&[sent.clone(), sent[70..].to_vec()].concat()).renumbered(), None);
    // uroce's own requests may have the same numbers, and so may its answers.
    let ours = (0..LENGTH).map(|i| sent_by(UROCE, Operation::SendOnly, 0x9c_8510 + i)).collect();
    assert_eq!(capture(&[sent, ours].concat()).renumbered(), None);
}

#[test]
fn a_read_that_goes_on_and_answers_of_the_same_number_are_not_renumbered_requests() {
    let packet = |operation, psn| sent_by(RXE, operation, psn);
    let packets = [
        packet(Operation::ReadRequest, 0x100),
        packet(Operation::SendOnly, 0x104),
        // What was answered of the READ is not asked for again.
        packet(Operation::ReadRequest, 0x102),
        packet(Operation::SendOnly, 0x104),
        // Answers to what the other side asks bear that side's numbers.
        packet(Operation::ReadResponseOnly, 0x102),
        packet(Operation::Acknowledge, 0x104),
    ];
    assert_eq!(capture(&packets).renumbered(), None);
}

#[test]
fn a_damaged_opcode_is_no_renumbered_request() {
    let mut packets: Vec<_> = [0x100, 0x100].map(|psn| sent_by(RXE, Operation::SendOnly, psn)).to_vec();
    packets[1].bytes[0] = Opcode::rc(Operation::SendMiddle).to_byte();
    assert_eq!(capture(&packets).renumbered(), None);
}

/// docs/rxe-findings.md, "stops": the packets that it tells of.
#[test]
fn a_requester_that_stops_and_sends_again_unasked_is_recognised() {
    let sent = |operation, psn| sent_by(RXE, operation, psn);
    let ack = |psn| sent_by(UROCE, Operation::Acknowledge, psn);
    let (first, middle, last) = (Operation::SendFirst, Operation::SendMiddle, Operation::SendLast);
    let begun = vec![sent(last, 0x38), sent(first, 0x39), ack(0x38), sent(middle, 0x3a)];
    let again = vec![sent(first, 0x39), sent(middle, 0x3a), ack(0x3a)];
    let told = capture(&[begun.clone(), again.clone()].concat()).repeated_unasked().expect("it has");
    assert!(told.contains("packet 5:") && told.contains("SEND First") && told.contains("PSN=0x000039"), "{told}");
    // With an answer missing or negative there is a reason to.
    let without_the_ack = [&begun[..2], &begun[3..], &again[..]].concat();
    assert_eq!(capture(&without_the_ack).repeated_unasked(), None);
    for syndrome in [Syndrome::Nak(NakCode::PsnSequence), Syndrome::RnrNak(1)] {
        let refused = [begun.clone(), vec![nak(0x39, syndrome)], again.clone()].concat();
        assert_eq!(capture(&refused).repeated_unasked(), None);
    }
    let asked_for = [begun, vec![sent(last, 0x3b)], again].concat();
    assert_eq!(capture(&asked_for).repeated_unasked(), None);
    // A READ is not answered before its last response.
    let read = |psn| sent(Operation::ReadRequest, psn);
    let response = |operation, psn| sent_by(UROCE, operation, psn);
    let half = response(Operation::ReadResponseFirst, 0x100);
    let packets = [read(0x100), half.clone(), response(Operation::ReadResponseMiddle, 0x101), read(0x100)];
    assert_eq!(capture(&packets).repeated_unasked(), None);
    let packets = [read(0x100), half, response(Operation::ReadResponseLast, 0x101), read(0x100)];
    assert!(capture(&packets).repeated_unasked().is_some());
}

/// What rxe did on a bad network, at full length, is never called renumbered, whichever side is taken for uroce. Where the
/// wire gave other opcodes to packets, it is.
#[test]
fn of_the_captured_exchanges_only_those_with_rewritten_opcodes_seem_renumbered() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("pcaps");
    let (mut found, mut count) = (BTreeSet::new(), 0);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "pcap") {
            continue;
        }
        for ours in [UROCE, RXE] {
            let packets = Packets::read(&path, ours);
            if packets.renumbered().is_some() {
                found.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
            }
            count += packets.list.len();
        }
    }
    assert_eq!(found, ["mut_send_middle".to_owned()].into());
    assert!(count > 3000, "{count} packets");
}
