//! Completion channels.

use crate::{
    context::ContextHandle,
    cq::Cq,
    entry::{self, Result},
    fork::Birth,
    types::ibv_comp_channel,
};
use libc::{c_int, c_void};
use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd},
    ptr,
};
use uroce::verbs::CompletionChannel;

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(crate) struct Channel {
    base: ibv_comp_channel,
    pub(crate) verbs: CompletionChannel,
    pub(crate) birth: Birth,
    _context: ContextHandle,
}

impl Channel {
    pub(crate) fn create(context: ContextHandle) -> Result<*mut Self> {
        let verbs = context.verbs().create_comp_channel()?;
        let base = ibv_comp_channel { context: context.as_raw(), fd: verbs.as_fd().as_raw_fd(), refcnt: 0 };
        Ok(Box::into_raw(Box::new(Self { base, verbs, birth: Birth::now(), _context: context })))
    }
}

pub(crate) unsafe extern "C" fn destroy_comp_channel(channel: *mut Channel) -> c_int {
    entry::errno("ibv_destroy_comp_channel", || {
        // SAFETY: the program passes a channel that it has not destroyed.
        let this = unsafe { &*channel };
        this.birth.check()?;
        this.verbs.destroy()?;
        // SAFETY: it came from Box::into_raw, and the program gives it back.
        drop(unsafe { Box::from_raw(channel) });
        Ok(())
    })
}

pub(crate) extern "C" fn get_cq_event(
    channel: &Channel,
    cq: &mut MaybeUninit<*const Cq>,
    cq_context: &mut MaybeUninit<*mut c_void>,
) -> c_int {
    entry::number("ibv_get_cq_event", || {
        channel.birth.check()?;
        let woken = channel.verbs.get_event()?;
        let object: *const Cq = ptr::with_exposed_provenance(woken.cq_context() as usize);
        cq.write(object);
        // SAFETY: the completion queue is alive as long as this event is not acknowledged.
        cq_context.write(unsafe { &*object }.cq_context());
        Ok(0)
    })
}
