//! `uroce stat`: a running device tells whoever of its user asks, and nobody else; what does not answer is left out.
#![cfg(feature = "cli")]

mod support;

use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    io::Read,
    os::unix::net::UnixStream,
    process::{self, Command},
    thread,
    time::Duration,
};
use support::{device, eventually, pair_of};
use uroce::{
    congestion::{Congestion, DcqcnParameters},
    verbs::{Device, QpRateLimit, QpType, SendOperation},
};

fn stat(options: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_uroce")).arg("stat").args(options).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What is told of the devices of this process that stand at `device`'s address.
fn found(device: &Device) -> Vec<Value> {
    let all: Value = serde_json::from_str(&stat(&["--json"])).unwrap();
    let is_it = |value: &&Value| value["pid"] == process::id() && value["address"] == device.address().to_string();
    all["devices"].as_array().unwrap().iter().filter(is_it).cloned().collect()
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn connect_to(name: &str) -> std::io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.connect(&SockAddr::unix(format!("\0{name}"))?)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(socket.into())
}

/// The names of this process's devices.
fn names() -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let prefix = format!("@uroce/{}/{}/", user(), process::id());
    let names = sockets.lines().filter_map(|line| line.find(&prefix).map(|at| line[at + 1..].to_owned()));
    names.collect()
}

#[test]
fn a_running_device_is_shown_with_its_counters_and_queue_pairs() {
    let near = Device::builder().congestion(Congestion::new(DcqcnParameters::PAPER)).build().unwrap();
    let far = device();
    let (a, b) = pair_of(QpType::Rc, [&near, &far], 4096);
    a.post(1, SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() }, a.mr.sge(0, 4096));
    a.completion();
    a.qp.modify_rate_limit(&QpRateLimit { rate_limit: 5000, ..QpRateLimit::default() }).unwrap();

    let [shown] = &found(&near)[..] else { panic!("{:?}", found(&near)) };
    assert_eq!(shown["device"], "uroce0");
    assert_eq!(shown["congestion"], "dcqcn");
    assert_eq!(shown["counters"]["sent_pkts"], near.counters().sent_pkts);
    assert_eq!(shown["counters"]["rdma_sends"], 1);
    assert_eq!(shown["queue_pair_count"], 1);
    let qp = &shown["queue_pairs"][0];
    assert_eq!((&qp["qp"], &qp["type"], &qp["state"]), (&a.qp.qp_num().value().into(), &"RC".into(), &"RTS".into()));
    assert_eq!(qp["peer_address"], far.address().to_string());
    assert_eq!(qp["peer_qp"], b.qp.qp_num().value());
    assert_eq!(qp["rate_bps"], 5_000_000);
    let [other] = &found(&far)[..] else { panic!("{:?}", found(&far)) };
    assert_eq!((&other["congestion"], &other["queue_pairs"][0]["rate_bps"]), (&"off".into(), &other["line_rate_bps"]));

    let text = stat(&[]);
    assert!(text.contains(&format!("at {}, 1 queue pair, congestion control dcqcn", near.address())), "{text}");
    assert!(text.contains(&format!("5.00 Mbit/s  → {} {}", far.address(), b.qp.qp_num().value())), "{text}");

    let gone = near.address().to_string();
    drop((a, b, near, far));
    let all: Value = serde_json::from_str(&stat(&["--json"])).unwrap();
    assert!(!all["devices"].as_array().unwrap().iter().any(|it| it["pid"] == process::id() && it["address"] == gone));
}

/// Lines of `# TYPE`, and of NAME{LABELS} NUMBER, those of one metric together and after its type.
#[test]
fn prometheus_text_is_what_prometheus_reads() {
    let device = device();
    let side = support::Side::new(&device, uroce::verbs::QpCapabilities::default(), 64);
    let text = stat(&["--prometheus"]);
    let mut current = String::new();
    let mut seen = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(seen.insert(name.to_owned()), "{name} comes twice");
            assert_eq!(kind, if name.ends_with("_total") { "counter" } else { "gauge" });
            current = name.to_owned();
            continue;
        }
        let (name, rest) = line.split_once('{').unwrap();
        assert_eq!(name, current);
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
        let (labels, value) = rest.rsplit_once("} ").unwrap();
        value.parse::<u64>().unwrap();
        assert!(labels.starts_with("pid=\"") && labels.ends_with('"'), "{labels}");
    }
    let rate = text.lines().find(|line| {
        line.starts_with("uroce_qp_rate_bits_per_second{")
            && line.contains(&format!("qp=\"{}\"", side.qp.qp_num().value()))
    });
    assert!(rate.is_some_and(|line| line.contains("state=\"RESET\"")), "{text}");
    assert!(seen.contains("uroce_sent_pkts_total") && seen.contains("uroce_rp_cnp_handled_total"));
}

#[test]
fn who_is_told_not_to_tell_does_not() {
    let device = Device::builder().status(false).build().unwrap();
    assert!(found(&device).is_empty());
}

/// A socket that nobody serves, one that tells nonsense, and one whose queue of askers is full.
#[test]
fn what_does_not_answer_is_left_out() {
    let listen = |name: &str, backlog| {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::unix(format!("\0uroce/{}/{name}", user())).unwrap()).unwrap();
        socket.listen(backlog).unwrap();
        socket
    };
    let id = process::id();
    let _silent = listen(&format!("silent/{id}"), 16);
    let _full = listen(&format!("full/{id}"), 0);
    let _waiting = connect_to(&format!("uroce/{}/full/{id}", user())).unwrap();
    let nonsense = listen(&format!("nonsense/{id}"), 16);
    let served = thread::spawn(move || {
        let (mut stream, _) = nonsense.accept().unwrap();
        let _ = std::io::Write::write_all(&mut stream, b"uroce status 1\nqps many\n");
    });
    let device = device();
    assert_eq!(found(&device).len(), 1);
    served.join().unwrap();
}

/// Who connects and reads nothing keeps nobody else from being told.
#[test]
fn an_asker_that_does_not_read_holds_up_nobody() {
    let device = device();
    // One of another test's may be gone already.
    let idle: Vec<_> = names().iter().filter_map(|name| connect_to(name).ok()).collect();
    assert!(!idle.is_empty());
    eventually("the device tells again", || found(&device).len() == 1);
    drop(idle);
}

/// Only root can become somebody else to try.
#[test]
fn another_user_is_told_nothing() {
    if user() != 0 {
        eprintln!("not root: nobody to be instead");
        return;
    }
    let device = device();
    let names = names();
    assert!(!names.is_empty());
    let stranger = move || {
        // SAFETY: the raw system call changes the user of this thread alone, which ends with this function.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
        assert_eq!(changed, 0);
        for name in names {
            // It may have been closed meanwhile: another test's.
            let Ok(mut stream) = connect_to(&name) else { continue };
            let mut told = Vec::new();
            let _ = stream.read_to_end(&mut told);
            assert!(told.is_empty(), "{}", String::from_utf8_lossy(&told));
        }
    };
    thread::spawn(stranger).join().unwrap();
    assert_eq!(found(&device).len(), 1, "its own user is told");
}
