//! One ordered structure over the deadlines of all queue pairs.
//!
//! A queue pair has at most one entry, and re-arms it lazily: a deadline that moves later leaves the entry where
//! it is, and when that one comes due the queue pair is asked again. So a busy connection, whose ACK timeout moves
//! with every acknowledgement, touches this a few times a second, and an idle one never.

use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
};
use uroce_protocol::{Instant, wire::Qpn};

const NEVER: u64 = u64::MAX;

/// The deadlines of a device.
#[derive(Debug)]
pub(crate) struct Timers {
    entries: Mutex<BTreeSet<(Instant, Qpn)>>,
    /// The first entry's deadline in nanoseconds, for a look without the lock.
    earliest: AtomicU64,
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self { entries: Mutex::new(BTreeSet::new()), earliest: AtomicU64::new(NEVER) }
    }

    /// The first deadline.
    pub(crate) fn earliest(&self) -> Option<Instant> {
        match self.earliest.load(Ordering::SeqCst) {
            NEVER => None,
            nanos => Some(Instant::from_nanos(nanos)),
        }
    }

    /// Puts `qp`'s entry where its deadline is, unless the one that it has (`armed`) comes due before anyway.
    /// Returns the entry that it has now, and whether the device's first deadline has become earlier.
    pub(crate) fn arm(&self, qp: Qpn, armed: Option<Instant>, deadline: Option<Instant>) -> (Option<Instant>, bool) {
        let Some(deadline) = deadline else { return (armed, false) };
        if armed.is_some_and(|armed| armed <= deadline) {
            return (armed, false);
        }
        let mut entries = self.entries.lock();
        if let Some(armed) = armed {
            entries.remove(&(armed, qp));
        }
        entries.insert((deadline, qp));
        let before = self.publish(&entries);
        (Some(deadline), deadline.as_nanos() < before)
    }

    /// Takes `qp`'s entry out.
    pub(crate) fn disarm(&self, qp: Qpn, armed: Option<Instant>) {
        if let Some(armed) = armed {
            let mut entries = self.entries.lock();
            entries.remove(&(armed, qp));
            self.publish(&entries);
        }
    }

    /// Takes out one entry that has come due.
    pub(crate) fn pop_expired(&self, now: Instant) -> Option<(Instant, Qpn)> {
        if self.earliest.load(Ordering::Acquire) > now.as_nanos() {
            return None;
        }
        let mut entries = self.entries.lock();
        let first = *entries.first()?;
        if first.0 > now {
            return None;
        }
        entries.pop_first();
        self.publish(&entries);
        Some(first)
    }

    fn publish(&self, entries: &BTreeSet<(Instant, Qpn)>) -> u64 {
        let earliest = entries.first().map_or(NEVER, |(deadline, _)| deadline.as_nanos());
        self.earliest.swap(earliest, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn instant(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn a_later_deadline_leaves_the_entry() {
        let timers = Timers::new();
        let qp = Qpn::new(17);
        assert_eq!(timers.arm(qp, None, Some(instant(100))), (Some(instant(100)), true));
        assert_eq!(timers.arm(qp, Some(instant(100)), Some(instant(500))), (Some(instant(100)), false));
        assert_eq!(timers.pop_expired(instant(99)), None);
        assert_eq!(timers.pop_expired(instant(100)), Some((instant(100), qp)));
        assert_eq!(timers.earliest(), None);
    }

    #[test]
    fn an_earlier_deadline_moves_the_entry() {
        let timers = Timers::new();
        let (one, other) = (Qpn::new(17), Qpn::new(18));
        assert_eq!(timers.arm(one, None, Some(instant(100))), (Some(instant(100)), true));
        assert_eq!(timers.arm(other, None, Some(instant(200))), (Some(instant(200)), false));
        assert_eq!(timers.arm(other, Some(instant(200)), Some(instant(50))), (Some(instant(50)), true));
        assert_eq!(timers.earliest(), Some(instant(50)));
        timers.disarm(other, Some(instant(50)));
        assert_eq!(timers.earliest(), Some(instant(100)));
        assert_eq!(timers.pop_expired(instant(1000)), Some((instant(100), one)));
        assert_eq!(timers.pop_expired(instant(1000)), None);
    }
}
