//! From a rate to the instants at which packets may leave.

use super::Rate;
use crate::{Instant, time::Duration};

/// How late a timer may be before it costs rate: what a busy machine makes of a short sleep.
const LATENESS: Duration = Duration::from_millis(1);

/// Spaces out a flow's bursts so that on average they leave at a rate.
///
/// A burst is what may leave without a look at the clock: as much as the rate gives in a burst's time, but no more
/// than the most, and always one packet. Who has a burst to send asks [`Self::poll_budget`], sends, and reports it with
/// [`Self::on_sent`]; [`Self::clear_at`] is when to ask again.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    rate: Rate,
    burst_time: Duration,
    most_bytes: u64,
    /// When what has been sent will have taken the time that it should.
    clear_at: Instant,
    /// Somebody was refused since the last burst.
    is_awaited: bool,
}

impl Pacer {
    /// A flow that has not sent yet. Bursts take `burst_time` at the rate, and never more than `most_bytes`.
    pub const fn new(rate: Rate, burst_time: Duration, most_bytes: u64) -> Self {
        Self { rate, burst_time, most_bytes, clear_at: Instant::ZERO, is_awaited: false }
    }

    /// The rate.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Changes the rate. What still has to be waited for shrinks or grows accordingly.
    pub fn set_rate(&mut self, now: Instant, rate: Rate) {
        if rate == self.rate {
            return;
        }
        let wait = (self.clear_at - now).as_nanos();
        if wait > 0 {
            let wait = wait.saturating_mul(u128::from(self.rate.bps())) / u128::from(rate.bps().max(1));
            self.clear_at = now + Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX));
        }
        self.rate = rate;
    }

    /// Changes how long bursts are at most.
    pub fn set_most_bytes(&mut self, most_bytes: u64) {
        self.most_bytes = most_bytes;
    }

    /// How many bytes may leave now: a burst (its last packet may exceed it), or none before [`Self::clear_at`].
    pub fn poll_budget(&mut self, now: Instant) -> Option<u64> {
        if now < self.clear_at {
            self.is_awaited = true;
            return None;
        }
        Some(self.burst())
    }

    /// `bytes` have left. Who was kept waiting for longer than necessary, because a timer was late, gets the time
    /// back, up to that of the longest burst and to a millisecond; who had nothing to send (no `bytes`) does not.
    pub fn on_sent(&mut self, now: Instant, bytes: u64) {
        let most = self.rate.time_for(self.most_bytes).min(LATENESS);
        let from = if self.is_awaited { now.saturating_sub(most) } else { now };
        let is_whole_burst = bytes >= self.burst();
        self.clear_at = self.clear_at.max(from) + self.rate.time_for(bytes);
        // Who is still behind, and has more to send, has not had all of it back.
        self.is_awaited &= is_whole_burst && self.clear_at < now;
    }

    /// When the next burst may leave.
    pub const fn clear_at(&self) -> Instant {
        self.clear_at
    }

    fn burst(&self) -> u64 {
        self.rate.bytes_in(self.burst_time).clamp(1, self.most_bytes.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// 1000 bytes take 8 µs; a burst is 1000 bytes.
    fn pacer() -> Pacer {
        Pacer::new(Rate::from_gbps(1), Duration::from_micros(8), 64_000)
    }

    #[test]
    fn a_burst_is_what_the_rate_gives_in_its_time_within_bounds() {
        let budget = |rate| Pacer::new(rate, Duration::from_micros(8), 64_000).poll_budget(Instant::ZERO);
        assert_eq!(budget(Rate::from_gbps(1)), Some(1000));
        assert_eq!(budget(Rate::from_gbps(100)), Some(64_000));
        assert_eq!(budget(Rate::from_kbps(1)), Some(1), "which is one packet");
    }

    #[test]
    fn bursts_leave_one_after_the_other() {
        let mut pacer = pacer();
        assert_eq!(pacer.poll_budget(micros(100)), Some(1000));
        pacer.on_sent(micros(100), 1000);
        assert_eq!(pacer.clear_at(), micros(108));
        assert_eq!(pacer.poll_budget(micros(107)), None);
        assert_eq!(pacer.poll_budget(micros(108)), Some(1000));
        pacer.on_sent(micros(108), 2000);
        assert_eq!(pacer.clear_at(), micros(124), "what went beyond the budget is paid for");
    }

    #[test]
    fn a_late_timer_costs_no_rate_but_only_up_to_the_longest_burst() {
        // 4000 bytes at most, which take 32 µs.
        let mut pacer = Pacer::new(Rate::from_gbps(1), Duration::from_micros(8), 4_000);
        pacer.on_sent(micros(0), 1000);
        assert_eq!(pacer.poll_budget(micros(1)), None);
        pacer.on_sent(micros(11), 1000);
        assert_eq!(pacer.clear_at(), micros(16), "as if it had left at 8");
        assert_eq!(pacer.poll_budget(micros(15)), None);
        pacer.on_sent(micros(1000), 1000);
        assert_eq!(pacer.clear_at(), micros(976), "32 µs are given back");
        for clear_at in [984, 992, 1000] {
            assert_eq!(pacer.poll_budget(micros(1000)), Some(1000), "burst by burst");
            pacer.on_sent(micros(1000), 1000);
            assert_eq!(pacer.clear_at(), micros(clear_at));
        }
        pacer.on_sent(micros(1000), 1000);
        assert_eq!(pacer.clear_at(), micros(1008), "and then no more");
    }

    #[test]
    fn who_has_nothing_left_to_send_gets_no_more_time_back() {
        let mut pacer = Pacer::new(Rate::from_gbps(1), Duration::from_micros(8), 4_000);
        pacer.on_sent(micros(0), 1000);
        assert_eq!(pacer.poll_budget(micros(1)), None);
        pacer.on_sent(micros(1000), 1000);
        assert_eq!(pacer.poll_budget(micros(1000)), Some(1000));
        pacer.on_sent(micros(1000), 0);
        pacer.on_sent(micros(2000), 1000);
        assert_eq!(pacer.clear_at(), micros(2008));
    }

    #[test]
    fn no_more_than_a_millisecond_is_given_back() {
        let mut pacer = Pacer::new(Rate::from_kbps(8), Duration::from_micros(8), 64_000);
        pacer.on_sent(micros(0), 1);
        assert_eq!(pacer.poll_budget(micros(1)), None);
        pacer.on_sent(micros(10_000), 1);
        assert_eq!(pacer.clear_at(), micros(10_000));
    }

    #[test]
    fn idleness_saves_nothing_up() {
        let mut pacer = pacer();
        pacer.on_sent(micros(0), 1000);
        pacer.on_sent(micros(11), 1000);
        assert_eq!(pacer.clear_at(), micros(19));
    }

    #[test]
    fn a_new_rate_changes_what_is_left_of_the_wait() {
        let mut pacer = pacer();
        pacer.on_sent(micros(0), 10_000);
        pacer.set_rate(micros(40), Rate::from_gbps(4));
        assert_eq!(pacer.clear_at(), micros(50), "40 µs are left of 80, a quarter of them now");
        pacer.set_rate(micros(45), Rate::from_mbps(400));
        assert_eq!(pacer.clear_at(), micros(95));
        pacer.set_rate(micros(100), Rate::from_gbps(4));
        assert_eq!(pacer.clear_at(), micros(95), "nothing is left");
    }
}
