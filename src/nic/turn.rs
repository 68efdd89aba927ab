//! Whose turn it is to transmit for a queue pair.
//!
//! A queue pair's packets must leave in the order in which they were built, and no lock may be held while they
//! leave. So building and sending belong to whoever has the queue pair's turn; anybody else only leaves word that
//! there is more to send.

use std::sync::atomic::{AtomicU8, Ordering};

/// Nobody has anything to send.
const IDLE: u8 = 0;
/// In the device's ready queue.
const QUEUED: u8 = 1;
/// Somebody transmits.
const RUNNING: u8 = 2;
/// Somebody transmits, and there is more.
const RUNNING_WANTED: u8 = 3;

/// The state of a queue pair's transmit side.
#[derive(Debug, Default)]
pub(crate) struct Turn(AtomicU8);

impl Turn {
    /// There is something to send. Returns whether the caller must put the queue pair into the ready queue.
    #[must_use]
    pub(crate) fn want(&self) -> bool {
        self.step(|state| match state {
            IDLE => QUEUED,
            RUNNING => RUNNING_WANTED,
            other => other,
        }) == IDLE
    }

    /// There is something to send, and the caller would rather send it itself. Returns whether it has the turn; if
    /// not, whoever has it, or will take it from the ready queue, knows.
    #[must_use]
    pub(crate) fn begin_or_want(&self) -> bool {
        self.step(|state| match state {
            IDLE => RUNNING,
            RUNNING => RUNNING_WANTED,
            other => other,
        }) == IDLE
    }

    /// The queue pair has been taken from the ready queue: the caller has the turn.
    pub(crate) fn begin_queued(&self) {
        self.step(|_| RUNNING);
    }

    /// The turn is over. Returns whether the caller must put the queue pair (back) into the ready queue, because
    /// there is `more` to send or somebody left word.
    #[must_use]
    pub(crate) fn end(&self, more: bool) -> bool {
        let before = self.step(|state| if more || state == RUNNING_WANTED { QUEUED } else { IDLE });
        more || before == RUNNING_WANTED
    }

    /// Moves from one state to another, or stays, and returns the one before.
    ///
    /// Staying is written too: whoever leaves word (an ACK to flush, say) and finds the queue pair queued must be
    /// sure that the one who takes it from the queue sees what was left.
    fn step(&self, next: impl Fn(u8) -> u8) -> u8 {
        let step = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| Some(next(state)));
        step.unwrap_or_else(|state| state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enters_the_ready_queue_once() {
        let turn = Turn::default();
        assert!(turn.want());
        assert!(!turn.want());
        turn.begin_queued();
        assert!(!turn.end(false));
        assert!(turn.want());
    }

    #[test]
    fn word_left_during_a_turn_is_heard_at_its_end() {
        let turn = Turn::default();
        assert!(turn.begin_or_want());
        assert!(!turn.want());
        assert!(!turn.begin_or_want());
        assert!(turn.end(false));
        assert!(!turn.want(), "it is queued already");
    }

    #[test]
    fn more_to_send_queues_it() {
        let turn = Turn::default();
        assert!(turn.begin_or_want());
        assert!(turn.end(true));
        turn.begin_queued();
        assert!(!turn.end(false));
    }
}
