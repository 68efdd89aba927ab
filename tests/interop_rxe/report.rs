//! What a capture says of a case.

use std::{collections::HashMap, fmt, io::Read, net::IpAddr, path::Path};
use uroce::capture::{CaptureReader, Dissection, Verdict};
use uroce_protocol::{
    Psn,
    wire::{Encapsulation, Opcode, Operation, Packet, Qpn, Service, Syndrome},
};

/// What is remembered of a packet.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Its number in the capture, as Wireshark counts.
    pub(crate) number: u64,
    /// Whether uroce sent it.
    pub(crate) is_ours: bool,
    /// Whether it decodes and its ICRC is right.
    pub(crate) right: bool,
    pub(crate) opcode: Option<Opcode>,
    pub(crate) syndrome: Option<Syndrome>,
    pub(crate) destination: Qpn,
    pub(crate) psn: Psn,
    /// Whether it asks for an acknowledgement.
    pub(crate) ack_request: bool,
    pub(crate) wire: Carried,
    /// It in words.
    line: String,
}

/// What a packet is to be wherever it is seen on its way: what its ICRC covers, but for the number that the sender's
/// kernel gives it, and the traffic class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Carried {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) source_port: u16,
    pub(crate) traffic_class: u8,
    /// From the BTH to the last byte before the ICRC.
    pub(crate) bytes: Vec<u8>,
    /// The ICRC itself depends on that number.
    pub(crate) icrc_is_right: bool,
}

impl Carried {
    fn of(found: &Dissection<'_>) -> Self {
        let frame = &found.frame;
        let bytes = frame.packet();
        Self {
            source: frame.source,
            destination: frame.destination,
            source_port: match frame.encapsulation {
                Encapsulation::V2Ipv4 { source_port, .. } | Encapsulation::V2Ipv6 { source_port } => source_port,
                Encapsulation::V1 => 0,
            },
            traffic_class: frame.traffic_class,
            bytes: bytes[..bytes.len() - Packet::ICRC_LEN].to_vec(),
            icrc_is_right: found.icrc.is_ok(),
        }
    }
}

impl Seen {
    pub(crate) fn operation(&self) -> Option<Operation> {
        self.opcode.map(Opcode::operation)
    }

    fn is_rc(&self) -> bool {
        self.opcode.is_some_and(|opcode| opcode.service() == Service::Rc)
    }

    fn is_request(&self) -> bool {
        self.opcode.is_some_and(|opcode| !opcode.is_response() && opcode != Opcode::CNP)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "packet {}: {}", self.number, self.line)
    }
}

/// How a request follows those of its sender before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Next,
    /// It was sent before.
    Repetition,
    /// There should be another in between.
    Skip,
}

/// The packets of a capture.
pub(crate) struct Packets {
    pub(crate) list: Vec<Seen>,
}

/// How many there were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) sent_right: u64,
    pub(crate) sent_wrong: u64,
    pub(crate) received_right: u64,
    pub(crate) received_wrong: u64,
}

impl Count {
    pub(crate) fn sent(&self) -> u64 {
        self.sent_right + self.sent_wrong
    }

    pub(crate) fn received(&self) -> u64 {
        self.received_right + self.received_wrong
    }
}

impl Packets {
    /// Those of a file, which may be being written.
    pub(crate) fn read(path: &Path, ours: IpAddr) -> Self {
        Self::read_from(CaptureReader::open(path).unwrap(), ours)
    }

    /// Those of a capture, as far as it goes.
    pub(crate) fn read_from(mut capture: CaptureReader<impl Read>, ours: IpAddr) -> Self {
        let mut list = Vec::new();
        while let Ok(Some(frame)) = capture.next_frame() {
            let Ok(found) = Dissection::new(&frame) else { continue };
            list.push(Seen {
                number: frame.number,
                is_ours: found.frame.source == ours,
                right: found.verdict() == Verdict::Right,
                opcode: found.packet.ok().map(|packet| packet.opcode()),
                syndrome: found.packet.ok().and_then(|packet: Packet<'_>| packet.aeth()).map(|aeth| aeth.syndrome),
                destination: found.destination(),
                psn: found.packet.map_or(Psn::new(0), |packet| packet.psn()),
                ack_request: found.packet.is_ok_and(|packet| packet.bth().ack_request),
                wire: Carried::of(&found),
                line: found.to_string(),
            });
        }
        Self { list }
    }

    pub(crate) fn count(&self) -> Count {
        let mut count = Count::default();
        for packet in &self.list {
            *match (packet.is_ours, packet.right) {
                (true, true) => &mut count.sent_right,
                (true, false) => &mut count.sent_wrong,
                (false, true) => &mut count.received_right,
                (false, false) => &mut count.received_wrong,
            } += 1;
        }
        count
    }

    /// How many packets one side sent that `matches` says are meant.
    pub(crate) fn of(&self, ours: bool, matches: impl Fn(&Seen) -> bool) -> usize {
        self.list.iter().filter(|packet| packet.is_ours == ours && matches(packet)).count()
    }

    /// How each packet that is a request follows those before it.
    fn steps(&self) -> Vec<Option<Step>> {
        let mut newest: HashMap<(bool, Qpn), &Seen> = HashMap::new();
        let mut steps = vec![None; self.list.len()];
        let packets = self.list.iter().zip(&mut steps);
        for (packet, step) in packets.filter(|(packet, _)| packet.right && packet.is_request()) {
            let sender = (packet.is_ours, packet.destination);
            let found = match newest.get(&sender) {
                Some(before) if !packet.psn.is_after(before.psn) => Step::Repetition,
                // A READ takes as many PSNs as its answer has packets.
                Some(before) if before.operation() == Some(Operation::ReadRequest) => Step::Next,
                Some(before) if packet.psn != before.psn.next() => Step::Skip,
                _ => Step::Next,
            };
            if found != Step::Repetition {
                newest.insert(sender, packet);
            }
            *step = Some(found);
        }
        steps
    }

    /// How many requests uroce sent a second time.
    pub(crate) fn sent_again(&self) -> u64 {
        let is_repetition = |(packet, step): &(&Seen, Option<Step>)| packet.is_ours && *step == Some(Step::Repetition);
        self.list.iter().zip(self.steps()).filter(is_repetition).count() as u64
    }

    /// The first request that rxe sent with the PSN of another, in words: docs/rxe-findings.md, "renumbers".
    pub(crate) fn renumbered(&self) -> Option<String> {
        let mut known: HashMap<(Qpn, Psn), &Seen> = HashMap::new();
        let mut requests =
            self.list.iter().filter(|packet| !packet.is_ours && packet.right && packet.is_rc() && packet.is_request());
        requests.find_map(|packet| {
            let first = *known.entry((packet.destination, packet.psn)).or_insert(packet);
            (first.opcode != packet.opcode).then(|| format!("{first}\n      {packet}"))
        })
    }

    /// The first request that rxe sent again although it had every answer that it had asked for, in words:
    /// docs/rxe-findings.md, "stops".
    pub(crate) fn repeated_unasked(&self) -> Option<String> {
        let steps = self.steps();
        // The last request that wants an answer, as long as it has none.
        let mut wanted = None;
        for (i, packet) in self.list.iter().enumerate().filter(|(_, packet)| packet.right && packet.is_rc()) {
            if packet.is_ours {
                match packet.syndrome {
                    Some(Syndrome::Nak(_) | Syndrome::RnrNak(_)) => return None,
                    Some(Syndrome::Ack(_)) if packet.operation() != Some(Operation::ReadResponseFirst) => {
                        wanted = wanted.filter(|psn: &Psn| psn.is_after(packet.psn));
                    }
                    _ => {}
                }
            } else if packet.is_request() {
                if steps[i] == Some(Step::Repetition) && wanted.is_none() {
                    return Some(lines(&self.list[i.saturating_sub(2)..=i]));
                }
                wanted = if packet.ack_request { Some(packet.psn) } else { wanted };
            }
        }
        None
    }

    /// In words, the first packet that an undisturbed exchange does not have, and the two before it.
    pub(crate) fn first_oddity(&self) -> Option<String> {
        let steps = self.steps();
        self.list.iter().enumerate().find_map(|(i, packet)| {
            let why = match (packet.right, packet.syndrome) {
                (false, _) => "a damaged packet",
                (_, Some(Syndrome::RnrNak(_))) => "a receiver that is not ready",
                (_, Some(Syndrome::Nak(_))) => "a request is refused",
                _ if steps[i] == Some(Step::Repetition) => "a request is sent again",
                _ if steps[i] == Some(Step::Skip) => "a PSN is left out",
                _ => return None,
            };
            Some(format!("{why}:{}", lines(&self.list[i.saturating_sub(2)..=i])))
        })
    }

    /// The last packets.
    pub(crate) fn last(&self) -> String {
        lines(&self.list[self.list.len().saturating_sub(3)..])
    }
}

/// A line each, below another.
fn lines(packets: &[Seen]) -> String {
    packets.iter().map(|packet| format!("\n      {packet}")).collect()
}
