//! The background thread: it drives the device when no program thread does.
//!
//! It *watches* (sleeps until the link is readable, a deadline passes, or somebody wakes it) as long as that is of
//! use: one-sided operations reach a process that never polls, event-driven programs are woken. When it finds
//! that program threads poll, it *naps*: it looks once a millisecond whether polls have stopped, and costs the
//! pollers nothing. A completion queue that is armed, and polls that stop, end the nap. Before it sleeps it may *linger*
//! ([`linger`](super::linger)), and look for what is likely to come soon.
//!
//! A program may poll for its own completions but wait for its peer's bytes by spinning on memory, as ib_write_lat
//! does. It seems to poll all the time, and if it is out of step with its peer ([`super::qp`]: delayed ACKs) nobody
//! takes packets in as soon as the thread naps. So a nap that ends with packets that nobody took in is not repeated
//! soon, and ever less soon.

use super::{Error, Nic, Result, linger::Linger, progress::Driven};
use crate::{bell::Bell, link::sys};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering, fence},
    },
    thread::JoinHandle,
    time::Duration,
};
use uroce_protocol::Instant;

/// How often the thread, awake or napping, looks whether polls go on. It looks at spans of time, not at its own
/// rounds: on a machine with few processors the thread itself keeps the polling threads from theirs.
const LOOK: Duration = Duration::from_millis(1);
/// How often it looks at most after a long nap: every look takes a processor from a polling thread.
const SELDOM_LOOK: Duration = Duration::from_millis(8);
/// For so many looks in a row nobody has polled when a nap ends: a polling thread may have lost its processor.
const LOOKS: u32 = 2;
/// A nap that lasted so long was well taken, however it ended.
const GOOD_NAP: Duration = Duration::from_millis(20);
/// How long it stays awake after the first nap that left packets lying, and at most after many.
const WAKEFUL: Duration = Duration::from_millis(50);
const MOST_WAKEFUL: Duration = Duration::from_secs(10);
/// After so many looks in a row at which others polled, and it had taken nothing in since the one before, it need not stay
/// awake any longer.
const IDLE_LOOKS: u32 = 4;
/// How often a link without a descriptor is looked after.
const TICK: Duration = Duration::from_millis(1);

/// How often a link that took no more is tried again.
const BLOCKED: Duration = Duration::from_micros(200);

/// It works, or there is no thread.
const AWAKE: u8 = 0;
const WATCHING: u8 = 1;
const NAPPING: u8 = 2;

/// How the thread sleeps and is woken.
#[derive(Debug)]
pub(crate) struct Sleeper {
    wake: Bell,
    state: AtomicU8,
    is_stopping: AtomicBool,
}

impl Sleeper {
    pub(crate) fn new() -> Result<Self> {
        let wake = Bell::new().map_err(|error| Error::os("no event descriptor", error))?;
        Ok(Self { wake, state: AtomicU8::new(AWAKE), is_stopping: AtomicBool::new(false) })
    }

    pub(crate) fn is_watching(&self) -> bool {
        self.state.load(Ordering::Relaxed) == WATCHING
    }

    /// Wakes the thread if it watches: there is something to do that it does not see coming.
    pub(crate) fn wake_from_watch(&self) {
        fence(Ordering::SeqCst);
        self.wake_from(WATCHING);
    }

    /// Wakes the thread if it naps: from now on it is needed.
    pub(crate) fn wake_from_nap(&self) {
        fence(Ordering::SeqCst);
        self.wake_from(NAPPING);
    }

    fn wake_from(&self, state: u8) {
        if self.state.load(Ordering::Relaxed) == state
            && self.state.compare_exchange(state, AWAKE, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        {
            self.wake.ring();
        }
    }

    /// Announces that the thread is about to sleep. From here on whoever wants it wakes it; what happened before, it
    /// has to look for itself.
    fn lie_down(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
        // Pairs with the fences of those who wake it: either they see the state, or it sees their reason.
        fence(Ordering::SeqCst);
    }

    /// Sleeps until woken, until the link is ready, or until the time is up.
    fn wait(&self, link: Option<PollFd<'_>>, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let wake = PollFd::new(&self.wake, PollFlags::IN);
        // Whatever ends it, an interruption included, the thread looks round and lies down again.
        let _ = match link {
            Some(link) => poll(&mut [wake, link], timeout.as_ref()),
            None => poll(&mut [wake], timeout.as_ref()),
        };
        self.state.store(AWAKE, Ordering::SeqCst);
        self.wake.silence();
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }
}

/// The thread. Dropping this stops it, and returns when it has stopped.
#[derive(Debug)]
pub(crate) struct ProgressThread {
    nic: Arc<Nic>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressThread {
    pub(crate) fn spawn(nic: Arc<Nic>, name: &str) -> Result<Self> {
        let its_nic = nic.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = sys::with_signals_blocked(|| thread.spawn(move || its_nic.run()))
            .map_err(|error| Error::os("no thread", error))?;
        Ok(Self { nic, thread: Some(thread) })
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.nic.sleeper.is_stopping.store(true, Ordering::SeqCst);
        self.nic.sleeper.wake.ring();
        if let Some(thread) = self.thread.take() {
            // It fails when the thread has panicked, which has been reported then.
            let _ = thread.join();
        }
    }
}

impl Nic {
    fn run(&self) {
        let mut wakeful = WAKEFUL;
        let mut awake_until = self.clock.now();
        let mut last_look = awake_until;
        let mut linger = Linger::new(awake_until);
        let (mut has_received, mut idle_looks) = (false, 0);
        while !self.sleeper.is_stopping() {
            let driven = self.drive_once();
            has_received |= driven == Driven::Received;
            let now = self.clock.now();
            let span = now - last_look;
            if span < LOOK {
                if driven == Driven::Nothing {
                    if self.linger(&mut linger, now) {
                        has_received = true;
                    } else {
                        self.watch(&mut linger);
                    }
                }
                continue;
            }
            last_look = now;
            // Polls in a long span may be long past.
            let others_poll = self.polled.swap(false, Ordering::Relaxed) && span < 2 * LOOK;
            idle_looks = if others_poll && !has_received { idle_looks + 1 } else { 0 };
            has_received = false;
            if idle_looks >= IDLE_LOOKS {
                awake_until = now;
            }
            if !others_poll || self.is_armed() || now < awake_until {
                continue;
            }
            let left_lying = self.nap();
            last_look = self.clock.now();
            if last_look - now >= GOOD_NAP {
                wakeful = WAKEFUL;
            } else if left_lying {
                awake_until = last_look + wakeful;
                wakeful = (wakeful * 2).min(MOST_WAKEFUL);
            }
        }
    }

    fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst) > 0
    }

    /// Goes on looking for as long as packets are likely to come soon, unless a program thread does. Returns whether
    /// they have come.
    fn linger(&self, linger: &mut Linger, start: Instant) -> bool {
        let Some(length) = linger.length(start) else { return false };
        loop {
            if self.polled.load(Ordering::Relaxed) {
                return false;
            }
            let driven = self.drive_once();
            let now = self.clock.now();
            if driven == Driven::Received {
                linger.found(now - start);
                return true;
            }
            if now - start >= length {
                linger.missed(now);
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until the link is ready, a deadline passes, or somebody leaves something behind.
    fn watch(&self, linger: &mut Linger) {
        self.sleeper.lie_down(WATCHING);
        let now = self.clock.now();
        if self.sleeper.is_stopping() || !self.link.arm(now) {
            return;
        }
        let mut timeout = self.next_deadline().map(|deadline| deadline.saturating_duration_since(now));
        if self.transmitter.is_blocked() {
            // Which of the link's sockets is full is the link's secret.
            timeout = Some(timeout.map_or(BLOCKED, |timeout| timeout.min(BLOCKED)));
        }
        let readiness = self.link.readiness();
        if readiness.is_none() {
            timeout = Some(timeout.map_or(TICK, |timeout| timeout.min(TICK)));
        }
        self.sleeper.wait(readiness.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)), timeout);
        linger.slept(self.clock.now() - now);
    }

    /// Sleeps while program threads poll. Returns whether they have stopped and left packets lying.
    fn nap(&self) -> bool {
        let mut quiet = 0;
        let mut look = LOOK;
        while quiet < LOOKS {
            self.sleeper.lie_down(NAPPING);
            if !self.is_armed() && !self.sleeper.is_stopping() {
                self.sleeper.wait(None, Some(look));
            }
            if self.is_armed() || self.sleeper.is_stopping() {
                return false;
            }
            quiet = if self.polled.swap(false, Ordering::Relaxed) { 0 } else { quiet + 1 };
            look = (look + look / 8).min(SELDOM_LOOK);
        }
        self.drive_once() > Driven::Nothing
    }
}
