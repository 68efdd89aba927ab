//! The two halves against each other over a wire that loses, repeats and delays on purpose.
//!
//! One file per behaviour.

mod any_bytes;
mod credits;
mod errors;
mod exactly_once;
mod lost_packets;
mod ordering;
mod reads_and_atomics;
mod rnr;
mod timeouts;
mod transfers;
mod window;
