//! Two processes in two network namespaces, over a veth pair that this test makes, with 5 % loss each way: every
//! byte arrives, at both usual Ethernet MTUs, over IPv4 and IPv6, over UDP and in Ethernet frames of our own.
//!
//! Making namespaces takes root and the `ip` command; without them the tests say so in one line and pass.
#![cfg(feature = "cli")]

use serde_json::Value;
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::IpAddr,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

const LOSS: &str = "drop 5%";
/// Long enough for a machine that does other things too; only a command that hangs takes it.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// Two namespaces and the cable between them; gone when dropped.
struct Cable {
    namespaces: [String; 2],
    /// What `--link` says on each side.
    links: [&'static str; 2],
    addresses: [[IpAddr; 2]; 2],
}

impl Cable {
    /// `None` where it cannot be made, after saying why.
    fn new(name: &str, mtu: usize, links: [&'static str; 2]) -> Option<Self> {
        let namespaces = [0, 1].map(|side| format!("uroce-{name}-{}-{side}", std::process::id()));
        // The test harness captures what `eprintln!` prints; this line is for whoever runs it.
        let skip = |why: &str| {
            let line = format!("two_namespaces {name}: skipped, because {why}\n");
            io::stderr().write_all(line.as_bytes()).unwrap();
        };
        match Command::new("ip").args(["netns", "add", &namespaces[0]]).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                skip(&format!("no namespace can be made: {}", String::from_utf8_lossy(&output.stderr).trim()));
                return None;
            }
            Err(error) => {
                skip(&format!("the ip command cannot be run: {error}"));
                return None;
            }
        }
        let addresses =
            [1, 2].map(|host| [format!("10.99.0.{host}"), format!("fd00:99::{host}")].map(|a| a.parse().unwrap()));
        let cable = Self { namespaces, links, addresses };
        let [near, far] = &cable.namespaces;
        ip(&["netns", "add", far]);
        ip(&["-n", near, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", far]);
        for (namespace, [ipv4, ipv6]) in cable.namespaces.iter().zip(cable.addresses) {
            ip(&["-n", namespace, "address", "add", &format!("{ipv4}/24"), "dev", "wire"]);
            // No duplicate address detection, which would keep the address unusable for seconds.
            ip(&["-n", namespace, "address", "add", &format!("{ipv6}/64"), "dev", "wire", "nodad"]);
            ip(&["-n", namespace, "link", "set", "wire", "mtu", &mtu.to_string(), "up"]);
        }
        Some(cable)
    }

    /// The `uroce` command on one side.
    fn uroce(&self, side: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespaces[side], env!("CARGO_BIN_EXE_uroce"), "--fault", LOSS]);
        command.args(["--link", self.links[side]]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a test of the command between the sides, over IPv4 (0) or IPv6 (1), and returns what the client
    /// printed.
    fn run(&self, version: usize, test: &[&str], client_options: &[&str]) -> String {
        let address = self.addresses[1][version].to_string();
        let mut server = Process::start(self.uroce(1).args(test).args(["--addr", &address]));
        server.wait_until_it_says("waiting at");
        let client = Process::start(self.uroce(0).args(test).arg(&address).args(client_options));
        let printed = client.finish();
        server.finish();
        printed
    }

    /// Runs a perf test, checks that data and MTU were right, and returns how many packets were sent again.
    fn perf(&self, version: usize, test: &str, mtu: u64, client_options: &[&str]) -> u64 {
        let mut options = vec!["--json"];
        options.extend(client_options);
        let printed = self.run(version, &["perf", test], &options);
        let found: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(found["data_right"], true, "{printed}");
        assert_eq!(found["mtu"], mtu, "{printed}");
        found["retransmitted_packets"].as_u64().unwrap()
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            let _ = Command::new("ip").args(["netns", "delete", namespace]).output();
        }
    }
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A command that runs; killed when dropped.
struct Process {
    child: Child,
    errors: mpsc::Receiver<String>,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, errors) = mpsc::channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, errors }
    }

    fn wait_until_it_says(&mut self, words: &str) {
        while !self.errors.recv_timeout(HANGS_AFTER).expect("it ended or hangs").contains(words) {}
    }

    /// Waits for its end, which must be good, and returns what it printed.
    fn finish(mut self) -> String {
        let mut stdout = self.child.stdout.take().unwrap();
        let (sender, printed) = mpsc::channel();
        thread::spawn(move || {
            let mut text = String::new();
            let _ = stdout.read_to_string(&mut text);
            let _ = sender.send(text);
        });
        let printed = printed.recv_timeout(HANGS_AFTER);
        if printed.is_err() {
            let _ = self.child.kill();
        }
        let status = self.child.wait().unwrap();
        let errors: Vec<String> = self.errors.iter().collect();
        assert!(printed.is_ok() && status.success(), "{status}, {}", errors.join("\n"));
        printed.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything that a pair of namespaces has to carry.
fn everything_arrives(name: &str, network_mtu: usize, path_mtu: u64, links: [&'static str; 2]) {
    let Some(cable) = Cable::new(name, network_mtu, links) else { return };
    for version in [0, 1] {
        let printed = cable.run(version, &["pingpong"], &["--size", "40001", "--iterations", "20"]);
        assert!(printed.contains("all data right"), "{printed}");

        let mut sent_again = 0;
        for test in ["send-bw", "write-bw", "read-bw"] {
            sent_again += cable.perf(version, test, path_mtu, &["--size", "100001", "-n", "30", "--qps", "3"]);
        }
        sent_again += cable.perf(version, "atomic-bw", path_mtu, &["-n", "100"]);
        for test in ["send-lat", "write-lat"] {
            sent_again += cable.perf(version, test, path_mtu, &["--size", "64", "-n", "40"]);
        }
        assert!(sent_again > 0, "5 % loss went unnoticed");
    }
}

#[test]
fn over_udp() {
    everything_arrives("udp", 1500, 1024, ["udp", "udp"]);
}

#[test]
fn over_udp_in_jumbo_frames() {
    everything_arrives("udp-jumbo", 9000, 4096, ["udp", "udp"]);
}

/// Through packet sockets, which see whole trains as one frame on such a cable.
#[test]
fn over_ethernet() {
    everything_arrives("ether", 1500, 1024, ["ether:wire", "ether:wire"]);
}

#[test]
fn from_udp_to_ethernet_in_jumbo_frames() {
    everything_arrives("udp-ether", 9000, 4096, ["udp", "ether:wire"]);
}

#[test]
fn from_ethernet_to_udp() {
    everything_arrives("ether-udp", 1500, 1024, ["ether:wire", "udp"]);
}
