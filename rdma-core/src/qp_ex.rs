//! Posting sends piece by piece (`struct ibv_qp_ex`, `ibv_wr_*`).
//!
//! Between `ibv_wr_start` and `ibv_wr_complete` a program describes requests by calls: one for what to do, others for
//! the data and the target. They are collected here, in memory that is kept from batch to batch, and posted all at
//! once or, if one of them cannot be, not at all. The batch is its thread's: another that starts one waits.

use crate::{
    ah::Ah,
    entry::{self, Refusal, Result},
    mw::Mw,
    post::{SEND_FENCE, SEND_SIGNALED, SEND_SOLICITED},
    qp::Qp,
    types::{ibv_data_buf, ibv_mw_bind_info, ibv_qp_ex},
};
use libc::{c_int, c_uint, c_void, size_t};
use parking_lot::{RawMutex, lock_api::RawMutex as _};
use std::{cell::UnsafeCell, ops::Range, slice};
use uroce::verbs::{Buffers, FlushPlacement, QpType, RKey, SendOperation, SendPoster, SendWorkRequest, Sge, Target};

/// `enum ibv_qp_create_send_ops_flags`, as far as the device has the operations.
const WRITE: u64 = 1 << 0;
const WRITE_WITH_IMM: u64 = 1 << 1;
const SEND: u64 = 1 << 2;
const SEND_WITH_IMM: u64 = 1 << 3;
const READ: u64 = 1 << 4;
const COMPARE_SWAP: u64 = 1 << 5;
const FETCH_ADD: u64 = 1 << 6;
const LOCAL_INV: u64 = 1 << 7;
const BIND_MW: u64 = 1 << 8;
const SEND_WITH_INV: u64 = 1 << 9;
const FLUSH: u64 = 1 << 11;
const ATOMIC_WRITE: u64 = 1 << 12;

/// The operations that a queue pair of a type can be asked for.
const fn send_ops(qp_type: QpType) -> u64 {
    match qp_type {
        QpType::Ud => SEND | SEND_WITH_IMM,
        QpType::Uc => WRITE | WRITE_WITH_IMM | SEND | SEND_WITH_IMM,
        QpType::XrcRecv => 0,
        _ => {
            WRITE
                | WRITE_WITH_IMM
                | SEND
                | SEND_WITH_IMM
                | READ
                | COMPARE_SWAP
                | FETCH_ADD
                | LOCAL_INV
                | BIND_MW
                | SEND_WITH_INV
                | FLUSH
                | ATOMIC_WRITE
        }
    }
}

/// Refuses operations that the queue pair will not have.
pub(crate) const fn check_send_ops(qp_type: QpType, flags: u64) -> Result<()> {
    if flags & !send_ops(qp_type) == 0 {
        Ok(())
    } else {
        Err(Refusal::not_supported("the queue pair has no such operation"))
    }
}

/// The batch of a queue pair.
pub(crate) struct Writer {
    /// Held from wr_start to wr_complete or wr_abort.
    lock: RawMutex,
    /// Belongs to whoever holds the lock.
    batch: UnsafeCell<Batch>,
}

impl Default for Writer {
    fn default() -> Self {
        Self { lock: RawMutex::INIT, batch: UnsafeCell::default() }
    }
}

/// Requests that have been described and not posted.
#[derive(Default)]
struct Batch {
    requests: Vec<Request>,
    /// The scatter-gather lists of all requests, one after the other.
    list: Vec<Sge>,
    /// The inline data of all requests.
    bytes: Vec<u8>,
    /// Something was asked for that cannot be: the batch will not be posted.
    refusal: Option<Refusal>,
}

struct Request {
    wr_id: u64,
    flags: c_uint,
    operation: SendOperation,
    target: Target,
    data: Data,
}

/// Where a request's data lie in the batch.
enum Data {
    List(Range<usize>),
    Inline(Range<usize>),
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.list.clear();
        self.bytes.clear();
        self.refusal = None;
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.refusal.get_or_insert(refusal);
    }

    /// The request that is being described.
    fn last(&mut self) -> Option<&mut Request> {
        if self.requests.is_empty() {
            self.refuse(Refusal::invalid("data or a target came before the operation that they are for"));
        }
        self.requests.last_mut()
    }

    fn set_target(&mut self, target: Target) {
        if let Some(request) = self.last() {
            request.target = target;
        }
    }

    fn set_list(&mut self, list: &[Sge]) {
        let start = self.list.len();
        self.list.extend_from_slice(list);
        let data = Data::List(start..self.list.len());
        if let Some(request) = self.last() {
            request.data = data;
        }
    }

    /// # Safety
    /// Every part must be valid for reads.
    unsafe fn set_inline(&mut self, parts: impl Iterator<Item = (*const u8, usize)>) {
        let start = self.bytes.len();
        for (part, length) in parts {
            if length > 0 {
                // SAFETY: the caller's promise.
                self.bytes.extend_from_slice(unsafe { slice::from_raw_parts(part, length) });
            }
        }
        let data = Data::Inline(start..self.bytes.len());
        if let Some(request) = self.last() {
            request.data = data;
        }
    }

    fn post(&self, poster: &mut SendPoster<'_>) -> Result<()> {
        for request in &self.requests {
            let inline;
            let buffers = match &request.data {
                Data::List(range) => Buffers::List(&self.list[range.clone()]),
                Data::Inline(range) => {
                    inline = [&self.bytes[range.clone()]];
                    Buffers::Inline(&inline)
                }
            };
            poster.post(&SendWorkRequest {
                wr_id: request.wr_id,
                operation: request.operation,
                buffers,
                signaled: request.flags & SEND_SIGNALED != 0,
                solicited: request.flags & SEND_SOLICITED != 0,
                fence: request.flags & SEND_FENCE != 0,
                target: request.target,
            })?;
        }
        Ok(())
    }
}

/// The batch of a queue pair, whose lock the program holds by having started one.
fn with_batch(qp: &Qp, describe: impl FnOnce(&mut Batch)) {
    if qp.birth.check().is_err() {
        return;
    }
    // SAFETY: programs describe requests between wr_start and wr_complete, when the batch is theirs, and none of these
    // functions calls another.
    let batch = unsafe { &mut *qp.writer.batch.get() };
    let described = entry::guard(|| {
        describe(batch);
        Ok(())
    });
    if let Err(refusal) = described {
        batch.refuse(refusal);
    }
}

/// Begins a request, with the number and flags that the program has put into the struct.
fn begin(qp: &Qp, operation: SendOperation) {
    with_batch(qp, |batch| {
        let base = qp.base();
        // SAFETY: these fields are the program's, which is this thread.
        let (wr_id, flags) = unsafe { ((*base).wr_id, (*base).wr_flags) };
        batch.requests.push(Request { wr_id, flags, operation, target: Target::Peer, data: Data::List(0..0) });
    });
}

/// The program asks for what this queue pair does not have.
fn refuse(qp: &Qp, sentence: &'static str) {
    with_batch(qp, |batch| batch.refuse(Refusal::not_supported(sentence)));
}

/// Fills the slots of a queue pair's struct.
pub(crate) fn fill(base: &mut ibv_qp_ex) {
    base.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    base.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    base.wr_bind_mw = Some(wr_bind_mw);
    base.wr_local_inv = Some(wr_local_inv);
    base.wr_rdma_read = Some(wr_rdma_read);
    base.wr_rdma_write = Some(wr_rdma_write);
    base.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    base.wr_send = Some(wr_send);
    base.wr_send_imm = Some(wr_send_imm);
    base.wr_send_inv = Some(wr_send_inv);
    base.wr_send_tso = Some(wr_send_tso);
    base.wr_set_ud_addr = Some(wr_set_ud_addr);
    base.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    base.wr_set_inline_data = Some(wr_set_inline_data);
    base.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    base.wr_set_sge = Some(wr_set_sge);
    base.wr_set_sge_list = Some(wr_set_sge_list);
    base.wr_start = Some(wr_start);
    base.wr_complete = Some(wr_complete);
    base.wr_abort = Some(wr_abort);
    base.wr_atomic_write = Some(wr_atomic_write);
    base.wr_flush = Some(wr_flush);
}

extern "C" fn wr_start(qp: &Qp) {
    if qp.birth.check().is_ok() {
        qp.writer.lock.lock();
        with_batch(qp, Batch::clear);
    }
}

fn release(qp: &Qp) {
    // SAFETY: wr_start has locked it for this caller.
    unsafe { qp.writer.lock.unlock() };
}

extern "C" fn wr_complete(qp: &Qp) -> c_int {
    entry::errno("ibv_wr_complete", || {
        qp.birth.check()?;
        let posted = entry::guard(|| {
            // SAFETY: the program has started the batch, so it is its.
            let batch = unsafe { &mut *qp.writer.batch.get() };
            match batch.refusal.take() {
                Some(refusal) => Err(refusal),
                None => qp.verbs.post_send_with(|poster| poster.all_or_none(|poster| batch.post(poster))),
            }
        });
        release(qp);
        posted
    })
}

extern "C" fn wr_abort(qp: &Qp) {
    if qp.birth.check().is_ok() {
        release(qp);
    }
}

extern "C" fn wr_rdma_write(qp: &Qp, rkey: u32, remote_addr: u64) {
    begin(qp, SendOperation::Write { address: remote_addr, rkey: RKey(rkey) });
}

extern "C" fn wr_rdma_write_imm(qp: &Qp, rkey: u32, remote_addr: u64, imm_data: u32) {
    let immediate = u32::from_be(imm_data);
    begin(qp, SendOperation::WriteWithImmediate { address: remote_addr, rkey: RKey(rkey), immediate });
}

extern "C" fn wr_rdma_read(qp: &Qp, rkey: u32, remote_addr: u64) {
    begin(qp, SendOperation::Read { address: remote_addr, rkey: RKey(rkey) });
}

extern "C" fn wr_atomic_cmp_swp(qp: &Qp, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
    begin(qp, SendOperation::CompareSwap { address: remote_addr, rkey: RKey(rkey), compare, swap });
}

extern "C" fn wr_atomic_fetch_add(qp: &Qp, rkey: u32, remote_addr: u64, add: u64) {
    begin(qp, SendOperation::FetchAdd { address: remote_addr, rkey: RKey(rkey), add });
}

extern "C" fn wr_send(qp: &Qp) {
    begin(qp, SendOperation::Send);
}

extern "C" fn wr_send_imm(qp: &Qp, imm_data: u32) {
    begin(qp, SendOperation::SendWithImmediate(u32::from_be(imm_data)));
}

extern "C" fn wr_send_inv(qp: &Qp, invalidate_rkey: u32) {
    begin(qp, SendOperation::SendWithInvalidate(RKey(invalidate_rkey)));
}

extern "C" fn wr_bind_mw(qp: &Qp, mw: &Mw, rkey: u32, bind_info: &ibv_mw_bind_info) {
    match entry::guard(|| mw.binding(rkey, bind_info)) {
        Ok(binding) => begin(qp, SendOperation::BindMemoryWindow(binding)),
        Err(refusal) => with_batch(qp, |batch| batch.refuse(refusal)),
    }
}

extern "C" fn wr_local_inv(qp: &Qp, invalidate_rkey: u32) {
    begin(qp, SendOperation::LocalInvalidate(RKey(invalidate_rkey)));
}

extern "C" fn wr_send_tso(qp: &Qp, _hdr: *mut c_void, _hdr_sz: u16, _mss: u16) {
    refuse(qp, "there is no segmentation of TCP");
}

/// `atomic_wr` points to the eight bytes.
unsafe extern "C" fn wr_atomic_write(qp: &Qp, rkey: u32, remote_addr: u64, atomic_wr: *const c_void) {
    begin(qp, SendOperation::AtomicWrite { address: remote_addr, rkey: RKey(rkey) });
    // SAFETY: the program passes eight bytes.
    with_batch(qp, |batch| unsafe { batch.set_inline([(atomic_wr.cast(), 8)].into_iter()) });
}

/// `placement` is of `enum ibv_placement_type`, `selectivity` of `enum ibv_selectivity_level`: a range or its region.
extern "C" fn wr_flush(qp: &Qp, rkey: u32, remote_addr: u64, length: size_t, placement: u8, selectivity: u8) {
    let (Ok(length), Some(placement), 0..=1) =
        (u32::try_from(length), FlushPlacement::from_bits(placement), selectivity)
    else {
        return refuse(qp, "there is no such flush");
    };
    let whole_region = selectivity == 1;
    let rkey = RKey(rkey);
    begin(qp, SendOperation::Flush { address: remote_addr, rkey, length, placement, whole_region });
}

extern "C" fn wr_set_ud_addr(qp: &Qp, ah: &Ah, remote_qpn: u32, remote_qkey: u32) {
    with_batch(qp, |batch| match ah.target(remote_qpn, remote_qkey) {
        Ok(target) => batch.set_target(target),
        Err(refusal) => batch.refuse(refusal),
    });
}

extern "C" fn wr_set_xrc_srqn(qp: &Qp, remote_srqn: u32) {
    with_batch(qp, |batch| batch.set_target(Target::SharedReceiveQueue(remote_srqn)));
}

extern "C" fn wr_set_sge(qp: &Qp, lkey: u32, addr: u64, length: u32) {
    with_batch(qp, |batch| batch.set_list(&[Sge { address: addr, length, lkey }]));
}

unsafe extern "C" fn wr_set_sge_list(qp: &Qp, num_sge: size_t, sg_list: *const Sge) {
    with_batch(qp, |batch| {
        // SAFETY: the program's list is as long as it says.
        batch.set_list(if num_sge == 0 { &[] } else { unsafe { slice::from_raw_parts(sg_list, num_sge) } });
    });
}

unsafe extern "C" fn wr_set_inline_data(qp: &Qp, addr: *const c_void, length: size_t) {
    // SAFETY: the program's data are as long as it says.
    with_batch(qp, |batch| unsafe { batch.set_inline([(addr.cast(), length)].into_iter()) });
}

unsafe extern "C" fn wr_set_inline_data_list(qp: &Qp, num_buf: size_t, buf_list: *const ibv_data_buf) {
    with_batch(qp, |batch| {
        // SAFETY: the program's list and data are as long as it says.
        unsafe {
            let parts = if num_buf == 0 { &[][..] } else { slice::from_raw_parts(buf_list, num_buf) };
            batch.set_inline(parts.iter().map(|part| (part.addr.cast_const().cast(), part.length)));
        }
    });
}
