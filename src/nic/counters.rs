//! What a device has counted, under the names that rxe and mlx5 give in `hw_counters`.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};
use uroce_protocol::{
    rc::{RequesterCounters, ResponderCounters},
    uc,
    work::{Completion, WcOpcode, WcStatus},
};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// What a device has counted since it was opened. Names that Linux knows mean what they mean there, under
        /// `/sys/class/infiniband/DEVICE/ports/1/hw_counters`; the others say why packets were dropped.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            /// Every counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }

            /// Adds counter to counter.
            pub(crate) const fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

/// Those that are not 0: `sent_pkts=17 rcvd_pkts=4`.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, count) in self.iter().filter(|&(_, count)| count > 0) {
            write!(f, "{separator}{name}={count}")?;
            separator = " ";
        }
        Ok(())
    }
}

counters! {
    /// rxe: packets sent.
    sent_pkts,
    /// rxe: packets received with a right ICRC.
    rcvd_pkts,
    /// mlx5: bytes of packets sent, BTH to ICRC.
    rdma_tx_bytes,
    /// mlx5: bytes of packets received, BTH to ICRC.
    rdma_rx_bytes,
    /// Packets sent a second time.
    retransmitted_pkts,
    /// rxe, mlx5: requests received a second time.
    duplicate_request,
    /// rxe: requests ahead of the expected PSN.
    out_of_seq_request,
    /// mlx5: the same.
    out_of_sequence,
    /// rxe: RNR NAKs received.
    rcvd_rnr_err,
    /// mlx5: the same.
    rnr_nak_retry_err,
    /// rxe: RNR NAKs sent.
    send_rnr_err,
    /// mlx5: the same, and what was dropped for want of a receive.
    out_of_buffer,
    /// rxe: sequence NAKs received.
    rcvd_seq_err,
    /// mlx5: the same.
    packet_seq_err,
    /// mlx5: gaps that a response revealed.
    implied_nak_seq_err,
    /// mlx5: local ACK timeouts.
    local_ack_timeout_err,
    /// rxe: every reason to send again: sequence NAKs, implied NAKs, timeouts.
    completer_retry_err,
    /// rxe: work requests that ended because retries were used up.
    retry_exceeded_err,
    /// mlx5: the same.
    req_transport_retries_exceeded,
    /// rxe: work requests that ended because RNR retries were used up.
    retry_rnr_exceeded_err,
    /// mlx5: the same.
    req_rnr_retries_exceeded,
    /// rxe: trains that the link refused.
    send_err,
    /// rxe: SENDs, WRITEs, READs and atomics that completed.
    rdma_sends,
    /// rxe: SENDs received whole.
    rdma_recvs,
    /// mlx5: WRITEs received whole.
    rx_write_requests,
    /// mlx5: READ requests received.
    rx_read_requests,
    /// mlx5: atomics executed.
    rx_atomic_requests,
    /// mlx5: send completions in error, flushed ones included.
    req_cqe_error,
    /// mlx5: send completions flushed.
    req_cqe_flush_error,
    /// mlx5: send completions with "remote access error".
    req_remote_access_errors,
    /// mlx5: send completions with "remote invalid request".
    req_remote_invalid_request,
    /// mlx5: receive completions in error, flushed ones included.
    resp_cqe_error,
    /// mlx5: receive completions flushed.
    resp_cqe_flush_error,
    /// mlx5: receives that were too short.
    resp_local_length_error,
    /// mlx5: requests refused for their access.
    resp_remote_access_errors,
    /// mlx5: packets dropped for a wrong ICRC.
    rx_icrc_encapsulated,
    /// mlx5: packets that arrived with "congestion experienced".
    np_ecn_marked_roce_packets,
    /// mlx5: congestion notifications sent.
    np_cnp_sent,
    /// mlx5: congestion notifications received, and heeded.
    rp_cnp_handled,
    /// mlx5: congestion notifications received, and ignored.
    rp_cnp_ignored,
    /// Dropped: not a packet (too short, unknown opcode, forged pad).
    drop_malformed,
    /// Dropped: transport version not 0.
    drop_transport_version,
    /// Dropped: no queue pair has the number.
    drop_unknown_qp,
    /// Dropped: another transport service than the queue pair's.
    drop_wrong_service,
    /// Dropped: another partition (port counter `bad_pkey_cntr`).
    drop_pkey,
    /// Dropped: another Q_Key than the datagram queue pair's (port counter `qkey_viol_cntr`).
    drop_qkey,
    /// Dropped: datagrams, and messages over unreliable connections, that lost a packet, found no receive or too
    /// short a one, asked for access that they do not have, or brought a wrong Q_Key.
    drop_message,
    /// Dropped: the sender's address is not the connected peer's.
    drop_wrong_source,
    /// Dropped: the queue pair's state does not take it.
    drop_qp_state,
    /// Completions lost to a full completion queue.
    cq_overruns,
}

/// The counters that live with the device. Those of the state machines are added up when somebody asks.
#[derive(Debug, Default)]
pub(crate) struct DeviceCounters {
    pub(crate) sent_packets: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received_packets: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) send_errors: AtomicU64,
    pub(crate) send_completion_errors: AtomicU64,
    pub(crate) send_flushed: AtomicU64,
    pub(crate) remote_access: AtomicU64,
    pub(crate) remote_invalid: AtomicU64,
    pub(crate) retries_exceeded: AtomicU64,
    pub(crate) rnr_retries_exceeded: AtomicU64,
    pub(crate) receive_completion_errors: AtomicU64,
    pub(crate) receive_flushed: AtomicU64,
    pub(crate) local_length: AtomicU64,
    pub(crate) icrc: AtomicU64,
    pub(crate) congestion_marks: AtomicU64,
    pub(crate) notifications_sent: AtomicU64,
    pub(crate) notifications_handled: AtomicU64,
    pub(crate) notifications_ignored: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) transport_version: AtomicU64,
    pub(crate) unknown_qp: AtomicU64,
    pub(crate) wrong_service: AtomicU64,
    pub(crate) pkey: AtomicU64,
    pub(crate) wrong_source: AtomicU64,
    pub(crate) qp_state: AtomicU64,
    pub(crate) cq_overruns: AtomicU64,
}

/// Counts `amount` of something.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl DeviceCounters {
    /// Counts a completion that was not a success.
    pub(crate) fn count_completion(&self, completion: &Completion) {
        let is_receive = matches!(completion.opcode, WcOpcode::Receive | WcOpcode::ReceiveWithImmediate);
        let (all, one) = match completion.status {
            WcStatus::Success => return,
            WcStatus::WorkRequestFlushed if is_receive => {
                (&self.receive_completion_errors, Some(&self.receive_flushed))
            }
            WcStatus::LocalLength if is_receive => (&self.receive_completion_errors, Some(&self.local_length)),
            _ if is_receive => (&self.receive_completion_errors, None),
            WcStatus::WorkRequestFlushed => (&self.send_completion_errors, Some(&self.send_flushed)),
            WcStatus::RemoteAccess => (&self.send_completion_errors, Some(&self.remote_access)),
            WcStatus::RemoteInvalidRequest => (&self.send_completion_errors, Some(&self.remote_invalid)),
            WcStatus::RetryExceeded => (&self.send_completion_errors, Some(&self.retries_exceeded)),
            WcStatus::RnrRetryExceeded => (&self.send_completion_errors, Some(&self.rnr_retries_exceeded)),
            _ => (&self.send_completion_errors, None),
        };
        add(all, 1);
        if let Some(one) = one {
            add(one, 1);
        }
    }

    /// Counts completions that a full queue lost.
    pub(crate) fn count_overrun(&self, lost: u64) {
        add(&self.cq_overruns, lost);
    }

    /// The device's own share of the public counters.
    pub(crate) fn snapshot(&self) -> Counters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            sent_pkts: read(&self.sent_packets),
            rcvd_pkts: read(&self.received_packets),
            rdma_tx_bytes: read(&self.sent_bytes),
            rdma_rx_bytes: read(&self.received_bytes),
            send_err: read(&self.send_errors),
            req_cqe_error: read(&self.send_completion_errors),
            req_cqe_flush_error: read(&self.send_flushed),
            req_remote_access_errors: read(&self.remote_access),
            req_remote_invalid_request: read(&self.remote_invalid),
            retry_exceeded_err: read(&self.retries_exceeded),
            req_transport_retries_exceeded: read(&self.retries_exceeded),
            retry_rnr_exceeded_err: read(&self.rnr_retries_exceeded),
            req_rnr_retries_exceeded: read(&self.rnr_retries_exceeded),
            resp_cqe_error: read(&self.receive_completion_errors),
            resp_cqe_flush_error: read(&self.receive_flushed),
            resp_local_length_error: read(&self.local_length),
            rx_icrc_encapsulated: read(&self.icrc),
            np_ecn_marked_roce_packets: read(&self.congestion_marks),
            np_cnp_sent: read(&self.notifications_sent),
            rp_cnp_handled: read(&self.notifications_handled),
            rp_cnp_ignored: read(&self.notifications_ignored),
            drop_malformed: read(&self.malformed),
            drop_transport_version: read(&self.transport_version),
            drop_unknown_qp: read(&self.unknown_qp),
            drop_wrong_service: read(&self.wrong_service),
            drop_pkey: read(&self.pkey),
            drop_wrong_source: read(&self.wrong_source),
            drop_qp_state: read(&self.qp_state),
            cq_overruns: read(&self.cq_overruns),
            ..Counters::default()
        }
    }
}

impl Counters {
    /// Adds what one queue pair's requester has counted.
    pub(crate) const fn add_requester(&mut self, requester: &RequesterCounters) {
        self.retransmitted_pkts += requester.retransmitted_packets;
        self.rcvd_rnr_err += requester.rnr_naks;
        self.rnr_nak_retry_err += requester.rnr_naks;
        self.rcvd_seq_err += requester.sequence_naks;
        self.packet_seq_err += requester.sequence_naks;
        self.implied_nak_seq_err += requester.implied_naks;
        self.local_ack_timeout_err += requester.timeouts;
        self.completer_retry_err += requester.sequence_naks + requester.implied_naks + requester.timeouts;
        self.rdma_sends += requester.messages;
    }

    /// Adds what the requester of an unreliable service has counted.
    pub(crate) const fn add_unreliable_requester(&mut self, requester: &uc::RequesterCounters) {
        self.rdma_sends += requester.messages;
    }

    /// Adds what the responder of an unreliable service has counted.
    pub(crate) const fn add_unreliable_responder(&mut self, responder: &uc::ResponderCounters) {
        self.duplicate_request += responder.duplicates;
        self.out_of_seq_request += responder.out_of_sequence;
        self.out_of_sequence += responder.out_of_sequence;
        self.out_of_buffer += responder.no_receive;
        self.rdma_recvs += responder.sends;
        self.rx_write_requests += responder.writes;
        self.resp_remote_access_errors += responder.access_errors;
        self.drop_qkey += responder.qkey_violations;
        self.drop_message += responder.dropped;
    }

    /// Adds what one queue pair's responder has counted.
    pub(crate) const fn add_responder(&mut self, responder: &ResponderCounters) {
        self.duplicate_request += responder.duplicates;
        self.out_of_seq_request += responder.out_of_sequence;
        self.out_of_sequence += responder.out_of_sequence;
        self.send_rnr_err += responder.rnr_naks;
        self.out_of_buffer += responder.rnr_naks;
        self.rdma_recvs += responder.sends;
        self.rx_write_requests += responder.writes;
        self.rx_read_requests += responder.reads;
        self.rx_atomic_requests += responder.atomics;
        self.resp_remote_access_errors += responder.access_errors;
    }
}
