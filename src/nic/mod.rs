//! The device behind the verbs: tables, queues, and the engine that turns work requests into packets and packets
//! into completions. Nothing here knows of handles or of who owns what; that is [`crate::verbs`].
//!
//! # Who does the work
//!
//! Whoever has a reason to wait drives the device ([`progress`]): posting a send transmits on the caller's thread,
//! polling an empty completion queue receives, runs the state machines and transmits on the caller's thread. One
//! background thread ([`thread`]) does it when no program thread does.
//!
//! # Locks, in the order in which they may be taken
//!
//! 1. the receive side ([`receive::ReceiveSide`]): one thread takes in packets at a time; the others go on;
//! 2. the parked trains, which wait for a full socket and are sent by whoever comes first;
//! 3. a queue pair ([`qp::Qp::lock`]), one at a time;
//! 4. the region table, for reading: over the packets of one train that one queue pair takes or builds. Whoever
//!    writes to it (register, deregister) holds nothing else, so that deregistering waits for at most one train;
//! 5. a shared receive queue or a memory window, while one packet is placed;
//! 6. leaves, held for a few instructions: the tables of queue pairs, of shared receive queues and of multicast groups,
//!    a completion queue, an event queue, timers, the ready queue, the pool of staging buffers.
//!
//! No lock of the device but that of the parked trains is held while a train is sent. What keeps a queue pair's trains
//! in order is its turn ([`turn::Turn`]), which is no lock: who does not get it leaves word and goes on.

mod attributes;
mod completion;
mod counters;
mod cq;
mod error;
mod event;
mod event_queue;
mod gid;
mod keys;
mod linger;
mod multicast;
mod progress;
mod qp;
mod qp_attributes;
mod qp_table;
mod receive;
mod regions;
mod srq;
mod thread;
mod timers;
mod transmit;
mod turn;
mod windows;

pub use attributes::{DeviceAttributes, DeviceCapabilities, GidEntry, PORT, PortAttributes, PortState, Rate};
pub use completion::WorkCompletion;
pub use counters::Counters;
pub use cq::Notify;
pub use error::{Error, PostError, Result};
pub use event::{AsyncElement, AsyncEvent, AsyncEventType};
pub use gid::Gid;
pub use qp_attributes::{
    AddressHandleAttributes, Connection, GlobalRoute, QpAttributeMask, QpAttributes, QpCapabilities, QpState, QpType,
};
pub use srq::{SrqAttributeMask, SrqAttributes};
pub use windows::MemoryWindowType;

pub(crate) use attributes::PKEY_TABLE_LEN;
pub(crate) use cq::Cq;
pub(crate) use event_queue::EventQueue;
pub(crate) use keys::{have_same_index, with_next_tag};
pub(crate) use qp::{MAKERS_HANDLE, NewQp, Qp, RateLimit};
pub use qp::{ReceivePoster, SendPoster};
pub(crate) use regions::Registration;
pub(crate) use srq::{Srq, XrcQueue};
pub(crate) use thread::ProgressThread;

use crate::{clock::Clock, congestion::Congestion, link::Link};
use counters::DeviceCounters;
use keys::Random;
use multicast::MulticastTable;
use parking_lot::{Mutex, RwLock};
use qp_table::QpTable;
use receive::ReceiveSide;
use regions::RegionTable;
use srq::SrqTable;
use std::{
    collections::VecDeque,
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
};
use thread::Sleeper;
use timers::Timers;
use transmit::Transmitter;
use uroce_protocol::{
    Instant,
    rc::{Quirks, WindowConfig},
    wire::{Mtu, Qpn, XrcSrqn, icrc::IpIdPolicy},
};

/// What a device is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) link: Arc<dyn Link>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) quirks: Quirks,
    pub(crate) mtu: Mtu,
    pub(crate) ip_id_policy: IpIdPolicy,
    pub(crate) seed: u64,
    pub(crate) congestion: Option<Congestion>,
}

/// A device.
#[derive(Debug)]
pub(crate) struct Nic {
    link: Arc<dyn Link>,
    clock: Arc<dyn Clock>,
    address: IpAddr,
    /// How long the headers before a BTH are.
    ip_udp_headers: usize,
    quirks: Quirks,
    active_mtu: Mtu,
    window: WindowConfig,
    ip_id_policy: IpIdPolicy,
    /// How queue pairs control congestion unless they are told otherwise.
    congestion: Option<Arc<Congestion>>,

    regions: RwLock<RegionTable>,
    qps: RwLock<QpTable>,
    srqs: RwLock<SrqTable>,
    multicast: MulticastTable,
    /// The last number given to a protection domain or completion queue.
    numbers: AtomicU32,

    receive: Mutex<ReceiveSide>,
    /// How many queue pairs hold an ACK back until the receive side has run dry.
    deferred: AtomicUsize,
    transmitter: Transmitter,
    /// Queue pairs that have something to send and wait for somebody to do it.
    ready: Mutex<VecDeque<Arc<Qp>>>,
    timers: Timers,
    /// When queue pairs whose rate holds them up get their next turn. Apart from the others, because packets that keep
    /// coming are no reason to put these off.
    pacing: Timers,
    /// When ACKs have waited in vain for a program's answer; apart for the same reason.
    delayed_acks: Timers,

    /// A program thread has polled since the background thread last looked.
    polled: AtomicBool,
    /// How many polls in a row have found nothing to do.
    vain_polls: AtomicU32,
    /// How many completion queues are armed.
    armed: Arc<AtomicUsize>,
    sleeper: Sleeper,

    counters: DeviceCounters,
    /// What destroyed queue pairs had counted.
    retired: Mutex<Counters>,
}

impl Nic {
    /// A device over a link; nothing happens before somebody drives it.
    ///
    /// # Errors
    /// `EINVAL` when the link's network carries not even the smallest path MTU; `EMFILE` for lack of descriptors.
    pub(crate) fn new(parts: Parts) -> Result<Self> {
        let limits = parts.link.limits();
        let network = Mtu::for_network(limits.network_mtu)
            .ok_or(Error::InvalidArgument("the network's MTU is below 336 bytes, the smallest that RoCE can use"))?;
        let mut random = Random::new(parts.seed);
        let mut window = WindowConfig::default();
        // Nobody tells a sender what its peer's socket holds; peers on equal systems hold what we do.
        window.maximum = window.maximum.min(u32::try_from(limits.receive_capacity).unwrap_or(u32::MAX));
        window.initial = window.initial.min(window.maximum);
        Ok(Self {
            address: parts.link.address(),
            ip_udp_headers: if parts.link.address().is_ipv4() { 20 + 8 } else { 40 + 8 },
            link: parts.link,
            clock: parts.clock,
            quirks: parts.quirks,
            active_mtu: network.min(parts.mtu),
            window,
            ip_id_policy: parts.ip_id_policy,
            congestion: parts.congestion.map(Arc::new),
            regions: RwLock::new(RegionTable::new(&mut random)),
            qps: RwLock::new(QpTable::new(&mut random)),
            srqs: RwLock::new(SrqTable::new(&mut random)),
            multicast: MulticastTable::default(),
            numbers: AtomicU32::new(0),
            receive: Mutex::new(ReceiveSide::default()),
            deferred: AtomicUsize::new(0),
            transmitter: Transmitter::default(),
            ready: Mutex::new(VecDeque::new()),
            timers: Timers::new(),
            pacing: Timers::new(),
            delayed_acks: Timers::new(),
            polled: AtomicBool::new(false),
            vain_polls: AtomicU32::new(0),
            armed: Arc::new(AtomicUsize::new(0)),
            sleeper: Sleeper::new()?,
            counters: DeviceCounters::default(),
            retired: Mutex::new(Counters::default()),
        })
    }

    pub(crate) const fn address(&self) -> IpAddr {
        self.address
    }

    /// What the port says of itself.
    pub(crate) fn port_attributes(&self) -> PortAttributes {
        PortAttributes::new(self.active_mtu, &self.link.limits(), &self.counters())
    }

    /// The only entry of the port's GID table.
    pub(crate) fn gid_entry(&self) -> GidEntry {
        GidEntry::new(Gid::from(self.address), self.link.limits().interface.unwrap_or(0))
    }

    /// The time on the device's clock.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// In a forked child: lets go of the wire.
    pub(crate) fn disown(&self) -> io::Result<()> {
        self.link.disown()
    }

    /// A number for a protection domain or completion queue.
    pub(crate) fn next_number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Registers memory and returns its key.
    pub(crate) fn register(&self, registration: Registration) -> Result<u32> {
        self.regions.write().insert(registration)
    }

    /// Replaces a registration by another, under the same key. On an error, nothing has changed. When this
    /// returns, the device does not touch the memory of the old one any more.
    pub(crate) fn reregister(&self, key: u32, registration: Registration) -> Result<()> {
        self.regions.write().replace(key, registration)
    }

    /// Forgets a registration: `EBUSY` while memory windows are bound to it. When this returns, the device does not
    /// touch its memory any more.
    pub(crate) fn deregister(&self, key: u32) -> Result<()> {
        self.regions.write().remove(key)
    }

    /// As [`Self::deregister`], but closes memory windows that are bound to it.
    pub(crate) fn purge_registration(&self, key: u32) {
        self.regions.write().purge(key);
    }

    /// Makes a memory window and returns its key.
    pub(crate) fn create_window(&self, window_type: MemoryWindowType, pd: u32) -> Result<u32> {
        self.regions.write().insert_window(window_type, pd)
    }

    /// Ends a memory window, bound or not; any of its keys will do.
    pub(crate) fn destroy_window(&self, key: u32) {
        self.regions.write().remove_window(key);
    }

    /// Makes a completion queue.
    pub(crate) fn create_cq(
        &self,
        cqe: u32,
        channel: Option<Arc<EventQueue<u32>>>,
        events: Arc<EventQueue<AsyncEvent>>,
    ) -> Result<Cq> {
        Cq::new(self.next_number(), cqe, channel, events, self.armed.clone())
    }

    /// Hands at most `max` completions to `take`, and makes progress when there are none.
    pub(crate) fn poll_cq(&self, cq: &Cq, max: usize, take: impl FnMut(WorkCompletion)) -> Result<usize> {
        if cq.is_empty() {
            if cq.has_overrun() {
                return Err(Error::Overrun);
            }
            self.drive_for_poll();
            if cq.is_empty() {
                return Ok(0);
            }
        }
        Ok(cq.take(max, take))
    }

    /// Makes a shared receive queue.
    pub(crate) fn create_srq(
        &self,
        pd: u32,
        attributes: &SrqAttributes,
        xrc: Option<XrcQueue>,
        events: Arc<EventQueue<AsyncEvent>>,
    ) -> Result<Arc<Srq>> {
        self.srqs.write().insert(pd, attributes, xrc, events)
    }

    /// Ends a shared receive queue. Receives that are left end without a completion.
    pub(crate) fn destroy_srq(&self, srq: &Srq) {
        self.srqs.write().remove(srq);
    }

    /// The shared receive queue that a request to a target of XRC domain `domain` names.
    fn xrc_srq(&self, domain: u32, number: XrcSrqn) -> Option<Arc<Srq>> {
        let srq = self.srqs.read().get(number)?;
        srq.xrc().is_some_and(|xrc| xrc.domain == domain).then_some(srq)
    }

    /// Arms a completion queue, and has the background thread watch the link from now on.
    pub(crate) fn arm_cq(&self, cq: &Cq, notify: Notify) -> Result<()> {
        cq.arm(notify)?;
        self.sleeper.wake_from_nap();
        Ok(())
    }

    /// The queue pair of a number.
    fn qp(&self, number: Qpn) -> Option<Arc<Qp>> {
        self.qps.read().get(number)
    }

    /// What has been counted so far.
    pub(crate) fn counters(&self) -> Counters {
        let qps: Vec<_> = self.qps.read().iter().collect();
        let mut counters = self.counters.snapshot();
        counters.add(&self.retired.lock());
        for qp in qps {
            qp.count(&mut counters);
        }
        counters
    }
}
