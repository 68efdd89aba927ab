//! Modify: what moves a queue pair from state to state.

use super::{
    super::{
        Error, Nic, PKEY_TABLE_LEN, PORT, QpAttributeMask as Mask, QpAttributes, QpState, QpType, Result,
        attributes::MAX_RD_ATOMIC,
    },
    Connection, Qp, fail,
    halves::{ReceiveHalf, SendHalf},
    transition::check_mask,
};
use std::sync::Arc;
use uroce_protocol::{
    Psn,
    rc::{PathAttributes, RequesterAttributes, ResponderAttributes},
    uc, ud,
    wire::{PKey, QKey, Qpn, Service},
};

impl Nic {
    /// Sets the attributes that `mask` names and moves to another state. Nothing changes on an error.
    pub(crate) fn modify_qp(&self, qp: &Arc<Qp>, attributes: &QpAttributes, mask: Mask) -> Result<()> {
        if matches!(attributes.qp_state, QpState::Reset | QpState::Err) && mask.contains(Mask::STATE) {
            self.send_deferred_ack(qp);
        }
        {
            let mut connection = qp.lock();
            if connection.destroyed {
                return Err(Error::InvalidArgument("the queue pair has been destroyed"));
            }
            let from = connection.state;
            if mask.contains(Mask::CUR_STATE) && attributes.cur_qp_state != from {
                return Err(Error::InvalidArgument("the queue pair is not in the state that the caller believes"));
            }
            let to = if mask.contains(Mask::STATE) { attributes.qp_state } else { from };
            check_mask(qp.made.qp_type, from, to, mask)?;
            self.check_values(attributes, mask)?;
            take(&mut connection.attributes, attributes, mask);
            self.enter(qp, &mut connection, from, to, mask);
            self.settle(qp, &mut connection, self.clock.now());
        }
        self.doorbell(qp);
        Ok(())
    }

    fn check_values(&self, attributes: &QpAttributes, mask: Mask) -> Result<()> {
        let in_range = |bit, holds: bool, sentence| {
            if mask.contains(bit) && !holds { Err(Error::InvalidArgument(sentence)) } else { Ok(()) }
        };
        in_range(Mask::PORT, attributes.port_num == PORT, "the device has port 1 only")?;
        in_range(Mask::PKEY_INDEX, attributes.pkey_index < PKEY_TABLE_LEN, "there is no such partition key")?;
        in_range(Mask::DEST_QPN, attributes.dest_qp_num < 1 << 24, "a queue pair number has 24 bits")?;
        in_range(Mask::RQ_PSN, attributes.rq_psn < 1 << 24, "a PSN has 24 bits")?;
        in_range(Mask::SQ_PSN, attributes.sq_psn < 1 << 24, "a PSN has 24 bits")?;
        in_range(Mask::PATH_MTU, attributes.path_mtu <= self.active_mtu, "the path MTU exceeds the port's")?;
        in_range(
            Mask::MAX_QP_RD_ATOMIC,
            attributes.max_rd_atomic <= MAX_RD_ATOMIC,
            "more READs and atomics than the device can have outstanding",
        )?;
        in_range(
            Mask::MAX_DEST_RD_ATOMIC,
            attributes.max_dest_rd_atomic <= MAX_RD_ATOMIC,
            "more READs and atomics than the device can have outstanding",
        )?;
        in_range(Mask::MIN_RNR_TIMER, attributes.min_rnr_timer < 32, "an RNR timer code has 5 bits")?;
        in_range(Mask::TIMEOUT, attributes.timeout < 32, "a timeout code has 5 bits")?;
        in_range(Mask::RETRY_CNT, attributes.retry_cnt < 8, "a retry count has 3 bits")?;
        in_range(Mask::RNR_RETRY, attributes.rnr_retry < 8, "a retry count has 3 bits")?;
        if mask.contains(Mask::AV) && self.address_vector(&attributes.ah_attr)?.peer.is_multicast() {
            return Err(Error::InvalidArgument("the peer's address is not one host's"));
        }
        Ok(())
    }

    /// Does what comes with a transition, whose attributes have been taken already.
    fn enter(&self, qp: &Qp, connection: &mut Connection, from: QpState, to: QpState, mask: Mask) {
        let attributes = connection.attributes;
        if mask.contains(Mask::AV) {
            connection.route = Some(self.route(qp.number, &attributes, connection.flow.as_deref()));
        }
        connection.state = to;
        tracing::debug!(qp = %qp.number, ?from, ?to, "queue pair state");
        match to {
            QpState::Reset => self.reset(qp, connection),
            QpState::Rtr if qp.qp_type() != QpType::XrcSend => {
                self.connect_receiver(qp, &mut connection.receiver, &attributes);
            }
            QpState::Rts if from == QpState::Rtr && qp.qp_type() != QpType::XrcRecv => {
                self.connect_sender(qp, &mut connection.sender, &attributes);
            }
            QpState::Rts if from == QpState::Sqe => connection.sender.recover(),
            QpState::Rts => connection.sender.set_draining(false),
            QpState::Sqd if from != QpState::Sqd => {
                connection.sender.set_draining(true);
                connection.drained = !(mask.contains(Mask::EN_SQD_ASYNC_NOTIFY) && attributes.en_sqd_async_notify);
            }
            QpState::Err => fail(connection),
            QpState::Init | QpState::Rtr | QpState::Sqd | QpState::Sqe => {}
        }
        change_sender(&mut connection.sender, &attributes, mask);
        change_receiver(&mut connection.receiver, &attributes, mask);
    }

    /// Makes the receiving half ready (INIT → RTR).
    fn connect_receiver(&self, qp: &Qp, receiver: &mut ReceiveHalf, attributes: &QpAttributes) {
        match receiver {
            ReceiveHalf::Rc(responder) => responder.connect(self.responder_attributes(qp.service(), attributes)),
            ReceiveHalf::Uc(responder) => responder.connect(uc::ResponderAttributes {
                mtu: attributes.path_mtu,
                first_psn: Psn::new(attributes.rq_psn),
                access: attributes.qp_access_flags,
            }),
            ReceiveHalf::Ud(responder) => {
                responder.connect(ud::ResponderAttributes { mtu: self.active_mtu, qkey: QKey(attributes.qkey) });
            }
        }
    }

    /// Makes the sending half ready (RTR → RTS).
    fn connect_sender(&self, qp: &Qp, sender: &mut SendHalf, attributes: &QpAttributes) {
        let first_psn = Psn::new(attributes.sq_psn);
        match sender {
            SendHalf::Rc(requester) => requester.connect(self.requester_attributes(qp.service(), attributes)),
            SendHalf::Uc(requester) => requester.connect(uc::RequesterAttributes {
                destination: Qpn::new(attributes.dest_qp_num),
                mtu: attributes.path_mtu,
                pkey: PKey::DEFAULT,
                first_psn,
            }),
            SendHalf::Ud(requester) => requester.connect(ud::RequesterAttributes {
                source: qp.number,
                mtu: self.active_mtu,
                pkey: PKey::DEFAULT,
                first_psn,
                qkey: QKey(attributes.qkey),
            }),
        }
    }

    const fn path_attributes(&self, service: Service, attributes: &QpAttributes) -> PathAttributes {
        PathAttributes {
            service,
            destination: Qpn::new(attributes.dest_qp_num),
            mtu: attributes.path_mtu,
            pkey: PKey::DEFAULT,
            quirks: self.quirks,
        }
    }

    const fn responder_attributes(&self, service: Service, attributes: &QpAttributes) -> ResponderAttributes {
        ResponderAttributes {
            path: self.path_attributes(service, attributes),
            first_psn: Psn::new(attributes.rq_psn),
            max_dest_rd_atomic: attributes.max_dest_rd_atomic,
            min_rnr_timer: attributes.min_rnr_timer,
            access: attributes.qp_access_flags,
        }
    }

    const fn requester_attributes(&self, service: Service, attributes: &QpAttributes) -> RequesterAttributes {
        RequesterAttributes {
            path: self.path_attributes(service, attributes),
            first_psn: Psn::new(attributes.sq_psn),
            max_rd_atomic: attributes.max_rd_atomic,
            timeout: attributes.timeout,
            retry_cnt: attributes.retry_cnt,
            rnr_retry: attributes.rnr_retry,
            window: self.window,
        }
    }
}

/// Tells the sending half what has changed.
fn change_sender(sender: &mut SendHalf, attributes: &QpAttributes, mask: Mask) {
    match sender {
        SendHalf::Rc(requester) => {
            if mask.intersects(Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY) {
                requester.set_retry(attributes.timeout, attributes.retry_cnt, attributes.rnr_retry);
            }
            if mask.contains(Mask::MAX_QP_RD_ATOMIC) {
                requester.set_max_rd_atomic(attributes.max_rd_atomic);
            }
        }
        SendHalf::Uc(_) => {}
        SendHalf::Ud(requester) => {
            if mask.contains(Mask::QKEY) {
                requester.set_qkey(QKey(attributes.qkey));
            }
        }
    }
}

/// Tells the receiving half what has changed.
fn change_receiver(receiver: &mut ReceiveHalf, attributes: &QpAttributes, mask: Mask) {
    match receiver {
        ReceiveHalf::Rc(responder) => {
            if mask.contains(Mask::ACCESS_FLAGS) {
                responder.set_access(attributes.qp_access_flags);
            }
            if mask.contains(Mask::MIN_RNR_TIMER) {
                responder.set_min_rnr_timer(attributes.min_rnr_timer);
            }
            if mask.contains(Mask::MAX_DEST_RD_ATOMIC) {
                responder.set_max_dest_rd_atomic(attributes.max_dest_rd_atomic);
            }
        }
        ReceiveHalf::Uc(responder) => {
            if mask.contains(Mask::ACCESS_FLAGS) {
                responder.set_access(attributes.qp_access_flags);
            }
        }
        ReceiveHalf::Ud(responder) => {
            if mask.contains(Mask::QKEY) {
                responder.set_qkey(QKey(attributes.qkey));
            }
        }
    }
}

/// Copies the attributes that `mask` names.
const fn take(to: &mut QpAttributes, from: &QpAttributes, mask: Mask) {
    macro_rules! take {
        ($($bit:ident $field:ident,)+) => {
            $(if mask.contains(Mask::$bit) { to.$field = from.$field; })+
        };
    }
    take! {
        EN_SQD_ASYNC_NOTIFY en_sqd_async_notify,
        ACCESS_FLAGS qp_access_flags,
        PKEY_INDEX pkey_index,
        PORT port_num,
        AV ah_attr,
        PATH_MTU path_mtu,
        TIMEOUT timeout,
        RETRY_CNT retry_cnt,
        RNR_RETRY rnr_retry,
        RQ_PSN rq_psn,
        MAX_QP_RD_ATOMIC max_rd_atomic,
        MIN_RNR_TIMER min_rnr_timer,
        SQ_PSN sq_psn,
        MAX_DEST_RD_ATOMIC max_dest_rd_atomic,
        DEST_QPN dest_qp_num,
        QKEY qkey,
    }
}
