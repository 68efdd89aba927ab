//! Queue pairs: making, changing and asking them. Posting is in [`crate::post`].

use crate::{
    context::{ContextHandle, ContextPtr, Object, Unacknowledged},
    entry::{self, Refusal, Result},
    fork::Birth,
    lid,
    pd::Pd,
    qp_ex::{self, Writer},
    types::{
        ibv_ah_attr, ibv_ece, ibv_gid, ibv_global_route, ibv_packet_pacing_caps, ibv_qp, ibv_qp_attr, ibv_qp_cap,
        ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_rate_limit_attr,
    },
    xrc::Xrcd,
};
use libc::{c_int, c_uint, c_void};
use std::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    ptr::{self, NonNull},
};
use uroce::verbs::{
    AccessFlags, AddressHandleAttributes, Gid, GlobalRoute, Mtu, QpAttributeMask, QpAttributes, QpCapabilities,
    QpInitAttributes, QpRateLimit, QpState, QpType, Qpn, QueuePair,
};

/// `struct ibv_qp`, and `struct ibv_qp_ex`, of which that is the beginning.
#[repr(C)]
pub(crate) struct Qp {
    /// Read and (`wr_id`, `wr_flags`) written by the program at any time.
    base: UnsafeCell<ibv_qp_ex>,
    pub(crate) verbs: QueuePair,
    pub(crate) birth: Birth,
    pub(crate) qp_type: QpType,
    /// Asynchronous events of it.
    pub(crate) events: Unacknowledged,
    /// For `ibv_wr_start` and what follows.
    pub(crate) writer: Writer,
    attributes: ibv_qp_init_attr,
    context: ContextHandle,
}

impl Qp {
    /// `send_ops` are the operations that will be posted piece by piece, if any will be.
    fn create(
        pd: &Pd,
        attributes: &mut ibv_qp_init_attr,
        create_flags: u32,
        send_ops: Option<u64>,
    ) -> Result<*mut Self> {
        let domain = pd.get()?;
        let qp_type = qp_type(attributes.qp_type)?;
        if let Some(send_ops) = send_ops {
            qp_ex::check_send_ops(qp_type, send_ops)?;
        }
        // SAFETY: the program passes queues that it has not destroyed, or NULL.
        let (send_cq, recv_cq, srq) =
            unsafe { (attributes.send_cq.as_ref(), attributes.recv_cq.as_ref(), attributes.srq.as_ref()) };
        // The initiator of an extended reliable connection receives nothing.
        let recv_cq = if qp_type == QpType::XrcSend { send_cq } else { recv_cq };
        let (Some(send_cq), Some(recv_cq)) = (send_cq, recv_cq) else {
            return Err(Refusal::invalid("a queue pair needs completion queues"));
        };
        let verbs = domain.create_qp(&QpInitAttributes {
            send_cq: &send_cq.verbs,
            recv_cq: &recv_cq.verbs,
            srq: srq.map(|srq| &srq.verbs),
            cap: capabilities(&attributes.cap),
            qp_type,
            sq_sig_all: attributes.sq_sig_all != 0,
            block_self_multicast: create_flags & CREATE_BLOCK_SELF_MULTICAST != 0,
            qp_context: 0,
        })?;
        attributes.cap = cap(&verbs.capabilities());
        Ok(Self::wrap(verbs, &pd.context, ptr::from_ref(pd), attributes, send_ops.is_some()))
    }

    /// Makes the target of an extended reliable connection, which has no queues.
    fn create_target(xrcd: &Xrcd, attributes: &mut ibv_qp_init_attr) -> Result<*mut Self> {
        xrcd.birth.check()?;
        let verbs = xrcd.verbs.create_qp(0)?;
        attributes.cap = cap(&verbs.capabilities());
        let none = ibv_qp_init_attr { send_cq: ptr::null(), recv_cq: ptr::null(), srq: ptr::null(), ..*attributes };
        Ok(Self::wrap(verbs, &xrcd.context, ptr::null(), &none, false))
    }

    /// Opens the target of an extended reliable connection.
    pub(crate) fn open_target(xrcd: &Xrcd, qpn: u32, qp_type: c_uint, qp_context: *mut c_void) -> Result<*mut Self> {
        xrcd.birth.check()?;
        if qp_type != QpType::XrcRecv as c_uint {
            return Err(Refusal::invalid("only targets of extended reliable connections can be opened"));
        }
        let verbs = xrcd.verbs.open_qp(Qpn::new(qpn), 0)?;
        let attributes = ibv_qp_init_attr {
            qp_context,
            send_cq: ptr::null(),
            recv_cq: ptr::null(),
            srq: ptr::null(),
            cap: cap(&verbs.capabilities()),
            qp_type,
            sq_sig_all: 0,
        };
        Ok(Self::wrap(verbs, &xrcd.context, ptr::null(), &attributes, false))
    }

    /// The object that the program sees.
    fn wrap(
        verbs: QueuePair,
        context: &ContextHandle,
        pd: *const Pd,
        attributes: &ibv_qp_init_attr,
        has_writer: bool,
    ) -> *mut Self {
        let base = ibv_qp {
            context: context.as_raw(),
            qp_context: attributes.qp_context,
            pd,
            send_cq: attributes.send_cq,
            recv_cq: attributes.recv_cq,
            srq: attributes.srq,
            handle: verbs.qp_num().value(),
            qp_num: verbs.qp_num().value(),
            state: verbs.state() as c_uint,
            qp_type: attributes.qp_type,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        let mut base = without_extensions(base);
        if has_writer {
            qp_ex::fill(&mut base);
        }
        let qp = Self {
            base: UnsafeCell::new(base),
            qp_type: verbs.qp_type(),
            verbs,
            birth: Birth::now(),
            events: Unacknowledged::default(),
            writer: Writer::default(),
            attributes: *attributes,
            context: context.clone(),
        };
        let element = qp.verbs.element();
        let object = NonNull::from(Box::leak(Box::new(qp)));
        context.enter(element, Object::Qp(object));
        object.as_ptr()
    }

    /// The struct that the program looks into.
    pub(crate) const fn base(&self) -> *mut ibv_qp_ex {
        self.base.get()
    }

    /// Tells whoever looks at `ibv_qp.state`.
    fn show_state(&self, state: QpState) {
        // SAFETY: programs may look at any time, as they may with libibverbs, and see one state or the other.
        unsafe { (*self.base.get()).qp_base.state = state as c_uint };
    }
}

const fn without_extensions(qp_base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: None,
        wr_atomic_fetch_add: None,
        wr_bind_mw: None,
        wr_local_inv: None,
        wr_rdma_read: None,
        wr_rdma_write: None,
        wr_rdma_write_imm: None,
        wr_send: None,
        wr_send_imm: None,
        wr_send_inv: None,
        wr_send_tso: None,
        wr_set_ud_addr: None,
        wr_set_xrc_srqn: None,
        wr_set_inline_data: None,
        wr_set_inline_data_list: None,
        wr_set_sge: None,
        wr_set_sge_list: None,
        wr_start: None,
        wr_complete: None,
        wr_abort: None,
        wr_atomic_write: None,
        wr_flush: None,
    }
}

fn qp_type(code: c_uint) -> Result<QpType> {
    [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv]
        .into_iter()
        .find(|&qp_type| qp_type as c_uint == code)
        .ok_or(Refusal::not_supported("there is no such type of queue pair"))
}

const fn capabilities(cap: &ibv_qp_cap) -> QpCapabilities {
    QpCapabilities {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

const fn cap(capabilities: &QpCapabilities) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: capabilities.max_send_wr,
        max_recv_wr: capabilities.max_recv_wr,
        max_send_sge: capabilities.max_send_sge,
        max_recv_sge: capabilities.max_recv_sge,
        max_inline_data: capabilities.max_inline_data,
    }
}

pub(crate) extern "C" fn create_qp(pd: &Pd, attributes: &mut ibv_qp_init_attr) -> *mut Qp {
    entry::pointer("ibv_create_qp", || Qp::create(pd, attributes, 0, None))
}

/// `enum ibv_qp_init_attr_mask`, as far as it is known here.
const MASK_PD: u32 = 1 << 0;
const MASK_XRCD: u32 = 1 << 1;
const MASK_CREATE_FLAGS: u32 = 1 << 2;
const MASK_SEND_OPS_FLAGS: u32 = 1 << 6;

/// `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`.
const CREATE_BLOCK_SELF_MULTICAST: u32 = 1 << 1;

pub(crate) extern "C" fn create_qp_ex(_context: ContextPtr, attributes: &mut ibv_qp_init_attr_ex) -> *mut Qp {
    entry::pointer("ibv_create_qp_ex", || {
        let mask = attributes.comp_mask;
        if mask & !(MASK_PD | MASK_XRCD | MASK_CREATE_FLAGS | MASK_SEND_OPS_FLAGS) != 0 {
            return Err(Refusal::not_supported("there are no such options of a queue pair"));
        }
        let create_flags = if mask & MASK_CREATE_FLAGS != 0 { attributes.create_flags } else { 0 };
        if create_flags & !CREATE_BLOCK_SELF_MULTICAST != 0 {
            return Err(Refusal::not_supported("there are no such flags of a queue pair"));
        }
        let send_ops = (mask & MASK_SEND_OPS_FLAGS != 0).then_some(attributes.send_ops_flags);
        let mut plain = ibv_qp_init_attr {
            qp_context: attributes.qp_context,
            send_cq: attributes.send_cq,
            recv_cq: attributes.recv_cq,
            srq: attributes.srq,
            cap: attributes.cap,
            qp_type: attributes.qp_type,
            sq_sig_all: attributes.sq_sig_all,
        };
        // SAFETY: the program passes domains that it has not closed, or NULL.
        let (pd, xrcd) = unsafe { (attributes.pd.as_ref(), attributes.xrcd.as_ref()) };
        let qp = match (pd.filter(|_| mask & MASK_PD != 0), xrcd.filter(|_| mask & MASK_XRCD != 0)) {
            (_, Some(xrcd)) if plain.qp_type == QpType::XrcRecv as c_uint => Qp::create_target(xrcd, &mut plain)?,
            (Some(pd), _) => Qp::create(pd, &mut plain, create_flags, send_ops)?,
            _ => return Err(Refusal::invalid("a queue pair needs a domain")),
        };
        attributes.cap = plain.cap;
        Ok(qp)
    })
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    entry::errno("ibv_destroy_qp", || {
        // SAFETY: the program passes a queue pair that it has not destroyed.
        let this = unsafe { &*qp };
        this.birth.check()?;
        this.verbs.destroy()?;
        this.context.leave(this.verbs.element());
        this.events.wait();
        // SAFETY: it came from a Box, the program gives it back, and no event refers to it any more.
        drop(unsafe { Box::from_raw(qp) });
        Ok(())
    })
}

fn state(code: c_uint) -> Result<QpState> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    [Reset, Init, Rtr, Rts, Sqd, Sqe, Err]
        .into_iter()
        .find(|&state| state as c_uint == code)
        .ok_or(Refusal::invalid("there is no such state"))
}

fn mtu(code: c_uint) -> Result<Mtu> {
    Mtu::ALL.into_iter().find(|&mtu| mtu as c_uint == code).ok_or(Refusal::invalid("there is no such path MTU"))
}

/// The path that a program asks for. `local` is the device's own GID.
pub(crate) fn address_handle_attributes(attr: &ibv_ah_attr, local: Gid) -> AddressHandleAttributes {
    if attr.is_global == 0 && attr.dlid != 0 {
        return AddressHandleAttributes {
            grh: lid::route(local, attr.dlid),
            sl: attr.sl,
            is_global: true,
            port_num: attr.port_num,
        };
    }
    AddressHandleAttributes {
        grh: GlobalRoute {
            dgid: Gid(attr.grh.dgid.raw),
            flow_label: attr.grh.flow_label,
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
        },
        sl: attr.sl,
        is_global: attr.is_global != 0,
        port_num: attr.port_num,
    }
}

pub(crate) fn ah_attr(attributes: &AddressHandleAttributes) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: attributes.grh.dgid.0 },
            flow_label: attributes.grh.flow_label,
            sgid_index: attributes.grh.sgid_index,
            hop_limit: attributes.grh.hop_limit,
            traffic_class: attributes.grh.traffic_class,
        },
        dlid: 0,
        sl: attributes.sl,
        src_path_bits: 0,
        static_rate: 0,
        is_global: attributes.is_global.into(),
        port_num: attributes.port_num,
    }
}

/// The attributes that `mask` names; what it does not name may be anything.
fn qp_attributes(attr: &ibv_qp_attr, mask: QpAttributeMask, local: Gid) -> Result<QpAttributes> {
    let mut attributes = QpAttributes {
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qkey: attr.qkey,
        qp_access_flags: AccessFlags::from_bits_truncate(attr.qp_access_flags),
        cap: capabilities(&attr.cap),
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: false,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        ..QpAttributes::default()
    };
    if mask.contains(QpAttributeMask::STATE) {
        attributes.qp_state = state(attr.qp_state)?;
    }
    if mask.contains(QpAttributeMask::CUR_STATE) {
        attributes.cur_qp_state = state(attr.cur_qp_state)?;
    }
    if mask.contains(QpAttributeMask::AV) {
        attributes.ah_attr = address_handle_attributes(&attr.ah_attr, local);
    }
    if mask.contains(QpAttributeMask::PATH_MTU) {
        attributes.path_mtu = mtu(attr.path_mtu)?;
    }
    Ok(attributes)
}

/// What programs set on one half of an extended reliable connection that is the other's: Linux looks past it
/// (`modify_qp_mask` in uverbs_cmd.c), and perftest relies on that.
const fn ignored(qp_type: QpType) -> QpAttributeMask {
    use QpAttributeMask as Mask;
    match qp_type {
        QpType::XrcSend => Mask::MAX_DEST_RD_ATOMIC.union(Mask::MIN_RNR_TIMER),
        QpType::XrcRecv => Mask::MAX_QP_RD_ATOMIC.union(Mask::RETRY_CNT).union(Mask::RNR_RETRY),
        _ => Mask::empty(),
    }
}

pub(crate) extern "C" fn modify_qp(qp: &Qp, attr: &ibv_qp_attr, attr_mask: c_int) -> c_int {
    entry::errno("ibv_modify_qp", || {
        qp.birth.check()?;
        let mask =
            QpAttributeMask::from_bits(attr_mask as u32).ok_or(Refusal::invalid("there is no such attribute"))?;
        let mask = mask.difference(ignored(qp.qp_type));
        let attributes = qp_attributes(attr, mask, qp.context.verbs().device().gid())?;
        qp.verbs.modify(&attributes, mask)?;
        if mask.contains(QpAttributeMask::STATE) {
            qp.show_state(attributes.qp_state);
        }
        Ok(())
    })
}

/// Any rate that there is a number for, for every type of queue pair that sends.
pub(crate) const PACING: ibv_packet_pacing_caps = ibv_packet_pacing_caps {
    qp_rate_limit_min: 1,
    qp_rate_limit_max: u32::MAX,
    supported_qpts: 1 << QpType::Rc as u32
        | 1 << QpType::Uc as u32
        | 1 << QpType::Ud as u32
        | 1 << QpType::XrcSend as u32,
};

pub(crate) extern "C" fn modify_qp_rate_limit(qp: &Qp, attr: &ibv_qp_rate_limit_attr) -> c_int {
    entry::errno("ibv_modify_qp_rate_limit", || {
        qp.birth.check()?;
        let ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask } = *attr;
        if comp_mask != 0 {
            return Err(Refusal::invalid("there are no such rate limit attributes"));
        }
        Ok(qp.verbs.modify_rate_limit(&QpRateLimit { rate_limit, max_burst_sz, typical_pkt_sz })?)
    })
}

/// Returns all of the attributes, whatever is asked for.
pub(crate) extern "C" fn query_qp(
    qp: &Qp,
    attr: &mut MaybeUninit<ibv_qp_attr>,
    _attr_mask: c_int,
    init_attr: Option<&mut MaybeUninit<ibv_qp_init_attr>>,
) -> c_int {
    entry::errno("ibv_query_qp", || {
        qp.birth.check()?;
        let known = qp.verbs.query();
        let no_path = ah_attr(&AddressHandleAttributes::default());
        attr.write(ibv_qp_attr {
            qp_state: known.qp_state as c_uint,
            cur_qp_state: known.cur_qp_state as c_uint,
            path_mtu: known.path_mtu as c_uint,
            // IBV_MIG_MIGRATED: there is one path, and it is in use.
            path_mig_state: 0,
            qkey: known.qkey,
            rq_psn: known.rq_psn,
            sq_psn: known.sq_psn,
            dest_qp_num: known.dest_qp_num,
            qp_access_flags: known.qp_access_flags.bits(),
            cap: cap(&known.cap),
            ah_attr: ah_attr(&known.ah_attr),
            alt_ah_attr: no_path,
            pkey_index: known.pkey_index,
            alt_pkey_index: 0,
            en_sqd_async_notify: known.en_sqd_async_notify.into(),
            sq_draining: known.sq_draining.into(),
            max_rd_atomic: known.max_rd_atomic,
            max_dest_rd_atomic: known.max_dest_rd_atomic,
            min_rnr_timer: known.min_rnr_timer,
            port_num: known.port_num,
            timeout: known.timeout,
            retry_cnt: known.retry_cnt,
            rnr_retry: known.rnr_retry,
            alt_port_num: 0,
            alt_timeout: 0,
            rate_limit: 0,
        });
        if let Some(init_attr) = init_attr {
            init_attr.write(qp.attributes);
        }
        qp.show_state(known.qp_state);
        Ok(())
    })
}

/// Whether the bytes of a message are placed in order. A message may be sent again from its middle, so no.
pub(crate) extern "C" fn query_qp_data_in_order(_qp: &Qp, _op: c_uint, _flags: u32) -> c_int {
    0
}

/// Enhanced connection establishment: there are no options to agree upon.
pub(crate) extern "C" fn set_ece(_qp: &Qp, ece: &ibv_ece) -> c_int {
    entry::errno("ibv_set_ece", || {
        if ece.vendor_id == 0 && ece.options == 0 {
            Ok(())
        } else {
            Err(Refusal::not_supported("there are no options of connection establishment"))
        }
    })
}

pub(crate) extern "C" fn query_ece(_qp: &Qp, ece: &mut MaybeUninit<ibv_ece>) -> c_int {
    ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 });
    0
}

/// The extended half of a queue pair; NULL when it was not made with one.
pub(crate) extern "C" fn qp_to_qp_ex(qp: &Qp) -> *mut ibv_qp_ex {
    let base = qp.base.get();
    // SAFETY: the field is set when the queue pair is made, and never again.
    if unsafe { (*base).wr_start.is_some() } { base } else { ptr::null_mut() }
}
