//! perftest: every program of it that sends over queue pairs, with the options that change how it uses verbs.

use crate::{
    compatibility::Section,
    pair::{Case, Tool, Verdict, has, option, run_all},
    support::launch::are_here,
    turn,
};

const PACKAGE: &str = "perftest";

/// Programs and the options of each of their cases. With each result perftest measures the processor's frequency
/// for half a second, so `-a` takes ten.
type Table = &'static [(&'static str, &'static [&'static str])];

/// Which options a program has: WRITE does without `-e`, READ and atomics without `-I`, atomics without `-a`, and what
/// measures latency without `-b` and `-q`.
const BANDWIDTH: Table = &[
    (
        "ib_send_bw",
        &[
            "-n 200",
            "-n 5 -a",
            "-n 200 -b",
            "-n 200 -q 8 -s 4096",
            "-n 200 -e",
            "-n 200 -s 64 -I 64",
            "-n 200 --use_old_post_send",
            "-n 200 -l 8 -s 4096",
            "-n 200 --recv_post_list 8 -s 4096",
            "-n 200 --use-srq",
            "-n 200 --use-srq -q 8 -s 4096",
            "-D 1",
            "-n 200 -m 1024",
        ],
    ),
    (
        "ib_write_bw",
        &[
            "-n 200",
            "-n 5 -a",
            "-n 200 -b",
            "-n 200 -q 8",
            "-n 200 -s 64 -I 64",
            "-n 200 --use_old_post_send",
            "-n 200 -l 8 -s 4096",
            "-n 200 --mr_per_qp -q 2",
            "-n 200 --perform_warm_up",
            "-D 1",
            "-n 200 -m 1024",
        ],
    ),
    (
        "ib_read_bw",
        &[
            "-n 200",
            "-n 5 -a",
            "-n 200 -b",
            "-n 200 -q 8",
            "-n 200 -e",
            "-n 200 -o 1",
            "-n 200 -l 8 -s 4096",
            "-n 200 --use_old_post_send",
            "-D 1",
            "-n 200 -m 1024",
        ],
    ),
    (
        "ib_atomic_bw",
        &[
            "-n 200",
            "-n 200 -A CMP_AND_SWAP",
            "-n 200 -b",
            "-n 200 -q 8",
            "-n 200 -e",
            "-n 200 --use_old_post_send",
            "-D 1",
        ],
    ),
];

const LATENCY: Table = &[
    (
        "ib_send_lat",
        &[
            "-n 200",
            "-n 5 -a",
            "-n 200 -e",
            "-n 200 -s 64 -I 64",
            "-n 200 --use_old_post_send",
            "-D 1",
            "-n 200 -m 1024 -s 65536",
        ],
    ),
    (
        "ib_write_lat",
        &["-n 200", "-n 5 -a", "-n 200 -s 64 -I 64", "-n 200 --use_old_post_send", "-D 1", "-n 200 -m 1024 -s 65536"],
    ),
    (
        "ib_read_lat",
        &["-n 200", "-n 5 -a", "-n 200 -e", "-n 200 --use_old_post_send", "-D 1", "-n 200 -m 1024 -s 65536"],
    ),
    ("ib_atomic_lat", &["-n 200", "-n 200 -A CMP_AND_SWAP", "-n 200 -e", "-n 200 --use_old_post_send", "-D 1"]),
];

/// Who waits for a count of messages, waits for ever when one is lost. So all of them together fit into the buffer of a
/// socket, except where nobody counts them (WRITE, `-D`) or one is sent at a time.
const UNRELIABLE_CONNECTION: Table = &[
    (
        "ib_send_bw",
        &[
            "-n 50 -s 1024",
            "-n 10 -s 16384 -m 1024",
            "-n 50 -s 1024 -b",
            "-n 5 -s 1024 -q 8",
            "-n 50 -s 1024 -e",
            "-n 50 -s 64 -I 64",
            "-n 50 -s 1024 --use_old_post_send",
            "-n 40 -s 1024 -l 8",
            "-D 1",
        ],
    ),
    (
        "ib_write_bw",
        &[
            "-n 200",
            "-n 5 -a",
            "-n 200 -b",
            "-n 200 -q 8",
            "-n 200 -s 64 -I 64",
            "-n 200 --use_old_post_send",
            "-n 200 -l 8 -s 4096",
            "-D 1",
            "-n 200 -m 1024",
        ],
    ),
    (
        "ib_send_lat",
        &["-n 200", "-n 200 -e", "-n 200 -s 64 -I 64", "-n 200 --use_old_post_send", "-D 1", "-n 200 -m 1024 -s 65536"],
    ),
    ("ib_write_lat", &["-n 200", "-n 200 -s 64 -I 64", "-n 200 --use_old_post_send", "-n 200 -m 1024 -s 65536"]),
];

/// As with [`UNRELIABLE_CONNECTION`]. `-a` ends with the MTU.
const DATAGRAMS: Table = &[
    (
        "ib_send_bw",
        &[
            "-n 50 -s 1024",
            "-n 5 -a",
            "-n 50 -s 1024 -b",
            "-n 5 -s 1024 -q 8",
            "-n 50 -s 1024 -e",
            "-n 50 -s 64 -I 64",
            "-n 50 -s 1024 --use_old_post_send",
            "-n 40 -s 1024 -l 8",
            "-D 1",
            "-n 50 -s 1024 -m 1024",
        ],
    ),
    (
        "ib_send_lat",
        &["-n 200", "-n 200 -e", "-n 200 -s 64 -I 64", "-n 200 --use_old_post_send", "-D 1", "-n 200 -m 1024 -s 1024"],
    ),
];

/// To a group, and from it: `-M` wants all sixteen bytes of a GID, in decimal.
const MULTICAST: Table = &[
    ("ib_send_bw", &["-n 50 -s 1024 -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:17:34:51"]),
    ("ib_send_lat", &["-n 200 -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:17:34:51"]),
];

const EXTENDED_RELIABLE_CONNECTION: Table = &[
    (
        "ib_send_bw",
        &[
            "-n 200",
            "-n 5 -a",
            "-n 200 -b",
            "-n 200 -q 8 -s 4096",
            "-n 200 -e",
            "-n 200 -s 64 -I 64",
            "-n 200 --use_old_post_send",
            "-D 1",
        ],
    ),
    (
        "ib_write_bw",
        &["-n 200", "-n 200 -b", "-n 200 -q 8", "-n 200 -s 64 -I 64", "-n 200 --use_old_post_send", "-D 1"],
    ),
    ("ib_read_bw", &["-n 200", "-n 200 -b", "-n 200 -q 8", "-n 200 -e", "-n 200 --use_old_post_send", "-D 1"]),
    ("ib_atomic_bw", &["-n 200", "-n 200 -b", "-n 200 -q 8", "-n 200 -e", "-n 200 --use_old_post_send"]),
    ("ib_send_lat", &["-n 200", "-n 200 -e", "-n 200 -s 64 -I 64", "-n 200 --use_old_post_send"]),
    ("ib_write_lat", &["-n 200", "-n 200 -s 64 -I 64", "-n 200 --use_old_post_send"]),
    ("ib_read_lat", &["-n 200", "-n 200 -e", "-n 200 --use_old_post_send"]),
    ("ib_atomic_lat", &["-n 200", "-n 200 -e", "-n 200 --use_old_post_send"]),
];

#[test]
fn bandwidth() {
    run("perftest, bandwidth", BANDWIDTH, "RC");
}

#[test]
fn latency() {
    run("perftest, latency", LATENCY, "RC");
}

#[test]
fn unreliable_connection() {
    run("perftest, UC", UNRELIABLE_CONNECTION, "UC");
}

#[test]
fn datagrams() {
    run("perftest, UD", DATAGRAMS, "UD");
}

#[test]
fn multicast() {
    run("perftest, multicast", MULTICAST, "UD");
}

#[test]
fn extended_reliable_connection() {
    run("perftest, XRC", EXTENDED_RELIABLE_CONNECTION, "XRC");
}

fn run(section: &'static str, table: Table, connection: &str) {
    let _turn = turn();
    let files: Vec<String> = table.iter().map(|(program, _)| format!("/usr/bin/{program}")).collect();
    if !are_here(section, PACKAGE, &files.iter().map(String::as_str).collect::<Vec<_>>()) {
        return;
    }
    let options = |row: &str| if connection == "RC" { row.to_owned() } else { format!("-c {connection} {row}") };
    let cases: Vec<Case> =
        table.iter().flat_map(|(program, rows)| rows.iter().map(|row| Case::new(program, options(row)))).collect();
    // -F: whether the processor's frequency may change is not what we ask.
    let body = run_all(&Tool { always: &["-F"], judge }, &cases);
    Section { name: section, packages: PACKAGE, body }.publish();
}

/// Bandwidth in both directions is measured by both sides.
fn judge(case: &Case, client: &str, server: &str) -> Verdict {
    if has(&case.options, "-b") {
        judge_table(case, server)?;
    }
    judge_table(case, client)
}

/// A row for each size that was asked for: the size, as many iterations, then what was measured. That may be 0 on a busy
/// machine: where perftest does not find out how fast the processor's clock goes, it says "correlation coefficient" and
/// divides by nothing. So only its counts are held to something.
fn judge_table(case: &Case, printed: &str) -> Verdict {
    let mut lines = printed.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).skip(1);
    let numbers = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>().ok();
    let rows: Vec<Vec<f64>> = lines.by_ref().map_while(numbers).take_while(|row| !row.is_empty()).collect();
    if rows.is_empty() {
        return Err("no results".to_owned());
    }
    let datagrams = option(&case.options, "-c") == Some("UD");
    if has(&case.options, "-a") {
        let sizes: Vec<f64> = rows.iter().map(|row| row[0]).collect();
        let largest = if datagrams { 12 } else { 23 };
        let every: Vec<f64> = (1..=largest).map(|power| f64::from(1 << power)).collect();
        if sizes != every {
            return Err(format!("sizes {sizes:?}"));
        }
    } else if rows.len() != 1 {
        return Err(format!("{} results", rows.len()));
    }
    if let Some(size) = option(&case.options, "-s")
        && rows[0][0] != size.parse::<f64>().unwrap()
    {
        return Err(format!("size {}", rows[0][0]));
    }
    let iterations = option(&case.options, "-n").map(|value| value.parse::<f64>().unwrap());
    let queue_pairs = option(&case.options, "-q").map_or(1.0, |value| value.parse().unwrap());
    let directions = if has(&case.options, "-b") { 2.0 } else { 1.0 };
    for row in &rows {
        let as_many = match iterations {
            Some(iterations) => row[1] == iterations || row[1] == iterations * queue_pairs * directions,
            None => row[1] > 0.0,
        };
        if !as_many || row.len() < 4 {
            return Err(format!("a result of {row:?}"));
        }
    }
    Ok(match (iterations, rows.len()) {
        (Some(_), 1) => format!("{} messages of {} bytes", rows[0][1], rows[0][0]),
        (Some(_), sizes) => {
            let largest = if datagrams { "4 KiB" } else { "8 MiB" };
            format!("{sizes} sizes from 2 bytes to {largest}, {} messages of each", rows[0][1])
        }
        (None, _) => "messages for a second".to_owned(),
    })
}
