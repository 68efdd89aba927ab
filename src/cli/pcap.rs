//! `uroce pcap`: look into packet captures.

use anyhow::bail;
use clap::Subcommand;
use std::{path::PathBuf, process::ExitCode};

/// What to do with a capture.
#[derive(Debug, Subcommand)]
pub(crate) enum PcapCommand {
    /// Print one line a packet
    Show {
        /// A pcap or pcapng file
        file: PathBuf,
    },
}

/// Runs it.
pub(crate) fn run(command: &PcapCommand) -> anyhow::Result<ExitCode> {
    match command {
        PcapCommand::Show { file } => bail!("{} cannot be read yet", file.display()),
    }
}
