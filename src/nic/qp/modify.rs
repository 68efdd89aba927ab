//! Modify: what moves a queue pair from state to state.

use super::{
    super::{
        AddressHandleAttributes, Error, Nic, PKEY_TABLE_LEN, PORT, QpAttributeMask as Mask, QpAttributes, QpState,
        Result, attributes::MAX_RD_ATOMIC,
    },
    Connection, Qp, Route, fail,
    transition::check_mask,
};
use std::{net::IpAddr, sync::Arc};
use uroce_protocol::{
    Psn,
    rc::{PathAttributes, RequesterAttributes, ResponderAttributes},
    wire::{PKey, Qpn, icrc::Flow},
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
            check_mask(from, to, mask)?;
            self.check_values(attributes, mask)?;
            take(&mut connection.attributes, attributes, mask);
            self.enter(qp, &mut connection, from, to, mask);
            self.settle(qp, &mut connection);
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
        if mask.contains(Mask::AV) { self.check_address(&attributes.ah_attr) } else { Ok(()) }
    }

    fn check_address(&self, ah_attr: &AddressHandleAttributes) -> Result<()> {
        if !ah_attr.is_global {
            return Err(Error::InvalidArgument("a RoCE path needs a global route"));
        }
        if ah_attr.grh.sgid_index != 0 {
            return Err(Error::InvalidArgument("the port has one GID, at index 0"));
        }
        if ah_attr.port_num != PORT {
            return Err(Error::InvalidArgument("the device has port 1 only"));
        }
        let peer = ah_attr.grh.dgid.address();
        if peer.is_ipv4() != self.address.is_ipv4() {
            return Err(Error::InvalidArgument("the peer's address is of another IP version than the device's"));
        }
        if peer.is_unspecified() || peer.is_multicast() {
            return Err(Error::InvalidArgument("the peer's address is not one host's"));
        }
        Ok(())
    }

    /// Does what comes with a transition, whose attributes have been taken already.
    fn enter(&self, qp: &Qp, connection: &mut Connection, from: QpState, to: QpState, mask: Mask) {
        let attributes = connection.attributes;
        if mask.contains(Mask::AV) {
            connection.route = Some(self.route(qp.number, &attributes));
        }
        connection.state = to;
        tracing::debug!(qp = %qp.number, ?from, ?to, "queue pair state");
        match to {
            QpState::Reset => self.reset(qp, connection),
            QpState::Rtr => connection.responder.connect(self.responder_attributes(&attributes)),
            QpState::Rts if from == QpState::Rtr => {
                connection.requester.connect(self.requester_attributes(&attributes));
            }
            QpState::Rts => connection.requester.set_draining(false),
            QpState::Sqd if from != QpState::Sqd => {
                connection.requester.set_draining(true);
                connection.drained = !(mask.contains(Mask::EN_SQD_ASYNC_NOTIFY) && attributes.en_sqd_async_notify);
            }
            QpState::Err => fail(connection),
            QpState::Init | QpState::Sqd | QpState::Sqe => {}
        }
        if matches!(from, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            if mask.contains(Mask::ACCESS_FLAGS) {
                connection.responder.set_access(attributes.qp_access_flags);
            }
            if mask.contains(Mask::MIN_RNR_TIMER) {
                connection.responder.set_min_rnr_timer(attributes.min_rnr_timer);
            }
        }
        if from == QpState::Sqd {
            if mask.intersects(Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY) {
                connection.requester.set_retry(attributes.timeout, attributes.retry_cnt, attributes.rnr_retry);
            }
            if mask.contains(Mask::MAX_QP_RD_ATOMIC) {
                connection.requester.set_max_rd_atomic(attributes.max_rd_atomic);
            }
            if mask.contains(Mask::MAX_DEST_RD_ATOMIC) {
                connection.responder.set_max_dest_rd_atomic(attributes.max_dest_rd_atomic);
            }
        }
    }

    fn route(&self, number: Qpn, attributes: &QpAttributes) -> Route {
        let peer = attributes.ah_attr.grh.dgid.address();
        let source_port = self.link.source_port(source_port(number, Qpn::new(attributes.dest_qp_num)));
        Route {
            peer,
            source_port,
            traffic_class: attributes.ah_attr.grh.traffic_class,
            flow: Flow::new(self.address, peer, source_port),
        }
    }

    const fn path_attributes(&self, attributes: &QpAttributes) -> PathAttributes {
        PathAttributes {
            destination: Qpn::new(attributes.dest_qp_num),
            mtu: attributes.path_mtu,
            pkey: PKey::DEFAULT,
            quirks: self.quirks,
        }
    }

    const fn responder_attributes(&self, attributes: &QpAttributes) -> ResponderAttributes {
        ResponderAttributes {
            path: self.path_attributes(attributes),
            first_psn: Psn::new(attributes.rq_psn),
            max_dest_rd_atomic: attributes.max_dest_rd_atomic,
            min_rnr_timer: attributes.min_rnr_timer,
            access: attributes.qp_access_flags,
        }
    }

    const fn requester_attributes(&self, attributes: &QpAttributes) -> RequesterAttributes {
        RequesterAttributes {
            path: self.path_attributes(attributes),
            first_psn: Psn::new(attributes.sq_psn),
            max_rd_atomic: attributes.max_rd_atomic,
            timeout: attributes.timeout,
            retry_cnt: attributes.retry_cnt,
            rnr_retry: attributes.rnr_retry,
            window: self.window,
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
    }
}

/// The UDP source port of a connection: Linux's (`rdma_calc_flow_label` and `rdma_flow_label_to_udp_sport`), the
/// same for both directions.
fn source_port(local: Qpn, remote: Qpn) -> u16 {
    let mut label = u64::from(local.value()) * u64::from(remote.value());
    label ^= label >> 20;
    label ^= label >> 40;
    let label = label & 0xf_ffff;
    0xc000 | ((label & 0x3fff) ^ (label >> 14)) as u16
}

/// Whether a packet that came from `source` is the connected peer's.
impl Route {
    pub(in crate::nic) fn is_peer(&self, source: IpAddr) -> bool {
        self.peer == source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_are_linux_rxes() {
        // 0x11 · 0x11 = 0x121: nothing to fold.
        assert_eq!(source_port(Qpn::new(0x11), Qpn::new(0x11)), 0xc121);
        assert_eq!(source_port(Qpn::new(0x12_3456), Qpn::new(0x65)), source_port(Qpn::new(0x65), Qpn::new(0x12_3456)));
        assert!(source_port(Qpn::new(0xff_fffe), Qpn::new(0xff_fffe)) >= 0xc000);
    }
}
