//! Two sides of a test, from the first word over the exchange to connected queue pairs.
//!
//! The client decides what is done, and the server follows: a server needs no options but an address.

use super::{
    FoundWrong,
    exchange::{self, Endpoint, Exchange, PeerGone},
};
use anyhow::{Context as _, anyhow, bail};
use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};
use uroce::{
    settings::Settings,
    verbs::{
        AccessFlags, CompletionChannel, CompletionQueue, Connection, Context, Device, Gid, MemoryRegion, Mtu, PORT,
        ProtectionDomain, Psn, QpCapabilities, QpInitAttributes, Qpn, QueuePair, RKey, WorkCompletion,
    },
};

/// Changes when two versions of the command would misunderstand each other.
const EXCHANGE_VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    version: u32,
    /// Which test, as it is typed.
    test: String,
    /// The path MTU that the client can do, or insists on.
    mtu: usize,
    plan: serde_json::Value,
}

#[derive(Debug, Serialize, Deserialize)]
enum Welcome {
    Agreed { mtu: usize },
    Refused { reason: String },
}

/// What each side says at a barrier.
#[derive(Debug, Serialize, Deserialize)]
struct Here;

/// One side: its device, and the way to talk to the other.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) device: Device,
    pub(crate) exchange: Exchange,
    pub(crate) mtu: Mtu,
    /// The objects of the device are released in this order.
    pd: ProtectionDomain,
    context: Context,
}

/// A connected queue pair, its buffer, and the other side's.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) qp: QueuePair,
    pub(crate) region: MemoryRegion,
    pub(crate) remote: Endpoint,
    /// The first PSN that this side sends.
    pub(crate) psn: u32,
}

impl Lane {
    /// The other side's key.
    pub(crate) const fn remote_key(&self) -> RKey {
        RKey(self.remote.rkey)
    }
}

/// What it took to connect a number of queue pairs that then do nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdleCost {
    pub(crate) setup: Duration,
    /// How much this process has grown.
    pub(crate) bytes: u64,
}

impl Session {
    /// The side that decides: tells the server which test to run by which plan, and agrees on the path MTU.
    pub(crate) fn client<P: Serialize>(
        settings: &Settings,
        device: Device,
        mut exchange: Exchange,
        test: &str,
        plan: &P,
    ) -> anyhow::Result<Self> {
        let context = device.open()?;
        let able = context.query_port(PORT)?.active_mtu;
        let wanted = settings.mtu.unwrap_or(able);
        if wanted > able {
            bail!("MTU {wanted} does not fit the network of {}: it carries up to {able}", device.address());
        }
        let hello = Hello {
            version: EXCHANGE_VERSION,
            test: test.to_owned(),
            mtu: wanted.bytes(),
            plan: serde_json::to_value(plan)?,
        };
        exchange.send(&hello)?;
        let mtu = match exchange.receive()? {
            Welcome::Agreed { mtu } => Mtu::from_bytes(mtu).context("the server answered with an impossible MTU")?,
            Welcome::Refused { reason } => bail!("the server at {} refuses: {reason}", exchange.peer()),
        };
        if settings.mtu.is_some_and(|insisted| insisted != mtu) {
            bail!("the server's network carries MTU {mtu} at most: run again with --mtu {mtu}");
        }
        Ok(Self { pd: context.alloc_pd()?, context, device, exchange, mtu })
    }

    /// The side that follows. Refuses a client that runs another test.
    pub(crate) fn server<P: DeserializeOwned>(
        device: Device,
        mut exchange: Exchange,
        test: &str,
    ) -> anyhow::Result<(Self, P)> {
        let context = device.open()?;
        let able = context.query_port(PORT)?.active_mtu;
        let hello: Hello = exchange.receive()?;
        let checked = if hello.version != EXCHANGE_VERSION {
            Err(format!("it speaks version {EXCHANGE_VERSION} of the exchange, not {}", hello.version))
        } else if hello.test != test {
            Err(format!("it runs {test:?}, not {:?}", hello.test))
        } else {
            Mtu::from_bytes(hello.mtu).ok_or_else(|| format!("there is no MTU of {}", hello.mtu)).and_then(|mtu| {
                let plan = serde_json::from_value(hello.plan).map_err(|error| error.to_string())?;
                Ok((mtu.min(able), plan))
            })
        };
        match checked {
            Ok((mtu, plan)) => {
                exchange.send(&Welcome::Agreed { mtu: mtu.bytes() })?;
                Ok((Self { pd: context.alloc_pd()?, context, device, exchange, mtu }, plan))
            }
            Err(reason) => {
                exchange.send(&Welcome::Refused { reason: reason.clone() })?;
                bail!("refused the client at {}: this server {}", exchange.peer(), reason.trim_start_matches("it "))
            }
        }
    }

    /// A completion queue.
    pub(crate) fn completion_queue(&self, entries: u32) -> anyhow::Result<CompletionQueue> {
        Ok(self.context.create_cq(entries, 0, None)?)
    }

    /// A completion queue with a channel that wakes whoever waits for a completion.
    pub(crate) fn completion_queue_with_channel(
        &self,
        entries: u32,
    ) -> anyhow::Result<(CompletionQueue, CompletionChannel)> {
        let channel = self.context.create_comp_channel()?;
        Ok((self.context.create_cq(entries, 0, Some(&channel))?, channel))
    }

    /// Makes `count` queue pairs, each with a buffer of `buffer` bytes, and connects them with the other side's.
    pub(crate) fn connect(
        &mut self,
        cq: &CompletionQueue,
        count: u32,
        cap: QpCapabilities,
        buffer: usize,
        rng: &mut impl Rng,
    ) -> anyhow::Result<Vec<Lane>> {
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let made = (0..count)
            .map(|_| {
                let region = self.pd.reg_mr(buffer, access)?;
                Ok((self.queue_pair(cq, cap)?, region, rng.random::<u32>() & 0xff_ffff))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let own = made.iter().map(|(qp, region, psn)| self.endpoint(qp, Some(region), *psn)).collect();
        let remote = self.swap(own)?;
        made.into_iter()
            .zip(remote)
            .map(|((qp, region, psn), remote)| {
                qp.connect(&self.connection(psn, &remote))?;
                Ok(Lane { qp, region, remote, psn })
            })
            .collect::<anyhow::Result<Vec<_>>>()
            .and_then(|lanes| self.barrier().map(|()| lanes))
    }

    /// Makes and connects `count` queue pairs that are left alone from then on.
    pub(crate) fn connect_idle(
        &mut self,
        cq: &CompletionQueue,
        count: u32,
        rng: &mut impl Rng,
    ) -> anyhow::Result<(Vec<QueuePair>, IdleCost)> {
        if count == 0 {
            return Ok((Vec::new(), IdleCost::default()));
        }
        let before = resident_bytes();
        let start = Instant::now();
        let made = (0..count)
            .map(|_| Ok((self.queue_pair(cq, QpCapabilities::default())?, rng.random::<u32>() & 0xff_ffff)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let own = made.iter().map(|(qp, psn)| self.endpoint(qp, None, *psn)).collect();
        let remote = self.swap(own)?;
        for ((qp, psn), remote) in made.iter().zip(&remote) {
            qp.connect(&self.connection(*psn, remote))?;
        }
        let setup = start.elapsed();
        drop(remote);
        let bytes = resident_bytes().saturating_sub(before);
        self.barrier()?;
        Ok((made.into_iter().map(|(qp, _)| qp).collect(), IdleCost { setup, bytes }))
    }

    fn queue_pair(&self, cq: &CompletionQueue, cap: QpCapabilities) -> anyhow::Result<QueuePair> {
        Ok(self.pd.create_qp(&QpInitAttributes { cap, ..QpInitAttributes::new(cq) })?)
    }

    fn endpoint(&self, qp: &QueuePair, region: Option<&MemoryRegion>, psn: u32) -> Endpoint {
        Endpoint {
            address: self.device.address(),
            qpn: qp.qp_num().value(),
            psn,
            rkey: region.map_or(0, |region| region.rkey().0),
            buffer: region.map_or(0, MemoryRegion::address),
        }
    }

    fn connection(&self, psn: u32, remote: &Endpoint) -> Connection {
        Connection {
            remote_psn: Psn::new(remote.psn),
            local_psn: Psn::new(psn),
            path_mtu: self.mtu,
            ..Connection::new(Gid::from(remote.address), Qpn::new(remote.qpn))
        }
    }

    /// Tells the other side of one's queue pairs, and hears of its.
    fn swap(&mut self, own: Vec<Endpoint>) -> anyhow::Result<Vec<Endpoint>> {
        self.exchange.send(&own)?;
        let remote: Vec<Endpoint> = self.exchange.receive()?;
        if remote.len() != own.len() {
            bail!("{} has made {} queue pairs, not {}", self.exchange.peer(), remote.len(), own.len());
        }
        Ok(remote)
    }

    /// Waits until the other side is here too.
    pub(crate) fn barrier(&mut self) -> anyhow::Result<()> {
        self.exchange.send(&Here)?;
        self.exchange.receive().map(|Here| ())
    }
}

/// The completion, unless it is of a failure.
pub(crate) fn succeeded(completion: &WorkCompletion) -> Result<&WorkCompletion, FoundWrong> {
    if completion.is_success() {
        return Ok(completion);
    }
    Err(FoundWrong(format!(
        "the connection broke: queue pair {} completed {:?} with {:?}",
        completion.qp_num, completion.opcode, completion.status
    )))
}

/// How much memory this process holds.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// Runs both sides of a test in this process, the server on a thread of its own.
pub(crate) fn both_sides<S: Send + 'static, C>(
    server: impl FnOnce(Exchange) -> anyhow::Result<S> + Send + 'static,
    client: impl FnOnce(Exchange) -> anyhow::Result<C>,
) -> anyhow::Result<C> {
    let (ours, theirs) = Exchange::pair()?;
    let server = thread::Builder::new().name("server".to_owned()).spawn(move || server(theirs))?;
    let result = client(ours);
    let served = server.join().map_err(|_| anyhow!("the server's thread has panicked"))?;
    match (result, served) {
        // The client then merely misses the server, which knows why it left.
        (Err(client), Err(server)) if client.is::<PeerGone>() => Err(server),
        (Ok(_), Err(server)) => Err(server),
        (result, _) => result,
    }
}

/// Waits for the client of a test at `address`, after telling how to start it: `again` is what to type.
pub(crate) fn accept(address: IpAddr, port: u16, again: &str) -> anyhow::Result<Exchange> {
    let listener = exchange::listen(address, port)?;
    let port = if port == exchange::DEFAULT_PORT { String::new() } else { format!(" --port {port}") };
    eprintln!("waiting at {}; in another terminal: uroce {again} {address}{port}", listener.local_addr()?);
    Exchange::accept(&listener)
}
