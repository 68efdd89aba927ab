//! Queue pairs by number.

use super::{Error, Qp, Result, attributes::MAX_QP, keys::Random};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use uroce_protocol::wire::Qpn;

/// The first number of an ordinary queue pair: rxe's too. Those below are management's.
const FIRST: u32 = 0x11;
/// The number after the last: 0xffffff means multicast.
const END: u32 = 0xff_ffff;

/// The queue pairs of a device.
#[derive(Debug)]
pub(crate) struct QpTable {
    qps: FxHashMap<Qpn, Arc<Qp>>,
    /// The number to try next. Numbers are given in turn, so that one is not soon given again: packets of an old
    /// connection then find nobody.
    next: u32,
}

impl QpTable {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self { qps: FxHashMap::default(), next: FIRST + random.next() as u32 % 0x1_0000 }
    }

    pub(crate) fn get(&self, number: Qpn) -> Option<Arc<Qp>> {
        self.qps.get(&number).cloned()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Arc<Qp>> {
        self.qps.values().cloned()
    }

    /// Adds the queue pair that `make` makes of its number.
    pub(crate) fn insert(&mut self, make: impl FnOnce(Qpn) -> Qp) -> Result<Arc<Qp>> {
        if self.qps.len() >= MAX_QP as usize {
            return Err(Error::Exhausted("there are no queue pairs left"));
        }
        // There are more numbers than queue pairs, so one is free.
        loop {
            let number = Qpn::new(self.next);
            self.next = if self.next + 1 < END { self.next + 1 } else { FIRST };
            if let std::collections::hash_map::Entry::Vacant(slot) = self.qps.entry(number) {
                return Ok(slot.insert(Arc::new(make(number))).clone());
            }
        }
    }

    pub(crate) fn remove(&mut self, number: Qpn) {
        self.qps.remove(&number);
    }
}
