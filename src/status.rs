//! What running devices say of themselves, to whoever of the same user asks: `uroce stat`.
//!
//! A device whose thread runs listens on a unix socket with an abstract name, `uroce/UID/PID/N`. Whoever connects, and is
//! of the same user or root, is told once how the device is, in lines of text, and the connection ends. That is
//! done by a thread of its own which sleeps otherwise, so it costs the data path nothing but the locks that a look at
//! the counters takes. A name in the abstract namespace goes with the process; a device that cannot have one (there
//! are no descriptors left, say) works without.

mod server;
mod text;

pub(crate) use server::StatusServer;

use crate::verbs::{Counters, QpState, QpType, Qpn};
use rustix::process::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read},
    net::IpAddr,
    os::unix::net::UnixStream,
    time::Duration,
};
use uroce_protocol::congestion::Rate;

/// How many queue pairs a device tells of at most: those with the lowest numbers.
pub const MOST_QUEUE_PAIRS: usize = 4096;

/// How long a device may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// The longest answer that is believed: that of [`MOST_QUEUE_PAIRS`] is a tenth of it.
const LONGEST: u64 = 4 << 20;

/// How a device is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStatus {
    /// The process that has it.
    pub pid: u32,
    /// The name of its program.
    pub program: String,
    /// The device's name.
    pub device: String,
    /// Its address.
    pub address: Option<IpAddr>,
    /// How it controls congestion; "off" if it does not.
    pub congestion: String,
    /// How fast its port is.
    pub line_rate: Rate,
    /// What it has counted, by the names of [`Counters`].
    pub counters: Vec<(String, u64)>,
    /// How many queue pairs it has.
    pub queue_pair_count: u64,
    /// The first [`MOST_QUEUE_PAIRS`] of them.
    pub queue_pairs: Vec<QueuePairStatus>,
}

/// How a queue pair is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairStatus {
    /// Its number.
    pub number: u32,
    /// Its type, as the verbs write it: `RC`, `UC`, `UD`, `XRC_SEND`, `XRC_RECV`.
    pub qp_type: String,
    /// Its state, as the verbs write it: `RTS`.
    pub state: String,
    /// The address and the queue pair that it is connected to.
    pub peer: Option<(IpAddr, u32)>,
    /// How fast it may send: the port's rate where nothing slows it down.
    pub rate: Rate,
}

impl QueuePairStatus {
    pub(crate) fn new(number: Qpn, qp_type: QpType, state: QpState, peer: Option<(IpAddr, Qpn)>, rate: Rate) -> Self {
        let qp_type = match qp_type {
            QpType::Rc => "RC",
            QpType::Uc => "UC",
            QpType::Ud => "UD",
            QpType::XrcSend => "XRC_SEND",
            QpType::XrcRecv => "XRC_RECV",
        };
        Self {
            number: number.value(),
            qp_type: qp_type.into(),
            state: format!("{state:?}").to_uppercase(),
            peer: peer.map(|(address, number)| (address, number.value())),
            rate,
        }
    }
}

impl DeviceStatus {
    /// The counter of that name, 0 if there is none.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(known, _)| known == name).map_or(0, |&(_, count)| count)
    }

    fn set_counters(&mut self, counters: &Counters) {
        self.counters = counters.iter().map(|(name, count)| (name.to_owned(), count)).collect();
    }
}

/// The running devices of this user, by process. Those that do not answer are left out.
///
/// # Errors
/// What the system says when it does not tell its unix sockets (`/proc/net/unix`).
pub fn devices() -> io::Result<Vec<DeviceStatus>> {
    let sockets = fs::read("/proc/net/unix")?;
    let prefix = prefix(geteuid().as_raw());
    // Other users' names, and paths, may be anything.
    let names: BTreeSet<_> = String::from_utf8_lossy(&sockets)
        .lines()
        .filter_map(|line| line.rsplit_once('@'))
        .filter(|(_, name)| name.starts_with(&prefix))
        .map(|(_, name)| name.to_owned())
        .collect();
    let mut devices: Vec<_> = names.iter().filter_map(|name| ask(name).ok()).collect();
    devices.sort_by(|a, b| (a.pid, &a.device, a.address).cmp(&(b.pid, &b.device, b.address)));
    Ok(devices)
}

/// How the names of a user's sockets begin.
fn prefix(user: u32) -> String {
    format!("uroce/{user}/")
}

/// The socket's address of an abstract name.
fn address(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{name}"))
}

/// Asks one device.
fn ask(name: &str) -> io::Result<DeviceStatus> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Nobody may be there to accept: a forked child that holds on to what was its parent's.
    socket.set_nonblocking(true)?;
    socket.connect(&address(name)?)?;
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    // Anybody may take a name.
    let peer = rustix::net::sockopt::socket_peercred(&socket)?;
    if peer.uid != geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut answer = String::new();
    UnixStream::from(socket).take(LONGEST).read_to_string(&mut answer)?;
    let mut status = text::parse(&answer).ok_or(io::ErrorKind::InvalidData)?;
    status.pid = peer.pid.as_raw_nonzero().get().cast_unsigned();
    Ok(status)
}

#[cfg(test)]
mod tests;
