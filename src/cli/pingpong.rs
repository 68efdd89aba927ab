//! `uroce pingpong`: what `ibv_rc_pingpong` does, with every byte of every message checked.

use super::{
    FoundWrong, device,
    exchange::{self, Endpoint, Exchange},
    outcome, pattern, seeded_rng,
    session::{self, Lane, Session, succeeded},
    units,
};
use anyhow::{Context as _, bail};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, Write},
    net::IpAddr,
    process::ExitCode,
    time::Instant,
};
use uroce::{
    settings::Settings,
    verbs::{
        Buffers, CompletionChannel, CompletionQueue, Device, Error, Gid, Notify, QpCapabilities, ReceiveWorkRequest,
        SendOperation, SendWorkRequest, Target, WcOpcode, WorkCompletion,
    },
};

/// How long to sleep at most before looking whether the other side is still there.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// The same in empty polls.
const POLLS_BETWEEN_LOOKS: u32 = 4096;
/// Receives that are kept posted: each side sends only in answer to what it has received.
const RECEIVES: u32 = 1;
/// Sends that may be open at once: that of the message before this one may wait for its ACK yet.
const SENDS: u32 = 4;

const TOO_LARGE: &str = "a message that large does not fit this machine's memory";

/// Options of `uroce pingpong`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PingpongOptions {
    /// The server to play with; without it, this is the server
    #[arg(conflicts_with = "loopback")]
    host: Option<String>,
    /// Be both sides, each on a thread of its own
    #[arg(long)]
    loopback: bool,
    /// Message size, with K, M or G behind it where wanted
    #[arg(short, long, default_value = "4K", value_parser = units::parse_size)]
    size: u64,
    /// How many messages to bounce
    #[arg(short = 'n', long, default_value_t = 1000)]
    iterations: u64,
    /// Sleep on a completion channel instead of polling
    #[arg(short, long)]
    events: bool,
    /// TCP port of the exchange
    #[arg(long, default_value_t = exchange::DEFAULT_PORT)]
    port: u16,
}

/// What the client tells the server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Plan {
    size: u64,
    iterations: u64,
    /// Seeds the bytes of both sides.
    seed: u64,
}

impl Plan {
    fn length(&self) -> anyhow::Result<usize> {
        usize::try_from(self.size).context(TOO_LARGE)
    }
}

/// Runs it.
pub(crate) fn run(settings: &Settings, options: &PingpongOptions) -> anyhow::Result<ExitCode> {
    let events = options.events;
    if options.loopback {
        let (near, far) = device::open_pair(settings)?;
        let seed = settings.seed;
        return session::both_sides(
            move |exchange| server(far, exchange, seed, events),
            |exchange| client(settings, options, near, exchange),
        );
    }
    if let Some(host) = &options.host {
        let device = device::open_towards(settings, host, options.port)?;
        return client(settings, options, device, Exchange::connect(host, options.port)?);
    }
    let device = device::open(settings)?;
    let exchange = session::accept(device.address(), options.port, "pingpong")?;
    let peer = exchange.peer().to_owned();
    server(device, exchange, settings.seed, events)?;
    eprintln!("pingpong with {peer}: done, all data right");
    Ok(outcome(true))
}

fn client(
    settings: &Settings,
    options: &PingpongOptions,
    device: Device,
    exchange: Exchange,
) -> anyhow::Result<ExitCode> {
    let plan = Plan { size: options.size, iterations: options.iterations, seed: settings.seed_or_random() };
    let mut session = Session::client(settings, device, exchange, "pingpong", &plan)?;
    let mut player = Player::new(&mut session, &plan, options.events, settings.seed)?;
    let own = Endpoint { qpn: player.lane.qp.qp_num().value(), psn: player.lane.psn, ..player.lane.remote };
    let mut out = io::stdout().lock();
    print_side(&mut out, "local", session.device.address(), &own)?;
    print_side(&mut out, "remote", player.lane.remote.address, &player.lane.remote)?;
    out.flush()?;

    let before = session.device.counters().retransmitted_pkts;
    let start = Instant::now();
    for round in 0..plan.iterations {
        player.send(&mut session, Turn::Client, round)?;
        player.receive(&mut session, Turn::Server, round)?;
    }
    let elapsed = start.elapsed();
    player.finish(&mut session)?;
    session.barrier()?;

    let bytes = plan.size.saturating_mul(2).saturating_mul(plan.iterations);
    let seconds = elapsed.as_secs_f64();
    writeln!(out, "{bytes} bytes in {seconds:.2} s = {}", units::format_rate(bytes, elapsed))?;
    writeln!(
        out,
        "{} iterations in {seconds:.2} s = {:.2} µs/iteration",
        plan.iterations,
        seconds * 1e6 / plan.iterations.max(1) as f64
    )?;
    let retransmitted = session.device.counters().retransmitted_pkts - before;
    writeln!(out, "all data right, {retransmitted} packets retransmitted from here")?;
    Ok(outcome(true))
}

fn server(device: Device, exchange: Exchange, seed: Option<u64>, events: bool) -> anyhow::Result<()> {
    let (mut session, plan) = Session::server::<Plan>(device, exchange, "pingpong")?;
    // Not the client's sequence, which has the same seed when both are one command.
    let mut player = Player::new(&mut session, &plan, events, seed.map(|seed| !seed))?;
    for round in 0..plan.iterations {
        player.receive(&mut session, Turn::Client, round)?;
        player.send(&mut session, Turn::Server, round)?;
    }
    player.finish(&mut session)?;
    session.barrier()
}

fn print_side(out: &mut impl Write, side: &str, address: IpAddr, endpoint: &Endpoint) -> io::Result<()> {
    writeln!(out, "{side:>8} address: QPN {:#08x}, PSN {:#08x}, GID {}", endpoint.qpn, endpoint.psn, Gid::from(address))
}

/// Whose message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Client,
    Server,
}

/// One side of the game: sends, receives, compares.
#[derive(Debug)]
struct Player {
    lane: Lane,
    cq: CompletionQueue,
    sleep: Option<Sleep>,
    length: usize,
    seed: u64,
    arrived: u32,
    outstanding: u32,
    empty_polls: u32,
}

impl Player {
    fn new(session: &mut Session, plan: &Plan, events: bool, seed: Option<u64>) -> anyhow::Result<Self> {
        let length = plan.length()?;
        let (cq, sleep) = if events {
            let (cq, channel) = session.completion_queue_with_channel(RECEIVES + SENDS)?;
            (cq, Some(Sleep::new(channel)?))
        } else {
            (session.completion_queue(RECEIVES + SENDS)?, None)
        };
        let cap = QpCapabilities { max_send_wr: SENDS, max_recv_wr: RECEIVES, ..QpCapabilities::default() };
        // What is sent comes first, and what is received behind it.
        let buffer = length.max(1).checked_mul(2).context(TOO_LARGE)?;
        let mut lanes = session.connect(&cq, 1, cap, buffer, &mut seeded_rng(seed))?;
        let player = Self {
            lane: lanes.pop().context("no queue pair")?,
            cq,
            sleep,
            length,
            seed: plan.seed,
            arrived: 0,
            outstanding: 0,
            empty_polls: 0,
        };
        player.post_receive()?;
        session.barrier()?;
        Ok(player)
    }

    /// The seed of a message's bytes.
    const fn pattern(&self, turn: Turn, round: u64) -> u64 {
        self.seed ^ (round << 1) ^ turn as u64
    }

    /// Sends the message of a round.
    fn send(&mut self, session: &mut Session, turn: Turn, round: u64) -> anyhow::Result<()> {
        while self.outstanding == SENDS {
            self.wait(session)?;
        }
        pattern::fill(&self.lane.region, 0, self.length, self.pattern(turn, round))?;
        let list = [self.lane.region.sge(0, self.length)];
        self.lane.qp.post_send(&[SendWorkRequest {
            wr_id: round,
            operation: SendOperation::Send,
            buffers: Buffers::List(&list),
            signaled: true,
            solicited: false,
            fence: false,
            target: Target::Peer,
        }])?;
        self.outstanding += 1;
        Ok(())
    }

    /// Receives the message of a round, and compares it.
    fn receive(&mut self, session: &mut Session, turn: Turn, round: u64) -> anyhow::Result<()> {
        while self.arrived == 0 {
            self.wait(session)?;
        }
        self.arrived -= 1;
        let pattern = self.pattern(turn, round);
        if let Some(at) = pattern::difference(&self.lane.region, self.length, self.length, pattern)? {
            bail!(FoundWrong(format!("byte {at} of {} differs in message {round}", self.length)));
        }
        // The other side sends its next message only after ours.
        self.post_receive()
    }

    /// Waits until everything that was sent has completed.
    fn finish(&mut self, session: &mut Session) -> anyhow::Result<()> {
        while self.outstanding > 0 {
            self.wait(session)?;
        }
        Ok(())
    }

    fn post_receive(&self) -> anyhow::Result<()> {
        let list = [self.lane.region.sge(self.length, self.length)];
        Ok(self.lane.qp.post_recv(&[ReceiveWorkRequest { wr_id: 0, sg_list: &list }])?)
    }

    /// Takes completions; where there are none, sleeps or returns.
    fn wait(&mut self, session: &mut Session) -> anyhow::Result<()> {
        if self.take()? > 0 {
            return Ok(());
        }
        if self.sleep.is_some() {
            self.cq.req_notify(Notify::Next)?;
            // What completed before the queue was armed wakes nobody.
            if self.take()? > 0 {
                return Ok(());
            }
        }
        let look = match &self.sleep {
            Some(sleep) => !sleep.until_event()?,
            None => {
                self.empty_polls = (self.empty_polls + 1) % POLLS_BETWEEN_LOOKS;
                self.empty_polls == 0
            }
        };
        if look {
            session.exchange.check()?;
        }
        Ok(())
    }

    fn take(&mut self) -> anyhow::Result<usize> {
        let mut completions = [WorkCompletion::default(); (RECEIVES + SENDS) as usize];
        let count = self.cq.poll(&mut completions)?;
        for completion in &completions[..count] {
            if succeeded(completion)?.opcode == WcOpcode::Receive {
                self.arrived += 1;
            } else {
                self.outstanding -= 1;
            }
        }
        Ok(count)
    }
}

/// Sleeping until a completion channel has an event.
#[derive(Debug)]
struct Sleep {
    channel: CompletionChannel,
}

impl Sleep {
    fn new(channel: CompletionChannel) -> anyhow::Result<Self> {
        channel.set_nonblocking(true)?;
        Ok(Self { channel })
    }

    /// Sleeps until there is an event, but not for long. Returns whether there was one.
    fn until_event(&self) -> anyhow::Result<bool> {
        let mut waiting = [PollFd::new(&self.channel, PollFlags::IN)];
        match poll(&mut waiting, Some(&LOOK_INTERVAL)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            result => result?,
        };
        match self.channel.get_event() {
            Ok(cq) => {
                cq.ack_events(1);
                Ok(true)
            }
            Err(Error::WouldBlock) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
