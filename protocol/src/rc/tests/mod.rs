//! The two halves against each other over a wire that loses, repeats and delays on purpose.
//!
//! One file per behaviour.

mod any_bytes;
mod atomic_writes_and_flushes;
mod credits;
mod errors;
mod exactly_once;
mod local_operations;
mod lost_packets;
mod ordering;
mod reads_and_atomics;
mod rnr;
mod timeouts;
mod transfers;
mod window;
mod xrc;
