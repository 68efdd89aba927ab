//! The two halves of a queue pair, each a state machine of the queue pair's service.
//!
//! What the device asks of a half is the same for every service; only connecting one differs, and is
//! `super::modify`'s.

use super::super::{Counters, QpCapabilities, QpType};
use uroce_protocol::{
    Instant, Memory, ReceiveQueue, Sge, rc, uc, ud,
    wire::{GRH_LEN, Packet},
    work::{Completion, Fatal, PostMark, PostReceiveError, PostSendError, SendRequest, Transmit, WcStatus},
};

/// The half that sends.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most queue pairs are of the largest, and a box would cost them a hop")]
pub(crate) enum SendHalf {
    Rc(rc::Requester),
    Uc(uc::Requester),
    Ud(ud::Requester),
}

/// The half that receives.
#[derive(Debug)]
pub(crate) enum ReceiveHalf {
    Rc(rc::Responder),
    Uc(uc::Responder),
    Ud(ud::Responder),
}

/// Does the same with the machine of any service.
macro_rules! each {
    ($kind:ident, $half:expr, $machine:ident => $action:expr) => {
        match $half {
            $kind::Rc($machine) => $action,
            $kind::Uc($machine) => $action,
            $kind::Ud($machine) => $action,
        }
    };
}

/// The halves of a queue pair of `qp_type`. On XRC each queue pair has but one; the other is never connected.
pub(super) fn halves(qp_type: QpType, cap: &QpCapabilities, shares_receives: bool) -> (SendHalf, ReceiveHalf) {
    let QpCapabilities { max_send_wr, max_recv_wr, .. } = *cap;
    match qp_type {
        QpType::Rc | QpType::XrcSend | QpType::XrcRecv => (
            SendHalf::Rc(rc::Requester::new(max_send_wr)),
            ReceiveHalf::Rc(match shares_receives || qp_type == QpType::XrcRecv {
                true => rc::Responder::sharing_receives(),
                false => rc::Responder::new(max_recv_wr),
            }),
        ),
        QpType::Uc => (
            SendHalf::Uc(uc::Requester::new(max_send_wr)),
            ReceiveHalf::Uc(match shares_receives {
                true => uc::Responder::sharing_receives(),
                false => uc::Responder::new(max_recv_wr),
            }),
        ),
        QpType::Ud => (
            SendHalf::Ud(ud::Requester::new(max_send_wr)),
            ReceiveHalf::Ud(match shares_receives {
                true => ud::Responder::sharing_receives(),
                false => ud::Responder::new(max_recv_wr),
            }),
        ),
    }
}

impl SendHalf {
    pub(crate) fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostSendError> {
        each!(Self, self, requester => requester.post(request))
    }

    pub(crate) fn mark(&self) -> PostMark {
        each!(Self, self, requester => requester.mark())
    }

    pub(crate) fn rewind(&mut self, mark: PostMark) {
        each!(Self, self, requester => requester.rewind(mark));
    }

    /// Takes an answer.
    pub(crate) fn handle_packet<M: Memory + ?Sized>(&mut self, now: Instant, packet: &Packet<'_>, memory: &M) {
        match self {
            Self::Rc(requester) => requester.handle_packet(now, packet, memory),
            Self::Uc(_) | Self::Ud(_) => {}
        }
    }

    pub(crate) fn poll_transmit<M: Memory + ?Sized>(&mut self, now: Instant, memory: &M) -> Option<Transmit<'_>> {
        match self {
            Self::Rc(requester) => requester.poll_transmit(now, memory),
            Self::Uc(requester) => requester.poll_transmit(),
            Self::Ud(requester) => requester.poll_transmit(),
        }
    }

    /// Has packets ask for an ACK at least every `bytes` of payload.
    pub(crate) fn set_ack_interval(&mut self, bytes: u64) {
        match self {
            Self::Rc(requester) => requester.set_ack_interval(bytes),
            Self::Uc(_) | Self::Ud(_) => {}
        }
    }

    pub(crate) fn transmit_failed(&mut self, status: WcStatus) {
        each!(Self, self, requester => requester.transmit_failed(status));
    }

    /// Every packet that it has handed out has left.
    pub(crate) fn transmitted(&mut self) {
        match self {
            Self::Rc(_) => {}
            Self::Uc(requester) => requester.transmitted(),
            Self::Ud(requester) => requester.transmitted(),
        }
    }

    /// Whether a failed send leaves the receiving half alone: the queue pair then goes to SQE, not to ERR.
    pub(crate) const fn fails_alone(&self) -> bool {
        !matches!(self, Self::Rc(_))
    }

    /// Takes sends again after a failure (SQE → RTS).
    pub(crate) fn recover(&mut self) {
        match self {
            Self::Rc(_) => {}
            Self::Uc(requester) => requester.recover(),
            Self::Ud(requester) => requester.recover(),
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Rc(requester) => requester.poll_timeout(),
            Self::Uc(_) | Self::Ud(_) => None,
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        match self {
            Self::Rc(requester) => requester.handle_timeout(now),
            Self::Uc(_) | Self::Ud(_) => {}
        }
    }

    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        each!(Self, self, requester => requester.poll_completion())
    }

    pub(crate) fn poll_fatal(&mut self) -> Option<Fatal> {
        each!(Self, self, requester => requester.poll_fatal())
    }

    pub(crate) fn set_draining(&mut self, draining: bool) {
        each!(Self, self, requester => requester.set_draining(draining));
    }

    pub(crate) fn is_idle(&self) -> bool {
        each!(Self, self, requester => requester.is_idle())
    }

    /// Whether a response may let something leave: there are work requests.
    pub(crate) fn waits_for_responses(&self) -> bool {
        match self {
            Self::Rc(requester) => requester.queued() > 0,
            // There are none.
            Self::Uc(_) | Self::Ud(_) => false,
        }
    }

    pub(crate) fn flush(&mut self) {
        each!(Self, self, requester => requester.flush());
    }

    pub(crate) fn reset(&mut self) {
        each!(Self, self, requester => requester.reset());
    }

    /// Adds what it has counted.
    pub(crate) fn count(&self, counters: &mut Counters) {
        match self {
            Self::Rc(requester) => counters.add_requester(requester.counters()),
            Self::Uc(requester) => counters.add_unreliable_requester(requester.counters()),
            Self::Ud(requester) => counters.add_unreliable_requester(requester.counters()),
        }
    }
}

impl ReceiveHalf {
    pub(crate) fn post(&mut self, wr_id: u64, list: &[Sge]) -> Result<(), PostReceiveError> {
        each!(Self, self, responder => responder.post(wr_id, list))
    }

    /// Takes a request. A datagram is delivered behind its `network_header`. `shared` is the shared receive queue that
    /// the queue pair uses, or that the request names.
    pub(crate) fn handle_packet<M: Memory + ?Sized>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        network_header: impl FnOnce() -> [u8; GRH_LEN],
        memory: &M,
        shared: Option<&mut ReceiveQueue>,
    ) {
        match self {
            Self::Rc(responder) => responder.handle_packet(now, packet, memory, shared),
            Self::Uc(responder) => responder.handle_packet(packet, memory, shared),
            Self::Ud(responder) => responder.handle_packet(packet, network_header, memory, shared),
        }
    }

    pub(crate) fn has_urgent_output(&self) -> bool {
        match self {
            Self::Rc(responder) => responder.has_urgent_output(),
            Self::Uc(_) | Self::Ud(_) => false,
        }
    }

    /// Whether what it sends next answers a READ.
    pub(crate) fn has_data_next(&self) -> bool {
        match self {
            Self::Rc(responder) => responder.has_data_next(),
            Self::Uc(_) | Self::Ud(_) => false,
        }
    }

    pub(crate) fn has_deferred_ack(&self) -> bool {
        match self {
            Self::Rc(responder) => responder.has_deferred_ack(),
            Self::Uc(_) | Self::Ud(_) => false,
        }
    }

    pub(crate) fn poll_transmit(&mut self, now: Instant, flush_ack: bool) -> Option<Transmit<'_>> {
        match self {
            Self::Rc(responder) => responder.poll_transmit(now, flush_ack),
            Self::Uc(_) | Self::Ud(_) => None,
        }
    }

    pub(crate) fn transmit_failed(&mut self) {
        match self {
            Self::Rc(responder) => responder.transmit_failed(),
            Self::Uc(_) | Self::Ud(_) => {}
        }
    }

    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        each!(Self, self, responder => responder.poll_completion())
    }

    pub(crate) fn poll_fatal(&mut self) -> Option<Fatal> {
        each!(Self, self, responder => responder.poll_fatal())
    }

    /// Takes "the peer has been heard of", once; datagrams have no peer.
    pub(crate) fn poll_established(&mut self) -> bool {
        match self {
            Self::Rc(responder) => responder.poll_established(),
            Self::Uc(responder) => responder.poll_established(),
            Self::Ud(_) => false,
        }
    }

    pub(crate) fn flush(&mut self) {
        each!(Self, self, responder => responder.flush());
    }

    pub(crate) fn reset(&mut self) {
        each!(Self, self, responder => responder.reset());
    }

    /// Adds what it has counted.
    pub(crate) fn count(&self, counters: &mut Counters) {
        match self {
            Self::Rc(responder) => counters.add_responder(responder.counters()),
            Self::Uc(responder) => counters.add_unreliable_responder(responder.counters()),
            Self::Ud(responder) => counters.add_unreliable_responder(responder.counters()),
        }
    }
}
