//! The C programs of tests/c: compiled against the distribution's headers and linked with its library, they then run
//! on ours. Each is about one behaviour and exits with 0 when it found it.
//!
//! With `UROCE_UNDER_VALGRIND` set to anything they run under valgrind, which must find no error in the library.
#![cfg(feature = "cli")]

mod support;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};
use support::launch::{Process, are_here, uroce_run};

const COMPILER: &str = "/usr/bin/cc";
const HEADERS: [&str; 2] = ["/usr/include/infiniband/verbs.h", "/usr/include/rdma/rdma_cma.h"];
const VALGRIND: &str = "/usr/bin/valgrind";

/// Compiles tests/c/NAME.c.
fn compile(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join(name);
    let output = Command::new(COMPILER)
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(format!("{}/tests/c/{name}.c", env!("CARGO_MANIFEST_DIR")))
        .args(["-libverbs", "-lrdmacm"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs tests/c/NAME.c on the device.
fn run(name: &str) {
    if !are_here(name, "gcc", &[COMPILER]) || !are_here(name, "libibverbs-dev and librdmacm-dev", &HEADERS) {
        return;
    }
    let program = compile(name);
    let command = if env::var_os("UROCE_UNDER_VALGRIND").is_none() {
        uroce_run(&[], program)
    } else if are_here(name, "valgrind", &[VALGRIND]) {
        let mut command = uroce_run(&[], VALGRIND);
        // Hash tables that are alive at the end look "possibly lost": they are known by pointers to their middle.
        command.args(["--quiet", "--error-exitcode=99", leak_check(name)]);
        command.args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
        command.arg(program).args(fewer_rounds(name));
        command
    } else {
        return;
    };
    let finished = Process::start(name, command).finish();
    assert!(finished.succeeded(), "{finished}");
}

/// In a forked child, whatever belonged to the parent's other threads is lost, and no fault of ours.
fn leak_check(name: &str) -> &'static str {
    if name == "fork" { "--leak-check=no" } else { "--leak-check=full" }
}

/// Arguments with which a program takes seconds rather than minutes under valgrind.
fn fewer_rounds(name: &str) -> &'static [&'static str] {
    if name == "open_and_close" { &["20"] } else { &[] }
}

macro_rules! programs {
    ($($name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                run(stringify!($name));
            }
        )*

        #[test]
        fn every_program_is_run() {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c");
            let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let mut sources: Vec<_> = names
                .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
                .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
                .collect();
            sources.sort();
            assert_eq!(sources, [$(stringify!($name)),*]);
        }
    };
}

programs! {
    absent,
    async_events,
    completion_queues,
    datagrams,
    destruction,
    extended_cq,
    extended_reliable_connection,
    fork,
    many_threads,
    misuse,
    open_and_close,
    rate_limit,
    shared_receive_queue,
    signals,
    statuses,
    wr_api,
}
