//! The window over unacknowledged bytes that keeps a sender inside what the path holds.
//!
//! UDP in user space has no back pressure: a receive buffer that overflows drops silently. So a requester starts
//! with what a default host surely holds, opens while ACKs come back clean, and backs off on loss: slow start,
//! then additive increase and multiplicative decrease, as TCP does (RFC 5681). READ responses are charged to the
//! requester that asked for them, since nobody acknowledges them to the responder.

/// Bounds of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Bytes to begin with.
    pub initial: u32,
    /// Bytes at most.
    pub maximum: u32,
}

impl Default for WindowConfig {
    /// 128 KiB to begin with and 512 KiB at most: a default Linux receive buffer holds about 160 KB of the
    /// smallest full packets.
    fn default() -> Self {
        Self { initial: 128 << 10, maximum: 512 << 10 }
    }
}

/// What a packet costs beside its payload: its headers and what a kernel spends on keeping it. With it, a receive
/// buffer fills at about the same charge whatever the packets' size.
pub(crate) const PACKET_OVERHEAD: u64 = 256;

/// The window itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    size: u64,
    /// Below it the window opens by what is acknowledged, above it by a packet per round trip.
    threshold: u64,
    maximum: u64,
    packet: u64,
}

impl Window {
    /// A window for packets of `mtu` payload bytes. It never holds less than two packets.
    pub(super) fn new(config: WindowConfig, mtu: usize) -> Self {
        let packet = mtu as u64 + PACKET_OVERHEAD;
        let maximum = u64::from(config.maximum).max(2 * packet);
        Self { size: u64::from(config.initial).clamp(2 * packet, maximum), threshold: maximum, maximum, packet }
    }

    /// How many bytes may be unacknowledged.
    pub(super) const fn size(&self) -> u64 {
        self.size
    }

    /// `bytes` were acknowledged.
    pub(super) fn on_acknowledged(&mut self, bytes: u64) {
        let growth = if self.size < self.threshold { bytes } else { (self.packet * bytes / self.size).max(1) };
        self.size = (self.size + growth).min(self.maximum);
    }

    /// A gap was reported: something was lost, but packets still arrive.
    pub(super) fn on_gap(&mut self) {
        self.size = (self.size / 2).max(2 * self.packet);
        self.threshold = self.size;
    }

    /// Nothing was heard for a whole timeout.
    pub(super) fn on_timeout(&mut self) {
        self.threshold = (self.size / 2).max(2 * self.packet);
        self.size = 2 * self.packet;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window() -> Window {
        Window::new(WindowConfig { initial: 16 << 10, maximum: 64 << 10 }, 1024)
    }

    #[test]
    fn opens_to_its_maximum_on_clean_acknowledgements() {
        let mut window = window();
        for _ in 0..10 {
            window.on_acknowledged(window.size());
        }
        assert_eq!(window.size(), 64 << 10);
    }

    #[test]
    fn halves_on_a_gap_and_then_grows_by_a_packet_a_round_trip() {
        let mut window = window();
        window.on_gap();
        assert_eq!(window.size(), 8 << 10);
        window.on_acknowledged(8 << 10);
        assert_eq!(window.size(), (8 << 10) + 1024 + PACKET_OVERHEAD);
    }

    #[test]
    fn never_closes_below_two_packets() {
        let mut window = window();
        for _ in 0..20 {
            window.on_gap();
        }
        assert_eq!(window.size(), 2 * (1024 + PACKET_OVERHEAD));
        window.on_timeout();
        assert_eq!(window.size(), 2 * (1024 + PACKET_OVERHEAD));
    }

    #[test]
    fn starts_slowly_again_after_a_timeout_up_to_half_of_where_it_was() {
        let mut window = window();
        window.on_timeout();
        window.on_acknowledged(4 << 10);
        window.on_acknowledged(4 << 10);
        let half = 8 << 10;
        assert!(window.size() >= half, "slow start reaches half of the size before");
        let before = window.size();
        window.on_acknowledged(before);
        assert!(window.size() <= before + 1024 + PACKET_OVERHEAD, "and additive increase follows");
    }
}
