//! Whatever the wire does, each request completes exactly once and in order, memory is as a reliable network would
//! have left it and atomics are executed once, or the connection ends in the documented error.

use crate::{
    Psn, Sge,
    rc::{Buffers, Quirks, SendRequest, Target, WcStatus, WindowConfig},
    testing::{Endpoint, Fate, Kind, Pair, PairConfig, Side, TestMemory, Workload, noise},
    time::Duration,
    wire::{Mtu, RKey, Service},
};
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

/// A's requests go from the front of A's memory to the back half of B's, and the other way round.
const HALF: u64 = Endpoint::SIZE as u64 / 2;

#[derive(Clone, Debug)]
struct Weather {
    loss: f64,
    duplication: f64,
    delay: f64,
}

fn weather() -> impl Strategy<Value = Weather> {
    (0.0..0.3, 0.0..0.2, 0.0..0.2).prop_map(|(loss, duplication, delay)| Weather { loss, duplication, delay })
}

fn config() -> impl Strategy<Value = PairConfig> {
    let quirks = any::<[bool; 5]>().prop_map(|[credits, coalesce, nak, gap, steady]| Quirks {
        end_to_end_credits: credits,
        coalesce_acks: coalesce,
        sequence_nak_after_rnr: nak,
        read_gap_waits_for_timeout: gap,
        steady_ack_timeout: steady,
        ..Quirks::HARDWARE
    });
    let window = (0_u32..200_000, 0_u32..400_000).prop_map(|(initial, maximum)| WindowConfig { initial, maximum });
    let queues = prop_oneof![Just((Service::Rc, false)), Just((Service::Rc, true)), Just((Service::Xrc, true))];
    (queues, quirks, 0..5_usize, any::<u32>(), 1_u8..8, window, 1_u8..8).prop_map(
        |((service, shares_receives), quirks, mtu, first_psn, rd_atomic, window, retries)| PairConfig {
            service,
            shares_receives,
            quirks,
            mtu: Mtu::ALL[mtu],
            first_psn: Psn::new(first_psn),
            rd_atomic,
            retry: (10, retries, 7),
            min_rnr_timer: 1,
            window,
        },
    )
}

fn post_all(endpoint: &mut Endpoint, load: &Workload, target: Target) {
    for (index, planned) in load.requests.iter().enumerate() {
        let list: Vec<Sge> = planned.buffers().map(|(offset, length)| Endpoint::sge(offset, length)).collect();
        let request = SendRequest {
            wr_id: index as u64,
            operation: load.operation(index, Endpoint::ADDRESS + HALF, RKey(Endpoint::KEY)),
            buffers: Buffers::List(&list),
            signaled: planned.signaled,
            solicited: false,
            fence: planned.fence,
            target,
        };
        endpoint.requester.post(&request).expect("room in the send queue");
    }
}

fn check(load: &Workload, near: &Endpoint, far: &Endpoint, seeds: (u64, u64)) -> Result<bool, TestCaseError> {
    let results: Vec<_> = near.results().into_iter().filter(|(wr_id, _)| *wr_id < 1000).collect();
    let succeeded = load.check_results(&results).map_err(TestCaseError::fail)?;
    let (mut local, mut remote) = (noise(seeds.0, Endpoint::SIZE), noise(seeds.1, Endpoint::SIZE));
    load.apply(succeeded, &mut local[..HALF as usize], &mut remote[HALF as usize..]);
    if succeeded == load.requests.len() {
        prop_assert!(
            near.memory.bytes(Endpoint::KEY)[..HALF as usize] == local[..HALF as usize],
            "local memory differs"
        );
        prop_assert!(
            far.memory.bytes(Endpoint::KEY)[HALF as usize..] == remote[HALF as usize..],
            "remote memory differs"
        );
        let receives = far.results().into_iter().filter(|(wr_id, _)| *wr_id >= 1000);
        let good = receives.filter(|(_, status)| *status == WcStatus::Success).map(|(wr_id, _)| wr_id);
        prop_assert!(good.eq((0..load.receives().count() as u64).map(|index| 1000 + index)), "receives in order");
    }
    Ok(succeeded == load.requests.len())
}

/// Whether everything succeeded; an error when something else than a documented failure happened.
fn run(seed: u64, config: PairConfig, weather: &Weather, count: u32, longest: u32) -> Result<bool, TestCaseError> {
    let mut pair = Pair::with(config);
    let kinds = if config.service == Service::Xrc { Kind::XRC } else { Kind::RC };
    let there = Workload::random(seed, kinds, count, longest);
    let back = Workload::random(seed ^ 1, kinds, count / 2, longest);
    let target = pair.target();
    for (endpoint, seed) in [(&pair.a, seed), (&pair.b, seed + 1)] {
        let bytes = noise(seed, Endpoint::SIZE);
        endpoint.memory.register(Endpoint::KEY, Endpoint::ADDRESS, bytes, TestMemory::ALL_ACCESS);
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let Weather { loss, duplication, delay } = *weather;
    pair.on_wire(move |_, _| {
        if rng.random_bool(loss) {
            Fate::Drop
        } else if rng.random_bool(duplication) {
            Fate::Duplicate
        } else if rng.random_bool(delay) {
            Fate::Delay(Duration::from_nanos(rng.random_range(0..200_000)))
        } else {
            Fate::Deliver
        }
    });
    for (side, load) in [(Side::A, &there), (Side::B, &back)] {
        let receiver = pair.endpoint(side.peer());
        for (index, (offset, length)) in load.receives().enumerate() {
            let list = [Endpoint::sge(HALF + offset, length)];
            receiver.post_receive(1000 + index as u64, &list);
        }
        post_all(pair.endpoint(side), load, target);
    }
    pair.drive();
    // One side may have died of retries; the other then runs out of them too, unless it had nothing to say.
    for side in [Side::A, Side::B] {
        let endpoint = pair.endpoint(side);
        prop_assert_eq!(endpoint.requester.queued(), 0, "everything came to an end");
    }
    let there_good = check(&there, &pair.a, &pair.b, (seed, seed + 1))?;
    Ok(check(&back, &pair.b, &pair.a, (seed + 1, seed))? && there_good)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, ..ProptestConfig::default() })]

    #[test]
    fn over_any_wire(seed in any::<u64>(), config in config(), weather in weather(), count in 1_u32..20) {
        run(seed >> 1, config, &weather, count, 9000)?;
    }

    #[test]
    fn over_a_good_wire_nothing_fails(seed in any::<u64>(), config in config(), count in 1_u32..20) {
        let calm = Weather { loss: 0.0, duplication: 0.0, delay: 0.0 };
        prop_assert!(run(seed >> 1, config, &calm, count, 9000)?, "a request failed");
    }
}
