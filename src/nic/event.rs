//! Asynchronous events: what happens to a device's objects without anybody having asked.

use uroce_protocol::wire::Qpn;

/// What happened (`enum ibv_event_type`, with its values).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum AsyncEventType {
    /// A completion queue overran; it and its queue pairs are in error.
    CqErr = 0,
    /// A queue pair failed for a local reason that no completion tells.
    QpFatal = 1,
    /// The peer sent an invalid request; the queue pair is in error.
    QpReqErr = 2,
    /// The peer asked for access it does not have; the queue pair is in error.
    QpAccessErr = 3,
    /// The first packet arrived while the queue pair was not yet ready to send.
    CommEst = 4,
    /// The send queue has drained.
    SqDrained = 5,
    /// The device failed.
    DeviceFatal = 8,
    /// The port came up.
    PortActive = 9,
    /// The port went down.
    PortErr = 10,
    /// Fewer receives are left in a shared receive queue than its limit.
    SrqLimitReached = 15,
    /// A queue pair that uses a shared receive queue is in error and will take no more receives from it; all that it
    /// had taken have completed.
    QpLastWqeReached = 16,
}

/// To what it happened (`ibv_async_event.element`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncElement {
    /// The queue pair of this number, in the eyes of one who has it: the target of an extended reliable connection may
    /// have been opened several times, and then there is an event for each. See [`crate::verbs::QueuePair::element`].
    QueuePair {
        /// Its number.
        number: Qpn,
        /// 0 for the one that was made; others for those that were opened.
        handle: u64,
    },
    /// The completion queue of this [`crate::verbs::CompletionQueue::number`].
    CompletionQueue(u32),
    /// The shared receive queue of this [`crate::verbs::SharedReceiveQueue::number`].
    SharedReceiveQueue(u32),
    /// The port.
    Port(u8),
    /// The device itself.
    Device,
}

/// An asynchronous event (`struct ibv_async_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// What happened.
    pub event_type: AsyncEventType,
    /// To what.
    pub element: AsyncElement,
}
