//! How long the background thread goes on looking for packets before it sleeps.
//!
//! Putting a thread to sleep and waking it takes longer than many a peer takes to answer, and costs the peer a system
//! call. But a thread that looks takes a processor, perhaps the very one that the answer is waiting for. Nobody can
//! tell the thread which it is, so it tries: where packets have lately come soon, it looks about as long; and where
//! looking was in vain twice in a row, it is not tried again for a while, and each time for longer. (Hypervisors
//! poll like this before they halt a virtual processor, and know whether another one waits.)

use uroce_protocol::{Instant, time::Duration};

/// What comes less soon is not waited for.
const LONGEST: Duration = Duration::from_micros(100);
/// So many vain looks in a row are enough.
const MISSES: u32 = 2;
/// How long it is not tried again: the first time, and at most.
const REST: Duration = Duration::from_millis(10);
const LONGEST_REST: Duration = Duration::from_secs(10);
/// So many finds in a row, and everything before is forgotten.
const FINDS: u32 = 64;

/// What the thread knows of how soon packets come.
#[derive(Debug)]
pub(crate) struct Linger {
    /// How long the last wait for packets was.
    gap: Duration,
    misses: u32,
    finds: u32,
    resting_until: Instant,
    rest: Duration,
}

impl Linger {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { gap: Duration::MAX, misses: 0, finds: 0, resting_until: now, rest: REST }
    }

    /// How long to look now, if at all.
    pub(crate) fn length(&self, now: Instant) -> Option<Duration> {
        (now >= self.resting_until && self.gap <= LONGEST).then(|| (2 * self.gap).min(LONGEST))
    }

    /// Packets came after `gap`, while the thread looked.
    pub(crate) const fn found(&mut self, gap: Duration) {
        self.gap = gap;
        self.misses = 0;
        self.finds += 1;
        if self.finds >= FINDS {
            self.finds = 0;
            self.rest = REST;
        }
    }

    /// Until `now` it has looked in vain.
    pub(crate) fn missed(&mut self, now: Instant) {
        self.finds = 0;
        self.misses += 1;
        if self.misses >= MISSES {
            self.misses = 0;
            self.resting_until = now + self.rest;
            self.rest = (2 * self.rest).min(LONGEST_REST);
        }
    }

    /// It has slept for `gap` before packets came.
    pub(crate) const fn slept(&mut self, gap: Duration) {
        self.gap = gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::ZERO;
    const SOON: Duration = Duration::from_micros(20);

    #[test]
    fn it_looks_where_packets_come_soon() {
        let mut linger = Linger::new(START);
        assert_eq!(linger.length(START), None);
        linger.slept(SOON);
        assert_eq!(linger.length(START), Some(2 * SOON));
        linger.found(2 * LONGEST / 3);
        assert_eq!(linger.length(START), Some(LONGEST));
        linger.slept(2 * LONGEST);
        assert_eq!(linger.length(START), None);
    }

    #[test]
    fn what_is_in_vain_is_tried_ever_less_often() {
        let mut linger = Linger::new(START);
        let (mut now, mut looks) = (START, 0);
        while now < START + Duration::from_secs(100) {
            linger.slept(SOON);
            if let Some(length) = linger.length(now) {
                looks += 1;
                now = now + length;
                linger.missed(now);
            }
            now = now + SOON;
        }
        assert!((20..60).contains(&looks), "{looks} looks");
    }

    #[test]
    fn a_miss_now_and_then_does_no_harm() {
        let mut linger = Linger::new(START);
        linger.slept(SOON);
        for _ in 0..100 {
            linger.missed(START);
            linger.found(SOON);
            assert_eq!(linger.length(START), Some(2 * SOON));
        }
    }
}
