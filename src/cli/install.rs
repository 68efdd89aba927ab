//! `uroce install` and `uroce uninstall`: the command and the library in a prefix, and out of it again.
//!
//! ```text
//! PREFIX/bin/uroce                       this command
//! PREFIX/lib/uroce/liburoce_rdma_core.so the library
//! PREFIX/lib/uroce/libibverbs.so.1 …     what programs know it by: links to it
//! PREFIX/lib/uroce/installed             what to take away again, one path a line
//! PREFIX/etc/ld.so.conf.d/uroce.conf     for ldconfig, once it is copied to /etc
//! ```

use super::run::library;
use anyhow::{Context as _, bail};
use clap::Args;
use std::{
    env, fs,
    io::{self, ErrorKind, Write},
    os::unix::fs::symlink,
    path::{self, Path, PathBuf},
    process::{self, ExitCode},
};

/// The list of what was installed, within a prefix.
const MANIFEST: &str = "lib/uroce/installed";
/// What tells ldconfig of the library's folder.
const CONFIGURATION: &str = "etc/ld.so.conf.d/uroce.conf";

/// Options of `uroce install` and `uroce uninstall`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PrefixOptions {
    /// The folder that bin, lib and etc are in
    #[arg(long, value_name = "FOLDER", default_value = "/usr/local")]
    prefix: PathBuf,
}

/// Installs, over an older version if there is one.
pub(crate) fn install(options: &PrefixOptions) -> anyhow::Result<ExitCode> {
    let library = library::find()?;
    let mut prefix = Prefix::open(&options.prefix)?;
    let installed = put_all(&mut prefix, &library);
    // Half an installation can be taken away, too.
    prefix.record()?;
    installed?;

    let root = prefix.root.display();
    let mut out = io::stdout().lock();
    for path in &prefix.made {
        writeln!(out, "{root}/{path}")?;
    }
    writeln!(
        out,
        "\n\
         a program on it:         {root}/bin/uroce run -- ib_write_bw\n\
         all of a shell:          eval \"$({root}/bin/uroce env)\"\n\
         all of this machine:     cp {root}/{CONFIGURATION} /etc/ld.so.conf.d/00-uroce.conf && ldconfig\n\
                                  (those that use libibverbs; librdmacm goes by the first two ways only)\n\
         away with it:            {root}/bin/uroce uninstall --prefix {root}"
    )?;
    Ok(ExitCode::SUCCESS)
}

fn put_all(prefix: &mut Prefix, library: &Path) -> anyhow::Result<()> {
    let command = env::current_exe().context("this command does not find itself")?;
    let folder = Path::new(library::INSTALLED);
    prefix.put(Path::new("bin/uroce"), |to| fs::copy(&command, to).map(drop))?;
    prefix.put(&folder.join(library::FILE), |to| fs::copy(library, to).map(drop))?;
    for name in library::NAMES {
        prefix.put(&folder.join(name), |to| symlink(library::FILE, to))?;
    }
    let line = format!("{}\n", prefix.root.join(folder).display());
    prefix.put(Path::new(CONFIGURATION), |to| fs::write(to, line))
}

/// Takes away what [`install`] has made, and nothing else.
pub(crate) fn uninstall(options: &PrefixOptions) -> anyhow::Result<ExitCode> {
    let prefix = Prefix::open(&options.prefix)?;
    if prefix.made.is_empty() {
        bail!("uroce is not installed in {}: there is no {MANIFEST} in it", prefix.root.display());
    }
    let (mut folders, mut files): (Vec<_>, Vec<_>) = prefix
        .made
        .iter()
        .map(|path| prefix.path(path))
        .partition(|path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()));
    // The list goes when all that it names has gone, and folders go when they are empty.
    let manifest = prefix.path(MANIFEST);
    files.retain(|path| *path != manifest);
    files.push(manifest);
    folders.reverse();
    let mut out = io::stdout().lock();
    for path in files.iter().chain(&folders) {
        let removed = if folders.contains(path) { fs::remove_dir(path) } else { fs::remove_file(path) };
        match removed {
            Ok(()) => writeln!(out, "removed {}", path.display())?,
            // Somebody has put something into it, or taken it away.
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => {}
            Err(error) => return Err(error).with_context(|| format!("{} stays", path.display())),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A prefix, and what was made in it.
struct Prefix {
    root: PathBuf,
    /// Paths within it, in the order in which they were made; `.` is the prefix itself.
    made: Vec<String>,
}

impl Prefix {
    /// A prefix, perhaps with an installation.
    fn open(root: &Path) -> anyhow::Result<Self> {
        let root = path::absolute(root)?;
        let manifest = root.join(MANIFEST);
        let made: Vec<String> = match fs::read_to_string(&manifest) {
            Ok(list) => list.lines().map(str::to_owned).collect(),
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).with_context(|| manifest.display().to_string()),
        };
        if made.iter().any(|path| path.starts_with('/') || path.split('/').any(|part| part == "..")) {
            bail!("{} names what is not in {}", manifest.display(), root.display());
        }
        Ok(Self { root, made })
    }

    fn path(&self, path: &str) -> PathBuf {
        if path == "." { self.root.clone() } else { self.root.join(path) }
    }

    /// Has `make` make a file, which then takes the place of one that was there in one step: a program that runs
    /// from the old one is not disturbed.
    fn put(&mut self, path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> anyhow::Result<()> {
        let to = self.root.join(path);
        self.make_folders(path).with_context(|| format!("cannot make the folder of {}", to.display()))?;
        let fresh = to.with_file_name(format!(".uroce.{}", process::id()));
        let made = make(&fresh).and_then(|()| fs::rename(&fresh, &to));
        if made.is_err() {
            // Nothing is there where making it has failed.
            let _ = fs::remove_file(&fresh);
        }
        made.with_context(|| format!("cannot install {}", to.display()))?;
        self.note(path);
        Ok(())
    }

    /// Makes the folders that a file is in, as far as they are missing.
    fn make_folders(&mut self, file: &Path) -> io::Result<()> {
        if !self.root.exists() {
            fs::create_dir_all(&self.root)?;
            self.note(Path::new("."));
        }
        let mut folders: Vec<&Path> = file.ancestors().skip(1).filter(|folder| *folder != Path::new("")).collect();
        folders.reverse();
        for folder in folders {
            if !self.root.join(folder).exists() {
                fs::create_dir(self.root.join(folder))?;
                self.note(folder);
            }
        }
        Ok(())
    }

    fn note(&mut self, path: &Path) {
        let path = path.display().to_string();
        if !self.made.contains(&path) {
            self.made.push(path);
        }
    }

    /// Writes down what was made.
    fn record(&mut self) -> anyhow::Result<()> {
        self.make_folders(Path::new(MANIFEST))?;
        self.note(Path::new(MANIFEST));
        let list = self.made.join("\n") + "\n";
        self.put(Path::new(MANIFEST), |to| fs::write(to, list))
    }
}
