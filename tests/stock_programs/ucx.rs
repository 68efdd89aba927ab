//! UCX, which looks for devices not only in libibverbs but in /sys and /dev, and drives them as its own transports do.

use crate::{
    compatibility::Section,
    support::launch::{Process, are_here, uroce_run},
    turn,
};

const PACKAGE: &str = "ucx-utils";
const UCX_INFO: &str = "/usr/bin/ucx_info";

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
