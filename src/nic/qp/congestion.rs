//! What the device does with the flows of its queue pairs: makes them, lets them wait, brings them notifications.

use super::{
    super::{Error, Nic, QpState, Result, counters::add},
    Connection, PacedFlow, Qp, RateLimit,
};
use crate::{congestion::Congestion, status::QueuePairStatus};
use std::{
    net::IpAddr,
    sync::{Arc, atomic::AtomicU64},
};
use uroce_protocol::{
    Instant,
    congestion::Rate,
    wire::{PKey, Packet, Qpn, Service},
};

/// What a link is taken to carry that does not say: as much as loopback.
const USUAL_RATE: Rate = Rate::from_gbps(25);

impl Nic {
    /// How fast the port is.
    pub(crate) fn line_rate(&self) -> Rate {
        self.link.limits().speed.map_or(USUAL_RATE, |megabits| Rate::from_mbps(megabits.into()))
    }

    /// The flow of a new queue pair. Datagrams have as many flows as destinations, and nobody to slow down.
    pub(super) fn new_flow(&self, service: Service, congestion: Option<&Arc<Congestion>>) -> Option<Box<PacedFlow>> {
        let congestion = congestion.filter(|_| service != Service::Ud)?;
        Some(Box::new(PacedFlow::new(Some(congestion.clone()), self.line_rate())))
    }

    /// Takes a queue pair's flow back to its beginning, without a limit.
    pub(super) fn restart_flow(&self, qp: &Qp, connection: &mut Connection) {
        let Some(flow) = connection.flow.take() else { return };
        self.pacing.disarm(qp.number, flow.armed);
        connection.flow = self.new_flow(qp.service(), flow.congestion());
    }

    /// Has one queue pair control congestion in a way of its own, or not at all.
    pub(crate) fn set_congestion(&self, qp: &Arc<Qp>, congestion: Option<Congestion>) -> Result<()> {
        if qp.service() == Service::Ud {
            return Err(Error::InvalidArgument("datagrams have no connection whose congestion could be controlled"));
        }
        {
            let mut connection = qp.lock();
            let before = connection.flow.take();
            let limit = before.as_ref().and_then(|flow| flow.limit());
            if let Some(flow) = before {
                self.pacing.disarm(qp.number, flow.armed);
            }
            connection.flow = self.new_flow(qp.service(), congestion.map(Arc::new).as_ref());
            self.limit(&mut connection, limit);
            if connection.route.is_some() {
                let attributes = connection.attributes;
                connection.route = Some(self.route(qp.number, &attributes, connection.flow.as_deref()));
            }
        }
        self.doorbell(qp);
        Ok(())
    }

    /// Limits a queue pair's rate, or no more.
    pub(crate) fn set_rate_limit(&self, qp: &Arc<Qp>, limit: Option<RateLimit>) -> Result<()> {
        {
            let mut connection = qp.lock();
            if !matches!(connection.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
                return Err(Error::InvalidArgument("a queue pair's rate can be limited from RTR on"));
            }
            self.limit(&mut connection, limit);
        }
        self.doorbell(qp);
        Ok(())
    }

    /// How fast a queue pair may send now.
    pub(crate) fn send_rate(&self, qp: &Qp) -> Rate {
        let now = self.clock.now();
        qp.lock().flow.as_mut().map_or_else(|| self.line_rate(), |flow| flow.rate_at(now))
    }

    /// How queue pairs control congestion unless they are told otherwise.
    pub(crate) fn congestion(&self) -> Option<&Congestion> {
        self.congestion.as_deref()
    }

    /// How many queue pairs there are, and how the first `most` of them are.
    pub(crate) fn queue_pair_status(&self, most: usize) -> (u64, Vec<QueuePairStatus>) {
        let mut qps: Vec<_> = self.qps.read().iter().collect();
        let count = qps.len() as u64;
        qps.sort_by_key(|qp| qp.number);
        qps.truncate(most);
        let status = |qp: Arc<Qp>| {
            let rate = self.send_rate(&qp);
            let connection = qp.lock();
            let peer = connection.peer().map(|(number, route)| (route.peer, number));
            QueuePairStatus::new(qp.number, qp.qp_type(), connection.state, peer, rate)
        };
        (count, qps.into_iter().map(status).collect())
    }

    fn limit(&self, connection: &mut Connection, limit: Option<RateLimit>) {
        match &mut connection.flow {
            Some(flow) => flow.set_limit(limit),
            None if limit.is_none() => {}
            flow => flow.insert(Box::new(PacedFlow::new(None, self.line_rate()))).set_limit(limit),
        }
    }

    /// Acts on a congestion notification packet.
    pub(in crate::nic) fn take_notification(
        &self,
        now: Instant,
        connection: &mut Connection,
        packet: &Packet<'_>,
        source: IpAddr,
    ) {
        let is_heeded = PKey::DEFAULT.matches(packet.bth().pkey)
            && matches!(connection.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
            && connection.route.is_some_and(|route| route.is_peer(source))
            && connection.flow.as_mut().is_some_and(|flow| flow.on_notified(now));
        let counter: &AtomicU64 =
            if is_heeded { &self.counters.notifications_handled } else { &self.counters.notifications_ignored };
        add(counter, 1);
    }

    /// Notes when a flow that waits is to get its next turn.
    pub(super) fn arm_pacing(&self, number: Qpn, flow: &mut PacedFlow) {
        let deadline = flow.poll_timeout();
        self.arm(&self.pacing, number, &mut flow.armed, deadline);
    }

    /// Gives a turn to every queue pair whose rate has held it up long enough. Returns whether there was one.
    pub(in crate::nic) fn expire_pacing(&self, now: Instant) -> bool {
        let mut expired = false;
        while let Some((deadline, number)) = self.pacing.pop_expired(now) {
            expired = true;
            let Some(qp) = self.qp(number) else { continue };
            {
                let mut connection = qp.lock();
                let Some(flow) = connection.flow.as_mut().filter(|flow| flow.armed == Some(deadline)) else { continue };
                flow.armed = None;
            }
            self.schedule(qp);
        }
        expired
    }
}
