//! Two whole NICs over a simulated network that loses, repeats, reorders, corrupts, marks and stalls: each work
//! request completes exactly once and in order, memory is as a reliable network would have left it, atomics are
//! executed once, or the queue pair ends in the documented error with everything flushed.
//!
//! `UROCE_SEEDS` sets how many networks are tried (200 without it).

use proptest::prelude::*;
use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};
use uroce::{
    link::sim::{Network, PathConditions},
    verbs::{
        AccessFlags, Buffers, CompletionQueue, Connection, Device, MemoryRegion, Mtu, Progress, Psn, QpCapabilities,
        QpInitAttributes, QpType, QueuePair, Quirks, ReceiveWorkRequest, SendWorkRequest, Sge, SharedReceiveQueue,
        SrqInitAttributes, Target, WcStatus, WorkCompletion, XrcDomainInitAttributes,
    },
};
use uroce_protocol::{
    Instant,
    testing::{Kind, Workload, noise},
    time::Duration,
};

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// Receives' identifiers start here, sends' at 0.
const RECEIVES: u64 = 1 << 32;

const ALL_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::FLUSH_GLOBAL);

#[derive(Clone, Debug)]
struct Scenario {
    seed: u64,
    receives: Receives,
    conditions: PathConditions,
    quirks: Quirks,
    mtu: Mtu,
    first_psn: Psn,
    rd_atomic: u8,
    retry_cnt: u8,
    count: u32,
    longest: u32,
    /// Requests are posted one by one, each as soon as the peer has been heard of, and not all at once.
    answers: bool,
}

/// Where receives come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receives {
    /// The queue pair's own queue.
    Own,
    /// A shared receive queue.
    Shared,
    /// The shared receive queue that requests name: each direction is an XRC connection.
    Named,
}

/// One end of a connection: what it posts, what it owns, what came of it.
struct End {
    device: Device,
    /// Where it posts sends.
    qp: QueuePair,
    /// What the peer sends to.
    target: QueuePair,
    srq: Option<SharedReceiveQueue>,
    cq: CompletionQueue,
    /// Its own buffers; the peer never reaches them.
    near: MemoryRegion,
    /// What the peer's requests reach.
    far: MemoryRegion,
    load: Workload,
    near_seed: u64,
    far_seed: u64,
    /// How many of its requests have been posted.
    posted: usize,
    /// How many packets had arrived when the latest was.
    heard: u64,
    sends: Vec<(u64, WcStatus)>,
    receives: Vec<(u64, WcStatus)>,
}

impl End {
    fn new(device: &Device, receives: Receives, load: Workload, peer_load: &Workload, seed: u64) -> Self {
        let context = device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1000, 0, None).unwrap();
        let cap = QpCapabilities { max_send_sge: 4, ..QpCapabilities::default() };
        let attributes = QpInitAttributes { cap, ..QpInitAttributes::new(&cq) };
        let (qp, target, srq) = match receives {
            Receives::Own => {
                let qp = pd.create_qp(&attributes).unwrap();
                (qp.clone(), qp, None)
            }
            Receives::Shared => {
                let srq = pd.create_srq(&SrqInitAttributes::default()).unwrap();
                let qp = pd.create_qp(&QpInitAttributes { srq: Some(&srq), ..attributes }).unwrap();
                (qp.clone(), qp, Some(srq))
            }
            Receives::Named => {
                let domain = context.open_xrcd(&XrcDomainInitAttributes::default()).unwrap();
                let xrc = Some((&domain, &cq));
                let srq = pd.create_srq(&SrqInitAttributes { xrc, ..SrqInitAttributes::default() }).unwrap();
                let qp = pd.create_qp(&QpInitAttributes { qp_type: QpType::XrcSend, ..attributes }).unwrap();
                (qp, domain.create_qp(0).unwrap(), Some(srq))
            }
        };
        let near = pd.reg_mr(load.local_size().max(1), AccessFlags::LOCAL_WRITE).unwrap();
        let far = pd.reg_mr(peer_load.remote_size(), ALL_ACCESS).unwrap();
        let (near_seed, far_seed) = (seed, !seed);
        near.write(0, &noise(near_seed, near.length())).unwrap();
        far.write(0, &noise(far_seed, far.length())).unwrap();
        Self {
            device: device.clone(),
            qp,
            target,
            srq,
            cq,
            near,
            far,
            load,
            near_seed,
            far_seed,
            posted: 0,
            heard: 0,
            sends: vec![],
            receives: vec![],
        }
    }

    fn connect(&self, peer: &Self, address: IpAddr, psns: (Psn, Psn), scenario: &Scenario) {
        let connection = |peer: &QueuePair| Connection {
            local_psn: psns.0,
            remote_psn: psns.1,
            path_mtu: scenario.mtu,
            max_rd_atomic: scenario.rd_atomic,
            min_rnr_timer: 1,
            timeout: 10,
            retry_cnt: scenario.retry_cnt,
            traffic_class: 2,
            ..Connection::new(address.into(), peer.qp_num())
        };
        self.qp.connect(&connection(&peer.target)).unwrap();
        if scenario.receives == Receives::Named {
            self.target.connect(&connection(&peer.qp)).unwrap();
        }
    }

    fn post_receives(&self, peer_load: &Workload) {
        for (index, (offset, length)) in peer_load.receives().enumerate() {
            let list = [self.far.sge(offset as usize, length as usize)];
            let receive = ReceiveWorkRequest { wr_id: RECEIVES + index as u64, sg_list: &list };
            match &self.srq {
                Some(srq) => srq.post_recv(&[receive]).unwrap(),
                None => self.qp.post_recv(&[receive]).unwrap(),
            }
        }
    }

    /// Posts `most` of the requests that are left. Returns whether there were any.
    fn post_sends(&mut self, peer: &Self, receives: Receives, most: usize) -> bool {
        let target = match &peer.srq {
            Some(srq) if receives == Receives::Named => Target::SharedReceiveQueue(srq.number()),
            _ => Target::Peer,
        };
        let before = self.posted;
        for (index, planned) in self.load.requests.iter().enumerate().skip(before).take(most) {
            let list: Vec<Sge> =
                planned.buffers().map(|(offset, length)| self.near.sge(offset as usize, length as usize)).collect();
            let request = SendWorkRequest {
                wr_id: index as u64,
                operation: self.load.operation(index, peer.far.address(), peer.far.rkey()),
                buffers: Buffers::List(&list),
                signaled: planned.signaled,
                solicited: false,
                fence: planned.fence,
                target,
            };
            self.qp.post_send(&[request]).unwrap();
            self.posted += 1;
        }
        self.posted > before
    }

    /// Posts a request if packets have arrived since the latest was posted.
    fn answer(&mut self, peer: &Self, receives: Receives) -> bool {
        let heard = self.device.counters().rcvd_pkts;
        std::mem::replace(&mut self.heard, heard) < heard && self.post_sends(peer, receives, 1)
    }

    fn poll(&mut self) -> bool {
        let mut completions = [WorkCompletion::default(); 16];
        let count = self.cq.poll(&mut completions).unwrap();
        for completion in &completions[..count] {
            let list = if completion.wr_id < RECEIVES { &mut self.sends } else { &mut self.receives };
            list.push((completion.wr_id, completion.status));
        }
        count > 0
    }

    /// Whether all of this end's requests succeeded; an error when something happened that may not.
    fn check(&self, peer: &Self) -> Result<bool, TestCaseError> {
        let succeeded = self.load.check_results(&self.sends).map_err(TestCaseError::fail)?;
        if succeeded < self.load.requests.len() {
            return Ok(false);
        }
        let mut near = noise(self.near_seed, self.near.length());
        let mut far = noise(peer.far_seed, peer.far.length());
        self.load.apply(succeeded, &mut near, &mut far);
        let mut bytes = vec![0; near.len()];
        self.near.read(0, &mut bytes).unwrap();
        prop_assert!(bytes == near, "the requester's memory differs");
        bytes.resize(far.len(), 0);
        peer.far.read(0, &mut bytes).unwrap();
        prop_assert!(bytes == far, "the responder's memory differs");
        let good = peer.receives.iter().filter(|(_, status)| *status == WcStatus::Success).map(|(wr_id, _)| *wr_id);
        prop_assert!(good.eq((0..self.load.receives().count() as u64).map(|index| RECEIVES + index)));
        Ok(true)
    }
}

/// Whether everything succeeded; an error when something happened that may not.
fn run(scenario: &Scenario) -> Result<bool, TestCaseError> {
    let network = Network::new(scenario.seed, scenario.conditions);
    let clock = network.clock();
    let devices = [A, B].map(|address| {
        Device::builder()
            .link(Arc::new(network.attach(address).unwrap()))
            .clock(clock.clone())
            .progress(Progress::Manual)
            .quirks(scenario.quirks)
            .seed(scenario.seed)
            .build()
            .unwrap()
    });
    let kinds = if scenario.receives == Receives::Named { Kind::XRC } else { Kind::RC };
    let loads = [
        Workload::random(scenario.seed, kinds, scenario.count, scenario.longest),
        Workload::random(scenario.seed ^ 1, kinds, scenario.count / 2, scenario.longest),
    ];
    let mut a = End::new(&devices[0], scenario.receives, loads[0].clone(), &loads[1], scenario.seed);
    let mut b = End::new(&devices[1], scenario.receives, loads[1].clone(), &loads[0], scenario.seed ^ 2);
    let zero = Psn::new(0);
    a.connect(&b, B, (scenario.first_psn, zero), scenario);
    b.connect(&a, A, (zero, scenario.first_psn), scenario);
    a.post_receives(&loads[1]);
    b.post_receives(&loads[0]);
    let at_once = if scenario.answers { 1 } else { usize::MAX };
    a.post_sends(&b, scenario.receives, at_once);
    b.post_sends(&a, scenario.receives, at_once);

    let end_of_time = Instant::ZERO + Duration::from_secs(600);
    loop {
        // Each of them, whatever the others say.
        let busy = devices.iter().filter(|device| device.progress()).count() > 0;
        let answered = scenario.answers && (a.answer(&b, scenario.receives) | b.answer(&a, scenario.receives));
        if a.poll() | b.poll() | busy | answered {
            continue;
        }
        let deadlines = devices.iter().filter_map(Device::next_deadline);
        let Some(next) = deadlines.chain(network.next_event()).min() else {
            if a.post_sends(&b, scenario.receives, at_once) | b.post_sends(&a, scenario.receives, at_once) {
                continue;
            }
            break;
        };
        prop_assert!(next < end_of_time, "it never comes to rest");
        clock.advance_to(next);
    }
    let there = a.check(&b)?;
    Ok(b.check(&a)? && there)
}

fn seeds() -> u32 {
    std::env::var("UROCE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

fn conditions() -> impl Strategy<Value = PathConditions> {
    let rates = (0.0..0.3, 0.0..0.2, 0.0..0.2, 0.0..0.1, 0.0..0.5, 0.0..0.01);
    (rates, 1_u64..100, prop::option::of(100_000_000_u64..100_000_000_000)).prop_map(
        |((loss, duplication, reordering, corruption, marking, stalling), latency, bandwidth)| PathConditions {
            latency: Duration::from_micros(latency),
            bandwidth,
            loss,
            duplication,
            corruption,
            reordering,
            marking,
            stalling,
            ..PathConditions::IDEAL
        },
    )
}

fn quirks() -> impl Strategy<Value = Quirks> {
    any::<[bool; 5]>().prop_map(|[credits, coalesce, nak, gap, steady]| Quirks {
        end_to_end_credits: credits,
        coalesce_acks: coalesce,
        sequence_nak_after_rnr: nak,
        read_gap_waits_for_timeout: gap,
        steady_ack_timeout: steady,
        ..Quirks::HARDWARE
    })
}

fn scenario(conditions: impl Strategy<Value = PathConditions>) -> impl Strategy<Value = Scenario> {
    let receives = prop_oneof![Just(Receives::Own), Just(Receives::Shared), Just(Receives::Named)];
    let connection = (receives, quirks(), 0..5_usize, any::<u32>(), 1_u8..16, 1_u8..8);
    // To answer takes more requests than to find out what gets lost.
    let load = prop_oneof![(1_u32..16, 1_u32..20_000, Just(false)), (1_u32..64, 1_u32..2000, Just(true))];
    (any::<u64>(), conditions, connection, load).prop_map(
        |(seed, conditions, (receives, quirks, mtu, first_psn, rd_atomic, retry_cnt), (count, longest, answers))| {
            Scenario {
                seed,
                receives,
                conditions,
                quirks,
                mtu: Mtu::ALL[mtu],
                first_psn: Psn::new(first_psn),
                rd_atomic,
                retry_cnt,
                count,
                longest,
                answers,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: seeds(), ..ProptestConfig::default() })]

    #[test]
    fn over_any_network(scenario in scenario(conditions())) {
        run(&scenario)?;
    }
}

proptest! {
    #[test]
    fn over_a_good_network_nothing_fails(scenario in scenario(Just(PathConditions::IDEAL))) {
        prop_assert!(run(&scenario)?, "a request failed");
    }
}
