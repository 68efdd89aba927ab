//! A guest at an interface of a network of its own, which this process moves to: for that, it has to be root.

use crate::{
    bench::Family,
    guest::{Absent, Guest, NETWORK_MTU, TAP},
};
use std::{io, path::Path, process::Command};

/// Leaves this machine's network for an empty one with nothing in it but the interface, and boots a guest there. Of this
/// process only the calling thread moves, and the threads and processes that it starts from then on.
pub(crate) fn boot(folder: &Path) -> Result<Guest, Absent> {
    // SAFETY: takes no pointers, and shares no memory any less.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        let error = io::Error::last_os_error();
        return Err(Absent(format!("a network of its own takes root ({error})")));
    }
    let mtu = NETWORK_MTU.to_string();
    ip(&["link", "set", "lo", "up"])?;
    ip(&["tuntap", "add", TAP, "mode", "tap"])?;
    ip(&["link", "set", TAP, "mtu", &mtu, "up"])?;
    for family in Family::BOTH {
        let [_, address] = family.addresses();
        let length = if family == Family::Ipv4 { 24 } else { 64 };
        let mut arguments = vec!["address", "add", "dev", TAP];
        let address = format!("{address}/{length}");
        arguments.push(&address);
        if family == Family::Ipv6 {
            arguments.push("nodad");
        }
        ip(&arguments)?;
    }
    Guest::boot(folder, true, Vec::new())
}

fn ip(arguments: &[&str]) -> Result<(), Absent> {
    let done = Command::new("ip").args(arguments).output().map_err(|error| Absent(format!("ip: {error}")))?;
    if done.status.success() {
        return Ok(());
    }
    Err(Absent(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr).trim())))
}
