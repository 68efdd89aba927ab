//! The device in the file system, for programs that look there: `/sys/class/infiniband/uroce0`,
//! `/sys/class/infiniband_verbs/uverbs0` and `/dev/infiniband/uverbs0`.
//!
//! Only root may change what every process sees there, so the program gets a view of its own: a mount namespace,
//! and where the user may not make one otherwise a user namespace around it, in which the user's and group's numbers
//! are what they were. Nothing outside changes, and all of it goes with its last process.
//!
//! A folder that lacks the device's (`/sys/class`, `/sys/devices/virtual`, `/dev`) is covered by a file system in
//! memory that holds everything that was there, each entry by a bind mount, and the device's folder beside them.
//! What is reached through the entries is the real thing. An overlay would take one mount instead of dozens, but
//! keeps for itself what is written to it: a program that sets an attribute in `/sys` would talk to nobody. And it
//! opens no device nodes, when an ordinary user mounts it.
//!
//! A namespace that is half made cannot be left again. Therefore a forked child makes it, and this process joins it
//! when it is complete.

use super::files::{Entry, files};
use anyhow::{Context as _, bail};
use rustix::{
    fs::{CWD, Mode},
    io::Errno,
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind_recursive,
        mount_change, move_mount, open_tree, unmount,
    },
    pipe::pipe,
    process::{Pid, PidfdFlags, WaitOptions, getegid, geteuid, pidfd_open, umask, waitpid},
    thread::{ThreadNameSpaceType, UnshareFlags, capabilities, move_into_thread_name_spaces, unshare_unsafe},
};
use std::{
    env,
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::{
        fd::AsFd,
        unix::fs::{OpenOptionsExt, symlink},
    },
    path::{Path, PathBuf},
};
use uroce::verbs::Context;

/// Folders of the system's, and in each the folders that are to be the device's.
const PLACES: [(&str, &[&str]); 3] = [
    ("/sys/devices/virtual", &["uroce"]),
    ("/sys/class", &["infiniband", "infiniband_verbs"]),
    ("/dev", &["infiniband"]),
];

/// Where in a covered folder it is seen uncovered.
const COVERED: &str = ".uroce";

/// What the view shows.
#[derive(Debug)]
pub(super) struct View {
    files: Vec<(PathBuf, Entry)>,
}

impl View {
    /// A view of an open device.
    pub(super) fn new(context: &Context) -> anyhow::Result<Self> {
        Ok(Self { files: files(context)? })
    }

    /// Has this process, and what it starts, see the device. When it fails, nothing has changed.
    pub(super) fn enter(&self) -> anyhow::Result<()> {
        let folder = env::current_dir().context("the current folder has no name")?;
        let (from_child, to_parent) = pipe()?;
        let (wait_for_parent, to_child) = pipe()?;
        // SAFETY: this process has a single thread, so the child finds no lock that somebody else holds, and may go on
        // as any process may.
        let child = match unsafe { libc::fork() } {
            -1 => return Err(std::io::Error::last_os_error()).context("no process for it"),
            0 => {
                drop((from_child, to_child));
                let answer = match self.make() {
                    Ok(kind) => kind.letter().to_owned(),
                    Err(error) => format!("{error:#}"),
                };
                let _ = File::from(to_parent).write_all(answer.as_bytes());
                // Returns when the parent has joined, or is gone.
                let _ = File::from(wait_for_parent).read(&mut [0]);
                // SAFETY: ends the child, without the parent's exit handlers.
                unsafe { libc::_exit(0) }
            }
            child => Pid::from_raw(child).context("fork gave no process number")?,
        };
        drop((to_parent, wait_for_parent));
        let joined = join(child, File::from(from_child), &folder);
        drop(to_child);
        waitpid(Some(child), WaitOptions::empty())?;
        joined
    }

    /// Makes the view, in the child.
    fn make(&self) -> anyhow::Result<Kind> {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        let kind = unshare()?;
        if kind == Kind::User {
            // Without this an ordinary user could drop groups that are there to keep him out (user_namespaces(7)).
            fs::write("/proc/self/setgroups", "deny").context("setgroups")?;
            fs::write("/proc/self/uid_map", format!("{user} {user} 1")).context("the user's number")?;
            fs::write("/proc/self/gid_map", format!("{group} {group} 1")).context("the group's number")?;
        }
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
            .context("keeping mounts to itself")?;
        // What is made is for everybody to read, whatever the user's habit is.
        umask(Mode::WGRP | Mode::WOTH);
        for (folder, places) in PLACES {
            let folder = Path::new(folder);
            if !places.iter().all(|place| folder.join(place).is_dir()) {
                mirror(folder)?;
            }
            for place in places {
                let place = folder.join(place);
                if place.is_dir() {
                    // Of real devices, which the library does not show either.
                    cover(&place)?;
                } else {
                    make_folder(&place)?;
                }
            }
        }
        self.fill()?;
        Ok(kind)
    }

    /// Writes the device's files.
    fn fill(&self) -> anyhow::Result<()> {
        for (path, entry) in &self.files {
            if let Some(folder) = path.parent() {
                make_folder(folder)?;
            }
            match entry {
                Entry::Text(text) => {
                    let file = OpenOptions::new().write(true).create_new(true).mode(0o444).open(path);
                    file.and_then(|mut file| writeln!(file, "{text}"))
                }
                Entry::Link(target) => symlink(target, path),
            }
            .with_context(|| path.display().to_string())?;
        }
        // Device nodes that an ordinary user may make: the null device under other names. Programs look whether
        // they are there and theirs to open; what they do with a device goes through the library.
        for name in ["uverbs0", "rdma_cm"] {
            bind(Path::new("/dev/null"), &Path::new("/dev/infiniband").join(name))?;
        }
        Ok(())
    }
}

/// What it took to have mounts of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mount,
    User,
}

impl Kind {
    /// How the child tells its parent.
    const fn letter(self) -> &'static str {
        match self {
            Self::Mount => "M",
            Self::User => "U",
        }
    }
}

/// Joins what the child has made, once it has said that it is complete.
fn join(child: Pid, mut answer: File, folder: &Path) -> anyhow::Result<()> {
    let child = pidfd_open(child, PidfdFlags::empty()).context("a handle of the namespaces (Linux 5.3 has them)")?;
    let mut text = String::new();
    answer.read_to_string(&mut text)?;
    let kind = match text.as_str() {
        "M" => ThreadNameSpaceType::MOUNT,
        "U" => ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::USER,
        "" => bail!("it was killed"),
        problem => bail!("{problem}"),
    };
    // All or nothing.
    move_into_thread_name_spaces(child.as_fd(), kind).context("joining the namespaces (Linux 5.8 does)")?;
    // Joining leads to the root folder.
    env::set_current_dir(folder).with_context(|| format!("returning to {}", folder.display()))
}

/// A mount namespace; with a user namespace around it for those who may not make one otherwise.
fn unshare() -> anyhow::Result<Kind> {
    // SAFETY: the file descriptors stay as they are.
    let unshare = |flags| unsafe { unshare_unsafe(flags) };
    match unshare(UnshareFlags::NEWNS) {
        Ok(()) => Ok(Kind::Mount),
        Err(Errno::PERM) => {
            // They are worth nothing in a user namespace but their own.
            if !capabilities(None).context("the privileges of this process")?.effective.is_empty() {
                bail!("it takes a user namespace, which would cost the program its privileges");
            }
            unshare(UnshareFlags::NEWNS | UnshareFlags::NEWUSER)
                .context("namespaces of one's own are not allowed here")?;
            Ok(Kind::User)
        }
        Err(error) => Err(error).context("a mount namespace"),
    }
}

/// Puts an empty file system in memory over a folder.
fn cover(folder: &Path) -> anyhow::Result<()> {
    mount("uroce", folder, "tmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, c"mode=755")
        .with_context(|| format!("covering {}", folder.display()))
}

/// Covers a folder with one that has the same entries, and room for more.
fn mirror(folder: &Path) -> anyhow::Result<()> {
    let entries: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    let what = || format!("keeping what is in {}", folder.display());
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let real = open_tree(CWD, folder, flags).with_context(what)?;
    cover(folder)?;
    let covered = folder.join(COVERED);
    make_folder(&covered)?;
    move_mount(&real, "", CWD, &covered, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).with_context(what)?;

    let mut is_needed = false;
    for entry in entries {
        let (from, to) = (covered.join(entry.file_name()), folder.join(entry.file_name()));
        if entry.file_type()?.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
        } else if entry.file_name() == "ptmx" {
            // Whoever opens it for a new terminal has Linux look for `pts` beside the file itself, and not beside a
            // bind mount of it.
            symlink(Path::new(COVERED).join("ptmx"), &to)?;
            is_needed = true;
        } else {
            bind(&from, &to)?;
        }
    }
    if !is_needed {
        unmount(&covered, UnmountFlags::DETACH).with_context(what)?;
        fs::remove_dir(&covered)?;
    }
    Ok(())
}

/// Makes `to`, and has it be `from`.
fn bind(from: &Path, to: &Path) -> anyhow::Result<()> {
    if from.is_dir() {
        make_folder(to)?;
    } else {
        File::create(to).map(drop).with_context(|| to.display().to_string())?;
    }
    mount_bind_recursive(from, to).with_context(|| format!("showing {}", to.display()))
}

fn make_folder(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}
