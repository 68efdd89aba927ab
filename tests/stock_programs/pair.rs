//! A table of cases: a program, its options, and what both sides must have said at the end.

use crate::support::launch::{Finished, free_port, serve, uroce_run};
use std::fmt::Write;

/// What a pair must have said: in words for the page, or what is wrong.
pub(crate) type Verdict = Result<String, String>;

/// One program, run as server and as client.
pub(crate) struct Case {
    pub(crate) program: &'static str,
    /// Of both sides.
    pub(crate) options: String,
    /// What the network does to both sides (`uroce run --fault`).
    pub(crate) fault: Option<&'static str>,
}

impl Case {
    pub(crate) fn new(program: &'static str, options: impl Into<String>) -> Self {
        Self { program, options: options.into(), fault: None }
    }

    /// Runs both sides and has `judge` look at what client and server printed.
    fn run(&self, tool: &Tool) -> Verdict {
        let port = free_port();
        let run_options: Vec<&str> = self.fault.iter().flat_map(|fault| ["--fault", fault, "--seed", "1"]).collect();
        let side = |host: &[&str]| {
            let mut command = uroce_run(&run_options, format!("/usr/bin/{}", self.program));
            command.args(tool.always).args(["-p", &port.to_string()]);
            command.args(self.options.split_whitespace()).args(host);
            command
        };
        let finished = serve(port, side(&[]), vec![side(&["127.0.0.1"])]);
        let verdict = if finished.iter().all(Finished::succeeded) {
            (tool.judge)(self, &finished[1].stdout, &finished[0].stdout)
        } else {
            Err("it ended badly".to_owned())
        };
        verdict.map_err(|why| {
            finished.iter().fold(format!("=== {self}: {why}\n"), |text, process| text + &process.to_string())
        })
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fault = self.fault.map(|fault| format!(" with fault \"{fault}\"")).unwrap_or_default();
        write!(f, "{} {}{fault}", self.program, self.options)
    }
}

/// What the cases of a table have in common.
pub(crate) struct Tool {
    /// Options that every case gets, and that the page does not repeat.
    pub(crate) always: &'static [&'static str],
    /// Looks at what client and server printed.
    pub(crate) judge: fn(&Case, &str, &str) -> Verdict,
}

/// Runs all cases, one after the other, and returns the rows of the page. All that failed are shown together.
pub(crate) fn run_all(tool: &Tool, cases: &[Case]) -> String {
    let mut rows = String::from("| program | options | seen |\n|---|---|---|\n");
    let mut failures = Vec::new();
    for case in cases {
        match case.run(tool) {
            Ok(seen) => rows.push_str(&row(case, &seen)),
            Err(failure) => failures.push(failure),
        }
    }
    assert!(failures.is_empty(), "{} of {} cases failed\n{}", failures.len(), cases.len(), failures.join("\n"));
    rows
}

fn row(case: &Case, seen: &str) -> String {
    let mut options = String::new();
    if !case.options.is_empty() {
        write!(options, "`{}`", case.options).unwrap();
    }
    if let Some(fault) = case.fault {
        write!(options, " under `uroce run --fault \"{fault}\"`").unwrap();
    }
    format!("| {} | {} | {seen} |\n", case.program, options.trim_start())
}

/// The value that follows an option, either way of writing it: `-n 5`, `-n5`.
pub(crate) fn option<'a>(options: &'a str, name: &str) -> Option<&'a str> {
    let mut words = options.split_whitespace();
    while let Some(word) = words.next() {
        if word == name {
            return words.next();
        }
    }
    None
}

/// Whether an option that takes no value is there.
pub(crate) fn has(options: &str, name: &str) -> bool {
    options.split_whitespace().any(|word| word == name)
}
