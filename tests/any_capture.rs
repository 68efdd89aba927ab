//! Captures with anything wrong with them: the twin, on stable, of the fuzz target `capture`.

use proptest::{prelude::*, sample::Index};
use std::{fs, path::Path};
use uroce::capture::{CaptureReader, Dissection};

fn golden(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("pcaps").join(name)).unwrap()
}

/// Reads to the end or to the first error, whichever comes first; returns how many frames there were.
fn read(bytes: &[u8]) -> usize {
    let Ok(mut capture) = CaptureReader::new(bytes) else { return 0 };
    let mut frames = 0;
    while let Ok(Some(frame)) = capture.next_frame() {
        frames += 1;
        for dissection in Dissection::segments(&frame).into_iter().flatten() {
            let _ = (dissection.verdict(), dissection.destination(), dissection.to_string());
        }
    }
    frames
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_bytes_after_a_magic_number_are_read_without_panic(
        magic in prop::sample::select(vec![[0xd4, 0xc3, 0xb2, 0xa1], [0xa1, 0xb2, 0x3c, 0x4d], [0x0a, 0x0d, 0x0d, 0x0a]]),
        bytes in prop::collection::vec(any::<u8>(), 0..512),
    ) {
        read(&[&magic[..], &bytes].concat());
    }

    #[test]
    fn a_damaged_and_cut_capture_is_read_without_panic(
        name in prop::sample::select(vec!["rping_cm_ipv6.pcap", "probe_cas.pcap", "mckey_ud.pcap"]),
        damage in prop::collection::vec((any::<Index>(), any::<u8>()), 0..8),
        length: Index,
    ) {
        let mut bytes = golden(name);
        let whole = read(&bytes);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(length.index(bytes.len() + 1));
        // Damage to a length may split frames, but each takes 16 bytes at least.
        prop_assert!(read(&bytes) <= whole.max(bytes.len() / 16));
    }
}
