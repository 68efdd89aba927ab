//! The unreliable connection: SENDs and WRITEs of any length to one peer, without an answer to any of them.
//!
//! [`Requester`] cuts work requests into packets; they are done when their packets have left. [`Responder`] delivers
//! the messages that arrive whole: one that loses a packet, finds no receive or asks for what it may not have is
//! dropped without a word, and the next First or Only begins anew (IBTA 9.8.2). What is delivered is delivered in
//! order and at most once.

mod requester;
mod responder;
#[cfg(test)]
mod tests;

pub use crate::unreliable::{RequesterCounters, ResponderCounters};
pub use requester::{Requester, RequesterAttributes};
pub use responder::{Responder, ResponderAttributes};
