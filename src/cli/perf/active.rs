//! The client's loops: what is measured.

use super::{
    CLIENT, Limit, Plan, SERVER, Test,
    bounce::Bouncer,
    meter::{Measured, Meter},
    timeline::Timeline,
};
use crate::cli::{
    pattern,
    session::{Lane, Session, succeeded},
};
use std::time::Instant;
use uroce::verbs::{Buffers, CompletionQueue, SendOperation, SendWorkRequest, Sge, Target, WorkCompletion};

/// How many empty polls pass between looks at the exchange.
const POLLS_BETWEEN_LOOKS: u32 = 4096;

/// Measures messages of one size.
pub(super) fn measure(
    session: &mut Session,
    cq: &CompletionQueue,
    lanes: &[Lane],
    plan: &Plan,
    size: u64,
    limit: Limit,
    timeline: Option<&mut Timeline>,
) -> anyhow::Result<Measured> {
    let length = usize::try_from(size)?;
    for (index, lane) in lanes.iter().enumerate() {
        pattern::fill(&lane.region, 0, length, plan.pattern(CLIENT, index))?;
        lane.region.fill(plan.area(), length, 0)?;
    }
    let meter = Meter::new(limit, length)?;
    if plan.test.is_bandwidth() {
        bandwidth(session, cq, lanes, plan, length, meter, timeline)
    } else if plan.test.bounces() {
        bounced_latency(session, cq, &lanes[0], plan, length, meter)
    } else {
        single_latency(session, cq, &lanes[0], plan, length, meter)
    }
}

/// What is wrong with what the client received.
pub(super) fn difference(lanes: &[Lane], plan: &Plan, size: u64, sent: &[u64]) -> anyhow::Result<Option<String>> {
    let received = match plan.test {
        Test::ReadBw | Test::ReadLat | Test::SendLat => size,
        // The last byte is the bounced count.
        Test::WriteLat => size - 1,
        _ => return Ok(None),
    };
    differs(lanes, plan, received, SERVER, |lane| sent.get(lane).is_some_and(|&sent| sent > 0))
}

/// Where the receiving halves of the buffers of queue pairs in use first differ from what `side` sent.
pub(super) fn differs(
    lanes: &[Lane],
    plan: &Plan,
    size: u64,
    side: u64,
    in_use: impl Fn(usize) -> bool,
) -> anyhow::Result<Option<String>> {
    let length = usize::try_from(size)?;
    for (index, lane) in lanes.iter().enumerate().filter(|(index, _)| in_use(*index)) {
        if let Some(at) = pattern::difference(&lane.region, plan.area(), length, plan.pattern(side, index))? {
            return Ok(Some(format!("byte {at} of {length} differs on queue pair {}", lane.qp.qp_num())));
        }
    }
    Ok(None)
}

/// The request that a test repeats on a queue pair.
#[derive(Debug)]
pub(super) struct Template {
    operation: SendOperation,
    list: [Sge; 1],
}

impl Template {
    pub(super) fn new(lane: &Lane, plan: &Plan, length: usize) -> Self {
        let (rkey, remote) = (lane.remote_key(), lane.remote.buffer);
        let receiving = remote.wrapping_add(plan.area() as u64);
        let (operation, offset) = match plan.test {
            Test::SendBw | Test::SendLat => (SendOperation::Send, 0),
            Test::WriteBw | Test::WriteLat => (SendOperation::Write { address: receiving, rkey }, 0),
            Test::ReadBw | Test::ReadLat => (SendOperation::Read { address: remote, rkey }, plan.area()),
            Test::AtomicBw | Test::AtomicLat | Test::Ceiling => {
                (SendOperation::FetchAdd { address: receiving, rkey, add: 1 }, plan.area())
            }
        };
        Self { operation, list: [lane.region.sge(offset, length)] }
    }

    pub(super) const fn request(&self, wr_id: u64) -> SendWorkRequest<'_> {
        SendWorkRequest {
            wr_id,
            operation: self.operation,
            buffers: Buffers::List(&self.list),
            signaled: true,
            solicited: false,
            fence: false,
            target: Target::Peer,
        }
    }
}

fn bandwidth(
    session: &mut Session,
    cq: &CompletionQueue,
    lanes: &[Lane],
    plan: &Plan,
    length: usize,
    mut meter: Meter,
    mut timeline: Option<&mut Timeline>,
) -> anyhow::Result<Measured> {
    let depth = plan.depth as usize;
    let templates: Vec<_> = lanes.iter().map(|lane| Template::new(lane, plan, length)).collect();
    let mut posted_at = vec![Instant::now(); lanes.len() * depth];
    let mut free: Vec<Vec<usize>> = vec![(0..depth).collect(); lanes.len()];
    // Queue pairs that a completion has made room on, each once.
    let mut with_room: Vec<usize> = (0..lanes.len()).collect();
    let mut requests = Vec::with_capacity(depth);
    let mut completions = vec![WorkCompletion::default(); 64];
    let mut looks = Looks::default();
    let (mut posted, mut completed) = (0_u64, 0_u64);
    let mut sent = vec![0; lanes.len()];
    let share = meter.allows(0).div_ceil(lanes.len() as u64);
    while !meter.is_over() || completed < posted {
        let now = Instant::now();
        if let Some(timeline) = &mut timeline {
            timeline.look(now, &session.device, lanes);
        }
        for lane in with_room.drain(..) {
            let room = meter.allows(posted).min(share - sent[lane]).min(free[lane].len() as u64);
            let kept = free[lane].len() - room as usize;
            requests.clear();
            requests.extend(free[lane].drain(kept..).map(|slot| {
                let place = lane * depth + slot;
                posted_at[place] = now;
                templates[lane].request(place as u64)
            }));
            lanes[lane].qp.post_send(&requests)?;
            posted += room;
            sent[lane] += room;
        }
        let count = cq.poll(&mut completions)?;
        if count == 0 {
            looks.now_and_then(session)?;
            continue;
        }
        let now = Instant::now();
        for completion in &completions[..count] {
            let place = succeeded(completion)?.wr_id as usize;
            meter.record(now, now - posted_at[place]);
            let lane = place / depth;
            if !with_room.contains(&lane) {
                with_room.push(lane);
            }
            free[lane].push(place % depth);
        }
        completed += count as u64;
        meter.show(now);
    }
    Ok(meter.finish(sent))
}

/// READ and atomics: the answer is the operation's own.
fn single_latency(
    session: &mut Session,
    cq: &CompletionQueue,
    lane: &Lane,
    plan: &Plan,
    length: usize,
    mut meter: Meter,
) -> anyhow::Result<Measured> {
    let template = Template::new(lane, plan, length);
    let mut completion = [WorkCompletion::default()];
    let mut looks = Looks::default();
    let mut count = 0;
    while !meter.is_over() {
        let posted_at = Instant::now();
        lane.qp.post_send(&[template.request(count)])?;
        while cq.poll(&mut completion)? == 0 {
            looks.now_and_then(session)?;
        }
        succeeded(&completion[0])?;
        let now = Instant::now();
        meter.record(now, now - posted_at);
        meter.show(now);
        count += 1;
    }
    Ok(meter.finish(vec![count]))
}

/// SEND and WRITE: the server sends the like back, and half of the time is reported.
fn bounced_latency(
    session: &mut Session,
    cq: &CompletionQueue,
    lane: &Lane,
    plan: &Plan,
    length: usize,
    mut meter: Meter,
) -> anyhow::Result<Measured> {
    let mut bouncer = Bouncer::new(cq, lane, plan, length, CLIENT);
    let mut looks = Looks::default();
    let mut count = 0;
    while !meter.is_over() {
        let posted_at = Instant::now();
        bouncer.send()?;
        while !bouncer.has_arrived()? {
            looks.now_and_then(session)?;
        }
        let now = Instant::now();
        meter.record(now, (now - posted_at) / 2);
        meter.show(now);
        count += 1;
    }
    bouncer.finish()?;
    Ok(meter.finish(vec![count]))
}

/// Looks whether the server is still there, seldom enough not to be felt.
#[derive(Debug, Default)]
struct Looks {
    empty_polls: u32,
}

impl Looks {
    fn now_and_then(&mut self, session: &mut Session) -> anyhow::Result<()> {
        self.empty_polls += 1;
        if self.empty_polls == POLLS_BETWEEN_LOOKS {
            self.empty_polls = 0;
            session.exchange.check()?;
        }
        Ok(())
    }
}
