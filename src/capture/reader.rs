//! Frames out of pcap and pcapng files, one at a time.

use pcap_file::{
    DataLink, Endianness, PcapError, TsResolution,
    pcap::PcapReader,
    pcapng::{
        PcapNgReader,
        blocks::{
            ENHANCED_PACKET_BLOCK, SIMPLE_PACKET_BLOCK,
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
        },
    },
};
use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::Path,
    time::Duration,
};
use thiserror::Error;
use uroce_protocol::wire::LinkLayer;

/// The type of the block that every pcapng file begins with; the same bytes in either byte order.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Why a capture cannot be read, or not any further.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The system refuses.
    #[error(transparent)]
    Io(io::Error),
    /// The bytes are not those of a pcap or pcapng file.
    #[error("neither a pcap nor a pcapng file")]
    NotACapture,
    /// The file ends inside of a frame.
    #[error("the file is cut short after frame {frames}")]
    Truncated {
        /// How many whole frames there were.
        frames: u64,
    },
    /// The file is damaged.
    #[error("the file is damaged after frame {frames}: {reason}")]
    Damaged {
        /// How many good frames there were.
        frames: u64,
        /// What is wrong with what follows.
        reason: String,
    },
    /// Frames of a link layer that is not known here.
    #[error("frames of link type {0} cannot be read, only Ethernet, raw IP and Linux cooked captures")]
    LinkType(u32),
}

/// One frame of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CapturedFrame<'a> {
    /// Its number in the file, from 1 on, as Wireshark counts.
    pub number: u64,
    /// When it was captured, usually since 1970.
    pub timestamp: Duration,
    /// What its bytes begin with.
    pub link_layer: LinkLayer,
    /// The bytes, as far as they were captured.
    pub bytes: &'a [u8],
}

/// Streams the frames of a pcap or pcapng file.
pub struct CaptureReader<R: Read> {
    format: Format<R>,
    frames: u64,
    /// The frame that was read last.
    bytes: Vec<u8>,
}

type Stream<R> = io::Chain<io::Cursor<Vec<u8>>, R>;

enum Format<R: Read> {
    Pcap(PcapReader<Stream<R>>),
    PcapNg(PcapNgReader<Stream<R>>),
}

/// What is known of a frame before its bytes.
struct Meta {
    timestamp: Duration,
    link_type: DataLink,
}

impl CaptureReader<File> {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        Self::new(File::open(path).map_err(CaptureError::Io)?)
    }
}

impl<R: Read> CaptureReader<R> {
    /// Reads a capture from wherever it comes. `source` is read in large pieces and needs no buffer of its own.
    pub fn new(mut source: R) -> Result<Self, CaptureError> {
        let mut magic = Vec::with_capacity(PCAPNG_MAGIC.len());
        source.by_ref().take(PCAPNG_MAGIC.len() as u64).read_to_end(&mut magic).map_err(CaptureError::Io)?;
        let is_pcapng = magic == PCAPNG_MAGIC;
        let stream = io::Cursor::new(magic).chain(source);
        let format = if is_pcapng {
            PcapNgReader::new(stream).map(Format::PcapNg)
        } else {
            PcapReader::new(stream).map(Format::Pcap)
        };
        let format = format.map_err(|error| match error {
            PcapError::IoError(error) if error.kind() != io::ErrorKind::UnexpectedEof => CaptureError::Io(error),
            _ => CaptureError::NotACapture,
        })?;
        Ok(Self { format, frames: 0, bytes: Vec::new() })
    }

    /// The next frame, `None` at the end of the file. After an error there is nothing more to read.
    pub fn next_frame(&mut self) -> Result<Option<CapturedFrame<'_>>, CaptureError> {
        let frames = self.frames;
        let meta = match &mut self.format {
            Format::Pcap(reader) => next_of_pcap(reader, &mut self.bytes),
            Format::PcapNg(reader) => next_of_pcapng(reader, &mut self.bytes),
        };
        let meta = meta.map_err(|error| match error {
            PcapError::IoError(error) if error.kind() != io::ErrorKind::UnexpectedEof => CaptureError::Io(error),
            PcapError::IoError(_) | PcapError::IncompleteBuffer => CaptureError::Truncated { frames },
            error => CaptureError::Damaged { frames, reason: error.to_string() },
        })?;
        let Some(Meta { timestamp, link_type }) = meta else { return Ok(None) };
        let link_layer = link_layer(link_type)?;
        self.frames += 1;
        Ok(Some(CapturedFrame { number: self.frames, timestamp, link_layer, bytes: &self.bytes }))
    }
}

impl<R: Read> fmt::Debug for CaptureReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureReader").field("frames", &self.frames).finish_non_exhaustive()
    }
}

fn link_layer(link_type: DataLink) -> Result<LinkLayer, CaptureError> {
    match link_type {
        DataLink::ETHERNET => Ok(LinkLayer::Ethernet),
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => Ok(LinkLayer::Ip),
        DataLink::LINUX_SLL => Ok(LinkLayer::LinuxSll),
        DataLink::LINUX_SLL2 => Ok(LinkLayer::LinuxSll2),
        other => Err(CaptureError::LinkType(other.into())),
    }
}

/// Raw packets are taken here and below, for the checked ones refuse what real files have: frames longer than the
/// snap length in pcap, timestamps of other than nanoseconds in pcapng.
fn next_of_pcap<R: Read>(reader: &mut PcapReader<R>, bytes: &mut Vec<u8>) -> Result<Option<Meta>, PcapError> {
    let header = reader.header();
    let Some(packet) = reader.next_raw_packet().transpose()? else { return Ok(None) };
    bytes.clear();
    bytes.extend_from_slice(&packet.data);
    let fraction = match header.ts_resolution {
        TsResolution::MicroSecond => Duration::from_micros(packet.ts_frac.into()),
        TsResolution::NanoSecond => Duration::from_nanos(packet.ts_frac.into()),
    };
    let timestamp = Duration::from_secs(packet.ts_sec.into()) + fraction;
    Ok(Some(Meta { timestamp, link_type: header.datalink }))
}

fn next_of_pcapng<R: Read>(reader: &mut PcapNgReader<R>, bytes: &mut Vec<u8>) -> Result<Option<Meta>, PcapError> {
    loop {
        let Some(block) = reader.next_raw_block().transpose()? else { return Ok(None) };
        bytes.clear();
        let is_enhanced = match block.type_ {
            ENHANCED_PACKET_BLOCK => true,
            SIMPLE_PACKET_BLOCK => false,
            _ => continue,
        };
        bytes.extend_from_slice(&block.body);
        let endianness = reader.section().endianness;
        let words = Words { bytes, endianness };
        let (interface_id, ticks, length, header_len) = if is_enhanced {
            let ticks = u64::from(words.get(1)?) << 32 | u64::from(words.get(2)?);
            (words.get(0)?, ticks, words.get(3)?, 20)
        } else {
            // Captured up to the snap length of the first interface, without a timestamp.
            let snap_length = reader.interfaces().first().map_or(0, |interface| interface.snaplen);
            let captured = if snap_length == 0 { u32::MAX } else { snap_length };
            (0, 0, words.get(0)?.min(captured), 4)
        };
        let interface = usize::try_from(interface_id)
            .ok()
            .and_then(|index| reader.interfaces().get(index))
            .ok_or(PcapError::InvalidInterfaceId(interface_id))?;
        let meta = Meta { timestamp: timestamp(ticks, interface), link_type: interface.linktype };

        bytes.drain(..header_len);
        if length as usize > bytes.len() {
            return Err(PcapError::InvalidField("a frame is longer than its block"));
        }
        bytes.truncate(length as usize);
        return Ok(Some(meta));
    }
}

/// The 32-bit fields that a block begins with.
struct Words<'a> {
    bytes: &'a [u8],
    endianness: Endianness,
}

impl Words<'_> {
    fn get(&self, index: usize) -> Result<u32, PcapError> {
        let word = self.bytes.chunks_exact(4).nth(index).and_then(|chunk| <[u8; 4]>::try_from(chunk).ok());
        let word = word.ok_or(PcapError::InvalidField("a block is shorter than its header"))?;
        Ok(match self.endianness {
            Endianness::Big => u32::from_be_bytes(word),
            Endianness::Little => u32::from_le_bytes(word),
        })
    }
}

/// A timestamp in the interface's unit, microseconds unless it says otherwise.
fn timestamp(ticks: u64, interface: &InterfaceDescriptionBlock<'_>) -> Duration {
    let resolution = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
        _ => None,
    });
    let resolution = resolution.unwrap_or(6);
    let exponent = u32::from(resolution & 0x7f);
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    // A unit finer than u128 can count leaves nothing of 64 bits of ticks.
    let nanos =
        base.checked_pow(exponent).map_or(0, |ticks_a_second| u128::from(ticks) * 1_000_000_000 / ticks_a_second);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter, RawPcapPacket};
    use pcap_file::pcapng::{
        PcapNgBlock, PcapNgWriter,
        blocks::{enhanced_packet::EnhancedPacketBlock, simple_packet::SimplePacketBlock},
    };
    use std::borrow::Cow;

    type Frames = Vec<(Duration, LinkLayer, Vec<u8>)>;

    fn read(file: &[u8]) -> (Frames, Option<CaptureError>) {
        let mut frames = Vec::new();
        let mut reader = match CaptureReader::new(file) {
            Ok(reader) => reader,
            Err(error) => return (frames, Some(error)),
        };
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => {
                    frames.push((frame.timestamp, frame.link_layer, frame.bytes.to_vec()));
                    assert_eq!(frame.number, frames.len() as u64);
                }
                Ok(None) => return (frames, None),
                Err(error) => return (frames, Some(error)),
            }
        }
    }

    fn pcap() -> Vec<u8> {
        let header =
            PcapHeader { datalink: DataLink::RAW, ts_resolution: TsResolution::NanoSecond, ..Default::default() };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        for number in 1..=3 {
            writer.write_packet(&PcapPacket::new(Duration::new(9, number), 2, &[number as u8; 2])).unwrap();
        }
        writer.into_writer()
    }

    fn pcapng(resolution: Option<u8>) -> Vec<u8> {
        let options = resolution.map(InterfaceDescriptionOption::IfTsResol).into_iter().collect();
        let interface = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        writer.write_block(&interface.into_block()).unwrap();
        let timestamp = Duration::from_nanos(3_000_000);
        let data = Cow::Borrowed(&[1, 2, 3, 4, 5][..]);
        let enhanced = EnhancedPacketBlock {
            interface_id: 0,
            timestamp,
            original_len: 9,
            data: data.clone(),
            options: Vec::new(),
        };
        writer.write_block(&enhanced.into_block()).unwrap();
        writer.write_block(&SimplePacketBlock { original_len: 5, data }.into_block()).unwrap();
        writer.into_inner()
    }

    #[test]
    fn pcap_frames_come_with_their_time() {
        let (frames, error) = read(&pcap());
        assert!(error.is_none());
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[2], (Duration::new(9, 3), LinkLayer::Ip, vec![3, 3]));
    }

    #[test]
    fn frames_longer_than_the_snap_length_are_read_as_far_as_they_go() {
        let mut writer = PcapWriter::new(Vec::new()).unwrap();
        let packet =
            RawPcapPacket { ts_sec: 1, ts_frac: 0, incl_len: 2, orig_len: 1 << 20, data: Cow::Borrowed(&[7, 7]) };
        writer.write_raw_packet(&packet).unwrap();
        let (frames, error) = read(&writer.into_writer());
        assert!(error.is_none());
        assert_eq!(frames, [(Duration::from_secs(1), LinkLayer::Ethernet, vec![7, 7])]);
    }

    #[test]
    fn pcapng_frames_lose_their_padding() {
        let (frames, error) = read(&pcapng(Some(9)));
        assert!(error.is_none());
        assert_eq!(frames[0], (Duration::from_millis(3), LinkLayer::Ethernet, vec![1, 2, 3, 4, 5]));
        assert_eq!(frames[1], (Duration::ZERO, LinkLayer::Ethernet, vec![1, 2, 3, 4, 5]));
    }

    #[test]
    fn pcapng_timestamps_follow_the_interface() {
        let time = |resolution| read(&pcapng(resolution)).0[0].0;
        assert_eq!(time(None), Duration::from_secs(3));
        assert_eq!(time(Some(6)), Duration::from_secs(3));
        assert_eq!(time(Some(0x80 | 20)), Duration::from_nanos(3_000_000 * 1_000_000_000 / (1 << 20)));
        assert_eq!(time(Some(0x7f)), Duration::ZERO);
    }

    #[test]
    fn a_cut_file_says_after_which_frame() {
        let whole = pcap();
        let (frames, error) = read(&whole[..whole.len() - 1]);
        assert_eq!(frames.len(), 2);
        assert!(matches!(error, Some(CaptureError::Truncated { frames: 2 })), "{error:?}");

        let whole = pcapng(None);
        let (frames, error) = read(&whole[..whole.len() - 1]);
        assert_eq!(frames.len(), 1);
        assert!(matches!(error, Some(CaptureError::Truncated { frames: 1 })), "{error:?}");
    }

    #[test]
    fn other_files_are_refused() {
        for bytes in [&b""[..], b"\x0a\x0d\x0d\x0a", b"GIF89a and so on, long enough for a header"] {
            let (_, error) = read(bytes);
            assert!(matches!(error, Some(CaptureError::NotACapture)), "{error:?}");
        }
    }

    #[test]
    fn unknown_link_types_are_named() {
        let header = PcapHeader { datalink: DataLink::USB_LINUX, ..Default::default() };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        writer.write_packet(&PcapPacket::new(Duration::ZERO, 1, &[0])).unwrap();
        let (_, error) = read(&writer.into_writer());
        assert!(matches!(error, Some(CaptureError::LinkType(189))), "{error:?}");
    }

    #[test]
    fn any_damage_ends_in_an_error_or_fewer_frames_but_never_in_a_panic() {
        for original in [pcap(), pcapng(Some(9))] {
            for at in 0..original.len() {
                for value in [0x00, 0x01, 0x7f, 0x80, 0xff] {
                    let mut damaged = original.clone();
                    damaged[at] = value;
                    let (frames, _) = read(&damaged);
                    assert!(frames.len() <= 3);
                }
            }
        }
    }
}
