//! Where two captures of the same packets part, in words.
//!
//! Two points on one way see the same packets of each direction in the same order, unless what is between them loses,
//! changes, repeats or shuffles some.

use crate::report::{Carried, Packets, Seen};
use similar::{Algorithm, DiffOp, capture_diff_slices_by_key};
use std::fmt::{self, Write};
use uroce_protocol::wire::{Bth, Opcode};

/// What became of a packet between two points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    /// In these words.
    Changed(String),
    /// It came once more than it was sent.
    Repeated,
    /// It came, and nobody had sent it.
    Unsent,
    /// So many that were sent after it came before it.
    Overtaken(usize),
    /// It came before so many that were sent before it.
    Early(usize),
}

/// A packet that is not at both points, or not in the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) fate: Fate,
    /// Which of the packets that were sent it is, or would be.
    pub(crate) sent: usize,
    /// Which of the packets that came it is, or would be.
    pub(crate) came: usize,
}

/// One of the points: what to call it, and what it saw.
#[derive(Clone, Copy)]
pub(crate) struct Point<'a>(pub(crate) &'a str, pub(crate) &'a Packets);

/// What happened to the packets of one direction, in the order in which it shows.
pub(crate) fn differences(sent: &[&Seen], came: &[&Seen]) -> Vec<Difference> {
    let mut found = Vec::new();
    for part in capture_diff_slices_by_key(Algorithm::Myers, sent, came, |packet| &packet.wire) {
        if matches!(part, DiffOp::Equal { .. }) {
            continue;
        }
        let (mut missing, extra) = (part.old_range(), part.new_range());
        let lost = |sent, came| Difference { fate: Fate::Lost, sent, came };
        for at in extra.clone() {
            let Some(was) = missing.clone().find(|&was| is_same(&sent[was].wire, &came[at].wire)) else {
                found.push(Difference { fate: Fate::Unsent, sent: missing.start, came: at });
                continue;
            };
            found.extend((missing.start..was).map(|i| lost(i, at)));
            found.push(Difference { fate: Fate::Changed(change(sent[was], came[at])), sent: was, came: at });
            missing.start = was + 1;
        }
        found.extend(missing.map(|i| lost(i, extra.end)));
    }
    tell_what_moved(&mut found, sent, came);
    for difference in found.iter_mut().filter(|difference| difference.fate == Fate::Unsent) {
        if sent.iter().any(|packet| packet.wire == came[difference.came].wire) {
            difference.fate = Fate::Repeated;
        }
    }
    found
}

/// What seems lost and came elsewhere has moved.
fn tell_what_moved(found: &mut Vec<Difference>, sent: &[&Seen], came: &[&Seen]) {
    let mut i = 0;
    while i < found.len() {
        let is_other_half = |other: &Difference| {
            let (lost, extra) = if found[i].fate == Fate::Lost { (&found[i], other) } else { (other, &found[i]) };
            lost.fate == Fate::Lost && extra.fate == Fate::Unsent && sent[lost.sent].wire == came[extra.came].wire
        };
        if let Some(distance) = found[i + 1..].iter().position(is_other_half) {
            let other = found.remove(i + 1 + distance);
            let this = &mut found[i];
            if this.fate == Fate::Lost {
                this.fate = Fate::Overtaken(other.came - this.came);
                this.came = other.came;
            } else {
                this.fate = Fate::Early(other.sent - this.sent);
                this.sent = other.sent;
            }
        }
        i += 1;
    }
}

/// Whether one is the other, damaged: it names itself the same, or a single byte is another.
fn is_same(sent: &Carried, came: &Carried) -> bool {
    /// Opcode, destination queue pair and PSN.
    fn name(packet: &Carried) -> Option<(u8, &[u8], &[u8])> {
        packet.bytes.get(..Bth::LEN).map(|bth| (bth[0], &bth[5..8], &bth[9..]))
    }
    let damaged = sent.bytes.iter().zip(&came.bytes).filter(|(sent, came)| sent != came).count();
    (sent.source, sent.destination) == (came.source, came.destination)
        && (name(sent) == name(came) || sent.bytes.len() == came.bytes.len() && damaged <= 1)
}

/// What is not what it was.
fn change(sent: &Seen, came: &Seen) -> String {
    let (was, is) = (&sent.wire, &came.wire);
    let mut words = Vec::new();
    let mut tell = |what: &str, was: &dyn fmt::Display, is: &dyn fmt::Display| {
        words.push(format!("{what} {was} → {is}"));
    };
    if was.traffic_class != is.traffic_class {
        tell("traffic class", &was.traffic_class, &is.traffic_class);
    }
    if was.source_port != is.source_port {
        tell("UDP source port", &was.source_port, &is.source_port);
    }
    if was.bytes.len() != is.bytes.len() {
        tell("bytes", &was.bytes.len(), &is.bytes.len());
    }
    let headers = was.bytes.first().and_then(|&byte| Opcode::from_byte(byte)).map_or(Bth::LEN, Opcode::header_len);
    let mut told = "";
    for (at, (was, is)) in was.bytes.iter().zip(&is.bytes).enumerate().filter(|(_, (was, is))| was != is) {
        let field = field(at, headers);
        // The first byte of each.
        if field != told {
            tell(&format!("{field} (byte {at})"), &format_args!("{was:#04x}"), &format_args!("{is:#04x}"));
            told = field;
        }
    }
    let right = |is_right| if is_right { "right" } else { "wrong" };
    if was.icrc_is_right != is.icrc_is_right {
        tell("ICRC", &right(was.icrc_is_right), &right(is.icrc_is_right));
    }
    words.join(", ")
}

/// Which field of a packet a byte belongs to.
fn field(at: usize, headers: usize) -> &'static str {
    match at {
        0 => "opcode",
        1 => "SE, MigReq, pad, TVer",
        2..4 => "P_Key",
        4 => "FECN, BECN",
        5..8 => "destination queue pair",
        8 => "AckReq",
        9..12 => "PSN",
        _ if at < headers => "extended header",
        _ => "payload",
    }
}

/// In words, where two points do not agree: for each direction how much there is, and the first of it. `None` where they
/// agree.
pub(crate) fn compare(near: Point<'_>, far: Point<'_>) -> Option<String> {
    let mut words = String::new();
    for ours in [true, false] {
        let (from, to) = if ours { (near, far) } else { (far, near) };
        let [sent, came] =
            [from, to].map(|point| point.1.list.iter().filter(|packet| packet.is_ours == ours).collect::<Vec<_>>());
        let found = differences(&sent, &came);
        let Some(first) = found.first() else { continue };
        let (who, all, count) = (if ours { "uroce" } else { "rxe" }, sent.len(), found.len());
        let _ = write!(
            words,
            "\n      of the {all} packets that {who} sent, {count} differ between {} and {}; the first {}",
            from.0,
            to.0,
            first.told(&sent, &came, from.0, to.0)
        );
    }
    (!words.is_empty()).then_some(words)
}

impl Difference {
    fn told(&self, sent: &[&Seen], came: &[&Seen], from: &str, to: &str) -> String {
        let line = |point: &str, list: &[&Seen], at: usize| {
            list.get(at).map_or_else(
                || format!("\n        {point}: nothing more"),
                |packet| format!("\n        {point}: {packet}"),
            )
        };
        let (here, there) = (line(from, sent, self.sent), line(to, came, self.came));
        match &self.fate {
            Fate::Lost => format!("was lost:{here}\n      and what came next was{there}"),
            Fate::Changed(what) => format!("was changed ({what}):{here}{there}"),
            Fate::Repeated => format!("came once more than it was sent:{there}"),
            Fate::Unsent => format!("was never sent:{there}"),
            Fate::Overtaken(count) => format!("was overtaken by {count}:{here}{there}"),
            Fate::Early(count) => format!("overtook {count}:{here}{there}"),
        }
    }
}
