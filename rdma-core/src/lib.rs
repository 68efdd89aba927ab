//! The library that stands in for libibverbs and librdmacm: a program that was compiled for them finds the device
//! `uroce0` instead, and works.
//!
//! It is thin. Each entry point translates what C passes, calls [`uroce::verbs`], and translates what comes back; what
//! a verb does stands there. This page tells what there is to translating, for whoever adds a verb or wonders why a
//! program does not start.
//!
//! # How a program gets here
//!
//! `cargo build` makes one shared library. Four symbolic links name it `libibverbs.so`, `libibverbs.so.1`,
//! `librdmacm.so` and `librdmacm.so.1`; to the loader, which goes by the file, all four are one library, and a process
//! has one device however many of the names it uses. `uroce run` points the loader to them.
//!
//! A program does not ask the loader for `ibv_open_device` but for `ibv_open_device@IBVERBS_1.1`, and as a rule it
//! does not start unless every name is found that it may ever call. So every name of rdma-core's two libraries is
//! here, each under its version: `exports` has the table, build.rs the version nodes, and a test compares them with a
//! list of rdma-core's and with the libraries of the machine. A name without a deed (`absent`) says so once in the
//! log, and answers `EOPNOTSUPP`. Among those names are the private ones by which libraries of hardware (libmlx5,
//! libefa) reach into libibverbs: some programs are linked with them and load them, though they never call them.
//!
//! # What a verb looks like from C
//!
//! Half of the verbs are no calls of a library. `ibv_post_send`, `ibv_poll_cq` and others are inline functions of the
//! header, which jump through pointers in the structs that this library hands out, at offsets that were compiled into
//! the program. `types` has those structs, by the header's names, with their sizes asserted; a test has a C compiler
//! print every offset and compares.
//!
//! ```text
//!   struct verbs_context            before it, growing upwards: what younger
//!   ├ query_port, create_qp_ex …    programs call; `sz` says how much there is
//!   └ struct ibv_context   ◄─────── what the program holds
//!     ├ ops: post_send, poll_cq …   what all programs call
//!     ├ async_fd, …
//!     └ abi_compat: all ones        "there is something before me"
//!   our own fields                  behind it, out of the program's sight
//! ```
//!
//! The other objects are simpler: the struct that the program knows comes first, ours follows, and the program's
//! pointer is the pointer to both:
//!
//! ```text
//! #[repr(C)]
//! struct Pd {
//!     base: ibv_pd,               // { context, handle }
//!     verbs: ProtectionDomain,    // what does the work
//!     birth: Birth,               // which process made it
//!     context: ContextHandle,     // keeps the context until the last object is gone
//! }
//! ```
//!
//! An entry point takes references to them, which in C are pointers, and is a closure in a frame that gives errors the
//! form of its man page (`entry`): an errno, −1 and `errno`, or NULL and `errno`.
//!
//! ```text
//! pub(crate) extern "C" fn ibv_alloc_pd(context: ContextPtr) -> *mut Pd {
//!     entry::pointer("ibv_alloc_pd", || {
//!         let context = context.share()?;
//!         let verbs = context.verbs().alloc_pd()?;
//!         Ok(Pd::create(context, verbs, None))
//!     })
//! }
//! ```
//!
//! # What a program promises
//!
//! As with libibverbs: that its pointers are to objects that it has made and not destroyed, that lists are as long as
//! it says and end as they should, that registered memory stays. The `SAFETY` comments rely on that and on nothing
//! else. Whatever a program asks of living objects, from however many threads, is answered by the documented errno.
//!
//! # What costs nothing
//!
//! `ibv_post_send` walks the program's chain under the queue pair's lock and hands each request to the queue as it
//! stands, `ibv_poll_cq` writes completions straight into the program's array. Nothing is allocated, and nothing is
//! copied but what the queue keeps. A completion's time is that of the pass over the network that brought it; no clock
//! is read for it.
//!
//! # Events
//!
//! The descriptors of completion channels and of contexts are eventfds of [`uroce::verbs`], so programs poll them, and
//! make them non-blocking, as they like. A completion queue's events carry the address of the object that the program
//! knows. Asynchronous events name their object by number, which the context looks up. Destroying an object waits
//! until its events have been acknowledged, as the man pages promise.
//!
//! # fork
//!
//! A child process has the parent's memory but not its threads. It may open the device anew, also from a list that the
//! parent asked for, and gets one of its own, at another address. What it has inherited answers `EIO`: every object
//! knows the process that made it. The child lets go of the parent's socket, and no lock of this library's is held
//! while a process forks. (One lock is out of reach: `parking_lot` queues waiting threads in a table of its own, and a
//! child that is forked in the very instant when another thread enters itself there could wait for that entry for
//! ever. It takes two threads that contend for a lock, a fork within some hundred nanoseconds, and a contended lock in
//! the child whose address falls into the same slot.)
//!
//! # Panics
//!
//! A panic would be a mistake of ours, and is not to become the program's end: unwinding stops at the entry point,
//! which answers `EIO`. That costs nothing as long as nothing happens. The functions that a program calls several
//! times a completion (`ibv_wc_read_*`, `ibv_wr_set_*`) do nothing that can panic, or catch it likewise. Should a
//! panic get past that, Rust ends the process rather than let it unwind into C.
#![cfg_attr(test, allow(dead_code, reason = "the exports, through which everything is reached, are left out of tests"))]

mod absent;
mod ah;
mod channel;
mod context;
mod cq;
mod cq_ex;
mod device;
mod entry;
#[cfg(not(test))]
mod exports;
mod fork;
mod lid;
mod mr;
mod mw;
mod names;
mod pd;
mod post;
mod qp;
mod qp_ex;
mod srq;
mod types;
mod xrc;
