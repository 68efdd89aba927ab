//! An open device.

use super::{
    AsyncEvent, CompletionChannel, CompletionQueue, Device, DeviceAttributes, Error, Gid, GidEntry, PKey, PORT,
    PortAttributes, ProtectionDomain, Result,
};
use crate::nic::{EventQueue, Nic, PKEY_TABLE_LEN};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// An open device (`struct ibv_context`): where every object begins.
#[derive(Clone, Debug)]
pub struct Context {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    device: Device,
    events: Arc<EventQueue<AsyncEvent>>,
}

impl Context {
    pub(super) fn new(device: Device) -> Result<Self> {
        let events = Arc::new(EventQueue::new()?);
        Ok(Self { shared: Arc::new(Shared { device, events }) })
    }

    pub(super) fn nic(&self) -> &Arc<Nic> {
        self.shared.device.nic()
    }

    pub(super) fn events(&self) -> &Arc<EventQueue<AsyncEvent>> {
        &self.shared.events
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// What the device can do (`ibv_query_device`).
    pub fn query_device(&self) -> DeviceAttributes {
        DeviceAttributes::new(self.device().guid())
    }

    /// What a port says of itself (`ibv_query_port`). There is one port, 1: `EINVAL` for any other.
    pub fn query_port(&self, port_num: u8) -> Result<PortAttributes> {
        check_port(port_num)?;
        Ok(PortAttributes::new(self.nic().active_mtu(), &self.nic().counters()))
    }

    /// A port's GID (`ibv_query_gid`).
    pub fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid> {
        Ok(self.query_gid_entry(port_num, index)?.gid)
    }

    /// A port's GID with its type (`ibv_query_gid_ex`).
    pub fn query_gid_entry(&self, port_num: u8, index: u32) -> Result<GidEntry> {
        check_port(port_num)?;
        if index != 0 {
            return Err(Error::InvalidArgument("the port has one GID, at index 0"));
        }
        Ok(GidEntry::new(self.device().gid()))
    }

    /// A port's partition key (`ibv_query_pkey`): the default one, at index 0.
    pub fn query_pkey(&self, port_num: u8, index: u16) -> Result<PKey> {
        check_port(port_num)?;
        if index >= PKEY_TABLE_LEN {
            return Err(Error::InvalidArgument("there is no such partition key"));
        }
        Ok(PKey::DEFAULT)
    }

    /// Makes a protection domain (`ibv_alloc_pd`).
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        Ok(ProtectionDomain::new(self.clone()))
    }

    /// Makes a completion channel (`ibv_create_comp_channel`).
    pub fn create_comp_channel(&self) -> Result<CompletionChannel> {
        CompletionChannel::new(self.clone())
    }

    /// Makes a completion queue for at least `cqe` completions (`ibv_create_cq`). Its events go to `channel`, and
    /// carry `cq_context`.
    ///
    /// # Errors
    /// `EINVAL` when `cqe` is 0 or more than `max_cqe`, or the channel is another context's.
    pub fn create_cq(&self, cqe: u32, cq_context: u64, channel: Option<&CompletionChannel>) -> Result<CompletionQueue> {
        CompletionQueue::new(self.clone(), cqe, cq_context, channel)
    }

    /// Waits for the next asynchronous event (`ibv_get_async_event`). The descriptor ([`AsFd`]) is readable while
    /// there is one; when it is non-blocking ([`Self::set_nonblocking`]) the answer may be `EAGAIN`.
    pub fn get_async_event(&self) -> Result<AsyncEvent> {
        self.shared.events.pop()
    }

    /// Whether [`Self::get_async_event`] waits. Same as setting `O_NONBLOCK` on the descriptor.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        self.shared.events.set_nonblocking(nonblocking)
    }
}

impl AsFd for Context {
    /// The descriptor that is readable while an asynchronous event waits (`ibv_context.async_fd`).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.events.as_fd()
    }
}

fn check_port(port_num: u8) -> Result<()> {
    if port_num == PORT { Ok(()) } else { Err(Error::InvalidArgument("the device has port 1 only")) }
}
