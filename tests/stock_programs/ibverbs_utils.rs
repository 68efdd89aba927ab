//! ibverbs-utils: what every user of verbs runs first.

use crate::{
    compatibility::Section,
    pair::{Case, Tool, Verdict, has, option, run_all},
    support::launch::{Finished, Process, are_here, uroce_run},
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

#[test]
fn pingpongs() {
    const PROGRAMS: [&str; 1] = ["ibv_rc_pingpong"];
    let _turn = turn();
    let files = PROGRAMS.map(|program| format!("/usr/bin/{program}"));
    if !are_here("pingpongs", PACKAGE, &files.each_ref().map(String::as_str)) {
        return;
    }
    let mut cases = Vec::new();
    for program in &PROGRAMS {
        let mut add = |options: &str| cases.push(Case::new(program, options));
        add("-n 200");
        add("-n 200 -e");
        add("-n 200 -c");
        add("-n 200 -e -c");
        add("-n 200 -s 1");
        for mtu in [1024, 4096] {
            add(&format!("-n 200 -c -m {mtu} -s 64"));
            add(&format!("-n 50 -c -m {mtu} -s 65536"));
        }
        if *program == "ibv_rc_pingpong" {
            add("-n 10 -c -m 1024 -s 4194304");
            add("-n 10 -c -m 4096 -s 4194304");
            add("-n 200 -c -N");
            add("-n 200 -c -t");
            add("-n 200 -e -c -N");
        }
    }
    for options in ["-n 200 -c", "-n 200 -c -e", "-n 20 -c -s 1048576"] {
        cases.push(Case { fault: Some("drop 1%"), ..Case::new("ibv_rc_pingpong", options) });
    }
    let tool = Tool { always: &["-g", "0"], judge: pingpong };
    let mut body = String::from("With `-g 0`; each line is a server and a client.\n\n");
    body += &run_all(&tool, &cases);
    // Without -g they have no other name for their peer than a LID.
    let cases = PROGRAMS.iter().map(|program| Case::new(program, "-n 50")).collect::<Vec<_>>();
    body += "\nWithout `-g`:\n\n";
    body += &run_all(&Tool { always: &[], ..tool }, &cases);
    Section { name: PACKAGE, packages: PACKAGE, body }.publish();
}

/// Both sides say how many bytes went back and forth, and name every page whose contents are not what was sent.
fn pingpong(case: &Case, client: &str, server: &str) -> Verdict {
    let number = |name, usually: u64| option(&case.options, name).map_or(usually, |value| value.parse().unwrap());
    let iterations = number("-n", 1000);
    let size = number("-s", if case.program == "ibv_ud_pingpong" { 2048 } else { 4096 });
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
