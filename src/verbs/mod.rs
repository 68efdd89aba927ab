//! The verbs: libibverbs' objects and calls in Rust spelling, with the man pages' meaning.
//!
//! | libibverbs | here |
//! |---|---|
//! | `ibv_open_device` | [`Device::builder`], [`DeviceBuilder::build`], [`Device::open`] |
//! | `ibv_query_device`, `_port`, `_gid`, `_pkey` | [`Context::query_device`] … |
//! | `ibv_alloc_pd`, `ibv_alloc_parent_domain` | [`Context::alloc_pd`], [`ProtectionDomain::alloc_parent_domain`] |
//! | `ibv_reg_mr`, `ibv_reg_mr_iova2` | [`ProtectionDomain::reg_mr`] (owns its memory), [`ProtectionDomain::reg_mr_raw`] |
//! | `ibv_rereg_mr`, `ibv_dereg_mr` | [`MemoryRegion::rereg`], [`MemoryRegion::rereg_raw`], [`MemoryRegion::dereg`] |
//! | `ibv_alloc_mw`, `ibv_bind_mw`, `ibv_inc_rkey` | [`ProtectionDomain::alloc_mw`], [`QueuePair::bind_mw`], [`MemoryWindow::binding`], [`inc_rkey`] |
//! | `ibv_create_comp_channel`, `ibv_get_cq_event` | [`Context::create_comp_channel`], [`CompletionChannel::get_event`] |
//! | `ibv_create_cq`, `ibv_poll_cq`, `ibv_req_notify_cq` | [`Context::create_cq`], [`CompletionQueue::poll`], [`CompletionQueue::req_notify`] |
//! | `ibv_create_qp`, `ibv_modify_qp`, `ibv_query_qp` | [`ProtectionDomain::create_qp`], [`QueuePair::modify`], [`QueuePair::query`] |
//! | `ibv_modify_qp_rate_limit` | [`QueuePair::modify_rate_limit`] |
//! | `ibv_post_send`, `ibv_post_recv` | [`QueuePair::post_send`], [`QueuePair::post_recv`] |
//! | `ibv_create_srq`, `_ex`, `ibv_post_srq_recv` | [`ProtectionDomain::create_srq`], [`SharedReceiveQueue::post_recv`] |
//! | `ibv_modify_srq`, `ibv_query_srq`, `ibv_get_srq_num` | [`SharedReceiveQueue::modify`], [`SharedReceiveQueue::query`], [`SharedReceiveQueue::number`] |
//! | `ibv_open_xrcd`, `ibv_open_qp` | [`Context::open_xrcd`], [`XrcDomain::create_qp`], [`XrcDomain::open_qp`] |
//! | `ibv_create_ah`, `ibv_init_ah_from_wc`, `ibv_create_ah_from_wc` | [`ProtectionDomain::create_ah`], [`Context::init_ah_from_wc`], [`ProtectionDomain::create_ah_from_wc`] |
//! | `ibv_attach_mcast`, `ibv_detach_mcast` | [`QueuePair::attach_mcast`], [`QueuePair::detach_mcast`] |
//! | `ibv_get_async_event` | [`Context::get_async_event`] |
//!
//! # Handles
//!
//! Every object is a cheap handle: a clone names the same object, and an object keeps what it depends on alive
//! (a queue pair its completion queues and protection domain). When the last handle goes, the object goes. To go
//! by the verbs' rules instead, call `dealloc`, `dereg`, `destroy`: they answer `EBUSY` while something depends on
//! the object, and once they have succeeded every further use of any clone answers `EINVAL`.
//!
//! # Threads
//!
//! Every method takes `&self` and may be called from many threads at once.
//!
//! # Memory
//!
//! Registered memory is shared with the device as it is with hardware that does DMA: from the moment that a work
//! request or a key is handed out, bytes may change (or be read) at any time, without synchronization. A
//! [`MemoryRegion`] that owns its memory therefore never lends it as a slice; its accessors copy. What a completion
//! covers is ordered: bytes that were placed before it are visible to whoever polled it.

mod address_handle;
mod completion_queue;
mod context;
mod device;
mod memory_region;
mod memory_window;
mod protection_domain;
mod queue_pair;
mod shared_receive_queue;
mod uses;
mod xrc_domain;

pub use crate::nic::{
    AddressHandleAttributes, AsyncElement, AsyncEvent, AsyncEventType, Connection, Counters, DeviceAttributes,
    DeviceCapabilities, Error, Gid, GidEntry, GlobalRoute, MemoryWindowType, Notify, PORT, PortAttributes, PortState,
    PostError, QpAttributeMask, QpAttributes, QpCapabilities, QpState, QpType, Rate, ReceivePoster, Result, SendPoster,
    SrqAttributeMask, SrqAttributes, WorkCompletion,
};
pub use address_handle::AddressHandle;
pub use completion_queue::{CompletionChannel, CompletionQueue};
pub use context::Context;
pub use device::{Device, DeviceBuilder, Progress};
pub use memory_region::MemoryRegion;
pub use memory_window::{MemoryWindow, WindowBind, WindowBindInfo, inc_rkey};
pub use protection_domain::ProtectionDomain;
pub use queue_pair::{QpInitAttributes, QpRateLimit, QueuePair, ReceiveWorkRequest};
pub use shared_receive_queue::{SharedReceiveQueue, SrqInitAttributes};
pub use uroce_protocol::{
    AccessFlags, Psn, Sge, WindowBinding,
    rc::Quirks,
    time::Instant,
    wire::{Mtu, PKey, QKey, Qpn, RKey, icrc::IpIdPolicy},
    work::{
        AddressVector, Buffers, FlushPlacement, SendOperation, SendRequest as SendWorkRequest, Target, WcOpcode,
        WcStatus,
    },
};
pub use xrc_domain::{XrcDomain, XrcDomainInitAttributes};
