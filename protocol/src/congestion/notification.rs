//! The notification point: a receiver of marked packets tells their sender.

use super::ParameterError;
use crate::{
    Instant, Psn,
    time::Duration,
    wire::{Bth, Extended, Opcode, Operation, PKey, Packet, Qpn, Repr},
    work::{AddressVector, Source, Transmit},
};

/// A CNP's payload: sixteen reserved bytes (IBTA annex A17.9.3).
const RESERVED: [u8; 16] = [0; 16];

/// ECN-capable transport, codepoint 0 (RFC 3168): what hardware puts on CNPs too.
const ECT0: u8 = 0b10;

/// How a device notifies, under mlx5's names (its debugfs directory `cc_params`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotificationParameters {
    /// The least time between two notifications of one flow. mlx5's default is 4 µs, the paper has N = 50 µs.
    /// mlx5's range is 0 … 4095 µs.
    pub np_min_time_between_cnps: Duration,
    /// The DSCP of notifications, 0 … 63; mlx5's default, and in the captured CNP, is 48 (CS6).
    pub np_cnp_dscp: u8,
    /// The 802.1p priority of notifications, 0 … 7; mlx5's default is 6. Links that write no VLAN tag leave it to
    /// the system what to do with it.
    pub np_cnp_prio: u8,
    /// Answer packets that are marked by the FECN bit of their BTH as well. InfiniBand's switches mark there (IBTA
    /// annex A10); on RoCE v2 the mark is ECN in the IP header, and FECN has no meaning (annex A17).
    pub fecn: bool,
}

impl NotificationParameters {
    /// What mlx5 begins with.
    pub const MLX5: Self =
        Self { np_min_time_between_cnps: Duration::from_micros(4), np_cnp_dscp: 48, np_cnp_prio: 6, fecn: false };

    /// What the DCQCN paper uses: mlx5's, but notifications 50 µs apart.
    pub const PAPER: Self = Self { np_min_time_between_cnps: Duration::from_micros(50), ..Self::MLX5 };

    /// Sets the parameter that mlx5 calls `name` to a value in mlx5's unit (µs for times).
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), ParameterError> {
        match (name, value) {
            ("np_min_time_between_cnps", 0..=4095) => self.np_min_time_between_cnps = Duration::from_micros(value),
            ("np_cnp_dscp", 0..=63) => self.np_cnp_dscp = value as u8,
            ("np_cnp_prio", 0..=7) => self.np_cnp_prio = value as u8,
            ("np_min_time_between_cnps" | "np_cnp_dscp" | "np_cnp_prio", _) => {
                return Err(ParameterError::OutOfRange { name: name.into(), value });
            }
            _ => return Err(ParameterError::Unknown(name.into())),
        }
        Ok(())
    }

    /// The TOS or traffic class byte of notifications: the DSCP, and ECT(0) as ConnectX sends it.
    pub const fn traffic_class(&self) -> u8 {
        self.np_cnp_dscp << 2 | ECT0
    }
}

impl Default for NotificationParameters {
    fn default() -> Self {
        Self::MLX5
    }
}

/// Says when the sender of one flow is to be told that its packets arrive marked: at most once per interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotificationPoint {
    silent_until: Option<Instant>,
}

impl NotificationPoint {
    /// A flow of which nothing has been heard.
    pub const fn new() -> Self {
        Self { silent_until: None }
    }

    /// A packet of the flow has arrived, `marked` by a switch on its way or not. Returns whether the flow's sender
    /// is to be notified now.
    pub fn on_packet(&mut self, now: Instant, marked: bool, packet: &Packet<'_>, how: &NotificationParameters) -> bool {
        if !(marked || how.fecn && packet.bth().fecn)
            || !is_data(packet.opcode())
            || self.silent_until.is_some_and(|until| now < until)
        {
            return false;
        }
        self.silent_until = Some(now + how.np_min_time_between_cnps);
        true
    }
}

/// Whether a rate stands behind a packet that could be lowered. Bare acknowledgements leave as the other side's
/// data arrives, and a notification never answers a notification.
const fn is_data(opcode: Opcode) -> bool {
    !matches!(
        opcode.operation(),
        Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::CongestionNotification
    )
}

/// A congestion notification packet to the queue pair `destination`, which is to send more slowly: opcode 0x81, BECN,
/// PSN 0, sixteen zero bytes (IBTA annex A17.9.3), the same bytes as a ConnectX-4 Lx sends. Its traffic class is
/// [`NotificationParameters::traffic_class`], not that of the flow.
pub const fn congestion_notification(destination: Qpn, pkey: PKey, to: AddressVector) -> Transmit<'static> {
    let mut bth = Bth::new(Opcode::CNP, destination, Psn::new(0));
    bth.pkey = pkey;
    bth.becn = true;
    let header = Repr::new(bth, Extended::None);
    Transmit { header, source: Source::Inline(&RESERVED), to: Some(to), retransmission: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        testing::OwnedPacket,
        wire::{DatagramHeader, Frame, LinkLayer, icrc::Flow},
    };
    use std::net::IpAddr;

    const MARKED: bool = true;

    fn micros(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn packet(operation: Operation) -> OwnedPacket {
        let bth = Bth::new(Opcode::rc(operation), Qpn::new(2), Psn::new(7));
        let extended = match operation {
            Operation::Acknowledge => Extended::Aeth(crate::wire::Aeth {
                syndrome: crate::wire::Syndrome::Ack(crate::wire::CreditCode::UNLIMITED),
                msn: crate::wire::Msn::new(1),
            }),
            _ => Extended::None,
        };
        OwnedPacket::new(Repr::new(bth, extended), &[])
    }

    /// Which of the packets that arrive at these instants, all marked, are answered.
    fn answered(how: &NotificationParameters, arrivals: &[u64]) -> Vec<u64> {
        let (mut point, packet) = (NotificationPoint::new(), packet(Operation::SendOnly));
        let answers = |&at: &u64| point.on_packet(micros(at), MARKED, &packet.view(), how);
        arrivals.iter().copied().filter(answers).collect()
    }

    #[test]
    fn a_flow_is_told_once_an_interval() {
        let arrivals = [0, 1, 3, 4, 5, 7, 8, 49, 50, 51, 99, 100];
        assert_eq!(answered(&NotificationParameters::MLX5, &arrivals), [0, 4, 8, 49, 99]);
        assert_eq!(answered(&NotificationParameters::PAPER, &arrivals), [0, 50, 100]);
        let always = NotificationParameters { np_min_time_between_cnps: Duration::ZERO, ..Default::default() };
        assert_eq!(answered(&always, &[0, 0, 1]), [0, 0, 1]);
    }

    #[test]
    fn what_is_not_marked_is_not_answered_and_costs_no_interval() {
        let (mut point, packet) = (NotificationPoint::new(), packet(Operation::SendOnly));
        let how = NotificationParameters::MLX5;
        assert!(!point.on_packet(micros(0), false, &packet.view(), &how));
        assert!(point.on_packet(micros(1), MARKED, &packet.view(), &how));
    }

    #[test]
    fn acknowledgements_and_notifications_are_not_answered() {
        let how = NotificationParameters::MLX5;
        for packet in [packet(Operation::Acknowledge), packet(Operation::CongestionNotification)] {
            assert!(!NotificationPoint::new().on_packet(micros(0), MARKED, &packet.view(), &how), "{packet:?}");
        }
        let response = OwnedPacket::new(
            Repr::new(Bth::new(Opcode::rc(Operation::ReadResponseMiddle), Qpn::new(2), Psn::new(7)), Extended::None),
            &[1; 256],
        );
        assert!(NotificationPoint::new().on_packet(micros(0), MARKED, &response.view(), &how));
    }

    #[test]
    fn fecn_means_nothing_unless_it_is_asked_for() {
        let mut bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn::new(2), Psn::new(7));
        bth.fecn = true;
        let packet = OwnedPacket::new(Repr::new(bth, Extended::None), &[]);
        let mut how = NotificationParameters::MLX5;
        assert!(!NotificationPoint::new().on_packet(micros(0), false, &packet.view(), &how));
        how.fecn = true;
        assert!(NotificationPoint::new().on_packet(micros(0), false, &packet.view(), &how));
    }

    #[test]
    fn parameters_have_mlx5s_names_and_ranges() {
        let mut how = NotificationParameters::MLX5;
        how.set("np_min_time_between_cnps", 50).unwrap();
        how.set("np_cnp_dscp", 10).unwrap();
        how.set("np_cnp_prio", 3).unwrap();
        assert_eq!(how, NotificationParameters { np_cnp_dscp: 10, np_cnp_prio: 3, ..NotificationParameters::PAPER });
        assert_eq!(how.traffic_class(), 0x2a);
        for (name, value) in [("np_min_time_between_cnps", 4096), ("np_cnp_dscp", 64), ("np_cnp_prio", 8)] {
            assert_eq!(how.set(name, value), Err(ParameterError::OutOfRange { name: name.into(), value }));
        }
        assert_eq!(how.set("np_cnp", 1), Err(ParameterError::Unknown("np_cnp".into())));
    }

    /// The CNP of a ConnectX-4 Lx, from scapy's published test vectors: Ethernet header to ICRC.
    const CONNECTX4_CNP: &str = "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a";

    /// The same bytes, from IP header to ICRC, made by us for the same addresses, Identification and UDP port.
    #[test]
    fn a_notification_is_a_connectx_4_lxs_byte_for_byte() {
        let captured: Vec<u8> = (0..CONNECTX4_CNP.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&CONNECTX4_CNP[at..at + 2], 16).unwrap())
            .collect();
        let (source, destination): (IpAddr, IpAddr) = ([10, 0, 17, 1].into(), [10, 0, 18, 1].into());
        let (ip_id, source_port) = (0x718c, 0);

        let traffic_class = NotificationParameters::MLX5.traffic_class();
        let to = AddressVector { peer: destination, traffic_class, flow_label: 0, hop_limit: 64 };
        let transmit = congestion_notification(Qpn::new(0x118), PKey::DEFAULT, to);
        assert_eq!(transmit.to, Some(to));
        let Source::Inline(payload) = transmit.source else { panic!("a CNP has a payload") };
        let mut packet = vec![0; transmit.header.header_len()];
        transmit.header.emit(&mut packet);
        packet.extend_from_slice(payload);
        packet.resize(packet.len() + 4, 0);
        Flow::new(source, destination, source_port).stamp(ip_id, &mut packet);
        assert_eq!(packet[28..], [0x82, 0xfd, 0x00, 0x2a]);

        let header = DatagramHeader {
            source,
            destination,
            source_port,
            traffic_class,
            ip_id,
            hop_limit: 64,
            udp_checksum: false,
        };
        let mut bytes = Vec::new();
        header.emit(&packet, &mut bytes);
        assert_eq!(bytes, captured[14..]);
        assert_eq!(Frame::parse(LinkLayer::Ip, &bytes).unwrap().check_icrc(), Ok(()));
    }
}
