//! Which Ethernet address an IP address has: ARP (RFC 826) and IPv6 neighbour discovery (RFC 4861), asked and
//! answered, without I/O.
//!
//! A neighbour that has been heard of within [`FRESH`] is believed. Later it is asked again, while packets go on to
//! where it was; and whoever leaves [`QUESTIONS`] questions unanswered is forgotten, with the frames that waited for
//! the answer. What strangers say is only listened to when it is about a neighbour that packets go to, or when they
//! ask for us, and never grows the table beyond [`MOST_NEIGHBOURS`].

use super::MacAddress;
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, ArpPacketSlice, EtherType, Ethernet2HeaderSlice, Icmpv6Slice, Icmpv6Type, IpNumber,
    Ipv6HeaderSlice, PacketBuilder,
    icmpv6::{Icmpv6PayloadSlice, NdpOptionSlice, NdpOptionsIterator, NeighborAdvertisementHeader},
};
use rustc_hash::FxHashMap;
use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};
use uroce_protocol::Instant;

/// How long an answer is believed.
const FRESH: Duration = Duration::from_secs(30);
/// How long an answer may take before the question is repeated.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many questions in a row a neighbour may leave unanswered.
const QUESTIONS: u32 = 3;
/// How many neighbours are remembered.
const MOST_NEIGHBOURS: usize = 1024;
/// How many bytes of frames may wait for a neighbour's answer, or for room on the wire after it.
const MOST_WAITING: usize = 1 << 18;

/// What is known of the neighbours, and what has to be said to them.
#[derive(Debug)]
pub(super) struct Neighbours {
    address: IpAddr,
    mac: MacAddress,
    /// Whether questions for our address are ours to answer, rather than the kernel's.
    answers: bool,
    entries: FxHashMap<IpAddr, Neighbour>,
    /// Frames that are ready to be sent, in this order.
    outbox: VecDeque<Vec<u8>>,
    outbox_bytes: usize,
}

#[derive(Debug)]
struct Neighbour {
    /// Where it was last heard of; `None` while it has not been.
    mac: Option<MacAddress>,
    heard: Instant,
    /// How often it has been asked since, without an answer; 0 when nothing is asked of it.
    asked: u32,
    /// When it is asked again or forgotten, if something is asked of it.
    ask_again: Instant,
    /// Frames for it, their destination still to be filled in.
    waiting: Vec<Vec<u8>>,
    waiting_bytes: usize,
}

impl Neighbours {
    pub(super) fn new(address: IpAddr, mac: MacAddress, answers: bool) -> Self {
        Self { address, mac, answers, entries: FxHashMap::default(), outbox: VecDeque::new(), outbox_bytes: 0 }
    }

    /// Where to send frames for `neighbour`; `None` as long as that is not known, when [`Self::queue`] takes them, or
    /// other frames are still in front of them.
    pub(super) fn resolve(&mut self, now: Instant, neighbour: IpAddr) -> Option<MacAddress> {
        let entry = match self.entries.get_mut(&neighbour) {
            Some(entry) => entry,
            None => self.insert(now, neighbour),
        };
        if entry.asked == 0 && (entry.mac.is_none() || now - entry.heard >= FRESH) {
            entry.asked = 1;
            entry.ask_again = now + PATIENCE;
            self.ask(neighbour);
        }
        let mac = self.entries.get(&neighbour)?.mac?;
        self.outbox.is_empty().then_some(mac)
    }

    /// Whether it has been heard of where `neighbour` is.
    pub(super) fn is_known(&self, neighbour: IpAddr) -> bool {
        self.entries.get(&neighbour).is_some_and(|entry| entry.mac.is_some())
    }

    /// Keeps a frame for `neighbour` until it is known where that is. Its destination need not be right. Frames beyond
    /// [`MOST_WAITING`] bytes are lost.
    pub(super) fn queue(&mut self, neighbour: IpAddr, mut frame: Vec<u8>) {
        let Some(entry) = self.entries.get_mut(&neighbour) else { return };
        match entry.mac {
            Some(mac) => {
                mac.write_to(&mut frame);
                self.say(frame);
            }
            None if entry.waiting_bytes + frame.len() <= MOST_WAITING => {
                entry.waiting_bytes += frame.len();
                entry.waiting.push(frame);
            }
            None => {}
        }
    }

    /// The next frame to send.
    pub(super) fn poll_transmit(&self) -> Option<&[u8]> {
        self.outbox.front().map(Vec::as_slice)
    }

    /// The frame of [`Self::poll_transmit`] has been sent.
    pub(super) fn transmitted(&mut self) {
        if let Some(frame) = self.outbox.pop_front() {
            self.outbox_bytes -= frame.len();
        }
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.entries.values().filter(|entry| entry.asked > 0).map(|entry| entry.ask_again).min()
    }

    /// Repeats questions that went unanswered until `now`, and forgets who leaves them so.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let overdue: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.asked > 0 && entry.ask_again <= now)
            .map(|(&neighbour, _)| neighbour)
            .collect();
        for neighbour in overdue {
            match self.entries.get_mut(&neighbour) {
                Some(entry) if entry.asked < QUESTIONS => {
                    entry.asked += 1;
                    entry.ask_again = now + PATIENCE;
                    self.ask(neighbour);
                }
                _ => {
                    tracing::debug!(%neighbour, "does not answer");
                    self.entries.remove(&neighbour);
                }
            }
        }
    }

    /// Tells everybody where our address is, so that nobody goes on with what it was before.
    pub(super) fn announce(&mut self) {
        if !self.answers {
            return;
        }
        match self.address {
            IpAddr::V4(address) => {
                let packet = self.arp(ArpOperation::REQUEST, address, MacAddress::default(), address);
                self.say_arp(MacAddress::BROADCAST, packet);
            }
            IpAddr::V6(address) => {
                self.advertise(address, ALL_NODES, MacAddress::of_multicast(ALL_NODES.into()), false);
            }
        }
    }

    /// Listens to a frame. Returns whether it was of ARP or neighbour discovery.
    pub(super) fn handle_frame(&mut self, now: Instant, frame: &[u8]) -> bool {
        let Ok(ethernet) = Ethernet2HeaderSlice::from_slice(frame) else { return false };
        let payload = &frame[ethernet.slice().len()..];
        let source = MacAddress(ethernet.source());
        if source == self.mac {
            return true;
        }
        match ethernet.ether_type() {
            EtherType::ARP => {
                self.handle_arp(now, payload);
                true
            }
            EtherType::IPV6 => self.handle_discovery(now, source, payload).is_some(),
            _ => false,
        }
    }

    fn handle_arp(&mut self, now: Instant, payload: &[u8]) {
        let Ok(packet) = ArpPacketSlice::from_slice(payload) else { return };
        let Ok(packet) = packet.to_packet().try_eth_ipv4() else { return };
        let (sender, mac) = (packet.sender_ipv4_addr(), MacAddress(packet.sender_mac));
        let IpAddr::V4(address) = self.address else { return };
        if sender == address {
            tracing::warn!(%address, %mac, "somebody else uses our address");
            return;
        }
        let asks_for_us = packet.operation == ArpOperation::REQUEST && packet.target_ipv4_addr() == address;
        self.heard(now, sender.into(), mac, asks_for_us);
        if asks_for_us && self.answers && mac.is_unicast() {
            let answer = self.arp(ArpOperation::REPLY, address, mac, sender);
            self.say_arp(mac, answer);
        }
    }

    /// Returns `None` when it is not of neighbour discovery.
    fn handle_discovery(&mut self, now: Instant, source_mac: MacAddress, payload: &[u8]) -> Option<()> {
        let header = Ipv6HeaderSlice::from_slice(payload).ok().filter(|ip| ip.next_header() == IpNumber::IPV6_ICMP)?;
        let (source, destination) = (header.source_addr(), header.destination_addr());
        let end = header.slice().len() + usize::from(header.payload_length());
        let message = Icmpv6Slice::from_slice(payload.get(header.slice().len()..end)?).ok()?;
        // A hop limit of 255 cannot have come through a router (RFC 4861, 7.1).
        if header.hop_limit() != 255 || message.code_u8() != 0 {
            return None;
        }
        let icmp_type = message.icmp_type();
        let content = message.payload_slice().ok()?;
        if !message.is_checksum_valid(source.octets(), destination.octets()) {
            return None;
        }
        match (icmp_type, content) {
            (_, Icmpv6PayloadSlice::NeighborSolicitation(question)) => {
                let IpAddr::V6(address) = self.address else { return Some(()) };
                let asks_for_us = question.target_address() == address;
                // Who has no address yet looks whether ours is free.
                if source.is_unspecified() {
                    if asks_for_us {
                        self.advertise(address, ALL_NODES, MacAddress::of_multicast(ALL_NODES.into()), false);
                    }
                    return Some(());
                }
                let mac = link_layer_address(question.options_iterator()).unwrap_or(source_mac);
                self.heard(now, source.into(), mac, asks_for_us);
                if asks_for_us && mac.is_unicast() {
                    self.advertise(address, source, mac, true);
                }
            }
            (Icmpv6Type::NeighborAdvertisement(flags), Icmpv6PayloadSlice::NeighborAdvertisement(answer)) => {
                let neighbour = IpAddr::V6(answer.target_address());
                let mac = link_layer_address(answer.options_iterator()).unwrap_or(source_mac);
                let known = self.entries.get(&neighbour).and_then(|entry| entry.mac);
                // An answer on behalf of another must not replace its own (RFC 4861, 7.2.5).
                if flags.r#override || known.is_none_or(|known| known == mac) {
                    self.heard(now, neighbour, mac, false);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// A neighbour says where it is.
    fn heard(&mut self, now: Instant, neighbour: IpAddr, mac: MacAddress, is_welcome: bool) {
        if !mac.is_unicast() || neighbour.is_unspecified() || neighbour.is_multicast() {
            return;
        }
        if is_welcome && !self.entries.contains_key(&neighbour) {
            self.insert(now, neighbour);
        }
        let Some(entry) = self.entries.get_mut(&neighbour) else { return };
        entry.mac = Some(mac);
        entry.heard = now;
        entry.asked = 0;
        entry.waiting_bytes = 0;
        for mut frame in std::mem::take(&mut entry.waiting) {
            mac.write_to(&mut frame);
            self.say(frame);
        }
    }

    /// A new entry, in place of the one that was heard of longest ago when there are too many.
    fn insert(&mut self, now: Instant, neighbour: IpAddr) -> &mut Neighbour {
        if self.entries.len() >= MOST_NEIGHBOURS
            && let Some((&oldest, _)) = self.entries.iter().min_by_key(|(_, entry)| entry.heard)
        {
            self.entries.remove(&oldest);
        }
        self.entries.entry(neighbour).or_insert(Neighbour {
            mac: None,
            heard: now,
            asked: 0,
            ask_again: now,
            waiting: Vec::new(),
            waiting_bytes: 0,
        })
    }

    fn ask(&mut self, neighbour: IpAddr) {
        match (self.address, neighbour) {
            (IpAddr::V4(address), IpAddr::V4(neighbour)) => {
                let packet = self.arp(ArpOperation::REQUEST, address, MacAddress::default(), neighbour);
                self.say_arp(MacAddress::BROADCAST, packet);
            }
            (IpAddr::V6(address), IpAddr::V6(neighbour)) => {
                let group = solicited_node(neighbour);
                let kind = Icmpv6Type::NeighborSolicitation;
                self.say_discovery(address, group, MacAddress::of_multicast(group.into()), kind, neighbour, 1);
            }
            _ => {}
        }
    }

    fn advertise(&mut self, address: Ipv6Addr, destination: Ipv6Addr, mac: MacAddress, solicited: bool) {
        if !self.answers {
            return;
        }
        let flags = NeighborAdvertisementHeader { router: false, solicited, r#override: true };
        self.say_discovery(address, destination, mac, Icmpv6Type::NeighborAdvertisement(flags), address, 2);
    }

    const fn arp(
        &self,
        operation: ArpOperation,
        sender: Ipv4Addr,
        target_mac: MacAddress,
        target: Ipv4Addr,
    ) -> ArpEthIpv4Packet {
        ArpEthIpv4Packet {
            operation,
            sender_mac: self.mac.0,
            sender_ipv4: sender.octets(),
            target_mac: target_mac.0,
            target_ipv4: target.octets(),
        }
    }

    fn say_arp(&mut self, destination: MacAddress, packet: ArpEthIpv4Packet) {
        let builder = PacketBuilder::ethernet2(self.mac.0, destination.0).arp(packet.into());
        let mut frame = Vec::with_capacity(builder.size());
        if builder.write(&mut frame).is_ok() {
            self.say(frame);
        }
    }

    /// A message about `target` with our Ethernet address in an option of kind `option` (1: the source's, 2: the
    /// target's).
    fn say_discovery(
        &mut self,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        mac: MacAddress,
        kind: Icmpv6Type,
        target: Ipv6Addr,
        option: u8,
    ) {
        let mut content = target.octets().to_vec();
        content.extend([option, 1]);
        content.extend(self.mac.0);
        let builder =
            PacketBuilder::ethernet2(self.mac.0, mac.0).ipv6(source.octets(), destination.octets(), 255).icmpv6(kind);
        let mut frame = Vec::with_capacity(builder.size(content.len()));
        if builder.write(&mut frame, &content).is_ok() {
            self.say(frame);
        }
    }

    /// Has a frame sent, unless too many wait for that.
    fn say(&mut self, frame: Vec<u8>) {
        if self.outbox_bytes + frame.len() <= MOST_WAITING {
            self.outbox_bytes += frame.len();
            self.outbox.push_back(frame);
        }
    }
}

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The group in which whoever has `address` listens for questions about it (RFC 4291, 2.7.1).
pub(super) const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., x, y, z] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | x as u16, (y as u16) << 8 | z as u16)
}

fn link_layer_address(mut options: NdpOptionsIterator<'_>) -> Option<MacAddress> {
    let bytes = options.find_map(|option| match option.ok()? {
        NdpOptionSlice::SourceLinkLayerAddress(option) => option.link_layer_address().first_chunk(),
        NdpOptionSlice::TargetLinkLayerAddress(option) => option.link_layer_address().first_chunk(),
        _ => None,
    });
    bytes.map(|&bytes| MacAddress(bytes))
}

#[cfg(test)]
mod tests;
