//! The window over unacknowledged bytes that keeps a sender inside what the path holds.
//!
//! UDP in user space has no back pressure: a receive buffer that overflows drops silently. So a requester starts
//! with what a default host surely holds, opens while ACKs come back clean, and backs off on loss.

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
