//! Flows that share one queue: congestion control, pacing, marking and notification, and nothing else. No transport,
//! no windows, no losses.

use crate::{
    Instant, Psn,
    congestion::{
        Algorithm, CongestionControl, CongestionEvent, NotificationParameters, NotificationPoint, Pacer, Rate,
    },
    testing::OwnedPacket,
    time::Duration,
    wire::{Bth, Extended, Opcode, Operation, Qpn, Repr},
};
use rand::RngExt;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use std::collections::BTreeMap;

/// Bytes of a packet on the wire: 1 KiB and its headers.
const PACKET: u64 = 1024 + 44;

/// The queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    pub(super) rate: Rate,
    /// Kmin and Kmax in bytes, and Pmax.
    pub(super) mark_from: u64,
    pub(super) mark_all_from: u64,
    pub(super) probability: f64,
    /// From the queue to the receiver, and from there back to the sender.
    pub(super) delay: Duration,
}

impl Queue {
    /// The switch of the DCQCN paper: 40 Gbit/s, Kmin 5 KB, Kmax 200 KB, Pmax 1 %.
    pub(super) const PAPER: Self = Self {
        rate: Rate::from_gbps(40),
        mark_from: 5_000,
        mark_all_from: 200_000,
        probability: 0.01,
        delay: Duration::from_micros(2),
    };

    fn marks(&self, waiting: u64, draw: f64) -> bool {
        if waiting <= self.mark_from {
            false
        } else if waiting > self.mark_all_from {
            true
        } else {
            draw * (self.mark_all_from - self.mark_from) as f64 <= self.probability * (waiting - self.mark_from) as f64
        }
    }
}

#[derive(Debug)]
struct Flow {
    control: Box<dyn CongestionControl>,
    pacer: Pacer,
    receiver: NotificationPoint,
    is_sending: bool,
    delivered: u64,
    /// When the packet left whose round trip is being measured.
    measured: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A flow may send its next packet, or look again whether it may.
    Turn(usize),
    /// A packet has got through.
    Arrival { flow: usize, marked: bool, is_measured: bool },
    /// A notification is back at the sender.
    Notification(usize),
    /// An answer is back at the sender.
    Answer(usize),
}

/// What passed in a span of time.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// Bytes of each flow that got through.
    pub(super) delivered: Vec<u64>,
    /// The share of the queue's rate that was used.
    pub(super) utilisation: f64,
    /// The most bytes that waited, and how many did on average (as packets met them).
    pub(super) longest_queue: u64,
    pub(super) mean_queue: u64,
}

impl Span {
    /// Jain's index of fairness over the flows that sent: 1 when all got the same, 1/n when one got all.
    pub(super) fn fairness(&self) -> f64 {
        let shares = self.delivered.iter().filter(|&&bytes| bytes > 0).map(|&bytes| bytes as f64);
        let (count, sum, squares) =
            shares.fold((0.0, 0.0, 0.0), |(n, sum, squares), x| (n + 1.0, sum + x, squares + x * x));
        sum * sum / (count * squares)
    }
}

/// Flows and their queue.
#[derive(Debug)]
pub(super) struct Bottleneck {
    queue: Queue,
    notification: NotificationParameters,
    flows: Vec<Flow>,
    now: Instant,
    /// When the queue will be empty.
    busy_until: Instant,
    events: BTreeMap<(Instant, u64), Event>,
    count: u64,
    random: ChaCha8Rng,
    packet: OwnedPacket,
    longest_queue: u64,
    waited: (u64, u64),
}

impl Bottleneck {
    /// `flows` flows, none of which sends yet, on links of the queue's rate.
    pub(super) fn new(queue: Queue, algorithm: &dyn Algorithm, flows: usize, seed: u64) -> Self {
        let flow = |_| Flow {
            control: algorithm.start(queue.rate),
            pacer: Pacer::new(queue.rate, Duration::ZERO, PACKET),
            receiver: NotificationPoint::new(),
            is_sending: false,
            delivered: 0,
            measured: None,
        };
        let bth = Bth::new(Opcode::rc(Operation::WriteMiddle), Qpn::new(2), Psn::new(0));
        Self {
            queue,
            notification: NotificationParameters::PAPER,
            flows: (0..flows).map(flow).collect(),
            now: Instant::ZERO,
            busy_until: Instant::ZERO,
            events: BTreeMap::new(),
            count: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
            packet: OwnedPacket::new(Repr::new(bth, Extended::None), &[]),
            longest_queue: 0,
            waited: (0, 0),
        }
    }

    /// A flow begins to send, or stops.
    pub(super) fn set_sending(&mut self, flow: usize, is_sending: bool) {
        let was_sending = std::mem::replace(&mut self.flows[flow].is_sending, is_sending);
        if is_sending && !was_sending {
            self.schedule(self.now, Event::Turn(flow));
        }
    }

    /// Lets `time` pass, and says what passed in it.
    pub(super) fn run(&mut self, time: Duration) -> Span {
        let end = self.now + time;
        self.flows.iter_mut().for_each(|flow| flow.delivered = 0);
        (self.longest_queue, self.waited) = (0, (0, 0));
        while let Some(first) = self.events.first_entry().filter(|first| first.key().0 <= end) {
            self.now = first.key().0;
            let event = first.remove();
            self.act(event);
        }
        self.now = end;
        let delivered: Vec<_> = self.flows.iter().map(|flow| flow.delivered).collect();
        Span {
            utilisation: delivered.iter().sum::<u64>() as f64 / self.queue.rate.bytes_in(time) as f64,
            delivered,
            longest_queue: self.longest_queue,
            mean_queue: self.waited.0 / self.waited.1.max(1),
        }
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count), event);
    }

    fn act(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Turn(flow) => self.turn(flow),
            Event::Arrival { flow, marked, is_measured } => {
                self.flows[flow].delivered += PACKET;
                let view = self.packet.view();
                if self.flows[flow].receiver.on_packet(now, marked, &view, &self.notification) {
                    self.schedule(now + self.queue.delay, Event::Notification(flow));
                }
                if is_measured {
                    self.schedule(now + self.queue.delay, Event::Answer(flow));
                }
            }
            Event::Notification(flow) => self.flows[flow].control.on_event(now, CongestionEvent::Notified),
            Event::Answer(flow) => {
                let flow = &mut self.flows[flow];
                if let Some(sent_at) = flow.measured.take() {
                    flow.control.on_event(now, CongestionEvent::RoundTrip { time: now - sent_at });
                }
            }
        }
    }

    /// Sends a flow's next packet if its rate allows one, and says when to look again.
    fn turn(&mut self, index: usize) {
        let now = self.now;
        let flow = &mut self.flows[index];
        if !flow.is_sending {
            return;
        }
        flow.control.handle_timeout(now);
        flow.pacer.set_rate(now, flow.control.rate());
        if flow.pacer.poll_budget(now).is_some() {
            flow.control.on_event(now, CongestionEvent::Sent { bytes: PACKET });
            flow.pacer.on_sent(now, PACKET);
            let is_measured = flow.measured.is_none();
            flow.measured.get_or_insert(now);
            self.enqueue(index, is_measured);
        }
        let flow = &self.flows[index];
        let next = flow.control.poll_timeout().into_iter().chain([flow.pacer.clear_at()]).min();
        self.schedule(next.unwrap_or(now).max(now + Duration::from_nanos(1)), Event::Turn(index));
    }

    fn enqueue(&mut self, flow: usize, is_measured: bool) {
        let waiting = self.queue.rate.bytes_in(self.busy_until - self.now);
        self.longest_queue = self.longest_queue.max(waiting);
        self.waited = (self.waited.0 + waiting, self.waited.1 + 1);
        let marked = self.queue.marks(waiting, self.random.random());
        self.busy_until = self.busy_until.max(self.now) + self.queue.rate.time_for(PACKET);
        self.schedule(self.busy_until + self.queue.delay, Event::Arrival { flow, marked, is_measured });
    }
}
