//! Each formula, clamp and edge of DCQCN's reaction point, against numbers worked out by hand.

use crate::{
    Instant,
    congestion::{
        CongestionControl,
        CongestionEvent::{Notified, RoundTrip, Sent},
        Dcqcn, DcqcnParameters, Rate,
    },
    time::Duration,
};

const PAPER: DcqcnParameters = DcqcnParameters::PAPER;
const MLX5: DcqcnParameters = DcqcnParameters::MLX5;

const fn nanos(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

const fn micros(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

/// The current and the target rate in Mbit/s.
fn mbps(flow: &Dcqcn) -> (f64, f64) {
    (flow.rate().bps() as f64 / 1e6, flow.target().bps() as f64 / 1e6)
}

/// A flow on 40 Gbit/s that was notified `notifications` times at once.
fn notified(parameters: DcqcnParameters, notifications: u32) -> Dcqcn {
    let mut flow = Dcqcn::new(parameters, Rate::from_gbps(40));
    (0..notifications).for_each(|_| flow.on_event(Instant::ZERO, Notified));
    flow
}

#[test]
fn begins_at_the_line_rate_and_waits_for_nothing() {
    let flow = notified(PAPER, 0);
    assert_eq!(mbps(&flow), (40_000.0, 40_000.0));
    assert_eq!(flow.poll_timeout(), None);
    assert_eq!(flow.alpha(micros(1_000_000)), 1.0, "alpha begins to fall at the first notification");
}

/// Equation 1 with alpha 1, equation 3 four times, equation 4 twice.
#[test]
fn cuts_recovers_and_increases_as_in_the_paper() {
    let mut flow = notified(PAPER, 1);
    assert_eq!(mbps(&flow), (20_000.0, 40_000.0));
    flow.on_event(micros(50), Notified);
    assert_eq!(mbps(&flow), (10_000.0, 20_000.0), "50 µs are less than K: alpha is 1 still");

    let recovery = [
        (105, 15_000.0, 20_000.0),
        (160, 17_500.0, 20_000.0),
        (215, 18_750.0, 20_000.0),
        (270, 19_375.0, 20_000.0),
        // The fifth stage is F: 40 are added to the target, and the rate goes half of the way there.
        (325, 19_707.5, 20_040.0),
        (380, 19_893.75, 20_080.0),
    ];
    for (at, current, target) in recovery {
        assert_eq!(flow.poll_timeout(), Some(micros(at)));
        flow.handle_timeout(micros(at));
        assert_eq!(mbps(&flow), (current, target), "{at} µs");
    }
}

/// Equation 2, and equation 1 with an alpha that is not 1.
#[test]
fn alpha_falls_every_k_and_grows_with_each_notification() {
    let mut flow = notified(PAPER, 1);
    let kept = 255.0 / 256.0;
    assert_eq!(flow.alpha(nanos(54_999)), 1.0);
    assert_eq!(flow.alpha(nanos(55_000)), kept);
    assert_eq!(flow.alpha(nanos(109_999)), kept);
    assert_eq!(flow.alpha(nanos(110_000)), kept * kept);

    // At 120 µs the timer has expired twice: 40 - 20/4 = 35 Gbit/s. Two periods have passed: alpha is (255/256)² =
    // 65025/65536. The cut is 35·10⁹·65025/131072 = 17 363 548 278.8.
    flow.on_event(micros(120), Notified);
    assert_eq!(flow.rate(), Rate::from_bps(35_000_000_000 - 17_363_548_278));
    assert_eq!(flow.target(), Rate::from_gbps(35));
    // (255/256)³ + 1/256, and its period begins anew.
    let alpha = kept * kept * kept + 1.0 / 256.0;
    assert!((flow.alpha(nanos(174_999)) - alpha).abs() < 1e-8);
    assert!((flow.alpha(nanos(175_000)) - alpha * kept).abs() < 1e-8);
}

#[test]
fn alpha_reaches_nought_and_a_notification_then_cuts_nothing_but_raises_it_by_g() {
    let mut flow = notified(PAPER, 1);
    let later = micros(55 * 10_000);
    assert_eq!(flow.alpha(later), 0.0);
    flow.on_event(later, Notified);
    assert_eq!(flow.rate(), Rate::from_gbps(40));
    assert_eq!(flow.alpha(later), 1.0 / 256.0);
    flow.on_event(later, Notified);
    assert_eq!(flow.rate(), Rate::from_bps(40_000_000_000 - 40_000_000_000 / 512));
}

#[test]
fn the_byte_counter_expires_at_b_and_keeps_what_goes_beyond() {
    let mut flow = notified(PAPER, 1);
    flow.on_event(Instant::ZERO, Sent { bytes: 9_999_999 });
    assert_eq!(mbps(&flow), (20_000.0, 40_000.0));
    flow.on_event(Instant::ZERO, Sent { bytes: 1 });
    assert_eq!(mbps(&flow), (30_000.0, 40_000.0));
    flow.on_event(Instant::ZERO, Sent { bytes: 25_000_000 });
    assert_eq!(mbps(&flow), (37_500.0, 40_000.0), "two at once");
    flow.on_event(Instant::ZERO, Sent { bytes: 4_999_999 });
    assert_eq!(mbps(&flow), (37_500.0, 40_000.0));
    flow.on_event(Instant::ZERO, Sent { bytes: 1 });
    assert_eq!(mbps(&flow), (38_750.0, 40_000.0), "5 MB were left over");
}

#[test]
fn a_cut_sets_byte_counter_and_timer_back() {
    let mut flow = notified(PAPER, 2);
    flow.on_event(micros(54), Sent { bytes: 9_999_999 });
    flow.on_event(micros(54), Notified);
    assert_eq!(mbps(&flow), (5_000.0, 10_000.0));
    flow.on_event(micros(55), Sent { bytes: 9_999_999 });
    assert_eq!(mbps(&flow), (5_000.0, 10_000.0));
    assert_eq!(flow.poll_timeout(), Some(micros(54 + 55)));
}

/// Five stages of one kind are active increase, whatever the other has; six of both are hyper increase.
#[test]
fn both_counters_beyond_the_threshold_are_hyper_increase() {
    let mut flow = notified(PAPER, 4);
    assert_eq!(mbps(&flow), (2_500.0, 5_000.0));
    let expire = |flow: &mut Dcqcn| flow.on_event(Instant::ZERO, Sent { bytes: 10_000_000 });
    (0..4).for_each(|_| expire(&mut flow));
    assert_eq!(mbps(&flow), (4_843.75, 5_000.0), "four of one kind: fast recovery");
    expire(&mut flow);
    assert_eq!(flow.target(), Rate::from_mbps(5_040), "five: active increase");
    expire(&mut flow);
    assert_eq!(flow.target(), Rate::from_mbps(5_080));

    for (at, target) in [(1, 5_120), (2, 5_160), (3, 5_200), (4, 5_240), (5, 5_280)] {
        flow.handle_timeout(micros(55 * at));
        assert_eq!(flow.target(), Rate::from_mbps(target), "the lesser of 6 and {at} is not beyond 5");
    }
    let before = flow.rate();
    flow.handle_timeout(micros(55 * 6));
    assert_eq!(flow.target(), Rate::from_mbps(5_680), "six of both: once R_HAI");
    assert_eq!(flow.rate().bps(), (before.bps() + 5_680_000_000).div_ceil(2));
    flow.handle_timeout(micros(55 * 7));
    assert_eq!(flow.target(), Rate::from_mbps(6_080), "still the lesser is six");
    expire(&mut flow);
    assert_eq!(flow.target(), Rate::from_mbps(6_880), "seven of both: twice R_HAI");
}

#[test]
fn timers_act_at_their_instant_and_not_before() {
    let mut flow = notified(PAPER, 1);
    flow.handle_timeout(nanos(54_999));
    assert_eq!(flow.rate(), Rate::from_gbps(20));
    flow.handle_timeout(nanos(55_000));
    assert_eq!(flow.rate(), Rate::from_gbps(30));
    flow.handle_timeout(nanos(55_000));
    assert_eq!(flow.rate(), Rate::from_gbps(30), "once");
}

#[test]
fn a_notification_at_the_instant_of_a_timer_comes_after_it() {
    let mut flow = notified(PAPER, 1);
    flow.on_event(micros(55), Notified);
    assert_eq!(flow.target(), Rate::from_gbps(30), "first half of the way back");
    // Alpha has fallen once, too: 30·(1 - 255/512).
    assert_eq!(flow.rate(), Rate::from_bps(15_058_593_750));
    assert_eq!(flow.poll_timeout(), Some(micros(110)));
}

#[test]
fn timers_that_nobody_looked_after_catch_up_one_by_one() {
    let mut late = notified(PAPER, 3);
    let mut prompt = late.clone();
    late.handle_timeout(micros(1000));
    while let Some(due) = prompt.poll_timeout().filter(|&due| due <= micros(1000)) {
        prompt.handle_timeout(due);
    }
    assert_eq!(late.rate(), prompt.rate());
    assert_eq!(late.poll_timeout(), Some(micros(19 * 55)));
}

#[test]
fn at_the_line_rate_the_timer_stands_still() {
    let mut flow = notified(PAPER, 1);
    flow.handle_timeout(micros(55 * 100));
    assert_eq!(mbps(&flow), (40_000.0, 40_000.0), "neither goes beyond");
    assert_eq!(flow.poll_timeout(), None);
    flow.on_event(micros(10_000), Sent { bytes: u64::MAX });
    assert_eq!(mbps(&flow), (40_000.0, 40_000.0));
    flow.on_event(micros(10_000), Notified);
    assert_eq!(flow.poll_timeout(), Some(micros(10_055)), "until the next cut");
}

#[test]
fn bytes_alone_lead_back_to_the_line_rate_and_stop_the_timer() {
    let mut flow = notified(PAPER, 1);
    flow.on_event(Instant::ZERO, Sent { bytes: 10_000_000 * 1000 });
    assert_eq!(flow.rate(), Rate::from_gbps(40));
    assert_eq!(flow.poll_timeout(), None);
}

#[test]
fn the_rate_never_falls_below_the_lowest() {
    let mut flow = notified(DcqcnParameters { rp_min_rate: Rate::from_mbps(100), ..PAPER }, 100);
    assert_eq!(mbps(&flow), (100.0, 100.0));
    flow.handle_timeout(micros(55 * 5));
    assert_eq!(mbps(&flow), (120.0, 140.0), "and recovers from there");
}

#[test]
fn the_highest_rate_can_be_below_the_line_rate_but_not_above() {
    let highest =
        |gbps| Dcqcn::new(DcqcnParameters { rp_max_rate: Rate::from_gbps(gbps), ..PAPER }, Rate::from_gbps(40));
    assert_eq!(highest(10).rate(), Rate::from_gbps(10));
    assert_eq!(highest(100).rate(), Rate::from_gbps(40));
    let mut flow = highest(10);
    flow.on_event(Instant::ZERO, Notified);
    flow.handle_timeout(micros(1_000_000));
    assert_eq!(mbps(&flow), (10_000.0, 10_000.0));
}

#[test]
fn no_cut_takes_more_than_the_minimum_decrease_factor_allows() {
    // With gd 10 an alpha of 1 would take all of the rate.
    let harsh = DcqcnParameters { rp_gd: 10, ..PAPER };
    assert_eq!(notified(harsh, 1).rate(), Rate::from_gbps(20));
    assert_eq!(notified(DcqcnParameters { rp_min_dec_fac: 90, ..harsh }, 1).rate(), Rate::from_gbps(36));
    assert_eq!(notified(DcqcnParameters { rp_min_dec_fac: 1, ..harsh }, 1).rate(), Rate::from_mbps(400));
}

#[test]
fn gd_is_the_logarithm_of_what_alpha_is_divided_by() {
    assert_eq!(notified(DcqcnParameters { rp_gd: 12, ..PAPER }, 1).rate(), Rate::from_gbps(30));
    assert_eq!(notified(DcqcnParameters { rp_gd: 13, ..PAPER }, 1).rate(), Rate::from_gbps(35));
}

/// Found by chance: a shift by more bits than there are.
#[test]
fn a_gd_beyond_all_bits_cuts_nothing() {
    assert_eq!(notified(DcqcnParameters { rp_gd: 108, ..PAPER }, 1).rate(), Rate::from_gbps(40));
}

#[test]
fn the_first_notification_can_set_the_rate() {
    let mut flow = notified(DcqcnParameters { rp_rate_to_set_on_first_cnp: Rate::from_gbps(4), ..PAPER }, 1);
    assert_eq!(mbps(&flow), (4_000.0, 4_000.0));
    assert_eq!(flow.poll_timeout(), Some(micros(55)));
    flow.on_event(micros(10), Notified);
    assert_eq!(mbps(&flow), (2_000.0, 4_000.0), "the second cuts, by the initial alpha");
}

/// mlx5: the first cut by 1023/2048, then at most one in 4 µs.
#[test]
fn cuts_are_a_monitor_period_apart() {
    let mut flow = notified(MLX5, 1);
    assert_eq!(flow.rate(), Rate::from_bps(40_000_000_000 - 40_000_000_000 / 2048 * 1023));
    let first = flow.rate();
    flow.on_event(micros(1), Notified);
    flow.on_event(micros(3), Notified);
    assert_eq!(flow.rate(), first);
    assert_eq!(flow.poll_timeout(), Some(micros(4)));
    flow.handle_timeout(nanos(3_999));
    assert_eq!(flow.rate(), first);
    flow.handle_timeout(micros(4));
    let second = flow.rate();
    assert!(second < first);
    assert_eq!(flow.poll_timeout(), Some(micros(304)), "one cut for both, and the timer counts from it");
    flow.on_event(micros(8), Notified);
    assert!(flow.rate() < second, "a whole period later it is at once");
}

#[test]
fn alpha_of_a_put_off_cut_is_that_of_its_own_time() {
    let mut flow = notified(MLX5, 1);
    let before = flow.rate().bps() as f64;
    flow.on_event(micros(1), Notified);
    let alpha = flow.alpha(micros(4));
    flow.handle_timeout(micros(4));
    // From 1023/1024: up at 0, down at 1, up at 1, down at 2, 3 and 4 µs; g is 5/1024.
    let (kept, g) = (1019.0 / 1024.0, 5.0 / 1024.0);
    let by_hand = (((1023.0 / 1024.0) * kept + g) * kept * kept + g) * kept * kept * kept;
    assert!((alpha - by_hand).abs() < 1e-7, "{alpha} {by_hand}");
    assert!((flow.rate().bps() as f64 - before * (1.0 - by_hand / 2.0)).abs() < before * 1e-7);
}

/// mlx5's targets: a row of cuts leads back to the rate before the first.
#[test]
fn the_target_follows_only_cuts_after_an_increase() {
    let mut flow = notified(MLX5, 1);
    flow.on_event(micros(10), Notified);
    flow.on_event(micros(20), Notified);
    assert_eq!(flow.target(), Rate::from_gbps(40));
    flow.handle_timeout(micros(320));
    let increased = flow.rate();
    flow.on_event(micros(330), Notified);
    assert_eq!(flow.target(), increased, "the timer's increases count");

    let bytes_only = DcqcnParameters { rp_clamp_tgt_rate_ati: false, ..MLX5 };
    let mut flow = notified(bytes_only, 1);
    flow.handle_timeout(micros(300));
    flow.on_event(micros(330), Notified);
    assert_eq!(flow.target(), Rate::from_gbps(40), "not even the timer's");
    flow.on_event(micros(331), Sent { bytes: bytes_only.rp_byte_reset });
    let increased = flow.rate();
    flow.on_event(micros(340), Notified);
    assert_eq!(flow.target(), increased, "the byte counter's do");

    let mut flow = notified(DcqcnParameters { rp_clamp_tgt_rate: true, ..MLX5 }, 1);
    let first = flow.rate();
    flow.on_event(micros(10), Notified);
    assert_eq!(flow.target(), first, "all do");
}

#[test]
fn timer_byte_counter_and_alpha_can_be_turned_off() {
    let no_timer = DcqcnParameters { rp_time_reset: Duration::ZERO, ..PAPER };
    let mut flow = notified(no_timer, 1);
    assert_eq!(flow.poll_timeout(), None);
    flow.on_event(micros(1_000_000), Sent { bytes: 10_000_000 });
    assert_eq!(flow.rate(), Rate::from_gbps(30));
    assert_eq!(flow.poll_timeout(), None);

    let mut flow = notified(DcqcnParameters { rp_byte_reset: 0, ..PAPER }, 1);
    flow.on_event(Instant::ZERO, Sent { bytes: u64::MAX });
    assert_eq!(flow.rate(), Rate::from_gbps(20));

    let flow = notified(DcqcnParameters { rp_dce_tcp_rtt: Duration::ZERO, ..PAPER }, 1);
    assert_eq!(flow.alpha(micros(1_000_000)), 1.0);
}

#[test]
fn round_trips_do_not_matter() {
    let mut flow = notified(PAPER, 1);
    flow.on_event(micros(1), RoundTrip { time: Duration::from_secs(1) });
    assert_eq!(mbps(&flow), (20_000.0, 40_000.0));
}

/// A seed of `dcqcn_stays_between_its_bounds` never came to an end: hyper increase by nothing, for as many expiries as
/// the longest time has.
#[test]
fn increases_by_nothing_do_not_go_on_for_ever() {
    let parameters = DcqcnParameters {
        rp_ai_rate: Rate::from_bps(0),
        rp_hai_rate: Rate::from_bps(0),
        rp_threshold: 0,
        rp_clamp_tgt_rate: true,
        rp_rate_reduce_monitor_period: Duration::ZERO,
        rp_time_reset: Duration::from_nanos(1),
        rp_byte_reset: 1,
        ..MLX5
    };
    let mut flow = notified(parameters, 2);
    flow.on_event(nanos(1), Sent { bytes: u64::MAX });
    flow.on_event(nanos(u64::MAX), Sent { bytes: u64::MAX });
    assert_eq!(flow.rate(), Rate::from_gbps(40));
    assert_eq!(flow.poll_timeout(), None);
}
