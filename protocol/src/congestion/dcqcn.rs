//! DCQCN's reaction point: a sender that cuts its rate when it is notified, and recovers when it is not.

use super::{Algorithm, CongestionControl, CongestionEvent, DcqcnParameters, Rate};
use crate::Instant;

/// The reaction point of one flow, after Zhu et al., "Congestion Control for Large-Scale RDMA Deployments"
/// (SIGCOMM 2015), section 3 and figure 7:
///
/// - *Notified*: the target becomes the current rate, the current rate is cut by alpha/2 (equation 1), alpha grows:
///   α ← (1-g)·α + g. Timer, byte counter and their stages begin anew.
/// - *Every K without notification*: α ← (1-g)·α (equation 2).
/// - *Each expiry of the timer and of the byte counter* adds 1 to its stage and raises the rate. With F the threshold:
///   while both stages are below F, *fast recovery*: the current rate goes half of the way to the target (equation 3).
///   Once both are above F, *hyper increase*: the target first grows by R_HAI times what the lesser stage exceeds F
///   by. Else *active increase*: the target first grows by R_AI (equation 4).
///
/// mlx5 has the same machine with more knobs ([`DcqcnParameters`]), and both are served here with two simplifications
/// of mlx5: alpha grows when a notification comes, not at the end of the alpha period that it comes in; and a cut
/// happens when a notification comes, unless the one before was less than
/// [`rp_rate_reduce_monitor_period`](DcqcnParameters::rp_rate_reduce_monitor_period) ago, in which case it happens at
/// that period's end. Either way the difference is less than one such period (1 µs and 4 µs).
///
/// All arithmetic is in integers: rates in bit/s, alpha in 2⁻³⁰.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    parameters: DcqcnParameters,
    highest: Rate,
    lowest: Rate,
    current: Rate,
    target: Rate,
    /// The estimate of congestion, 0 … [`ALPHA_ONE`]; of before the decays that are due since `alpha_at`.
    alpha: u32,
    /// When the running alpha period began.
    alpha_at: Instant,
    was_notified: bool,
    /// When the rate was last cut.
    cut_at: Option<Instant>,
    /// When a notification that came too early will cut it.
    cut_due: Option<Instant>,
    /// When the timer expires; it stands still at the highest rate.
    increase_due: Option<Instant>,
    /// Sent since the byte counter's last expiry.
    bytes: u64,
    time_stage: u32,
    byte_stage: u32,
}

/// An alpha of 1.
const ALPHA_ONE: u32 = 1 << ALPHA_BITS;
const ALPHA_BITS: u32 = 30;
/// g and the initial alpha are given in 1024ths.
const FRACTION_BITS: u32 = 10;

impl Dcqcn {
    /// A flow on a port of `line_rate`, at the highest rate.
    pub fn new(parameters: DcqcnParameters, line_rate: Rate) -> Self {
        let highest = if parameters.rp_max_rate.bps() == 0 { line_rate } else { parameters.rp_max_rate.min(line_rate) };
        let highest = highest.max(Rate::from_bps(1));
        let initial = u32::from(parameters.rp_initial_alpha_value) << (ALPHA_BITS - FRACTION_BITS);
        // The least that mlx5 can express; with none, a flow that nobody looks after for long would have endless
        // increases to catch up with.
        let rp_ai_rate = parameters.rp_ai_rate.max(Rate::from_mbps(1));
        let rp_hai_rate = parameters.rp_hai_rate.max(Rate::from_mbps(1));
        Self {
            parameters: DcqcnParameters { rp_ai_rate, rp_hai_rate, ..parameters },
            highest,
            lowest: parameters.rp_min_rate.clamp(Rate::from_bps(1), highest),
            current: highest,
            target: highest,
            alpha: initial.min(ALPHA_ONE),
            alpha_at: Instant::ZERO,
            was_notified: false,
            cut_at: None,
            cut_due: None,
            increase_due: None,
            bytes: 0,
            time_stage: 0,
            byte_stage: 0,
        }
    }

    /// The rate that fast recovery leads back to.
    pub const fn target(&self) -> Rate {
        self.target
    }

    /// The estimate of congestion at `now`, 0.0 … 1.0.
    pub fn alpha(&self, now: Instant) -> f64 {
        let mut at_now = self.clone();
        at_now.decay_alpha(now);
        f64::from(at_now.alpha) / f64::from(ALPHA_ONE)
    }

    fn notify(&mut self, now: Instant) {
        let first_rate = self.parameters.rp_rate_to_set_on_first_cnp;
        if !self.was_notified {
            self.was_notified = true;
            self.alpha_at = now;
            if first_rate.bps() > 0 {
                self.current = first_rate.clamp(self.lowest, self.highest);
                self.target = self.current;
                self.begin_anew(now);
                return;
            }
        }
        self.decay_alpha(now);
        match self.cut_at.map(|at| at + self.parameters.rp_rate_reduce_monitor_period) {
            Some(period_end) if now < period_end => self.cut_due = Some(period_end),
            _ => self.cut(now),
        }
        let kept = u64::from(self.parameters.rp_dce_tcp_g).min(1 << FRACTION_BITS);
        let added = ((1 << FRACTION_BITS) - kept) << (ALPHA_BITS - FRACTION_BITS);
        self.alpha = (((u64::from(self.alpha) * kept) >> FRACTION_BITS) + added) as u32;
        self.alpha_at = now;
    }

    /// Lets alpha fall once for each whole period that has passed.
    fn decay_alpha(&mut self, now: Instant) {
        let period = self.parameters.rp_dce_tcp_rtt;
        if !self.was_notified || period.is_zero() {
            return;
        }
        let kept = u64::from(self.parameters.rp_dce_tcp_g).min((1 << FRACTION_BITS) - 1);
        // Rounding down, alpha reaches 0 after some thousand periods, however long nobody asked.
        while self.alpha > 0 && self.alpha_at + period <= now {
            self.alpha = ((u64::from(self.alpha) * kept) >> FRACTION_BITS) as u32;
            self.alpha_at = self.alpha_at + period;
        }
    }

    fn cut(&mut self, now: Instant) {
        let parameters = &self.parameters;
        let has_increased = self.byte_stage > 0 || (parameters.rp_clamp_tgt_rate_ati && self.time_stage > 0);
        if parameters.rp_clamp_tgt_rate || has_increased {
            self.target = self.current;
        }
        let current = self.current.bps();
        let shift = ALPHA_BITS - FRACTION_BITS + u32::from(parameters.rp_gd.min(64));
        let cut = (u128::from(current) * u128::from(self.alpha)) >> shift;
        let cut = u64::try_from(cut).unwrap_or(u64::MAX);
        let least = u128::from(current) * u128::from(parameters.rp_min_dec_fac.min(100)) / 100;
        let rate = current.saturating_sub(cut).max(least as u64);
        self.current = Rate::from_bps(rate).max(self.lowest);
        self.begin_anew(now);
    }

    /// After a cut: timer, byte counter and their stages.
    fn begin_anew(&mut self, now: Instant) {
        self.cut_at = Some(now);
        self.cut_due = None;
        self.bytes = 0;
        self.time_stage = 0;
        self.byte_stage = 0;
        let period = self.parameters.rp_time_reset;
        self.increase_due = (!period.is_zero() && self.is_limited()).then(|| now + period);
    }

    /// Whether there is anything to recover. Stages do not matter otherwise: the next cut resets them.
    fn is_limited(&self) -> bool {
        self.current < self.highest
    }

    /// The timer has expired at `due`.
    fn increase_by_time(&mut self, due: Instant) {
        self.time_stage = self.time_stage.saturating_add(1);
        self.increase();
        self.increase_due = self.is_limited().then(|| due + self.parameters.rp_time_reset);
    }

    fn count_bytes(&mut self, bytes: u64) {
        let period = self.parameters.rp_byte_reset;
        if period == 0 || !self.is_limited() {
            return;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        while self.bytes >= period && self.is_limited() {
            self.bytes -= period;
            self.byte_stage = self.byte_stage.saturating_add(1);
            self.increase();
        }
        if !self.is_limited() {
            self.increase_due = None;
        }
    }

    fn increase(&mut self) {
        let threshold = self.parameters.rp_threshold;
        let beyond = self.time_stage.min(self.byte_stage).saturating_sub(threshold);
        let added = if self.time_stage.max(self.byte_stage) < threshold {
            0
        } else if beyond > 0 {
            self.parameters.rp_hai_rate.bps().saturating_mul(u64::from(beyond))
        } else {
            self.parameters.rp_ai_rate.bps()
        };
        let highest = self.highest.bps();
        let target = self.target.bps().saturating_add(added).min(highest);
        // Half of the way, rounded up: or a rate one bit below its target would stay there.
        let current = self.current.bps();
        self.target = Rate::from_bps(target);
        self.current = Rate::from_bps(current + target.saturating_sub(current).div_ceil(2));
    }
}

impl CongestionControl for Dcqcn {
    fn rate(&self) -> Rate {
        self.current
    }

    fn on_event(&mut self, now: Instant, event: CongestionEvent) {
        self.handle_timeout(now);
        match event {
            CongestionEvent::Sent { bytes } => self.count_bytes(bytes),
            CongestionEvent::Notified => self.notify(now),
            CongestionEvent::RoundTrip { .. } => {}
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.cut_due.into_iter().chain(self.increase_due).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        while let Some(due) = self.poll_timeout().filter(|&due| due <= now) {
            // A cut goes before an increase of the same instant, which it puts off.
            if self.cut_due == Some(due) {
                self.decay_alpha(due);
                self.cut(due);
            } else {
                self.increase_by_time(due);
            }
        }
    }
}

impl Algorithm for DcqcnParameters {
    fn name(&self) -> &'static str {
        "dcqcn"
    }

    fn reacts_to_marks(&self) -> bool {
        true
    }

    fn start(&self, line_rate: Rate) -> Box<dyn CongestionControl> {
        Box::new(Dcqcn::new(*self, line_rate))
    }
}
