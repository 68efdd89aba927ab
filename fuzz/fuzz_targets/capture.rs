//! Any bytes as a capture file. The golden captures are good seeds:
//! `cargo +nightly fuzz run capture fuzz/corpus/capture pcaps`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uroce::capture::{CaptureReader, Dissection};

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut capture) = CaptureReader::new(bytes) else { return };
    while let Ok(Some(frame)) = capture.next_frame() {
        for dissection in Dissection::segments(&frame).into_iter().flatten() {
            let _ = (dissection.verdict(), dissection.destination(), dissection.to_string());
        }
    }
});
