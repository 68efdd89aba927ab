//! The server's side: it does what the client's plan says, and judges what arrived.

use super::{CLIENT, Order, Plan, Ready, SERVER, Test, Verdict, active::differs, bounce::Bouncer, post_receives};
use crate::cli::{
    exchange::Exchange,
    pattern, seeded_rng,
    session::{Lane, Session, succeeded},
};
use anyhow::bail;
use uroce::verbs::{CompletionQueue, Device, WorkCompletion};

/// How many empty polls pass between looks at the exchange.
const POLLS_BETWEEN_LOOKS: u32 = 256;

/// Serves one client until it says goodbye.
pub(super) fn serve(device: Device, exchange: Exchange, test: Test, seed: Option<u64>) -> anyhow::Result<Vec<Verdict>> {
    let (mut session, plan) = Session::server::<Plan>(device, exchange, &test.name())?;
    if !plan.is_possible() {
        bail!("{} wants what no client can ask for: {plan:?}", session.exchange.peer());
    }
    // Not the client's sequence, which has the same seed when both are one command.
    let mut rng = seeded_rng(seed.map(|seed| !seed));
    let cq = plan.completion_queue(&session)?;
    let lanes = session.connect(&cq, plan.qps, plan.capabilities(), plan.buffer(), &mut rng)?;
    let (_idle, _) = session.connect_idle(&cq, plan.idle_qps, &mut rng)?;
    for (index, lane) in lanes.iter().enumerate() {
        post_receives(lane, index, &plan, plan.receives())?;
    }
    let mut verdicts = Vec::new();
    loop {
        let size = match session.exchange.receive()? {
            Order::Start { size } => size,
            Order::End => return Ok(verdicts),
            Order::Done { .. } => bail!("{} ended what it had not begun", session.exchange.peer()),
        };
        let verdict = serve_size(&mut session, &cq, &lanes, &plan, size)?;
        session.exchange.send(&verdict)?;
        verdicts.push(verdict);
    }
}

fn serve_size(
    session: &mut Session,
    cq: &CompletionQueue,
    lanes: &[Lane],
    plan: &Plan,
    size: u64,
) -> anyhow::Result<Verdict> {
    let length = usize::try_from(size)?;
    if size > plan.size || (size == 0 && plan.test == Test::WriteLat) {
        bail!("{} starts {size} bytes after a plan of {}", session.exchange.peer(), plan.size);
    }
    for (index, lane) in lanes.iter().enumerate() {
        pattern::fill(&lane.region, 0, length, plan.pattern(SERVER, index))?;
        lane.region.fill(plan.area(), plan.area(), 0)?;
    }
    let before = session.device.counters().retransmitted_pkts;
    session.exchange.send(&Ready)?;
    let difference = if plan.test.bounces() {
        bounce(session, cq, &lanes[0], plan, length)?;
        let unchanged = if plan.test == Test::WriteLat { size - 1 } else { size };
        differs(&lanes[..1], plan, unchanged, CLIENT, |_| true)?
    } else {
        let (sent, received) = drive(session, cq, lanes, plan)?;
        judge(lanes, plan, size, &sent, received)?
    };
    let retransmitted_packets = session.device.counters().retransmitted_pkts - before;
    Ok(Verdict { difference, retransmitted_packets })
}

/// Sends back whatever arrives, until the client is done.
fn bounce(session: &mut Session, cq: &CompletionQueue, lane: &Lane, plan: &Plan, length: usize) -> anyhow::Result<()> {
    let mut bouncer = Bouncer::new(cq, lane, plan, length, SERVER);
    let mut looks = Looks::default();
    loop {
        if bouncer.has_arrived()? {
            bouncer.send()?;
        } else if looks.now_and_then(session)?.is_some() {
            return bouncer.finish();
        }
    }
}

/// Makes progress, and posts a receive for each that was used, until the client is done and all that it sent has
/// been received. Returns how many messages it sent on each queue pair, and how many were received.
fn drive(session: &mut Session, cq: &CompletionQueue, lanes: &[Lane], plan: &Plan) -> anyhow::Result<(Vec<u64>, u64)> {
    let mut completions = vec![WorkCompletion::default(); 64];
    let mut used = vec![0; lanes.len()];
    let mut received = 0;
    let mut sent = None;
    let mut looks = Looks::default();
    loop {
        let count = cq.poll(&mut completions)?;
        if count == 0 {
            // What the client knows to be delivered has completed here: one more poll finds all of it.
            match sent {
                Some(sent) => return Ok((sent, received)),
                None => sent = looks.now_and_then(session)?,
            }
            continue;
        }
        received += count as u64;
        for completion in &completions[..count] {
            used[succeeded(completion)?.wr_id as usize] += 1;
        }
        for (index, used) in used.iter_mut().enumerate().filter(|(_, used)| **used > 0) {
            post_receives(&lanes[index], index, plan, std::mem::take(used))?;
        }
    }
}

/// What is wrong with what the server received.
fn judge(lanes: &[Lane], plan: &Plan, size: u64, sent: &[u64], received: u64) -> anyhow::Result<Option<String>> {
    let messages: u64 = sent.iter().sum();
    match plan.test {
        Test::SendBw if received != messages => Ok(Some(format!("{received} of {messages} messages were received"))),
        Test::SendBw | Test::WriteBw => differs(lanes, plan, size, CLIENT, |lane| sent.get(lane) != Some(&0)),
        Test::AtomicBw | Test::AtomicLat => {
            let mut sum = 0;
            for lane in lanes {
                sum += lane.region.load_u64(plan.area())?;
            }
            Ok((sum != messages).then(|| format!("{messages} FETCH_ADDs have added {sum}")))
        }
        _ => Ok(None),
    }
}

/// Looks at the exchange, seldom enough not to be felt.
#[derive(Debug, Default)]
struct Looks {
    empty_polls: u32,
}

impl Looks {
    /// How many messages the client has sent on each queue pair, once it is done.
    fn now_and_then(&mut self, session: &mut Session) -> anyhow::Result<Option<Vec<u64>>> {
        self.empty_polls += 1;
        if self.empty_polls < POLLS_BETWEEN_LOOKS {
            return Ok(None);
        }
        self.empty_polls = 0;
        match session.exchange.try_receive()? {
            Some(Order::Done { sent }) => Ok(Some(sent)),
            None => Ok(None),
            Some(_) => bail!("{} started another size before it was done", session.exchange.peer()),
        }
    }
}
