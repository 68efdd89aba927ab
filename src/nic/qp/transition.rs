//! Which attributes a modify must and may set, from each state to each other.

use super::super::{Error, QpAttributeMask as Mask, QpState, Result};
use QpState::{Err as Error_, Init, Reset, Rtr, Rts, Sqd, Sqe};

/// What a transition asks for beside the state itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) required: Mask,
    pub(crate) optional: Mask,
}

/// The rule of a reliable connection's transition, `None` where there is no such transition: IBTA table 96 (modify
/// queue pair), as the man page of `ibv_modify_qp` repeats it. RESET does not go to ERR (Linux agrees).
pub(crate) const fn rule(from: QpState, to: QpState) -> Option<Rule> {
    let (required, optional) = match (from, to) {
        (_, Reset) | (Init | Rtr | Rts | Sqd | Sqe | Error_, Error_) => (Mask::empty(), Mask::empty()),
        (Reset, Init) => (Mask::PKEY_INDEX.union(Mask::PORT).union(Mask::ACCESS_FLAGS), Mask::empty()),
        (Init, Init) => (Mask::empty(), Mask::PKEY_INDEX.union(Mask::PORT).union(Mask::ACCESS_FLAGS)),
        (Init, Rtr) => (
            Mask::AV
                .union(Mask::PATH_MTU)
                .union(Mask::DEST_QPN)
                .union(Mask::RQ_PSN)
                .union(Mask::MAX_DEST_RD_ATOMIC)
                .union(Mask::MIN_RNR_TIMER),
            Mask::ALT_PATH.union(Mask::ACCESS_FLAGS).union(Mask::PKEY_INDEX),
        ),
        (Rtr, Rts) => (
            Mask::TIMEOUT
                .union(Mask::RETRY_CNT)
                .union(Mask::RNR_RETRY)
                .union(Mask::SQ_PSN)
                .union(Mask::MAX_QP_RD_ATOMIC),
            WHILE_CONNECTED,
        ),
        (Rts, Rts) | (Sqd, Rts) => (Mask::empty(), WHILE_CONNECTED),
        (Sqe, Rts) => (Mask::empty(), Mask::CUR_STATE),
        (Rts, Sqd) => (Mask::empty(), Mask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (
            Mask::empty(),
            Mask::PORT
                .union(Mask::AV)
                .union(Mask::TIMEOUT)
                .union(Mask::RETRY_CNT)
                .union(Mask::RNR_RETRY)
                .union(Mask::MAX_QP_RD_ATOMIC)
                .union(Mask::MAX_DEST_RD_ATOMIC)
                .union(Mask::ALT_PATH)
                .union(Mask::ACCESS_FLAGS)
                .union(Mask::PKEY_INDEX)
                .union(Mask::MIN_RNR_TIMER)
                .union(Mask::PATH_MIG_STATE),
        ),
        _ => return None,
    };
    Some(Rule { required, optional })
}

/// What may change of a queue pair that is (or becomes) ready to send.
const WHILE_CONNECTED: Mask = Mask::CUR_STATE
    .union(Mask::ALT_PATH)
    .union(Mask::ACCESS_FLAGS)
    .union(Mask::MIN_RNR_TIMER)
    .union(Mask::PATH_MIG_STATE);

/// Checks that `mask` suits the transition.
pub(crate) fn check_mask(from: QpState, to: QpState, mask: Mask) -> Result<()> {
    let rule = rule(from, to).ok_or(Error::InvalidArgument("there is no transition between these states"))?;
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
        for &(from, targets) in exist {
            for to in STATES {
                assert_eq!(rule(from, to).is_some(), targets.contains(&to), "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn each_required_attribute_is_required_and_no_other_is_allowed() {
        for from in STATES {
            for to in STATES {
                let Some(rule) = rule(from, to) else { continue };
                for attribute in Mask::all().iter() {
                    let without = (rule.required | Mask::STATE) - attribute;
                    assert_eq!(
                        check_mask(from, to, without).is_ok(),
                        !rule.required.contains(attribute),
                        "{from:?} to {to:?} without {attribute:?}"
                    );
                    let with = rule.required | Mask::STATE | attribute;
                    let is_allowed = (rule.required | rule.optional | Mask::STATE).contains(attribute)
                        && !(Mask::ALT_PATH | Mask::PATH_MIG_STATE).contains(attribute);
                    assert_eq!(check_mask(from, to, with).is_ok(), is_allowed, "{from:?} to {to:?} with {attribute:?}");
                }
            }
        }
    }
}
