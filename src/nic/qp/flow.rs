//! A queue pair's part in congestion control: how fast it may send, and when it tells its peer to slow down.
//!
//! A queue pair has a [`PacedFlow`] only if its device controls congestion, or somebody has limited its rate. What follows
//! from rates and marks is `uroce_protocol::congestion`'s; this says where its events come from.

use crate::{congestion::Congestion, link::MAX_TRAIN_BYTES};
use std::sync::Arc;
use uroce_protocol::{
    Instant, Psn,
    congestion::{CongestionControl, CongestionEvent, NotificationPoint, Pacer, Rate},
    time::Duration,
    wire::{Operation, Packet, Syndrome},
};

/// The ECN field of a traffic class byte, and its first codepoint for packets that may be marked: ECT(0).
const ECN: u8 = 0b11;
const ECT0: u8 = 0b10;

/// An ACK is asked for at least this often, as far as packets allow: seldom enough to cost nothing, often enough for any
/// usual timeout.
const ACK_TIME: Duration = Duration::from_millis(1);

/// A limit that a program has set (`ibv_modify_qp_rate_limit`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateLimit {
    pub(crate) rate: Rate,
    /// The most bytes that leave at once, at most a full train.
    pub(crate) burst_bytes: u64,
}

/// How fast a queue pair may send, and what it notices of its peer's packets.
#[derive(Debug)]
pub(in crate::nic) struct PacedFlow {
    reaction: Option<Reaction>,
    limit: Option<RateLimit>,
    line_rate: Rate,
    pacer: Pacer,
    /// The latest time that it has heard of.
    latest: Instant,
    /// Packets were held back in the last turn: there is something to send when the pacer allows it.
    is_waiting: bool,
    /// The deadline of its entry among the device's pacing deadlines.
    pub(in crate::nic) armed: Option<Instant>,
}

/// Congestion control, both ends of it.
#[derive(Debug)]
struct Reaction {
    congestion: Arc<Congestion>,
    control: Box<dyn CongestionControl>,
    notification: NotificationPoint,
    /// A notification is to be sent.
    notifies: bool,
    /// The packet whose answer is waited for, and when it left.
    probe: Option<(Psn, Instant)>,
}

impl Reaction {
    fn new(congestion: Arc<Congestion>, line_rate: Rate) -> Self {
        let control = congestion.algorithm.start(line_rate);
        Self { congestion, control, notification: NotificationPoint::new(), notifies: false, probe: None }
    }
}

impl PacedFlow {
    /// A flow at line rate.
    pub(super) fn new(congestion: Option<Arc<Congestion>>, line_rate: Rate) -> Self {
        let burst = congestion.as_ref().map_or(Congestion::PACING_BURST, |congestion| congestion.pacing_burst);
        Self {
            reaction: congestion.map(|congestion| Reaction::new(congestion, line_rate)),
            limit: None,
            line_rate,
            pacer: Pacer::new(line_rate, burst, MAX_TRAIN_BYTES as u64),
            latest: Instant::ZERO,
            is_waiting: false,
            armed: None,
        }
    }

    /// The congestion control that it was made with.
    pub(super) fn congestion(&self) -> Option<&Arc<Congestion>> {
        self.reaction.as_ref().map(|reaction| &reaction.congestion)
    }

    pub(super) const fn limit(&self) -> Option<RateLimit> {
        self.limit
    }

    pub(super) fn set_limit(&mut self, limit: Option<RateLimit>) {
        self.limit = limit;
        let most = limit.map_or(u64::MAX, |limit| limit.burst_bytes);
        self.pacer.set_most_bytes(most.min(MAX_TRAIN_BYTES as u64));
    }

    /// How fast it may send now.
    pub(super) fn rate_at(&mut self, now: Instant) -> Rate {
        let now = self.at(now);
        if let Some(reaction) = &mut self.reaction {
            reaction.control.handle_timeout(now);
        }
        self.rate()
    }

    /// The same, as of the last event.
    fn rate(&self) -> Rate {
        self.paced_rate().unwrap_or(self.line_rate)
    }

    /// The rate that it has to keep to, as of the last event. At line rate there is nothing to keep to: that is what the
    /// port does.
    fn paced_rate(&self) -> Option<Rate> {
        let allowed = self.reaction.as_ref().map(|reaction| reaction.control.rate());
        let allowed = allowed.filter(|&rate| rate < self.line_rate);
        allowed.into_iter().chain(self.limit.map(|limit| limit.rate)).min()
    }

    /// The traffic class byte of its packets: one that asks for nothing in its ECN field becomes ECN-capable.
    pub(super) fn traffic_class(&self, wanted: u8) -> u8 {
        let reacts = self.congestion().is_some_and(|congestion| congestion.algorithm.reacts_to_marks());
        if reacts && wanted & ECN == 0 { wanted | ECT0 } else { wanted }
    }

    /// The time, which does not go back although threads come in any order.
    fn at(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// A turn begins. Returns how many bytes of data may leave in it: the last packet may go beyond.
    pub(in crate::nic) fn begin_turn(&mut self, now: Instant) -> u64 {
        let now = self.at(now);
        let rate = self.rate_at(now);
        self.pacer.set_rate(now, rate);
        self.is_waiting = false;
        if self.paced_rate().is_none() {
            return u64::MAX;
        }
        let budget = self.pacer.poll_budget(now);
        self.is_waiting = budget.is_none();
        budget.unwrap_or(0)
    }

    /// A turn is over in which `bytes` of data have been built, of a `budget`. Returns whether there may be another one at
    /// once: the budget was used up, but the pacer is behind its time.
    pub(in crate::nic) fn end_turn(&mut self, now: Instant, bytes: u64, budget: u64) -> bool {
        let now = self.at(now);
        if bytes > 0
            && let Some(reaction) = &mut self.reaction
        {
            reaction.control.on_event(now, CongestionEvent::Sent { bytes });
        }
        if budget == 0 || budget == u64::MAX {
            return false;
        }
        self.pacer.on_sent(now, bytes);
        let is_used_up = bytes >= budget;
        self.is_waiting = is_used_up && self.pacer.poll_budget(now).is_none();
        is_used_up && !self.is_waiting
    }

    /// How much payload may leave between two packets that ask for an ACK.
    pub(in crate::nic) fn ack_interval(&self) -> u64 {
        self.pacer.rate().bytes_in(ACK_TIME)
    }

    /// When it is to get a turn although nothing has happened.
    pub(in crate::nic) fn poll_timeout(&self) -> Option<Instant> {
        if !self.is_waiting {
            return None;
        }
        let grows_at = self.reaction.as_ref().and_then(|reaction| reaction.control.poll_timeout());
        grows_at.into_iter().chain([self.pacer.clear_at()]).min()
    }

    /// A request has been built.
    pub(in crate::nic) fn on_request(&mut self, now: Instant, psn: Psn, asks_for_answer: bool, retransmission: bool) {
        let now = self.at(now);
        let Some(reaction) = &mut self.reaction else { return };
        if retransmission {
            // Which of the two an answer is for, nobody knows (Karn and Partridge 1987).
            reaction.probe = None;
        } else if asks_for_answer && reaction.probe.is_none() {
            reaction.probe = Some((psn, now));
        }
    }

    /// A packet has arrived from the peer, `marked` on its way or not. Returns whether a notification is to be sent.
    pub(in crate::nic) fn on_packet(&mut self, now: Instant, marked: bool, packet: &Packet<'_>) -> bool {
        let now = self.at(now);
        let Some(reaction) = &mut self.reaction else { return false };
        if packet.opcode().is_response()
            && let Some((psn, sent_at)) = reaction.probe
            && !packet.psn().is_before(psn)
        {
            reaction.probe = None;
            if is_prompt(packet) {
                reaction.control.on_event(now, CongestionEvent::RoundTrip { time: now - sent_at });
            }
        }
        reaction.notifies |= reaction.notification.on_packet(now, marked, packet, &reaction.congestion.notification);
        reaction.notifies
    }

    /// The peer has notified. Returns whether that changes anything.
    pub(in crate::nic) fn on_notified(&mut self, now: Instant) -> bool {
        let now = self.at(now);
        let Some(reaction) = &mut self.reaction else { return false };
        if !reaction.congestion.algorithm.reacts_to_marks() {
            return false;
        }
        reaction.control.on_event(now, CongestionEvent::Notified);
        self.pacer.set_rate(now, self.rate());
        true
    }

    /// Takes "a notification is to be sent", and how.
    pub(in crate::nic) fn poll_notification(&mut self) -> Option<&Congestion> {
        let reaction = self.reaction.as_mut().filter(|reaction| reaction.notifies)?;
        reaction.notifies = false;
        Some(&reaction.congestion)
    }
}

/// Whether a response came as soon as it could: an RNR NAK tells of a receive that was late, a sequence NAK of a packet
/// that is to come again.
fn is_prompt(packet: &Packet<'_>) -> bool {
    packet.opcode().operation() != Operation::Acknowledge
        || packet.aeth().is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack(_)))
}
