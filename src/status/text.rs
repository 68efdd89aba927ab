//! A status as text: a line a fact, words between spaces.

use super::{DeviceStatus, QueuePairStatus};
use std::fmt::Write;
use uroce_protocol::congestion::Rate;

/// The first line: what follows, and in which version.
const HEADER: &str = "uroce status 1";

/// Writes it, but for the process, which the reader knows from the system.
pub(super) fn write(status: &DeviceStatus) -> String {
    let mut text = String::with_capacity(4096);
    // Writing to a string does not fail.
    let _ = write_to(&mut text, status);
    text
}

fn write_to(text: &mut String, status: &DeviceStatus) -> std::fmt::Result {
    writeln!(text, "{HEADER}")?;
    writeln!(text, "program {}", on_one_line(&status.program))?;
    writeln!(text, "device {}", on_one_line(&status.device))?;
    if let Some(address) = status.address {
        writeln!(text, "address {address}")?;
    }
    writeln!(text, "congestion {}", on_one_line(&status.congestion))?;
    writeln!(text, "line_rate {}", status.line_rate.bps())?;
    for (name, count) in &status.counters {
        writeln!(text, "counter {name} {count}")?;
    }
    writeln!(text, "qps {}", status.queue_pair_count)?;
    for QueuePairStatus { number, qp_type, state, peer, rate } in &status.queue_pairs {
        write!(text, "qp {number} {qp_type} {state} {}", rate.bps())?;
        match peer {
            Some((address, number)) => writeln!(text, " {address} {number}")?,
            None => writeln!(text)?,
        }
    }
    Ok(())
}

fn on_one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Reads it; `None` for what is none. Facts that are not known are ignored, so that a later version may tell more.
pub(super) fn parse(text: &str) -> Option<DeviceStatus> {
    let mut lines = text.lines();
    if lines.next()? != HEADER {
        return None;
    }
    let mut status = DeviceStatus::default();
    for line in lines {
        let (fact, rest) = line.split_once(' ')?;
        match fact {
            "program" => status.program = rest.into(),
            "device" => status.device = rest.into(),
            "address" => status.address = Some(rest.parse().ok()?),
            "congestion" => status.congestion = rest.into(),
            "line_rate" => status.line_rate = Rate::from_bps(rest.parse().ok()?),
            "counter" => {
                let (name, count) = rest.split_once(' ')?;
                status.counters.push((name.into(), count.parse().ok()?));
            }
            "qps" => status.queue_pair_count = rest.parse().ok()?,
            "qp" => status.queue_pairs.push(parse_queue_pair(rest)?),
            _ => {}
        }
    }
    Some(status)
}

fn parse_queue_pair(text: &str) -> Option<QueuePairStatus> {
    let mut words = text.split(' ');
    Some(QueuePairStatus {
        number: words.next()?.parse().ok()?,
        qp_type: words.next()?.into(),
        state: words.next()?.into(),
        rate: Rate::from_bps(words.next()?.parse().ok()?),
        peer: match (words.next(), words.next()) {
            (Some(address), Some(number)) => Some((address.parse().ok()?, number.parse().ok()?)),
            _ => None,
        },
    })
}
