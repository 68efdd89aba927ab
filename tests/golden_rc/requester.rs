//! Our requester, given the work of a Linux rxe and the answers that it received, sends the requests that it sent.
//!
//! The capture is the clock: each time that rxe sent a packet, ours must want to send the same one, if need be
//! after the time to its next deadline has passed. Work requests are posted when rxe sent their first packet.

use crate::flow::{Bytes, Event, Flow, Probe, flows, packet};
use std::collections::{BTreeSet, VecDeque};
use uroce_protocol::{
    AccessFlags, Instant, Psn, Sge,
    rc::{
        Buffers, PathAttributes, Quirks, Requester, RequesterAttributes, SendOperation, SendRequest, Target, WcOpcode,
        WcStatus,
    },
    testing::{OwnedPacket, TestMemory},
    wire::{AtomicEth, Operation, Packet, RKey, Repr, Reth},
};

/// The key of the local buffer, which begins at address 0.
const LOCAL_KEY: u32 = 0xffff_ff00;

/// A difference that we choose; each is a row of docs/fidelity.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    /// After a timeout the window lets a packet leave only after an answer, or not at all when the answer made it
    /// superfluous.
    Paced,
    /// rxe sent a packet a second time although nothing had been lost or was late.
    Spurious,
    /// Within a message, AckReq is set by bytes, earlier in a small window, and not on the 66th packet.
    AckRequest,
    /// An ACK of a PSN that was never sent is ignored.
    FutureAck,
}

/// Credits are left out: rxe advertises none, so that a requester that waits for the first ACK to learn of them is
/// out of step with it.
const WITHOUT_CREDITS: Quirks = Quirks { end_to_end_credits: false, ..Quirks::HARDWARE };

#[test]
fn asks_as_rxe_but_where_we_choose_to_differ() {
    for quirks in [Quirks::RXE, WITHOUT_CREDITS] {
        let (compared, differences) = replay_all(quirks);
        let captures = |difference| -> Vec<_> {
            differences.iter().filter(|(found, _)| *found == difference).map(|(_, capture)| capture.as_str()).collect()
        };
        assert_eq!(
            captures(Difference::Paced),
            ["loss_ack_send", "loss_ack_write", "rc_pingpong_mtu1024", "rc_pingpong_mtu4096", "srq_pingpong"]
        );
        assert_eq!(captures(Difference::Spurious), ["srq_pingpong"]);
        assert_eq!(
            captures(Difference::AckRequest),
            [
                "loss_ack_send",
                "loss_ack_write",
                "loss_write_last",
                "probe_write_100k",
                "rc_pingpong_mtu1024",
                "rc_pingpong_mtu4096"
            ]
        );
        assert_eq!(captures(Difference::FutureAck), ["mut_ack_psn_future"]);
        assert_eq!(compared, 1118, "every request in the captures but those that were skipped");
    }
}

/// How many requests were compared, and in what they differed.
fn replay_all(quirks: Quirks) -> (usize, BTreeSet<(Difference, String)>) {
    let mut compared = 0;
    let mut differences = BTreeSet::new();
    for flow in flows() {
        let mut replay = Replay::of(&flow, quirks);
        replay.run(&flow);
        replay.check_end(&flow);
        compared += replay.compared;
        differences.append(&mut replay.differences);
    }
    (compared, differences)
}

/// Our requester in the place of the captured one.
struct Replay {
    requester: Requester,
    memory: TestMemory,
    now: Instant,
    /// The work that is still to be posted, last first.
    work: Vec<Work>,
    posted: u64,
    /// What rxe has sent and we have not.
    owed: VecDeque<Bytes>,
    /// What left when time had passed.
    waiting: Option<OwnedPacket>,
    compared: usize,
    differences: BTreeSet<(Difference, String)>,
    completions: Vec<WcStatus>,
    /// What atomics found.
    originals: Vec<u64>,
}

/// A work request of the captured program.
struct Work {
    /// The PSN of its first packet.
    psn: Psn,
    operation: SendOperation,
    solicited: bool,
    /// The local buffer; its content is that of the message.
    address: u64,
    length: u32,
}

impl Replay {
    fn of(flow: &Flow, quirks: Quirks) -> Self {
        let number = |flag, default| {
            flow.probe.as_ref().and_then(|probe| probe.client(flag)).map_or(default, |value| value.parse().unwrap())
        };
        let mut requester = Requester::new(1000);
        requester.connect(RequesterAttributes {
            path: PathAttributes { destination: flow.responder, mtu: flow.mtu, quirks, ..PathAttributes::default() },
            first_psn: flow.first_psn,
            timeout: number("-t", 14),
            retry_cnt: number("-r", 7),
            rnr_retry: number("-R", 7),
            ..RequesterAttributes::default()
        });
        let (mut work, mut content) = messages(flow);
        if let Some(probe) = &flow.probe {
            for (index, work) in work.iter_mut().enumerate() {
                *work = probe_work(probe, index as u64, work.psn);
            }
            content = (0..1 << 17).map(|index| (index * 3 + 1) as u8).collect();
        }
        work.reverse();
        let memory = TestMemory::new();
        memory.register(LOCAL_KEY, 0, content, AccessFlags::LOCAL_WRITE);
        Self {
            requester,
            memory,
            now: Instant::ZERO,
            work,
            posted: 0,
            owed: VecDeque::new(),
            waiting: None,
            compared: 0,
            differences: BTreeSet::new(),
            completions: Vec::new(),
            originals: Vec::new(),
        }
    }

    fn run(&mut self, flow: &Flow) {
        let mut last = flow.first_psn.previous();
        for event in flow.at_requester() {
            match event {
                Event::Request(theirs) => {
                    let psn = packet(&theirs).psn();
                    self.post_until(psn);
                    if !psn.is_after(last) {
                        // It is sent again, and what was to come before it is not.
                        self.skip(flow, usize::MAX);
                        self.wait();
                    }
                    last = last_psn(flow, &packet(&theirs));
                    self.owed.push_back(theirs);
                }
                Event::Answer(answer) => {
                    self.requester.handle_packet(self.now, &packet(&answer), &self.memory);
                    self.take_completions();
                }
            }
            self.catch_up(flow);
        }
        let late = self.owed.len();
        self.skip(flow, late);
    }

    /// Sends what rxe has sent so far, as far as window and credits let us.
    fn catch_up(&mut self, flow: &Flow) {
        while !self.owed.is_empty() {
            let Some(ours) = self.poll() else { return };
            let psn = ours.view().psn();
            let earlier = self.owed.iter().take_while(|theirs| packet(theirs).psn().is_before(psn)).count();
            if earlier == self.owed.len() {
                // Nothing calls for what rxe sends again.
                self.owed.clear();
                self.waiting = Some(ours);
                self.note(flow, Difference::Spurious);
                return;
            }
            self.skip(flow, earlier);
            let Some(theirs) = self.owed.pop_front() else { return };
            let ours = ours.view();
            let theirs = packet(&theirs);
            assert_eq!(but_for_ack_request(&ours), but_for_ack_request(&theirs), "{}: {ours}", flow.name);
            assert!(ours.payload() == theirs.payload(), "{}: the payload of {theirs}", flow.name);
            if ours.bth().ack_request != theirs.bth().ack_request {
                self.note(flow, Difference::AckRequest);
            }
            self.compared += 1;
        }
    }

    /// Gives up sending what rxe has sent meanwhile.
    fn skip(&mut self, flow: &Flow, count: usize) {
        let count = count.min(self.owed.len());
        if count > 0 {
            self.owed.drain(..count);
            self.note(flow, Difference::Paced);
        }
    }

    fn note(&mut self, flow: &Flow, difference: Difference) {
        self.differences.insert((difference, flow.capture().to_owned()));
    }

    /// After the last captured packet: nothing is left to send, and the program saw what rxe's saw.
    fn check_end(&mut self, flow: &Flow) {
        self.wait();
        let more = self.waiting.take();
        self.take_completions();
        if flow.ends_unanswered() {
            return;
        }
        if flow.capture() == "mut_ack_psn_future" {
            assert!(more.is_some(), "the ACK is ignored, so the request is sent again");
            self.note(flow, Difference::FutureAck);
            return;
        }
        assert!(more.is_none(), "{}: rxe does not send {more:?}", flow.name);
        assert!(self.work.is_empty(), "{}: unsent work", flow.name);
        let Some(probe) = &flow.probe else {
            assert_eq!(self.completions, vec![WcStatus::Success; self.posted as usize], "{}", flow.name);
            return;
        };
        let printed = probe.completions();
        if printed.is_empty() {
            // Of many, rxeprobe only prints the failures.
            assert_eq!(self.completions, vec![WcStatus::Success; self.posted as usize], "{}", flow.name);
        } else {
            // After a failure it looks no further.
            let ours: Vec<_> = self.completions.iter().map(|status| name(*status)).take(printed.len()).collect();
            assert_eq!(ours, printed, "{}", flow.name);
        }
        let originals = probe.originals();
        assert_eq!(&self.originals[..originals.len()], originals, "{}", flow.name);
        if probe.client("-o") == Some("read") {
            let length = probe.client("-z").unwrap().parse().unwrap();
            let pattern: Vec<_> = (0..length).map(|index: usize| 0xa0 ^ (index * 7) as u8).collect();
            assert!(self.memory.bytes(LOCAL_KEY)[..length] == pattern, "{}: the bytes that were read", flow.name);
        }
    }

    fn post_until(&mut self, psn: Psn) {
        while let Some(work) = self.work.pop_if(|work| !work.psn.is_after(psn)) {
            let list = [Sge { address: work.address, length: work.length, lkey: LOCAL_KEY }];
            let request = SendRequest {
                wr_id: self.posted,
                operation: work.operation,
                buffers: Buffers::List(if work.length > 0 { &list } else { &[] }),
                signaled: true,
                solicited: work.solicited,
                fence: false,
                target: Target::Peer,
            };
            self.requester.post(&request).unwrap();
            self.posted += 1;
        }
    }

    /// What is to be sent now.
    fn poll(&mut self) -> Option<OwnedPacket> {
        if self.waiting.is_some() {
            return self.waiting.take();
        }
        let transmit = self.requester.poll_transmit(self.now, &self.memory)?;
        Some(OwnedPacket::of(&transmit, &self.memory).unwrap())
    }

    /// Lets time pass until something is to be sent, or for ever.
    fn wait(&mut self) {
        while self.waiting.is_none() {
            self.waiting = self.poll();
            if self.waiting.is_none() {
                let Some(deadline) = self.requester.poll_timeout() else { return };
                self.now = deadline;
                self.requester.handle_timeout(deadline);
            }
        }
    }

    fn take_completions(&mut self) {
        while let Some(completion) = self.requester.poll_completion() {
            self.completions.push(completion.status);
            if matches!(completion.opcode, WcOpcode::CompareSwap | WcOpcode::FetchAdd) {
                self.originals.push(u64::from_ne_bytes(self.memory.bytes(LOCAL_KEY)[..8].try_into().unwrap()));
            }
        }
    }
}

/// The work requests that a flow's packets amount to, and the concatenation of their local buffers.
fn messages(flow: &Flow) -> (Vec<Work>, Bytes) {
    let mut messages: Vec<Work> = Vec::new();
    let mut content = Vec::new();
    let mut next = flow.first_psn;
    for request in flow.requests() {
        let request = packet(&request);
        if request.psn() != next {
            assert!(request.psn().is_before(next), "{}: a gap before {request}", flow.name);
            continue;
        }
        let operation = request.opcode().operation();
        if operation.starts_message() {
            let (psn, address) = (next, content.len() as u64);
            messages.push(Work { psn, operation: SendOperation::Send, solicited: false, address, length: 0 });
        }
        let work = messages.last_mut().unwrap();
        if let Some(Reth { address, rkey, .. }) = request.reth() {
            work.operation = SendOperation::Write { address, rkey };
        }
        work.operation = match (operation, work.operation, request.immediate(), request.atomic_eth()) {
            (Operation::ReadRequest, SendOperation::Write { address, rkey }, ..) => {
                SendOperation::Read { address, rkey }
            }
            (_, SendOperation::Send, Some(immediate), _) => SendOperation::SendWithImmediate(immediate),
            (_, SendOperation::Write { address, rkey }, Some(immediate), _) => {
                SendOperation::WriteWithImmediate { address, rkey, immediate }
            }
            (Operation::CompareSwap, .., Some(AtomicEth { address, rkey, swap_or_add: swap, compare })) => {
                SendOperation::CompareSwap { address, rkey, compare, swap }
            }
            (Operation::FetchAdd, .., Some(AtomicEth { address, rkey, swap_or_add: add, .. })) => {
                SendOperation::FetchAdd { address, rkey, add }
            }
            (_, operation, ..) => operation,
        };
        work.solicited |= request.bth().solicited;
        let room = match work.operation {
            SendOperation::Read { .. } => request.reth().map_or(0, |reth| reth.length),
            SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. } => 8,
            _ => request.payload().len() as u32,
        };
        next += if operation == Operation::ReadRequest { flow.mtu.packets(room.into()) } else { 1 };
        work.length += room;
        content.extend_from_slice(request.payload());
        content.resize(work.address as usize + work.length as usize, 0);
    }
    (messages, content)
}

/// The work request that the command line of `rxeprobe` implies, whatever was captured.
fn probe_work(probe: &Probe, index: u64, psn: Psn) -> Work {
    let size = |size: Option<&str>| size.map_or(64, |size| size.parse().unwrap());
    let length = size(probe.client("-z"));
    // Past the end of the server's buffer, which is a page longer than its messages.
    let outside = (1 << 20) + u64::from(size(probe.server("-z"))) + 4096;
    let address = probe.buffer("addr") + if probe.client_has("-A") { outside } else { 0 };
    let rkey = RKey(probe.buffer("rkey") as u32 ^ if probe.client_has("-K") { 0x5a } else { 0 });
    let immediate = 0xcafe_0000 + index as u32;
    let ones = 0x1111_1111_1111_1111;
    let (operation, length) = match probe.client("-o").unwrap() {
        "send" => (SendOperation::Send, length),
        "sendimm" => (SendOperation::SendWithImmediate(immediate), length),
        "write" => (SendOperation::Write { address, rkey }, length),
        "writeimm" => (SendOperation::WriteWithImmediate { address, rkey, immediate }, length),
        "read" => (SendOperation::Read { address, rkey }, length),
        "faa" => (SendOperation::FetchAdd { address, rkey, add: 0x0102_0304_0506_0708 }, 8),
        "cas" => {
            let compare = if index == 0 { 0x918a_83bc_b5ae_a7a0 } else { ones * index };
            (SendOperation::CompareSwap { address, rkey, compare, swap: ones * (index + 1) }, 8)
        }
        other => panic!("rxeprobe -o {other}"),
    };
    Work { psn, operation, solicited: probe.client_has("-S"), address: 0, length }
}

/// The PSN of a request, or of the last answer to it.
fn last_psn(flow: &Flow, request: &Packet<'_>) -> Psn {
    let answers = match (request.opcode().operation(), request.reth()) {
        (Operation::ReadRequest, Some(reth)) => flow.mtu.packets(reth.length.into()),
        _ => 1,
    };
    request.psn() + (answers - 1)
}

/// What a packet's headers say, but for the request of an ACK.
fn but_for_ack_request(packet: &Packet<'_>) -> Repr {
    let mut header = Repr::parse(packet);
    header.bth.ack_request = false;
    header
}

/// What libibverbs calls a status.
fn name(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "success",
        WcStatus::RemoteInvalidRequest => "remote invalid request error",
        WcStatus::RemoteAccess => "remote access error",
        WcStatus::RemoteOperation => "remote operation error",
        WcStatus::RetryExceeded => "transport retry counter exceeded",
        WcStatus::RnrRetryExceeded => "RNR retry counter exceeded",
        _ => "another status",
    }
}
