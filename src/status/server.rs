//! The side that tells.

use super::{DeviceStatus, MOST_QUEUE_PAIRS, PATIENCE, address, prefix, text};
use crate::{bell::Bell, link::sys, nic::Nic};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::geteuid,
};
use socket2::{Domain, Socket, Type};
use std::{
    fs,
    io::{self, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    process,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Names to try: processes of several PID namespaces may have the same number.
const ATTEMPTS: u32 = 64;
/// How many askers may wait.
const BACKLOG: i32 = 16;
/// It writes text, and needs no more.
const STACK: usize = 256 << 10;
/// How long it waits after the system has refused it something.
const PAUSE: Duration = Duration::from_millis(100);

/// The next N of this process's names.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The thread that tells. Dropping this stops it, and returns when it has stopped.
#[derive(Debug)]
pub(crate) struct StatusServer {
    listener: Arc<UnixListener>,
    stop: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl StatusServer {
    /// Has a device tell how it is.
    pub(crate) fn spawn(nic: Arc<Nic>, device: &str) -> io::Result<Self> {
        let listener = Arc::new(listen()?);
        let stop = Arc::new(Bell::new()?);
        let teller = Teller { nic, device: device.to_owned(), listener: listener.clone(), stop: stop.clone() };
        let thread = thread::Builder::new().name(format!("{device}-status")).stack_size(STACK);
        let thread = sys::with_signals_blocked(|| thread.spawn(move || teller.run()))?;
        Ok(Self { listener, stop, thread: Some(thread) })
    }

    /// In a forked child: leaves the name to the parent.
    pub(crate) fn disown(&self) -> io::Result<()> {
        sys::replace_by_null(self.listener.as_fd())
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            // It fails when the thread has panicked, which has been reported then.
            let _ = thread.join();
        }
    }
}

/// A socket of a name that nobody has.
fn listen() -> io::Result<UnixListener> {
    let prefix = format!("{}{}/", prefix(geteuid().as_raw()), process::id());
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    for _ in 0..ATTEMPTS {
        let name = format!("{prefix}{}", NEXT.fetch_add(1, Ordering::Relaxed));
        match socket.bind(&address(&name)?) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            result => {
                result?;
                socket.listen(BACKLOG)?;
                return Ok(socket.into());
            }
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// What the thread has.
struct Teller {
    nic: Arc<Nic>,
    device: String,
    listener: Arc<UnixListener>,
    stop: Arc<Bell>,
}

impl Teller {
    fn run(&self) {
        loop {
            let mut wait = [PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&*self.listener, PollFlags::IN)];
            let waited = poll(&mut wait, None);
            if wait[0].revents().contains(PollFlags::IN) {
                return;
            }
            let told = match self.listener.accept() {
                Ok((stream, _)) => self.tell(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                Err(error) => {
                    // No descriptors, say: it would be called again at once.
                    thread::sleep(PAUSE);
                    Err(error)
                }
            };
            if let Err(error) = told.and(waited.map(drop).map_err(io::Error::from)) {
                tracing::debug!(%error, "a status was not told");
            }
        }
    }

    fn tell(&self, mut stream: UnixStream) -> io::Result<()> {
        let asker = rustix::net::sockopt::socket_peercred(&stream)?.uid;
        if asker != geteuid() && !asker.is_root() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(text::write(&self.status()).as_bytes())
    }

    fn status(&self) -> DeviceStatus {
        let (queue_pair_count, queue_pairs) = self.nic.queue_pair_status(MOST_QUEUE_PAIRS);
        let mut status = DeviceStatus {
            pid: process::id(),
            program: fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().to_owned(),
            device: self.device.clone(),
            address: Some(self.nic.address()),
            congestion: self.nic.congestion().map_or_else(|| "off".into(), ToString::to_string),
            line_rate: self.nic.line_rate(),
            counters: Vec::new(),
            queue_pair_count,
            queue_pairs,
        };
        status.set_counters(&self.nic.counters());
        status
    }
}
