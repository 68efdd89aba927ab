//! What a capture says of a case.

use std::{collections::HashMap, net::IpAddr, path::Path};
use uroce::capture::{CaptureReader, Dissection, Verdict};
use uroce_protocol::{
    Psn,
    wire::{Operation, Packet, Qpn, Syndrome},
};

/// What is remembered of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Whether uroce sent it.
    pub(crate) is_ours: bool,
    pub(crate) right: bool,
    pub(crate) operation: Option<Operation>,
    pub(crate) syndrome: Option<Syndrome>,
    pub(crate) destination: Qpn,
    pub(crate) psn: Psn,
}

/// The packets of a capture.
pub(crate) struct Packets {
    pub(crate) list: Vec<Seen>,
    lines: Vec<String>,
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
        let mut packets = Self { list: Vec::new(), lines: Vec::new() };
        let mut capture = CaptureReader::open(path).unwrap();
        while let Ok(Some(frame)) = capture.next_frame() {
            let Ok(found) = Dissection::new(&frame) else { continue };
            packets.list.push(Seen {
                is_ours: found.frame.source == ours,
                right: found.verdict() == Verdict::Right,
                operation: found.packet.ok().map(|packet| packet.opcode().operation()),
                syndrome: found.packet.ok().and_then(|packet: Packet<'_>| packet.aeth()).map(|aeth| aeth.syndrome),
                destination: found.destination(),
                psn: found.packet.map_or(Psn::new(0), |packet| packet.psn()),
            });
            packets.lines.push(format!("packet {}: {found}", frame.number));
        }
        packets
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

    /// Which packets are requests that were sent before.
    fn repetitions(&self) -> Vec<bool> {
        let mut newest: HashMap<(bool, Qpn), Psn> = HashMap::new();
        let mut is_repetition = |packet: &Seen| {
            if !packet.right || packet.operation.is_none_or(is_response) {
                return false;
            }
            let newest = newest.entry((packet.is_ours, packet.destination)).or_insert(packet.psn.previous());
            let is_old = !packet.psn.is_after(*newest);
            *newest = if is_old { *newest } else { packet.psn };
            is_old
        };
        self.list.iter().map(&mut is_repetition).collect()
    }

    /// How many requests uroce sent a second time.
    pub(crate) fn sent_again(&self) -> u64 {
        let repeated = self.repetitions();
        self.list.iter().zip(repeated).filter(|(packet, again)| packet.is_ours && *again).count() as u64
    }

    /// The first request that rxe sent with the PSN of another, in words: docs/rxe-findings.md, "renumbers".
    pub(crate) fn renumbered(&self) -> Option<String> {
        let mut known: HashMap<(Qpn, Psn), (Operation, usize)> = HashMap::new();
        self.list.iter().enumerate().find_map(|(i, packet)| {
            let operation = packet.operation.filter(|&operation| !packet.is_ours && !is_response(operation))?;
            let (was, first) = *known.entry((packet.destination, packet.psn)).or_insert((operation, i));
            (was != operation).then(|| format!("{}\n      {}", self.lines[first], self.lines[i]))
        })
    }

    /// In words, the first packet that an undisturbed exchange does not have, and the two before it.
    pub(crate) fn first_oddity(&self) -> Option<String> {
        let repetitions = self.repetitions();
        self.list.iter().enumerate().find_map(|(i, packet)| {
            let why = match (packet.right, packet.syndrome) {
                (false, _) => "a damaged packet",
                (_, Some(Syndrome::RnrNak(_))) => "a receiver that is not ready",
                (_, Some(Syndrome::Nak(_))) => "a request is refused",
                _ if repetitions[i] => "a request is sent again",
                _ => return None,
            };
            let lines = self.lines[i.saturating_sub(2)..=i].join("\n      ");
            Some(format!("{why}:\n      {lines}"))
        })
    }

    /// The last packets.
    pub(crate) fn last(&self) -> String {
        self.lines[self.lines.len().saturating_sub(3)..].join("\n      ")
    }
}

fn is_response(operation: Operation) -> bool {
    use Operation::{
        Acknowledge, AtomicAcknowledge, ReadResponseFirst, ReadResponseLast, ReadResponseMiddle, ReadResponseOnly,
    };
    matches!(
        operation,
        Acknowledge | AtomicAcknowledge | ReadResponseFirst | ReadResponseMiddle | ReadResponseLast | ReadResponseOnly
    )
}
