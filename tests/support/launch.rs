//! Runs programs that know nothing of uroce, the way a user would: `uroce run -- PROGRAM`. A server and its clients
//! are processes of their own; what they printed is shown when they fail, and one that hangs is killed.

use super::library::library;
use std::{
    fmt,
    io::{self, Read, Write},
    mem,
    net::TcpListener,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Only a program that hangs takes it: polling programs on a machine with other things to do are slow.
pub const HANGS_AFTER: Duration = Duration::from_secs(120);

/// How often a process is asked whether it has ended.
const GLANCE: Duration = Duration::from_millis(5);

/// `uroce RUN_OPTIONS run -- PROGRAM`, to be given the program's arguments.
pub fn uroce_run(run_options: &[&str], program: impl AsRef<Path>) -> Command {
    library();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uroce"));
    command.arg("run").args(run_options).arg("--").arg(program.as_ref());
    command
}

/// Whether all these files are here; when not, says in one line what is left out and why.
pub fn are_here(what: &str, package: &str, files: &[&str]) -> bool {
    let Some(absent) = files.iter().find(|file| !Path::new(file).exists()) else { return true };
    // The test harness captures what `eprintln!` prints; this line is for whoever runs it.
    let line = format!("{what}: skipped, because there is no {absent} (Debian package {package})\n");
    io::stderr().write_all(line.as_bytes()).unwrap();
    false
}

/// A TCP port that nobody listens on.
pub fn free_port() -> u16 {
    TcpListener::bind(("0.0.0.0", 0)).unwrap().local_addr().unwrap().port()
}

/// How a process ended, and what it printed.
pub struct Finished {
    name: String,
    status: ExitStatus,
    timed_out: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Whether it ended by itself, with exit status 0.
    pub fn succeeded(&self) -> bool {
        self.status.success() && !self.timed_out
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.timed_out {
            format!("hung, killed after {HANGS_AFTER:?}")
        } else if let Some(signal) = self.status.signal() {
            format!("died of signal {signal}")
        } else {
            self.status.to_string()
        };
        writeln!(f, "--- {}: {how}", self.name)?;
        for line in self.stdout.lines() {
            writeln!(f, "    {line}")?;
        }
        for line in self.stderr.lines() {
            writeln!(f, "  ! {line}")?;
        }
        Ok(())
    }
}

/// A process that runs, the leader of its own group; the whole group is killed when this is dropped.
pub struct Process {
    name: String,
    child: Child,
    output: Option<[JoinHandle<String>; 2]>,
}

impl Process {
    pub fn start(name: &str, mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let output = [collect(child.stdout.take().unwrap()), collect(child.stderr.take().unwrap())];
        Self { name: name.to_owned(), child, output: Some(output) }
    }

    /// Whether it has ended. It is not waited for, so that its number stays its own.
    pub fn has_ended(&self) -> bool {
        // SAFETY: siginfo_t is a plain structure, for which zeroes are a value; it outlives the call that fills it.
        unsafe {
            let mut info: libc::siginfo_t = mem::zeroed();
            let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            assert_eq!(libc::waitid(libc::P_PID, self.child.id(), &mut info, options), 0);
            info.si_pid() != 0
        }
    }

    /// Waits until somebody listens on a TCP port, or this process has ended. Connecting to find out would disturb a
    /// server that takes one connection.
    pub fn wait_until_listening(&self, port: u16) {
        let start = Instant::now();
        while !is_listening(port) && !self.has_ended() && start.elapsed() < HANGS_AFTER {
            thread::sleep(GLANCE);
        }
    }

    /// Waits for its end, [`HANGS_AFTER`] at most.
    pub fn finish(mut self) -> Finished {
        let start = Instant::now();
        while !self.has_ended() && start.elapsed() < HANGS_AFTER {
            thread::sleep(GLANCE);
        }
        let timed_out = !self.has_ended();
        self.kill();
        let status = self.child.wait().unwrap();
        let [stdout, stderr] = self.output.take().unwrap().map(|reader| reader.join().unwrap());
        Finished { name: self.name.clone(), status, timed_out, stdout, stderr }
    }

    /// Ends the process and whatever it started: no pipe of theirs stays open.
    fn kill(&self) {
        let group = i32::try_from(self.child.id()).unwrap();
        // SAFETY: kill takes no pointers. The group is ours: its leader has not been waited for, so nobody else has its
        // number.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.output.is_some() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Whether the kernel's tables of TCP sockets, over either IP, have one that listens on this port.
fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        table.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            let state = fields.nth(1).unwrap_or_default();
            state == LISTEN && local.ends_with(&format!(":{port:04X}"))
        })
    })
}

/// Starts a server, its clients once it listens on `port`, and waits for all to end. The server comes first in the
/// result. When a client fails, nobody waits for the others: they might wait for it.
pub fn serve(port: u16, server: Command, clients: Vec<Command>) -> Vec<Finished> {
    let server = Process::start("server", server);
    server.wait_until_listening(port);
    let mut finished = Vec::new();
    if !server.has_ended() {
        let running: Vec<_> = clients.into_iter().map(|client| Process::start("client", client)).collect();
        for client in running {
            finished.push(client.finish());
            if !finished.last().unwrap().succeeded() {
                break;
            }
        }
    }
    if !finished.iter().all(Finished::succeeded) {
        server.kill();
    }
    finished.insert(0, server.finish());
    finished
}
