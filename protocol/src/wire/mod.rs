//! Wire formats: every header and opcode of RoCE v2, as views that check once and values that emit.
//!
//! A packet is *viewed*, not copied. [`Packet::new_checked`] validates every length (headers by opcode, pad, ICRC)
//! before any payload arithmetic; past it no accessor can panic. Parsing is liberal: reserved bits, MigReq either
//! way, any transport version are accepted and reported; it is the receiver's business to drop. Emitting is strict.

mod bth;
mod extended;
mod frame;
pub mod icrc;
mod opcode;
mod packet;
mod types;

pub use bth::Bth;
pub use extended::{Aeth, AtomicEth, CreditCode, Deth, Extended, Feth, NakCode, Reth, Syndrome, XrcEth, rnr_timer};
pub use frame::{DatagramHeader, Encapsulation, Frame, FrameError, LinkLayer};
pub use opcode::{Opcode, Operation, Service};
pub use packet::{Packet, PacketError, Repr};
pub use types::{Msn, Mtu, PKey, QKey, Qpn, RKey, XrcSrqn};

/// The UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;
