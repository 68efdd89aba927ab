//! The rate over time: what congestion control allows the queue pairs, what passes, and what they are told.

use crate::cli::session::Lane;
use anyhow::Context as _;
use serde::Serialize;
use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    time::{Duration, Instant},
};
use uroce::{congestion::Rate, verbs::Device};

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(1);
/// Into how many lines a measurement is summed up for reading.
const LINES: usize = 20;

/// What it saw at one time.
#[derive(Clone, Debug)]
struct Sample {
    at: Duration,
    /// Bytes of packets sent and received so far, BTH to ICRC.
    sent: u64,
    received: u64,
    /// Notifications heeded so far.
    notifications: u64,
    /// What each queue pair may send.
    allowed: Vec<Rate>,
}

/// What passed from one sample to another.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Span {
    /// When it ended.
    seconds: f64,
    /// What passed, in the direction of more.
    gbit_per_s: f64,
    /// What all queue pairs together might have sent, on average.
    allowed_gbit_per_s: f64,
    notifications: u64,
}

/// Samples of one measurement.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    begin: Instant,
    due: Instant,
    samples: Vec<Sample>,
}

impl Timeline {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { begin: now, due: now, samples: Vec::new() }
    }

    /// Takes a sample if it is time for one.
    pub(super) fn look(&mut self, now: Instant, device: &Device, lanes: &[Lane]) {
        if now < self.due {
            return;
        }
        self.due = now + INTERVAL;
        let counters = device.counters();
        self.samples.push(Sample {
            at: now - self.begin,
            sent: counters.rdma_tx_bytes,
            received: counters.rdma_rx_bytes,
            notifications: counters.rp_cnp_handled,
            allowed: lanes.iter().map(|lane| lane.qp.send_rate()).collect(),
        });
    }

    /// Writes every sample to a file of comma-separated values, a column a queue pair.
    pub(super) fn write(&self, path: &Path, lanes: &[Lane]) -> anyhow::Result<()> {
        let context = || format!("{} cannot be written", path.display());
        let mut out = BufWriter::new(File::create(path).with_context(context)?);
        self.write_to(&mut out, lanes.iter().map(|lane| lane.qp.qp_num().value())).with_context(context)
    }

    fn write_to(&self, out: &mut impl Write, numbers: impl Iterator<Item = u32>) -> io::Result<()> {
        write!(out, "seconds,gbit_per_s,notifications")?;
        for number in numbers {
            write!(out, ",allowed_gbit_per_s_qp_{number}")?;
        }
        writeln!(out)?;
        for pair in self.samples.windows(2) {
            let span = span(pair);
            write!(out, "{:.6},{:.3},{}", span.seconds, span.gbit_per_s, span.notifications)?;
            for rate in &pair[1].allowed {
                write!(out, ",{:.3}", gigabits(*rate))?;
            }
            writeln!(out)?;
        }
        out.flush()
    }

    /// The measurement in a few lines.
    pub(super) fn summary(&self) -> Vec<Span> {
        let pieces = self.samples.len().saturating_sub(1).min(LINES);
        let bound = |piece: usize| piece * (self.samples.len() - 1) / pieces;
        (0..pieces).map(|piece| span(&self.samples[bound(piece)..=bound(piece + 1)])).collect()
    }
}

/// Prints spans, a line each, with a bar as long as what was allowed.
pub(super) fn print(out: &mut impl Write, spans: &[Span]) -> io::Result<()> {
    const WIDTH: f64 = 40.0;
    let most = spans.iter().map(|span| span.allowed_gbit_per_s).fold(1e-9, f64::max);
    writeln!(out, "\n{:>9} {:>14} {:>9} {:>14}", "seconds", "allowed Gbit/s", "Gbit/s", "notifications")?;
    for span in spans {
        let bar = "▇".repeat((span.allowed_gbit_per_s / most * WIDTH).round() as usize);
        let Span { seconds, gbit_per_s, allowed_gbit_per_s, notifications } = span;
        writeln!(out, "{seconds:>9.3} {allowed_gbit_per_s:>14.3} {gbit_per_s:>9.3} {notifications:>14}  {bar}")?;
    }
    Ok(())
}

/// What passed from the first of these samples to the last.
fn span(samples: &[Sample]) -> Span {
    let [first, between @ ..] = samples else { return EMPTY };
    let Some(last) = between.last() else { return EMPTY };
    let bytes = (last.sent - first.sent).max(last.received - first.received);
    let allowed = between.iter().flat_map(|sample| &sample.allowed).map(|rate| gigabits(*rate)).sum::<f64>();
    Span {
        seconds: last.at.as_secs_f64(),
        gbit_per_s: 8e-9 * bytes as f64 / (last.at - first.at).as_secs_f64().max(1e-9),
        allowed_gbit_per_s: allowed / between.len() as f64,
        notifications: last.notifications - first.notifications,
    }
}

const EMPTY: Span = Span { seconds: 0.0, gbit_per_s: 0.0, allowed_gbit_per_s: 0.0, notifications: 0 };

fn gigabits(rate: Rate) -> f64 {
    rate.bps() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hundred milliseconds: two queue pairs at 4 and 1 Gbit/s, a megabyte a millisecond, a notification each fifth.
    fn timeline() -> Timeline {
        let sample = |milli: u64| Sample {
            at: Duration::from_millis(milli),
            sent: milli * 1_000_000,
            received: milli * 1000,
            notifications: milli / 5,
            allowed: vec![Rate::from_gbps(4), Rate::from_gbps(1)],
        };
        Timeline { samples: (0..=100).map(sample).collect(), ..Timeline::new() }
    }

    #[test]
    fn every_sample_is_a_line_of_the_file() {
        let mut text = Vec::new();
        timeline().write_to(&mut text, [17, 18].into_iter()).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 101);
        assert_eq!(lines[0], "seconds,gbit_per_s,notifications,allowed_gbit_per_s_qp_17,allowed_gbit_per_s_qp_18");
        assert_eq!(lines[1], "0.001000,8.000,0,4.000,1.000");
        assert_eq!(lines[5], "0.005000,8.000,1,4.000,1.000");
    }

    #[test]
    fn a_few_lines_sum_it_up() {
        let summary = timeline().summary();
        assert_eq!(summary.len(), LINES);
        assert!((summary[0].gbit_per_s - 8.0).abs() < 1e-9 && (summary[0].allowed_gbit_per_s - 5.0).abs() < 1e-9);
        assert_eq!(summary.iter().map(|span| span.notifications).sum::<u64>(), 20);
        assert!((summary[19].seconds - 0.1).abs() < 1e-9);
        assert!(Timeline::new().summary().is_empty());
    }
}
