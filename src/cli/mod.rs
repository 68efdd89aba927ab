//! The `uroce` command: what a person types, and what they read.
//!
//! One module a subcommand. All of them use the library's public API only, so that anything the command can do, a
//! program can do. Results go to standard output, progress and diagnostics to standard error.

mod demo;
mod device;
mod exchange;
mod info;
mod pattern;
mod pcap;
mod perf;
mod pingpong;
mod session;
mod units;

use device::seeded_rng;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use std::{
    io::{self, IsTerminal},
    net::IpAddr,
    path::PathBuf,
    process::ExitCode,
};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};
use uroce::{link::FaultSpec, verbs::Mtu};

/// It ran, and found something wrong: data differed, an ICRC is bad, a connection broke.
const FOUND_WRONG: u8 = 1;
/// It could not run: a mistake on the command line, a file that cannot be read, an address that is not there.
const COULD_NOT_RUN: u8 = 2;

const EXIT_CODES: &str = "\
Exit codes:
  0  everything ran and was right
  1  something was wrong: data differed, an ICRC is bad, a connection broke
  2  it could not run: a mistake on the command line, an unreadable file, an address that is taken";

/// A RoCE v2 NIC in user space: real packets, no RDMA hardware, no kernel module, no root.
#[derive(Debug, Parser)]
#[command(name = "uroce", version, after_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    command: Command,
}

/// How the device is opened, whatever is done with it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Device options")]
struct GlobalOptions {
    /// The local IP address that the device stands on; without it, the one that leads to the peer, or the first
    /// free of 127.0.0.1, 127.0.0.2, …
    #[arg(long, global = true, value_name = "IP")]
    addr: Option<IpAddr>,
    /// Payload bytes a packet: 256, 512, 1024, 2048 or 4096; without it, the most that both ports carry
    #[arg(long, global = true, value_name = "BYTES", value_parser = units::parse_mtu)]
    mtu: Option<Mtu>,
    /// Write every packet to this pcapng file
    #[arg(long, global = true, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Disturb packets: "drop 1%", "rx drop 2%, reorder 1%", "drop read-response 3 of qp 17", "corrupt 0.1%" …
    #[arg(long, global = true, value_name = "RULES")]
    fault: Option<FaultSpec>,
    /// Seed of everything random: bytes, numbers, faults
    #[arg(long, global = true, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Whose behaviour to take where the specification leaves room
    #[arg(long, global = true, value_enum, default_value_t = Profile::Hardware)]
    profile: Profile,
    /// Say more on standard error: -v devices, -vv sockets and queue pair states, -vvv every packet
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

/// A set of [`uroce_protocol::rc::Quirks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Profile {
    /// What the IBTA asks and ConnectX-class hardware does
    Hardware,
    /// What Linux rxe does
    Rxe,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show that everything works: every operation, on a good and on a bad network, byte by byte
    Demo(demo::DemoOptions),
    /// Show the device: its port, GIDs and limits
    Info(info::InfoOptions),
    /// Bounce messages between two sides, checking every byte
    Pingpong(pingpong::PingpongOptions),
    /// Measure bandwidth and latency
    Perf(perf::PerfOptions),
    /// Look into packet captures
    Pcap {
        #[command(subcommand)]
        command: pcap::PcapCommand,
    },
}

/// Parses the command line, runs what it asks for, and says in one sentence what went wrong if anything did.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    start_tracing(cli.global.verbose);
    let outcome = match &cli.command {
        Command::Demo(options) => demo::run(&cli.global, options),
        Command::Info(options) => info::run(&cli.global, options),
        Command::Pingpong(options) => pingpong::run(&cli.global, options),
        Command::Perf(options) => perf::run(&cli.global, options),
        Command::Pcap { command } => pcap::run(command),
    };
    match outcome {
        Ok(code) => code,
        // `uroce … | head` is no error.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uroce: {error:#}");
            ExitCode::from(if error.is::<FoundWrong>() || error.is::<exchange::PeerGone>() {
                FOUND_WRONG
            } else {
                COULD_NOT_RUN
            })
        }
    }
}

/// It ran, and this is what was wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct FoundWrong(String);

/// How a command ends that has found everything right, or not.
fn outcome(right: bool) -> ExitCode {
    if right { ExitCode::SUCCESS } else { ExitCode::from(FOUND_WRONG) }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn start_tracing(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter = EnvFilter::builder().with_default_directive(level.into()).with_env_var("UROCE_LOG").from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }
}
