//! Nothing that arrives panics or reaches memory that it may not: the stable twin of the fuzz target.

use crate::testing::feed_any_bytes;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 400 }, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_into_a_live_queue_pair(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        feed_any_bytes(&data);
    }

    /// Aimed at the connection, with opcodes that exist.
    #[test]
    fn well_formed_packets_with_wild_contents(
        records in prop::collection::vec(
            (0..0x40_u8, any::<bool>(), 0..0x18_u8, prop::collection::vec(any::<u8>(), 270)),
            1..30,
        ),
    ) {
        let mut data = Vec::new();
        for (length, to_b, opcode, bytes) in records {
            let bytes = &bytes[..usize::from(length) * 4 + 16];
            data.push(0x80 | length | if to_b { 0x40 } else { 0 });
            data.extend([opcode, bytes[1] & 0x80, 0xff, 0xff]);
            data.extend(&bytes[4..]);
        }
        feed_any_bytes(&data);
    }
}
