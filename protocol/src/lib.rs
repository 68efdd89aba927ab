//! The InfiniBand transport as RoCE v2 carries it, sans-IO.
//!
//! This crate holds the wire formats ([`wire`]), the state machines of each service ([`rc`], [`uc`], [`ud`]) and
//! congestion control ([`congestion`]), and nothing else: no socket, no thread, no clock, no `unsafe`. Time comes in as
//! an argument ([`Instant`]), packets come in as bytes, and what must happen next comes out as values. The same inputs
//! always give the same packets, so every bug is a seed.
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
//! `poll_completion` until there are none, and comes back at `poll_timeout`. The unreliable services have simpler halves:
//! nothing comes back to a requester and nothing leaves a responder, but the driver says when packets have left
//! (`transmitted`).
#![forbid(unsafe_code)]

pub mod congestion;
pub mod memory;
pub mod psn;
pub mod rc;
mod receive_queue;
mod send_queue;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;
pub mod uc;
pub mod ud;
mod unreliable;
pub mod wire;
pub mod work;

pub use memory::{AccessFlags, AtomicOperation, LocalFault, Memory, RemoteFault, Sge, WindowBinding};
pub use psn::Psn;
pub use receive_queue::ReceiveQueue;
pub use time::Instant;
