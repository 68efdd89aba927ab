//! `uroce perf`: bandwidth and latency of every operation, as perftest measures them.
//!
//! - *Bandwidth*: the client keeps its send queues full. Latencies are then those of a full queue: from posting to
//!   completion.
//! - *Latency*: one message at a time. `send-lat` and `write-lat` bounce it, both sides polling, and report half of
//!   the round trip; `read-lat` and `atomic-lat` report the whole of it.
//!
//! With congestion control, or with `--timeline`, a bandwidth test also tells the rate over time.
//!
//! Every run checks, outside the measured time, that what arrived is what was sent.

mod active;
mod bounce;
mod ceiling;
mod meter;
mod passive;
mod report;
mod timeline;

use super::{
    device,
    exchange::{self, Exchange},
    outcome, seeded_rng,
    session::{self, Lane, Session},
    units,
};
use anyhow::bail;
use clap::{Args, ValueEnum};
use report::{Report, Row, Setting};
use serde::{Deserialize, Serialize};
use std::{ops::RangeInclusive, path::PathBuf, process::ExitCode, time::Duration};
use timeline::Timeline;
use uroce::{
    settings::Settings,
    verbs::{CompletionQueue, Device, QpCapabilities, ReceiveWorkRequest},
};
use uroce_protocol::rc::MAX_MESSAGE_LENGTH;

/// The largest size of `--all`.
const LARGEST_OF_ALL: u64 = 8 << 20;
/// The longest inline send. Longer than most hardware has it, shorter than a packet.
const INLINE_BYTES: u32 = 256;

/// What the options take.
const QPS: RangeInclusive<i64> = 1..=16_384;
const DEPTH: RangeInclusive<i64> = 1..=8192;
const IDLE_QPS: RangeInclusive<i64> = 0..=65_536;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Test {
    /// SEND, bandwidth
    SendBw,
    /// SEND there and back, latency
    SendLat,
    /// RDMA WRITE, bandwidth
    WriteBw,
    /// RDMA WRITE there and back, latency
    WriteLat,
    /// RDMA READ, bandwidth
    ReadBw,
    /// RDMA READ, latency
    ReadLat,
    /// FETCH_ADD, rate
    AtomicBw,
    /// FETCH_ADD, latency
    AtomicLat,
    /// Bare UDP with the same bytes and CRC: the most that this machine could do
    Ceiling,
}

impl Test {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    const fn is_bandwidth(self) -> bool {
        matches!(self, Self::SendBw | Self::WriteBw | Self::ReadBw | Self::AtomicBw | Self::Ceiling)
    }

    const fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicBw | Self::AtomicLat)
    }

    /// Whether the server answers message for message.
    const fn bounces(self) -> bool {
        matches!(self, Self::SendLat | Self::WriteLat)
    }

    /// What a reported latency is of.
    const fn latency_of(self) -> &'static str {
        match self {
            Self::SendLat | Self::WriteLat => "half round trip",
            Self::Ceiling => "half round trip of one packet",
            Self::ReadLat | Self::AtomicLat => "round trip",
            _ => "post to completion",
        }
    }
}

/// Options of `uroce perf`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PerfOptions {
    /// What to measure
    #[arg(value_enum)]
    test: Test,
    /// The server to measure against; without it, this is the server
    #[arg(conflicts_with = "loopback")]
    host: Option<String>,
    /// Be both sides, each on a thread of its own
    #[arg(long)]
    loopback: bool,
    /// Message size, with K, M or G behind it where wanted [default: 64K for bandwidth, 64 for latency]
    #[arg(short, long, value_parser = units::parse_size)]
    size: Option<u64>,
    /// Every power of two from 2 bytes to 8 MiB
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Queue pairs that send
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(QPS))]
    qps: u32,
    /// Work requests that a queue pair keeps posted (bandwidth)
    #[arg(short = 't', long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(DEPTH))]
    depth: u32,
    /// How long to measure each size: 10 or 10s, 500ms, 2m
    #[arg(short, long, default_value = "2s", value_parser = units::parse_duration)]
    duration: Duration,
    /// Measure this many messages of each size instead
    #[arg(short = 'n', long, conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Connect this many further queue pairs that do nothing
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(IDLE_QPS))]
    idle_qps: u32,
    /// TCP port of the exchange
    #[arg(long, default_value_t = exchange::DEFAULT_PORT)]
    port: u16,
    /// Print where the latencies lie
    #[arg(long)]
    histogram: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Write the rate over time to this file, millisecond by millisecond, as comma-separated values (bandwidth)
    #[arg(long, value_name = "FILE", conflicts_with = "all")]
    timeline: Option<PathBuf>,
}

impl PerfOptions {
    /// The sizes to measure, smallest first.
    fn sizes(&self) -> anyhow::Result<Vec<u64>> {
        if self.test.is_atomic() {
            if self.all || self.size.is_some_and(|size| size != 8) {
                bail!("an atomic is always 8 bytes: leave out --size and --all");
            }
            return Ok(vec![8]);
        }
        if self.all {
            return Ok((1..).map(|power| 1 << power).take_while(|&size| size <= LARGEST_OF_ALL).collect());
        }
        let size = self.size.unwrap_or(if self.test.is_bandwidth() { 64 << 10 } else { 64 });
        if size == 0 && self.test == Test::WriteLat {
            bail!("write-lat watches the last byte of a message: give it a --size of at least 1");
        }
        Ok(vec![size])
    }

    const fn limit(&self) -> Limit {
        match self.iterations {
            Some(count) => Limit::Messages(count),
            None => Limit::Time(self.duration),
        }
    }
}

/// What the client tells the server about the test to come.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    test: Test,
    qps: u32,
    depth: u32,
    idle_qps: u32,
    /// The largest message.
    size: u64,
    /// Seeds the bytes of both sides.
    seed: u64,
}

impl Plan {
    /// Whether it is a plan that the options of a client can make: it may have come from anybody.
    fn is_possible(&self) -> bool {
        QPS.contains(&self.qps.into())
            && DEPTH.contains(&self.depth.into())
            && IDLE_QPS.contains(&self.idle_qps.into())
            && self.size <= MAX_MESSAGE_LENGTH
    }

    /// Bytes of one message area.
    fn area(&self) -> usize {
        // An area is never empty, and never shares a cache line with another.
        usize::try_from(self.size.max(64).next_multiple_of(64)).unwrap_or(usize::MAX)
    }

    /// Bytes of a queue pair's buffer: what it sends comes first, and where it receives comes behind.
    fn buffer(&self) -> usize {
        self.area().saturating_mul(2)
    }

    /// Receives that a queue pair keeps posted.
    fn receives(&self) -> u32 {
        if self.test == Test::SendBw { self.depth * 2 } else { 16 }
    }

    fn capabilities(&self) -> QpCapabilities {
        QpCapabilities {
            max_send_wr: self.depth.max(16),
            max_recv_wr: self.receives(),
            max_inline_data: INLINE_BYTES,
            ..QpCapabilities::default()
        }
    }

    fn completion_queue(&self, session: &Session) -> anyhow::Result<CompletionQueue> {
        let entries = u64::from(self.qps) * u64::from(self.depth.max(16) + self.receives());
        session.completion_queue(u32::try_from(entries).unwrap_or(u32::MAX))
    }

    /// The seed of what the client, or the server, sends on a queue pair.
    const fn pattern(&self, side: u64, lane: usize) -> u64 {
        self.seed ^ side << 63 ^ (lane as u64) << 32
    }
}

const CLIENT: u64 = 0;
const SERVER: u64 = 1;

/// When a measurement ends.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Messages(u64),
    Time(Duration),
}

/// What the client says while the test runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Order {
    /// Prepare for messages of this size; the server answers [`Ready`].
    Start { size: u64 },
    /// That was all of that size: so many messages on each queue pair. The server answers [`Verdict`].
    Done { sent: Vec<u64> },
    /// Goodbye.
    End,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Ready;

/// What the server saw of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Verdict {
    /// What is wrong with what it received; `None` when nothing is.
    difference: Option<String>,
    retransmitted_packets: u64,
}

/// Runs it.
pub(crate) fn run(settings: &Settings, options: &PerfOptions) -> anyhow::Result<ExitCode> {
    if options.test == Test::Ceiling {
        return ceiling::run(settings, options);
    }
    let test = options.test;
    if options.timeline.is_some() && !test.is_bandwidth() {
        bail!("a timeline is of a bandwidth test: {} sends one message at a time", test.name());
    }
    if options.loopback {
        let (near, far) = device::open_pair(settings)?;
        let shared = near.address() == far.address();
        let seed = settings.seed;
        return session::both_sides(
            move |exchange| passive::serve(far, exchange, test, seed),
            |exchange| client(settings, options, near, exchange, shared),
        );
    }
    if let Some(host) = &options.host {
        let device = device::open_towards(settings, host, options.port)?;
        return client(settings, options, device, Exchange::connect(host, options.port)?, false);
    }
    let device = device::open(settings)?;
    let exchange = session::accept(device.address(), options.port, &format!("perf {}", test.name()))?;
    let peer = exchange.peer().to_owned();
    let verdicts = passive::serve(device, exchange, test, settings.seed)?;
    let wrong = verdicts.iter().find_map(|verdict| verdict.difference.as_deref());
    eprintln!("{} with {peer}: {}", test.name(), wrong.unwrap_or("done, all data right"));
    Ok(outcome(wrong.is_none()))
}

/// The side that measures. `shared`: the server is the same device.
fn client(
    settings: &Settings,
    options: &PerfOptions,
    device: Device,
    exchange: Exchange,
    shared: bool,
) -> anyhow::Result<ExitCode> {
    let sizes = options.sizes()?;
    let mut rng = seeded_rng(settings.seed);
    let plan = Plan {
        test: options.test,
        qps: options.qps,
        depth: options.depth,
        idle_qps: options.idle_qps,
        size: sizes.last().copied().unwrap_or(0),
        seed: settings.seed_or_random(),
    };
    let mut session = Session::client(settings, device, exchange, &options.test.name(), &plan)?;
    let cq = plan.completion_queue(&session)?;
    let lanes = session.connect(&cq, plan.qps, plan.capabilities(), plan.buffer(), &mut rng)?;
    let (idle, idle_cost) = session.connect_idle(&cq, plan.idle_qps, &mut rng)?;
    if plan.test == Test::SendLat {
        post_receives(&lanes[0], 0, &plan, plan.receives())?;
    }

    let setting = Setting {
        local: session.device.address().to_string(),
        remote: lanes[0].remote.address.to_string(),
        mtu: session.mtu.bytes(),
        idle: idle_cost,
        sides: if options.loopback { 2 } else { 1 },
    };
    let mut report = Report::new(options, setting);
    report.begin()?;
    for size in sizes {
        let before = session.device.counters().retransmitted_pkts;
        session.exchange.send(&Order::Start { size })?;
        let Ready = session.exchange.receive()?;
        let tells = options.timeline.is_some() || settings.congestion.is_some();
        let mut timeline = (tells && options.test.is_bandwidth()).then(Timeline::new);
        let measured = active::measure(&mut session, &cq, &lanes, &plan, size, options.limit(), timeline.as_mut())?;
        if let (Some(timeline), Some(path)) = (&timeline, &options.timeline) {
            timeline.write(path, &lanes)?;
        }
        session.exchange.send(&Order::Done { sent: measured.sent.clone() })?;
        let verdict: Verdict = session.exchange.receive()?;
        let own = session.device.counters().retransmitted_pkts - before;
        let difference = verdict.difference.or(active::difference(&lanes, &plan, size, &measured.sent)?);
        let retransmitted = own + if shared { 0 } else { verdict.retransmitted_packets };
        let timeline = timeline.map(|timeline| timeline.summary());
        report.add(Row { size, measured, retransmitted, difference, timeline })?;
    }
    session.exchange.send(&Order::End)?;
    drop(idle);
    report.finish()
}

/// Posts `count` receives of the longest message, all to the receiving half of the queue pair's buffer.
fn post_receives(lane: &Lane, index: usize, plan: &Plan, count: u32) -> anyhow::Result<()> {
    let list = [lane.region.sge(plan.area(), plan.area())];
    let requests = vec![ReceiveWorkRequest { wr_id: index as u64, sg_list: &list }; count as usize];
    Ok(lane.qp.post_recv(&requests)?)
}
