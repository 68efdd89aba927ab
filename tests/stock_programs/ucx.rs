//! UCX, which looks for devices not only in libibverbs but in /sys and /dev, and drives them as its own transports do.

use crate::{
    compatibility::Section,
    support::launch::{Finished, Process, are_here, free_port, serve, uroce_run},
    turn,
};

const PACKAGE: &str = "ucx-utils";
const UCX_INFO: &str = "/usr/bin/ucx_info";
const UCX_PERFTEST: &str = "/usr/bin/ucx_perftest";

/// What UCX may use of the device, and what it is to do with that. Its RC makes connections over its UD.
const TESTS: &[(&str, &[&str])] = &[
    ("ud_verbs", &["-t", "tag_lat", "-n", "200"]),
    ("ud_verbs", &["-t", "tag_bw", "-n", "200", "-s", "65536"]),
    ("rc_verbs,ud_verbs", &["-t", "tag_lat", "-n", "200"]),
    ("rc_verbs,ud_verbs", &["-t", "tag_bw", "-n", "200", "-s", "1048576"]),
    ("rc_verbs,ud_verbs", &["-t", "stream_bw", "-n", "200", "-s", "65536"]),
    ("rc_verbs,ud_verbs", &["-t", "ucp_put_bw", "-n", "200", "-s", "1048576"]),
    ("rc_verbs,ud_verbs", &["-t", "ucp_get", "-n", "200", "-s", "65536"]),
    ("rc_verbs,ud_verbs", &["-t", "ucp_fadd", "-n", "200", "-s", "8"]),
    ("rc_verbs,ud_verbs", &["-t", "ucp_cswap", "-n", "200", "-s", "8"]),
];

#[test]
fn the_device_and_its_transports_are_listed() {
    let _turn = turn();
    if !are_here("ucx_info", PACKAGE, &[UCX_INFO]) {
        return;
    }
    let mut command = uroce_run(&[], UCX_INFO);
    command.arg("-d");
    let finished = Process::start("ucx_info", command).finish();
    assert!(finished.succeeded(), "{finished}");
    let transports = transports_of("uroce0:1", &finished.stdout);
    assert!(["rc_verbs", "ud_verbs"].iter().all(|name| transports.contains(name)), "{transports:?}\n{finished}");
    let body =
        format!("| program | options | seen |\n|---|---|---|\n| ucx_info | `-d` | {} |\n", transports.join(", "));
    Section { name: "UCX", packages: PACKAGE, body }.publish();
}

#[test]
fn messages_and_remote_memory() {
    let _turn = turn();
    if !are_here("ucx_perftest", PACKAGE, &[UCX_PERFTEST]) {
        return;
    }
    let mut body = String::from("| program | `UCX_TLS` | options | seen |\n|---|---|---|---|\n");
    let mut failures = Vec::new();
    for (transports, options) in TESTS {
        let port = free_port();
        let side = |peer: &[&str]| {
            let mut command = uroce_run(&[], UCX_PERFTEST);
            command.args(peer).args(["-p", &port.to_string()]).args(*options);
            command.env("UCX_TLS", transports).env("UCX_NET_DEVICES", "uroce0:1");
            command
        };
        let finished = serve(port, side(&[]), vec![side(&["127.0.0.1"])]);
        match iterations(&finished[1].stdout) {
            Some(count) if finished.iter().all(Finished::succeeded) => {
                body += &format!("| ucx_perftest | {transports} | `{}` | {count} iterations |\n", options.join(" "));
            }
            _ => failures.extend(finished.iter().map(|process| format!("{transports} {options:?} {process}"))),
        }
    }
    assert!(failures.is_empty(), "{}", failures.concat());
    Section { name: "ucx_perftest", packages: PACKAGE, body }.publish();
}

/// The iterations that the table's last row counts.
fn iterations(printed: &str) -> Option<u64> {
    let row = printed.lines().find_map(|line| line.trim().strip_prefix("Final:"))?;
    row.split_whitespace().next()?.parse().ok()
}

/// The transports of which `ucx_info -d` says that they have this device: it names a transport, then its device.
fn transports_of<'a>(device: &str, printed: &'a str) -> Vec<&'a str> {
    let named = |line: &'a str, what| line.trim_start_matches(['#', ' ']).strip_prefix(what).map(str::trim);
    let mut transport = "";
    let mut found = Vec::new();
    for line in printed.lines() {
        if let Some(name) = named(line, "Transport:") {
            transport = name;
        } else if named(line, "Device:") == Some(device) {
            found.push(transport);
        }
    }
    found
}
