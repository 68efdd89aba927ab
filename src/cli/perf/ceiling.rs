//! `uroce perf ceiling`
use super::PerfOptions;
use crate::cli::GlobalOptions;
use std::process::ExitCode;
pub(super) fn run(_: &GlobalOptions, _: &PerfOptions) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}
