//! Captures of Linux rxe, taken apart for replay: who asked what, who answered what, and what the wire in between
//! did to it. `pcaps/README.md` says how they came about.

use std::{collections::BTreeMap, fs, net::IpAddr, path::Path, time::Duration};
use uroce::capture::{CaptureReader, Dissection};
use uroce_protocol::{
    Psn,
    wire::{Mtu, Operation, Packet, Qpn, Service},
};

/// One direction of a connection: the requests of one side, and what the other answered.
pub(crate) struct Flow {
    /// The capture, where the requests come from, and the queue pair that they are for.
    pub(crate) name: String,
    /// What `rxeprobe` was told, where that made the capture.
    pub(crate) probe: Option<Probe>,
    /// The first PSN of the requests.
    pub(crate) first_psn: Psn,
    /// The queue pair that the requests are for.
    pub(crate) responder: Qpn,
    /// The queue pair that the answers are for.
    pub(crate) requester: Qpn,
    /// The path MTU, as its packets show it.
    pub(crate) mtu: Mtu,
    frames: Vec<Frame>,
}

/// A packet, from BTH to ICRC.
pub(crate) type Bytes = Vec<u8>;

/// A packet of a flow, in the order in which one of its two sides saw it.
pub(crate) enum Event {
    /// From the requester.
    Request(Bytes),
    /// From the responder.
    Answer(Bytes),
}

/// The command line of `rxeprobe`, and what it printed about its buffer.
pub(crate) struct Probe {
    client: String,
    server: String,
    buffer: String,
    completions: Vec<String>,
    originals: Vec<u64>,
}

#[derive(Clone)]
struct Frame {
    is_request: bool,
    sent: Duration,
    fate: Fate,
    bytes: Bytes,
}

/// What the wire did to a frame after it was captured.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Delivered,
    Dropped,
    /// Delivered, and a second time later.
    Duplicated {
        after: Duration,
    },
    /// Exchanged with the next frame of its direction.
    Swapped,
    /// A bit of the byte at this offset was flipped, with the ICRC as it was.
    Corrupted {
        offset: usize,
    },
    /// The next frame in the file was delivered in its place.
    Replaced,
    /// Delivered in the place of the frame before it; no device sent it.
    Replacement,
}

/// All flows of reliable connections in `pcaps/`, by name.
pub(crate) fn flows() -> Vec<Flow> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("pcaps");
    let mut files: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "pcap"))
        .flat_map(|file| load(file))
        .collect()
}

impl Flow {
    /// The capture's name.
    pub(crate) fn capture(&self) -> &str {
        self.name.split(' ').next().unwrap_or_default()
    }

    /// Whether the capture ends before the last answer: the program that received the last message exited at once.
    pub(crate) fn ends_unanswered(&self) -> bool {
        let ends = [
            "srq_pingpong from 10.77.0.2 to 0x000019",
            "srq_pingpong from 10.77.0.2 to 0x00001a",
            "srq_pingpong from 10.77.0.2 to 0x00001b",
        ];
        ends.contains(&self.name.as_str())
    }

    /// What the responder received, in order, among what it sent.
    pub(crate) fn at_responder(&self) -> Vec<Event> {
        self.seen_by(true)
    }

    /// What the requester received, in order, among what it sent.
    pub(crate) fn at_requester(&self) -> Vec<Event> {
        self.seen_by(false)
    }

    /// Every request that was sent.
    pub(crate) fn requests(&self) -> Vec<Bytes> {
        self.sent(true)
    }

    /// Every answer that was sent.
    pub(crate) fn answers(&self) -> Vec<Bytes> {
        self.sent(false)
    }

    fn sent(&self, requests: bool) -> Vec<Bytes> {
        let sent = |frame: &&Frame| frame.is_request == requests && frame.fate != Fate::Replacement;
        self.frames.iter().filter(sent).map(|frame| frame.bytes.clone()).collect()
    }

    fn seen_by(&self, responder: bool) -> Vec<Event> {
        // When, and of what was at the same time, in which order.
        let mut seen: Vec<((Duration, usize, u8), &Frame, Bytes)> = Vec::new();
        for (index, frame) in self.frames.iter().enumerate() {
            let bytes = frame.bytes.clone();
            let now = (frame.sent, index, 0);
            if frame.is_request != responder {
                if frame.fate != Fate::Replacement {
                    seen.push((now, frame, bytes));
                }
                continue;
            }
            match frame.fate {
                Fate::Delivered | Fate::Replacement => seen.push((now, frame, bytes)),
                Fate::Dropped | Fate::Replaced => {}
                Fate::Duplicated { after } => {
                    seen.push((now, frame, bytes.clone()));
                    seen.push(((frame.sent + after, index, 1), frame, bytes));
                }
                Fate::Swapped => {
                    let (offset, next) = (self.frames[index + 1..].iter().enumerate())
                        .find(|(_, next)| next.is_request == frame.is_request)
                        .expect("a frame to swap with");
                    seen.push(((next.sent, index + 1 + offset, 1), frame, bytes));
                }
                // The ICRC tells, except in the byte of FECN and BECN, which it leaves out.
                Fate::Corrupted { offset: 4 } => seen.push((now, frame, bytes)),
                Fate::Corrupted { .. } => {}
            }
        }
        seen.sort_by_key(|(when, ..)| *when);
        let event = |is_request, bytes| if is_request { Event::Request(bytes) } else { Event::Answer(bytes) };
        seen.into_iter().map(|(_, frame, bytes)| event(frame.is_request, bytes)).collect()
    }
}

impl Probe {
    /// What the client was told with `flag`, which takes a value.
    pub(crate) fn client(&self, flag: &str) -> Option<&str> {
        option(&self.client, flag)
    }

    /// Whether the client was told `flag`.
    pub(crate) fn client_has(&self, flag: &str) -> bool {
        self.client.split_whitespace().any(|word| word == flag)
    }

    /// How the client's work requests ended, as it printed it: nothing when there were many and all went well.
    pub(crate) fn completions(&self) -> &[String] {
        &self.completions
    }

    /// What the client's atomics found, as it printed it.
    pub(crate) fn originals(&self) -> &[u64] {
        &self.originals
    }

    /// What the server was told with `flag`, which takes a value.
    pub(crate) fn server(&self, flag: &str) -> Option<&str> {
        option(&self.server, flag)
    }

    /// Whether the server's region had no remote rights.
    pub(crate) fn without_rights(&self) -> bool {
        self.server.split_whitespace().any(|word| word == "-X")
    }

    /// "rkey" or "addr" of the server's buffer.
    pub(crate) fn buffer(&self, what: &str) -> u64 {
        let value = self.buffer.split_whitespace().find_map(|word| word.strip_prefix(what)?.strip_prefix("=0x"));
        u64::from_str_radix(value.expect("the server's buffer"), 16).unwrap()
    }
}

fn option<'a>(command: &'a str, flag: &str) -> Option<&'a str> {
    command.split_whitespace().skip_while(|word| *word != flag).nth(1)
}

/// The packet in `bytes`.
pub(crate) fn packet(bytes: &[u8]) -> Packet<'_> {
    Packet::new_checked(bytes).expect("a packet that a device sent")
}

fn load(file: &Path) -> Vec<Flow> {
    let name = file.file_stem().unwrap().to_str().unwrap();
    let notes = fs::read_to_string(file.with_extension("txt")).unwrap_or_default();
    let fates = fates(&notes);
    let mut flows: BTreeMap<(IpAddr, IpAddr, Qpn), Flow> = BTreeMap::new();
    let mut answers: BTreeMap<(IpAddr, IpAddr, Qpn), Vec<(usize, Frame)>> = BTreeMap::new();
    let mut requests: BTreeMap<(IpAddr, IpAddr, Qpn), Vec<(usize, Frame)>> = BTreeMap::new();

    let mut reader = CaptureReader::open(file).unwrap();
    let mut replaced = false;
    while let Some(captured) = reader.next_frame().unwrap() {
        let Ok(dissection) = Dissection::new(&captured) else { continue };
        let number = captured.number as usize;
        let fate = match fates.get(&number) {
            Some(fate) => *fate,
            None if replaced => Fate::Replacement,
            None => Fate::Delivered,
        };
        replaced = fate == Fate::Replaced;
        let Ok(packet) = dissection.packet else { continue };
        let (source, destination) = (dissection.frame.source, dissection.frame.destination);
        let end = (source, destination, packet.destination());
        let is_request = !packet.opcode().is_response();
        let frame = Frame { is_request, sent: captured.timestamp, fate, bytes: packet.as_bytes().to_vec() };
        if is_request { &mut requests } else { &mut answers }.entry(end).or_default().push((number, frame));
        if is_request && packet.opcode().service() == Service::Rc {
            flows.entry(end).or_insert_with(|| Flow {
                name: format!("{name} from {source} to {}", packet.destination()),
                probe: Probe::of(&notes),
                first_psn: packet.psn(),
                responder: packet.destination(),
                requester: Qpn::default(),
                mtu: Mtu::Mtu1024,
                frames: Vec::new(),
            });
        }
    }

    for ((source, destination, qpn), flow) in &mut flows {
        let asked = &requests[&(*source, *destination, *qpn)];
        let last = asked
            .iter()
            .map(|(_, frame)| packet(&frame.bytes).psn())
            .max_by_key(|psn| psn.distance_from(flow.first_psn));
        let window = 0..=last.unwrap().distance_from(flow.first_psn);
        // Nothing in an answer names the queue pair that it comes from, but PSNs begin at random.
        let answered = answers.iter().find(|((from, to, _), frames)| {
            let first = packet(&frames[0].1.bytes).psn();
            from == destination && to == source && window.contains(&first.distance_from(flow.first_psn))
        });
        let mut frames = asked.clone();
        if let Some(((.., requester), answered)) = answered {
            flow.requester = *requester;
            frames.extend(answered.iter().cloned());
        }
        frames.sort_by_key(|(number, _)| *number);
        flow.frames = frames.into_iter().map(|(_, frame)| frame).collect();
        flow.mtu = flow.frames.iter().find_map(|frame| full(&packet(&frame.bytes))).unwrap_or(Mtu::Mtu1024);
    }
    flows.into_values().collect()
}

/// The MTU that a packet shows that must be full.
fn full(packet: &Packet<'_>) -> Option<Mtu> {
    use Operation as Op;
    match packet.opcode().operation() {
        Op::SendFirst
        | Op::SendMiddle
        | Op::WriteFirst
        | Op::WriteMiddle
        | Op::ReadResponseFirst
        | Op::ReadResponseMiddle => Mtu::from_bytes(packet.payload().len()),
        _ => None,
    }
}

impl Probe {
    fn of(notes: &str) -> Option<Self> {
        let line = |start| notes.lines().find_map(|line| Some(line.strip_prefix(start)?.to_owned()));
        let client = line("# client (A 10.77.0.1): rxeprobe ")?;
        let server = line("# server (B 10.77.0.2): rxeprobe ")?;
        let (buffer, _) =
            line("S| server qpn=")?.split_once('|').map(|(mine, theirs)| (mine.to_owned(), theirs.to_owned()))?;
        // "C| send wr=0 success vendor=0 t=0.007689 orig=0x…"
        let sent = || notes.lines().filter_map(|line| line.strip_prefix("C| send wr=")?.split_once(' '));
        let completions = sent().filter_map(|(_, rest)| Some(rest.split_once(" vendor")?.0.to_owned())).collect();
        let original = |(_, rest): (&str, &str)| u64::from_str_radix(rest.split_once(" orig=0x")?.1, 16).ok();
        let originals = sent().filter_map(original).collect();
        Some(Self { client, server, buffer, completions, originals })
    }
}

/// What the notes say that the wire did, by frame number: "W| frame 1 op=0x14 psn=0x111100 from A: dup+50   (rule …".
fn fates(notes: &str) -> BTreeMap<usize, Fate> {
    let mut fates = BTreeMap::new();
    for line in notes.lines().filter_map(|line| line.strip_prefix("W| frame ")) {
        let number = line.split(' ').next().unwrap().parse().unwrap();
        let action = line.split(": ").nth(1).unwrap().split_whitespace().next().unwrap();
        let argument = action.trim_start_matches(|char: char| char.is_ascii_lowercase()).trim_start_matches(['+', '=']);
        let fate = match action.split(['+', '=']).next().unwrap() {
            "drop" => Fate::Dropped,
            "dup" => Fate::Duplicated { after: Duration::from_millis(argument.parse().unwrap_or(0)) },
            "swap" => Fate::Swapped,
            "corrupt" => Fate::Corrupted { offset: argument.parse().unwrap() },
            "set" => Fate::Replaced,
            other => panic!("the wire's rule {other}"),
        };
        fates.insert(number, fate);
    }
    fates
}
