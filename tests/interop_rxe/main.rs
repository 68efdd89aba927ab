//! uroce and a real Linux rxe, each in both roles: `cargo test --test interop_rxe -- [WORD …]`.
//!
//! `scripts/rxe-guest` boots one guest in QEMU; its wire is a pair of unix datagram sockets, one end of which is a
//! uroce device in this process, so neither root nor a network interface is needed. Where this is root, another guest
//! follows at a network interface, for the links that take one. Words on the command line choose
//! the cases whose names have one of them; `--list` prints the names. Each case has a device, captures and queue pairs
//! of its own, and after each the counters of both sides and the captures must agree. Of a case that fails, the captures
//! stay under target/tmp/interop_rxe/captures, and the first packet in which they differ is told.
//!
//! rxe has a fault that spoils a case now and then, when it sends again (docs/rxe-findings.md, "renumbers"). Such a case
//! is known by its packets, named, and begun again.
//!
//! Without QEMU or the guest's packages: one line that says so, and exit status 3.

mod bench;
mod captures;
mod case;
mod compare;
mod ends;
mod errors;
mod faults;
mod guest;
mod interface;
mod operations;
mod programs;
mod report;
#[path = "../support/mod.rs"]
mod support;
mod unreliable;

use bench::{Bench, Tally, Wire};
use captures::Captures;
use case::{Body, Case};
use guest::{Absent, Guest};
use report::Packets;
use std::{
    cell::RefCell,
    collections::BTreeSet,
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    panic::{self, AssertUnwindSafe},
    path::Path,
    process::ExitCode,
    rc::Rc,
    sync::Mutex,
    time::{Duration, Instant},
};

/// What the last panic said, for the report.
static PANIC: Mutex<String> = Mutex::new(String::new());

struct Outcome {
    name: String,
    took: Duration,
    result: Result<Tally, String>,
}

fn main() -> ExitCode {
    let words: Vec<_> = env::args().skip(1).collect();
    let (options, words): (Vec<_>, Vec<_>) = words.into_iter().partition(|word| word.starts_with('-'));
    let mut cases = Vec::new();
    operations::cases(&mut cases);
    unreliable::cases(&mut cases);
    faults::cases(&mut cases);
    errors::cases(&mut cases);
    programs::cases(&mut cases);
    operations::cases_over_an_interface(&mut cases);
    cases.retain(|case| words.is_empty() || words.iter().any(|word| case.name.contains(word.as_str())));
    if options.iter().any(|option| option == "--list") {
        cases.iter().for_each(|case| println!("{}", case.name));
        return ExitCode::SUCCESS;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop_rxe");
    let captures = folder.join("captures");
    let _ = fs::remove_dir_all(&captures);
    fs::create_dir_all(&captures).unwrap();
    let programs = cases.iter().filter(|case| matches!(case.body, Body::Programs(_))).count();
    let mut ports = BTreeSet::new();
    while ports.len() < programs {
        ports.insert(support::launch::free_port());
    }
    let ports = ports.into_iter().collect();
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!(" ({}:{})", at.file(), at.line())).unwrap_or_default();
        let text = info.payload().downcast_ref::<&str>().copied();
        let message = info.payload().downcast_ref::<String>().map(String::as_str).or(text).unwrap_or("a panic");
        *PANIC.lock().unwrap() = format!("{message}{place}");
    }));
    let start = Instant::now();
    let (near, over_an_interface): (Vec<_>, Vec<_>) = cases.into_iter().partition(|case| case.wire == Wire::Datagrams);
    let mut outcomes = Vec::new();
    if !near.is_empty() {
        match Guest::boot(&folder, false, ports) {
            Ok(guest) => outcomes.extend(run_all(guest, &near, &captures)),
            Err(Absent(why)) => {
                eprintln!("{why}");
                return ExitCode::from(3);
            }
        }
    }
    let mut left_out = None;
    if !over_an_interface.is_empty() {
        match interface::boot(&folder) {
            Ok(guest) => outcomes.extend(run_all(guest, &over_an_interface, &captures)),
            Err(Absent(why)) => left_out = Some(format!("left out: what goes over an interface, because {why}")),
        }
    }
    let code = summary(&outcomes, start.elapsed());
    left_out.iter().for_each(|line| println!("{line}"));
    code
}

fn run_all(guest: Guest, cases: &[Case], captures: &Path) -> Vec<Outcome> {
    let guest = Rc::new(RefCell::new(guest));
    cases.iter().map(|case| run(&guest, case, captures)).collect()
}

/// How often a case is begun that rxe spoils by renumbering its requests.
const ATTEMPTS: usize = 4;

fn run(guest: &Rc<RefCell<Guest>>, case: &Case, folder: &Path) -> Outcome {
    let start = Instant::now();
    let captures = Captures::of(folder, &case.name);
    let [_, ours] = case.family.addresses();
    let mut attempt = 1;
    loop {
        let result = try_once(guest, case, &captures);
        match &result {
            Ok(tally) => {
                println!("ok     {}  {tally:?}", case.name);
                captures.delete();
            }
            Err(why) => {
                // The driver may be in the middle of something.
                guest.borrow_mut().restart_driver();
                let spoilt = captures.link.exists().then(|| Packets::read(&captures.link, ours).renumbered()).flatten();
                match spoilt {
                    Some(packets) if attempt < ATTEMPTS => {
                        println!("again  {}: rxe has renumbered its requests:\n      {packets}", case.name);
                        attempt += 1;
                        continue;
                    }
                    _ => println!("FAILED {}: {why}{}", case.name, captures.explain(ours)),
                }
            }
        }
        return Outcome { name: case.name.clone(), took: start.elapsed(), result };
    }
}

/// Runs a case, captured; returns what it came to, or why it failed.
fn try_once(guest: &Rc<RefCell<Guest>>, case: &Case, captures: &Captures) -> Result<Tally, String> {
    let panicked = |_| Err(std::mem::take(&mut *PANIC.lock().unwrap()));
    let result = panic::catch_unwind(AssertUnwindSafe(|| {
        guest.borrow().start_capture(&captures.card);
        let result = panic::catch_unwind(AssertUnwindSafe(|| perform(guest, case, captures)));
        guest.borrow().end_capture();
        result.unwrap_or_else(panicked)
    }));
    result.unwrap_or_else(panicked)
}

/// Runs a case; may panic instead of saying why it failed.
fn perform(guest: &Rc<RefCell<Guest>>, case: &Case, captures: &Captures) -> Result<Tally, String> {
    let body = match &case.body {
        Body::Verbs(body) => body,
        Body::Programs(body) => return Ok(body(&mut guest.borrow_mut(), &captures.link)),
    };
    let mut hasher = DefaultHasher::new();
    case.name.hash(&mut hasher);
    let seed = hasher.finish();
    let bench = Bench::new(guest, case, captures, seed);
    let tried = panic::catch_unwind(AssertUnwindSafe(|| {
        body(&bench);
        bench.settle()
    }));
    tried.map_err(|_| {
        let mut said = std::mem::take(&mut *PANIC.lock().unwrap());
        said += &format!("\n    uroce counted: {}", bench.uroce());
        if let Ok(rxe) = panic::catch_unwind(AssertUnwindSafe(|| bench.rxe())) {
            said += &format!("\n    rxe counted: {rxe}");
        }
        said
    })
}

fn summary(outcomes: &[Outcome], took: Duration) -> ExitCode {
    let width = outcomes.iter().map(|outcome| outcome.name.len()).max().unwrap_or(0);
    println!(
        "\n{:width$}  {:6} {:>8} {:>11} {:>12} {:>7}",
        "case", "result", "packets", "sent again", "rxe retries", "s"
    );
    for Outcome { name, took, result } in outcomes {
        let took = took.as_secs_f64();
        match result {
            Ok(Tally { packets, sent_again, rxe_retries }) => {
                println!("{name:width$}  ok     {packets:8} {sent_again:11} {rxe_retries:12} {took:7.2}");
            }
            Err(_) => println!("{name:width$}  FAILED {:8} {:11} {:12} {took:7.2}", "", "", ""),
        }
    }
    let failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    println!("\n{} cases, {failed} failed, {:.0} s", outcomes.len(), took.as_secs_f64());
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
