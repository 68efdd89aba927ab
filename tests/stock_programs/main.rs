//! Programs that somebody else compiled, as the distribution ships them: they find the device and work, each side in
//! a process of its own. docs/compatibility.md is made of what these tests see, and held to it.
//!
//! A program that is not installed is named in one line and left out; `scripts/test` installs what it may.
#![cfg(feature = "cli")]

mod compatibility;
mod ibverbs_utils;
mod pair;
mod perftest;
mod pyverbs;
mod qperf;
#[path = "../support/mod.rs"]
mod support;
mod ucx;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Programs that poll starve each other on few processors: one pair at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
