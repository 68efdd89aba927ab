//! The InfiniBand transport as RoCE v2 carries it, sans-IO.
//!
//! This crate holds the wire formats ([`wire`]) and the reliable-connection state machines ([`rc`]) and nothing
//! else: no socket, no thread, no clock, no `unsafe`. Time comes in as an argument ([`Instant`]), packets come in
//! as bytes, and what must happen next comes out as values. The same inputs always give the same packets, so
//! every bug is a seed.
//!
//! The state machines never touch payload bytes on their way out. They emit *descriptors* (a header, and which
//! ranges of which scatter-gather entries follow it: [`rc::Transmit`]) and ask a [`Memory`] for protection checks
//! and for placing what arrived.
//!
//! # Driving a queue pair
//!
//! A connected queue pair is one [`rc::Requester`] and one [`rc::Responder`]; they share nothing but attributes.
//! Whoever drives them hands each arriving packet to the half it is meant for
//! ([`wire::Opcode::is_response`]), then calls `poll_transmit` on both until neither has anything to send,
//! `poll_completion` until there are none, and comes back at `poll_timeout`.
#![forbid(unsafe_code)]

pub mod memory;
pub mod psn;
pub mod rc;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;
pub mod wire;

pub use memory::{AccessFlags, AtomicOperation, LocalFault, Memory, RemoteFault, Sge};
pub use psn::Psn;
pub use time::Instant;
