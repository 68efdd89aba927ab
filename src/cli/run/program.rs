//! The program to run: where it is, and whether the loader will give it the library.

use rustix::{
    fs::{Access, access, getxattr},
    process::{getegid, geteuid},
};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

/// How many scripts may be the interpreters of scripts; Linux follows five.
const MAX_INTERPRETERS: u32 = 5;

/// The file that a shell would run for `name`: itself if it has a slash, else the first in PATH.
pub(super) fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    // As execvp has it.
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
}

/// Whether a program will find uroce's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// As far as can be told.
    Good,
    /// It will not, but what it starts may.
    Children(String),
    /// Neither it nor what it starts will.
    Hopeless(String),
}

/// What the loader will do with `program`, which is to be given `library`. A file that cannot be read is given the
/// benefit of the doubt.
pub(super) fn examine(program: &Path, library: &Path) -> Outlook {
    if let Some(reason) = privileged(program) {
        return Outlook::Hopeless(reason);
    }
    match binary(program, library) {
        Ok(Some(reason)) => Outlook::Children(reason),
        Ok(None) | Err(_) => Outlook::Good,
    }
}

/// Why a program runs with rights that its caller lacks, if it does. The loader then ignores and forgets
/// `LD_PRELOAD` and `LD_LIBRARY_PATH` (ld.so(8), "secure-execution mode").
fn privileged(program: &Path) -> Option<String> {
    let metadata = fs::metadata(program).ok()?;
    let mode = metadata.mode();
    let what = if mode & libc::S_ISUID != 0 && metadata.uid() != geteuid().as_raw() {
        "setuid"
    } else if mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 && metadata.gid() != getegid().as_raw() {
        "setgid"
    } else if !geteuid().is_root() && getxattr(program, "security.capability", &mut [0_u8; 64]).is_ok() {
        "a program with file capabilities"
    } else {
        return None;
    };
    Some(format!(
        "{} is {what}, and such programs load no library of their caller's: run a copy of it, or as the user that it \
         wants to be (`sudo uroce run -- …`)",
        program.display()
    ))
}

/// Why the loader will not load the library into a program, if so.
fn binary(program: &Path, library: &Path) -> io::Result<Option<String>> {
    let mut path = program.to_owned();
    for _ in 0..MAX_INTERPRETERS {
        let mut file = File::open(&path)?;
        if let Some(interpreter) = script_interpreter(&mut file)? {
            path = interpreter;
            continue;
        }
        let Some(elf) = Elf::read(&file)? else { return Ok(None) };
        let Some(ours) = Elf::read(&File::open(library)?)? else { return Ok(None) };
        let reason = if elf.target != ours.target {
            "is made for another processor than uroce's library"
        } else if elf.interpreter.is_none() {
            "is statically linked, and loads no libraries"
        } else if elf.interpreter.is_some_and(|loader| String::from_utf8_lossy(&loader).contains("ld-musl")) {
            "is linked with musl, and uroce's library with glibc"
        } else {
            return Ok(None);
        };
        let subject = if path == program {
            path.display().to_string()
        } else {
            format!("{}, which runs {},", path.display(), program.display())
        };
        return Ok(Some(format!("{subject} {reason}: only programs that it starts may find the device")));
    }
    Ok(None)
}

/// The interpreter that a script's first line names.
fn script_interpreter(file: &mut File) -> io::Result<Option<PathBuf>> {
    // As much as Linux looks at.
    let mut line = Vec::new();
    file.take(256).read_to_end(&mut line)?;
    let Some(line) = line.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii();
    let interpreter = line.split(|byte| b" \t".contains(byte)).next().unwrap_or_default();
    Ok((!interpreter.is_empty()).then(|| OsStr::from_bytes(interpreter).into()))
}

/// What the head of an ELF file says (elf(5)). Two structures, so that a library to read them would be more to
/// learn than to write.
struct Elf {
    /// Word size, byte order and processor.
    target: ([u8; 2], [u8; 2]),
    /// The loader that it asks for; none in a static program.
    interpreter: Option<Vec<u8>>,
}

impl Elf {
    /// `None` for what is no ELF file. The interpreter is looked for in files of this machine's kind only, which is
    /// that of the library.
    fn read(file: &File) -> io::Result<Option<Self>> {
        let mut header = [0; 64];
        match file.read_exact_at(&mut header, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            result => result?,
        }
        if !header.starts_with(b"\x7fELF") {
            return Ok(None);
        }
        let target = ([header[4], header[5]], [header[18], header[19]]);
        let is_64_bit = header[4] == 2;
        let interpreter = if is_64_bit { find_interpreter(file, &header)? } else { None };
        Ok(Some(Self { target, interpreter }))
    }
}

/// The contents of the segment PT_INTERP of a 64-bit ELF file.
fn find_interpreter(file: &File, header: &[u8; 64]) -> io::Result<Option<Vec<u8>>> {
    const PT_INTERP: u32 = 3;
    let offset = u64::from_ne_bytes(field(header, 32));
    let (size, count) = (u16::from_ne_bytes(field(header, 54)), u16::from_ne_bytes(field(header, 56)));
    for index in 0..u64::from(count) {
        let mut segment = [0; 56];
        file.read_exact_at(&mut segment, offset.saturating_add(index * u64::from(size)))?;
        if u32::from_ne_bytes(field(&segment, 0)) == PT_INTERP {
            // A path; longer ones the kernel does not take.
            let length = u64::from_ne_bytes(field(&segment, 32)).min(libc::PATH_MAX as u64);
            let mut path = vec![0; length as usize];
            file.read_exact_at(&mut path, u64::from_ne_bytes(field(&segment, 8)))?;
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// `N` bytes of a structure.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}
