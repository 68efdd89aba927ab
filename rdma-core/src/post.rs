//! The way of work requests from C to the queues: one by one, as the chain is walked. Nothing is copied but what the
//! queue keeps, nothing is allocated.

use crate::{
    entry::{self, Refusal, Result},
    qp::Qp,
    types::{ibv_recv_wr, ibv_send_wr},
};
use libc::{c_int, c_uint};
use std::{ptr, slice};
use uroce::verbs::{Buffers, QpType, RKey, SendOperation, SendPoster, SendWorkRequest, Sge, Target};

pub(crate) const SEND_FENCE: c_uint = 1 << 0;
pub(crate) const SEND_SIGNALED: c_uint = 1 << 1;
pub(crate) const SEND_SOLICITED: c_uint = 1 << 2;
const SEND_INLINE: c_uint = 1 << 3;

/// The most elements of an inline send. What is longer cannot have been asked for: `max_send_sge` is not greater.
const MAX_INLINE_PARTS: usize = 32;

/// A list of scatter-gather elements.
///
/// # Safety
/// `list` must point to `length` elements that stay as they are during `'a`, if there are any.
unsafe fn elements<'a>(list: *const Sge, length: c_int) -> Result<&'a [Sge]> {
    match usize::try_from(length) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise.
        Ok(length) if !list.is_null() => Ok(unsafe { slice::from_raw_parts(list, length) }),
        _ => Err(Refusal::invalid("this is no list of scatter-gather elements")),
    }
}

/// What a work request is to do.
///
/// # Safety
/// The union in `wr` must hold what its opcode says.
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOperation> {
    let rdma = || {
        // SAFETY: the caller's promise.
        let remote = unsafe { wr.wr.rdma };
        (remote.remote_addr, RKey(remote.rkey))
    };
    let atomic = || {
        // SAFETY: the caller's promise.
        unsafe { wr.wr.atomic }
    };
    let immediate = u32::from_be(wr.imm_data);
    Ok(match wr.opcode {
        0 => {
            let (address, rkey) = rdma();
            SendOperation::Write { address, rkey }
        }
        1 => {
            let (address, rkey) = rdma();
            SendOperation::WriteWithImmediate { address, rkey, immediate }
        }
        2 => SendOperation::Send,
        3 => SendOperation::SendWithImmediate(immediate),
        4 => {
            let (address, rkey) = rdma();
            SendOperation::Read { address, rkey }
        }
        5 => {
            let remote = atomic();
            SendOperation::CompareSwap {
                address: remote.remote_addr,
                rkey: RKey(remote.rkey),
                compare: remote.compare_add,
                swap: remote.swap,
            }
        }
        6 => {
            let remote = atomic();
            SendOperation::FetchAdd { address: remote.remote_addr, rkey: RKey(remote.rkey), add: remote.compare_add }
        }
        7 => SendOperation::LocalInvalidate(RKey(wr.imm_data)),
        8 => {
            // SAFETY: the caller's promise.
            let bind = unsafe { wr.extra.bind_mw };
            // SAFETY: the program passes a memory window that it has not deallocated, or NULL.
            let window = unsafe { bind.mw.as_ref() }.ok_or(Refusal::invalid("the memory window is missing"))?;
            SendOperation::BindMemoryWindow(window.binding(bind.rkey, &bind.bind_info)?)
        }
        9 => SendOperation::SendWithInvalidate(RKey(wr.imm_data)),
        15 => {
            let (address, rkey) = rdma();
            SendOperation::AtomicWrite { address, rkey }
        }
        _ => return Err(Refusal::invalid("there is no such operation")),
    })
}

/// Where a request goes.
///
/// # Safety
/// `wr` must hold what a queue pair of the type wants in it.
unsafe fn target(qp_type: QpType, wr: &ibv_send_wr) -> Result<Target> {
    match qp_type {
        QpType::Ud => {}
        QpType::XrcSend => return Ok(Target::SharedReceiveQueue(wr.remote_srqn)),
        _ => return Ok(Target::Peer),
    }
    // SAFETY: the caller's promise.
    let ud = unsafe { wr.wr.ud };
    // SAFETY: the program passes an address handle that it has not destroyed, or NULL.
    let ah = unsafe { ud.ah.as_ref() }.ok_or(Refusal::invalid("the address handle is missing"))?;
    ah.target(ud.remote_qpn, ud.remote_qkey)
}

/// Posts one request.
///
/// # Safety
/// The request must be as `ibv_post_send` wants it: its union and lists as its opcode and lengths say, and inline data
/// readable.
unsafe fn post_one(poster: &mut SendPoster<'_>, qp_type: QpType, wr: &ibv_send_wr) -> Result<()> {
    // SAFETY: the caller's promise.
    let (operation, target, list) =
        unsafe { (operation(wr)?, target(qp_type, wr)?, elements(wr.sg_list, wr.num_sge)?) };
    let mut parts: [&[u8]; MAX_INLINE_PARTS];
    let buffers = if wr.send_flags & SEND_INLINE == 0 {
        Buffers::List(list)
    } else {
        parts = [&[]; MAX_INLINE_PARTS];
        let parts =
            parts.get_mut(..list.len()).ok_or(Refusal::invalid("more elements than the queue pair was made for"))?;
        for (part, element) in parts.iter_mut().zip(list) {
            if element.length > 0 {
                let start = ptr::with_exposed_provenance(element.address as usize);
                // SAFETY: inline data is named by its address in the program, and the program leaves it alone until
                // the call returns.
                *part = unsafe { slice::from_raw_parts(start, element.length as usize) };
            }
        }
        Buffers::Inline(parts)
    };
    Ok(poster.post(&SendWorkRequest {
        wr_id: wr.wr_id,
        operation,
        buffers,
        signaled: wr.send_flags & SEND_SIGNALED != 0,
        solicited: wr.send_flags & SEND_SOLICITED != 0,
        fence: wr.send_flags & SEND_FENCE != 0,
        target,
    })?)
}

pub(crate) unsafe extern "C" fn post_send(qp: &Qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    let mut next = wr;
    let posted = entry::guard(|| {
        qp.birth.check()?;
        let qp_type = qp.qp_type;
        qp.verbs.post_send_with(|poster| {
            // SAFETY: the program's chain ends in NULL.
            while let Some(wr) = unsafe { next.as_ref() } {
                // SAFETY: the program's requests are as the verb wants them.
                unsafe { post_one(poster, qp_type, wr)? };
                next = wr.next;
            }
            Ok(())
        })
    });
    // SAFETY: the program has passed where to put the request that was not taken.
    unsafe { conclude("ibv_post_send", posted, next, bad_wr) }
}

/// Hands every receive of a chain to `post`. When one is refused, `next` is left at it.
///
/// # Safety
/// The chain must end in NULL, and its requests be as `ibv_post_recv` wants them.
pub(crate) unsafe fn each_receive(
    next: &mut *mut ibv_recv_wr,
    mut post: impl FnMut(u64, &[Sge]) -> Result<()>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        post(wr.wr_id, unsafe { elements(wr.sg_list, wr.num_sge)? })?;
        *next = wr.next;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn post_recv(qp: &Qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    let mut next = wr;
    let posted = entry::guard(|| {
        qp.birth.check()?;
        qp.verbs.post_recv_with(|poster| {
            // SAFETY: the program's chain ends in NULL, and its requests are as the verb wants them.
            unsafe { each_receive(&mut next, |wr_id, list| Ok(poster.post(wr_id, list)?)) }
        })
    });
    // SAFETY: as for sends.
    unsafe { conclude("ibv_post_recv", posted, next, bad_wr) }
}

/// Says which request was the first that was not taken, if one was not.
///
/// # Safety
/// `bad_wr` must be valid for writing.
pub(crate) unsafe fn conclude<T>(verb: &str, posted: Result<()>, next: *mut T, bad_wr: *mut *mut T) -> c_int {
    match posted {
        Ok(()) => 0,
        Err(refusal) => {
            // SAFETY: the caller's promise.
            unsafe { bad_wr.write(next) };
            refusal.report(verb)
        }
    }
}
