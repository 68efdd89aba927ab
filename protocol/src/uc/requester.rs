//! The half that sends.

use crate::{
    Psn,
    rc::headers,
    send_queue::{PostMark, consumes_receive},
    unreliable::{Piece, RequesterCounters, SendSide},
    wire::{Bth, Mtu, Opcode, PKey, Qpn, Repr, Service},
    work::{
        Completion, Fatal, MAX_MESSAGE_LENGTH, PostSendError, SendOperation, SendRequest, Target, Transmit, WcStatus,
    },
};

/// What the requester is told when the queue pair becomes ready to send (`IBV_QPS_RTS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequesterAttributes {
    /// The peer's queue pair.
    pub destination: Qpn,
    /// How many payload bytes a packet carries.
    pub mtu: Mtu,
    /// The partition that packets are sent in.
    pub pkey: PKey,
    /// The first PSN (`sq_psn`).
    pub first_psn: Psn,
}

/// The requester half of an unreliable connection.
#[derive(Debug)]
pub struct Requester {
    attributes: RequesterAttributes,
    side: SendSide,
}

impl Requester {
    /// A requester that is not connected yet and may hold `depth` work requests (`max_send_wr`).
    pub fn new(depth: u32) -> Self {
        let attributes = RequesterAttributes {
            destination: Qpn::new(0),
            mtu: Mtu::default(),
            pkey: PKey::DEFAULT,
            first_psn: Psn::new(0),
        };
        Self { attributes, side: SendSide::new(depth) }
    }

    /// Makes it ready to send (RTR → RTS).
    pub fn connect(&mut self, attributes: RequesterAttributes) {
        self.attributes = attributes;
        self.side.connect(attributes.first_psn);
    }

    /// Queues a work request. Nothing is sent before [`Self::poll_transmit`]. After [`Self::flush`] the request
    /// completes as flushed at once.
    ///
    /// # Errors
    /// Beside those of any service, [`PostSendError::NotAllowed`] for what needs an answer (READ, atomics …) and for
    /// SEND with invalidate, which UC has not.
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostSendError> {
        let is_allowed = matches!(
            request.operation,
            SendOperation::Send
                | SendOperation::SendWithImmediate(_)
                | SendOperation::Write { .. }
                | SendOperation::WriteWithImmediate { .. }
        );
        if !is_allowed || request.target != Target::Peer {
            return Err(PostSendError::NotAllowed);
        }
        let length = request.buffers.len();
        if length > MAX_MESSAGE_LENGTH {
            return Err(PostSendError::BadLength);
        }
        self.side.post(request, length, self.attributes.mtu)
    }

    /// How far it has been given work.
    pub fn mark(&self) -> PostMark {
        self.side.mark()
    }

    /// Takes back what was posted since the mark was made, after which nothing but posting may have been done.
    pub fn rewind(&mut self, mark: PostMark) {
        self.side.rewind(mark);
    }

    /// The next packet to send. There is no window: whoever calls sets the pace.
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        let RequesterAttributes { destination, mtu, pkey, .. } = self.attributes;
        let (Piece { psn, packet, ends }, request) = self.side.next()?;
        let length = request.bytes_between(packet, packet + 1, mtu);
        let mtu = mtu.bytes() as u64;
        let (operation, extended) = headers(request, packet, length, mtu, ends)?;
        let opcode = Opcode::new(Service::Uc, operation)?;
        let header = Bth {
            pkey,
            pad: Bth::pad_for(length as usize),
            solicited: ends && request.solicited && consumes_receive(request.operation),
            ..Bth::new(opcode, destination, psn)
        };
        Some(Transmit {
            header: Repr::new(header, extended),
            source: request.source(packet * mtu, length as usize),
            to: None,
            retransmission: false,
        })
    }

    /// The payload of the packet that [`Self::poll_transmit`] returned last could not be read: its work request
    /// fails with `status` at the next [`Self::transmitted`], once all before it have completed.
    pub fn transmit_failed(&mut self, status: WcStatus) {
        self.side.transmit_failed(status);
    }

    /// Every packet that [`Self::poll_transmit`] returned has left: the work requests that they end complete.
    pub fn transmitted(&mut self) {
        self.side.transmitted();
    }

    /// The next completion.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.side.poll_completion()
    }

    /// Set once when a work request has failed: the send queue must go to its error state (SQE), and
    /// [`Self::flush`] be called. The failed request's completion is already queued.
    pub fn poll_fatal(&mut self) -> Option<Fatal> {
        self.side.poll_fatal()
    }

    /// Ends every queued work request with "flushed", in order (→ SQE or ERR). Later posts are flushed at once.
    pub fn flush(&mut self) {
        self.side.flush();
    }

    /// Takes work requests again (SQE → RTS). PSNs go on where they stopped.
    pub fn recover(&mut self) {
        self.side.recover();
    }

    /// Forgets everything but its counters, without completions (→ RESET).
    pub fn reset(&mut self) {
        self.side.reset();
    }

    /// Stops (or resumes) beginning new work requests (SQD); what has been begun is finished.
    pub fn set_draining(&mut self, draining: bool) {
        self.side.set_draining(draining);
    }

    /// Whether nothing that was begun is unfinished (SQD: drained).
    pub const fn is_idle(&self) -> bool {
        self.side.is_idle()
    }

    /// What it has counted.
    pub const fn counters(&self) -> &RequesterCounters {
        self.side.counters()
    }
}
