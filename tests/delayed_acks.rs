//! The ACK of a request that is answered waits for the answer, and nobody waits in vain for long.

mod support;

use support::{Side, connect, send, world::World};
use uroce::{
    clock::Clock,
    congestion::{Congestion, DcqcnParameters},
    link::sim::PathConditions,
    verbs::{
        Device, DeviceBuilder, QpAttributeMask, QpAttributes, QpCapabilities, QpState, QueuePair, SendOperation,
        WcStatus, WorkCompletion,
    },
};
use uroce_protocol::time::Duration;

/// More than it takes to show that a program answers.
const WARM_UP: u64 = 40;

/// Two connected sides in virtual time. What drives their devices stands for their background threads.
struct Pair {
    world: World,
    sides: [Side; 2],
    /// The number of the next message of the ping-pong. Side 0 sends the odd ones.
    next: u64,
    /// The sides that wait for their own last message to complete.
    polls: [bool; 2],
}

impl Pair {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    fn with(describe: impl Fn(DeviceBuilder) -> DeviceBuilder) -> Self {
        let world = World::with(1, PathConditions::IDEAL, 2, describe);
        let sides = [0, 1].map(|side| Side::new(&world.devices[side], QpCapabilities::default(), 4096));
        connect(&sides[0], &sides[1]);
        Self { world, sides, next: 1, polls: [false; 2] }
    }

    /// A pair of which both programs answer, and the last message of side 0 has not been answered.
    fn warm() -> Self {
        let mut pair = Self::new();
        pair.play(WARM_UP + 1);
        pair.rest();
        assert_eq!(pair.completions(1), [WcStatus::Success]);
        pair
    }

    /// Side `from` writes a number to its peer.
    fn write(&self, from: usize, number: u64) {
        let [side, peer] = [&self.sides[from], &self.sides[1 - from]];
        side.mr.store_u64(8, number).unwrap();
        side.post(number, SendOperation::Write { address: peer.mr.address(), rkey: peer.mr.rkey() }, side.mr.sge(8, 8));
    }

    /// Plays `messages` of a ping-pong in which each program, as ib_write_lat does, waits for its peer's WRITE by
    /// looking at its memory, and polls only for its own WRITE. Ends when the last one has been posted.
    fn play(&mut self, messages: u64) {
        let end = self.next + messages;
        while self.next < end {
            let mut acts = false;
            for from in [0, 1] {
                if self.polls[from] {
                    let count = self.completions(from).len();
                    self.polls[from] = count == 0;
                    acts |= count > 0;
                } else if self.next % 2 != from as u64 && self.sides[from].mr.load_u64(0).unwrap() == self.next - 1 {
                    self.write(from, self.next);
                    self.next += 1;
                    self.polls[from] = true;
                    acts = true;
                }
            }
            assert!(self.drive() || acts || self.wait(true), "the game goes on");
        }
    }

    fn drive(&self) -> bool {
        self.world.devices.iter().filter(|device| device.progress()).count() > 0
    }

    /// Moves to the next arrival or deadline. Returns whether there is one.
    fn wait(&self, for_deadlines: bool) -> bool {
        let deadlines = self.world.devices.iter().filter_map(Device::next_deadline).filter(|_| for_deadlines);
        let next = deadlines.chain(self.world.network.next_event()).min();
        next.inspect(|next| self.world.network.clock().advance_to(*next)).is_some()
    }

    /// Lets everything arrive that is on its way. No deadline passes.
    fn rest(&self) {
        while self.drive() || self.wait(false) {}
    }

    fn completions(&self, side: usize) -> Vec<WcStatus> {
        let mut completions = [WorkCompletion::default(); 16];
        let count = self.sides[side].cq.poll(&mut completions).unwrap();
        completions[..count].iter().map(|completion| completion.status).collect()
    }

    /// How long it takes until a side's last message is complete.
    fn completes_in(&self, side: usize) -> Duration {
        let clock = self.world.network.clock();
        let start = clock.now();
        while self.completions(side).is_empty() {
            assert!(self.drive() || self.wait(true));
        }
        clock.now() - start
    }

    fn trains(&self) -> u64 {
        self.world.network.counters().trains
    }
}

#[test]
fn in_a_ping_pong_of_spinning_programs_each_message_is_one_train() {
    let mut pair = Pair::new();
    pair.play(WARM_UP);
    let before = pair.trains();
    pair.play(1000);
    assert_eq!(pair.trains() - before, 1000);
}

#[test]
fn a_program_that_stops_answering_delays_one_ack() {
    let mut pair = Pair::warm();
    assert_eq!(pair.completions(0), [], "the ACK waits for the answer");
    assert!(pair.completes_in(0) <= Duration::from_micros(550));
    for number in 0..20 {
        pair.write(0, number);
        pair.rest();
        assert_eq!(pair.completions(0), [WcStatus::Success], "nobody waits for an answer that does not come");
    }
    // Late answers are none; the other program has to be found out, too.
    pair.write(1, 0);
    pair.completes_in(1);
    for number in 0..20 {
        for side in [0, 1] {
            let clock = pair.world.network.clock();
            clock.advance_to(clock.now() + Duration::from_micros(600));
            pair.write(side, number);
            pair.rest();
            assert_eq!(pair.completions(side), [WcStatus::Success]);
        }
    }
    // It begins to answer again.
    (pair.next, pair.polls) = (1, [false; 2]);
    pair.sides[0].mr.store_u64(0, 0).unwrap();
    pair.play(WARM_UP);
    let before = pair.trains();
    pair.play(100);
    assert_eq!(pair.trains() - before, 100);
}

#[test]
fn who_only_takes_requests_never_delays() {
    let pair = Pair::new();
    for number in 0..WARM_UP {
        pair.write(0, number);
        pair.rest();
        assert_eq!(pair.completions(0), [WcStatus::Success]);
    }
}

#[test]
fn programs_that_wait_for_each_other_do_not_delay() {
    let pair = Pair::warm();
    for number in 0..WARM_UP {
        pair.write(0, number);
        pair.write(1, number);
        pair.rest();
        let last_of_the_warm_up = usize::from(number == 0);
        assert_eq!(pair.completions(0).len(), 1 + last_of_the_warm_up);
        assert_eq!(pair.completions(1).len(), 1);
    }
}

#[test]
fn the_answers_of_the_device_itself_wait_for_nobody() {
    for fetches in [false, true] {
        let pair = Pair::warm();
        let (a, b) = (&pair.sides[0], &pair.sides[1]);
        let (address, rkey) = (b.mr.address(), b.mr.rkey());
        let operation = match fetches {
            false => SendOperation::Read { address, rkey },
            true => SendOperation::FetchAdd { address, rkey, add: 1 },
        };
        a.qp.post_send(&[send(0, operation, &[a.mr.sge(16, 8)])]).unwrap();
        pair.rest();
        assert_eq!(pair.completions(0), [WcStatus::Success; 2], "the answer takes the ACK along");
    }
}

#[test]
fn a_refusal_waits_for_nobody() {
    let pair = Pair::warm();
    let (a, b) = (&pair.sides[0], &pair.sides[1]);
    a.post(0, SendOperation::Write { address: b.mr.address() + 4096, rkey: b.mr.rkey() }, a.mr.sge(8, 8));
    pair.rest();
    assert_eq!(pair.completions(0), [WcStatus::Success, WcStatus::RemoteAccess]);
}

/// What becomes of a WRITE whose ACK waits for an answer when `end` ends the queue pair instead.
fn instead_of_an_answer(end: impl FnOnce(&QueuePair)) {
    let pair = Pair::warm();
    end(&pair.sides[1].qp);
    pair.rest();
    assert_eq!(pair.completions(0), [WcStatus::Success]);
}

#[test]
fn a_queue_pair_that_ends_has_sent_what_waited() {
    let modify = |qp: &QueuePair, qp_state| {
        qp.modify(&QpAttributes { qp_state, ..QpAttributes::default() }, QpAttributeMask::STATE).unwrap();
    };
    instead_of_an_answer(|qp| qp.destroy().unwrap());
    instead_of_an_answer(|qp| modify(qp, QpState::Reset));
    instead_of_an_answer(|qp| modify(qp, QpState::Err));
}

#[test]
fn where_congestion_is_controlled_no_ack_is_delayed() {
    let congestion = Congestion::new(DcqcnParameters::PAPER);
    let mut pair = Pair::with(|builder| builder.congestion(congestion.clone()));
    pair.play(WARM_UP + 1);
    pair.rest();
    assert_eq!(pair.completions(0), [WcStatus::Success]);
}
