//! What is to be answered, in order, in bounded space.
//!
//! Answers leave in the order in which their requests were executed, because an acknowledgement speaks for
//! everything before it. The queue never grows with what a peer sends: an ACK merges into the ACK before it, a NAK
//! speaks for the ACKs before it, and a READ or atomic is in it once, however often it is asked for again.

use crate::{
    Psn,
    rc::Fatal,
    wire::{Msn, Syndrome},
};
use std::collections::VecDeque;

/// An ACK waits for no more than this many payload bytes: half of the window that a requester of ours begins with
/// ([`crate::rc::WindowConfig`]), so that the window moves before it is used up, and about a full train, so that a
/// stream of them costs an ACK for every second one.
const DEFERRED_BYTES: usize = 64 << 10;

/// An ACK waits for no more than this many requests that asked for one.
const DEFERRED_REQUESTS: u32 = 16;

/// How many ACKs pile up where each request gets its own, before they merge all the same.
const QUEUE_LIMIT: usize = 64;

/// An answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    /// A positive acknowledgement. `urgent`: it must not wait for later requests.
    Acknowledge { psn: Psn, msn: Msn, urgent: bool },
    /// A refusal; with `fatal`, the last thing that is said.
    Refuse { syndrome: Syndrome, psn: Psn, msn: Msn, fatal: Option<Fatal> },
    /// The responses of the READ or atomic at this index of the replay ring.
    Resource(usize),
}

/// The answers that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Replies {
    queue: VecDeque<Reply>,
    coalesce: bool,
    /// Payload bytes that arrived since anything was sent.
    bytes: usize,
    /// Requests that asked for an ACK since anything was sent.
    requests: u32,
}

impl Replies {
    /// Forgets everything.
    pub(super) fn reset(&mut self, coalesce: bool) {
        self.clear();
        self.coalesce = coalesce;
    }

    /// Notes payload that an ACK to come will cover.
    pub(super) fn received(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Acknowledges everything up to `psn`.
    pub(super) fn acknowledge(&mut self, psn: Psn, msn: Msn) {
        self.requests += 1;
        let merge = self.merges();
        let urgent = !self.coalesce || self.bytes >= DEFERRED_BYTES || self.requests >= DEFERRED_REQUESTS;
        match self.queue.back_mut() {
            Some(Reply::Acknowledge { psn: last, msn: last_msn, urgent: was_urgent }) if merge => {
                if psn.is_after(*last) {
                    *last = psn;
                }
                *last_msn = msn;
                *was_urgent |= urgent;
            }
            // A NAK acknowledges what comes before its PSN.
            Some(Reply::Refuse { psn: refused, .. }) if merge && psn.is_before(*refused) => {}
            _ => self.queue.push_back(Reply::Acknowledge { psn, msn, urgent }),
        }
    }

    /// Refuses the request at `psn`, and with that acknowledges everything before.
    pub(super) fn refuse(&mut self, syndrome: Syndrome, psn: Psn, msn: Msn, fatal: Option<Fatal>) {
        if self.merges() {
            while matches!(self.queue.back(), Some(Reply::Acknowledge { .. } | Reply::Refuse { .. })) {
                self.queue.pop_back();
            }
        }
        self.queue.push_back(Reply::Refuse { syndrome, psn, msn, fatal });
    }

    /// Answers a new READ or atomic.
    pub(super) fn respond(&mut self, index: usize) {
        // What stood at this index before has left the ring. If it was being repeated, nobody waits for it: its
        // requester would not have sent one more request than fit otherwise.
        self.queue.retain(|reply| !matches!(reply, Reply::Resource(other) if *other == index));
        // Its response acknowledges what comes before.
        if self.coalesce && matches!(self.queue.back(), Some(Reply::Acknowledge { .. })) {
            self.queue.pop_back();
        }
        self.queue.push_back(Reply::Resource(index));
    }

    /// Answers a READ or atomic again, if there is one whose answer is not under way.
    pub(super) fn repeat(&mut self, index: Option<usize>) {
        self.queue.extend(index.map(Reply::Resource));
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.sent();
    }

    /// Drops everything but a last word.
    pub(super) fn retain_fatal(&mut self) {
        self.queue.retain(|reply| matches!(reply, Reply::Refuse { fatal: Some(_), .. }));
    }

    /// The next answer; a deferred ACK only with `flush_ack`.
    pub(super) fn front(&self, flush_ack: bool) -> Option<Reply> {
        if self.has_deferred() && !flush_ack { None } else { self.queue.front().copied() }
    }

    /// Takes the front answer away: it has been sent to the end.
    pub(super) fn pop(&mut self) {
        self.queue.pop_front();
        self.sent();
    }

    /// Whether an ACK, and nothing else, waits for company.
    pub(super) fn has_deferred(&self) -> bool {
        self.queue.len() == 1 && matches!(self.queue.front(), Some(Reply::Acknowledge { urgent: false, .. }))
    }

    /// Whether anything waits that should be sent at once.
    pub(super) fn has_urgent(&self) -> bool {
        !self.queue.is_empty() && !self.has_deferred()
    }

    fn merges(&self) -> bool {
        self.coalesce || self.queue.len() >= QUEUE_LIMIT
    }

    fn sent(&mut self) {
        self.bytes = 0;
        self.requests = 0;
    }
}
