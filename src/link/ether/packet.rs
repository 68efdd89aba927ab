//! Frames through a packet socket (`man 7 packet`) on a network interface.
//!
//! Frames bear a small header (`PACKET_VNET_HDR`) by which the kernel takes a whole train as one frame and cuts it up
//! behind us, and says of a frame that it has put together, or not yet cut up, how long the packets in it are.

use super::{
    ETHERNET_LEN, EtherConfig, MAX_HEAD_LEN, MacAddress, ReceivedFrame, UDP_LEN, Wire, neighbours::solicited_node,
};
use crate::link::{LinkLimits, sys, udp};
use etherparse::{IpNumber, checksum::Sum16BitWords};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg};
use socket2::{Domain, SockFilter, Socket, Type};
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
};
use uroce_protocol::wire::ROCE_PORT;

/// The receive buffer to ask for, in bytes. The kernel silently grants `net.core.rmem_max` at most.
const RECEIVE_BUFFER: usize = 8 << 20;
const SEND_BUFFER: usize = 4 << 20;

/// `struct virtio_net_hdr`, in the byte order of the machine.
const VNET_LEN: usize = 10;
const VNET_NEEDS_CHECKSUM: u8 = 1;
const VNET_GSO_UDP: u8 = 5;
const UDP_CHECKSUM_AT: u16 = 6;

// linux/if_packet.h
const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;

#[derive(Debug)]
pub(super) struct PacketWire {
    socket: Socket,
    /// The interface's number.
    interface: u32,
    /// Holds port 4791 of an address that is shared with the kernel.
    _claim: Option<Socket>,
}

/// What an interface makes of the link.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) mac: MacAddress,
    /// The kernel does not have the address: who asks for it, asks us.
    pub(super) is_claimed: bool,
    pub(super) limits: LinkLimits,
}

impl PacketWire {
    pub(super) fn open(name: &str, config: &EtherConfig) -> io::Result<(Self, Station)> {
        let interface = sys::interface_named(name)?;
        let own_mac = sys::ethernet_address(&interface)?.map(MacAddress).filter(|mac| mac.is_unicast());
        let Some(own_mac) = own_mac else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name} is not an Ethernet interface; for the loopback interface take the udp link"),
            ));
        };
        let holder = sys::interface_of(config.address)?;
        let is_claimed = holder.is_none();
        if let Some(holder) = holder.filter(|holder| holder.name != name) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is an address of {}, not of {name}", config.address, holder.name),
            ));
        }
        let mac = config.mac.unwrap_or(if is_claimed { MacAddress::of_station(config.address) } else { own_mac });

        let socket = Socket::new(Domain::PACKET, Type::RAW, None).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => io::Error::new(
                error.kind(),
                format!(
                    "a packet socket on {name} takes root, or CAP_NET_RAW (`setcap cap_net_raw+ep` on the program)"
                ),
            ),
            _ => error,
        })?;
        socket.set_nonblocking(true)?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        socket.set_send_buffer_size(SEND_BUFFER)?;
        sys::set_option(socket.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
        sys::set_option(socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        // Bound last: a socket without a filter takes in everything.
        socket.attach_filter(&filter(config.address))?;
        if mac != own_mac {
            sys::set_packet_membership(socket.as_fd(), interface.index, libc::PACKET_MR_UNICAST, mac.0, true)?;
        }
        if let (true, IpAddr::V6(address)) = (is_claimed, config.address) {
            let group = MacAddress::of_multicast(solicited_node(address).into());
            sys::set_packet_membership(socket.as_fd(), interface.index, libc::PACKET_MR_MULTICAST, group.0, true)?;
        }
        sys::bind_packets(&socket, &interface)?;
        let claim = if is_claimed { None } else { Some(udp::hold(config.address, &interface)?) };
        let limits = LinkLimits {
            network_mtu: interface.mtu,
            train_segments: udp::MAX_SEGMENTS,
            receive_capacity: udp::receive_capacity(socket.recv_buffer_size()?),
            speed: interface.speed,
            interface: Some(interface.index),
        };
        Ok((Self { socket, interface: interface.index, _claim: claim }, Station { mac, is_claimed, limits }))
    }
}

impl Wire for PacketWire {
    fn send(&self, head: &[u8], body: &[u8], segment_size: Option<u16>) -> io::Result<()> {
        let mut vnet = [0; VNET_LEN];
        let mut own_head = [0; MAX_HEAD_LEN];
        let mut head = head;
        if let Some(segment_size) = segment_size {
            vnet = offload(head.len(), segment_size);
            let own_head = &mut own_head[..head.len()];
            own_head.copy_from_slice(head);
            begin_checksum(own_head);
            head = own_head;
        }
        let parts = [IoSlice::new(&vnet), IoSlice::new(head), IoSlice::new(body)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match sendmsg(&self.socket, &parts, &mut SendAncillaryBuffer::default(), flags) {
                Err(rustix::io::Errno::INTR) => {}
                result => return result.map(drop).map_err(io::Error::from),
            }
        }
    }

    fn receive(&self, head: &mut [u8], body: &mut [u8]) -> io::Result<Option<ReceivedFrame>> {
        let mut vnet = [0; VNET_LEN];
        loop {
            let mut parts = [IoSliceMut::new(&mut vnet), IoSliceMut::new(head), IoSliceMut::new(body)];
            match recvmsg(&self.socket, &mut parts, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
                // No frame is longer than the buffer.
                Ok(received) if received.flags.contains(ReturnFlags::TRUNC) => {}
                Ok(received) => {
                    let length = received.bytes.saturating_sub(VNET_LEN);
                    return Ok(Some(ReceivedFrame { length, segment_size: merged_segment_size(&vnet) }));
                }
            }
        }
    }

    fn set_membership(&self, group: MacAddress, joined: bool) -> io::Result<()> {
        sys::set_packet_membership(self.socket.as_fd(), self.interface, libc::PACKET_MR_MULTICAST, group.0, joined)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Says that the body behind a head of `head_len` bytes is to be cut up, and each packet to get a checksum.
fn offload(head_len: usize, segment_size: u16) -> [u8; VNET_LEN] {
    let mut vnet = [0; VNET_LEN];
    vnet[0] = VNET_NEEDS_CHECKSUM;
    vnet[1] = VNET_GSO_UDP;
    vnet[2..4].copy_from_slice(&(head_len as u16).to_ne_bytes());
    vnet[4..6].copy_from_slice(&segment_size.to_ne_bytes());
    vnet[6..8].copy_from_slice(&((head_len - UDP_LEN) as u16).to_ne_bytes());
    vnet[8..10].copy_from_slice(&UDP_CHECKSUM_AT.to_ne_bytes());
    vnet
}

/// The size of the packets that a frame consists of, if it consists of several.
fn merged_segment_size(vnet: &[u8; VNET_LEN]) -> Option<usize> {
    let segment_size = usize::from(u16::from_ne_bytes([vnet[4], vnet[5]]));
    (vnet[1] == VNET_GSO_UDP && segment_size > 0).then_some(segment_size)
}

/// Writes into the UDP checksum what the kernel goes on from: the sum of the pseudo-header, not inverted.
fn begin_checksum(head: &mut [u8]) {
    let udp_at = head.len() - UDP_LEN;
    let is_ipv4 = udp_at == ETHERNET_LEN + 20;
    let addresses = if is_ipv4 { &head[ETHERNET_LEN + 12..udp_at] } else { &head[ETHERNET_LEN + 8..udp_at] };
    let sum = Sum16BitWords::new()
        .add_slice(addresses)
        .add_2bytes([0, IpNumber::UDP.0])
        .add_2bytes([head[udp_at + 4], head[udp_at + 5]]);
    head[udp_at + 6..].copy_from_slice(&(!sum.ones_complement()).to_ne_bytes());
}

/// One step of a filter that takes a packet or leaves it.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Loads one, two or four bytes (`BPF_B`, `BPF_H`, `BPF_W`) of the frame.
    Load(u32, u32),
    /// Keeps these bits of what was loaded.
    Mask(u32),
    /// Leaves the packet unless what was loaded is this.
    Require(u32),
    /// Takes the packet if what was loaded is this.
    TakeIf(u32),
}

/// What a link at `address` wants of all that comes through an interface: RoCE for it and for groups, and what
/// neighbours say. User space looks again; this keeps everything else from being copied there.
fn filter(address: IpAddr) -> Vec<SockFilter> {
    use Step::{Load, Mask, Require, TakeIf};
    const ETHER_TYPE: Step = Load(libc::BPF_H, 12);
    // What the kernel knows of a frame is at negative offsets. A tag that only gives a priority does no harm.
    let mut steps =
        vec![Load(libc::BPF_H, (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG) as u32), Mask(0xfff), Require(0), ETHER_TYPE];
    match address {
        IpAddr::V4(address) => steps.extend([
            TakeIf(0x0806),
            Require(0x0800),
            // No options.
            Load(libc::BPF_B, 14),
            Require(0x45),
            // No fragment.
            Load(libc::BPF_H, 20),
            Mask(0x3fff),
            Require(0),
            Load(libc::BPF_B, 23),
            Require(IpNumber::UDP.0.into()),
            Load(libc::BPF_H, 36),
            Require(ROCE_PORT.into()),
            Load(libc::BPF_W, 30),
            TakeIf(address.to_bits()),
            Mask(0xf000_0000),
            Require(0xe000_0000),
        ]),
        IpAddr::V6(address) => {
            steps.extend([
                Require(0x86dd),
                Load(libc::BPF_B, 20),
                TakeIf(IpNumber::IPV6_ICMP.0.into()),
                Require(IpNumber::UDP.0.into()),
                Load(libc::BPF_H, 56),
                Require(ROCE_PORT.into()),
                Load(libc::BPF_B, 38),
                TakeIf(0xff),
            ]);
            for (at, word) in (38..).step_by(4).zip(address.octets().chunks(4)) {
                steps.extend([
                    Load(libc::BPF_W, at),
                    Require(word.iter().fold(0, |word, &byte| word << 8 | u32::from(byte))),
                ]);
            }
        }
    }
    let end = steps.len();
    let mut program: Vec<_> = steps
        .into_iter()
        .enumerate()
        .map(|(at, step)| {
            let to_take = (end - at - 1) as u8;
            match step {
                Load(size, offset) => instruction(libc::BPF_LD | libc::BPF_ABS | size, 0, 0, offset),
                Mask(bits) => instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, bits),
                Require(value) => instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, to_take + 1, value),
                TakeIf(value) => instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, to_take, 0, value),
            }
        })
        .collect();
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX));
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0));
    program
}

const fn instruction(code: u32, if_true: u8, if_false: u8, operand: u32) -> SockFilter {
    SockFilter::new(code as u16, if_true, if_false, operand)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use uroce_protocol::wire::DatagramHeader;

    fn header(source: &str, destination: &str) -> DatagramHeader {
        DatagramHeader {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            source_port: 50_000,
            traffic_class: 0,
            hop_limit: 64,
            ip_id: 7,
            udp_checksum: false,
        }
    }

    fn frame(header: &DatagramHeader, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend(if header.source.is_ipv4() { [8, 0] } else { [0x86, 0xdd] });
        header.emit(packet, &mut frame);
        frame
    }

    /// Which of the frames the kernel lets through the filter of a link at `address`. Filters work on any socket.
    fn let_through(address: &str, frames: &[Vec<u8>]) -> Vec<bool> {
        let (near, far) = UnixDatagram::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let near = Socket::from(std::os::fd::OwnedFd::from(near));
        near.attach_filter(&filter(address.parse().unwrap())).unwrap();
        let near = UnixDatagram::from(std::os::fd::OwnedFd::from(near));
        // The send itself may fail when the filter leaves the datagram.
        let passes = |frame: &Vec<u8>| {
            let _ = far.send(frame);
            near.recv(&mut [0; 256]).is_ok_and(|length| length == frame.len())
        };
        frames.iter().map(passes).collect()
    }

    fn changed(frame: &[u8], at: usize, value: u8) -> Vec<u8> {
        let mut frame = frame.to_vec();
        frame[at] = value;
        frame
    }

    #[test]
    fn over_ipv4_only_roce_for_us_and_arp_get_through() {
        let ours = frame(&header("10.77.0.2", "10.77.0.1"), &[0; 32]);
        let frames = [
            ours.clone(),
            frame(&header("10.77.0.2", "224.1.2.3"), &[0; 32]),
            changed(&changed(&ours, 12, 8), 13, 6),
            // Another address, port, protocol, Ethernet type; options; fragments.
            changed(&ours, 33, 9),
            changed(&ours, 37, 0),
            changed(&ours, 23, 6),
            changed(&ours, 12, 0x86),
            changed(&ours, 14, 0x46),
            changed(&ours, 20, 0x20),
            changed(&ours, 21, 1),
            ours[..30].to_vec(),
        ];
        let passed = let_through("10.77.0.1", &frames);
        assert_eq!(passed, [true, true, true, false, false, false, false, false, false, false, false]);
    }

    #[test]
    fn over_ipv6_only_roce_for_us_and_discovery_get_through() {
        let ours = frame(&header("fd00:77::2", "fd00:77::1"), &[0; 32]);
        let frames = [
            ours.clone(),
            frame(&header("fd00:77::2", "ff0e::5"), &[0; 32]),
            changed(&ours, 20, 58),
            // Another address, port, protocol, Ethernet type.
            changed(&ours, 53, 9),
            changed(&ours, 40, 9),
            changed(&ours, 57, 0),
            changed(&ours, 20, 6),
            changed(&ours, 13, 0),
            ours[..50].to_vec(),
        ];
        let passed = let_through("fd00:77::1", &frames);
        assert_eq!(passed, [true, true, true, false, false, false, false, false, false]);
    }

    #[test]
    fn the_kernel_can_go_on_with_the_checksum() {
        for (source, destination) in [("10.77.0.2", "10.77.0.1"), ("fd00:77::2", "fd00:77::1")] {
            let packet: Vec<u8> = (0..101).collect();
            let header = header(source, destination);
            let whole = frame(&DatagramHeader { udp_checksum: true, ..header }, &packet);
            let mut begun = frame(&header, &packet);
            let head_len = begun.len() - packet.len();
            begin_checksum(&mut begun[..head_len]);
            let udp_at = head_len - UDP_LEN;
            let checksum = Sum16BitWords::new().add_slice(&begun[udp_at..]).ones_complement();
            assert_eq!(checksum.to_ne_bytes(), whole[udp_at + 6..head_len]);
        }
    }
}
