//! What is counted of a measurement, when it begins and when it is over.

use super::Limit;
use crate::cli::units;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Messages that a timed measurement does not count, to open windows and warm caches.
const WARM_UP_MESSAGES: u64 = 200;
/// The part of its time that they take at most.
const WARM_UP_PART: u32 = 10;
/// The longest latency that is told from longer ones.
const LONGEST: Duration = Duration::from_secs(3600);
/// How often the progress line changes.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// What a measurement found.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// Messages within the measured time.
    pub(super) messages: u64,
    /// All messages of each queue pair, warm-up included.
    pub(super) sent: Vec<u64>,
    /// The measured time.
    pub(super) elapsed: Duration,
    /// Nanoseconds.
    pub(super) latency: Histogram<u64>,
}

impl Measured {
    /// An empty histogram of latencies in nanoseconds.
    pub(super) fn histogram() -> anyhow::Result<Histogram<u64>> {
        Ok(Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3)?)
    }
}

/// A running measurement.
#[derive(Debug)]
pub(super) struct Meter {
    limit: Limit,
    size: usize,
    opened: Instant,
    warm_up: u64,
    start: Option<Instant>,
    end: Instant,
    messages: u64,
    latency: Histogram<u64>,
    over: bool,
    progress: ProgressBar,
    shown: Instant,
}

impl Meter {
    /// A measurement of messages of `size` bytes that begins now.
    pub(super) fn new(limit: Limit, size: usize) -> anyhow::Result<Self> {
        let now = Instant::now();
        // Drawn on standard error, and only when that is a terminal.
        let progress = ProgressBar::new_spinner();
        progress.set_style(ProgressStyle::with_template("{spinner} {msg}")?);
        Ok(Self {
            limit,
            size,
            opened: now,
            warm_up: WARM_UP_MESSAGES,
            // Whoever asks for a number of messages wants exactly those.
            start: matches!(limit, Limit::Messages(_)).then_some(now),
            end: now,
            messages: 0,
            latency: Measured::histogram()?,
            over: false,
            progress,
            shown: now,
        })
    }

    /// How many more messages may be posted when `posted` have been.
    pub(super) const fn allows(&self, posted: u64) -> u64 {
        match self.limit {
            Limit::Messages(count) => count - posted,
            Limit::Time(_) if self.over => 0,
            Limit::Time(_) => u64::MAX,
        }
    }

    /// A message completed at `now`, after `latency`.
    pub(super) fn record(&mut self, now: Instant, latency: Duration) {
        if self.over {
            return;
        }
        let Some(start) = self.start else {
            self.warm_up -= 1;
            if let Limit::Time(time) = self.limit
                && (self.warm_up == 0 || now - self.opened > time / WARM_UP_PART)
            {
                (self.start, self.end) = (Some(now), now);
            }
            return;
        };
        self.messages += 1;
        self.end = now;
        self.latency.saturating_record(latency.as_nanos() as u64);
        self.over = match self.limit {
            Limit::Messages(count) => self.messages == count,
            Limit::Time(time) => now - start >= time,
        };
    }

    /// Whether everything that is to be measured has been.
    pub(super) const fn is_over(&self) -> bool {
        self.over
    }

    /// Keeps the progress line alive.
    pub(super) fn show(&mut self, now: Instant) {
        if now - self.shown < PROGRESS_INTERVAL || self.progress.is_hidden() {
            return;
        }
        self.shown = now;
        let elapsed = self.end - self.start.unwrap_or(self.end);
        self.progress.set_message(format!(
            "{}: {} messages, {}",
            units::format_size(self.size as u64),
            units::format_count(self.messages),
            units::format_rate(self.messages * self.size as u64, elapsed),
        ));
        self.progress.tick();
    }

    /// What was found, when each queue pair sent so many messages in all.
    pub(super) fn finish(self, sent: Vec<u64>) -> Measured {
        self.progress.finish_and_clear();
        Measured {
            messages: self.messages,
            sent,
            elapsed: self.end - self.start.unwrap_or(self.end),
            latency: self.latency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_messages_are_all_counted() {
        let mut meter = Meter::new(Limit::Messages(3), 64).unwrap();
        assert_eq!(meter.allows(1), 2);
        let now = Instant::now();
        for at in 1..=3 {
            assert!(!meter.is_over());
            meter.record(now + Duration::from_micros(at), Duration::from_micros(1));
        }
        assert!(meter.is_over());
        assert_eq!(meter.finish(vec![3]).messages, 3);
    }

    #[test]
    fn a_timed_measurement_leaves_the_warm_up_out_and_ends() {
        let mut meter = Meter::new(Limit::Time(Duration::from_secs(1)), 64).unwrap();
        let start = Instant::now();
        let mut total = 0;
        while !meter.is_over() {
            total += 1;
            meter.record(start + Duration::from_millis(total), Duration::from_micros(1));
        }
        assert_eq!(meter.allows(total), 0);
        let measured = meter.finish(vec![total]);
        assert!(measured.messages < total);
        assert_eq!(measured.messages, measured.latency.len());
        assert_eq!(measured.elapsed, Duration::from_secs(1));
    }
}
