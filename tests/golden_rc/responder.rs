//! Our responder, fed the requests that a Linux rxe received, gives the answers that it gave.

use crate::flow::{Bytes, Event, Flow, flows, packet};
use std::collections::{BTreeMap, BTreeSet};
use uroce_protocol::{
    AccessFlags, Instant, Memory, Psn, Sge,
    rc::{PathAttributes, Quirks, Responder, ResponderAttributes},
    testing::{OwnedPacket, TestMemory},
    wire::{NakCode, Operation, PKey, Packet, RKey, Repr, Service, Syndrome},
};

/// The key of the memory that receives use.
const RECEIVE_KEY: u32 = 0xffff_ff00;

/// A difference that we choose; each is a row of docs/fidelity.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    /// `Quirks::end_to_end_credits`: ACKs say how many receives are posted.
    Credits,
    /// `Quirks::coalesce_acks`: another answer speaks for this ACK or sequence NAK.
    Coalesced,
    /// `Quirks::too_long_is_operational`: NAK "invalid request" for a message longer than its receive.
    TooLong,
    /// `Quirks::sequence_nak_after_rnr`: no sequence NAK for what follows a request that was refused as not ready.
    SilentAfterRnr,
}

#[test]
fn answers_as_rxe_with_its_quirks() {
    let mut compared = 0;
    for flow in flows() {
        let mut ours = Replay::of(&flow, Quirks::RXE).run(&flow, Patience::None);
        if flow.ends_unanswered() {
            ours.pop();
        }
        let theirs = flow.answers();
        compared += theirs.len();
        assert_eq!(lines(&ours), lines(&theirs), "{}", flow.name);
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(transport(ours), transport(theirs), "{}: {}", flow.name, packet(theirs));
        }
    }
    assert_eq!(compared, 672, "every answer in the captures");
}

#[test]
fn differs_as_hardware_only_where_we_choose_to() {
    let mut found: BTreeMap<Difference, BTreeSet<String>> = BTreeMap::new();
    for flow in flows() {
        let ours = Replay::of(&flow, Quirks::HARDWARE).run(&flow, Patience::UntilAnswered);
        for difference in differences(&flow, &ours) {
            found.entry(difference).or_default().insert(flow.capture().to_owned());
        }
    }
    let captures = |difference| found.get(&difference).into_iter().flatten().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(captures(Difference::TooLong), ["err_send_too_long"]);
    assert_eq!(captures(Difference::SilentAfterRnr), ["rnr_send_exceeded", "rnr_send_min12"]);
    assert!(captures(Difference::Coalesced).contains(&"probe_send_deep100"));
    assert!(captures(Difference::Credits).contains(&"probe_send_z5"));
}

/// When answers are taken from the responder.
#[derive(Clone, Copy, PartialEq)]
enum Patience {
    /// After each request.
    None,
    /// When rxe answered: until then, ACKs may be coalesced.
    UntilAnswered,
}

/// Our responder in the place of the captured one.
struct Replay {
    responder: Responder,
    memory: TestMemory,
    /// How many more times to be not ready, before receives are posted.
    not_ready: usize,
    receives: Vec<Sge>,
    answers: Vec<Bytes>,
    /// Whether only the answers show what its memory holds, and which words of it they have shown.
    unknown_content: bool,
    revealed: BTreeSet<u64>,
}

impl Replay {
    fn of(flow: &Flow, quirks: Quirks) -> Self {
        let probe = flow.probe.as_ref();
        let memory = TestMemory::new();
        let (mut count, mut length) = (1000, 65536);
        if let Some(probe) = probe {
            length = probe.server("-z").map_or(64, |size| size.parse().unwrap());
            count = probe.server("-n").map_or(1, |count| count.parse().unwrap());
            let pattern = (0..length + 4096).map(|index| 0xa0 ^ (index * 7) as u8).collect();
            let access = if probe.without_rights() { AccessFlags::LOCAL_WRITE } else { TestMemory::ALL_ACCESS };
            memory.register(probe.buffer("rkey") as u32, probe.buffer("addr"), pattern, access);
        } else {
            for (rkey, (start, end)) in ranges(flow) {
                memory.register(rkey, start, vec![0; (end - start) as usize], TestMemory::ALL_ACCESS);
            }
        }
        memory.register(RECEIVE_KEY, 0, vec![0; 65536], AccessFlags::LOCAL_WRITE);
        let not_ready = flow.answers().iter().filter(|answer| is_rnr(&packet(answer))).count();
        let mut responder = Responder::new(count);
        responder.connect(ResponderAttributes {
            path: PathAttributes { destination: flow.requester, mtu: flow.mtu, quirks, ..PathAttributes::default() },
            first_psn: flow.first_psn,
            max_dest_rd_atomic: if probe.is_some() { 16 } else { 128 },
            min_rnr_timer: probe.and_then(|probe| probe.server("-N")).map_or(12, |code| code.parse().unwrap()),
            access: TestMemory::ALL_ACCESS,
        });
        let receives = vec![Sge { address: 0, length, lkey: RECEIVE_KEY }; count as usize];
        Self {
            responder,
            memory,
            not_ready,
            receives,
            answers: Vec::new(),
            unknown_content: probe.is_none(),
            revealed: BTreeSet::new(),
        }
    }

    fn run(mut self, flow: &Flow, patience: Patience) -> Vec<Bytes> {
        for event in flow.at_responder() {
            match event {
                Event::Request(bytes) => {
                    self.request(flow, &packet(&bytes));
                    if patience == Patience::None {
                        self.take_answers();
                    }
                }
                Event::Answer(_) => self.take_answers(),
            }
        }
        self.take_answers();
        self.answers
    }

    fn request(&mut self, flow: &Flow, request: &Packet<'_>) {
        let bth = request.bth();
        // The device's own checks come first.
        if bth.transport_version != 0 || !bth.pkey.matches(PKey::DEFAULT) || request.opcode().service() != Service::Rc {
            return;
        }
        if self.not_ready == 0 {
            for (index, sge) in self.receives.drain(..).enumerate() {
                self.responder.post(index as u64, &[sge]).unwrap();
            }
        }
        if self.unknown_content {
            self.reveal(flow, request);
        }
        self.responder.handle_packet(Instant::ZERO, request, &self.memory, None);
    }

    /// Puts into memory what a READ is going to find there, or the first atomic on a word.
    fn reveal(&mut self, flow: &Flow, request: &Packet<'_>) {
        let answers = flow.answers();
        let responses = answers.iter().map(|answer| packet(answer));
        let (rkey, mut address, count) = match (request.opcode().operation(), request.reth(), request.atomic_eth()) {
            (Operation::ReadRequest, Some(reth), _) => (reth.rkey, reth.address, flow.mtu.packets(reth.length.into())),
            (_, _, Some(eth)) if self.revealed.insert(eth.address) => (eth.rkey, eth.address, 1),
            _ => return,
        };
        for response in
            responses.filter(|response| (0..count as i32).contains(&response.psn().distance_from(request.psn())))
        {
            let value = response.atomic_ack().map(u64::to_ne_bytes);
            let content = value.as_ref().map_or(response.payload(), |value| value);
            self.memory.write_remote(rkey, address, content).unwrap();
            address += content.len() as u64;
        }
    }

    fn take_answers(&mut self) {
        while let Some(transmit) = self.responder.poll_transmit(Instant::ZERO, true) {
            let Some(answer) = OwnedPacket::of(&transmit, &self.memory) else {
                self.responder.transmit_failed();
                continue;
            };
            self.not_ready -= usize::from(is_rnr(&answer.view()));
            self.answers.push(answer.view().as_bytes().to_vec());
        }
    }
}

/// The memory that the requests of a flow name.
fn ranges(flow: &Flow) -> BTreeMap<u32, (u64, u64)> {
    let mut ranges = BTreeMap::new();
    for request in flow.requests() {
        let request = packet(&request);
        let (RKey(rkey), address, length) = match (request.reth(), request.atomic_eth()) {
            (Some(reth), _) => (reth.rkey, reth.address, reth.length.into()),
            (_, Some(eth)) => (eth.rkey, eth.address, 8),
            _ => continue,
        };
        let (start, end) = ranges.entry(rkey).or_insert((address, address));
        *start = address.min(*start);
        *end = (address + length).max(*end);
    }
    ranges
}

fn is_rnr(answer: &Packet<'_>) -> bool {
    matches!(syndrome(answer), Some(Syndrome::RnrNak(_)))
}

/// A plain ACK.
fn is_ack(answer: &Packet<'_>) -> bool {
    answer.opcode().operation() == Operation::Acknowledge && is_positive(answer)
}

fn is_positive(answer: &Packet<'_>) -> bool {
    matches!(syndrome(answer), Some(Syndrome::Ack(_)))
}

fn is_sequence_nak(answer: &Packet<'_>) -> bool {
    syndrome(answer) == Some(Syndrome::Nak(NakCode::PsnSequence))
}

fn syndrome(answer: &Packet<'_>) -> Option<Syndrome> {
    Some(answer.aeth()?.syndrome)
}

/// One line a packet: a failing test shows what differs.
fn lines(packets: &[Bytes]) -> Vec<String> {
    packets.iter().map(|bytes| packet(bytes).to_string()).collect()
}

/// Everything but the ICRC, which the driver adds.
fn transport(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() - 4]
}

/// What `ours` does otherwise than the captured answers.
///
/// # Panics
/// When it differs in a way that we did not choose.
fn differences(flow: &Flow, ours: &[Bytes]) -> BTreeSet<Difference> {
    let mut differences = BTreeSet::new();
    let mut rest = ours;
    let mut answered: Option<Psn> = None;
    let mut after_rnr = false;
    for theirs in &flow.answers() {
        let their = packet(theirs);
        let next = rest.first().map(|bytes| packet(bytes));
        let difference = match next.filter(|our| same_but_for_syndrome(our, &their)) {
            Some(our) if syndrome(&our) == syndrome(&their) => None,
            Some(our) if is_positive(&our) && is_positive(&their) => Some(Difference::Credits),
            _ if is_sequence_nak(&their) && after_rnr => Some(Difference::SilentAfterRnr),
            Some(our)
                if syndrome(&our) == Some(Syndrome::Nak(NakCode::InvalidRequest))
                    && syndrome(&their) == Some(Syndrome::Nak(NakCode::RemoteOperational)) =>
            {
                Some(Difference::TooLong)
            }
            _ if (is_ack(&their) || is_sequence_nak(&their))
                && next.map(|our| our.psn()).into_iter().chain(answered).any(|psn| !psn.is_before(their.psn())) =>
            {
                Some(Difference::Coalesced)
            }
            _ => panic!("{}: rxe answers {their}, we {:?}", flow.name, next.map(|our| our.to_string())),
        };
        if !matches!(difference, Some(Difference::SilentAfterRnr | Difference::Coalesced)) {
            answered = next.map(|our| our.psn());
            rest = &rest[1..];
        }
        differences.extend(difference);
        after_rnr = is_rnr(&their);
    }
    let unanswered = usize::from(flow.ends_unanswered());
    assert_eq!(rest.len(), unanswered, "{}: rxe does not answer {:?}", flow.name, lines(rest));
    differences
}

fn same_but_for_syndrome(ours: &Packet<'_>, theirs: &Packet<'_>) -> bool {
    let strip = |packet: &Packet<'_>| Repr { extended: uroce_protocol::wire::Extended::None, ..Repr::parse(packet) };
    strip(ours) == strip(theirs)
        && ours.payload() == theirs.payload()
        && ours.atomic_ack() == theirs.atomic_ack()
        && ours.aeth().map(|aeth| aeth.msn) == theirs.aeth().map(|aeth| aeth.msn)
}
