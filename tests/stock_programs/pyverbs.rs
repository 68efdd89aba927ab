//! pyverbs' own tests, of the modules that need no vendor's hardware.

use crate::{
    compatibility::Section,
    support::launch::{Process, are_here, uroce_run},
    turn,
};
use std::{collections::BTreeMap, fmt::Write, path::Path};

const PACKAGE: &str = "python3-pyverbs";
const PYTHON: &str = "/usr/bin/python3";
/// Where the Debian packages of different versions leave them.
const TESTS: [&str; 2] = ["/usr/share/doc/rdma-core/tests", "/usr/share/doc/python3-pyverbs/tests"];
const MODULES: [&str; 15] = [
    "test_device",
    "test_addr",
    "test_pd",
    "test_mr",
    "test_cq",
    "test_cqex",
    "test_cq_events",
    "test_qp",
    "test_qpex",
    "test_atomic",
    "test_parent_domain",
    "test_shared_pd",
    "test_fork",
    "test_relaxed_ordering",
    "test_odp",
];

#[test]
fn pyverbs_tests_pass_and_their_skips_are_known() {
    let _turn = turn();
    let tests = TESTS.into_iter().find(|folder| Path::new(folder).exists()).unwrap_or(TESTS[0]);
    if !are_here("pyverbs", PACKAGE, &[PYTHON, tests]) {
        return;
    }
    let mut modules = String::from("| module | passed | skipped |\n|---|---|---|\n");
    let mut skips = BTreeMap::<String, Vec<String>>::new();
    let mut failures = String::new();
    for module in MODULES {
        let (mut passed, mut skipped) = (0, 0);
        let mut command = uroce_run(&[], PYTHON);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stock_programs/run_pyverbs.py")).args([
            tests,
            concat!(env!("CARGO_TARGET_TMPDIR"), "/pyverbs"),
            module,
        ]);
        let finished = Process::start(module, command).finish();
        for line in finished.stdout.lines() {
            let mut fields = line.splitn(3, '\t');
            let test = fields.next().unwrap().trim_start_matches("tests.");
            let outcome = fields.next().unwrap_or("no outcome");
            let why = fields.next().unwrap_or_default();
            match outcome {
                "passed" => passed += 1,
                "skipped" => {
                    skipped += 1;
                    skips.entry(why.to_owned()).or_default().push(test.to_owned());
                }
                _ => writeln!(failures, "{test}: {outcome}\n{}", why.replace("\\n", "\n    ")).unwrap(),
            }
        }
        if !finished.succeeded() || passed + skipped == 0 {
            failures += &finished.to_string();
        }
        writeln!(modules, "| {module} | {passed} | {skipped} |").unwrap();
    }
    assert!(failures.is_empty(), "{failures}");

    let mut body = modules + "\n| why pyverbs skips | which |\n|---|---|\n";
    for (why, tests) in &skips {
        writeln!(body, "| {why} | {} |", tests.join(", ")).unwrap();
    }
    let section = Section { name: "pyverbs", packages: PACKAGE, body };
    if section.is_to_be_written() {
        section.publish();
        return;
    }
    // A machine with huge pages, or with another graphics card, skips less, or for other reasons. Other versions have
    // other tests.
    let page = section.published();
    if page.starts_with(&section.versions()) {
        let new: Vec<_> = skips.values().flatten().filter(|test| !page.contains(*test)).collect();
        assert!(new.is_empty(), "docs/compatibility.md does not say that these are skipped: {new:?}");
    }
}
