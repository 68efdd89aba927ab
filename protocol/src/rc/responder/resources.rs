//! The replay ring: what is remembered of the latest READs, atomics, ATOMIC WRITEs and FLUSHes, to stream their
//! answers and to repeat them.
//!
//! One that the requester sends again must not be executed as if it were new: an atomic would count twice, and none
//! would find its PSN expected. So the responder keeps the latest `max_dest_rd_atomic` of them (the *responder
//! resources* of the IBTA): of an atomic its result, of a READ the range it may ask for again, of the others that
//! they have been executed.

use crate::{
    Psn,
    rc::Source,
    wire::{Aeth, Extended, Msn, Mtu, Operation, Reth, Syndrome, XrcSrqn},
};

/// One that is remembered.
#[derive(Debug)]
pub(super) struct Resource {
    first_psn: Psn,
    /// How many packets its answer has.
    packets: u32,
    /// How many of them have been emitted at least once; as long as that is not all, it counts as outstanding.
    emitted: u32,
    /// What the AETHs of the answer say.
    msn: Msn,
    /// Whether it stands in the queue of replies.
    pending: bool,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    /// Bytes `offset` to `end` of the range in `reth` are still to be emitted. `srq` is the XRC shared receive queue
    /// that was named with the request, whose memory the range is of.
    Read { reth: Reth, srq: Option<XrcSrqn>, offset: u32, end: u32 },
    /// The word's value before the operation.
    Atomic { before: u64 },
    /// Nothing but that it has been executed: an empty READ response (as Linux rxe answers ATOMIC WRITE and FLUSH).
    Done,
}

/// A packet of an answer.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) operation: Operation,
    pub(super) psn: Psn,
    pub(super) extended: Extended,
    pub(super) source: Source<'static>,
    pub(super) retransmission: bool,
    pub(super) msn: Msn,
    /// Whether it ends the answer.
    pub(super) last: bool,
}

impl Resource {
    /// A new READ; its first answer is due.
    pub(super) fn read(psn: Psn, reth: Reth, srq: Option<XrcSrqn>, msn: Msn, mtu: Mtu) -> Self {
        Self {
            first_psn: psn,
            packets: mtu.packets(reth.length.into()),
            emitted: 0,
            msn,
            pending: true,
            answer: Answer::Read { reth, srq, offset: 0, end: reth.length },
        }
    }

    /// An atomic that has been executed and found `before`; its first answer is due.
    pub(super) fn atomic(psn: Psn, before: u64, msn: Msn) -> Self {
        Self { first_psn: psn, packets: 1, emitted: 0, msn, pending: true, answer: Answer::Atomic { before } }
    }

    /// An ATOMIC WRITE or FLUSH that has been executed; its first answer is due.
    pub(super) fn done(psn: Psn, msn: Msn) -> Self {
        Self { first_psn: psn, packets: 1, emitted: 0, msn, pending: true, answer: Answer::Done }
    }

    /// Whether its answer is data of any length.
    pub(super) const fn is_read(&self) -> bool {
        matches!(self.answer, Answer::Read { .. })
    }

    /// How many PSNs its answer takes.
    pub(super) fn packets(&self) -> u32 {
        self.packets
    }

    /// The next packet of the answer.
    ///
    /// A READ resumed in the middle goes on with Middle or Last as if the packets before had come from the same
    /// request. rxe does the same, and its requester relies on it.
    pub(super) fn next_response(&mut self, mtu: Mtu, syndrome: Syndrome) -> Response {
        let aeth = Aeth { syndrome, msn: self.msn };
        let (index, operation, extended, source) = match &mut self.answer {
            Answer::Atomic { before } => {
                (0, Operation::AtomicAcknowledge, Extended::AtomicAck(aeth, *before), Source::Empty)
            }
            Answer::Done => (0, Operation::ReadResponseOnly, Extended::Aeth(aeth), Source::Empty),
            Answer::Read { reth, srq, offset, end } => {
                let address = reth.address.wrapping_add((*offset).into());
                let index = *offset / mtu.bytes() as u32;
                let length = (*end - *offset).min(mtu.bytes() as u32);
                *offset += length;
                let (operation, extended) = match (index == 0, offset == end) {
                    (true, true) => (Operation::ReadResponseOnly, Extended::Aeth(aeth)),
                    (true, false) => (Operation::ReadResponseFirst, Extended::Aeth(aeth)),
                    (false, false) => (Operation::ReadResponseMiddle, Extended::None),
                    (false, true) => (Operation::ReadResponseLast, Extended::Aeth(aeth)),
                };
                let source = match length {
                    0 => Source::Empty,
                    _ => Source::Remote { rkey: reth.rkey, address, length: length as usize, srq: *srq },
                };
                (index, operation, extended, source)
            }
        };
        let retransmission = index < self.emitted;
        self.emitted = self.emitted.max(index + 1);
        self.pending = operation == Operation::ReadResponseFirst || operation == Operation::ReadResponseMiddle;
        Response {
            operation,
            psn: self.first_psn + index,
            extended,
            source,
            retransmission,
            msn: self.msn,
            last: !self.pending,
        }
    }

    /// Makes the part of a READ that a repeated request asks for due again. An answer that is under way is never
    /// cut short by it. `false` when the request asks for anything that the original did not: it is no repetition.
    fn rewind(&mut self, psn: Psn, request: Reth, mtu: Mtu) -> bool {
        let Answer::Read { reth, offset, end, .. } = &mut self.answer else { return false };
        let skipped = psn.distance_from(self.first_psn) as u64 * mtu.bytes() as u64;
        if request.rkey != reth.rkey
            || request.address != reth.address.wrapping_add(skipped)
            || skipped + u64::from(request.length) > reth.length.into()
        {
            return false;
        }
        let (from, to) = (skipped as u32, skipped as u32 + request.length);
        (*offset, *end) = if self.pending { (from.min(*offset), to.max(*end)) } else { (from, to) };
        true
    }
}

/// The ring. It grows to its capacity as it is used, then the oldest entry makes room for the newest.
#[derive(Debug, Default)]
pub(super) struct Resources {
    ring: Vec<Resource>,
    capacity: usize,
    /// Where the next one goes.
    next: usize,
}

impl Resources {
    /// Forgets everything; `capacity` is `max_dest_rd_atomic`.
    pub(super) fn reset(&mut self, capacity: u8) {
        self.ring.clear();
        self.capacity = capacity.into();
        self.next = 0;
    }

    /// Changes the capacity. What is remembered stays as long as nothing takes its place.
    pub(super) fn set_capacity(&mut self, capacity: u8) {
        self.capacity = capacity.into();
        if self.next >= self.capacity {
            self.next = 0;
        }
    }

    /// Whether a new READ or atomic may come. It may not while as many as fit are still to be answered: the
    /// requester has more outstanding than was agreed.
    pub(super) fn has_room(&self) -> bool {
        self.next < self.capacity && self.ring.get(self.next).is_none_or(|oldest| oldest.emitted == oldest.packets)
    }

    /// Stores a new one in the place of the oldest and returns its index. Call [`Self::has_room`] first.
    pub(super) fn insert(&mut self, resource: Resource) -> usize {
        let index = self.next;
        match self.ring.get_mut(index) {
            Some(oldest) => *oldest = resource,
            None => self.ring.push(resource),
        }
        self.next = (index + 1) % self.capacity;
        index
    }

    /// The resource of an index that [`Self::insert`] returned.
    pub(super) fn get(&self, index: usize) -> &Resource {
        &self.ring[index]
    }

    /// The same, to change it.
    pub(super) fn get_mut(&mut self, index: usize) -> &mut Resource {
        &mut self.ring[index]
    }

    /// Makes the READ that a repeated request at `psn` belongs to due again. Returns its index if it must be queued
    /// for that; `None` if it still is, or if the READ is forgotten or was another one.
    pub(super) fn repeat_read(&mut self, psn: Psn, request: Reth, msn: Msn, mtu: Mtu) -> Option<usize> {
        let index = self.find(psn)?;
        let resource = &mut self.ring[index];
        if !resource.rewind(psn, request, mtu) {
            return None;
        }
        resource.msn = msn;
        (!core::mem::replace(&mut resource.pending, true)).then_some(index)
    }

    /// Makes the answer due again of what was executed at `psn`, as [`Self::repeat_read`] does: of an atomic, or of
    /// an ATOMIC WRITE or FLUSH.
    pub(super) fn repeat_executed(&mut self, psn: Psn, is_atomic: bool, msn: Msn) -> Option<usize> {
        let index = self.find(psn)?;
        let resource = &mut self.ring[index];
        match (&resource.answer, is_atomic) {
            (Answer::Atomic { .. }, true) | (Answer::Done, false) => {}
            _ => return None,
        }
        resource.msn = msn;
        (!core::mem::replace(&mut resource.pending, true)).then_some(index)
    }

    /// The PSN of the earliest remembered READ or atomic after `psn` and before `expected`. What is remembered from
    /// so long ago that its PSN seems to lie ahead is neither.
    pub(super) fn first_between(&self, psn: Psn, expected: Psn) -> Option<Psn> {
        let after = self.ring.iter().map(|resource| resource.first_psn);
        let after = after.filter(|first| first.is_after(psn) && first.is_before(expected));
        after.min_by_key(|first| first.distance_from(psn))
    }

    fn find(&self, psn: Psn) -> Option<usize> {
        // The newest first: a PSN comes round again.
        let count = self.ring.len();
        (0..count).map(|age| (self.next + count - 1 - age) % count).find(|&index| {
            let resource = &self.ring[index];
            u32::try_from(psn.distance_from(resource.first_psn)).is_ok_and(|offset| offset < resource.packets)
        })
    }
}
