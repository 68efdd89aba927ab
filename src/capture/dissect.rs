//! What a captured frame holds.

use super::CapturedFrame;
use std::fmt;
use uroce_protocol::wire::{Frame, FrameError, Packet, PacketError, Qpn, icrc::WrongIcrc};

/// Both bits of ECN: congestion was experienced.
const ECN_CE: u8 = 0b11;

/// A RoCE packet as it was captured, right or wrong.
#[derive(Clone, Copy, Debug)]
pub struct Dissection<'a> {
    /// The headers around the packet.
    pub frame: Frame<'a>,
    /// The packet, unless its lengths and opcode contradict each other.
    pub packet: Result<Packet<'a>, PacketError>,
    /// What the ICRC says about both.
    pub icrc: Result<(), WrongIcrc>,
}

/// The worst that can be said about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It decodes and its ICRC is right.
    Right,
    /// It is not what its sender sent.
    WrongIcrc(WrongIcrc),
    /// It is what its sender sent, and makes no sense.
    Malformed(PacketError),
}

impl<'a> Dissection<'a> {
    /// Takes a frame for a single packet and checks it. [`FrameError::NotRoce`] where there is none.
    pub fn new(frame: &CapturedFrame<'a>) -> Result<Self, FrameError> {
        Frame::parse(frame.link_layer, frame.bytes).map(Self::of)
    }

    /// Finds all packets in a frame and checks each: more than one where the capture was taken above segmentation
    /// offload, as on a loopback interface. [`FrameError::NotRoce`] where there is none.
    pub fn segments(frame: &CapturedFrame<'a>) -> Result<impl Iterator<Item = Self>, FrameError> {
        Frame::parse(frame.link_layer, frame.bytes).map(|frame| frame.segments().map(Self::of))
    }

    fn of(frame: Frame<'a>) -> Self {
        Self { frame, packet: Packet::new_checked(frame.packet()), icrc: frame.check_icrc() }
    }

    /// What is to be said about the packet.
    pub fn verdict(&self) -> Verdict {
        match (self.icrc, self.packet) {
            (Err(wrong), _) => Verdict::WrongIcrc(wrong),
            (Ok(()), Err(error)) => Verdict::Malformed(error),
            (Ok(()), Ok(_)) => Verdict::Right,
        }
    }

    /// The queue pair that it is for, even if the packet does not decode.
    pub fn destination(&self) -> Qpn {
        match self.frame.packet() {
            [_, _, _, _, _, high, middle, low, ..] => Qpn::new(u32::from_be_bytes([0, *high, *middle, *low])),
            _ => Qpn::default(),
        }
    }
}

impl fmt::Display for Dissection<'_> {
    /// One line: who to whom, what, and what is wrong with it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  ", self.frame)?;
        match self.packet {
            Ok(packet) => write!(f, "{packet}")?,
            Err(error) => write!(f, "? QP={} [malformed: {error}]", self.destination())?,
        }
        if self.frame.traffic_class & ECN_CE == ECN_CE {
            f.write_str(" CE")?;
        }
        if let Err(wrong) = self.icrc {
            write!(f, " [{wrong}]")?;
        }
        Ok(())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Right => f.write_str("right"),
            Self::WrongIcrc(wrong) => write!(f, "{wrong}"),
            Self::Malformed(error) => write!(f, "malformed: {error}"),
        }
    }
}
