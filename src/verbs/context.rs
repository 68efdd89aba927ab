//! An open device.

use super::{
    AsyncEvent, CompletionChannel, CompletionQueue, Device, DeviceAttributes, Gid, GidEntry, PKey, PortAttributes,
    ProtectionDomain, Result,
};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// An open device (`struct ibv_context`): where every object begins.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<()>,
}

impl Context {
    /// The device.
    pub fn device(&self) -> &Device {
        let _ = &self.inner;
        todo!()
    }

    /// What the device can do (`ibv_query_device`).
    pub fn query_device(&self) -> DeviceAttributes {
        todo!()
    }

    /// What a port says of itself (`ibv_query_port`). There is one port, 1: `EINVAL` for any other.
    pub fn query_port(&self, port_num: u8) -> Result<PortAttributes> {
        let _ = port_num;
        todo!()
    }

    /// A port's GID (`ibv_query_gid`).
    pub fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid> {
        Ok(self.query_gid_entry(port_num, index)?.gid)
    }

    /// A port's GID with its type (`ibv_query_gid_ex`).
    pub fn query_gid_entry(&self, port_num: u8, index: u32) -> Result<GidEntry> {
        let _ = (port_num, index);
        todo!()
    }

    /// A port's partition key (`ibv_query_pkey`): the default one, at index 0.
    pub fn query_pkey(&self, port_num: u8, index: u16) -> Result<PKey> {
        let _ = (port_num, index);
        todo!()
    }

    /// Makes a protection domain (`ibv_alloc_pd`).
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        todo!()
    }

    /// Makes a completion channel (`ibv_create_comp_channel`).
    pub fn create_comp_channel(&self) -> Result<CompletionChannel> {
        todo!()
    }

    /// Makes a completion queue for at least `cqe` completions (`ibv_create_cq`). Its events go to `channel`, and
    /// carry `cq_context`.
    ///
    /// # Errors
    /// `EINVAL` when `cqe` is 0 or more than `max_cqe`, or the channel is another device's.
    pub fn create_cq(&self, cqe: u32, cq_context: u64, channel: Option<&CompletionChannel>) -> Result<CompletionQueue> {
        let _ = (cqe, cq_context, channel);
        todo!()
    }

    /// Waits for the next asynchronous event (`ibv_get_async_event`). The descriptor ([`AsFd`]) is readable while
    /// there is one; when it is non-blocking ([`Self::set_nonblocking`]) the answer may be `EAGAIN`.
    pub fn get_async_event(&self) -> Result<AsyncEvent> {
        todo!()
    }

    /// Whether [`Self::get_async_event`] waits. Same as setting `O_NONBLOCK` on the descriptor.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        let _ = nonblocking;
        todo!()
    }
}

impl AsFd for Context {
    /// The descriptor that is readable while an asynchronous event waits (`ibv_context.async_fd`).
    fn as_fd(&self) -> BorrowedFd<'_> {
        todo!()
    }
}
