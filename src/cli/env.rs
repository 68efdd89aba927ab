//! `uroce env`: what `uroce run` gives to a program, for a shell.

use super::run::variables;
use clap::{Args, ValueEnum};
use std::{
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    process::ExitCode,
};
use uroce::settings::Settings;

const AFTER_HELP: &str = "\
  eval \"$(uroce env)\"                      bash, dash, zsh …
  uroce env --shell fish | source
  eval `uroce env --shell csh`

Every program of that shell then runs on the device; those that look into /sys or /dev want `uroce run`.";

/// Options of `uroce env`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct EnvOptions {
    /// Whose language to speak
    #[arg(long, value_enum, default_value_t = Shell::Sh)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    Sh,
    Fish,
    Csh,
}

/// Prints it.
pub(crate) fn run(settings: &Settings, options: &EnvOptions) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    for (name, value) in variables(settings)? {
        out.write_all(&options.shell.assignment(name, value.as_bytes()))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Shell {
    /// The line that sets a variable for this shell and what it starts.
    fn assignment(self, name: &str, value: &[u8]) -> Vec<u8> {
        let mut line = match self {
            Self::Sh => format!("export {name}='"),
            Self::Fish => format!("set -gx {name} '"),
            Self::Csh => format!("setenv {name} '"),
        }
        .into_bytes();
        for &byte in value {
            match (self, byte) {
                (Self::Sh | Self::Csh, b'\'') => line.extend(br"'\''"),
                (Self::Fish, b'\'' | b'\\') | (Self::Csh, b'!' | b'\n') => line.extend([b'\\', byte]),
                _ => line.push(byte),
            }
        }
        // csh's eval joins the lines.
        line.extend(b"';\n");
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_as_each_shell_wants_it() {
        let value = br"it's 100% \ $HOME!";
        assert_eq!(
            Shell::Sh.assignment("A", value),
            br"export A='it'\''s 100% \ $HOME!';
"
        );
        assert_eq!(
            Shell::Fish.assignment("A", value),
            br"set -gx A 'it\'s 100% \\ $HOME!';
"
        );
        assert_eq!(
            Shell::Csh.assignment("A", value),
            br"setenv A 'it'\''s 100% \ $HOME\!';
"
        );
    }
}
