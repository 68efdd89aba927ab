//! What the client prints: a table that grows by a line a size, or one JSON object.

use super::{
    PerfOptions, Test,
    meter::Measured,
    timeline::{self, Span},
};
use crate::cli::{outcome, session::IdleCost, units};
use serde::Serialize;
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// The percentiles of `--histogram`.
const PERCENTILES: [f64; 11] = [0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// One measured size.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) size: u64,
    pub(super) measured: Measured,
    /// Packets that either side sent again.
    pub(super) retransmitted: u64,
    /// What is wrong with the data.
    pub(super) difference: Option<String>,
    /// The rate over time, where that was looked at.
    pub(super) timeline: Option<Vec<Span>>,
}

impl Row {
    fn seconds(&self) -> f64 {
        self.measured.elapsed.as_secs_f64().max(1e-9)
    }

    fn gbit_per_s(&self) -> f64 {
        8e-9 * self.size as f64 * self.measured.messages as f64 / self.seconds()
    }

    fn msgs_per_s(&self) -> f64 {
        self.measured.messages as f64 / self.seconds()
    }

    fn micros_at(&self, percentile: f64) -> f64 {
        self.measured.latency.value_at_percentile(percentile) as f64 / 1e3
    }

    fn result(&self) -> SizeResult {
        let latency = &self.measured.latency;
        SizeResult {
            size: self.size,
            messages: self.measured.messages,
            seconds: self.seconds(),
            gbit_per_s: self.gbit_per_s(),
            msgs_per_s: self.msgs_per_s(),
            min_us: latency.min() as f64 / 1e3,
            mean_us: latency.mean() / 1e3,
            p50_us: self.micros_at(50.0),
            p90_us: self.micros_at(90.0),
            p99_us: self.micros_at(99.0),
            p999_us: self.micros_at(99.9),
            max_us: latency.max() as f64 / 1e3,
            retransmitted_packets: self.retransmitted,
            data_right: self.difference.is_none(),
            timeline: self.timeline.clone(),
        }
    }
}

/// What `--json` prints: its own fields are those of the largest size.
#[derive(Debug, Serialize)]
struct RunResult<'a> {
    op: String,
    local: &'a str,
    remote: &'a str,
    mtu: usize,
    qps: u32,
    depth: u32,
    /// What a latency is of.
    latency_of: &'static str,
    #[serde(flatten)]
    largest: Option<SizeResult>,
    #[serde(flatten)]
    idle: Option<IdleResult>,
    /// All sizes, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    results: Option<Vec<SizeResult>>,
}

#[derive(Clone, Debug, Serialize)]
struct SizeResult {
    size: u64,
    messages: u64,
    seconds: f64,
    gbit_per_s: f64,
    msgs_per_s: f64,
    min_us: f64,
    mean_us: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    retransmitted_packets: u64,
    data_right: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<Vec<Span>>,
}

#[derive(Debug, Serialize)]
struct IdleResult {
    idle_qps: u32,
    setup_us_per_idle_qp: f64,
    bytes_per_idle_qp: u64,
}

/// What stays the same from size to size.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) local: String,
    pub(super) remote: String,
    pub(super) mtu: usize,
    pub(super) idle: IdleCost,
    /// How many processes the idle queue pairs' memory is of: both sides when they are one.
    pub(super) sides: u64,
}

/// The report of a whole run.
#[derive(Debug)]
pub(super) struct Report<'a> {
    options: &'a PerfOptions,
    setting: Setting,
    rows: Vec<Row>,
}

impl<'a> Report<'a> {
    pub(super) const fn new(options: &'a PerfOptions, setting: Setting) -> Self {
        Self { options, setting, rows: Vec::new() }
    }

    /// Prints what is known before the first size.
    pub(super) fn begin(&self) -> io::Result<()> {
        if self.options.json {
            return Ok(());
        }
        let PerfOptions { test, qps, depth, idle_qps, .. } = self.options;
        let Setting { local, remote, mtu, .. } = &self.setting;
        let mut out = io::stdout().lock();
        write!(out, "{}   {local} → {remote}   MTU {mtu}", test.name())?;
        if *test != Test::Ceiling {
            write!(out, "   {qps} QP{}", if *qps == 1 { "" } else { "s" })?;
            if test.is_bandwidth() {
                write!(out, "   depth {depth}")?;
            }
        }
        writeln!(out)?;
        if *idle_qps > 0 {
            writeln!(
                out,
                "{idle_qps} idle queue pairs: {:.1} µs to make and connect each, {} each side",
                self.setup_micros(),
                units::format_size(self.idle_bytes()),
            )?;
        }
        writeln!(out, "latency: {}\n", test.latency_of())?;
        writeln!(
            out,
            "{:>9} {:>11} {:>9} {:>11} {:>9} {:>9} {:>9} {:>8}  data",
            "size", "messages", "Gbit/s", "messages/s", "p50 µs", "p99 µs", "p99.9 µs", "retrans."
        )?;
        out.flush()
    }

    /// Takes, and unless it is for JSON prints, a measured size.
    pub(super) fn add(&mut self, row: Row) -> io::Result<()> {
        if !self.options.json {
            let mut out = io::stdout().lock();
            writeln!(
                out,
                "{:>9} {:>11} {:>9.3} {:>11.0} {:>9.2} {:>9.2} {:>9.2} {:>8}  {}",
                units::format_size(row.size),
                units::format_count(row.measured.messages),
                row.gbit_per_s(),
                row.msgs_per_s(),
                row.micros_at(50.0),
                row.micros_at(99.0),
                row.micros_at(99.9),
                units::format_count(row.retransmitted),
                row.difference.as_deref().unwrap_or("right"),
            )?;
            if let Some(spans) = &row.timeline {
                timeline::print(&mut out, spans)?;
            }
            if self.options.histogram {
                histogram(&mut out, &row)?;
            }
            out.flush()?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Prints the JSON object when that was asked for, and says how the command ends.
    pub(super) fn finish(self) -> anyhow::Result<ExitCode> {
        let right = self.rows.iter().all(|row| row.difference.is_none());
        if self.options.json {
            writeln!(io::stdout(), "{}", serde_json::to_string(&self.result())?)?;
        }
        Ok(outcome(right))
    }

    fn result(&self) -> RunResult<'_> {
        let PerfOptions { test, qps, depth, idle_qps, .. } = *self.options;
        let results: Vec<SizeResult> = self.rows.iter().map(Row::result).collect();
        RunResult {
            op: test.name(),
            local: &self.setting.local,
            remote: &self.setting.remote,
            mtu: self.setting.mtu,
            qps: if test == Test::Ceiling { 1 } else { qps },
            depth: if test.is_bandwidth() { depth } else { 1 },
            latency_of: test.latency_of(),
            largest: results.last().cloned(),
            idle: (idle_qps > 0).then(|| IdleResult {
                idle_qps,
                setup_us_per_idle_qp: self.setup_micros(),
                bytes_per_idle_qp: self.idle_bytes(),
            }),
            results: (results.len() > 1).then_some(results),
        }
    }

    fn setup_micros(&self) -> f64 {
        self.setting.idle.setup.as_secs_f64() * 1e6 / f64::from(self.options.idle_qps.max(1))
    }

    fn idle_bytes(&self) -> u64 {
        self.setting.idle.bytes / (u64::from(self.options.idle_qps.max(1)) * self.setting.sides)
    }
}

/// Where the latencies lie: a line a percentile, a bar as long as its latency.
fn histogram(out: &mut impl Write, row: &Row) -> io::Result<()> {
    const WIDTH: f64 = 40.0;
    // Of the 99th percentile: what is rarer may be longer than any line.
    let scale = WIDTH / row.micros_at(99.0).max(1e-3);
    for percentile in PERCENTILES {
        let micros = row.micros_at(percentile);
        let length = (micros * scale).round();
        let bar = "▇".repeat(length.min(WIDTH) as usize);
        let more = if length > WIDTH { "…" } else { "" };
        writeln!(out, "{:>21} {micros:>9.2} µs  {bar}{more}", format!("p{percentile}"))?;
    }
    Ok(())
}
