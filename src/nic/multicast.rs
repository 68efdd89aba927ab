//! Multicast groups: which queue pairs have joined which.

use super::{
    Error, Gid, Nic, Qp, Result,
    attributes::{MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH},
};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::{io, net::IpAddr, sync::Arc};
use uroce_protocol::wire::Service;

/// The queue pairs of each group that has any.
#[derive(Debug, Default)]
pub(crate) struct MulticastTable(RwLock<FxHashMap<IpAddr, Arc<[Arc<Qp>]>>>);

impl MulticastTable {
    /// The queue pairs that have joined a group, if there are any.
    pub(crate) fn members(&self, group: IpAddr) -> Option<Arc<[Arc<Qp>]>> {
        self.0.read().get(&group).cloned()
    }

    /// Whether a queue pair has joined a group.
    pub(crate) fn is_attached(&self, qp: &Arc<Qp>) -> bool {
        self.0.read().values().any(|members| contains(members, qp))
    }
}

fn contains(members: &[Arc<Qp>], qp: &Arc<Qp>) -> bool {
    members.iter().any(|member| Arc::ptr_eq(member, qp))
}

fn without(members: &[Arc<Qp>], qp: &Arc<Qp>) -> Arc<[Arc<Qp>]> {
    members.iter().filter(|member| !Arc::ptr_eq(member, qp)).cloned().collect()
}

impl Nic {
    /// Has a queue pair receive what is sent to a group. Joining twice is joining once, as with rxe.
    pub(crate) fn attach_multicast(&self, qp: &Arc<Qp>, gid: &Gid) -> Result<()> {
        self.join(qp, self.group_of(qp, gid)?)?;
        if qp.lock().is_destroyed() {
            self.detach_from_all(qp);
            return Err(Error::InvalidArgument("the queue pair has been destroyed"));
        }
        Ok(())
    }

    fn join(&self, qp: &Arc<Qp>, group: IpAddr) -> Result<()> {
        let mut groups = self.multicast.0.write();
        let members = groups.get(&group).cloned();
        let old = members.as_deref().unwrap_or_default();
        if contains(old, qp) {
            return Ok(());
        }
        if old.len() >= MAX_MCAST_QP_ATTACH as usize {
            return Err(Error::Exhausted("no more queue pairs can join the multicast group"));
        }
        if members.is_none() {
            if groups.len() >= MAX_MCAST_GRP as usize {
                return Err(Error::Exhausted("no more multicast groups can be joined"));
            }
            self.link.join(group).map_err(|error| match error.kind() {
                io::ErrorKind::Unsupported => Error::NotSupported("the device's network carries no multicast"),
                _ => Error::os(format!("the multicast group {group} cannot be joined"), error),
            })?;
            // What it waits for may be another descriptor now.
            self.sleeper.wake_from_watch();
        }
        groups.insert(group, old.iter().chain([qp]).cloned().collect());
        Ok(())
    }

    /// Ends what [`Self::attach_multicast`] began.
    pub(crate) fn detach_multicast(&self, qp: &Arc<Qp>, gid: &Gid) -> Result<()> {
        let group = self.group_of(qp, gid)?;
        let mut groups = self.multicast.0.write();
        match groups.get_mut(&group) {
            Some(members) if contains(members, qp) => {
                *members = without(members, qp);
                self.leave_empty(&mut groups);
                Ok(())
            }
            _ => Err(Error::InvalidArgument("the queue pair has not joined the multicast group")),
        }
    }

    /// Whether a queue pair has joined a group.
    pub(crate) fn is_in_a_group(&self, qp: &Arc<Qp>) -> bool {
        self.multicast.is_attached(qp)
    }

    /// Takes a queue pair out of every group, because it goes away.
    pub(super) fn detach_from_all(&self, qp: &Arc<Qp>) {
        if qp.service() != Service::Ud || !self.multicast.is_attached(qp) {
            return;
        }
        let mut groups = self.multicast.0.write();
        groups.values_mut().for_each(|members| *members = without(members, qp));
        self.leave_empty(&mut groups);
    }

    fn leave_empty(&self, groups: &mut FxHashMap<IpAddr, Arc<[Arc<Qp>]>>) {
        groups.retain(|&group, members| {
            if members.is_empty()
                && let Err(error) = self.link.leave(group)
            {
                tracing::debug!(%error, %group, "a multicast group could not be left");
            }
            !members.is_empty()
        });
    }

    fn group_of(&self, qp: &Qp, gid: &Gid) -> Result<IpAddr> {
        if qp.service() != Service::Ud {
            return Err(Error::InvalidArgument("only datagram queue pairs join multicast groups"));
        }
        gid.multicast_group()
            .filter(|group| group.is_ipv4() == self.address.is_ipv4())
            .ok_or(Error::InvalidArgument("the GID is not a multicast group of the device's IP version"))
    }
}
