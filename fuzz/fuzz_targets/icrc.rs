//! Any packet between any addresses: every way to an ICRC leads to the same one, and any Identification is found.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;
use uroce_protocol::wire::{
    DatagramHeader, Frame, LinkLayer, Packet,
    icrc::{Flow, IpIdPolicy, restamp},
};

fuzz_target!(|input: (bool, [u8; 16], [u8; 16], u16, u16, u16, usize, Vec<u8>)| {
    let (is_ipv4, source, destination, source_port, ip_id, guess, split, mut bytes) = input;
    // Lengths that a frame may have: a BTH and an ICRC at least, what UDP holds at most.
    if !(16..=65_507).contains(&bytes.len()) {
        return;
    }
    let address = |octets: [u8; 16]| match octets {
        [a, b, c, d, ..] if is_ipv4 => IpAddr::from([a, b, c, d]),
        octets => IpAddr::from(octets),
    };
    let (source, destination) = (address(source), address(destination));
    let flow = Flow::new(source, destination, source_port);
    flow.stamp(ip_id, &mut bytes);

    let header =
        DatagramHeader { source, destination, source_port, traffic_class: 2, hop_limit: 64, ip_id, udp_checksum: true };
    let mut datagram = Vec::new();
    header.emit(&bytes, &mut datagram);
    let frame = Frame::parse(LinkLayer::Ip, &datagram).expect("an emitted datagram is read back");
    assert_eq!(frame.check_icrc(), Ok(()));

    let covered = &bytes[..bytes.len() - Packet::ICRC_LEN];
    let (head, tail) = covered.split_at(12 + split % (covered.len() - 11));
    let mut icrc = flow.start(ip_id, bytes.len(), head);
    icrc.update(tail);
    assert_eq!(icrc.finish(), frame.icrc());

    if let Ok(packet) = Packet::new_checked(&bytes) {
        let expected = if is_ipv4 { ip_id } else { guess };
        assert_eq!(flow.check(&packet, guess, IpIdPolicy::Any), Ok(expected));
    }
    if is_ipv4 {
        let mut again = bytes.clone();
        restamp(&mut again, ip_id, guess);
        flow.stamp(guess, &mut bytes);
        assert_eq!(again, bytes);
    }
});
