//! A RoCE v2 NIC in user space.
//!
//! uroce gives a program an RDMA device on any Linux machine: no RDMA hardware, no kernel module, no root. It speaks
//! real RoCE v2 (UDP port 4791, BTH to ICRC), so the peer may be another uroce, Linux rxe or a real NIC. And it may
//! be watched and disturbed: every packet can be captured, dropped, delayed, repeated, reordered or corrupted, on
//! purpose and repeatably.
//!
//! The API is that of the verbs in Rust spelling: whoever knows `ibv_post_send` finds
//! [`QueuePair::post_send`](verbs::QueuePair::post_send) without a search. The table at the head of [`verbs`] lists
//! the rest. What works today is the reliable connection, with all of its operations.
//!
//! # Two devices in one program
//!
//! A [`Device`](verbs::Device) stands on one local IP address. Without one it takes the first free of 127.0.0.1,
//! 127.0.0.2, …, so that programs on one machine find each other with nothing set up:
//!
//! ```
//! use uroce::verbs::{Device, QpInitAttributes};
//!
//! # fn main() -> Result<(), uroce::verbs::Error> {
//! let device = Device::builder().build()?;
//! let context = device.open()?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(16, 0, None)?;
//! let qp = pd.create_qp(&QpInitAttributes::new(&cq))?;
//! println!("queue pair {} at {}", qp.qp_num(), device.gid());
//! # Ok(())
//! # }
//! ```
//!
//! A queue pair needs to know its peer's number and address, and a remote operation needs a key and an address of the
//! peer's memory. Real programs tell each other over some other connection; here both ends are at hand. This writes
//! into remote memory, reads it back, and sends a message:
//!
//! ```
//! use uroce::verbs::{
//!     AccessFlags, Buffers, Connection, Device, QpInitAttributes, ReceiveWorkRequest, SendOperation,
//!     SendWorkRequest, Target, WcOpcode,
//! };
//!
//! # fn main() -> Result<(), uroce::verbs::Error> {
//! let (here, there) = (Device::builder().build()?, Device::builder().build()?);
//! let (here_context, there_context) = (here.open()?, there.open()?);
//! let (here_pd, there_pd) = (here_context.alloc_pd()?, there_context.alloc_pd()?);
//! let (here_cq, there_cq) = (here_context.create_cq(16, 0, None)?, there_context.create_cq(16, 0, None)?);
//! let here_qp = here_pd.create_qp(&QpInitAttributes::new(&here_cq))?;
//! let there_qp = there_pd.create_qp(&QpInitAttributes::new(&there_cq))?;
//!
//! // RESET to RTS in one step. `modify` is there for those who want each of them.
//! here_qp.connect(&Connection::new(there.gid(), there_qp.qp_num()))?;
//! there_qp.connect(&Connection::new(here.gid(), here_qp.qp_num()))?;
//!
//! let mine = here_pd.reg_mr(4096, AccessFlags::LOCAL_WRITE)?;
//! let theirs = there_pd.reg_mr(
//!     4096,
//!     AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
//! )?;
//!
//! // WRITE, and a READ behind it that fetches the bytes back to another place. The other side does nothing.
//! mine.write(0, b"one-sided")?;
//! let (from, into) = ([mine.sge(0, 9)], [mine.sge(100, 9)]);
//! let request = |wr_id, operation, list| SendWorkRequest {
//!     wr_id,
//!     operation,
//!     buffers: Buffers::List(list),
//!     signaled: true,
//!     solicited: false,
//!     fence: false,
//!     target: Target::Peer,
//! };
//! let (address, rkey) = (theirs.address() + 7, theirs.rkey());
//! here_qp.post_send(&[
//!     request(1, SendOperation::Write { address, rkey }, &from),
//!     request(2, SendOperation::Read { address, rkey }, &into),
//! ])?;
//! for wr_id in [1, 2] {
//!     let completion = here_cq.wait()?;
//!     assert!(completion.is_success());
//!     assert_eq!(completion.wr_id, wr_id);
//! }
//! let mut bytes = [0; 9];
//! mine.read(100, &mut bytes)?;
//! assert_eq!(&bytes, b"one-sided");
//!
//! // SEND needs a receive at the other side.
//! there_qp.post_recv(&[ReceiveWorkRequest { wr_id: 3, sg_list: &[theirs.sge(0, 64)] }])?;
//! here_qp.post_send(&[request(4, SendOperation::Send, &from)])?;
//! let received = there_cq.wait()?;
//! assert_eq!((received.opcode, received.byte_len), (WcOpcode::Receive, 9));
//! # assert!(here_cq.wait()?.is_success());
//! # Ok(())
//! # }
//! ```
//!
//! # Who does the work
//!
//! There is no hardware behind the queues. Posting sends what may be sent, on the caller's thread; polling an empty
//! completion queue takes in what has arrived, runs the protocol and sends what that releases, likewise. A program
//! that polls pays no thread switch. For one that does not, a thread of the device does the same work: one-sided
//! operations reach a sleeping process, and one that waits on a
//! [`CompletionChannel`](verbs::CompletionChannel) is woken.
//!
//! # A bad network, on purpose
//!
//! What carries the packets is a [`link`], and links stack. This device loses a packet in a hundred, by dice that a
//! seed repeats, and writes down what is left:
//!
//! ```no_run
//! use std::{path::Path, sync::Arc};
//! use uroce::{
//!     link::{Capture, CaptureFile, Fault, UdpConfig, UdpLink},
//!     verbs::Device,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let udp = UdpLink::open("192.0.2.1".parse()?, &UdpConfig::default())?;
//! let wire = Capture::new(udp, CaptureFile::create(Path::new("bad-day.pcapng"))?, "uroce0")?;
//! let seed = 17;
//! let link = Fault::new(wire, &"drop 1%".parse()?, seed);
//! let device = Device::builder().link(Arc::new(link)).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! [`link::sim`] has no sockets at all: any number of devices in one process, virtual time, every run of a seed the
//! same.
//!
//! # Parts
//!
//! - [`verbs`]: the device and its objects.
//! - [`link`]: how packets leave: UDP sockets, a simulated network, and the wrappers that disturb and record.
//! - [`settings`]: what the environment asks for: the device of an unmodified program, and of the command.
//! - [`status`]: what the running devices of this user say of themselves.
//! - [`capture`]: read captures, and check every packet in them.
//! - [`ceiling`]: what this machine could do without a transport, to judge by.
//! - [`clock`]: where time comes from.
//! - [`congestion`]: how a device reacts to queues in the network, if it is to.
//! - [`uroce_protocol`], a crate of its own: wire formats and state machines, without sockets, threads, clocks or
//!   `unsafe`.
//!
//! # Features
//!
//! - `cli` (default): the `uroce` command. Without it the library has far fewer dependencies.
//! - `log` (part of `cli`): `Settings::start_log`, the log on standard error.

mod bell;
pub mod capture;
pub mod ceiling;
pub mod clock;
pub mod congestion;
mod host_memory;
pub mod link;
mod nic;
pub mod settings;
pub mod status;
pub mod verbs;
