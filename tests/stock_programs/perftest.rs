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
        &["-n 200", "-n 5 -a", "-n 200 -s 64 -I 64", "-n 200 --use_old_post_send", "-n 200 -m 1024 -s 65536"],
    ),
    ("ib_read_lat", &["-n 200", "-n 5 -a", "-n 200 -e", "-n 200 --use_old_post_send", "-n 200 -m 1024 -s 65536"]),
    ("ib_atomic_lat", &["-n 200", "-n 200 -A CMP_AND_SWAP", "-n 200 -e", "-n 200 --use_old_post_send"]),
];

#[test]
fn bandwidth() {
    run("perftest, bandwidth", BANDWIDTH, judge_bandwidth);
}

#[test]
fn latency() {
    run("perftest, latency", LATENCY, judge_latency);
}

fn run(section: &'static str, table: Table, judge: fn(&Case, &str, &str) -> Verdict) {
    let _turn = turn();
    let files: Vec<String> = table.iter().map(|(program, _)| format!("/usr/bin/{program}")).collect();
    if !are_here(section, PACKAGE, &files.iter().map(String::as_str).collect::<Vec<_>>()) {
        return;
    }
    let cases: Vec<Case> =
        table.iter().flat_map(|(program, rows)| rows.iter().map(|options| Case::new(program, *options))).collect();
    // -F: whether the processor's frequency may change is not what we ask.
    let body = run_all(&Tool { always: &["-F"], judge }, &cases);
    Section { name: section, packages: PACKAGE, body }.publish();
}

/// Rows of the client's table: size, iterations, peak, average, messages per second.
fn judge_bandwidth(case: &Case, client: &str, server: &str) -> Verdict {
    // In both directions, the other side measures too.
    if has(&case.options, "-b") {
        judge_table(case, server, |row| row[4] > 0.0)?;
    }
    judge_table(case, client, |row| row[4] > 0.0)
}

/// Rows of the client's table: size, iterations, least, most, typical, average …; with a duration: size, iterations,
/// average, transactions per second.
fn judge_latency(case: &Case, client: &str, _server: &str) -> Verdict {
    judge_table(case, client, |row| row[2] > 0.0)
}

/// A row for each size that was asked for, with as many iterations, and numbers that are `sound`.
fn judge_table(case: &Case, printed: &str, sound: fn(&[f64]) -> bool) -> Verdict {
    let mut lines = printed.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).skip(1);
    let numbers = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>().ok();
    let rows: Vec<Vec<f64>> = lines.by_ref().map_while(numbers).take_while(|row| !row.is_empty()).collect();
    if rows.is_empty() {
        return Err("no results".to_owned());
    }
    if has(&case.options, "-a") {
        let sizes: Vec<f64> = rows.iter().map(|row| row[0]).collect();
        let every: Vec<f64> = (1..=23).map(|power| f64::from(1 << power)).collect();
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
        if !as_many || !sound(row) {
            return Err(format!("a result of {row:?}"));
        }
    }
    Ok(match (iterations, rows.len()) {
        (Some(_), 1) => format!("{} messages of {} bytes", rows[0][1], rows[0][0]),
        (Some(_), sizes) => format!("{sizes} sizes from 2 bytes to 8 MiB, {} messages of each", rows[0][1]),
        (None, _) => "messages for a second".to_owned(),
    })
}
