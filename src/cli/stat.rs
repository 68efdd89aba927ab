//! `uroce stat`: the running devices of this user, their counters, and the rates of their queue pairs.

use super::units;
use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    net::IpAddr,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};
use uroce::status::{self, DeviceStatus, QueuePairStatus};

/// How many queue pairs of a device are shown on a terminal.
const SHOWN_QUEUE_PAIRS: usize = 16;
/// Takes the terminal's cursor home, and clears what is behind it.
const HOME: &str = "\x1b[H\x1b[J";

/// Options of `uroce stat`.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatOptions {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print the text that Prometheus reads
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    /// Print once, and do not refresh, even on a terminal
    #[arg(long)]
    once: bool,
    /// How often to refresh on a terminal: 1 or 1s, 500ms
    #[arg(short, long, default_value = "1s", value_parser = units::parse_duration)]
    interval: Duration,
}

/// Runs it.
pub(crate) fn run(options: &StatOptions) -> anyhow::Result<ExitCode> {
    let devices = || status::devices().context("the system does not tell which sockets there are");
    let mut out = io::stdout().lock();
    if options.json {
        let devices: Vec<_> = devices()?.iter().map(device_json).collect();
        writeln!(out, "{}", json!({ "devices": devices }))?;
    } else if options.prometheus {
        out.write_all(prometheus(&devices()?).as_bytes())?;
    } else if options.once || !out.is_terminal() {
        out.write_all(table(&devices()?, &Meter::default()).as_bytes())?;
    } else {
        let mut meter = Meter::default();
        loop {
            let devices = devices()?;
            meter.look(Instant::now(), &devices);
            write!(out, "{HOME}{}", table(&devices, &meter))?;
            out.flush()?;
            thread::sleep(options.interval);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A device, from one look to the next.
type Key = (u32, String, Option<IpAddr>);

fn key(device: &DeviceStatus) -> Key {
    (device.pid, device.device.clone(), device.address)
}

/// Bytes that a device had sent and received when it was last looked at, and what passed since the look before.
#[derive(Clone, Copy, Debug)]
struct Passed {
    at: Instant,
    sent: u64,
    received: u64,
    /// Gbit/s sent and received.
    rates: Option<(f64, f64)>,
}

/// Turns counters into rates.
#[derive(Debug, Default)]
struct Meter {
    devices: BTreeMap<Key, Passed>,
}

impl Meter {
    fn look(&mut self, now: Instant, devices: &[DeviceStatus]) {
        let before = std::mem::take(&mut self.devices);
        for device in devices {
            let key = key(device);
            let (sent, received) = (device.counter("rdma_tx_bytes"), device.counter("rdma_rx_bytes"));
            let rates = before.get(&key).map(|before| {
                let seconds = (now - before.at).as_secs_f64().max(1e-9);
                let rate = |now: u64, before: u64| 8e-9 * now.saturating_sub(before) as f64 / seconds;
                (rate(sent, before.sent), rate(received, before.received))
            });
            self.devices.insert(key, Passed { at: now, sent, received, rates });
        }
    }

    fn rates(&self, device: &DeviceStatus) -> Option<(f64, f64)> {
        self.devices.get(&key(device))?.rates
    }
}

/// For a reader: devices, their counters that are not 0, their first queue pairs.
fn table(devices: &[DeviceStatus], meter: &Meter) -> String {
    if devices.is_empty() {
        return "no process of this user has a uroce device\n".to_owned();
    }
    let mut text = String::new();
    for device in devices {
        device_lines(&mut text, device, meter.rates(device));
    }
    text
}

fn device_lines(text: &mut String, device: &DeviceStatus, rates: Option<(f64, f64)>) {
    let DeviceStatus { pid, program, device: name, congestion, queue_pair_count, .. } = device;
    let address = device.address.map_or_else(String::new, |address| format!(" at {address}"));
    let queue_pairs = if *queue_pair_count == 1 { "queue pair" } else { "queue pairs" };
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "{program} ({pid}): {name}{address}, {queue_pair_count} {queue_pairs}, congestion control {congestion}"
    );
    if let Some((sent, received)) = rates {
        let _ = write!(text, "\n  {sent:.3} Gbit/s sent, {received:.3} Gbit/s received");
    }
    text.push_str("\n ");
    for (name, count) in device.counters.iter().filter(|&&(_, count)| count > 0) {
        let _ = write!(text, " {name}={count}");
    }
    text.push('\n');
    for qp in device.queue_pairs.iter().take(SHOWN_QUEUE_PAIRS) {
        let QueuePairStatus { number, qp_type, state, rate, peer, .. } = qp;
        let peer = peer.map_or_else(String::new, |(address, number)| format!("  → {address} {number}"));
        let _ = writeln!(text, "  qp {number:<8} {qp_type:<8} {state:<5} {:>14}{peer}", rate.to_string());
    }
    if device.queue_pair_count > SHOWN_QUEUE_PAIRS as u64 {
        let _ = writeln!(text, "  … and {} more", device.queue_pair_count - SHOWN_QUEUE_PAIRS as u64);
    }
    text.push('\n');
}

fn device_json(device: &DeviceStatus) -> Value {
    let counters: BTreeMap<_, _> = device.counters.iter().cloned().collect();
    let queue_pairs: Vec<_> = device.queue_pairs.iter().map(queue_pair_json).collect();
    json!({
        "pid": device.pid,
        "program": device.program,
        "device": device.device,
        "address": device.address,
        "congestion": device.congestion,
        "line_rate_bps": device.line_rate.bps(),
        "counters": counters,
        "queue_pair_count": device.queue_pair_count,
        "queue_pairs": queue_pairs,
    })
}

fn queue_pair_json(qp: &QueuePairStatus) -> Value {
    json!({
        "qp": qp.number,
        "type": qp.qp_type,
        "state": qp.state,
        "peer_address": qp.peer.map(|(address, _)| address),
        "peer_qp": qp.peer.map(|(_, number)| number),
        "rate_bps": qp.rate.bps(),
    })
}

/// Prometheus's text format, version 0.0.4: all samples of a metric together, each device by its labels.
fn prometheus(devices: &[DeviceStatus]) -> String {
    let mut metrics: BTreeMap<String, (&str, String)> = BTreeMap::new();
    let mut sample = |metric: String, kind, labels: &str, value: u64| {
        let (_, lines) = metrics.entry(metric.clone()).or_insert((kind, String::new()));
        let _ = writeln!(lines, "{metric}{{{labels}}} {value}");
    };
    for device in devices {
        let mut labels = format!("pid=\"{}\"", device.pid);
        let address = device.address.map_or_else(String::new, |address| address.to_string());
        for (label, value) in [("program", &device.program), ("device", &device.device), ("address", &address)] {
            let _ = write!(labels, ",{label}=\"{}\"", escape(value));
        }
        for (name, count) in &device.counters {
            sample(format!("uroce_{name}_total"), "counter", &labels, *count);
        }
        sample("uroce_queue_pairs".into(), "gauge", &labels, device.queue_pair_count);
        for qp in &device.queue_pairs {
            let mut labels = format!("{labels},qp=\"{}\",type=\"{}\",state=\"{}\"", qp.number, qp.qp_type, qp.state);
            if let Some((address, number)) = qp.peer {
                let _ = write!(labels, ",peer_address=\"{address}\",peer_qp=\"{number}\"");
            }
            sample("uroce_qp_rate_bits_per_second".into(), "gauge", &labels, qp.rate.bps());
        }
    }
    metrics.into_iter().map(|(metric, (kind, lines))| format!("# TYPE {metric} {kind}\n{lines}")).collect()
}

/// A label's value.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
