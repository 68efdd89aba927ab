//! TIMELY: a sender that watches its round-trip times.

use super::{Algorithm, CongestionControl, CongestionEvent, ParameterError, Rate};
use crate::{Instant, time::Duration};

/// How TIMELY behaves; the defaults are those of its paper, as "ECN or Delay: Lessons Learnt from Analysis of DCQCN
/// and TIMELY" (Zhu et al., CoNEXT 2016) tabulates them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimelyParameters {
    /// T_low: below it the rate grows whatever the gradient. 50 µs.
    pub low: Duration,
    /// T_high: above it the rate falls whatever the gradient. 500 µs.
    pub high: Duration,
    /// D_minRTT: what gradients are measured in. 20 µs.
    pub minimum_rtt: Duration,
    /// α: the weight of the latest difference in the running one. 0.875.
    pub ewma_weight: f64,
    /// β: how hard the rate falls. 0.8.
    pub decrease: f64,
    /// δ: what the rate grows by. 10 Mbit/s.
    pub step: Rate,
    /// After so many growths in a row for want of a gradient, each step is five (hyperactive increase). 5.
    pub hyperactive_after: u32,
    /// The lowest rate. 1 Mbit/s; the paper names none.
    pub min_rate: Rate,
}

impl TimelyParameters {
    /// The paper's.
    pub const PAPER: Self = Self {
        low: Duration::from_micros(50),
        high: Duration::from_micros(500),
        minimum_rtt: Duration::from_micros(20),
        ewma_weight: 0.875,
        decrease: 0.8,
        step: Rate::from_mbps(10),
        hyperactive_after: 5,
        min_rate: Rate::from_mbps(1),
    };

    /// Sets a parameter by a name of its own making: `t_low`, `t_high` and `min_rtt` in µs, `step` and `min_rate` in
    /// Mbit/s.
    ///
    /// # Errors
    /// When there is no such parameter, or the value makes no sense for it.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), ParameterError> {
        let micros = Duration::from_micros(value.min(u64::from(u32::MAX)));
        match name {
            "t_low" | "t_high" | "min_rtt" | "step" | "min_rate" if value == 0 || value > u64::from(u32::MAX) => {
                return Err(ParameterError::OutOfRange { name: name.into(), value });
            }
            "t_low" => self.low = micros,
            "t_high" => self.high = micros,
            "min_rtt" => self.minimum_rtt = micros,
            "step" => self.step = Rate::from_mbps(value),
            "min_rate" => self.min_rate = Rate::from_mbps(value),
            _ => return Err(ParameterError::Unknown(name.into())),
        }
        Ok(())
    }
}

impl Default for TimelyParameters {
    fn default() -> Self {
        Self::PAPER
    }
}

/// How many steps one is in hyperactive increase.
const HYPERACTIVE: u32 = 5;

/// TIMELY for one flow: algorithm 1 of Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter"
/// (SIGCOMM 2015). Notifications do not move it, and it has no timer: it acts when an answer comes.
///
/// As the CoNEXT paper shows, it keeps a queue between its two thresholds but not flows at equal rates.
#[derive(Clone, Debug)]
pub struct Timely {
    parameters: TimelyParameters,
    highest: f64,
    lowest: f64,
    /// bit/s.
    rate: f64,
    previous: Option<Duration>,
    /// The running difference between one round trip and the next, in seconds.
    difference: f64,
    growths: u32,
}

impl Timely {
    /// A flow on a port of `line_rate`, at that rate.
    pub fn new(parameters: TimelyParameters, line_rate: Rate) -> Self {
        let highest = line_rate.bps().max(1) as f64;
        let lowest = (parameters.min_rate.bps().max(1) as f64).min(highest);
        Self { parameters, highest, lowest, rate: highest, previous: None, difference: 0.0, growths: 0 }
    }

    fn round_trip(&mut self, rtt: Duration) {
        let parameters = &self.parameters;
        let Some(previous) = self.previous.replace(rtt) else { return };
        let latest = rtt.as_secs_f64() - previous.as_secs_f64();
        self.difference += (latest - self.difference) * parameters.ewma_weight;
        let gradient = self.difference / parameters.minimum_rtt.as_secs_f64();
        let step = parameters.step.bps() as f64;

        let rate = if rtt < parameters.low {
            self.growths = 0;
            self.rate + step
        } else if rtt > parameters.high {
            self.growths = 0;
            let excess = 1.0 - parameters.high.as_secs_f64() / rtt.as_secs_f64();
            self.rate * (1.0 - parameters.decrease * excess)
        } else if gradient <= 0.0 {
            self.growths = self.growths.saturating_add(1);
            let steps = if self.growths >= parameters.hyperactive_after { HYPERACTIVE } else { 1 };
            self.rate + f64::from(steps) * step
        } else {
            self.growths = 0;
            self.rate * (1.0 - parameters.decrease * gradient)
        };
        // Not `clamp`, which would let pass what no parameters should give but some might: not a number.
        self.rate = rate.max(self.lowest).min(self.highest);
    }
}

impl CongestionControl for Timely {
    fn rate(&self) -> Rate {
        Rate::from_bps(self.rate as u64)
    }

    fn on_event(&mut self, _now: Instant, event: CongestionEvent) {
        if let CongestionEvent::RoundTrip { time } = event {
            self.round_trip(time);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _now: Instant) {}
}

impl Algorithm for TimelyParameters {
    fn name(&self) -> &'static str {
        "timely"
    }

    fn reacts_to_marks(&self) -> bool {
        false
    }

    fn start(&self, line_rate: Rate) -> Box<dyn CongestionControl> {
        Box::new(Timely::new(*self, line_rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBPS: u64 = 1_000_000;

    /// A flow at 1 Gbit/s of 10, and its rate in Mbit/s after each round trip of so many microseconds.
    fn rates(rtts: &[u64]) -> Vec<u64> {
        let mut flow = Timely::new(TimelyParameters::PAPER, Rate::from_gbps(10));
        flow.rate = 1e9;
        let after = |&rtt: &u64| {
            flow.on_event(Instant::ZERO, CongestionEvent::RoundTrip { time: Duration::from_micros(rtt) });
            flow.rate().bps() / MBPS
        };
        rtts.iter().map(after).collect()
    }

    #[test]
    fn parameters_are_set_by_name() {
        let mut parameters = TimelyParameters::PAPER;
        for (name, value) in [("t_low", 1000), ("t_high", 3000), ("min_rtt", 100), ("step", 50), ("min_rate", 10)] {
            assert_eq!(parameters.set(name, value), Ok(()), "{name}");
        }
        assert_eq!((parameters.low, parameters.high), (Duration::from_millis(1), Duration::from_millis(3)));
        assert_eq!((parameters.step, parameters.min_rate), (Rate::from_mbps(50), Rate::from_mbps(10)));
        assert_eq!(parameters.minimum_rtt, Duration::from_micros(100));
        let zero = ParameterError::OutOfRange { name: "t_low".into(), value: 0 };
        assert_eq!(parameters.set("t_low", 0), Err(zero));
        assert_eq!(parameters.set("low", 1), Err(ParameterError::Unknown("low".into())));
    }

    #[test]
    fn the_first_round_trip_only_sets_the_reference() {
        assert_eq!(rates(&[10_000]), [1000]);
    }

    #[test]
    fn grows_by_a_step_below_the_low_threshold_whatever_the_gradient() {
        assert_eq!(rates(&[20, 30, 49]), [1000, 1010, 1020]);
    }

    #[test]
    fn falls_in_proportion_above_the_high_threshold_whatever_the_gradient() {
        // 1000·(1 - 0.8·(1 - 500/1000)) = 600; then 600·(1 - 0.8·(1 - 500/625)) = 504 although the time fell.
        assert_eq!(rates(&[1000, 1000, 625]), [1000, 600, 504]);
    }

    #[test]
    fn between_the_thresholds_the_gradient_decides() {
        // Differences of +4 µs: running difference 0.875·4 = 3.5, gradient 3.5/20 = 0.175: 1000·(1 - 0.14) = 860.
        // Then 3.5 + (0 - 3.5)·0.875 = 0.4375 µs, gradient 0.021875: 860·(1 - 0.0175) = 844.95.
        assert_eq!(rates(&[100, 104, 104]), [1000, 860, 844]);
    }

    #[test]
    fn five_growths_in_a_row_make_it_hyperactive() {
        assert_eq!(rates(&[100; 8]), [1000, 1010, 1020, 1030, 1040, 1090, 1140, 1190]);
    }

    #[test]
    fn the_thresholds_themselves_lie_between() {
        assert_eq!(rates(&[50, 50]), [1000, 1010]);
        assert_eq!(rates(&[500, 500]), [1000, 1010]);
        assert_eq!(rates(&[50; 6]).last(), Some(&1090), "hyperactive increase is between the thresholds alone");
    }

    #[test]
    fn stays_between_its_bounds() {
        let mut flow = Timely::new(TimelyParameters::PAPER, Rate::from_gbps(10));
        let round_trip = |time| CongestionEvent::RoundTrip { time };
        for _ in 0..100 {
            flow.on_event(Instant::ZERO, round_trip(Duration::from_micros(20)));
        }
        assert_eq!(flow.rate(), Rate::from_gbps(10));
        for rtt in 1..100 {
            flow.on_event(Instant::ZERO, round_trip(Duration::from_millis(rtt)));
        }
        assert_eq!(flow.rate(), Rate::from_mbps(1));
        assert_eq!(flow.poll_timeout(), None);
    }
}
