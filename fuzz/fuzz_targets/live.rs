//! Any bytes into a live requester and responder: no panic, no access outside a region.
//!
//! The twin on stable is `rc::tests::any_bytes` of uroce-protocol.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| uroce_protocol::testing::feed_any_bytes(data));
