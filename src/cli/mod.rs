//! The `uroce` command: what a person types, and what they read.
//!
//! One module a subcommand. All of them use the library's public API only, so that anything the command can do, a
//! program can do. Results go to standard output, progress and diagnostics to standard error.

mod demo;
mod device;
mod env;
mod exchange;
mod info;
mod install;
mod pattern;
mod pcap;
mod perf;
mod pingpong;
mod run;
mod session;
mod stat;
mod units;

use device::seeded_rng;

use clap::{
    ArgAction, Args, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use std::{io, net::IpAddr, path::PathBuf, process::ExitCode, str::FromStr};
use tracing::level_filters::LevelFilter;
use uroce::{
    congestion::{Congestion, CongestionError},
    link::{FaultSpec, LinkSpec},
    settings::{Profile, Settings},
    verbs::Mtu,
};

/// It ran, and found something wrong: data differed, an ICRC is bad, a connection broke.
const FOUND_WRONG: u8 = 1;
/// It could not run: a mistake on the command line, a file that cannot be read, an address that is not there.
const COULD_NOT_RUN: u8 = 2;

const EXIT_CODES: &str = "\
Exit codes:
  0  everything ran and was right
  1  something was wrong: data differed, an ICRC is bad, a connection broke
  2  it could not run: a mistake on the command line, an unreadable file, an address that is taken

Every device option may also be given by a variable: UROCE_ADDR, UROCE_LINK, UROCE_MTU,
UROCE_CAPTURE, UROCE_FAULT, UROCE_CONGESTION, UROCE_SEED, UROCE_PROFILE, UROCE_LOG (off, error, warn,
info, debug or trace).";

/// A RoCE v2 NIC in user space: real packets, no RDMA hardware, no kernel module, no root.
#[derive(Debug, Parser)]
#[command(name = "uroce", version, after_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    command: Command,
}

/// How the device is opened, whatever is done with it: [`Settings`] as options.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Device options")]
struct GlobalOptions {
    /// The local IP address that the device stands on; without it, the one that leads to the peer, or the first
    /// free of 127.0.0.1, 127.0.0.2, …
    #[arg(long, global = true, value_name = "IP")]
    addr: Option<IpAddr>,
    /// The wire: udp; shm, shared memory to devices of this machine that say so too, and udp to all others;
    /// ether:IFACE, whole Ethernet frames (CAP_NET_RAW); dgram:LOCAL,REMOTE, the same as datagrams between unix
    /// sockets, as QEMU's -netdev dgram speaks them. udp, unless said
    #[arg(long, global = true, value_name = "WIRE")]
    link: Option<LinkSpec>,
    /// Payload bytes a packet: 256, 512, 1024, 2048 or 4096; without it, the most that both ports carry
    #[arg(long, global = true, value_name = "BYTES")]
    mtu: Option<Mtu>,
    /// Write every packet to this pcapng file
    #[arg(long, global = true, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Disturb packets: "drop 1%", "rx drop 2%, reorder 1%", "drop read-response 3 of qp 17", "corrupt 0.1%" …
    #[arg(long, global = true, value_name = "RULES")]
    fault: Option<FaultSpec>,
    /// Control congestion: dcqcn, timely or off, and parameters under mlx5's names: "dcqcn rp_ai_rate=40". Off, unless
    /// said
    #[arg(long, global = true, value_name = "ALGORITHM")]
    congestion: Option<CongestionChoice>,
    /// Seed of everything random: bytes, numbers, faults
    #[arg(long, global = true, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Whose behaviour to take where the specification leaves room; hardware's, unless said
    #[arg(long, global = true, value_parser = profile_parser())]
    profile: Option<Profile>,
    /// Say more on standard error: -v devices, -vv sockets and queue pair states, -vvv every packet
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

/// Congestion control, or "off".
#[derive(Clone, Debug)]
struct CongestionChoice(Option<Congestion>);

impl FromStr for CongestionChoice {
    type Err = CongestionError;

    fn from_str(text: &str) -> Result<Self, CongestionError> {
        Congestion::parse_or_off(text).map(Self)
    }
}

fn profile_parser() -> impl TypedValueParser<Value = Profile> {
    PossibleValuesParser::new(["hardware", "rxe"]).try_map(|name| name.parse::<Profile>())
}

impl GlobalOptions {
    /// What the options and the `UROCE_*` variables ask for; the options where they differ. The file of `--capture`
    /// is emptied.
    fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = Settings::from_env()?;
        if let Some(path) = &self.capture {
            settings.capture = Some(path.clone());
            settings.begin_capture()?;
        }
        settings.address = self.addr.or(settings.address);
        settings.link = self.link.clone().or(settings.link);
        settings.mtu = self.mtu.or(settings.mtu);
        settings.fault = self.fault.clone().or(settings.fault);
        if let Some(choice) = &self.congestion {
            settings.congestion = choice.0.clone();
        }
        settings.seed = self.seed.or(settings.seed);
        settings.profile = self.profile.or(settings.profile);
        settings.log = self.log().or(settings.log);
        Ok(settings)
    }

    /// What `-v` asks for.
    fn log(&self) -> Option<LevelFilter> {
        match self.verbose {
            0 => None,
            1 => Some(LevelFilter::INFO),
            2 => Some(LevelFilter::DEBUG),
            _ => Some(LevelFilter::TRACE),
        }
    }
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
    /// Show the running devices of this user: counters, queue pairs and their rates
    Stat(stat::StatOptions),
    /// Run a program on the device: one that is linked with libibverbs or librdmacm, and needs no change
    Run(run::RunOptions),
    /// Print what `run` gives to a program, for a shell to evaluate
    Env(env::EnvOptions),
    /// Install this command and the library that programs find in place of libibverbs
    Install(install::PrefixOptions),
    /// Take away what `install` has installed
    Uninstall(install::PrefixOptions),
    /// Look into packet captures
    Pcap {
        #[command(subcommand)]
        command: pcap::PcapCommand,
    },
}

/// Parses the command line, runs what it asks for, and says in one sentence what went wrong if anything did.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
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

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    // Those that open no device are not kept from it by settings that make no sense.
    let settings = || {
        let settings = cli.global.settings()?;
        settings.start_log();
        anyhow::Ok(settings)
    };
    match &cli.command {
        Command::Demo(options) => demo::run(&settings()?, options),
        Command::Info(options) => info::run(&settings()?, options),
        Command::Pingpong(options) => pingpong::run(&settings()?, options),
        Command::Perf(options) => perf::run(&settings()?, options),
        Command::Stat(options) => stat::run(options),
        Command::Run(options) => run::run(&cli.global.settings()?, options),
        Command::Env(options) => env::run(&settings()?, options),
        Command::Install(options) => install::install(options),
        Command::Uninstall(options) => install::uninstall(options),
        Command::Pcap { command } => pcap::run(command),
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }
}
