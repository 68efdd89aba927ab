//! Whatever happens, and whatever the parameters: rates stay in their bounds, the same events give the same rates,
//! and it does not matter how often anybody looks.

use crate::{
    Instant,
    congestion::{Algorithm, CongestionEvent, DcqcnParameters, Rate, TimelyParameters},
    time::Duration,
};
use proptest::prelude::*;

fn durations() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), 1_u64..1000, 1000_u64..1_000_000].prop_map(Duration::from_nanos)
}

fn rates() -> impl Strategy<Value = Rate> {
    prop_oneof![Just(0), 1_u64..2_000_000, 1_000_000_u64..10_000_000_000].prop_map(Rate::from_bps)
}

prop_compose! {
    /// Any parameters at all, not only those that [`DcqcnParameters::set`] would take.
    fn parameters()(
        flags: [bool; 2],
        times in [durations(), durations(), durations()],
        rates in [rates(), rates(), rates(), rates(), rates()],
        rp_byte_reset in prop_oneof![Just(0), 1_u64..100, 1_000_u64..10_000_000],
        rp_threshold in 0_u32..8,
        rp_min_dec_fac: u8,
        fractions in [0_u16..2000, 0_u16..2000],
        rp_gd: u8,
    ) -> DcqcnParameters {
        DcqcnParameters {
            rp_clamp_tgt_rate: flags[0],
            rp_clamp_tgt_rate_ati: flags[1],
            rp_time_reset: times[0],
            rp_byte_reset,
            rp_threshold,
            rp_ai_rate: rates[0],
            rp_max_rate: rates[1],
            rp_hai_rate: rates[2],
            rp_min_dec_fac,
            rp_min_rate: rates[3],
            rp_rate_to_set_on_first_cnp: rates[4],
            rp_dce_tcp_g: fractions[0],
            rp_dce_tcp_rtt: times[1],
            rp_rate_reduce_monitor_period: times[2],
            rp_initial_alpha_value: fractions[1],
            rp_gd,
        }
    }
}

/// Nanoseconds that pass, and what happens then.
fn events() -> impl Strategy<Value = Vec<(u64, CongestionEvent)>> {
    let event = prop_oneof![
        3 => Just(CongestionEvent::Notified),
        2 => (0_u64..3_000_000).prop_map(|bytes| CongestionEvent::Sent { bytes }),
        1 => Just(CongestionEvent::Sent { bytes: u64::MAX }),
        2 => (0_u64..2_000_000).prop_map(|nanos| CongestionEvent::RoundTrip { time: Duration::from_nanos(nanos) }),
    ];
    let gap = prop_oneof![Just(0), 1_u64..10_000, 10_000_u64..5_000_000, Just(u64::MAX / 4)];
    prop::collection::vec((gap, event), 1..60)
}

/// The rate after each event. With `eager`, every deadline is acted upon when it comes (up to some thousands).
fn history(algorithm: &dyn Algorithm, line: Rate, events: &[(u64, CongestionEvent)], eager: bool) -> Vec<Rate> {
    let mut flow = algorithm.start(line);
    let mut now = Instant::ZERO;
    let after = |&(gap, event)| {
        now = now + Duration::from_nanos(gap);
        for _ in 0..if eager { 4000 } else { 0 } {
            let Some(due) = flow.poll_timeout().filter(|&due| due < now) else { break };
            flow.handle_timeout(due);
        }
        flow.on_event(now, event);
        flow.rate()
    };
    events.iter().map(after).collect()
}

proptest! {
    #[test]
    fn dcqcn_stays_between_its_bounds(parameters in parameters(), line in rates(), events in events()) {
        let line = line.max(Rate::from_bps(1));
        let highest = if parameters.rp_max_rate.bps() == 0 { line } else { parameters.rp_max_rate.min(line) };
        let lowest = parameters.rp_min_rate.min(highest);
        let rates = history(&parameters, line, &events, false);
        prop_assert!(rates.iter().all(|rate| (lowest..=highest).contains(rate)), "{rates:?}");
        prop_assert_eq!(&rates, &history(&parameters, line, &events, false), "the same again");
        prop_assert_eq!(&rates, &history(&parameters, line, &events, true), "whoever looks when");
    }

    #[test]
    fn timely_stays_between_its_bounds(line in rates(), events in events()) {
        let rates = history(&TimelyParameters::PAPER, line, &events, false);
        let highest = line.max(Rate::from_bps(1));
        let lowest = TimelyParameters::PAPER.min_rate.min(highest);
        prop_assert!(rates.iter().all(|rate| (lowest..=highest).contains(rate)), "{rates:?}");
        prop_assert_eq!(&rates, &history(&TimelyParameters::PAPER, line, &events, true));
    }
}
