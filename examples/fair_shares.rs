//! Four devices send to a fifth through one port of 40 Gbit/s that marks as a switch does (RED). One after the other they
//! begin, and one after the other they stop; DCQCN shares the port among them. Virtual time, so every run is the same.
//!
//! Prints, for each millisecond, what each device got through and the longest queue, as comma-separated values:
//!
//! ```sh
//! cargo run --release --example fair_shares > shares.csv
//! scripts/plot shares.csv --columns device --title "Gbit/s" > shares.svg
//! ```

use std::{net::Ipv4Addr, sync::Arc, time::Duration};
use uroce::{
    clock::Clock,
    congestion::{Congestion, DcqcnParameters, NotificationParameters, Rate},
    link::sim::{EcnMarking, Network, PathConditions, PortConditions},
    verbs::{
        AccessFlags, Buffers, CompletionQueue, Connection, Context, Device, MemoryRegion, Mtu, Progress,
        QpInitAttributes, QueuePair, Result, SendOperation, SendWorkRequest, Target, WorkCompletion,
    },
};

const FLOWS: usize = 4;
const LINE: Rate = Rate::from_gbps(40);
const MESSAGE: usize = 16 << 10;
const DEPTH: u64 = 40;
/// How long it is until the next device begins, or stops.
const STEP: u32 = 50;
const MILLISECOND: Duration = Duration::from_millis(1);

/// One end of a connection.
struct End {
    device: Device,
    _context: Context,
    cq: CompletionQueue,
    qp: QueuePair,
    region: MemoryRegion,
}

impl End {
    fn new(device: &Device) -> Result<Self> {
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(64, 0, None)?;
        let qp = pd.create_qp(&QpInitAttributes::new(&cq))?;
        let region = pd.reg_mr(MESSAGE, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
        Ok(Self { device: device.clone(), _context: context, cq, qp, region })
    }

    fn connect(&self, peer: &Self) -> Result<()> {
        let connection = Connection::new(peer.device.gid(), peer.qp.qp_num());
        self.qp.connect(&Connection { path_mtu: Mtu::Mtu1024, ..connection })
    }

    fn write_to(&self, target: &Self) -> SendWorkRequest<'static> {
        let list = Box::leak(Box::new([self.region.sge(0, MESSAGE)]));
        SendWorkRequest {
            wr_id: 0,
            operation: SendOperation::Write { address: target.region.address(), rkey: target.region.rkey() },
            buffers: Buffers::List(list),
            signaled: true,
            solicited: false,
            fence: false,
            target: Target::Peer,
        }
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    // Each sender's own port is as fast as the shared one.
    let conditions =
        PathConditions { latency: Duration::from_micros(2), bandwidth: Some(LINE.bps()), ..PathConditions::IDEAL };
    let network = Network::new(1, conditions);
    let congestion = Congestion::new(DcqcnParameters { rp_max_rate: LINE, ..DcqcnParameters::PAPER })
        .with_notification(NotificationParameters::PAPER)
        .with_pacing_burst(Duration::from_micros(2));
    let device = |number| {
        let link = network.attach(Ipv4Addr::new(10, 0, 0, number).into())?;
        let builder = Device::builder().link(Arc::new(link)).clock(network.clock()).progress(Progress::Manual);
        builder.seed(1).congestion(congestion.clone()).build().map_err(std::io::Error::other)
    };
    let devices = (1..=FLOWS as u8 + 1).map(device).collect::<std::io::Result<Vec<_>>>()?;
    let receiver = &devices[FLOWS];
    let marking = EcnMarking { minimum: 5_000, maximum: 200_000, probability: 0.1 };
    let port = PortConditions { bandwidth: LINE, queue_bytes: 16 << 20, ecn: Some(marking) };
    network.set_port(receiver.address(), Some(port));

    let mut flows = Vec::new();
    for device in &devices[..FLOWS] {
        let (sender, target) = (End::new(device)?, End::new(receiver)?);
        sender.connect(&target)?;
        target.connect(&sender)?;
        let write = sender.write_to(&target);
        flows.push((sender, target, write, 0_u64));
    }

    let names: Vec<_> = (1..=FLOWS).map(|flow| format!(",device {flow}")).collect();
    println!("seconds{},queue KB", names.concat());
    let clock = network.clock();
    let mut slots = [WorkCompletion::default(); 16];
    for millisecond in 0..(2 * FLOWS as u32 - 1) * STEP {
        let end = clock.now() + MILLISECOND;
        let mut delivered = [0; FLOWS];
        while clock.now() < end {
            let mut busy = receiver.progress();
            for (flow, (sender, _, write, outstanding)) in flows.iter_mut().enumerate() {
                let begins = flow as u32 * STEP;
                let sends = (begins..begins + FLOWS as u32 * STEP).contains(&millisecond);
                if sender.device.progress() {
                    busy = true;
                    let count = sender.cq.poll(&mut slots)? as u64;
                    *outstanding -= count;
                    delivered[flow] += count * MESSAGE as u64;
                }
                while sends && *outstanding < DEPTH {
                    sender.qp.post_send(&[*write])?;
                    *outstanding += 1;
                    busy = true;
                }
            }
            if !busy {
                let next = devices.iter().filter_map(Device::next_deadline).chain(network.next_event()).min();
                clock.advance_to(next.unwrap_or(end).min(end));
            }
        }
        let rates: Vec<_> =
            delivered.iter().map(|&bytes| format!(",{:.3}", 8e-9 * bytes as f64 / MILLISECOND.as_secs_f64())).collect();
        let queue = network.take_longest_queue(receiver.address()) as f64 / 1e3;
        println!("{:.3}{},{queue:.1}", f64::from(millisecond + 1) / 1e3, rates.concat());
    }
    Ok(())
}
