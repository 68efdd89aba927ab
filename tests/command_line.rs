//! What the `uroce` command promises to whoever scripts it: exit codes, where output goes, the fields of `--json`.
#![cfg(feature = "cli")]

use serde_json::Value;
use std::{
    fs,
    process::{Command, Output},
};

fn uroce(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uroce")).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// A successful run that prints one JSON object.
fn json(arguments: &[&str]) -> Value {
    let output = uroce(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 1);
    serde_json::from_str(stdout(&output)).unwrap()
}

#[test]
fn mistakes_exit_with_2_and_one_sentence() {
    for (arguments, sentence) in [
        (vec!["perf", "write-lat", "--loopback", "--size", "0"], "at least 1"),
        (vec!["perf", "atomic-bw", "--loopback", "--size", "64"], "always 8 bytes"),
        (vec!["perf", "write-bw", "--loopback", "--size", "lots"], "a size is a number of bytes"),
        (vec!["perf", "write-lat", "--loopback", "--timeline", "x.csv"], "a timeline is of a bandwidth test"),
        (vec!["info", "--congestion", "cubic"], "congestion control is dcqcn, timely or off"),
        (vec!["info", "--addr", "192.0.2.1"], "192.0.2.1"),
        (vec!["info", "--mtu", "1000"], "256, 512, 1024, 2048 or 4096"),
        (vec!["info", "--fault", "dorp 1%"], "dorp"),
        (vec!["info", "--capture", "/nowhere/x.pcapng"], "/nowhere/x.pcapng"),
        (vec!["pingpong", "127.0.0.1", "--port", "1"], "no server answers at 127.0.0.1:1"),
        (vec!["pcap", "show", "/nowhere/x.pcapng"], "/nowhere/x.pcapng"),
    ] {
        let output = uroce(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(sentence), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn info_shows_the_device() {
    let output = uroce(&["info"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for field in ["hca_id: uroce0", "PORT_ACTIVE (4)", "max_qp_wr", "RoCE v2", "::ffff:127.0.0."] {
        assert!(stdout(&output).contains(field), "{field}: {}", stdout(&output));
    }
}

#[test]
fn perf_prints_one_json_object_with_its_fields() {
    for test in
        ["send-bw", "send-lat", "write-bw", "write-lat", "read-bw", "read-lat", "atomic-bw", "atomic-lat", "ceiling"]
    {
        let found = json(&["perf", test, "--loopback", "--json", "-n", "50", "--mtu", "1024"]);
        assert_eq!(found["op"], test);
        assert_eq!(found["mtu"], 1024);
        assert_eq!(found["qps"], 1);
        for field in ["size", "gbit_per_s", "msgs_per_s", "p50_us", "p99_us", "retransmitted_packets"] {
            assert!(found[field].is_number(), "{test}: {field}");
        }
        assert_eq!(found["data_right"], true);
    }
}

#[test]
fn all_sizes_are_one_object_with_results() {
    let found = json(&["perf", "write-bw", "--loopback", "--json", "--all", "-n", "3", "--qps", "2"]);
    let sizes: Vec<u64> = found["results"].as_array().unwrap().iter().map(|r| r["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, (1..=23).map(|power| 1 << power).collect::<Vec<u64>>());
    assert_eq!(found["size"], 8 << 20);
}

#[test]
fn perf_tells_the_rate_over_time() {
    let path = format!("{}/timeline.csv", env!("CARGO_TARGET_TMPDIR"));
    let run = ["perf", "write-bw", "--loopback", "-n", "500", "--qps", "2"];
    let congested = ["--congestion", "dcqcn", "--fault", "mark-ce 5%", "--timeline", &path];
    let output = uroce(&[&run[..], &congested].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("allowed Gbit/s"), "{}", stdout(&output));
    let text = fs::read_to_string(&path).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap();
    assert_eq!(header[..3], ["seconds", "gbit_per_s", "notifications"]);
    assert!(header[3].starts_with("allowed_gbit_per_s_qp_"));
    let rows: Vec<Vec<f64>> = lines.map(|line| line.iter().map(|value| value.parse().unwrap()).collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 5));
    assert!(rows.iter().map(|row| row[2]).sum::<f64>() > 0.0, "nobody was notified");

    let found = json(&[&run[..], &congested, &["--json"]].concat());
    let notifications =
        found["timeline"].as_array().unwrap().iter().map(|span| span["notifications"].as_u64().unwrap());
    assert!(notifications.sum::<u64>() > 0);
    assert!(json(&[&run[..], &["--json"]].concat()).get("timeline").is_none(), "only where it is asked for");
}

#[test]
fn perf_counts_what_a_bad_network_costs() {
    let arguments = [
        "perf",
        "write-bw",
        "--loopback",
        "--json",
        "-n",
        "200",
        "--fault",
        "drop 2%, dup 1%, reorder 1%",
        "--seed",
        "1",
    ];
    let found = json(&arguments);
    assert_eq!(found["data_right"], true);
    assert!(found["retransmitted_packets"].as_u64().unwrap() > 0);
}

#[test]
fn idle_queue_pairs_are_counted() {
    let found = json(&["perf", "write-bw", "--loopback", "--json", "-n", "10", "--idle-qps", "100"]);
    assert_eq!(found["idle_qps"], 100);
    assert!(found["setup_us_per_idle_qp"].is_number());
    assert!(found["bytes_per_idle_qp"].is_number());
}

#[test]
fn pingpong_checks_every_message() {
    for events in [&[][..], &["--events"]] {
        let mut arguments = vec!["pingpong", "--loopback", "-n", "50", "--size", "5000"];
        arguments.extend(events);
        let output = uroce(&arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stdout(&output).contains("all data right"));
    }
}

#[test]
fn verbosity_goes_to_standard_error_as_far_as_asked() {
    for (verbose, said, unsaid) in [
        ("-v", "device open", "queue pair state"),
        ("-vv", "queue pair state", "SEND Only"),
        ("-vvv", "SEND Only", "\u{1b}"),
    ] {
        let output = uroce(&[verbose, "pingpong", "--loopback", "-n", "1", "--size", "8"]);
        assert!(stderr(&output).contains(said), "{verbose}: {}", stderr(&output));
        assert!(!stderr(&output).contains(unsaid), "{verbose}: {}", stderr(&output));
        assert!(stdout(&output).contains("all data right"));
    }
}

#[test]
fn variables_mean_what_the_options_mean() {
    let run = |variable, value, arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_uroce")).args(arguments).env(variable, value).output().unwrap()
    };
    let output = run("UROCE_ADDR", "127.77.0.2", &["info"]);
    assert!(stdout(&output).contains("127.77.0.2"), "{}", stdout(&output));
    let output = run("UROCE_ADDR", "127.77.0.2", &["info", "--addr", "127.77.0.3"]);
    assert!(stdout(&output).contains("127.77.0.3"), "{}", stdout(&output));
    let output = run("UROCE_MTU", "512", &["info"]);
    assert!(stdout(&output).contains("512 (2)"), "{}", stdout(&output));
    let output = run("UROCE_LOG", "info", &["info"]);
    assert!(stderr(&output).contains("device open"), "{}", stderr(&output));

    let output = run("UROCE_MTU", "1500", &["info"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("UROCE_MTU=1500: a path MTU is 256, 512"), "{}", stderr(&output));
}

#[test]
fn of_several_processes_each_captures_to_a_file_of_its_own() {
    let folder = std::env::temp_dir().join(format!("uroce-captures-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let mut children: Vec<_> = (0..6)
        .map(|_| {
            Command::new(env!("CARGO_BIN_EXE_uroce"))
                .args(["pingpong", "--loopback", "-n", "5"])
                .env("UROCE_CAPTURE", folder.join("x.pcapng"))
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), children.len(), "{files:?}");
    assert!(files.contains(&folder.join("x.pcapng")));
    for file in &files {
        let verified = uroce(&["pcap", "verify", file.to_str().unwrap()]);
        assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));
        let shown = uroce(&["pcap", "show", file.to_str().unwrap()]);
        assert!(stdout(&shown).lines().count() >= 20, "{}: {}", file.display(), stdout(&shown));
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_capture_of_a_run_verifies_and_shows() {
    let file = std::env::temp_dir().join(format!("uroce-command-line-{}.pcapng", std::process::id()));
    let path = file.to_str().unwrap();
    let output = uroce(&["pingpong", "--loopback", "-n", "5", "--capture", path]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let verified = uroce(&["pcap", "verify", path]);
    assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));
    let shown = uroce(&["pcap", "show", path]);
    fs::remove_file(&file).unwrap();
    assert_eq!(shown.status.code(), Some(0));
    // Ten messages of four kilobytes, and their acknowledgements.
    assert!(stdout(&shown).lines().count() >= 20, "{}", stdout(&shown));
}
