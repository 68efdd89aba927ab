//! Somebody on the network who may send whatever he likes.

use std::net::IpAddr;
use uroce::link::{Link, ReceiveBuffer, Train, UdpConfig, UdpLink};
use uroce_protocol::{
    Instant, Psn,
    wire::{Bth, Extended, Opcode, Operation, Packet, Qpn, ROCE_PORT, Repr, Service, Syndrome, icrc::Flow},
};

/// A socket at an address of its own.
pub struct Sender {
    link: UdpLink,
}

impl Sender {
    pub fn new() -> Self {
        Self { link: UdpLink::open_loopback(&UdpConfig::default()).unwrap() }
    }

    pub fn address(&self) -> IpAddr {
        self.link.address()
    }

    /// Sends a packet of any service but XRC.
    pub fn send(
        &self,
        to: IpAddr,
        service: Service,
        operation: Operation,
        (qpn, psn): (Qpn, Psn),
        extended: Extended,
        payload: &[u8],
    ) {
        let bth = Bth::new(Opcode::new(service, operation).unwrap(), qpn, psn);
        self.send_packet(to, Repr::new(bth, extended), payload);
    }

    /// Sends a packet with any header; pad and ICRC are made right.
    pub fn send_packet(&self, to: IpAddr, header: Repr, payload: &[u8]) {
        self.send_bytes(to, packet(header, payload));
    }

    /// Sends any bytes, of which the last four become their right ICRC.
    pub fn send_bytes(&self, to: IpAddr, mut bytes: Vec<u8>) {
        Flow::new(self.link.address(), to, ROCE_PORT).stamp(0, &mut bytes);
        let train = Train {
            destination: to,
            source_port: ROCE_PORT,
            traffic_class: 0,
            hop_limit: None,
            segment_size: bytes.len(),
            bytes: &bytes,
        };
        self.link.send(Instant::ZERO, &train).unwrap();
    }

    /// The operations and syndromes of what has arrived, and has not been asked for yet.
    pub fn answers(&self) -> Vec<(Operation, Option<Syndrome>)> {
        let mut buffer = ReceiveBuffer::new();
        let mut answers = Vec::new();
        while let Some(arrival) = self.link.receive(Instant::ZERO, &mut buffer).unwrap() {
            for segment in buffer.segments(&arrival) {
                let packet = Packet::new_checked(segment).expect("devices send packets");
                answers.push((packet.opcode().operation(), packet.aeth().map(|aeth| aeth.syndrome)));
            }
        }
        answers
    }

    /// Waits for the next answer, which must be the only one.
    pub fn answer(&self) -> (Operation, Option<Syndrome>) {
        let mut answers = Vec::new();
        super::eventually("an answer", || {
            answers.extend(self.answers());
            !answers.is_empty()
        });
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers[0]
    }
}

/// A packet with its pad, and room for its ICRC.
pub fn packet(mut header: Repr, payload: &[u8]) -> Vec<u8> {
    header.bth.pad = Bth::pad_for(payload.len());
    let mut bytes = vec![0; header.header_len()];
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + usize::from(header.bth.pad) + Packet::ICRC_LEN, 0);
    bytes
}
