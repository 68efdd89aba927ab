//! The invariant CRC: what guards a packet from sender to receiver, over everything that no router may change.
//!
//! It is Ethernet's CRC-32 over eight bytes of ones, the IP header, the UDP header, and the packet from BTH to pad;
//! fields that change on the way count as ones: TOS, TTL and header checksum of IPv4; traffic class, flow label and
//! hop limit of IPv6 and of the GRH; the UDP checksum; byte 4 of the BTH with its congestion marks. It ends the
//! packet as a little-endian word (IBTA 7.8.1 and annex A17).
//!
//! [`Flow`] is the fast path: one per pair of addresses and source port. It holds the CRC of the headers with
//! length and Identification zero and corrects it per packet, for a CRC is linear: the CRC of a XOR b is the CRC of
//! a, XOR the contribution of b, and the contribution of a field is a table lookup.
//!
//! The same linearity solves what a UDP socket hides: the ICRC covers the IPv4 Identification, which no control
//! message tells the receiver. The difference between the ICRC found and the one computed for a guess, run
//! backwards from the packet's end to the field, *is* the guess's error; a damaged packet gives garbage that does
//! not fit the field. [`IpIdPolicy`] says how much of the check that may cost.
//!
//! Captures, where the headers are seen, are checked by [`super::Frame::check_icrc`].

use super::{Packet, ROCE_PORT, extended::put};
use crc32fast::Hasher;
use std::net::{IpAddr, Ipv6Addr};
use thiserror::Error;

/// Bytes of an IPv4 header without options, what the fast path knows.
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
/// The ones that stand for a local route header.
const PREFIX_LEN: usize = 8;
const ICRC_LEN: usize = Packet::ICRC_LEN;
/// Where the BTH's congestion marks are.
const MARKS_AT: usize = 4;
/// UDP, as IP's protocol field names it.
const UDP_PROTOCOL: u8 = 17;

/// How many bytes lie between the start of the IPv4 Identification and the BTH.
const IP_ID_TO_BTH: usize = IPV4_LEN - 4 + UDP_LEN;

/// An ICRC in the making.
#[derive(Clone, Debug)]
pub struct Icrc(Hasher);

impl Icrc {
    /// Takes the next bytes of the packet. Pad bytes count, the ICRC itself does not.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The ICRC, which goes to the packet's end as a little-endian word.
    #[inline]
    pub fn finish(self) -> u32 {
        self.0.finalize()
    }

    /// An ICRC over headers as they were captured, the network header with whatever options it has.
    /// Congestion marks in `packet`, which begins at the BTH and ends before the ICRC, are masked.
    pub(super) fn over_headers(masked_network: &[u8], masked_udp: &[u8], packet: &[u8]) -> u32 {
        let mut hasher = Hasher::new();
        hasher.update(&[0xff; PREFIX_LEN]);
        hasher.update(masked_network);
        hasher.update(masked_udp);
        let mut icrc = Self(Hasher::new_with_initial(hasher.finalize() ^ marks_mask(packet)));
        icrc.update(packet);
        icrc.finish()
    }
}

/// What is constant in the headers of packets between two addresses from one UDP port, in the form that the ICRC
/// needs: IPv4 without options and with DF set, or IPv6 without extension headers; UDP port 4791.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// The CRC of the masked headers with lengths and Identification zero.
    base: u32,
    is_ipv4: bool,
}

impl Flow {
    /// The flow from `source` to `destination`. An IPv4 address beside an IPv6 one counts as IPv4-mapped.
    pub fn new(source: IpAddr, destination: IpAddr, source_port: u16) -> Self {
        let mut udp = [0; UDP_LEN];
        put(&mut udp, 0, source_port.to_be_bytes());
        put(&mut udp, 2, ROCE_PORT.to_be_bytes());
        put(&mut udp, 6, [0xff; 2]);

        let mut hasher = Hasher::new();
        hasher.update(&[0xff; PREFIX_LEN]);
        let is_ipv4 = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = [0; IPV4_LEN];
                put(&mut header, 0, [0x45, 0xff]);
                // Flags and fragment offset: DF alone.
                put(&mut header, 6, [0x40, 0, 0xff, UDP_PROTOCOL, 0xff, 0xff]);
                put(&mut header, 12, source.octets());
                put(&mut header, 16, destination.octets());
                hasher.update(&header);
                true
            }
            _ => {
                let mut header = [0; IPV6_LEN];
                put(&mut header, 0, [0x6f, 0xff, 0xff, 0xff, 0, 0, UDP_PROTOCOL, 0xff]);
                put(&mut header, 8, mapped(source).octets());
                put(&mut header, 24, mapped(destination).octets());
                hasher.update(&header);
                false
            }
        };
        hasher.update(&udp);
        Self { base: hasher.finalize(), is_ipv4 }
    }

    /// Starts the ICRC of a packet of `length` bytes (BTH to ICRC, at most 65,507) with `head`, its first bytes:
    /// the BTH at least, all of it where it lies in one piece. `ip_id` is the IPv4 Identification, without meaning
    /// on IPv6.
    #[inline]
    pub fn start(&self, ip_id: u16, length: usize, head: &[u8]) -> Icrc {
        let mut hasher = Hasher::new_with_initial(self.headers(ip_id, length) ^ marks_mask(head));
        hasher.update(head);
        Icrc(hasher)
    }

    /// Computes the ICRC of a whole packet and writes it to its last four bytes.
    ///
    /// # Panics
    /// When `packet` is shorter than four bytes.
    #[inline]
    pub fn stamp(&self, ip_id: u16, packet: &mut [u8]) {
        let (covered, icrc) = packet.split_at_mut(packet.len() - ICRC_LEN);
        put(icrc, 0, self.start(ip_id, covered.len() + ICRC_LEN, covered).finish().to_le_bytes());
    }

    /// Checks the ICRC of a packet whose IPv4 Identification is unknown but for a guess, usually the packet's index
    /// in its train. Returns the Identification that it was sent with; on IPv6, where there is none and every check
    /// is exact, `guess` itself.
    #[inline]
    pub fn check(&self, packet: &Packet<'_>, guess: u16, policy: IpIdPolicy) -> Result<u16, WrongIcrc> {
        let bytes = packet.as_bytes();
        let covered = &bytes[..bytes.len() - ICRC_LEN];
        let (found, computed) = (packet.icrc(), self.start(guess, bytes.len(), covered).finish());
        if found == computed {
            return Ok(guess);
        }
        let wrong = WrongIcrc { found, computed };
        if !self.is_ipv4 {
            return Err(wrong);
        }
        let ip_id = match policy {
            IpIdPolicy::Exact => return Err(wrong),
            IpIdPolicy::Small | IpIdPolicy::Any => {
                guess ^ identification_error(found ^ computed, bytes.len()).ok_or(wrong)?
            }
        };
        if policy == IpIdPolicy::Small && ip_id > IpIdPolicy::SMALL_MAX { Err(wrong) } else { Ok(ip_id) }
    }

    /// The CRC of everything in front of the BTH.
    #[inline]
    fn headers(&self, ip_id: u16, length: usize) -> u32 {
        let udp_len = (UDP_LEN + length) as u16;
        if self.is_ipv4 {
            let ip_len = (IPV4_LEN + UDP_LEN + length) as u16;
            self.base ^ IPV4_TOTAL_LENGTH.of(ip_len) ^ IPV4_IDENTIFICATION.of(ip_id) ^ UDP_LENGTH.of(udp_len)
        } else {
            self.base ^ IPV6_PAYLOAD_LENGTH.of(udp_len) ^ UDP_LENGTH.of(udp_len)
        }
    }
}

/// How the IPv4 Identification, which the ICRC covers and a UDP socket does not show, may be made up for: each
/// value that would be accepted halves what the check is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpIdPolicy {
    /// The guess or nothing: all 32 bits of check. For links that see the IP header, and for IPv6.
    Exact,
    /// Also 0 … 127, which segments of one send have: 25 bits of check.
    Small,
    /// Whatever solves the equation, for senders that count their packets (rxe): 16 bits of check.
    Any,
}

impl IpIdPolicy {
    /// The largest Identification that [`Self::Small`] accepts: a kernel sends at most 128 segments at once.
    pub const SMALL_MAX: u16 = 127;
}

/// An ICRC that no accepted Identification explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the ICRC is {found:#010x} and should be {computed:#010x}")]
pub struct WrongIcrc {
    /// What the packet carries.
    pub found: u32,
    /// What it should carry, with the Identification that was seen or guessed.
    pub computed: u32,
}

/// Corrects the ICRC of a packet that leaves with another IPv4 Identification than it was stamped for. A packet
/// whose ICRC was wrong stays exactly as wrong. Does nothing to what is shorter than an ICRC.
pub fn restamp(packet: &mut [u8], from: u16, to: u16) {
    let length = packet.len();
    if let Some(icrc) = packet.last_chunk_mut::<ICRC_LEN>() {
        let error = u32::from((from ^ to).swap_bytes());
        let difference = multiply(error, FORWARD.power(IP_ID_TO_BTH + length - ICRC_LEN));
        *icrc = (u32::from_le_bytes(*icrc) ^ difference).to_le_bytes();
    }
}

/// What must be wrong with an Identification to change the ICRC of a packet of `length` bytes by `difference`;
/// `None` when nothing in that field does.
fn identification_error(difference: u32, length: usize) -> Option<u16> {
    let field = multiply(difference, BACKWARD.power(IP_ID_TO_BTH + length - ICRC_LEN));
    // The CRC register takes bytes in at its low end: the field as a little-endian number.
    u16::try_from(field).ok().map(u16::swap_bytes)
}

pub(super) fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// What to add to the CRC in front of a packet so that its congestion marks count as ones without being changed:
/// their contribution, taken back to the packet's start.
#[inline]
fn marks_mask(head: &[u8]) -> u32 {
    head.get(MARKS_AT).map_or(0, |&marks| MARKS[usize::from(marks)])
}

// Arithmetic in GF(2)[x] modulo the CRC's polynomial. As in the CRC register the bits are reflected: the top bit is
// the coefficient of x^0. Running the register over k zero bytes multiplies it by x^(8k).

const POLYNOMIAL: u32 = 0xedb8_8320;
const ONE: u32 = 1 << 31;

/// `factor` times x.
const fn times_x(factor: u32) -> u32 {
    (factor >> 1) ^ (POLYNOMIAL & (factor & 1).wrapping_neg())
}

const fn multiply(left: u32, mut right: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= right & (left >> bit & 1).wrapping_neg();
        right = times_x(right);
    }
    product
}

/// x^8.
const BYTE: u32 = ONE >> 8;
/// x^-8: one over x is (P + 1) / x, reflected, since x divides P - 1.
const BYTE_INVERSE: u32 = {
    let x_inverse = (POLYNOMIAL << 1) | 1;
    let square = multiply(x_inverse, x_inverse);
    let fourth = multiply(square, square);
    multiply(fourth, fourth)
};

/// All powers of one factor up to 65,535, as the product of two lookups.
struct Powers {
    low: [u32; 256],
    high: [u32; 256],
}

impl Powers {
    const fn new(factor: u32) -> Self {
        let low = Self::row(factor);
        Self { low, high: Self::row(multiply(low[255], factor)) }
    }

    const fn row(factor: u32) -> [u32; 256] {
        let mut row = [ONE; 256];
        let mut exponent = 1;
        while exponent < row.len() {
            row[exponent] = multiply(row[exponent - 1], factor);
            exponent += 1;
        }
        row
    }

    fn power(&self, exponent: usize) -> u32 {
        multiply(self.low[exponent & 0xff], self.high[exponent >> 8 & 0xff])
    }
}

static FORWARD: Powers = Powers::new(BYTE);
static BACKWARD: Powers = Powers::new(BYTE_INVERSE);

/// What a big-endian 16-bit field adds to the CRC of the headers: one lookup a byte.
struct Field {
    high: [u32; 256],
    low: [u32; 256],
}

impl Field {
    /// A field with `following` bytes from its start to the end of the headers.
    const fn new(following: usize) -> Self {
        Self { high: contributions(power(BYTE, following)), low: contributions(power(BYTE, following - 1)) }
    }

    #[inline]
    fn of(&self, value: u16) -> u32 {
        let [high, low] = value.to_be_bytes();
        self.high[usize::from(high)] ^ self.low[usize::from(low)]
    }
}

const fn contributions(shift: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut value = 0;
    while value < table.len() {
        table[value] = multiply(value as u32, shift);
        value += 1;
    }
    table
}

const fn power(factor: u32, exponent: usize) -> u32 {
    let mut product = ONE;
    let mut left = exponent;
    while left > 0 {
        product = multiply(product, factor);
        left -= 1;
    }
    product
}

static IPV4_TOTAL_LENGTH: Field = Field::new(IPV4_LEN - 2 + UDP_LEN);
static IPV4_IDENTIFICATION: Field = Field::new(IP_ID_TO_BTH);
static IPV6_PAYLOAD_LENGTH: Field = Field::new(IPV6_LEN - 4 + UDP_LEN);
static UDP_LENGTH: Field = Field::new(4);

static MARKS: [u32; 256] = {
    let by_difference = contributions(power(BYTE_INVERSE, MARKS_AT));
    let mut table = [0; 256];
    let mut marks = 0;
    while marks < table.len() {
        table[marks] = by_difference[marks ^ 0xff];
        marks += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tests::config;
    use proptest::prelude::*;

    /// The ICRC by the letter: bytes with ones in their places, bit by bit.
    fn by_the_letter(source: IpAddr, destination: IpAddr, source_port: u16, ip_id: u16, packet: &[u8]) -> u32 {
        let mut bytes = vec![0xff; 8];
        let udp_len = (packet.len() + 8) as u16;
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes.extend([0x45, 0xff]);
                bytes.extend((udp_len + 20).to_be_bytes());
                bytes.extend(ip_id.to_be_bytes());
                bytes.extend([0x40, 0x00, 0xff, 17, 0xff, 0xff]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                bytes.extend([0x6f, 0xff, 0xff, 0xff]);
                bytes.extend(udp_len.to_be_bytes());
                bytes.extend([17, 0xff]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
            }
            _ => panic!("mixed families"),
        }
        bytes.extend(source_port.to_be_bytes());
        bytes.extend(4791_u16.to_be_bytes());
        bytes.extend(udp_len.to_be_bytes());
        bytes.extend([0xff, 0xff]);
        let start = bytes.len();
        bytes.extend(&packet[..packet.len() - 4]);
        bytes[start + 4] = 0xff;

        let mut crc = u32::MAX;
        for byte in bytes {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
            }
        }
        !crc
    }

    fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
        prop_oneof![
            any::<(u32, u32)>().prop_map(|(a, b)| (IpAddr::from(a.to_be_bytes()), IpAddr::from(b.to_be_bytes()))),
            any::<(u128, u128)>().prop_map(|(a, b)| (IpAddr::from(a.to_be_bytes()), IpAddr::from(b.to_be_bytes()))),
        ]
    }

    /// A SEND Only with everything random but what its length depends on.
    fn packet(max_words: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<[u8; 4]>(), 4..4 + max_words).prop_map(|words| {
            let mut bytes = words.concat();
            bytes[0] = 0x04;
            bytes[1] &= 0xcf;
            bytes
        })
    }

    fn ipv4_flow() -> Flow {
        Flow::new([127, 0, 0, 1].into(), [127, 0, 0, 2].into(), 0xc000)
    }

    #[test]
    fn the_inverse_of_a_byte_undoes_it() {
        assert_eq!(multiply(BYTE, BYTE_INVERSE), ONE);
        assert_eq!(multiply(FORWARD.power(65_535), BACKWARD.power(65_535)), ONE);
    }

    #[test]
    fn without_a_bth_there_is_no_mark_to_mask() {
        assert_eq!(marks_mask(&[0; 4]), 0);
        assert_eq!(marks_mask(&[0, 0, 0, 0, 0xff]), 0);
    }

    #[test]
    fn too_short_for_an_icrc_is_left_alone() {
        let mut bytes = [1, 2, 3];
        restamp(&mut bytes, 0, 1);
        assert_eq!(bytes, [1, 2, 3]);
    }

    #[test]
    fn policies_differ_in_what_they_accept() {
        let flow = ipv4_flow();
        let mut bytes = [0; 64];
        bytes[0] = 0x04;
        for (ip_id, exact, small) in
            [(3, true, true), (0, false, true), (127, false, true), (128, false, false), (0xbeef, false, false)]
        {
            flow.stamp(ip_id, &mut bytes);
            let packet = Packet::new_checked(&bytes).unwrap();
            assert_eq!(flow.check(&packet, 3, IpIdPolicy::Exact).is_ok(), exact, "{ip_id}");
            assert_eq!(flow.check(&packet, 3, IpIdPolicy::Small).is_ok(), small, "{ip_id}");
            assert_eq!(flow.check(&packet, 3, IpIdPolicy::Any), Ok(ip_id));
        }
    }

    #[test]
    fn ipv6_has_no_identification_to_solve_for() {
        let flow = Flow::new(Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), 0xc000);
        let mut bytes = [0; 64];
        bytes[0] = 0x04;
        flow.stamp(0, &mut bytes);
        restamp(&mut bytes, 0, 1);
        assert!(flow.check(&Packet::new_checked(&bytes).unwrap(), 0, IpIdPolicy::Any).is_err());
    }

    proptest! {
        #![proptest_config(config(512))]

        #[test]
        fn the_fast_path_follows_the_letter(
            (source, destination) in addresses(),
            source_port: u16,
            ip_id: u16,
            packet in packet(300),
            split in any::<prop::sample::Index>(),
        ) {
            let flow = Flow::new(source, destination, source_port);
            let expected = by_the_letter(source, destination, source_port, ip_id, &packet);
            let covered = &packet[..packet.len() - 4];
            let (head, tail) = covered.split_at(12 + split.index(covered.len() - 11));
            let mut icrc = flow.start(ip_id, packet.len(), head);
            icrc.update(tail);
            prop_assert_eq!(icrc.finish(), expected);
        }

        #[test]
        fn any_identification_is_recovered(ip_id: u16, guess: u16, mut bytes in packet(1100)) {
            let flow = ipv4_flow();
            flow.stamp(ip_id, &mut bytes);
            let packet = Packet::new_checked(&bytes).unwrap();
            prop_assert_eq!(flow.check(&packet, guess, IpIdPolicy::Any), Ok(ip_id));
        }

        #[test]
        fn restamping_equals_stamping_anew(from: u16, to: u16, mut bytes in packet(1100)) {
            let mut again = bytes.clone();
            ipv4_flow().stamp(from, &mut bytes);
            restamp(&mut bytes, from, to);
            ipv4_flow().stamp(to, &mut again);
            prop_assert_eq!(bytes, again);
        }

        #[test]
        fn one_damaged_byte_is_found(
            ip_id in 0..=IpIdPolicy::SMALL_MAX,
            mut bytes in packet(1100),
            at: prop::sample::Index,
            damage in 1..=u8::MAX,
        ) {
            let flow = ipv4_flow();
            flow.stamp(ip_id, &mut bytes);
            // Past the bytes that the lengths depend on and the masked one.
            let at = 5 + at.index(bytes.len() - 5);
            bytes[at] ^= damage;
            let packet = Packet::new_checked(&bytes).unwrap();
            prop_assert!(flow.check(&packet, ip_id, IpIdPolicy::Exact).is_err());
            prop_assert!(flow.check(&packet, 0, IpIdPolicy::Small).is_err());
        }
    }
}
