//! What an operation of the demo needs: two ends, a connection, memory on both sides, and a suspicious mind.

use crate::cli::{FoundWrong, pattern, session::succeeded};
use anyhow::{Context as _, bail};
use std::{
    ops::Range,
    time::{Duration, Instant},
};
use uroce::verbs::{
    AccessFlags, CompletionChannel, CompletionQueue, Connection, Context, Device, MemoryRegion, Mtu, ProtectionDomain,
    Psn, QpCapabilities, QpInitAttributes, QueuePair, WcOpcode, WorkCompletion,
};

/// Scatter-gather elements of a request: as many as a device has.
pub(super) const ELEMENTS: usize = 32;
/// The longest inline send.
pub(super) const INLINE_BYTES: usize = 256;
/// Work requests of one operation at most.
const REQUESTS: u32 = 64;
/// The longest message.
const LONGEST: usize = (3 << 20) + 17;
/// The shortest message of [`Stage::send_sizes`].
const SHORTEST_SEND: usize = 16;
/// Each of the regions of an end.
const REGION_BYTES: usize = 4 << 20;
/// What memory holds where nothing may be written.
const POISON: u8 = 0xa5;
/// How many bytes beside each message must stay as they are. Odd, so that messages begin anywhere.
const MARGIN: usize = 67;
/// How long an operation may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// One end of a connection: a device's objects.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) device: Device,
    pub(super) pd: ProtectionDomain,
    pub(super) cq: CompletionQueue,
    pub(super) channel: CompletionChannel,
    /// What messages are taken from.
    pub(super) source: MemoryRegion,
    /// Where they go.
    pub(super) target: MemoryRegion,
    /// Where they rest on a way of two hops.
    pub(super) scratch: MemoryRegion,
    pub(super) context: Context,
}

impl End {
    pub(super) fn new(device: &Device) -> anyhow::Result<Self> {
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        channel.set_nonblocking(true)?;
        Ok(Self {
            device: device.clone(),
            cq: context.create_cq(4 * REQUESTS, 0, Some(&channel))?,
            channel,
            source: pd.reg_mr(REGION_BYTES, all_access())?,
            target: pd.reg_mr(REGION_BYTES, all_access())?,
            scratch: pd.reg_mr(REGION_BYTES, all_access())?,
            pd,
            context,
        })
    }
}

/// Everything that a region may allow.
pub(super) fn all_access() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
        | AccessFlags::REMOTE_INVALIDATE
}

/// How the queue pairs of a phase are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    /// Two queue pairs.
    Pair,
    /// One queue pair, to itself.
    Itself,
}

/// Which ends to connect, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connecting<'a> {
    pub(super) near: &'a End,
    pub(super) far: &'a End,
    pub(super) topology: Topology,
    /// The local ACK timeout code.
    pub(super) timeout: u8,
}

/// A connection between two ends, for one operation at one MTU.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    pub(super) near: &'a End,
    pub(super) far: &'a End,
    pub(super) near_qp: QueuePair,
    pub(super) far_qp: QueuePair,
    pub(super) mtu: Mtu,
    long: bool,
    seed: u64,
}

/// Where messages lie in a region, each with a margin on both sides.
pub(super) type Spans = Vec<Range<usize>>;

impl<'a> Stage<'a> {
    /// Connects the ends. `seed` decides the bytes of all messages and the first PSNs; `long` says whether this MTU
    /// also carries the longest messages.
    pub(super) fn new(connecting: &Connecting<'a>, mtu: Mtu, long: bool, seed: u64) -> anyhow::Result<Self> {
        let Connecting { near, far, topology, timeout } = *connecting;
        let queue_pair = |end: &End| {
            end.pd.create_qp(&QpInitAttributes {
                cap: QpCapabilities {
                    max_send_wr: REQUESTS,
                    max_recv_wr: REQUESTS,
                    max_send_sge: ELEMENTS as u32,
                    max_recv_sge: ELEMENTS as u32,
                    max_inline_data: INLINE_BYTES as u32,
                },
                ..QpInitAttributes::new(&end.cq)
            })
        };
        let connect = |qp: &QueuePair, peer: &End, peer_qp: &QueuePair, local_psn, remote_psn| {
            qp.connect(&Connection {
                path_mtu: mtu,
                timeout,
                local_psn,
                remote_psn,
                ..Connection::new(peer.device.gid(), peer_qp.qp_num())
            })
        };
        let near_qp = queue_pair(near)?;
        // Close to the end of the 24 bits, so that PSNs wrap round within the first message.
        let (near_psn, far_psn) = (Psn::new(0xff_fff0 | seed as u32), Psn::new((seed >> 24) as u32));
        let far_qp = match topology {
            Topology::Itself => {
                connect(&near_qp, near, &near_qp, near_psn, near_psn)?;
                near_qp.clone()
            }
            Topology::Pair => {
                let far_qp = queue_pair(far)?;
                connect(&near_qp, far, &far_qp, near_psn, far_psn)?;
                connect(&far_qp, near, &near_qp, far_psn, near_psn)?;
                far_qp
            }
        };
        let stage = Self { near, far, near_qp, far_qp, mtu, long, seed };
        // What an operation before this one has left behind is none of this one's business.
        let mut left = [WorkCompletion::default(); 16];
        for cq in stage.queues() {
            while cq.poll(&mut left)? > 0 {}
        }
        Ok(stage)
    }

    /// Message sizes that matter at this MTU: nothing, a few bytes, the edges of a packet, many packets.
    ///
    /// The captures are to be read by tshark, which guesses what payload means: it takes one that is padded from one
    /// or two bytes for Ethernet, one of a SEND that is shorter than sixteen for RPC over RDMA, and some of either for
    /// malformed. None of these sizes leaves so few bytes to a packet.
    pub(super) fn sizes(&self) -> Vec<usize> {
        let mtu = self.mtu.bytes();
        let longest = if self.long { LONGEST } else { 33 * mtu + 18 };
        vec![0, 5, 7, 64, mtu - 1, mtu, mtu + 17, 2 * mtu, 5 * mtu + 19, longest]
    }

    /// The same for SENDs.
    pub(super) fn send_sizes(&self) -> Vec<usize> {
        self.sizes().into_iter().map(|size| size.max(SHORTEST_SEND)).collect()
    }

    /// Where messages of these sizes lie.
    pub(super) fn spans(sizes: &[usize]) -> Spans {
        let mut end = 0;
        sizes
            .iter()
            .map(|size| {
                let start = end + MARGIN;
                end = start + size;
                start..end
            })
            .collect()
    }

    fn pattern(&self, message: usize) -> u64 {
        self.seed.wrapping_add(message as u64)
    }

    /// The bytes of a message.
    pub(super) fn bytes(&self, message: usize, length: usize) -> Vec<u8> {
        pattern::bytes(self.pattern(message), length)
    }

    /// Fills each span with its message.
    pub(super) fn fill(&self, region: &MemoryRegion, spans: &[Range<usize>]) -> anyhow::Result<()> {
        for (message, span) in spans.iter().enumerate() {
            pattern::fill(region, span.start, span.len(), self.pattern(message))?;
        }
        Ok(())
    }

    /// Makes sure that each span holds something else than its message, and so do the margins.
    pub(super) fn poison(region: &MemoryRegion, spans: &[Range<usize>]) -> anyhow::Result<()> {
        let used = spans.last().map_or(0, |span| span.end) + MARGIN;
        Ok(region.fill(0, used, POISON)?)
    }

    /// Compares each span with its message, and the margins with what they were.
    pub(super) fn compare(&self, region: &MemoryRegion, spans: &[Range<usize>]) -> anyhow::Result<()> {
        let mut margin = [0; MARGIN];
        for (message, span) in spans.iter().enumerate() {
            let length = span.len();
            if let Some(at) = pattern::difference(region, span.start, length, self.pattern(message))? {
                bail!(FoundWrong(format!("byte {at} of {length} differs")));
            }
            for start in [span.start - MARGIN, span.end] {
                region.read(start, &mut margin)?;
                if margin.iter().any(|&byte| byte != POISON) {
                    bail!(FoundWrong(format!("bytes beside a message of {length} have changed")));
                }
            }
        }
        Ok(())
    }

    /// Whether there is one queue pair only.
    pub(super) fn is_to_itself(&self) -> bool {
        self.near_qp.qp_num() == self.far_qp.qp_num() && self.near.device.address() == self.far.device.address()
    }

    fn queues(&self) -> impl Iterator<Item = &CompletionQueue> {
        // One queue when both ends are one, so that nothing is asked for twice.
        let far = (self.far.cq.number() != self.near.cq.number()
            || self.far.device.address() != self.near.device.address())
        .then_some(&self.far.cq);
        std::iter::once(&self.near.cq).chain(far)
    }

    /// Waits for exactly these completions, of the near send queue and of the far receive queue, in the order in
    /// which their requests were numbered. Returns those of receives.
    pub(super) fn complete(&self, sends: Range<usize>, receives: Range<usize>) -> anyhow::Result<Vec<WorkCompletion>> {
        let start = Instant::now();
        let (mut next_send, mut next_receive) = (sends.start, receives.start);
        let mut received = Vec::with_capacity(receives.len());
        while next_send < sends.end || next_receive < receives.end {
            if start.elapsed() > PATIENCE {
                bail!(FoundWrong(format!(
                    "send {next_send} of {} and receive {next_receive} of {} were still open after {} s",
                    sends.end,
                    receives.end,
                    PATIENCE.as_secs()
                )));
            }
            self.poll(|completion| {
                succeeded(&completion)?;
                let next = match completion.opcode {
                    WcOpcode::Receive | WcOpcode::ReceiveWithImmediate => {
                        received.push(completion);
                        &mut next_receive
                    }
                    _ => &mut next_send,
                };
                if completion.wr_id != *next as u64 {
                    bail!(FoundWrong(format!("request {} completed when {next} was due", completion.wr_id)));
                }
                *next += 1;
                Ok(())
            })?;
        }
        self.poll(|completion| bail!(FoundWrong(format!("request {} completed beyond the last", completion.wr_id))))?;
        Ok(received)
    }

    /// Waits for the completion of one request, which is to fail.
    pub(super) fn complete_with_failure(&self) -> anyhow::Result<WorkCompletion> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let mut found = None;
            self.poll(|completion| {
                found.get_or_insert(completion);
                Ok(())
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
        }
        bail!(FoundWrong("a request that had to fail did not complete".to_owned()))
    }

    fn poll(&self, mut each: impl FnMut(WorkCompletion) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut completions = [WorkCompletion::default(); 16];
        for cq in self.queues() {
            let count = cq.poll(&mut completions).context("polling a completion queue")?;
            completions[..count].iter().copied().try_for_each(&mut each)?;
        }
        Ok(())
    }
}
