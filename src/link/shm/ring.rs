//! A ring of trains in memory that two processes share: one puts trains in, the other takes them out.
//!
//! The memory is a sealed `memfd`, so that neither side can make the other's accesses fail. Positions count bytes from
//! the beginning and never wrap; each side keeps its own for itself, publishes it, and believes of the other's only what
//! can be true: the other side may be any process of the same user. Trains are copied out before anybody looks at
//! them, so that nothing changes under a parser.
//!
//! ```text
//!      0  position of the producer: how many bytes have been put in
//!    128  position of the consumer: how many have been taken out
//!    256  1 while the consumer waits and wants to be told of the next train
//!   4096  CAPACITY bytes of records, each at a multiple of 64:
//!         length (4), packet length (4), source port (2), traffic class (1), hop limit (1), 0 (4), the train
//! ```
//!
//! A record lies in one piece. Where the rest of the ring is too short for it, a record with a length of
//! [`SKIP`] says so, and the train is at the beginning.

use crate::{
    host_memory::HostMemory,
    link::{DEFAULT_HOP_LIMIT, MAX_TRAIN_BYTES, ReceiveBuffer, Train, udp::MAX_SEGMENTS},
};
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create},
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr,
    sync::atomic::{Ordering, fence},
};

/// What a ring holds, record headers included. Beyond the second-level caches of most processors, copying takes longer.
pub(super) const CAPACITY: usize = 2 << 20;

/// Where the positions and the flag stand: each on cache lines of its own, which processors fetch in pairs.
const PRODUCED: usize = 0;
const CONSUMED: usize = 128;
const WAITING: usize = 256;
/// Where the records begin.
const RECORDS: usize = 4096;
const LENGTH: usize = RECORDS + CAPACITY;

const RECORD_HEADER: usize = 16;
const ALIGNMENT: usize = 64;
/// The length that stands for: go on at the beginning.
const SKIP: u32 = u32::MAX;

/// Neither side can change the length under the other, nor take this back.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapping of a sealed `memfd`.
#[derive(Debug)]
struct SharedMemory {
    memory: HostMemory,
}

impl SharedMemory {
    fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping at an address that the kernel chooses touches nothing that is there.
        let start = unsafe { mmap(ptr::null_mut(), LENGTH, protection, MapFlags::SHARED, fd, 0)? };
        // SAFETY: the bytes are valid until they are unmapped, which is when this value drops, and nobody makes
        // references to them. The callers have made sure that the file is as long as that, and stays so.
        let memory = unsafe { HostMemory::new(start.cast(), LENGTH) };
        let mapped = Self { memory };
        // SAFETY: the range is the mapping. A forked child has no use for it.
        unsafe { madvise(start, LENGTH, Advice::LinuxDontFork)? };
        Ok(mapped)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, whose only user this value is. It cannot fail.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), LENGTH) };
    }
}

/// What is known of a train that was taken out, beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) length: usize,
    pub(super) segment_size: usize,
    pub(super) source_port: u16,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

impl Record {
    /// Its description on the way in; `None` for what no producer of ours puts in.
    fn parse(header: [u8; RECORD_HEADER]) -> Option<Self> {
        let [l0, l1, l2, l3, s0, s1, s2, s3, p0, p1, traffic_class, hop_limit, ..] = header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let segment_size = u32::from_ne_bytes([s0, s1, s2, s3]) as usize;
        let fits = (1..=MAX_TRAIN_BYTES).contains(&length)
            && segment_size > 0
            && length.div_ceil(segment_size) <= MAX_SEGMENTS;
        let source_port = u16::from_ne_bytes([p0, p1]);
        fits.then_some(Self { length, segment_size, source_port, traffic_class, hop_limit })
    }

    fn emit(&self) -> [u8; RECORD_HEADER] {
        let mut header = [0; RECORD_HEADER];
        header[..4].copy_from_slice(&(self.length as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&(self.segment_size as u32).to_ne_bytes());
        header[8..10].copy_from_slice(&self.source_port.to_ne_bytes());
        header[10] = self.traffic_class;
        header[11] = self.hop_limit;
        header
    }
}

/// The other side has written what it cannot have meant: the ring is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// How a train fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It is in, and the consumer will come by.
    Done,
    /// It is in, and the consumer waits to be told.
    Tell,
    /// There is no room.
    Full,
}

/// The side that puts trains in.
#[derive(Debug)]
pub(super) struct Producer {
    shared: SharedMemory,
    produced: u64,
    /// The consumer's position when it was last looked at.
    consumed: u64,
}

impl Producer {
    /// A new ring, and the file by which the other side gets to it.
    pub(super) fn create() -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create("uroce-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, LENGTH as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        let shared = SharedMemory::map(file.as_fd())?;
        Ok((Self { shared, produced: 0, consumed: 0 }, file))
    }

    /// Puts a train in.
    pub(super) fn put(&mut self, train: &Train<'_>) -> Result<Put, Broken> {
        let record = Record {
            length: train.bytes.len(),
            segment_size: train.segment_size,
            source_port: train.source_port,
            traffic_class: train.traffic_class,
            hop_limit: train.hop_limit.unwrap_or(DEFAULT_HOP_LIMIT),
        };
        let mut at = place(self.produced);
        let step = step(record.length);
        let skipped = if CAPACITY - at < step { CAPACITY - at } else { 0 };
        if !self.has_room(skipped + step)? {
            return Ok(Put::Full);
        }
        let memory = &self.shared.memory;
        if skipped > 0 {
            memory.write(RECORDS + at, &SKIP.to_ne_bytes()).ok_or(Broken)?;
            at = 0;
        }
        memory.write(RECORDS + at, &record.emit()).ok_or(Broken)?;
        memory.write(RECORDS + at + RECORD_HEADER, train.bytes).ok_or(Broken)?;
        self.produced += (skipped + step) as u64;
        memory.store_u64(PRODUCED, self.produced).ok_or(Broken)?;
        // Pairs with the fence in `Consumer::wait`: either this side sees the flag, or the other sees the train.
        fence(Ordering::SeqCst);
        if memory.load_u64(WAITING).ok_or(Broken)? == 0 {
            return Ok(Put::Done);
        }
        memory.store_u64(WAITING, 0).ok_or(Broken)?;
        Ok(Put::Tell)
    }

    fn has_room(&mut self, bytes: usize) -> Result<bool, Broken> {
        let room = |consumed| CAPACITY as u64 - (self.produced - consumed);
        if room(self.consumed) < bytes as u64 {
            let consumed = self.shared.memory.load_u64(CONSUMED).ok_or(Broken)?;
            if !(self.consumed..=self.produced).contains(&consumed) {
                return Err(Broken);
            }
            self.consumed = consumed;
        }
        Ok(room(self.consumed) >= bytes as u64)
    }
}

/// The side that takes trains out.
#[derive(Debug)]
pub(super) struct Consumer {
    shared: SharedMemory,
    consumed: u64,
}

impl Consumer {
    /// The ring in a file that another process has made.
    ///
    /// # Errors
    /// `InvalidData` when it is none, or could be made shorter while it is in use.
    pub(super) fn open(file: BorrowedFd<'_>) -> io::Result<Self> {
        if !fcntl_get_seals(file)?.contains(SEALS) || fstat(file)?.st_size != LENGTH as i64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { shared: SharedMemory::map(file)?, consumed: 0 })
    }

    /// Takes out the next train, if there is one.
    pub(super) fn take(&mut self, buffer: &mut ReceiveBuffer) -> Result<Option<Record>, Broken> {
        let memory = self.shared.memory;
        loop {
            let available = self.available()?;
            if available == 0 {
                return Ok(None);
            }
            let at = place(self.consumed);
            let mut header = [0; RECORD_HEADER];
            memory.read(RECORDS + at, &mut header).ok_or(Broken)?;
            if header.starts_with(&SKIP.to_ne_bytes()) {
                self.consume(CAPACITY - at, available)?;
                continue;
            }
            let record = Record::parse(header).ok_or(Broken)?;
            let step = step(record.length);
            if step > CAPACITY - at {
                return Err(Broken);
            }
            memory.read(RECORDS + at + RECORD_HEADER, &mut buffer.as_mut_bytes()[..record.length]).ok_or(Broken)?;
            self.consume(step, available)?;
            return Ok(Some(record));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.available() == Ok(0)
    }

    /// Asks to be told of the next train. Returns whether one is there already.
    pub(super) fn wait(&self) -> bool {
        let _ = self.shared.memory.store_u64(WAITING, 1);
        // Pairs with the fence in `Producer::put`.
        fence(Ordering::SeqCst);
        !self.is_empty()
    }

    /// How many bytes wait to be taken out.
    fn available(&self) -> Result<usize, Broken> {
        let produced = self.shared.memory.load_u64(PRODUCED).ok_or(Broken)?;
        match produced.wrapping_sub(self.consumed) {
            available if available <= CAPACITY as u64 && available.is_multiple_of(ALIGNMENT as u64) => {
                Ok(available as usize)
            }
            _ => Err(Broken),
        }
    }

    /// Gives `bytes` of those `available` back to the producer.
    fn consume(&mut self, bytes: usize, available: usize) -> Result<(), Broken> {
        if bytes > available {
            return Err(Broken);
        }
        self.consumed = self.consumed.wrapping_add(bytes as u64);
        self.shared.memory.store_u64(CONSUMED, self.consumed).ok_or(Broken)
    }
}

/// Where in the ring a position is.
const fn place(position: u64) -> usize {
    (position % CAPACITY as u64) as usize
}

/// How much of the ring a train of `length` bytes takes up.
const fn step(length: usize) -> usize {
    (RECORD_HEADER + length).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests;
