//! A case: its name, and what it does.

use crate::{
    bench::{Bench, Family, Tally, Wire},
    ends::{End, Rxe, Uroce},
    guest::Guest,
};
use std::path::Path;
use uroce::verbs::{Mtu, Quirks};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    UroceAsks,
    RxeAsks,
}

impl Role {
    pub(crate) const BOTH: [Self; 2] = [Self::UroceAsks, Self::RxeAsks];

    /// Requester and responder.
    pub(crate) fn order<'a>(self, uroce: &'a Uroce, rxe: &'a Rxe) -> (&'a dyn End, &'a dyn End) {
        match self {
            Self::UroceAsks => (uroce, rxe),
            Self::RxeAsks => (rxe, uroce),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::UroceAsks => "uroce-asks",
            Self::RxeAsks => "rxe-asks",
        }
    }
}

/// Both ends of the MTUs that hardware has too.
pub(crate) const MTUS: [Mtu; 2] = [Mtu::Mtu1024, Mtu::Mtu4096];

/// `mtu1024`.
pub(crate) fn mtu_name(mtu: Mtu) -> String {
    format!("mtu{}", mtu.bytes())
}

/// `rc/send/mtu1024/uroce-asks/ipv4`.
pub(crate) fn name(parts: &[&str], role: Role, family: Family) -> String {
    format!("{}/{}/{}", parts.join("/"), role.name(), family.name())
}

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) family: Family,
    pub(crate) wire: Wire,
    pub(crate) quirks: Quirks,
    pub(crate) body: Body,
}

/// Runs programs in the guest and here.
type Programs = dyn Fn(&mut Guest, &Path) -> Tally;

/// What a case does.
pub(crate) enum Body {
    /// With a device in this process.
    Verbs(Box<dyn Fn(&Bench)>),
    /// With programs, whose packets go to a capture file.
    Programs(Box<Programs>),
}

impl Case {
    pub(crate) fn new(name: String, family: Family, run: impl Fn(&Bench) + 'static) -> Self {
        Self { name, family, wire: Wire::Datagrams, quirks: Quirks::HARDWARE, body: Body::Verbs(Box::new(run)) }
    }

    /// uroce is to be as `--profile rxe` has it.
    pub(crate) fn with_profile_rxe(self) -> Self {
        Self { quirks: Quirks::RXE, ..self }
    }

    pub(crate) fn programs(name: String, family: Family, run: impl Fn(&mut Guest, &Path) -> Tally + 'static) -> Self {
        Self { name, family, wire: Wire::Datagrams, quirks: Quirks::HARDWARE, body: Body::Programs(Box::new(run)) }
    }
}
