//! Congestion control: who notices that a queue fills somewhere, who is told, and who sends more slowly.
//!
//! Three roles, as DCQCN (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015) names
//! them:
//!
//! - the *congestion point* is a switch: it marks packets "congestion experienced" in their IP header (ECN). None of
//!   this crate's business;
//! - the *notification point* is the receiver of marked packets: [`NotificationPoint`] says when the sender is to be
//!   told, [`congestion_notification`] is the packet that tells it (a CNP);
//! - the *reaction point* is that sender: a [`CongestionControl`] turns what it hears into a rate, and a [`Pacer`]
//!   turns the rate into instants at which a burst may leave.
//!
//! [`CongestionControl`] is the seam for algorithms. [`Dcqcn`] reacts to CNPs, [`Timely`] to round-trip times; a
//! third one needs nothing but the trait. All of them are sans-IO like the rest of this crate: the same events at
//! the same instants give the same rates, bit for bit, and no event or instant makes them panic.
//!
//! ```
//! use uroce_protocol::{Instant, time::Duration};
//! use uroce_protocol::congestion::{Algorithm, CongestionEvent, DcqcnParameters, Rate};
//!
//! let mut flow = DcqcnParameters::PAPER.start(Rate::from_gbps(40));
//! flow.on_event(Instant::ZERO, CongestionEvent::Notified);
//! assert_eq!(flow.rate(), Rate::from_gbps(20), "the first notification halves it");
//! let later = flow.poll_timeout().expect("from now on the rate recovers");
//! assert_eq!(later, Instant::ZERO + Duration::from_micros(55));
//! flow.handle_timeout(later);
//! assert_eq!(flow.rate(), Rate::from_gbps(30), "half of the way back");
//! ```

mod dcqcn;
mod notification;
mod pacer;
mod parameters;
mod rate;
#[cfg(test)]
mod tests;
mod timely;

pub use dcqcn::Dcqcn;
pub use notification::{NotificationParameters, NotificationPoint, congestion_notification};
pub use pacer::Pacer;
pub use parameters::{DcqcnParameters, ParameterError};
pub use rate::Rate;
pub use timely::{Timely, TimelyParameters};

use crate::{Instant, time::Duration};
use core::fmt;

/// What a flow's congestion control is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CongestionEvent {
    /// Packets of the flow have left: so many bytes on the wire.
    Sent {
        /// From IP header to ICRC.
        bytes: u64,
    },
    /// The peer has sent a congestion notification packet.
    Notified,
    /// A packet of the flow has been answered.
    RoundTrip {
        /// From when it left to when the answer arrived.
        time: Duration,
    },
}

/// The rate of one flow (one queue pair, as on hardware), and what changes it.
///
/// Time never goes back from call to call. A caller may be late with [`Self::handle_timeout`]: what was due happens
/// in order, as of when it was due.
pub trait CongestionControl: fmt::Debug + Send {
    /// How fast the flow may send as of the last event or timeout.
    fn rate(&self) -> Rate;

    /// Takes note of something; first acts on every deadline that has passed.
    fn on_event(&mut self, now: Instant, event: CongestionEvent);

    /// When the rate next changes of its own accord, so that a caller who waits for the rate to allow something
    /// looks again then. `None`: not before the next event.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Acts on every deadline that has passed.
    fn handle_timeout(&mut self, now: Instant);
}

/// A way to control congestion, with its parameters: what starts the control of each flow.
pub trait Algorithm: fmt::Debug + Send + Sync {
    /// Its name, as users choose it.
    fn name(&self) -> &'static str;

    /// Whether it slows down when it is notified, so that switches may mark its packets instead of dropping them
    /// (RFC 3168: only then may a sender call them ECN-capable).
    fn reacts_to_marks(&self) -> bool;

    /// The control of a new flow on a port of `line_rate`. It begins at the line rate.
    fn start(&self, line_rate: Rate) -> Box<dyn CongestionControl>;
}
