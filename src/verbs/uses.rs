//! The verbs' rule of destruction: not while something depends on it.

use super::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};

const GONE: usize = 1 << (usize::BITS - 1);

/// How many objects depend on one, and whether that is still there.
#[derive(Debug, Default)]
pub(crate) struct Uses(AtomicUsize);

impl Uses {
    /// One more depends on it; `EINVAL` when it has been destroyed.
    pub(crate) fn acquire(&self) -> Result<()> {
        let add = |uses| if uses == GONE { None } else { Some(uses + 1) };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).map(|_| ()).map_err(|_| gone())
    }

    /// One more depends on each of several, or on none of them.
    pub(crate) fn acquire_all<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> Result<()> {
        for (acquired, uses) in all.clone().enumerate() {
            if let Err(error) = uses.acquire() {
                all.take(acquired).for_each(Self::release);
                return Err(error);
            }
        }
        Ok(())
    }

    /// One less depends on it.
    pub(crate) fn release(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Destroys it: `EBUSY`, for the reason given, while something depends on it; `EINVAL` when it has been
    /// destroyed before.
    pub(crate) fn retire(&self, reason: &'static str) -> Result<()> {
        match self.0.compare_exchange(0, GONE, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(GONE) => Err(gone()),
            Err(_) => Err(Error::Busy(reason)),
        }
    }

    /// `EINVAL` when it has been destroyed.
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Acquire) == GONE { Err(gone()) } else { Ok(()) }
    }
}

const fn gone() -> Error {
    Error::InvalidArgument("the object has been destroyed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_while_used_and_gone_for_good() {
        let uses = Uses::default();
        uses.acquire().unwrap();
        assert_eq!(uses.retire("").unwrap_err().errno(), libc::EBUSY);
        uses.release();
        uses.check().unwrap();
        uses.retire("").unwrap();
        assert_eq!(uses.retire("").unwrap_err().errno(), libc::EINVAL);
        assert_eq!(uses.acquire().unwrap_err().errno(), libc::EINVAL);
        uses.check().unwrap_err();
    }
}
