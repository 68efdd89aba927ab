//! Wire formats: every header and opcode of RoCE v2, as views that check once and values that emit.
//!
//! A packet is *viewed*, not copied. [`Packet::new_checked`] validates every length (headers by opcode, pad, ICRC)
//! before any payload arithmetic; past it no accessor can panic. Parsing is liberal: reserved bits, MigReq either
//! way, any transport version are accepted and reported; it is the receiver's business to drop. Emitting is strict.
//!
//! [`Packet`] and [`Repr`] are the transport's own: BTH to ICRC. [`icrc`] guards them, and [`Frame`] finds them in
//! what was captured.

mod bth;
mod extended;
mod frame;
pub mod icrc;
mod opcode;
mod packet;
mod types;

pub use bth::Bth;
pub use extended::{Aeth, AtomicEth, CreditCode, Deth, Extended, Feth, NakCode, Reth, Syndrome, XrcEth, rnr_timer};
pub use frame::{DatagramHeader, Encapsulation, Frame, FrameError, GRH_LEN, LinkLayer};
pub use opcode::{Opcode, Operation, Service};
pub use packet::{Packet, PacketError, Repr};
pub use types::{Msn, Mtu, PKey, ParseMtuError, QKey, Qpn, RKey, XrcSrqn};

/// The UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;

#[cfg(test)]
mod tests {
    use proptest::test_runner::Config;

    /// How the wire formats' properties are tried. Miri interprets, so it tries a few; and it has no files to keep
    /// failing seeds in.
    pub(super) fn config(cases: u32) -> Config {
        Config { cases: if cfg!(miri) { 4 } else { cases }, failure_persistence: None, ..Config::default() }
    }
}
