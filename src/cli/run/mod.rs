//! `uroce run`: an unmodified program, on a device of uroce's.
//!
//! The program finds uroce's library under the names of libibverbs and librdmacm, and reads from its environment how
//! its device is to be ([`Settings`]). It takes the place of this process, so that signals, the terminal and the
//! exit status are its own.

mod files;
pub(crate) mod library;
mod program;
mod view;

use super::COULD_NOT_RUN;
use clap::Args;
use program::Outlook;
use std::{
    env,
    ffi::OsString,
    io::ErrorKind,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    sync::Arc,
};
use uroce::{settings::Settings, verbs::Progress};
use view::View;

/// Exit codes of programs that run others, as shells and env(1) have them.
const CANNOT_BE_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

const AFTER_HELP: &str = "\
The exit status is the program's. Without one it is 127 when the program is not found, 126 when it cannot be run, and \
2 when uroce itself could not do what it was asked for.";

/// Options of `uroce run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct RunOptions {
    /// Leave /sys and /dev as they are: do not show the device there
    #[arg(long)]
    no_sysfs: bool,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_names = ["PROGRAM", "ARGS"])]
    command: Vec<OsString>,
}

/// Becomes the program.
pub(crate) fn run(settings: &Settings, options: &RunOptions) -> anyhow::Result<ExitCode> {
    let [name, arguments @ ..] = &*options.command else { return Ok(ExitCode::from(COULD_NOT_RUN)) };
    let Some(program) = program::find(name) else {
        eprintln!("uroce: there is no program {}", name.display());
        return Ok(ExitCode::from(NOT_FOUND));
    };
    let library = library::find()?;
    match program::examine(&program, &library) {
        Outlook::Good => {}
        Outlook::Children(reason) => eprintln!("uroce: {reason}"),
        Outlook::Hopeless(reason) => {
            eprintln!("uroce: {reason}");
            return Ok(ExitCode::from(CANNOT_BE_RUN));
        }
    }
    let variables = variables(settings)?;
    let view = try_device(settings)?;
    // Not before, for that was not the program's device.
    settings.start_log();
    if !options.no_sysfs {
        match view.enter() {
            Ok(()) => tracing::info!("the device is in /sys/class/infiniband and /dev/infiniband"),
            Err(reason) => tracing::info!("the device is not shown in /sys and /dev: {reason:#}"),
        }
    }
    let error = Command::new(&program).arg0(name).args(arguments).envs(variables).exec();
    eprintln!("uroce: {} cannot be run: {error}", program.display());
    Ok(ExitCode::from(if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { CANNOT_BE_RUN }))
}

/// What a program's environment has to have beside what is in this one.
pub(crate) fn variables(settings: &Settings) -> anyhow::Result<Vec<(&'static str, OsString)>> {
    let folder = library::folder(&library::find()?)?;
    let loader = library::loader_variables(&folder, |name| env::var_os(name));
    let settings = settings.variables().into_iter().filter_map(|(name, value)| Some((name, value?)));
    Ok(loader.into_iter().chain(settings).collect())
}

/// Opens the device that the program's first process will open, to learn what it is, or why it cannot be had.
fn try_device(settings: &Settings) -> anyhow::Result<View> {
    let link = Arc::new(settings.wire()?);
    let device = settings.device_on(link).progress(Progress::Manual).build()?;
    View::new(&device.open()?)
}
