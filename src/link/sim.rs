//! A network in virtual time: any number of links in one process, and everything that can happen to a packet.
//!
//! Nothing happens by itself here. Links send at the instants they are told; the network works out when, and as
//! what, each packet arrives; whoever drives the simulation moves [`Network::clock`] to [`Network::next_event`] (or
//! to an earlier timer of its own) and lets the links' owners receive. The same seed and the same calls give the
//! same deliveries on any machine: each direction between two addresses draws from its own random stream, so
//! traffic elsewhere does not disturb it.
//!
//! A packet goes along the [path](PathConditions) from its sender to its destination, which is theirs alone, and then,
//! if there is one, through the [port](PortConditions) that leads to the destination, where it queues with packets
//! from everywhere.
//!
//! ```
//! use uroce::{clock::Clock, link::{Link, ReceiveBuffer, Train, sim::{Network, PathConditions}}};
//!
//! let network = Network::new(42, PathConditions { loss: 0.01, ..PathConditions::IDEAL });
//! let a = network.attach([10, 0, 0, 1].into())?;
//! let b = network.attach([10, 0, 0, 2].into())?;
//! let clock = network.clock();
//! let train = Train {
//!     destination: b.address(),
//!     source_port: 0xc000,
//!     traffic_class: 0,
//!     hop_limit: None,
//!     segment_size: 20,
//!     bytes: &[7; 20],
//! };
//! a.send(clock.now(), &train)?;
//! let mut buffer = ReceiveBuffer::new();
//! while let Some(event) = network.next_event() {
//!     clock.advance_to(event);
//!     let arrival = b.receive(clock.now(), &mut buffer)?.expect("the event was for b");
//!     assert_eq!(arrival.source, a.address());
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

mod path;
mod port;

pub use path::{EcnMarking, PathConditions};
pub use port::PortConditions;

use super::{Arrival, DEFAULT_HOP_LIMIT, Link, LinkLimits, ReceiveBuffer, Train, no_member};
use crate::clock::{Clock, VirtualClock};
use parking_lot::Mutex;
use path::{Passage, Path};
use port::Port;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    os::fd::BorrowedFd,
    sync::Arc,
};
use uroce_protocol::Instant;

/// What has happened to packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounters {
    /// Trains that links have sent, one for all members of a group.
    pub trains: u64,
    /// Packets that links have sent.
    pub sent: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets that found a queue full.
    pub overflowed: u64,
    /// Packets to an address that no link has.
    pub unreachable: u64,
    /// Packets that arrive twice.
    pub duplicated: u64,
    /// Packets with a bit inverted.
    pub corrupted: u64,
    /// Packets held back so that later ones may overtake them.
    pub delayed: u64,
    /// Packets that a queue or chance has marked "congestion experienced".
    pub marked: u64,
    /// Stalls that have begun.
    pub stalls: u64,
}

/// A network: see the [module's documentation](self). Clones are the same network.
#[derive(Clone, Debug)]
pub struct Network {
    clock: Arc<VirtualClock>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    seed: u64,
    conditions: PathConditions,
    paths: BTreeMap<(IpAddr, IpAddr), Path>,
    /// By the address that they lead to.
    ports: BTreeMap<IpAddr, Port>,
    inboxes: BTreeMap<IpAddr, Inbox>,
    /// The members of each multicast group.
    groups: BTreeMap<IpAddr, BTreeSet<IpAddr>>,
    counters: NetworkCounters,
    /// Breaks ties between deliveries of one instant: first sent, first received.
    deliveries: u64,
}

/// What is on its way to a link, by the instant of its arrival.
type Inbox = BTreeMap<(Instant, u64), Delivery>;

#[derive(Debug)]
struct Delivery {
    /// The link that it is for: where it was sent to, or a member of that group.
    to: IpAddr,
    arrival: Arrival,
    bytes: Vec<u8>,
}

impl Delivery {
    /// Its bytes, and those of the IP and UDP header in front of them.
    fn wire_length(&self) -> usize {
        ip_udp_headers(self.arrival.source) + self.bytes.len()
    }
}

/// A link of a simulated [`Network`]. Dropping it detaches the address.
#[derive(Debug)]
pub struct SimLink {
    network: Network,
    address: IpAddr,
    limits: LinkLimits,
}

impl Network {
    /// What a link has unless it is attached [otherwise](Self::attach_with): jumbo frames, trains as over UDP.
    pub const DEFAULT_LIMITS: LinkLimits =
        LinkLimits { network_mtu: 9000, train_segments: 64, receive_capacity: 1 << 20, interface: None, speed: None };

    /// A network without links, at time zero, whose every path has `conditions`.
    pub fn new(seed: u64, conditions: PathConditions) -> Self {
        let state = State {
            seed,
            conditions,
            paths: BTreeMap::new(),
            ports: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            groups: BTreeMap::new(),
            counters: NetworkCounters::default(),
            deliveries: 0,
        };
        Self { clock: Arc::new(VirtualClock::new()), state: Arc::new(Mutex::new(state)) }
    }

    /// The network's time, for the devices on it.
    pub fn clock(&self) -> Arc<VirtualClock> {
        Arc::clone(&self.clock)
    }

    /// A link at `address`, with [`Self::DEFAULT_LIMITS`].
    ///
    /// # Errors
    /// `AddrInUse` when there is a link at `address`.
    pub fn attach(&self, address: IpAddr) -> io::Result<SimLink> {
        self.attach_with(address, Self::DEFAULT_LIMITS)
    }

    /// A link at `address` with limits of its own. The network enforces `network_mtu` and `train_segments`.
    ///
    /// # Errors
    /// `AddrInUse` when there is a link at `address`.
    pub fn attach_with(&self, address: IpAddr, limits: LinkLimits) -> io::Result<SimLink> {
        let mut state = self.state.lock();
        if state.inboxes.contains_key(&address) {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("the simulated network has a link at {address} already"),
            ));
        }
        state.inboxes.insert(address, Inbox::new());
        Ok(SimLink { network: self.clone(), address, limits })
    }

    /// Changes the conditions of every path, from now on. Packets on their way are not affected.
    pub fn set_conditions(&self, conditions: PathConditions) {
        let mut state = self.state.lock();
        state.conditions = conditions;
        for path in state.paths.values_mut() {
            path.conditions = conditions;
        }
    }

    /// Changes the conditions of one direction between two addresses, from now on.
    pub fn set_path(&self, from: IpAddr, to: IpAddr, conditions: PathConditions) {
        self.state.lock().path(from, to).conditions = conditions;
    }

    /// Has all packets to one address meet in the queue of one port, from now on, or (`None`) no more; those that
    /// wait there are then lost. What the sender's path does to a packet it does before.
    pub fn set_port(&self, to: IpAddr, conditions: Option<PortConditions>) {
        let mut state = self.state.lock();
        let seed = state.seed;
        match (conditions, state.ports.get_mut(&to)) {
            (Some(conditions), Some(port)) => port.conditions = conditions,
            (Some(conditions), None) => {
                state.ports.insert(to, Port::new(conditions, seed, to));
            }
            (None, _) => {
                state.ports.remove(&to);
            }
        }
    }

    /// The most bytes that have waited in the port that leads to `to` since this was last asked; 0 without one.
    pub fn take_longest_queue(&self, to: IpAddr) -> u64 {
        self.state.lock().ports.get_mut(&to).map_or(0, Port::take_longest_queue)
    }

    /// When the earliest packet on its way arrives (which may be past, when nobody has taken it in), or gets to a
    /// port where others may get in its way; `None` when none is on its way.
    pub fn next_event(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        state.forward(self.clock.now());
        let arrivals = state.inboxes.values().filter_map(|inbox| inbox.first_key_value());
        let arrivals = arrivals.map(|(&(instant, _), _)| instant);
        arrivals.chain(state.ports.values().filter_map(Port::next_event)).min()
    }

    /// What has happened so far.
    pub fn counters(&self) -> NetworkCounters {
        self.state.lock().counters
    }
}

impl State {
    fn path(&mut self, from: IpAddr, to: IpAddr) -> &mut Path {
        let (conditions, seed) = (self.conditions, self.seed);
        self.paths.entry((from, to)).or_insert_with(|| Path::new(conditions, seed, from, to))
    }

    /// Sends a train to its destination, or to every member of its group, each over a path of its own.
    fn send(&mut self, now: Instant, from: IpAddr, train: &Train<'_>) {
        self.counters.trains += 1;
        if !train.destination.is_multicast() {
            return self.send_to(now, from, train.destination, train);
        }
        let members = self.groups.get(&train.destination).cloned().unwrap_or_default();
        for member in members {
            self.send_to(now, from, member, train);
        }
    }

    fn send_to(&mut self, now: Instant, from: IpAddr, to: IpAddr, train: &Train<'_>) {
        let mut counters = self.counters;
        let path = self.path(from, to);
        let passages: Vec<_> = train
            .segments()
            .map(|packet| path.carry(now, train.traffic_class, packet.len(), ip_udp_headers(from), &mut counters))
            .collect();
        self.counters = counters;

        let arrival = |ip_id, traffic_class, length, segment_size| Arrival {
            source: from,
            source_port: train.source_port,
            destination: train.destination,
            traffic_class,
            hop_limit: Some(train.hop_limit.unwrap_or(DEFAULT_HOP_LIMIT)),
            ip_id: from.is_ipv4().then_some(ip_id),
            segment_size,
            length,
        };
        let meets_others = self.ports.contains_key(&to);
        if let Some((at, traffic_class)) = undisturbed(&passages).filter(|_| !meets_others) {
            let arrival = arrival(0, traffic_class, train.bytes.len(), train.segment_size);
            self.deliver(at, to, arrival, train.bytes.to_vec());
            return;
        }
        for (index, (packet, copies)) in train.segments().zip(&passages).enumerate() {
            for copy in copies.iter().flatten() {
                let mut bytes = packet.to_vec();
                if let Some(bit) = copy.inverted_bit {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                self.deliver(copy.at, to, arrival(index as u16, copy.traffic_class, packet.len(), packet.len()), bytes);
            }
        }
    }

    /// Sends a packet, or an undisturbed train, on to where it arrives at `at`: the port that leads to its
    /// destination, if there is one.
    fn deliver(&mut self, at: Instant, to: IpAddr, arrival: Arrival, bytes: Vec<u8>) {
        let packet = Delivery { to, arrival, bytes };
        match self.ports.get_mut(&to) {
            Some(port) => {
                self.deliveries += 1;
                port.expect(at, self.deliveries, packet);
            }
            None => self.arrive(at, packet),
        }
    }

    /// Lets every packet through its port that gets there by `now`.
    fn forward(&mut self, now: Instant) {
        let mut ports = std::mem::take(&mut self.ports);
        for port in ports.values_mut() {
            while let Some((at, packet)) = port.forward(now, &mut self.counters) {
                self.arrive(at, packet);
            }
        }
        self.ports = ports;
    }

    fn arrive(&mut self, at: Instant, delivery: Delivery) {
        match self.inboxes.get_mut(&delivery.to) {
            Some(inbox) => {
                self.deliveries += 1;
                inbox.insert((at, self.deliveries), delivery);
            }
            None => {
                let Arrival { length, segment_size, .. } = delivery.arrival;
                self.counters.unreachable += length.div_ceil(segment_size) as u64;
            }
        }
    }
}

/// When and with which traffic class a whole train arrives, if nothing has taken it apart.
fn undisturbed(passages: &[[Option<Passage>; 2]]) -> Option<(Instant, u8)> {
    let first = passages.first()?[0]?;
    let mut at = first.at;
    for copies in passages {
        let [Some(passage), None] = copies else { return None };
        if !passage.in_order || passage.inverted_bit.is_some() || passage.traffic_class != first.traffic_class {
            return None;
        }
        at = passage.at;
    }
    Some((at, first.traffic_class))
}

/// The length of an IP and a UDP header.
const fn ip_udp_headers(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => 20 + 8,
        IpAddr::V6(_) => 40 + 8,
    }
}

impl Link for SimLink {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn limits(&self) -> LinkLimits {
        self.limits
    }

    fn source_port(&self, wanted: u16) -> u16 {
        wanted
    }

    fn send(&self, now: Instant, train: &Train<'_>) -> io::Result<()> {
        let headers = ip_udp_headers(self.address);
        train.check(self.limits.train_segments)?;
        if train.segment_size.min(train.bytes.len()) + headers > self.limits.network_mtu {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        self.network.state.lock().send(now, self.address, train);
        Ok(())
    }

    fn receive(&self, now: Instant, buffer: &mut ReceiveBuffer) -> io::Result<Option<Arrival>> {
        let mut state = self.network.state.lock();
        state.forward(now);
        let Some(first) = state.inboxes.get_mut(&self.address).and_then(BTreeMap::first_entry) else {
            return Ok(None);
        };
        if first.key().0 > now {
            return Ok(None);
        }
        let Delivery { arrival, bytes, .. } = first.remove();
        buffer.as_mut_bytes()[..bytes.len()].copy_from_slice(&bytes);
        Ok(Some(arrival))
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn join(&self, group: IpAddr) -> io::Result<()> {
        self.network.state.lock().groups.entry(group).or_default().insert(self.address);
        Ok(())
    }

    fn leave(&self, group: IpAddr) -> io::Result<()> {
        let mut state = self.network.state.lock();
        let was_member = state.groups.get_mut(&group).is_some_and(|members| members.remove(&self.address));
        if was_member { Ok(()) } else { Err(no_member(group)) }
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        let mut state = self.network.state.lock();
        state.inboxes.remove(&self.address);
        state.groups.values_mut().for_each(|members| {
            members.remove(&self.address);
        });
    }
}

#[cfg(test)]
mod tests;
