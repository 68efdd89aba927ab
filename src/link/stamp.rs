//! Giving a packet the ICRC that it needs under another IPv4 Identification.
//!
//! The ICRC covers the Identification, and segment i of a train is made for Identification i. Whoever takes a
//! packet out of its train has to change the ICRC with it. The CRC is linear, so the change depends on the two
//! numbers and the packet's length alone, and a packet whose ICRC was wrong stays exactly as wrong.

/// The bytes of the ICRC at a packet's end.
const ICRC_LEN: usize = 4;

/// The last four bytes of `packet` (BTH to ICRC) as they have to be when its Identification changes from `from`
/// to `to`. `None` when the packet is too short to have an ICRC.
pub(crate) fn icrc_under(packet: &[u8], from: u16, to: u16) -> Option<[u8; ICRC_LEN]> {
    let icrc = u32::from_le_bytes(*packet.last_chunk::<ICRC_LEN>()?);
    // Behind the Identification the ICRC covers 14 bytes of IP header, 8 of UDP header, and the packet but itself.
    let following = 14 + 8 + packet.len() - ICRC_LEN;
    let mut difference = 0_u32;
    for byte in (from ^ to).to_be_bytes().into_iter().chain(std::iter::repeat_n(0, following)) {
        difference ^= u32::from(byte);
        for _ in 0..8 {
            difference = (difference >> 1) ^ (0xedb8_8320 & (difference & 1).wrapping_neg());
        }
    }
    Some((icrc ^ difference).to_le_bytes())
}

/// Changes the ICRC of `packet` in place; see [`icrc_under`].
pub(crate) fn restamp(packet: &mut [u8], from: u16, to: u16) {
    if from == to {
        return;
    }
    if let Some(icrc) = icrc_under(packet, from, to) {
        let start = packet.len() - ICRC_LEN;
        packet[start..].copy_from_slice(&icrc);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published packet of a ConnectX-4 Lx: a CNP with Identification 0x718c, its ICRC last.
    const CNP: [u8; 32] = [
        0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0x82, 0xfd, 0x00, 0x2a,
    ];

    #[test]
    fn restamping_there_and_back_changes_nothing() {
        let mut packet = CNP;
        restamp(&mut packet, 0x718c, 0);
        assert_ne!(packet, CNP);
        restamp(&mut packet, 0, 5);
        restamp(&mut packet, 5, 0x718c);
        assert_eq!(packet, CNP);
    }

    #[test]
    fn bytes_without_an_icrc_stay_as_they_are() {
        let mut packet = [1, 2, 3];
        restamp(&mut packet, 0, 7);
        assert_eq!(packet, [1, 2, 3]);
    }
}
