//! The progress engine: what any thread does that drives the device.

use super::{Nic, Qp, receive::Received, timers::Timers};
use std::sync::{
    Arc,
    atomic::{Ordering, fence},
};
use uroce_protocol::{Instant, time::Duration};

/// How many trains are taken in before what they release is sent.
const BURST: usize = 8;

/// What a deadline is given while packets keep coming: the answer that it waits for may be among them. A thread
/// that was held up would otherwise call everything lost that has arrived in the meantime.
const GRACE: Duration = Duration::from_millis(10);

/// After so many polls in vain in a row, some ten microseconds' worth, a polling thread yields its processor at each
/// further one: what it waits for may be waiting for that very processor. Where nobody is, yielding costs less than
/// a poll.
const VAIN_POLLS: u32 = 32;

/// How many turns a doorbell gives to queue pairs before it goes back to its caller.
const DOORBELL_TURNS: usize = 64;

/// What came of going round once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Driven {
    /// There was nothing to do.
    Nothing,
    /// A deadline had passed, or something left.
    Acted,
    /// Trains have come in.
    Received,
}

impl Nic {
    /// Takes in what has arrived, acts on deadlines that have passed, and sends what may be sent, until there is
    /// nothing left to do. Returns whether there was anything.
    pub(crate) fn drive(&self) -> bool {
        let mut acted = false;
        while self.pass(BURST) > Driven::Nothing {
            acted = true;
        }
        self.leave();
        acted
    }

    /// Goes round once.
    pub(super) fn drive_once(&self) -> Driven {
        let driven = self.pass(BURST);
        self.leave();
        driven
    }

    /// Drives on behalf of a thread that polls: takes in one train at most, so that the program sees what it brought
    /// before anything else is done about it.
    pub(super) fn drive_for_poll(&self) {
        if !self.polled.load(Ordering::Relaxed) {
            self.polled.store(true, Ordering::Relaxed);
        }
        let driven = self.pass(1);
        self.leave();
        if driven > Driven::Nothing {
            self.vain_polls.store(0, Ordering::Relaxed);
        } else if self.vain_polls.fetch_add(1, Ordering::Relaxed) >= VAIN_POLLS {
            std::thread::yield_now();
        }
    }

    /// Looks after everything once, and takes in `trains` trains at most.
    fn pass(&self, trains: usize) -> Driven {
        let unblocked = self.unblock();
        let received = self.receive(trains);
        let expired = match received {
            Received::Nothing(now) => self.expire(now, Duration::ZERO),
            Received::Trains(now) => self.expire(now, GRACE),
            // Whoever is at it will see to the deadlines too, knowing more. It may have lost its processor to this
            // thread.
            Received::Busy => {
                std::thread::yield_now();
                false
            }
        };
        let served = self.serve_ready();
        match received {
            Received::Trains(_) => Driven::Received,
            _ if unblocked || expired || served => Driven::Acted,
            _ => Driven::Nothing,
        }
    }

    /// Something was posted: transmits for the queue pair on this thread, unless another is at it.
    pub(super) fn doorbell(&self, qp: &Arc<Qp>) {
        if self.transmitter.is_blocked() {
            self.schedule(qp.clone());
        } else if qp.turn.begin_or_want() {
            self.take_turn(qp.clone());
        }
        for _ in 0..DOORBELL_TURNS {
            if !self.serve_next() {
                break;
            }
        }
        self.leave();
    }

    /// A queue pair has something to send: puts it into the ready queue, if it is not there.
    pub(super) fn schedule(&self, qp: Arc<Qp>) {
        if qp.turn.want() {
            self.ready.lock().push_back(qp);
        }
    }

    /// When the device will next have something to do of its own accord; now, if something was left to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.has_leftovers() {
            return Some(self.clock.now());
        }
        let tables = [&self.timers, &self.pacing, &self.delayed_acks].map(Timers::earliest);
        tables.into_iter().chain([self.link.poll_timeout()]).flatten().min()
    }

    /// Whether something waits for a driver that neither a deadline nor the link will call.
    pub(super) fn has_leftovers(&self) -> bool {
        self.deferred.load(Ordering::SeqCst) > 0 || (!self.transmitter.is_blocked() && !self.ready.lock().is_empty())
    }

    /// Goes, but not without telling the background thread what it leaves behind.
    pub(super) fn leave(&self) {
        // Pairs with the fence in `watch`: either this thread sees that the other watches, or the other sees what
        // this one has left behind.
        fence(Ordering::SeqCst);
        if self.sleeper.is_watching() && (self.has_leftovers() || self.link.poll_timeout().is_some()) {
            self.sleeper.wake_from_watch();
        }
    }

    /// Gives every queue pair that is in the ready queue now one turn. Returns whether there was one.
    fn serve_ready(&self) -> bool {
        let waiting = self.ready.lock().len();
        (0..waiting).take_while(|_| self.serve_next()).count() > 0
    }

    /// Gives the first queue pair of the ready queue its turn, if there is one and the link takes trains.
    fn serve_next(&self) -> bool {
        if self.transmitter.is_blocked() {
            return false;
        }
        let Some(qp) = self.ready.lock().pop_front() else { return false };
        qp.turn.begin_queued();
        self.take_turn(qp);
        true
    }

    /// Acts on every deadline that passed `grace` ago. Returns whether one had.
    fn expire(&self, now: Instant, grace: Duration) -> bool {
        let mut expired = false;
        if self.link.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.link.handle_timeout(now);
            expired = true;
        }
        expired |= self.expire_pacing(now);
        expired |= self.expire_delayed_acks(now);
        let latest = now.saturating_sub(grace);
        while let Some((deadline, number)) = self.timers.pop_expired(latest) {
            expired = true;
            let Some(qp) = self.qp(number) else { continue };
            let is_due = {
                let mut connection = qp.lock();
                if connection.armed != Some(deadline) {
                    continue;
                }
                connection.armed = None;
                // The entry may be older than the deadline, which has moved on since.
                let is_due = connection.sender.poll_timeout().is_some_and(|deadline| deadline <= latest);
                if is_due {
                    connection.sender.handle_timeout(now);
                }
                self.settle(&qp, &mut connection, now);
                is_due
            };
            if is_due {
                self.schedule(qp);
            }
        }
        expired
    }
}
