//! Which attributes a modify must and may set, from each state to each other.

use super::super::{Error, QpAttributeMask as Mask, QpState, QpType, Result};
use QpState::{Err as Error_, Init, Reset, Rtr, Rts, Sqd, Sqe};

/// What a transition asks for beside the state itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) required: Mask,
    pub(crate) optional: Mask,
}

/// What a service asks for.
struct Service {
    /// RESET to INIT, and what may change in INIT.
    init: Mask,
    /// INIT to RTR.
    receive: Rule,
    /// RTR to RTS.
    send: Mask,
    /// What may change of a queue pair that is, or becomes, ready to send.
    ready: Mask,
    /// What may change while the send queue is drained.
    drained: Mask,
    /// What may change on the way out of a send queue error.
    recovered: Mask,
}

/// The rule of a transition, `None` where there is no such transition: IBTA table 96 (modify queue pair), as the man
/// page of `ibv_modify_qp` repeats it, and Linux' `qp_state_table` completes it for XRC. RESET does not go to ERR
/// (Linux agrees).
pub(crate) const fn rule(qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
    let service = Service::of(qp_type);
    let (required, optional) = match (from, to) {
        (_, Reset) | (Init | Rtr | Rts | Sqd | Sqe | Error_, Error_) => (Mask::empty(), Mask::empty()),
        (Reset, Init) => (service.init, Mask::empty()),
        (Init, Init) => (Mask::empty(), service.init),
        (Init, Rtr) => (service.receive.required, service.receive.optional),
        (Rtr, Rts) => (service.send, service.ready),
        (Rts, Rts) | (Sqd, Rts) => (Mask::empty(), service.ready),
        (Sqe, Rts) => (Mask::empty(), service.recovered),
        (Rts, Sqd) => (Mask::empty(), Mask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (Mask::empty(), service.drained),
        _ => return None,
    };
    Some(Rule { required, optional })
}

impl Service {
    const fn of(qp_type: QpType) -> Self {
        match qp_type {
            QpType::Rc => Self::RC,
            QpType::Uc => Self::UC,
            QpType::Ud => Self::UD,
            QpType::XrcSend => Self::XRC_SEND,
            QpType::XrcRecv => Self::XRC_RECV,
        }
    }

    const RC: Self = Self {
        init: PORT.union(Mask::ACCESS_FLAGS),
        receive: Rule { required: PEER.union(TARGET), optional: PATH },
        send: RETRIES.union(Mask::SQ_PSN).union(Mask::MAX_QP_RD_ATOMIC),
        ready: CONNECTED.union(Mask::MIN_RNR_TIMER),
        drained: DRAINED.union(Mask::PORT).union(RETRIES).union(Mask::MAX_QP_RD_ATOMIC).union(TARGET),
        recovered: Mask::CUR_STATE,
    };

    const UC: Self = Self {
        init: PORT.union(Mask::ACCESS_FLAGS),
        receive: Rule { required: PEER, optional: PATH },
        send: Mask::SQ_PSN,
        ready: CONNECTED,
        drained: DRAINED,
        recovered: Mask::CUR_STATE.union(Mask::ACCESS_FLAGS),
    };

    const UD: Self = Self {
        init: PORT.union(Mask::QKEY),
        receive: Rule { required: Mask::empty(), optional: Mask::PKEY_INDEX.union(Mask::QKEY) },
        send: Mask::SQ_PSN,
        ready: Mask::CUR_STATE.union(Mask::QKEY),
        drained: Mask::PKEY_INDEX.union(Mask::QKEY),
        recovered: Mask::CUR_STATE.union(Mask::QKEY),
    };

    /// The requester of a reliable connection.
    const XRC_SEND: Self = Self {
        receive: Rule { required: PEER, optional: PATH },
        ready: CONNECTED,
        drained: DRAINED.union(Mask::PORT).union(RETRIES).union(Mask::MAX_QP_RD_ATOMIC),
        ..Self::RC
    };

    /// The responder of a reliable connection.
    const XRC_RECV: Self = Self {
        send: Mask::TIMEOUT.union(Mask::SQ_PSN),
        drained: DRAINED.union(Mask::PORT).union(Mask::TIMEOUT).union(TARGET),
        ..Self::RC
    };
}

const PORT: Mask = Mask::PKEY_INDEX.union(Mask::PORT);
/// The other end of a connection.
const PEER: Mask = Mask::AV.union(Mask::PATH_MTU).union(Mask::DEST_QPN).union(Mask::RQ_PSN);
/// What a responder says and keeps.
const TARGET: Mask = Mask::MAX_DEST_RD_ATOMIC.union(Mask::MIN_RNR_TIMER);
/// How a requester insists.
const RETRIES: Mask = Mask::TIMEOUT.union(Mask::RETRY_CNT).union(Mask::RNR_RETRY);
/// What may be said again when a connection becomes ready to receive.
const PATH: Mask = Mask::ALT_PATH.union(Mask::ACCESS_FLAGS).union(Mask::PKEY_INDEX);
const CONNECTED: Mask = Mask::CUR_STATE.union(Mask::ALT_PATH).union(Mask::ACCESS_FLAGS).union(Mask::PATH_MIG_STATE);
const DRAINED: Mask = Mask::AV.union(PATH).union(Mask::PATH_MIG_STATE);

/// Checks that `mask` suits the transition.
pub(crate) fn check_mask(qp_type: QpType, from: QpState, to: QpState, mask: Mask) -> Result<()> {
    let rule = rule(qp_type, from, to).ok_or(Error::InvalidArgument("there is no transition between these states"))?;
    if !mask.contains(rule.required) {
        return Err(Error::InvalidArgument("the transition needs more attributes"));
    }
    if !(rule.required | rule.optional | Mask::STATE).contains(mask) {
        return Err(Error::InvalidArgument("the transition does not allow all of these attributes"));
    }
    if mask.intersects(Mask::ALT_PATH | Mask::PATH_MIG_STATE) {
        return Err(Error::NotSupported("this device does not migrate paths"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error_];
    const TYPES: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];

    #[test]
    fn exactly_these_transitions_exist() {
        let exist: &[(QpState, &[QpState])] = &[
            (Reset, &[Reset, Init]),
            (Init, &[Reset, Init, Rtr, Error_]),
            (Rtr, &[Reset, Rts, Error_]),
            (Rts, &[Reset, Rts, Sqd, Error_]),
            (Sqd, &[Reset, Rts, Sqd, Error_]),
            (Sqe, &[Reset, Rts, Error_]),
            (Error_, &[Reset, Error_]),
        ];
        for qp_type in TYPES {
            for &(from, targets) in exist {
                for to in STATES {
                    assert_eq!(rule(qp_type, from, to).is_some(), targets.contains(&to), "{from:?} to {to:?}");
                }
            }
        }
    }

    #[test]
    fn each_required_attribute_is_required_and_no_other_is_allowed() {
        for qp_type in TYPES {
            for (from, to) in STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to))) {
                let Some(rule) = rule(qp_type, from, to) else { continue };
                for attribute in Mask::all().iter() {
                    let without = (rule.required | Mask::STATE) - attribute;
                    assert_eq!(
                        check_mask(qp_type, from, to, without).is_ok(),
                        !rule.required.contains(attribute),
                        "{qp_type:?} {from:?} to {to:?} without {attribute:?}"
                    );
                    let with = rule.required | Mask::STATE | attribute;
                    let is_allowed = (rule.required | rule.optional | Mask::STATE).contains(attribute)
                        && !(Mask::ALT_PATH | Mask::PATH_MIG_STATE).contains(attribute);
                    assert_eq!(
                        check_mask(qp_type, from, to, with).is_ok(),
                        is_allowed,
                        "{qp_type:?} {from:?} to {to:?} with {attribute:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn each_service_asks_for_what_linux_asks_for() {
        let required = |qp_type, from, to| rule(qp_type, from, to).unwrap().required;
        let connection = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
        for (qp_type, receive, send) in [
            (
                QpType::Rc,
                connection | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER,
                Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::SQ_PSN | Mask::MAX_QP_RD_ATOMIC,
            ),
            (QpType::Uc, connection, Mask::SQ_PSN),
            (QpType::Ud, Mask::empty(), Mask::SQ_PSN),
            (
                QpType::XrcSend,
                connection,
                Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::SQ_PSN | Mask::MAX_QP_RD_ATOMIC,
            ),
            (
                QpType::XrcRecv,
                connection | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER,
                Mask::TIMEOUT | Mask::SQ_PSN,
            ),
        ] {
            let key = if qp_type == QpType::Ud { Mask::QKEY } else { Mask::ACCESS_FLAGS };
            assert_eq!(required(qp_type, Reset, Init), Mask::PKEY_INDEX | Mask::PORT | key, "{qp_type:?}");
            assert_eq!(required(qp_type, Init, Rtr), receive, "{qp_type:?}");
            assert_eq!(required(qp_type, Rtr, Rts), send, "{qp_type:?}");
        }
    }
}
