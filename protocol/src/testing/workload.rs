//! A random mix of work requests and what a reliable network would make of it.

use super::Endpoint;
use crate::{
    wire::RKey,
    work::{FlushPlacement, SendOperation, WcStatus},
};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// What a work request does, without addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the operations'")]
pub enum Kind {
    Send,
    SendWithImmediate,
    Write,
    WriteWithImmediate,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
}

impl Kind {
    /// What a reliable connection can do.
    pub const RC: &[Self] = &[
        Self::Send,
        Self::SendWithImmediate,
        Self::Write,
        Self::WriteWithImmediate,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::AtomicWrite,
        Self::Flush,
    ];

    /// What an extended reliable connection can do.
    pub const XRC: &[Self] = Self::RC.split_at(7).0;

    /// Whether it consumes a receive of the peer.
    pub const fn consumes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendWithImmediate | Self::WriteWithImmediate)
    }
}

/// One work request.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// What it does.
    pub kind: Kind,
    /// Bytes.
    pub length: u32,
    /// Where its local buffer starts, from the start of the requester's memory.
    pub local: u64,
    /// Where it reaches, from the start of the responder's memory.
    pub remote: u64,
    /// Into how many scatter-gather elements its local buffer is cut.
    pub pieces: u32,
    /// Whether success makes a completion.
    pub signaled: bool,
    /// Whether it waits for earlier READs and atomics.
    pub fence: bool,
}

/// A random sequence of work requests from one side to the other, each in a place of its own, but for the atomics,
/// which share a word, and some WRITEs, which share a slot so that their order shows.
#[derive(Clone, Debug)]
pub struct Workload {
    /// In the order of posting.
    pub requests: Vec<Planned>,
    slot: u64,
}

/// The comparand and the new value of the `index`th request when it is a compare and swap.
const fn swap_values(index: u64) -> (u64, u64) {
    (index / 2, index)
}

impl Workload {
    /// `count` requests of some of these kinds, of up to `longest` bytes.
    pub fn random(seed: u64, kinds: &[Kind], count: u32, longest: u32) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let slot = u64::from(longest.max(8)).next_multiple_of(8);
        let mut requests: Vec<Planned> = Vec::new();
        for index in 0..u64::from(count) {
            let kind = kinds[rng.random_range(0..kinds.len())];
            let length = match rng.random_range(0..4) {
                _ if matches!(kind, Kind::CompareSwap | Kind::FetchAdd | Kind::AtomicWrite) => 8,
                _ if kind == Kind::Flush => 0,
                0 => rng.random_range(0..=16.min(longest)),
                1 => [255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097][rng.random_range(0..9)].min(longest),
                _ => rng.random_range(0..=longest),
            };
            let remote = match kind {
                Kind::CompareSwap | Kind::FetchAdd => Self::WORD,
                Kind::Write | Kind::WriteWithImmediate | Kind::AtomicWrite if rng.random_ratio(1, 4) => {
                    Self::FIRST_SLOT
                }
                _ => Self::FIRST_SLOT + (index + 1) * slot,
            };
            requests.push(Planned {
                kind,
                length,
                local: index * slot,
                remote,
                pieces: rng.random_range(1..=4),
                signaled: rng.random_ratio(3, 4) || index + 1 == u64::from(count),
                fence: rng.random_ratio(1, 8),
            });
        }
        Self { requests, slot }
    }

    /// Where the atomics' word lies in the responder's half.
    const WORD: u64 = 0;
    const FIRST_SLOT: u64 = 8;

    /// How many bytes of the requester's memory it uses.
    pub fn local_size(&self) -> usize {
        self.requests.len() * self.slot as usize
    }

    /// How many bytes of the responder's memory it uses.
    pub fn remote_size(&self) -> usize {
        Self::FIRST_SLOT as usize + (self.requests.len() + 1) * self.slot as usize
    }

    /// The receives to post, in order: place in the responder's memory, length.
    pub fn receives(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.requests.iter().filter(|request| request.kind.consumes_receive()).map(|request| {
            let length = if request.kind == Kind::WriteWithImmediate { 0 } else { request.length };
            (request.remote, length)
        })
    }

    /// The operation of the `index`th request, against a responder whose memory starts at `base` with key `rkey`.
    pub fn operation(&self, index: usize, base: u64, rkey: RKey) -> SendOperation {
        let request = &self.requests[index];
        let address = base + request.remote;
        let immediate = index as u32;
        match request.kind {
            Kind::Send => SendOperation::Send,
            Kind::SendWithImmediate => SendOperation::SendWithImmediate(immediate),
            Kind::Write => SendOperation::Write { address, rkey },
            Kind::WriteWithImmediate => SendOperation::WriteWithImmediate { address, rkey, immediate },
            Kind::Read => SendOperation::Read { address, rkey },
            Kind::CompareSwap => {
                let (compare, swap) = swap_values(index as u64);
                SendOperation::CompareSwap { address, rkey, compare, swap }
            }
            Kind::FetchAdd => SendOperation::FetchAdd { address, rkey, add: 1 },
            Kind::AtomicWrite => SendOperation::AtomicWrite { address, rkey },
            Kind::Flush => {
                let (length, placement) = (index as u32, FlushPlacement::GLOBAL);
                SendOperation::Flush { address: base, rkey, length, placement, whole_region: index.is_multiple_of(2) }
            }
        }
    }

    /// Does the first `count` requests to memories as a reliable network would.
    pub fn apply(&self, count: usize, local: &mut [u8], remote: &mut [u8]) {
        for (index, request) in self.requests[..count].iter().enumerate() {
            let (near, far, length) = (request.local as usize, request.remote as usize, request.length as usize);
            match request.kind {
                Kind::Read => local[near..near + length].copy_from_slice(&remote[far..far + length]),
                Kind::CompareSwap | Kind::FetchAdd => {
                    let mut bytes = [0; 8];
                    bytes.copy_from_slice(&remote[far..far + 8]);
                    let before = u64::from_ne_bytes(bytes);
                    let (compare, swap) = swap_values(index as u64);
                    let after = match request.kind {
                        Kind::FetchAdd => before.wrapping_add(1),
                        _ if before == compare => swap,
                        _ => before,
                    };
                    remote[far..far + 8].copy_from_slice(&after.to_ne_bytes());
                    local[near..near + 8].copy_from_slice(&bytes);
                }
                _ => remote[far..far + length].copy_from_slice(&local[near..near + length]),
            }
        }
    }

    /// Checks that `results` (identifiers are positions) are what a connection may end with: every signalled
    /// request in order with success, or successes up to one failure and everything after it flushed. Returns how
    /// many requests have succeeded for sure: all before the failure.
    pub fn check_results(&self, results: &[(u64, WcStatus)]) -> Result<usize, String> {
        let failed = results.iter().find(|(_, status)| *status != WcStatus::Success);
        let succeeded = failed.map_or(self.requests.len(), |(wr_id, _)| *wr_id as usize);
        let expected = (0..self.requests.len())
            .filter(|&index| index >= succeeded || self.requests[index].signaled)
            .map(|index| index as u64);
        if !expected.eq(results.iter().map(|(wr_id, _)| *wr_id)) {
            return Err(format!("not every request completed once and in order: {results:?}"));
        }
        let flushed = |status: WcStatus| status == WcStatus::WorkRequestFlushed;
        if results.iter().filter(|(wr_id, _)| *wr_id as usize > succeeded).any(|(_, status)| !flushed(*status)) {
            return Err(format!("something succeeded or failed after the first failure: {results:?}"));
        }
        match failed {
            None | Some((_, WcStatus::RetryExceeded | WcStatus::RnrRetryExceeded | WcStatus::WorkRequestFlushed)) => {
                Ok(succeeded)
            }
            Some((_, status)) => Err(format!("{status:?} is not what a bad network leads to: {results:?}")),
        }
    }
}

impl Planned {
    /// Its local buffer as scatter-gather elements: offset from the start of the requester's memory, length.
    pub fn buffers(&self) -> impl Iterator<Item = (u64, u32)> {
        let Self { local, length, pieces, .. } = *self;
        (0..pieces).map(move |piece| {
            let start = length / pieces * piece;
            let end = if piece + 1 == pieces { length } else { length / pieces * (piece + 1) };
            (local + u64::from(start), end - start)
        })
    }
}

/// Reproducible bytes.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..length).map(|_| rng.random()).collect()
}

const _: () = assert!(Endpoint::SIZE >= 1 << 20, "the pair's regions hold the workloads that its tests make");
