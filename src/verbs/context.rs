//! An open device.

use super::{
    AddressHandleAttributes, AsyncEvent, CompletionChannel, CompletionQueue, Device, DeviceAttributes, Error, Gid,
    GidEntry, Instant, PKey, PORT, PortAttributes, ProtectionDomain, Result, WorkCompletion, XrcDomain,
    XrcDomainInitAttributes, address_handle::attributes_of_sender,
};
use crate::nic::{EventQueue, Nic, PKEY_TABLE_LEN};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};
use uroce_protocol::wire::GRH_LEN;

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

    /// The device's clock now (`ibv_query_rt_values_ex`, `raw_clock`): what completions are stamped with.
    pub fn raw_clock(&self) -> Instant {
        self.nic().now()
    }

    /// What a port says of itself (`ibv_query_port`). There is one port, 1: `EINVAL` for any other.
    pub fn query_port(&self, port_num: u8) -> Result<PortAttributes> {
        check_port(port_num)?;
        Ok(self.nic().port_attributes())
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
        Ok(self.nic().gid_entry())
    }

    /// A port's partition key (`ibv_query_pkey`): the default one, at index 0.
    pub fn query_pkey(&self, port_num: u8, index: u16) -> Result<PKey> {
        check_port(port_num)?;
        if index >= PKEY_TABLE_LEN {
            return Err(Error::InvalidArgument("there is no such partition key"));
        }
        Ok(PKey::DEFAULT)
    }

    /// The attributes of an address handle that leads back to whoever sent a datagram (`ibv_init_ah_from_wc`): found
    /// in the datagram's completion, and in the first 40 bytes of its buffers.
    ///
    /// # Errors
    /// `EINVAL` when the bytes are no network header, or one of a packet that was not sent to the device's own
    /// address (as from a multicast group).
    pub fn init_ah_from_wc(
        &self,
        port_num: u8,
        completion: &WorkCompletion,
        grh: &[u8; GRH_LEN],
    ) -> Result<AddressHandleAttributes> {
        check_port(port_num)?;
        attributes_of_sender(self, port_num, completion, grh)
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

    /// Opens an XRC domain (`ibv_open_xrcd`).
    ///
    /// # Errors
    /// `EAGAIN` when the file has none and none is to be made, `EINVAL` when it has one and none was wanted, as Linux
    /// answers; the system's when the descriptor is no file.
    pub fn open_xrcd(&self, attributes: &XrcDomainInitAttributes<'_>) -> Result<XrcDomain> {
        XrcDomain::open(self.clone(), attributes)
    }

    /// Waits for the next asynchronous event (`ibv_get_async_event`). The descriptor ([`AsFd`]) is readable while
    /// there is one; when it is non-blocking ([`Self::set_nonblocking`]) the answer may be `EAGAIN`. A signal
    /// whose handler does not restart system calls ends the wait with `EINTR`.
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
