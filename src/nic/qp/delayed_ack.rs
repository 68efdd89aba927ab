//! Delayed ACKs: which wait for the program's answer, to leave in its train.
//!
//! In a ping-pong the answer follows its request so soon that the request's ACK can leave with it. An ACK that leaves
//! before costs both ends a system call. Worse, the peer's poll for its own completion returns before the answer is
//! there, and if its program waits for that by spinning on memory, its background thread has to be woken to take the
//! answer in. That goes on with every message, for the thread that takes the answer in acknowledges it at once.
//!
//! TCP does the same (delayed acknowledgments, RFC 1122, 4.2.3.2; Linux: "ping-pong mode"). The rule:
//!
//! - A program *answers* when it posts a send within [`ANSWER_WAIT`] of a request that has come in while nothing of
//!   its own was outstanding. Once it has answered [`ANSWERS`] such requests in a row, their ACKs are delayed.
//! - An ACK is delayed until the answer leaves, and for [`ANSWER_WAIT`] at most. If that passes, the program does not
//!   answer any more, and has to show anew that it does.
//! - While something of its own is outstanding, ACKs are not delayed: its program may be waiting too. So the two ends
//!   of a connection never delay at the same time.
//! - Nor are they where congestion is controlled: the peer may take round trips by them.
//!
//! Only what the responder calls a deferred ACK is delayed; READ responses, atomics and NAKs never are, and take along
//! what would wait before them. A queue pair whose program never posts, one that is only written to for instance,
//! never delays.

use super::{super::Nic, Connection, Qp};
use std::sync::{Arc, atomic::Ordering};
use uroce_protocol::{Instant, time::Duration};

/// How soon an answer is one, and how long its ACK waits for it at most. A program that waits for an event is woken and has
/// answered in a tenth of that time, but not on an emulated processor. Half the shortest ACK timeout that peers are
/// likely to have (code 8, 1 ms).
const ANSWER_WAIT: Duration = Duration::from_micros(500);

/// How many answers in a row make a program one that answers. So many prompt ACKs pay for one that has waited in vain.
const ANSWERS: u8 = 8;

/// Whether a queue pair's program answers, and since when it has not.
#[derive(Debug, Default)]
pub(in crate::nic) struct DelayedAck {
    /// When the request came in that the program has not answered yet.
    requested: Option<Instant>,
    /// How many requests in a row it has answered, at most [`ANSWERS`].
    answers: u8,
    /// The deadline of its entry among the device's delayed ACKs.
    armed: Option<Instant>,
}

impl DelayedAck {
    /// A request has come in whose ACK may be delayed, the first since an ACK has left.
    fn on_request(&mut self, now: Instant) {
        if self.requested.replace(now).is_some() {
            self.answers = 0;
        }
    }

    /// The program has posted sends.
    pub(super) fn on_post(&mut self, now: impl FnOnce() -> Instant) {
        if let Some(requested) = self.requested.take() {
            let is_answer = now() - requested <= ANSWER_WAIT;
            self.answers = if is_answer { ANSWERS.min(self.answers + 1) } else { 0 };
        }
    }

    /// Until when an ACK waits for the answer, if it does.
    fn deadline(&self) -> Option<Instant> {
        self.requested.filter(|_| self.answers == ANSWERS).map(|requested| requested + ANSWER_WAIT)
    }

    /// The answer has not come in time.
    fn give_up(&mut self) {
        self.requested = None;
        self.answers = 0;
    }

    /// Whether a deadline will see to an ACK that is held back.
    pub(in crate::nic) const fn is_armed(&self) -> bool {
        self.armed.is_some()
    }
}

impl Nic {
    /// Packets have come in, and an ACK is held back that is `new`, or covers more than before. Returns whether it
    /// waits for the program's answer.
    pub(in crate::nic) fn delay_ack(&self, now: Instant, qp: &Qp, connection: &mut Connection, new: bool) -> bool {
        let controls_congestion = connection.flow.as_ref().is_some_and(|flow| flow.congestion().is_some());
        if new && connection.sender.is_idle() && !controls_congestion {
            connection.delayed_ack.on_request(now);
        }
        let deadline = connection.delayed_ack.deadline();
        self.arm(&self.delayed_acks, qp.number, &mut connection.delayed_ack.armed, deadline);
        deadline.is_some()
    }

    /// Has every delayed ACK sent that has waited in vain. Returns whether a deadline had passed.
    pub(in crate::nic) fn expire_delayed_acks(&self, now: Instant) -> bool {
        let mut expired = false;
        while let Some((deadline, number)) = self.delayed_acks.pop_expired(now) {
            expired = true;
            let Some(qp) = self.qp(number) else { continue };
            {
                let mut connection = qp.lock();
                let Connection { delayed_ack, receiver, .. } = &mut *connection;
                if delayed_ack.armed != Some(deadline) {
                    continue;
                }
                delayed_ack.armed = None;
                if !receiver.has_deferred_ack() {
                    continue;
                }
                // The entry may be that of an ACK before, which has left with its answer.
                let later = delayed_ack.deadline().filter(|deadline| *deadline > now);
                if later.is_some() {
                    self.arm(&self.delayed_acks, number, &mut delayed_ack.armed, later);
                    continue;
                }
                delayed_ack.give_up();
            }
            self.flush_ack(qp);
        }
        expired
    }

    /// Has an ACK sent that is held back.
    pub(in crate::nic) fn flush_ack(&self, qp: Arc<Qp>) {
        qp.flush_ack.store(true, Ordering::Release);
        self.schedule(qp);
    }

    /// Forgets what was delayed, and what the program does.
    pub(super) fn reset_delayed_ack(&self, qp: &Qp, connection: &mut Connection) {
        let DelayedAck { armed, .. } = std::mem::take(&mut connection.delayed_ack);
        self.delayed_acks.disarm(qp.number, armed);
    }
}
