//! Any bytes as a packet, and as a frame of every link layer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uroce_protocol::wire::{Frame, LinkLayer, Packet, Repr};

fuzz_target!(|bytes: &[u8]| {
    check_packet(bytes);
    for link_layer in [LinkLayer::Ethernet, LinkLayer::Ip, LinkLayer::LinuxSll, LinkLayer::LinuxSll2] {
        if let Ok(frame) = Frame::parse(link_layer, bytes) {
            let _ = (frame.check_icrc(), frame.segments().count(), frame.to_string());
            check_packet(frame.packet());
        }
    }
});

/// Whatever decodes encodes to the same bytes.
fn check_packet(bytes: &[u8]) {
    let Ok(packet) = Packet::new_checked(bytes) else { return };
    let repr = Repr::parse(&packet);
    let mut header = [0; Repr::MAX_LEN];
    let header_len = repr.emit(&mut header);
    assert_eq!(header[..header_len], bytes[..header_len]);
    assert_eq!(header_len + packet.payload().len() + usize::from(repr.bth.pad) + Packet::ICRC_LEN, bytes.len());
    let _ = (packet.to_string(), packet.icrc());
}
