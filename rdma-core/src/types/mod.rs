//! The structs of `infiniband/verbs.h` that cross the boundary, and nothing else of it.
//!
//! Names and order are the header's (rdma-core 44, with what 55 has appended), so that whoever knows one finds it in
//! the other. Where the header has a pointer to an object of the library, this has a pointer to the whole of ours,
//! of which the header's struct is the first field. Sizes are asserted here, offsets by a test that asks a C compiler.
#![allow(non_camel_case_types, reason = "they are the header's names")]

mod attributes;
mod context;
mod objects;
#[cfg(test)]
mod tests;
mod work;

pub(crate) use attributes::*;
pub(crate) use context::*;
pub(crate) use objects::*;
pub(crate) use work::*;

/// A slot for a function that this library never provides: always `None`.
pub(crate) type Absent = Option<extern "C" fn()>;

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<ibv_wc>() == 48);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<uroce::verbs::Sge>() == 16);
    assert!(size_of::<ibv_device_attr>() == 232);
    assert!(size_of::<ibv_device_attr_ex>() == 400);
    assert!(size_of::<ibv_device>() == 664);
    assert!(size_of::<ibv_port_attr>() == 56);
    assert!(size_of::<ibv_qp_attr>() == 144);
    assert!(size_of::<ibv_qp_init_attr>() == 64);
    assert!(size_of::<ibv_qp_init_attr_ex>() == 136);
    assert!(size_of::<ibv_context_ops>() == 256);
};

/// Structs that hold pthread types differ from machine to machine.
#[cfg(all(target_arch = "x86_64", target_env = "gnu", target_pointer_width = "64"))]
const _: () = {
    // Eight more than rdma-core 44 has: wr_flush.
    assert!(size_of::<ibv_qp_ex>() == 352 + 8);
    assert!(size_of::<ibv_cq_ex>() == 288);
    assert!(size_of::<ibv_context>() == 328);
};
