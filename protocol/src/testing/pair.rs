//! Two connected queue pairs and the wire between them, in virtual time.

use super::{OwnedPacket, TestMemory};
use crate::{
    AccessFlags, Instant, Psn, ReceiveQueue, Sge,
    rc::{
        Buffers, Completion, Fatal, PathAttributes, Quirks, Requester, RequesterAttributes, Responder,
        ResponderAttributes, SendOperation, SendRequest, Target, WcStatus,
    },
    time::Duration,
    wire::{Mtu, Operation, Packet, Qpn, RKey, Service},
};
use std::collections::BTreeMap;

/// What the wire does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Deliver,
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It arrives later than those sent after it.
    Delay(Duration),
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client.
    A,
    /// The server.
    B,
}

impl Side {
    /// The other one.
    pub const fn peer(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// A queue pair: both halves, and what came out of them.
#[derive(Debug)]
pub struct Endpoint {
    /// The send side.
    pub requester: Requester,
    /// The receive side.
    pub responder: Responder,
    /// The queue that the receive side shares with nobody else here, if it shares one. On XRC it is the one of number
    /// [`Endpoint::SRQ`].
    pub shared: Option<ReceiveQueue>,
    /// The memory that both reach. Region [`Endpoint::KEY`] lies at [`Endpoint::ADDRESS`].
    pub memory: TestMemory,
    /// All completions so far, in order.
    pub completions: Vec<Completion>,
    /// Everything that stopped it, in order.
    pub fatals: Vec<Fatal>,
    /// Everything it has sent, in order, lost or not.
    pub sent: Vec<OwnedPacket>,
}

impl Endpoint {
    /// The key of its memory region.
    pub const KEY: u32 = 0x1234;
    /// The first address of its memory region.
    pub const ADDRESS: u64 = 0x10_0000;
    /// The size of its memory region.
    pub const SIZE: usize = 1 << 20;
    /// The number of its XRC shared receive queue.
    pub const SRQ: u32 = 0x5109;

    fn new(shares_receives: bool) -> Self {
        let memory = TestMemory::new();
        memory.register(Self::KEY, Self::ADDRESS, vec![0; Self::SIZE], TestMemory::ALL_ACCESS);
        Self {
            requester: Requester::new(1000),
            responder: if shares_receives { Responder::sharing_receives() } else { Responder::new(1000) },
            shared: shares_receives.then(|| ReceiveQueue::new(1000)),
            memory,
            completions: Vec::new(),
            fatals: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Part of its region as a scatter-gather element.
    pub fn sge(offset: u64, length: u32) -> Sge {
        Sge { address: Self::ADDRESS + offset, length, lkey: Self::KEY }
    }

    /// Posts a receive.
    ///
    /// # Panics
    /// When it is not taken.
    pub fn post_receive(&mut self, wr_id: u64, list: &[Sge]) {
        let posted = match &mut self.shared {
            Some(shared) => shared.post(wr_id, list),
            None => self.responder.post(wr_id, list),
        };
        posted.expect("room in the receive queue");
    }

    /// How many receives are posted and not in use by a message.
    pub fn posted(&self) -> u32 {
        self.shared.as_ref().map_or_else(|| self.responder.posted(), ReceiveQueue::len)
    }

    /// Fills its region with a pattern and returns it.
    pub fn fill(&self) -> Vec<u8> {
        let pattern: Vec<u8> = (0..Self::SIZE).map(|i| (i * 7 + i / 251) as u8).collect();
        self.memory.register(Self::KEY, Self::ADDRESS, pattern.clone(), TestMemory::ALL_ACCESS);
        pattern
    }

    /// The operations it has sent, in order.
    pub fn sent_operations(&self) -> Vec<Operation> {
        self.sent.iter().map(|packet| packet.view().opcode().operation()).collect()
    }

    /// How its work requests ended: identifier and status.
    pub fn results(&self) -> Vec<(u64, WcStatus)> {
        self.completions.iter().map(|completion| (completion.wr_id, completion.status)).collect()
    }
}

type Wire = dyn FnMut(Side, &Packet<'_>) -> Fate;

/// Two connected queue pairs.
pub struct Pair {
    /// Virtual time.
    pub now: Instant,
    /// The client.
    pub a: Endpoint,
    /// The server.
    pub b: Endpoint,
    /// One way.
    pub latency: Duration,
    fate: Box<Wire>,
    in_flight: BTreeMap<(Instant, u64), (Side, OwnedPacket)>,
    emitted: u64,
}

impl core::fmt::Debug for Pair {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pair").field("now", &self.now).field("a", &self.a).field("b", &self.b).finish_non_exhaustive()
    }
}

/// What a pair's connection is made with.
#[derive(Clone, Copy, Debug)]
pub struct PairConfig {
    /// Rc, or Xrc: then each side is the initiator of one connection and the target of the other.
    pub service: Service,
    /// Whether the receive sides use a shared receive queue; on XRC they do anyway.
    pub shares_receives: bool,
    /// Deviations, for both.
    pub quirks: Quirks,
    /// The path MTU.
    pub mtu: Mtu,
    /// A's first PSN; B's is 0.
    pub first_psn: Psn,
    /// READs and atomics outstanding, for both.
    pub rd_atomic: u8,
    /// Timeout code, retry_cnt, rnr_retry.
    pub retry: (u8, u8, u8),
    /// The RNR timer code.
    pub min_rnr_timer: u8,
    /// The send window's bounds.
    pub window: crate::rc::WindowConfig,
}

impl Default for PairConfig {
    fn default() -> Self {
        Self {
            service: Service::Rc,
            shares_receives: false,
            quirks: Quirks::HARDWARE,
            mtu: Mtu::Mtu1024,
            first_psn: Psn::new(0xff_fffe),
            rd_atomic: 4,
            retry: (14, 7, 7),
            min_rnr_timer: 12,
            window: crate::rc::WindowConfig::default(),
        }
    }
}

impl Pair {
    /// Two queue pairs with the default connection.
    pub fn new() -> Self {
        Self::with(PairConfig::default())
    }

    /// Two queue pairs connected as `config` says.
    pub fn with(config: PairConfig) -> Self {
        let shares_receives = config.shares_receives || config.service == Service::Xrc;
        let mut pair = Self {
            now: Instant::ZERO,
            a: Endpoint::new(shares_receives),
            b: Endpoint::new(shares_receives),
            latency: Duration::from_micros(10),
            fate: Box::new(|_, _| Fate::Deliver),
            in_flight: BTreeMap::new(),
            emitted: 0,
        };
        let zero = Psn::new(0);
        for (endpoint, own_psn, peer_psn) in
            [(&mut pair.a, config.first_psn, zero), (&mut pair.b, zero, config.first_psn)]
        {
            let path = PathAttributes {
                service: config.service,
                destination: Qpn::new(0x11),
                mtu: config.mtu,
                quirks: config.quirks,
                ..PathAttributes::default()
            };
            endpoint.responder.connect(ResponderAttributes {
                path,
                first_psn: peer_psn,
                max_dest_rd_atomic: config.rd_atomic,
                min_rnr_timer: config.min_rnr_timer,
                access: TestMemory::ALL_ACCESS,
            });
            endpoint.requester.connect(RequesterAttributes {
                path,
                first_psn: own_psn,
                max_rd_atomic: config.rd_atomic,
                timeout: config.retry.0,
                retry_cnt: config.retry.1,
                rnr_retry: config.retry.2,
                window: config.window,
            });
        }
        pair
    }

    /// Lets `fate` decide what becomes of each packet; it sees who sent it.
    pub fn on_wire(&mut self, fate: impl FnMut(Side, &Packet<'_>) -> Fate + 'static) {
        self.fate = Box::new(fate);
    }

    /// Loses the `nth` (from 1) packet with `operation` that `side` sends, and nothing else.
    pub fn lose(&mut self, side: Side, operation: Operation, nth: usize) {
        let mut seen = 0;
        self.on_wire(move |from, packet| {
            if from == side && packet.opcode().operation() == operation {
                seen += 1;
                if seen == nth {
                    return Fate::Drop;
                }
            }
            Fate::Deliver
        });
    }

    /// One of the two.
    pub fn endpoint(&mut self, side: Side) -> &mut Endpoint {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }

    /// A posts a signalled request for `operation` with `length` bytes from (or to) `offset` of its region.
    ///
    /// # Panics
    /// When it is not taken.
    pub fn post(&mut self, wr_id: u64, operation: SendOperation, offset: u64, length: u32) {
        let list = [Endpoint::sge(offset, length)];
        let request = SendRequest { target: self.target(), ..request(wr_id, operation, &list) };
        self.a.requester.post(&request).expect("room in the send queue");
    }

    /// Whom requests are for: the peer, or on XRC its shared receive queue.
    pub fn target(&self) -> Target {
        match self.a.requester.attributes().path.service {
            Service::Xrc => Target::SharedReceiveQueue(Endpoint::SRQ),
            _ => Target::Peer,
        }
    }

    /// B posts a receive of `length` bytes at `offset` of its region.
    ///
    /// # Panics
    /// When it is not taken.
    pub fn receive(&mut self, wr_id: u64, offset: u64, length: u32) {
        self.b.post_receive(wr_id, &[Endpoint::sge(offset, length)]);
    }

    /// Fills A's region with a pattern and returns it.
    pub fn fill(&self) -> Vec<u8> {
        self.a.fill()
    }

    /// Hands `packet` to `side` now, as if the wire had made it.
    pub fn inject(&mut self, side: Side, packet: &OwnedPacket) {
        let now = self.now;
        deliver(self.endpoint(side), now, packet);
    }

    /// Runs until nothing is on its way and no timer is set, or `limit` of virtual time has passed.
    pub fn drive_for(&mut self, limit: Duration) {
        let end = self.now + limit;
        loop {
            self.transmit();
            let arrival = self.in_flight.first_key_value().map(|(key, _)| key.0);
            let timeouts = [self.a.requester.poll_timeout(), self.b.requester.poll_timeout()];
            let Some(next) = timeouts.into_iter().flatten().chain(arrival).min() else { return };
            if next > end {
                self.now = end;
                return;
            }
            let now = self.now.max(next);
            self.now = now;
            while let Some(entry) = self.in_flight.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                let (to, packet) = entry.remove();
                deliver(self.endpoint(to), now, &packet);
            }
            for side in [Side::A, Side::B] {
                self.endpoint(side).requester.handle_timeout(now);
            }
        }
    }

    /// Runs until nothing is on its way and no timer is set.
    pub fn drive(&mut self) {
        self.drive_for(Duration::from_secs(3600));
    }

    fn transmit(&mut self) {
        for side in [Side::A, Side::B] {
            loop {
                let now = self.now;
                let packets = pump(self.endpoint(side), now);
                if packets.is_empty() {
                    break;
                }
                for packet in packets {
                    self.emit(side, packet);
                }
            }
        }
    }

    fn emit(&mut self, side: Side, packet: OwnedPacket) {
        let fate = (self.fate)(side, &packet.view());
        let arrival = self.now + self.latency;
        self.endpoint(side).sent.push(packet.clone());
        let copies: &[Instant] = match fate {
            Fate::Deliver => &[arrival],
            Fate::Drop => &[],
            Fate::Duplicate => &[arrival, arrival],
            Fate::Delay(delay) => &[arrival + delay],
        };
        for &at in copies {
            self.emitted += 1;
            self.in_flight.insert((at, self.emitted), (side.peer(), packet.clone()));
        }
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self::new()
    }
}

/// A signalled request with registered buffers.
pub const fn request(wr_id: u64, operation: SendOperation, list: &[Sge]) -> SendRequest<'_> {
    SendRequest {
        wr_id,
        operation,
        buffers: Buffers::List(list),
        signaled: true,
        solicited: false,
        fence: false,
        target: Target::Peer,
    }
}

/// A WRITE to `offset` of the peer's region.
pub const fn write_to(offset: u64) -> SendOperation {
    SendOperation::Write { address: Endpoint::ADDRESS + offset, rkey: RKey(Endpoint::KEY) }
}

/// A READ from `offset` of the peer's region.
pub const fn read_from(offset: u64) -> SendOperation {
    SendOperation::Read { address: Endpoint::ADDRESS + offset, rkey: RKey(Endpoint::KEY) }
}

/// A FETCH_ADD on the word at `offset` of the peer's region.
pub const fn add_to(offset: u64, add: u64) -> SendOperation {
    SendOperation::FetchAdd { address: Endpoint::ADDRESS + offset, rkey: RKey(Endpoint::KEY), add }
}

/// Rights without one of them.
pub fn all_access_but(missing: AccessFlags) -> AccessFlags {
    TestMemory::ALL_ACCESS - missing
}

fn deliver(endpoint: &mut Endpoint, now: Instant, packet: &OwnedPacket) {
    let view = packet.view();
    if view.opcode().is_response() {
        endpoint.requester.handle_packet(now, &view, &endpoint.memory);
    } else {
        let shared = match view.xrceth() {
            Some(xrceth) if xrceth.srqn.value() != Endpoint::SRQ => None,
            _ => endpoint.shared.as_mut(),
        };
        endpoint.responder.handle_packet(now, &view, &endpoint.memory, shared);
    }
    collect(endpoint);
}

/// Everything the endpoint has to send now, deferred ACKs last.
fn pump(endpoint: &mut Endpoint, now: Instant) -> Vec<OwnedPacket> {
    let mut packets = Vec::new();
    while let Some(transmit) = endpoint.responder.poll_transmit(now, true) {
        match OwnedPacket::of(&transmit, &endpoint.memory) {
            Some(packet) => packets.push(packet),
            None => endpoint.responder.transmit_failed(),
        }
    }
    while let Some(transmit) = endpoint.requester.poll_transmit(now, &endpoint.memory) {
        match OwnedPacket::of(&transmit, &endpoint.memory) {
            Some(packet) => packets.push(packet),
            None => endpoint.requester.transmit_failed(WcStatus::LocalProtection),
        }
    }
    collect(endpoint);
    packets
}

/// Takes completions, and does what a device does when a half stops: both are flushed, once a NAK that waits has
/// been sent.
fn collect(endpoint: &mut Endpoint) {
    let fatal = endpoint
        .requester
        .poll_fatal()
        .or_else(|| if endpoint.responder.has_urgent_output() { None } else { endpoint.responder.poll_fatal() });
    drain(endpoint);
    if let Some(fatal) = fatal {
        endpoint.fatals.push(fatal);
        endpoint.requester.flush();
        endpoint.responder.flush();
        drain(endpoint);
    }
}

fn drain(endpoint: &mut Endpoint) {
    while let Some(completion) = endpoint.requester.poll_completion() {
        endpoint.completions.push(completion);
    }
    while let Some(completion) = endpoint.responder.poll_completion() {
        endpoint.completions.push(completion);
    }
}
