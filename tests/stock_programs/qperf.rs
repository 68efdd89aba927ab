//! qperf: one server, told by the client what to measure.

use crate::{
    compatibility::Section,
    support::launch::{Finished, are_here, free_port, serve, uroce_run},
    turn,
};

const PACKAGE: &str = "qperf";
const PROGRAM: &str = "/usr/bin/qperf";

/// Tests, and the number that each must give.
const TESTS: &[(&str, &str)] = &[
    ("rc_lat", "latency"),
    ("rc_bw", "bw"),
    ("rc_bi_bw", "bw"),
    ("rc_rdma_write_bw", "bw"),
    ("rc_rdma_write_lat", "latency"),
    ("rc_rdma_write_poll_lat", "latency"),
    ("rc_rdma_read_bw", "bw"),
    ("rc_rdma_read_lat", "latency"),
    ("rc_fetch_add_mr", "msg_rate"),
    ("rc_compare_swap_mr", "msg_rate"),
    ("ver_rc_fetch_add", "msg_rate"),
    ("ver_rc_compare_swap", "msg_rate"),
    ("uc_lat", "latency"),
    ("uc_bw", "recv_bw"),
    ("uc_bi_bw", "recv_bw"),
    ("uc_rdma_write_bw", "recv_bw"),
    ("uc_rdma_write_lat", "latency"),
    ("uc_rdma_write_poll_lat", "latency"),
    ("ud_lat", "latency"),
    ("ud_bw", "recv_bw"),
    ("ud_bi_bw", "recv_bw"),
];

#[test]
fn rates_and_latencies() {
    let _turn = turn();
    if !are_here("qperf", PACKAGE, &[PROGRAM]) {
        return;
    }
    let mut body = String::from("| test | seen |\n|---|---|\n");
    let mut failures = Vec::new();
    for (test, number) in TESTS {
        let port = free_port();
        let listen = port.to_string();
        let side = |arguments: &[&str]| {
            let mut command = uroce_run(&[], PROGRAM);
            command.args(arguments);
            command
        };
        let client = ["127.0.0.1", "-lp", &listen, "-t", "1", test, "quit"];
        // `quit` ends the server, which serves for ever otherwise.
        let finished = serve(port, side(&["-lp", &listen]), vec![side(&client)]);
        if finished.iter().all(Finished::succeeded) && value(&finished[1].stdout, number) > 0.0 {
            body += &format!("| {test} | a {number} |\n");
        } else {
            failures.extend(finished.iter().map(|process| format!("{test} {process}")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.concat());
    Section { name: PACKAGE, packages: PACKAGE, body }.publish();
}

/// The number behind a name and an equals sign; 0 when there is none.
fn value(printed: &str, name: &str) -> f64 {
    let mut lines = printed.lines().filter_map(|line| line.trim().strip_prefix(name)?.trim_start().strip_prefix('='));
    let number = lines.next().and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0.0)
}
