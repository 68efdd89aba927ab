//! Unreliable datagrams: one packet a message, to any queue pair whose Q_Key the sender knows, or to all that have
//! joined a multicast group.
//!
//! [`Requester`] makes one packet of each work request; it is done when it has left. [`Responder`] delivers what brings the right
//! Q_Key and fits the next receive, behind the 40 bytes that hold the packet's network header, and drops everything
//! else without a word (IBTA 9.8.3).

mod requester;
mod responder;
#[cfg(test)]
mod tests;

pub use crate::unreliable::{RequesterCounters, ResponderCounters};
pub use requester::{Requester, RequesterAttributes};
pub use responder::{Responder, ResponderAttributes};

use crate::wire::Qpn;

/// The destination of a datagram for everybody in a multicast group.
pub const MULTICAST: Qpn = Qpn::new(0xff_ffff);
