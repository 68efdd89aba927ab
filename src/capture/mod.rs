//! Packet captures: read them, find the RoCE packets in them, check each ICRC.
//!
//! Needs no device: a file, and the wire formats of [`uroce_protocol`]. [`CaptureReader`] streams the frames of a
//! pcap or pcapng file, [`Dissection`] says what is in one.
//!
//! ```no_run
//! use uroce::capture::{CaptureReader, Dissection, Verdict};
//!
//! let mut capture = CaptureReader::open("trace.pcapng".as_ref())?;
//! while let Some(frame) = capture.next_frame()? {
//!     for dissection in Dissection::segments(&frame).into_iter().flatten() {
//!         println!("{}: {dissection}", frame.number);
//!         assert_eq!(dissection.verdict(), Verdict::Right);
//!     }
//! }
//! # Ok::<(), uroce::capture::CaptureError>(())
//! ```

mod dissect;
mod reader;

pub use dissect::{Dissection, Verdict};
pub use reader::{CaptureError, CaptureReader, CapturedFrame};
