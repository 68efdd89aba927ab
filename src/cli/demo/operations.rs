//! The operations of the demo. Each moves messages between the ends of a stage, and compares.

use super::stage::{ELEMENTS, INLINE_BYTES, Stage, all_access};
use crate::cli::FoundWrong;
use anyhow::bail;
use std::{
    ops::Range,
    time::{Duration, Instant},
};
use uroce::verbs::{
    Buffers, Error, MemoryRegion, Notify, RKey, ReceiveWorkRequest, SendOperation, SendWorkRequest, Sge, Target,
    WcStatus, WorkCompletion,
};

/// An operation of the demo.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) name: &'static str,
    /// Whether it also moves messages of several MiB.
    pub(super) long: bool,
    pub(super) run: fn(&Stage<'_>) -> anyhow::Result<Tally>,
}

/// What an operation has moved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) smallest: usize,
    pub(super) largest: usize,
    /// From the first post to the last completion.
    pub(super) time: Duration,
}

impl Tally {
    fn of(sizes: &[usize], start: Instant) -> Self {
        Self {
            messages: sizes.len() as u64,
            bytes: sizes.iter().map(|&size| size as u64).sum(),
            smallest: sizes.iter().copied().min().unwrap_or(0),
            largest: sizes.iter().copied().max().unwrap_or(0),
            time: start.elapsed(),
        }
    }

    /// Both together.
    pub(super) fn and(self, other: Self) -> Self {
        if self.messages == 0 {
            return other;
        }
        Self {
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
            smallest: self.smallest.min(other.smallest),
            largest: self.largest.max(other.largest),
            time: self.time + other.time,
        }
    }
}

/// All of them.
pub(super) const ALL: [Operation; 13] = [
    operation("SEND", |stage| send(stage, |_| SendOperation::Send)).long(),
    operation("SEND with immediate", |stage| send(stage, |n| SendOperation::SendWithImmediate(immediate(n)))),
    operation("SEND with invalidate", send_with_invalidate),
    operation("SEND, solicited event", solicited_event),
    operation("WRITE", write).long(),
    operation("WRITE with immediate", write_with_immediate),
    operation("READ", read).long(),
    operation("CMP_SWAP", compare_swap),
    operation("FETCH_ADD", fetch_add),
    operation("32 elements a side", scatter_gather),
    operation("inline", inline),
    operation("unsignalled", unsignalled),
    operation("fence", fence),
];

const fn operation(name: &'static str, run: fn(&Stage<'_>) -> anyhow::Result<Tally>) -> Operation {
    Operation { name, long: false, run }
}

impl Operation {
    const fn long(self) -> Self {
        Self { long: true, ..self }
    }
}

const fn immediate(message: usize) -> u32 {
    0x1234_5600 + message as u32
}

fn request<'a>(message: usize, operation: SendOperation, buffers: &'a [Sge]) -> SendWorkRequest<'a> {
    SendWorkRequest {
        wr_id: message as u64,
        operation,
        buffers: Buffers::List(buffers),
        signaled: true,
        solicited: false,
        fence: false,
        target: Target::Peer,
    }
}

/// The spans of a region, each as a list of one element.
fn whole(region: &MemoryRegion, spans: &[Range<usize>]) -> Vec<Vec<Sge>> {
    spans.iter().map(|span| vec![region.sge(span.start, span.len())]).collect()
}

fn post_receives(stage: &Stage<'_>, lists: &[Vec<Sge>]) -> anyhow::Result<()> {
    let receives: Vec<_> = lists
        .iter()
        .enumerate()
        .map(|(message, list)| ReceiveWorkRequest { wr_id: message as u64, sg_list: list })
        .collect();
    Ok(stage.far_qp.post_recv(&receives)?)
}

fn post_sends(stage: &Stage<'_>, lists: &[Vec<Sge>], operation: impl Fn(usize) -> SendOperation) -> anyhow::Result<()> {
    let sends: Vec<_> =
        lists.iter().enumerate().map(|(message, list)| request(message, operation(message), list)).collect();
    Ok(stage.near_qp.post_send(&sends)?)
}

/// Checks what receives say of the messages that filled them.
fn check_receives(
    completions: &[WorkCompletion],
    sizes: &[usize],
    operation: impl Fn(usize) -> SendOperation,
) -> anyhow::Result<()> {
    for (message, (completion, &size)) in completions.iter().zip(sizes).enumerate() {
        let (immediate, key) = match operation(message) {
            SendOperation::SendWithImmediate(immediate) | SendOperation::WriteWithImmediate { immediate, .. } => {
                (Some(immediate), None)
            }
            SendOperation::SendWithInvalidate(key) => (None, Some(key)),
            _ => (None, None),
        };
        if completion.byte_len as usize != size {
            bail!(FoundWrong(format!("a message of {size} bytes was received as {}", completion.byte_len)));
        }
        if completion.imm_data != immediate {
            bail!(FoundWrong(format!("immediate data {immediate:x?} was received as {:x?}", completion.imm_data)));
        }
        if completion.invalidated_rkey != key {
            bail!(FoundWrong(format!("key {key:?} was invalidated as {:?}", completion.invalidated_rkey)));
        }
    }
    Ok(())
}

fn send(stage: &Stage<'_>, operation: impl Fn(usize) -> SendOperation) -> anyhow::Result<Tally> {
    let mut sizes = stage.send_sizes();
    if let SendOperation::SendWithImmediate(_) = operation(0) {
        sizes[0] = 0;
    }
    let spans = Stage::spans(&sizes);
    let (from, to) = (whole(&stage.near.source, &spans), whole(&stage.far.target, &spans));
    deliver(stage, &sizes, &spans, &from, &to, operation)
}

/// Sends what the lists of `from` hold into receives of the lists of `to`, which are the spans of the far target.
fn deliver(
    stage: &Stage<'_>,
    sizes: &[usize],
    spans: &[Range<usize>],
    from: &[Vec<Sge>],
    to: &[Vec<Sge>],
    operation: impl Fn(usize) -> SendOperation,
) -> anyhow::Result<Tally> {
    stage.fill(&stage.near.source, spans)?;
    Stage::poison(&stage.far.target, spans)?;
    post_receives(stage, to)?;
    let start = Instant::now();
    post_sends(stage, from, &operation)?;
    let received = stage.complete(0..sizes.len(), 0..sizes.len())?;
    let tally = Tally::of(sizes, start);
    check_receives(&received, sizes, operation)?;
    stage.compare(&stage.far.target, spans)?;
    Ok(tally)
}

fn send_with_invalidate(stage: &Stage<'_>) -> anyhow::Result<Tally> {
    let regions =
        stage.send_sizes().iter().map(|_| stage.far.pd.reg_mr(64, all_access())).collect::<Result<Vec<_>, Error>>()?;
    let tally = send(stage, |message| SendOperation::SendWithInvalidate(regions[message].rkey()))?;
    // The keys are worth nothing any more.
    let victim = &regions[0];
    let write = SendOperation::Write { address: victim.address(), rkey: victim.rkey() };
    stage.near_qp.post_send(&[request(0, write, &[stage.near.source.sge(0, 8)])])?;
    let failed = stage.complete_with_failure()?;
    let refused = match failed.status {
        WcStatus::RemoteAccess => true,
        // The other side says so once, and then is in error and silent: the NAK was lost.
        WcStatus::RetryExceeded => true,
        // One queue pair is in error as the responder before it hears so as the requester.
        WcStatus::WorkRequestFlushed => stage.is_to_itself(),
        _ => false,
    };
    if !refused || victim.load_u64(0)? != 0 {
        bail!(FoundWrong(format!("a WRITE by an invalidated key ended with {:?}", failed.status)));
    }
    Ok(tally)
}

/// A completion queue that is armed for solicited completions wakes for those, and for no others.
fn solicited_event(stage: &Stage<'_>) -> anyhow::Result<Tally> {
    let sizes = [21, stage.mtu.bytes() + 17];
    let spans = Stage::spans(&sizes);
    let from = whole(&stage.near.source, &spans);
    stage.fill(&stage.near.source, &spans)?;
    Stage::poison(&stage.far.target, &spans)?;
    post_receives(stage, &whole(&stage.far.target, &spans))?;
    let channel = &stage.far.channel;
    while channel.get_event().map(|cq| cq.ack_events(1)).is_ok() {}
    let start = Instant::now();
    stage.far.cq.req_notify(Notify::Solicited)?;
    for (message, list) in from.iter().enumerate() {
        let solicited = message == 1;
        let send = SendWorkRequest { solicited, ..request(message, SendOperation::Send, list) };
        stage.near_qp.post_send(&[send])?;
        stage.complete(message..message + 1, message..message + 1)?;
        match channel.get_event() {
            Ok(cq) if solicited => cq.ack_events(1),
            Err(Error::WouldBlock) if !solicited => {}
            Ok(_) => bail!(FoundWrong("a SEND that asked for no event made one".to_owned())),
            Err(error) => bail!(FoundWrong(format!("a solicited SEND made no event: {error}"))),
        }
    }
    let tally = Tally::of(&sizes, start);
    stage.compare(&stage.far.target, &spans)?;
    Ok(tally)
}

/// The operation that writes a message to its span of the far target.
fn write_to(stage: &Stage<'_>, span: &Range<usize>) -> (u64, RKey) {
    (stage.far.target.address() + span.start as u64, stage.far.target.rkey())
}

fn write(stage: &Stage<'_>) -> anyhow::Result<Tally> {
    let sizes = stage.sizes();
    let spans = Stage::spans(&sizes);
    stage.fill(&stage.near.source, &spans)?;
    Stage::poison(&stage.far.target, &spans)?;
    let start = Instant::now();
    post_sends(stage, &whole(&stage.near.source, &spans), |message| {
        let (address, rkey) = write_to(stage, &spans[message]);
        SendOperation::Write { address, rkey }
    })?;
    stage.complete(0..sizes.len(), 0..0)?;
    let tally = Tally::of(&sizes, start);
    stage.compare(&stage.far.target, &spans)?;
    Ok(tally)
}

fn write_with_immediate(stage: &Stage<'_>) -> anyhow::Result<Tally> {
    let sizes = stage.sizes();
    let spans = Stage::spans(&sizes);
    // The receives are consumed, and left empty.
    let empty = vec![Vec::new(); sizes.len()];
    deliver(stage, &sizes, &spans, &whole(&stage.near.source, &spans), &empty, |message| {
        let (address, rkey) = write_to(stage, &spans[message]);
        SendOperation::WriteWithImmediate { address, rkey, immediate: immediate(message) }
    })
}

/// The operation that reads a message from its span of the far source.
fn read_from(stage: &Stage<'_>, span: &Range<usize>) -> SendOperation {
    let source = &stage.far.source;
    SendOperation::Read { address: source.address() + span.start as u64, rkey: source.rkey() }
}

fn read(stage: &Stage<'_>) -> anyhow::Result<Tally> {
    let sizes = stage.sizes();
    let spans = Stage::spans(&sizes);
    read_into(stage, &sizes, &spans, &whole(&stage.near.target, &spans))
}

/// Reads the spans of the far source into lists that are the spans of the near target.
fn read_into(stage: &Stage<'_>, sizes: &[usize], spans: &[Range<usize>], into: &[Vec<Sge>]) -> anyhow::Result<Tally> {
    stage.fill(&stage.far.source, spans)?;
    Stage::poison(&stage.near.target, spans)?;
    let start = Instant::now();
    post_sends(stage, into, |message| read_from(stage, &spans[message]))?;
    stage.complete(0..sizes.len(), 0..0)?;
    let tally = Tally::of(sizes, start);
    stage.compare(&stage.near.target, spans)?;
    Ok(tally)
}

/// Atomics on one word of the far target, each of which returns into a word of its own of the near source.
/// `operation` makes the n-th from the word's address and key; `expected` are the values that they find, and
/// behind those the one that they leave.
fn atomics(
    stage: &Stage<'_>,
    operation: impl Fn(usize, u64, RKey) -> SendOperation,
    expected: &[u64],
) -> anyhow::Result<Tally> {
    let sizes = vec![8; expected.len() - 1];
    let (near, far) = (&stage.near.source, &stage.far.target);
    near.fill(0, 8 * sizes.len(), 0xff)?;
    far.store_u64(8, expected[0])?;
    let returned: Vec<_> = (0..sizes.len()).map(|message| vec![near.sge(8 * message, 8)]).collect();
    let start = Instant::now();
    post_sends(stage, &returned, |message| operation(message, far.address() + 8, far.rkey()))?;
    stage.complete(0..sizes.len(), 0..0)?;
    let tally = Tally::of(&sizes, start);
    for (message, &expected) in expected[..sizes.len()].iter().enumerate() {
        let found = near.load_u64(8 * message)?;
        if found != expected {
            bail!(FoundWrong(format!("atomic {message} returned {found:#x}, not {expected:#x}")));
        }
    }
    let left = far.load_u64(8)?;
    if left != expected[sizes.len()] {
        bail!(FoundWrong(format!("the atomics have left {left:#x}, not {:#x}", expected[sizes.len()])));
    }
    Ok(tally)
}

/// How many atomics there are of a kind.
const ATOMICS: usize = 24;

fn compare_swap(stage: &Stage<'_>) -> anyhow::Result<Tally> {
    // Every third compares with what is not there, and changes nothing.
    let misses = |message: usize| message % 3 == 2;
    let mut found = vec![0x0123_4567_89ab_cdef_u64];
    for message in 0..ATOMICS {
        found.push(if misses(message) { found[message] } else { found[message].rotate_left(9) ^ message as u64 });
    }
    let operation = |message: usize, address, rkey| SendOperation::CompareSwap {
        address,
        rkey,
        compare: if misses(message) { !found[message] } else { found[message] },
        swap: if misses(message) { 0xdead } else { found[message + 1] },
    };
    atomics(stage, operation, &found)
}

fn fetch_add(stage: &Stage<'_>) -> anyhow::Result<Tally> {
    // Wraps round on the way.
    let summand = |message: usize| (message as u64 + 1) << 58 | 3;
    let mut found = vec![u64::MAX - 5];
    for message in 0..ATOMICS {
        found.push(found[message].wrapping_add(summand(message)));
    }
    let operation = |message, address, rkey| SendOperation::FetchAdd { address, rkey, add: summand(message) };
    atomics(stage, operation, &found)
}

/// The spans of a region, each cut into as many uneven pieces as a request holds; `turn` moves the cuts.
fn pieces(region: &MemoryRegion, spans: &[Range<usize>], turn: usize) -> Vec<Vec<Sge>> {
    spans
        .iter()
        .map(|span| {
            let cuts = |piece: usize| match piece {
                0 => span.start,
                ELEMENTS => span.end,
                _ => {
                    span.start
                        + span.len() * ((piece * piece + turn * piece) % (ELEMENTS * ELEMENTS)) / (ELEMENTS * ELEMENTS)
                }
            };
            let mut bounds: Vec<usize> = (0..=ELEMENTS).map(cuts).collect();
            bounds.sort_unstable();
            bounds.windows(2).map(|pair| region.sge(pair[0], pair[1] - pair[0])).collect()
        })
        .collect()
}

/// SEND gathers and scatters, WRITE gathers, READ scatters.
fn scatter_gather(stage: &Stage<'_>) -> anyhow::Result<Tally> {
    let sizes = [17, 19, ELEMENTS, 5000, 60_001];
    let spans = Stage::spans(&sizes);
    let gathered = pieces(&stage.near.source, &spans, 1);
    let sent =
        deliver(stage, &sizes, &spans, &gathered, &pieces(&stage.far.target, &spans, 5), |_| SendOperation::Send)?;

    Stage::poison(&stage.far.target, &spans)?;
    let start = Instant::now();
    post_sends(stage, &gathered, |message| {
        let (address, rkey) = write_to(stage, &spans[message]);
        SendOperation::Write { address, rkey }
    })?;
    stage.complete(0..sizes.len(), 0..0)?;
    let written = Tally::of(&sizes, start);
    stage.compare(&stage.far.target, &spans)?;

    let read = read_into(stage, &sizes, &spans, &pieces(&stage.near.target, &spans, 3))?;
    Ok(sent.and(written).and(read))
}

/// Data that is taken while it is posted: the program may overwrite it at once.
fn inline(stage: &Stage<'_>) -> anyhow::Result<Tally> {
    let sizes = [0, 5, 63, 64, 100, INLINE_BYTES];
    let spans = Stage::spans(&sizes);
    Stage::poison(&stage.far.target, &spans)?;
    let start = Instant::now();
    for (message, &size) in sizes.iter().enumerate() {
        let mut bytes = stage.bytes(message, size);
        let (address, rkey) = write_to(stage, &spans[message]);
        let (front, back) = bytes.split_at(size / 3);
        let buffers = Buffers::Inline(&[front, back]);
        let write = SendOperation::Write { address, rkey };
        stage.near_qp.post_send(&[SendWorkRequest { buffers, ..request(message, write, &[]) }])?;
        bytes.fill(0);
    }
    stage.complete(0..sizes.len(), 0..0)?;
    let tally = Tally::of(&sizes, start);
    stage.compare(&stage.far.target, &spans)?;
    Ok(tally)
}

/// Of many requests only the last completes visibly, and that says that all have.
fn unsignalled(stage: &Stage<'_>) -> anyhow::Result<Tally> {
    let sizes: Vec<usize> = (0..32).map(|message| 97 * message).collect();
    let spans = Stage::spans(&sizes);
    let from = whole(&stage.near.source, &spans);
    stage.fill(&stage.near.source, &spans)?;
    Stage::poison(&stage.far.target, &spans)?;
    let start = Instant::now();
    for (message, list) in from.iter().enumerate() {
        let (address, rkey) = write_to(stage, &spans[message]);
        let signaled = message + 1 == sizes.len();
        // The one that completes is request 0 to the stage.
        let write = request(if signaled { 0 } else { 99 }, SendOperation::Write { address, rkey }, list);
        stage.near_qp.post_send(&[SendWorkRequest { signaled, ..write }])?;
    }
    stage.complete(0..1, 0..0)?;
    let tally = Tally::of(&sizes, start);
    stage.compare(&stage.far.target, &spans)?;
    Ok(tally)
}

/// What a READ fetches is sent on by a SEND behind it, which must wait until it is there.
fn fence(stage: &Stage<'_>) -> anyhow::Result<Tally> {
    let sizes = [16, 3 * stage.mtu.bytes() + 17, 50_000];
    let spans = Stage::spans(&sizes);
    stage.fill(&stage.far.source, &spans)?;
    Stage::poison(&stage.near.scratch, &spans)?;
    Stage::poison(&stage.far.target, &spans)?;
    let lists = whole(&stage.near.scratch, &spans);
    post_receives(stage, &whole(&stage.far.target, &spans))?;
    let start = Instant::now();
    let requests: Vec<_> = lists
        .iter()
        .enumerate()
        .flat_map(|(message, list)| {
            let send = SendWorkRequest { fence: true, ..request(2 * message + 1, SendOperation::Send, list) };
            [request(2 * message, read_from(stage, &spans[message]), list), send]
        })
        .collect();
    stage.near_qp.post_send(&requests)?;
    stage.complete(0..requests.len(), 0..sizes.len())?;
    let tally = Tally::of(&sizes, start);
    stage.compare(&stage.far.target, &spans)?;
    Ok(tally.and(tally))
}
