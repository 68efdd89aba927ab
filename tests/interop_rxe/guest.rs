//! The guest: booted by `scripts/rxe-guest`, asked through guest.c, which runs in it. QEMU itself captures what its
//! network card sends and receives, which costs the emulated processors nothing.

use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Write},
    net::{IpAddr, Ipv6Addr},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};
use uroce::verbs::Gid;

/// What the guest's wire carries: enough for an IB MTU of 4096.
pub(crate) const NETWORK_MTU: u16 = 9000;
/// The interface of a guest that has one of this machine's.
pub(crate) const TAP: &str = "tap0";
/// How long the guest may take for one answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why there is no guest here, in one line.
pub(crate) struct Absent(pub(crate) String);

/// A running guest; it ends when this is dropped.
pub(crate) struct Guest {
    name: String,
    folder: PathBuf,
    driver: Option<Driver>,
    /// Ports that lead to the guest and nobody has used.
    ports: Vec<u16>,
}

/// guest.c, running in the guest.
struct Driver {
    process: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
}

impl Guest {
    /// Boots one whose wire is [`Self::wire`], or the interface [`TAP`]. TCP connections to `forwarded` ports of
    /// 127.0.0.1 lead to the same of the guest's.
    pub(crate) fn boot(folder: &Path, on_tap: bool, forwarded: Vec<u16>) -> Result<Self, Absent> {
        let name = format!("interop-{}{}", if on_tap { "tap-" } else { "" }, std::process::id());
        let guest = Self { name, folder: folder.to_owned(), driver: None, ports: forwarded };
        let program = compile(folder)?;
        let [ours, theirs] = guest.wire().map(|path| path.display().to_string());
        let mut start = script();
        let net = if on_tap { format!("tap:{TAP}") } else { format!("dgram:{theirs},{ours}") };
        start.args(["start", &guest.name, "--net", &net]).arg("--qmp").arg(guest.qmp());
        start.args(["--mtu", &NETWORK_MTU.to_string(), "--lifetime", "3600"]);
        for port in &guest.ports {
            start.args(["--forward", &format!("{port}:{port}")]);
        }
        let done = start.output().map_err(|error| Absent(format!("scripts/rxe-guest: {error}")))?;
        let said = String::from_utf8_lossy(&done.stderr);
        match done.status.code() {
            Some(0) => print!("{said}"),
            Some(3) => return Err(Absent(said.trim().to_owned())),
            _ => panic!("scripts/rxe-guest: {}\n{said}", done.status),
        }
        let mut copy = guest.command("cat >/tmp/driver && chmod +x /tmp/driver");
        let status = copy.stdin(File::open(program).unwrap()).status().unwrap();
        assert!(status.success(), "the guest does not take its driver");
        Ok(guest)
    }

    /// Our socket, and the guest's.
    pub(crate) fn wire(&self) -> [PathBuf; 2] {
        ["uroce", "guest"].map(|name| self.folder.join(name))
    }

    /// Where QEMU takes commands.
    fn qmp(&self) -> PathBuf {
        self.folder.join("qmp")
    }

    /// From now on, every frame that its network card sends or receives goes to a pcap file.
    pub(crate) fn start_capture(&self, path: &Path) {
        let arguments = json!({ "qom-type": "filter-dump", "id": "capture", "netdev": "wire", "file": path });
        self.ask_qemu("object-add", arguments);
    }

    /// The file is complete.
    pub(crate) fn end_capture(&self) {
        self.ask_qemu("object-del", json!({ "id": "capture" }));
    }

    /// Has QEMU do something: the QEMU Machine Protocol, a line of JSON each way.
    fn ask_qemu(&self, command: &str, arguments: Value) {
        let stream = UnixStream::connect(self.qmp()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut lines =
            BufReader::new(&stream).lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        for (command, arguments) in [("qmp_capabilities", json!({})), (command, arguments)] {
            writeln!(&stream, "{}", json!({ "execute": command, "arguments": arguments })).unwrap();
            // A greeting and events come in between.
            let is_answer = |said: &Value| said.get("return").is_some() || said.get("error").is_some();
            let answer = lines.find(is_answer).expect("QEMU answers");
            assert!(answer.get("return").is_some(), "{command}: {answer}");
        }
    }

    /// A TCP port of 127.0.0.1 that leads to the same of the guest's.
    pub(crate) fn next_port(&mut self) -> u16 {
        self.ports.pop().expect("there are as many as programs")
    }

    /// A shell command in the guest, which may take two minutes.
    pub(crate) fn command(&self, script: &str) -> Command {
        self.exec(&["--timeout", "120"], script)
    }

    fn exec(&self, options: &[&str], script: &str) -> Command {
        let mut command = self::script();
        command.arg("exec").args(options).args([&self.name, script]);
        command
    }

    /// What a shell command in the guest prints.
    pub(crate) fn output(&self, script: &str) -> String {
        let output = self.command(script).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Asks all of it, and returns the answers without their "ok".
    pub(crate) fn ask_all(&mut self, lines: &[String]) -> Vec<String> {
        if self.driver.is_none() {
            self.driver = Some(Driver::start(self.exec(&[], "exec /tmp/driver")));
        }
        let driver = self.driver.as_mut().expect("it has just been started");
        let mut text = lines.join("\n");
        text.push('\n');
        driver.commands.write_all(text.as_bytes()).expect("the driver in the guest takes commands");
        lines.iter().map(|line| driver.answer(line)).collect()
    }

    pub(crate) fn ask(&mut self, line: impl Into<String>) -> String {
        self.ask_all(&[line.into()]).remove(0)
    }

    /// Has the driver killed, as the kernel sees it: its queue pairs go without a word to anybody.
    pub(crate) fn kill_driver(&mut self) {
        let Some(mut driver) = self.driver.take() else { return };
        driver.commands.write_all(b"die\n").expect("the driver in the guest takes commands");
        assert_eq!(driver.answers.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    }

    /// Ends the driver; the next question starts another.
    pub(crate) fn restart_driver(&mut self) {
        self.driver = None;
    }

    /// Which entry of its GID table an address is.
    pub(crate) fn gid_index(&mut self, address: IpAddr) -> u8 {
        let gid = Ipv6Addr::from(Gid::from(address).0);
        self.ask(format!("gid {gid}")).parse().unwrap()
    }

    /// rxe's counters of the port.
    pub(crate) fn counters(&mut self) -> Counted {
        let said = self.ask("counters");
        let pairs = said.split_whitespace().filter_map(|pair| pair.split_once('='));
        Counted(pairs.map(|(name, count)| (name.to_owned(), count.parse().unwrap())).collect())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.driver = None;
        // A guest that is not to be stopped ends by itself.
        let _ = script().args(["stop", &self.name]).status();
    }
}

impl Driver {
    fn start(mut command: Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (commands, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, answers) = channel();
        thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let driver = Self { process, commands, answers };
        driver.answer("the driver's start");
        driver
    }

    fn answer(&self, asked: &str) -> String {
        let line = match self.answers.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the guest does not answer to `{asked}`"),
            Err(RecvTimeoutError::Disconnected) => panic!("the driver in the guest ended at `{asked}`"),
        };
        match line.strip_prefix("ok") {
            Some(answer) => answer.trim().to_owned(),
            None => panic!("guest: `{asked}`: {line}"),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The guest ends what it runs for a host that lets go.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// rxe's `hw_counters`, as they stand or as they grew.
#[derive(Clone, Debug)]
pub(crate) struct Counted(BTreeMap<String, u64>);

impl Counted {
    pub(crate) fn get(&self, name: &str) -> u64 {
        *self.0.get(name).unwrap_or_else(|| panic!("rxe has no counter {name}"))
    }

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self(self.0.iter().map(|(name, count)| (name.clone(), count - earlier.get(name))).collect())
    }
}

impl std::fmt::Display for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counted = self.0.iter().filter(|&(_, &count)| count > 0);
        let words: Vec<_> = counted.map(|(name, count)| format!("{name}={count}")).collect();
        f.write_str(&words.join(" "))
    }
}

fn script() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/rxe-guest"))
}

/// Compiles guest.c for the guest, whose libraries are of this machine's release.
fn compile(folder: &Path) -> Result<PathBuf, Absent> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop_rxe/guest.c");
    let program = folder.join("driver");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source).arg("-libverbs");
    match compiler.output() {
        Ok(done) if done.status.success() => Ok(program),
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr);
            Err(Absent(format!(
                "the guest's driver does not compile (gcc, libc6-dev, libibverbs-dev): {}",
                said.lines().next().unwrap_or_default()
            )))
        }
        Err(error) => Err(Absent(format!("there is no C compiler for the guest's driver: {error}"))),
    }
}
