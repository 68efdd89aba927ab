//! Queues with a descriptor that is readable while something is in them: completion channels and asynchronous
//! events.

use super::{Error, Result};
use parking_lot::Mutex;
use rustix::{
    event::{EventfdFlags, eventfd},
    io::{Errno, IoSliceMut, ReadWriteFlags, preadv2},
};
use std::{
    collections::VecDeque,
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Events of type `T`. The descriptor is an eventfd that counts them, so that it can be polled, made non-blocking
/// and watched like any other.
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    events: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)
            .map_err(|errno| Error::os("no event descriptor", errno.into()))?;
        Ok(Self { fd, events: Mutex::new(VecDeque::new()) })
    }

    /// Adds an event and wakes whoever waits for one.
    pub(crate) fn push(&self, event: T) {
        self.events.lock().push_back(event);
        // Fails only when 2⁶⁴ events wait.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Takes the oldest event. Waits for one unless the descriptor is non-blocking, for which the error is
    /// [`Error::WouldBlock`]. A signal ends the wait (`EINTR`) if its handler was installed so.
    pub(crate) fn pop(&self) -> Result<T> {
        loop {
            match rustix::io::read(&self.fd, &mut [0; 8]) {
                Ok(_) => {}
                Err(Errno::AGAIN) => return Err(Error::WouldBlock),
                Err(errno) => return Err(Error::os("the event descriptor cannot be read", io::Error::from(errno))),
            }
            // An event that was counted may have been withdrawn.
            if let Some(event) = self.events.lock().pop_front() {
                return Ok(event);
            }
        }
    }

    /// Withdraws every event that `is_unwanted`, because what it is of goes away.
    pub(crate) fn withdraw(&self, is_unwanted: impl Fn(&T) -> bool) {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|event| !is_unwanted(event));
        for _ in events.len()..before {
            // The descriptor counts them no more. Somebody who is just popping may have counted for us: do not wait.
            let mut count = [0; 8];
            let (parts, no_offset) = (&mut [IoSliceMut::new(&mut count)], u64::MAX);
            // Where the kernel (before 5.8) cannot read so, the descriptor is readable once too often.
            let _ = preadv2(&self.fd, parts, no_offset, ReadWriteFlags::NOWAIT);
        }
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        rustix::io::ioctl_fionbio(&self.fd, nonblocking)
            .map_err(|errno| Error::os("the event descriptor cannot be changed", errno.into()))
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T> fmt::Debug for EventQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventQueue").field("fd", &self.fd).field("waiting", &self.events.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn events_come_out_in_order_and_then_it_would_block() {
        let queue = EventQueue::new().unwrap();
        queue.set_nonblocking(true).unwrap();
        queue.push(1);
        queue.push(2);
        assert_eq!(queue.pop().unwrap(), 1);
        assert_eq!(queue.pop().unwrap(), 2);
        assert!(matches!(queue.pop(), Err(Error::WouldBlock)));
    }

    #[test]
    fn a_withdrawn_event_is_not_seen() {
        let queue = EventQueue::new().unwrap();
        queue.set_nonblocking(true).unwrap();
        queue.push(1);
        queue.push(2);
        queue.withdraw(|&event| event == 1);
        assert_eq!(queue.pop().unwrap(), 2);
        let mut fds = [PollFd::new(&queue, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap(), 0, "readable");
        assert!(matches!(queue.pop(), Err(Error::WouldBlock)));
    }
}
