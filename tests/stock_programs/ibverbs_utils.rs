//! ibverbs-utils: what every user of verbs runs first.

use crate::{
    compatibility::Section,
    pair::{Case, Tool, Verdict, has, option, run_all},
    support::launch::{Finished, Process, are_here, free_port, serve, uroce_run},
    turn,
};

const PACKAGE: &str = "ibverbs-utils";

#[test]
fn the_device_is_listed_and_described() {
    let _turn = turn();
    if !are_here("ibv_devices, ibv_devinfo", PACKAGE, &["/usr/bin/ibv_devices", "/usr/bin/ibv_devinfo"]) {
        return;
    }
    let run = |program: &str, options: &[&str]| {
        let mut command = uroce_run(&[], format!("/usr/bin/{program}"));
        command.args(options);
        let finished = Process::start(program, command).finish();
        assert!(finished.succeeded(), "{finished}");
        finished
    };
    let listed = run("ibv_devices", &[]);
    let line = listed.stdout.lines().find(|line| line.contains("uroce0")).unwrap_or_else(|| panic!("{listed}"));
    let guid = line.split_whitespace().nth(1).unwrap_or_else(|| panic!("{listed}"));
    assert!(guid.len() == 16 && u64::from_str_radix(guid, 16).is_ok_and(|guid| guid != 0), "{listed}");

    let described = run("ibv_devinfo", &["-v"]);
    let colons = |guid: &str| [&guid[..4], &guid[4..8], &guid[8..12], &guid[12..]].join(":");
    for (name, value) in [
        ("hca_id", "uroce0"),
        ("transport", "InfiniBand (0)"),
        ("node_guid", &*colons(guid)),
        ("phys_port_cnt", "1"),
        ("state", "PORT_ACTIVE (4)"),
        ("max_mtu", "4096 (5)"),
        ("active_mtu", "4096 (5)"),
        ("link_layer", "Ethernet"),
        ("atomic_cap", "ATOMIC_GLOB (2)"),
    ] {
        let found = field(&described, name);
        assert!(found.as_deref() == Some(value), "{name} is {found:?} and not {value:?}\n{described}");
    }
    for name in
        ["max_mr_size", "max_qp", "max_qp_wr", "max_sge", "max_cq", "max_cqe", "max_mr", "max_pd", "max_qp_rd_atom"]
    {
        let value = field(&described, name).unwrap_or_default();
        let number = value.strip_prefix("0x").map_or_else(|| value.parse(), |digits| u64::from_str_radix(digits, 16));
        assert!(number.is_ok_and(|number| number > 0), "{name} is {value:?}\n{described}");
    }
}

/// What `ibv_devinfo` prints behind a name.
fn field(described: &Finished, name: &str) -> Option<String> {
    let lines = described.stdout.lines().map(str::trim);
    let mut found = lines.filter_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
    found.next().map(|value| value.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// With the options that each offers: `-c` looks at the data, except for XRC, where there is no such thing. A packet of
/// an unreliable service that finds the socket's buffer full is lost, and its ping-pong over: messages of these are of
/// a size that fits.
const PINGPONGS: &[(&str, &[&str])] = &[
    (
        "ibv_rc_pingpong",
        &[
            "-n 200",
            "-n 200 -e",
            "-n 200 -c",
            "-n 200 -e -c",
            "-n 200 -s 1",
            "-n 200 -c -m 1024 -s 64",
            "-n 50 -c -m 1024 -s 65536",
            "-n 200 -c -m 4096 -s 64",
            "-n 50 -c -m 4096 -s 65536",
            "-n 10 -c -m 1024 -s 4194304",
            "-n 10 -c -m 4096 -s 4194304",
            "-n 200 -c -N",
            "-n 200 -c -t",
            "-n 200 -e -c -N",
        ],
    ),
    (
        "ibv_uc_pingpong",
        &[
            "-n 200",
            "-n 200 -e",
            "-n 200 -c",
            "-n 200 -e -c",
            "-n 200 -s 1",
            "-n 200 -c -m 1024 -s 64",
            "-n 50 -c -m 1024 -s 65536",
            "-n 200 -c -m 4096 -s 64",
            "-n 50 -c -m 4096 -s 65536",
        ],
    ),
    (
        "ibv_ud_pingpong",
        &["-n 200", "-n 200 -e", "-n 200 -c", "-n 200 -e -c", "-n 200 -s 1", "-n 200 -c -s 1024", "-n 200 -c -s 4096"],
    ),
    (
        "ibv_srq_pingpong",
        &[
            "-n 200",
            "-n 200 -e",
            "-n 200 -c",
            "-n 200 -e -c",
            "-n 200 -s 1",
            "-n 200 -c -m 1024 -s 64",
            "-n 50 -c -m 1024 -s 65536",
            "-n 200 -c -m 4096 -s 64",
            "-n 50 -c -m 4096 -s 65536",
            "-n 10 -c -m 4096 -s 1048576",
            "-n 200 -c -q 1",
            "-n 2000 -c -q 64",
        ],
    ),
];

/// These say no more than that they have succeeded. One client each: with more, a server sends to one client's receive
/// queue by the other's connection. That works where they share an XRC domain, so where both are on one device.
const XRC_PINGPONGS: &[&str] = &[
    "-n 200",
    "-n 200 -e",
    "-n 200 -s 1",
    "-n 200 -m 1024 -s 64",
    "-n 50 -m 1024 -s 65536",
    "-n 200 -m 4096 -s 64",
    "-n 50 -m 4096 -s 65536",
    "-n 10 -m 4096 -s 4194304",
];

#[test]
fn pingpongs() {
    const XRC: &str = "ibv_xsrq_pingpong";
    let _turn = turn();
    let programs: Vec<&str> = PINGPONGS.iter().map(|(program, _)| *program).chain([XRC]).collect();
    let files: Vec<String> = programs.iter().map(|program| format!("/usr/bin/{program}")).collect();
    if !are_here("pingpongs", PACKAGE, &files.iter().map(String::as_str).collect::<Vec<_>>()) {
        return;
    }
    let mut cases: Vec<Case> =
        PINGPONGS.iter().flat_map(|(program, rows)| rows.iter().map(|row| Case::new(program, *row))).collect();
    cases.extend(XRC_PINGPONGS.iter().map(|row| Case::new(XRC, *row)));
    for (program, options) in [
        ("ibv_rc_pingpong", "-n 200 -c"),
        ("ibv_rc_pingpong", "-n 200 -c -e"),
        ("ibv_rc_pingpong", "-n 20 -c -s 1048576"),
        // Not ibv_srq_pingpong: a side ends when it has counted enough, while the other may still have to repeat what was
        // lost on another of its connections.
        (XRC, "-n 200"),
    ] {
        // Of the ACKs an early one: who gets the last is still waiting when the other side has ended.
        cases.push(Case { fault: Some("drop 1% send, drop 5 ack"), ..Case::new(program, options) });
    }
    let tool = Tool { always: &["-g", "0"], judge: pingpong };
    let mut body = String::from("With `-g 0`; each line is a server and a client.\n\n");
    body += &run_all(&tool, &cases);
    // Without -g they have no other name for their peer than a LID.
    let cases: Vec<Case> = programs.iter().map(|program| Case::new(program, "-n 50")).collect();
    body += "\nWithout `-g`:\n\n";
    body += &run_all(&Tool { always: &[], ..tool }, &cases);
    Section { name: PACKAGE, packages: PACKAGE, body }.publish();
}

/// Nothing uninitialised or freed is used on either side, and nothing is lost.
#[test]
fn pingpongs_under_valgrind() {
    const VALGRIND: &str = "/usr/bin/valgrind";
    let _turn = turn();
    if !are_here("pingpongs under valgrind", "valgrind", &[VALGRIND]) {
        return;
    }
    for (program, options) in [
        ("ibv_rc_pingpong", "-n 20 -c"),
        ("ibv_rc_pingpong", "-n 20 -c -e"),
        ("ibv_uc_pingpong", "-n 20 -c"),
        ("ibv_ud_pingpong", "-n 20 -c"),
        ("ibv_srq_pingpong", "-n 20 -c"),
        ("ibv_xsrq_pingpong", "-n 20"),
    ] {
        let program = format!("/usr/bin/{program}");
        if !are_here("a pingpong under valgrind", PACKAGE, &[&program]) {
            continue;
        }
        let port = free_port();
        let side = |host: &[&str]| {
            let mut command = uroce_run(&[], VALGRIND);
            command.args(["--quiet", "--error-exitcode=99", "--leak-check=full", &program, "-g", "0"]);
            command.args(["-p", &port.to_string()]).args(options.split_whitespace()).args(host);
            command
        };
        let finished = serve(port, side(&[]), vec![side(&["127.0.0.1"])]);
        let printed = || finished.iter().fold(format!("{program} {options}\n"), |text, side| text + &side.to_string());
        assert!(finished.iter().all(Finished::succeeded), "{}", printed());
    }
}

/// Both sides say how many bytes went back and forth, and name every page whose contents are not what was sent.
fn pingpong(case: &Case, client: &str, server: &str) -> Verdict {
    let number = |name, usually: u64| option(&case.options, name).map_or(usually, |value| value.parse().unwrap());
    let iterations = number("-n", 1000);
    if case.program == "ibv_xsrq_pingpong" {
        let succeeded = |printed: &str| printed.lines().any(|line| line == "success");
        let verdict = format!("{iterations} round trips");
        return if succeeded(client) && succeeded(server) { Ok(verdict) } else { Err("no success".to_owned()) };
    }
    let size = number("-s", if case.program == "ibv_ud_pingpong" { 1024 } else { 4096 });
    let bytes = 2 * size * iterations;
    for printed in [client, server] {
        for words in [format!("{bytes} bytes in "), format!("{iterations} iters in ")] {
            if !printed.lines().any(|line| line.starts_with(&words)) {
                return Err(format!("no \"{words}\""));
            }
        }
        if printed.contains("invalid data") {
            return Err("data arrived wrong".to_owned());
        }
    }
    let checked = if has(&case.options, "-c") { ", data right" } else { "" };
    Ok(format!("{iterations} round trips, {bytes} bytes{checked}"))
}
