//! An open device: what it says of itself, and its asynchronous events.

use crate::{
    channel::Channel,
    cq::{self, Cq},
    cq_ex,
    device::{DeviceBlock, DeviceShare, c_chars},
    entry::{self, Refusal, Result},
    fork::Birth,
    lid, mw, pd, post,
    qp::{self, Qp},
    srq::{self, Srq},
    types::{
        ibv_async_element, ibv_async_event, ibv_context, ibv_context_ops, ibv_cq_moderation_caps, ibv_device_attr,
        ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_odp_caps, ibv_pci_atomic_caps, ibv_port_attr,
        ibv_query_device_ex_input, ibv_rss_caps, ibv_tm_caps, ibv_tso_caps, ibv_values_ex, verbs_context,
    },
    xrc,
};
use libc::{c_int, c_uint, size_t, ssize_t};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use std::{
    collections::HashMap,
    mem::{self, MaybeUninit, offset_of},
    num::NonZero,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    ptr::{self, NonNull},
    sync::Arc,
    thread::available_parallelism,
};
use uroce::verbs::{self, AsyncElement, AsyncEvent, DeviceAttributes, GidEntry, PORT, PortAttributes};

/// Says that `verbs_context` stands before an `ibv_context` (`__VERBS_ABI_IS_EXTENDED`).
const ABI_IS_EXTENDED: usize = usize::MAX;
/// What plain `ibv_query_port` writes: the struct as it was when the verb got its version.
const PLAIN_PORT_ATTR: usize = offset_of!(ibv_port_attr, port_cap_flags2);

/// What `struct ibv_context *` points into.
///
/// The program holds one reference, every object that was made in the context another. So an object that outlives
/// `ibv_close_device`, which the verbs do not allow, finds its context all the same.
#[repr(C)]
pub(crate) struct Context {
    head: verbs_context,
    verbs: verbs::Context,
    birth: Birth,
    /// Objects that asynchronous events are about, by what events name them by.
    objects: Mutex<HashMap<AsyncElement, Object>>,
    /// There is no kernel device behind it, but programs copy descriptors about.
    _cmd_fd: OwnedFd,
    /// Last, because what comes before has shares in the device too.
    _share: DeviceShare,
}

/// An object that asynchronous events are about. It is here only as long as it is alive.
#[derive(Clone, Copy)]
pub(crate) enum Object {
    Cq(NonNull<Cq>),
    Qp(NonNull<Qp>),
    Srq(NonNull<Srq>),
}

// SAFETY: none of the pointers in it is followed by the library, but for those to objects, which threads share as they
// share the objects.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens `device`. `listed` is what the program knows it by.
    pub(crate) fn open(listed: *const DeviceBlock, share: DeviceShare) -> Result<ContextHandle> {
        let verbs = share.device().open()?;
        let cmd_fd =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| Refusal::new(errno.raw_os_error(), "no descriptor"))?;
        let context = ibv_context {
            device: listed,
            ops: OPS,
            cmd_fd: cmd_fd.as_raw_fd(),
            async_fd: verbs.as_fd().as_raw_fd(),
            num_comp_vectors: available_parallelism().map_or(1, NonZero::get) as c_int,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: ptr::without_provenance_mut(ABI_IS_EXTENDED),
        };
        Ok(ContextHandle(Arc::new(Self {
            head: head(context),
            verbs,
            birth: Birth::now(),
            objects: Mutex::default(),
            _cmd_fd: cmd_fd,
            _share: share,
        })))
    }

    pub(crate) const fn verbs(&self) -> &verbs::Context {
        &self.verbs
    }

    pub(crate) const fn num_comp_vectors(&self) -> c_int {
        self.head.context.num_comp_vectors
    }

    /// Where events about an object go to from now on.
    pub(crate) fn enter(&self, element: AsyncElement, object: Object) {
        self.objects.lock().insert(element, object);
    }

    /// An object is about to go: no event finds it any more.
    pub(crate) fn leave(&self, element: AsyncElement) {
        self.objects.lock().remove(&element);
    }

    /// The event as C has it, and one more that its object waits for; `None` when the object is just going away.
    fn announce(&self, event: AsyncEvent) -> Option<ibv_async_event> {
        let element = match event.element {
            AsyncElement::Port(port) => ibv_async_element { port_num: port.into() },
            AsyncElement::Device => ibv_async_element { port_num: 0 },
            element => {
                // Under the lock: an object leaves before it waits for its events.
                let objects = self.objects.lock();
                match *objects.get(&element)? {
                    Object::Cq(cq) => {
                        // SAFETY: objects that have entered are alive until they leave.
                        unsafe { cq.as_ref() }.events.announce();
                        ibv_async_element { cq: cq.as_ptr() }
                    }
                    Object::Qp(qp) => {
                        // SAFETY: as above.
                        unsafe { qp.as_ref() }.events.announce();
                        ibv_async_element { qp: qp.as_ptr() }
                    }
                    Object::Srq(srq) => {
                        // SAFETY: as above.
                        unsafe { srq.as_ref() }.events.announce();
                        ibv_async_element { srq: srq.as_ptr() }
                    }
                }
            }
        };
        Some(ibv_async_event { element, event_type: event.event_type as c_uint })
    }
}

/// A share in a context.
#[derive(Clone)]
pub(crate) struct ContextHandle(Arc<Context>);

impl ContextHandle {
    /// The pointer that programs know it by.
    pub(crate) fn as_raw(&self) -> *mut ibv_context {
        raw(Arc::as_ptr(&self.0))
    }

    /// The same, which now owns the share.
    pub(crate) fn into_raw(self) -> *mut ibv_context {
        raw(Arc::into_raw(self.0))
    }
}

impl std::ops::Deref for ContextHandle {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.0
    }
}

const fn raw(context: *const Context) -> *mut ibv_context {
    // SAFETY: the context is alive, so its field is inside the same allocation.
    unsafe { (&raw const (*context).head.context).cast_mut() }
}

/// A context as a program passes it: `struct ibv_context *`, which `ibv_open_device` returned and `ibv_close_device`
/// has not taken back.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct ContextPtr(NonNull<ibv_context>);

impl ContextPtr {
    fn whole(self) -> *const Context {
        const OFFSET: usize = offset_of!(Context, head) + offset_of!(verbs_context, context);
        // SAFETY: the program's pointer is one of `raw`'s, which is so far inside a context.
        unsafe { self.0.as_ptr().byte_sub(OFFSET).cast_const().cast() }
    }

    /// The context.
    ///
    /// # Errors
    /// `EIO` when it is the parent process's.
    pub(crate) fn get<'a>(self) -> Result<&'a Context> {
        // SAFETY: the program does not close a context while it uses it.
        let context = unsafe { &*self.whole() };
        context.birth.check()?;
        Ok(context)
    }

    /// A share in it, for an object that is made in it; errors as [`Self::get`].
    pub(crate) fn share(self) -> Result<ContextHandle> {
        self.get()?;
        let whole = self.whole();
        // SAFETY: the pointer is Arc's, and the program holds a reference.
        unsafe {
            Arc::increment_strong_count(whole);
            Ok(ContextHandle(Arc::from_raw(whole)))
        }
    }

    /// The program's own share.
    ///
    /// # Safety
    /// The program gives it back, and so may this be called once only.
    pub(crate) unsafe fn into_handle(self) -> ContextHandle {
        // SAFETY: `into_raw` has left a reference with the program.
        ContextHandle(unsafe { Arc::from_raw(self.whole()) })
    }
}

/// Asynchronous events of one object that a program has been told and has not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged {
    events: Mutex<u32>,
    acknowledged: Condvar,
}

impl Unacknowledged {
    fn announce(&self) {
        *self.events.lock() += 1;
    }

    fn acknowledge(&self) {
        let mut events = self.events.lock();
        *events = events.saturating_sub(1);
        if *events == 0 {
            self.acknowledged.notify_all();
        }
    }

    /// Waits until there are none.
    pub(crate) fn wait(&self) {
        let mut events = self.events.lock();
        self.acknowledged.wait_while(&mut events, |events| *events > 0);
    }
}

const OPS: ibv_context_ops = ibv_context_ops {
    query_device: Some(query_device),
    query_port: Some(query_port),
    compat_alloc_pd: None,
    compat_dealloc_pd: None,
    compat_reg_mr: None,
    compat_rereg_mr: None,
    compat_dereg_mr: None,
    alloc_mw: Some(mw::alloc_mw),
    bind_mw: Some(mw::bind_mw),
    dealloc_mw: Some(mw::dealloc_mw),
    compat_create_cq: None,
    poll_cq: Some(cq::poll_cq),
    req_notify_cq: Some(cq::req_notify_cq),
    compat_cq_event: None,
    compat_resize_cq: None,
    compat_destroy_cq: None,
    compat_create_srq: None,
    compat_modify_srq: None,
    compat_query_srq: None,
    compat_destroy_srq: None,
    post_srq_recv: Some(srq::post_srq_recv),
    compat_create_qp: None,
    compat_query_qp: None,
    compat_modify_qp: None,
    compat_destroy_qp: None,
    post_send: Some(post::post_send),
    post_recv: Some(post::post_recv),
    compat_create_ah: None,
    compat_destroy_ah: None,
    compat_attach_mcast: None,
    compat_detach_mcast: None,
    compat_async_event: None,
};

const fn head(context: ibv_context) -> verbs_context {
    verbs_context {
        query_port: Some(query_port_ex),
        advise_mr: None,
        alloc_null_mr: None,
        read_counters: None,
        attach_counters_point_flow: None,
        create_counters: None,
        destroy_counters: None,
        reg_dm_mr: None,
        alloc_dm: None,
        free_dm: None,
        modify_flow_action_esp: None,
        destroy_flow_action: None,
        create_flow_action_esp: None,
        modify_qp_rate_limit: Some(qp::modify_qp_rate_limit),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        dealloc_td: Some(pd::dealloc_td),
        alloc_td: Some(pd::alloc_td),
        modify_cq: None,
        post_srq_ops: None,
        destroy_rwq_ind_table: None,
        create_rwq_ind_table: None,
        destroy_wq: None,
        modify_wq: None,
        create_wq: None,
        query_rt_values: Some(query_rt_values),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        private: ptr::null_mut(),
        query_device_ex: Some(query_device_ex),
        destroy_flow: None,
        abi_placeholder2: None,
        create_flow: None,
        abi_placeholder1: None,
        open_qp: Some(xrc::open_qp),
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        abi_placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context,
    }
}

fn device_attr(attributes: &DeviceAttributes) -> ibv_device_attr {
    ibv_device_attr {
        fw_ver: c_chars(attributes.fw_ver),
        node_guid: attributes.node_guid.to_be(),
        sys_image_guid: attributes.sys_image_guid.to_be(),
        max_mr_size: attributes.max_mr_size,
        page_size_cap: attributes.page_size_cap,
        vendor_id: attributes.vendor_id,
        vendor_part_id: attributes.vendor_part_id,
        hw_ver: attributes.hw_ver,
        max_qp: int(attributes.max_qp),
        max_qp_wr: int(attributes.max_qp_wr),
        device_cap_flags: attributes.device_cap_flags.bits() as c_uint,
        max_sge: int(attributes.max_sge),
        max_sge_rd: int(attributes.max_sge_rd),
        max_cq: int(attributes.max_cq),
        max_cqe: int(attributes.max_cqe),
        max_mr: int(attributes.max_mr),
        max_pd: int(attributes.max_pd),
        max_qp_rd_atom: attributes.max_qp_rd_atom.into(),
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(attributes.max_res_rd_atom),
        max_qp_init_rd_atom: attributes.max_qp_init_rd_atom.into(),
        max_ee_init_rd_atom: 0,
        atomic_cap: attributes.atomic_cap.into(),
        max_ee: 0,
        max_rdd: 0,
        max_mw: int(attributes.max_mw),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: int(attributes.max_mcast_grp),
        max_mcast_qp_attach: int(attributes.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(attributes.max_total_mcast_qp_attach),
        max_ah: int(attributes.max_ah),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(attributes.max_srq),
        max_srq_wr: int(attributes.max_srq_wr),
        max_srq_sge: int(attributes.max_srq_sge),
        max_pkeys: attributes.max_pkeys,
        local_ca_ack_delay: attributes.local_ca_ack_delay,
        phys_port_cnt: attributes.phys_port_cnt,
    }
}

fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn device_attr_ex(attributes: &DeviceAttributes) -> ibv_device_attr_ex {
    ibv_device_attr_ex {
        orig_attr: device_attr(attributes),
        comp_mask: 0,
        odp_caps: ibv_odp_caps::default(),
        completion_timestamp_mask: attributes.completion_timestamp_mask,
        hca_core_clock: attributes.hca_core_clock_khz,
        device_cap_flags_ex: attributes.device_cap_flags.bits(),
        tso_caps: ibv_tso_caps::default(),
        rss_caps: ibv_rss_caps::default(),
        max_wq_type_rq: 0,
        packet_pacing_caps: qp::PACING,
        raw_packet_caps: 0,
        tm_caps: ibv_tm_caps::default(),
        cq_mod_caps: ibv_cq_moderation_caps::default(),
        max_dm_size: 0,
        pci_atomic_caps: ibv_pci_atomic_caps::default(),
        xrc_odp_caps: 0,
        phys_port_cnt_ex: attributes.phys_port_cnt.into(),
    }
}

pub(crate) extern "C" fn query_device(context: ContextPtr, attr: &mut MaybeUninit<ibv_device_attr>) -> c_int {
    entry::errno("ibv_query_device", || {
        attr.write(device_attr(&context.get()?.verbs.query_device()));
        Ok(())
    })
}

/// `attr_size` is how much of the struct the program knows. What it knows and we do not is zeroed.
unsafe extern "C" fn query_device_ex(
    context: ContextPtr,
    input: Option<&ibv_query_device_ex_input>,
    attr: *mut ibv_device_attr_ex,
    attr_size: size_t,
) -> c_int {
    entry::errno("ibv_query_device_ex", || {
        if input.is_some_and(|input| input.comp_mask != 0) {
            return Err(Refusal::invalid("ibv_query_device_ex takes no input"));
        }
        if attr_size < size_of::<ibv_device_attr>() {
            return Err(Refusal::invalid("struct ibv_device_attr_ex is not as short as that"));
        }
        let known = device_attr_ex(&context.get()?.verbs.query_device());
        // SAFETY: the program's struct has attr_size bytes.
        unsafe { write_prefix(&known, attr, attr_size) };
        Ok(())
    })
}

/// Fills the `length` bytes of a program's struct: with as much of `known` as fits, and zeros.
///
/// # Safety
/// `to` must have room for `length` bytes.
unsafe fn write_prefix<T: Copy>(known: &T, to: *mut T, length: usize) {
    let common = length.min(size_of::<T>());
    // SAFETY: `common` bytes are in both, the rest in `to` alone; they do not overlap, one being ours.
    unsafe {
        ptr::write_bytes(to.cast::<u8>(), 0, length);
        ptr::copy_nonoverlapping(ptr::from_ref(known).cast::<u8>(), to.cast(), common);
    }
}

fn port_attr(attributes: &PortAttributes, lid: u16) -> ibv_port_attr {
    ibv_port_attr {
        state: attributes.state as c_uint,
        max_mtu: attributes.max_mtu as c_uint,
        active_mtu: attributes.active_mtu as c_uint,
        gid_tbl_len: int(attributes.gid_tbl_len),
        port_cap_flags: attributes.port_cap_flags,
        max_msg_sz: attributes.max_msg_sz,
        bad_pkey_cntr: attributes.bad_pkey_cntr,
        qkey_viol_cntr: attributes.qkey_viol_cntr,
        pkey_tbl_len: attributes.pkey_tbl_len,
        lid,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: attributes.rate.width_code(),
        active_speed: attributes.rate.speed_code(),
        phys_state: attributes.phys_state,
        link_layer: attributes.link_layer,
        flags: attributes.flags,
        port_cap_flags2: 0,
        active_speed_ex: 0,
    }
}

/// Writes as much of the struct as programs knew when the verb got its version.
pub(crate) unsafe extern "C" fn query_port(context: ContextPtr, port_num: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the program's struct is at least as long as that.
    unsafe { query_port_ex(context, port_num, attr, PLAIN_PORT_ATTR) }
}

unsafe extern "C" fn query_port_ex(
    context: ContextPtr,
    port_num: u8,
    attr: *mut ibv_port_attr,
    length: size_t,
) -> c_int {
    entry::errno("ibv_query_port", || {
        let verbs = &context.get()?.verbs;
        let known = port_attr(&verbs.query_port(port_num)?, lid::of(verbs.device().gid()));
        // SAFETY: the program's struct has `length` bytes.
        unsafe { write_prefix(&known, attr, length) };
        Ok(())
    })
}

pub(crate) extern "C" fn query_gid(
    context: ContextPtr,
    port_num: u8,
    index: c_int,
    gid: &mut MaybeUninit<ibv_gid>,
) -> c_int {
    entry::number("ibv_query_gid", || {
        let index = u32::try_from(index).map_err(|_| Refusal::invalid("a GID index is not negative"))?;
        gid.write(ibv_gid { raw: context.get()?.verbs.query_gid(port_num, index)?.0 });
        Ok(0)
    })
}

fn gid_entry(entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.0 },
        gid_index: entry.gid_index,
        port_num: entry.port_num.into(),
        gid_type: entry.gid_type,
        ndev_ifindex: entry.ndev_ifindex,
    }
}

pub(crate) unsafe extern "C" fn query_gid_ex(
    context: ContextPtr,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: size_t,
) -> c_int {
    entry::errno("ibv_query_gid_ex", || {
        if flags != 0 {
            return Err(Refusal::not_supported("ibv_query_gid_ex takes no flags"));
        }
        let port_num = u8::try_from(port_num).map_err(|_| Refusal::invalid("the device has port 1 only"))?;
        let known = gid_entry(&context.get()?.verbs.query_gid_entry(port_num, gid_index)?);
        // SAFETY: the program's struct has entry_size bytes.
        unsafe { write_prefix(&known, entry, entry_size) };
        Ok(())
    })
}

/// Returns how many entries there are.
pub(crate) unsafe extern "C" fn query_gid_table(
    context: ContextPtr,
    entries: *mut ibv_gid_entry,
    max_entries: size_t,
    flags: u32,
    entry_size: size_t,
) -> ssize_t {
    let queried = entry::guard(|| {
        if flags != 0 {
            return Err(Refusal::not_supported("ibv_query_gid_table takes no flags"));
        }
        let context = context.get()?;
        let table_len = context.verbs.query_port(PORT)?.gid_tbl_len;
        if max_entries < table_len as usize {
            return Err(Refusal::invalid("the GID table does not fit"));
        }
        for index in 0..table_len {
            let known = gid_entry(&context.verbs.query_gid_entry(PORT, index)?);
            // SAFETY: the program's array has room for max_entries entries of that size.
            unsafe { write_prefix(&known, entries.byte_add(index as usize * entry_size), entry_size) };
        }
        Ok(table_len as ssize_t)
    });
    // Unlike the other verbs that return a number.
    queried.unwrap_or_else(|refusal| -(refusal.report("ibv_query_gid_table") as ssize_t))
}

/// Of rdma-core's own: `ibv_devinfo` prints it. What it calls 1 is RoCE v2 (`IBV_GID_TYPE_SYSFS_ROCE_V2`).
pub(crate) extern "C" fn query_gid_type(
    context: ContextPtr,
    port_num: u8,
    index: c_uint,
    gid_type: &mut MaybeUninit<c_uint>,
) -> c_int {
    entry::number("ibv_query_gid_type", || {
        context.get()?.verbs.query_gid_entry(port_num, index)?;
        gid_type.write(1);
        Ok(0)
    })
}

pub(crate) extern "C" fn query_pkey(
    context: ContextPtr,
    port_num: u8,
    index: c_int,
    pkey: &mut MaybeUninit<u16>,
) -> c_int {
    entry::number("ibv_query_pkey", || {
        let index = u16::try_from(index).map_err(|_| Refusal::invalid("there is no such partition key"))?;
        pkey.write(context.get()?.verbs.query_pkey(port_num, index)?.0.to_be());
        Ok(0)
    })
}

pub(crate) extern "C" fn get_pkey_index(context: ContextPtr, port_num: u8, pkey: u16) -> c_int {
    entry::number("ibv_get_pkey_index", || {
        let context = context.get()?;
        for index in 0..context.verbs.query_port(port_num)?.pkey_tbl_len {
            if context.verbs.query_pkey(port_num, index)?.0.to_be() == pkey {
                return Ok(index.into());
            }
        }
        Err(Refusal::invalid("there is no such partition key"))
    })
}

/// `IBV_VALUES_MASK_RAW_CLOCK`.
const RAW_CLOCK: u32 = 1;

extern "C" fn query_rt_values(context: ContextPtr, values: &mut ibv_values_ex) -> c_int {
    entry::errno("ibv_query_rt_values_ex", || {
        let now = context.get()?.verbs.raw_clock().as_nanos();
        let asked = mem::take(&mut values.comp_mask);
        if asked & RAW_CLOCK != 0 {
            values.raw_clock.tv_sec = (now / 1_000_000_000) as libc::time_t;
            values.raw_clock.tv_nsec = (now % 1_000_000_000) as libc::c_long;
            values.comp_mask = RAW_CLOCK;
        }
        if asked & !RAW_CLOCK != 0 {
            return Err(Refusal::invalid("the raw clock is the only value there is"));
        }
        Ok(())
    })
}

pub(crate) extern "C" fn get_async_event(context: ContextPtr, event: &mut MaybeUninit<ibv_async_event>) -> c_int {
    entry::number("ibv_get_async_event", || {
        let context = context.get()?;
        loop {
            if let Some(told) = context.announce(context.verbs.get_async_event()?) {
                event.write(told);
                return Ok(0);
            }
        }
    })
}

pub(crate) extern "C" fn ack_async_event(event: &ibv_async_event) {
    entry::nothing("ibv_ack_async_event", || {
        match event_object(event) {
            Some(Object::Cq(cq)) => {
                // SAFETY: an object waits, alive, until its events have been acknowledged.
                let cq = unsafe { cq.as_ref() };
                cq.birth.check()?;
                cq.events.acknowledge();
            }
            Some(Object::Qp(qp)) => {
                // SAFETY: as above.
                let qp = unsafe { qp.as_ref() };
                qp.birth.check()?;
                qp.events.acknowledge();
            }
            Some(Object::Srq(srq)) => {
                // SAFETY: as above.
                let srq = unsafe { srq.as_ref() };
                srq.birth.check()?;
                srq.events.acknowledge();
            }
            None => {}
        }
        Ok(())
    });
}

/// The object that an event is about, told by the event's type, as programs tell it.
fn event_object(event: &ibv_async_event) -> Option<Object> {
    const CQ_ERR: c_uint = 0;
    // IBV_EVENT_QP_FATAL … IBV_EVENT_PATH_MIG_ERR, and IBV_EVENT_QP_LAST_WQE_REACHED.
    match event.event_type {
        // SAFETY: get_async_event has written a completion queue for this type.
        CQ_ERR => NonNull::new(unsafe { event.element.cq }.cast_mut()).map(Object::Cq),
        // SAFETY: get_async_event has written a queue pair for these types.
        1..=7 | 16 => NonNull::new(unsafe { event.element.qp }.cast_mut()).map(Object::Qp),
        // IBV_EVENT_SRQ_ERR and IBV_EVENT_SRQ_LIMIT_REACHED.
        // SAFETY: get_async_event has written a shared receive queue for these types.
        14 | 15 => NonNull::new(unsafe { event.element.srq }.cast_mut()).map(Object::Srq),
        _ => None,
    }
}

pub(crate) extern "C" fn create_comp_channel(context: ContextPtr) -> *mut Channel {
    entry::pointer("ibv_create_comp_channel", || Channel::create(context.share()?))
}
