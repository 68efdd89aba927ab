//! How a process wants its device: the `UROCE_*` variables, and the device that they make.
//!
//! An unmodified program has no option for a capture file or a bad network, so it is told by its environment. The
//! options of the `uroce` command are the same settings under the same names, and `uroce run` hands them on as
//! variables.
//!
//! | variable | option | meaning | without it |
//! |---|---|---|---|
//! | `UROCE_ADDR` | `--addr` | the IP address that the device stands on | the first free of 127.0.0.1, 127.0.0.2, … |
//! | `UROCE_LINK` | `--link` | the wire: `udp`, `shm`, `ether:IFACE` or `dgram:LOCAL,REMOTE` ([`spec`](crate::link::spec)) | `udp` |
//! | `UROCE_MTU` | `--mtu` | the path MTU: 256, 512, 1024, 2048 or 4096 | the most that the network carries |
//! | `UROCE_CAPTURE` | `--capture` | the file that every packet is written to ([below](#captures)) | no capture |
//! | `UROCE_FAULT` | `--fault` | what the network does to packets: rules of [`fault`](crate::link::fault) | nothing |
//! | `UROCE_CONGESTION` | `--congestion` | congestion control: `dcqcn`, `timely` or `off`, and parameters ([`congestion`](crate::congestion#as-a-text)) | `off` |
//! | `UROCE_SEED` | `--seed` | seeds keys, queue pair numbers and the dice of the faults | random |
//! | `UROCE_PROFILE` | `--profile` | `hardware` or `rxe`: whom to follow where the specification leaves room | `hardware` |
//! | `UROCE_LOG` | `-v`, `-vv`, `-vvv` | `off`, `error`, `warn`, `info`, `debug` or `trace` | `warn` |
//!
//! An empty variable is as good as none.
//!
//! # Captures
//!
//! Several processes may be told of one capture file, but each writes a file of its own: the first that opens a
//! device takes FILE, every later one FILE with its process number before the extension (`bw.pcapng`,
//! `bw.4711.pcapng`). Whoever finds FILE missing or empty is the first. So nothing that was captured is ever
//! overwritten by a variable; the `uroce` command empties the file of its `--capture` before it begins (and `uroce demo`
//! its file always).
//!
//! What is not an ordinary file (a pipe that Wireshark reads) is written by every process.
//!
//! A file is complete when the process exits. One that is killed may lack its last fifth of a second.

use crate::{
    congestion::Congestion,
    link::{Capture, CaptureFile, Fault, FaultSpec, Link, LinkSpec, Trace, UdpLink, sys},
    verbs::{Device, DeviceBuilder, Error, Mtu, Quirks, Result},
};
use rustix::fs::{FlockOperation, flock};
use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    fs::{File, OpenOptions},
    hash::{BuildHasher, RandomState},
    io::{self, Write},
    net::IpAddr,
    path::{Path, PathBuf, absolute},
    process,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
};
use thiserror::Error;
use tracing::{Level, level_filters::LevelFilter};

/// How a process wants its device. The [module's documentation](self) says what each setting means.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The address that the device stands on (`UROCE_ADDR`).
    pub address: Option<IpAddr>,
    /// The wire (`UROCE_LINK`).
    pub link: Option<LinkSpec>,
    /// The path MTU (`UROCE_MTU`).
    pub mtu: Option<Mtu>,
    /// Where every packet is written to (`UROCE_CAPTURE`).
    pub capture: Option<PathBuf>,
    /// What happens to packets (`UROCE_FAULT`).
    pub fault: Option<FaultSpec>,
    /// How congestion is controlled, if it is (`UROCE_CONGESTION`).
    pub congestion: Option<Congestion>,
    /// Seeds everything random (`UROCE_SEED`).
    pub seed: Option<u64>,
    /// Whom to follow (`UROCE_PROFILE`).
    pub profile: Option<Profile>,
    /// How much to say on standard error (`UROCE_LOG`).
    pub log: Option<LevelFilter>,
}

/// Whose behaviour a device takes where the specification leaves room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// What the IBTA asks and ConnectX-class hardware does.
    #[default]
    Hardware,
    /// What Linux rxe does.
    Rxe,
}

/// A variable whose value makes no sense. Its message is one sentence that names both and says what would.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{variable}={}: {problem}", value.display())]
pub struct SettingError {
    variable: &'static str,
    value: OsString,
    problem: String,
}

impl Settings {
    /// What the environment of this process asks for.
    ///
    /// # Errors
    /// The first variable whose value makes no sense.
    pub fn from_env() -> Result<Self, SettingError> {
        Self::from_variables(|name| env::var_os(name))
    }

    /// What the variables ask for that `lookup` finds.
    ///
    /// # Errors
    /// The first variable whose value makes no sense.
    pub fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, SettingError> {
        let lookup = |name: &'static str| lookup(name).filter(|value| !value.is_empty());
        Ok(Self {
            address: parse(&lookup, "UROCE_ADDR", |text| {
                text.parse().map_err(|_| {
                    "a device stands on an IPv4 or IPv6 address of this machine, such as 192.0.2.1; unset it for the \
                     first free of 127.0.0.1, 127.0.0.2, …"
                })
            })?,
            link: parse(&lookup, "UROCE_LINK", str::parse)?,
            mtu: parse(&lookup, "UROCE_MTU", str::parse)?,
            capture: lookup("UROCE_CAPTURE").map(PathBuf::from),
            fault: parse(&lookup, "UROCE_FAULT", str::parse)?,
            congestion: parse(&lookup, "UROCE_CONGESTION", Congestion::parse_or_off)?.flatten(),
            seed: parse(&lookup, "UROCE_SEED", |text| {
                text.parse().map_err(|_| "a seed is a number from 0 to 18446744073709551615")
            })?,
            profile: parse(&lookup, "UROCE_PROFILE", str::parse)?,
            log: parse(&lookup, "UROCE_LOG", |text| {
                text.parse().map_err(|_| "a log level is off, error, warn, info, debug or trace")
            })?,
        })
    }

    /// The variables that say the same to another process: `None` where there is none to set. Paths are made
    /// absolute, for the other process may run in another folder.
    pub fn variables(&self) -> [(&'static str, Option<OsString>); 9] {
        fn text(value: Option<impl fmt::Display>) -> Option<OsString> {
            value.map(|value| value.to_string().into())
        }
        let capture = self.capture.as_deref().map(|path| absolute(path).unwrap_or_else(|_| path.to_owned()));
        [
            ("UROCE_ADDR", text(self.address)),
            ("UROCE_LINK", text(self.link.as_ref().map(LinkSpec::absolute))),
            ("UROCE_MTU", text(self.mtu)),
            ("UROCE_CAPTURE", capture.map(PathBuf::into_os_string)),
            ("UROCE_FAULT", text(self.fault.as_ref())),
            ("UROCE_CONGESTION", text(self.congestion.as_ref())),
            ("UROCE_SEED", text(self.seed)),
            ("UROCE_PROFILE", text(self.profile)),
            ("UROCE_LOG", text(self.log)),
        ]
    }

    /// A description of the device that they ask for, its link open.
    ///
    /// # Errors
    /// What the system says when the address or the capture file cannot be had.
    pub fn device(&self) -> Result<DeviceBuilder> {
        let what = || match self.address {
            Some(address) => format!("no device at {address}"),
            None => "no device on the loopback interface".to_owned(),
        };
        let wire = self.wire().map_err(|error| Error::os(what(), error))?;
        let link = self.link(wire).map_err(|error| Error::os(what(), error))?;
        Ok(self.device_on(link))
    }

    /// A description of a device on `link`, with the settings that are not the link's.
    pub fn device_on(&self, link: Arc<dyn Link>) -> DeviceBuilder {
        let mut builder = Device::builder().quirks(self.profile.unwrap_or_default().quirks()).link(link);
        if let Some(mtu) = self.mtu {
            builder = builder.mtu(mtu);
        }
        if let Some(congestion) = &self.congestion {
            builder = builder.congestion(congestion.clone());
        }
        match self.seed {
            Some(seed) => builder.seed(seed),
            None => builder,
        }
    }

    /// UDP at the address, or at the first free loopback address, whatever [`Self::link`] says.
    ///
    /// # Errors
    /// As [`UdpLink::open`] and [`UdpLink::open_loopback`].
    pub fn udp(&self) -> io::Result<UdpLink> {
        UdpLink::open_here(self.address)
    }

    /// The bare wire, open at the address.
    ///
    /// # Errors
    /// As [`LinkSpec::open`].
    pub fn wire(&self) -> io::Result<Arc<dyn Link>> {
        self.link.clone().unwrap_or_default().open(self.address)
    }

    /// The wire, captured, disturbed and logged as they ask. A capture shows what is on the wire.
    ///
    /// # Errors
    /// Whatever the system says when the capture file cannot be written.
    pub fn link(&self, wire: Arc<dyn Link>) -> io::Result<Arc<dyn Link>> {
        let mut link = match &self.capture {
            Some(path) => Arc::new(Capture::new(wire, capture_file(path)?, "uroce0")?),
            None => wire,
        };
        if let Some(spec) = &self.fault {
            let seed = self.seed_or_random();
            tracing::info!(seed, "faults: {spec}");
            link = Arc::new(Fault::new(link, spec, seed));
        }
        if tracing::enabled!(Level::TRACE) {
            link = Arc::new(Trace::new(link));
        }
        Ok(link)
    }

    /// The seed, or a [`random_seed`].
    pub fn seed_or_random(&self) -> u64 {
        self.seed.unwrap_or_else(random_seed)
    }

    /// Empties the capture file, so that the next process that opens a device takes it.
    ///
    /// # Errors
    /// Whatever the system says when it cannot be written; the message names it.
    pub fn begin_capture(&self) -> io::Result<()> {
        let Some(path) = &self.capture else { return Ok(()) };
        match open_capture(path)? {
            file if file.metadata()?.is_file() => file.set_len(0),
            _ => Ok(()),
        }
    }

    /// Sends the log to standard error, as far as [`Self::log`] asks (warnings and errors without it). Of several
    /// calls in a process the first counts.
    #[cfg(feature = "log")]
    pub fn start_log(&self) {
        use std::io::IsTerminal;
        // Not through the standard library's handle, whose lock another thread may hold when this process is forked.
        struct StandardError;
        impl Write for StandardError {
            fn write(&mut self, line: &[u8]) -> io::Result<usize> {
                Ok(rustix::io::write(rustix::stdio::stderr(), line)?)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        // It fails where there is a log already, which then goes on.
        let _ = tracing_subscriber::fmt()
            .with_max_level(self.log.unwrap_or(LevelFilter::WARN))
            .with_writer(|| StandardError)
            .with_ansi(io::stderr().is_terminal())
            .try_init();
    }
}

/// A seed that nobody has chosen, short enough to be typed again.
pub fn random_seed() -> u64 {
    // The standard library seeds its hash tables from the system's entropy.
    RandomState::new().hash_one(()) >> 32
}

impl Profile {
    /// The deviations that make it up.
    pub const fn quirks(self) -> Quirks {
        match self {
            Self::Hardware => Quirks::HARDWARE,
            Self::Rxe => Quirks::RXE,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hardware => "hardware",
            Self::Rxe => "rxe",
        })
    }
}

/// A text that names no [`Profile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a profile is hardware or rxe")]
pub struct NoProfile;

impl FromStr for Profile {
    type Err = NoProfile;

    fn from_str(text: &str) -> Result<Self, NoProfile> {
        match text {
            "hardware" => Ok(Self::Hardware),
            "rxe" => Ok(Self::Rxe),
            _ => Err(NoProfile),
        }
    }
}

fn parse<T, E: ToString>(
    lookup: &impl Fn(&'static str) -> Option<OsString>,
    variable: &'static str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, SettingError> {
    let Some(value) = lookup(variable) else { return Ok(None) };
    let parsed = match value.to_str() {
        Some(text) => parse(text.trim()).map_err(|error| error.to_string()),
        None => Err("this is not UTF-8".to_owned()),
    };
    parsed.map(Some).map_err(|problem| SettingError { variable, value, problem })
}

/// The capture that this process writes, for all the devices that it opens one after the other.
struct ProcessCapture {
    process: u32,
    path: PathBuf,
    file: Arc<CaptureFile>,
}

static CAPTURE: Mutex<Option<ProcessCapture>> = Mutex::new(None);

/// This process's capture file for `path`: as the [module's documentation](self#captures) says, it may have
/// another name.
fn capture_file(path: &Path) -> io::Result<Arc<CaptureFile>> {
    let process = process::id();
    let mut capture = CAPTURE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = &*capture
        && known.process == process
        && known.path == path
    {
        return Ok(known.file.clone());
    }
    let (file, lock) = claim(path, process)?;
    let file = CaptureFile::new(Box::new(OwnFile { file, process }))?;
    // The header is written: nobody takes the file for an empty one any more.
    drop(lock);
    // Where it fails, which POSIX allows after 32 of them, the last 200 ms may be missing.
    sys::at_exit(flush_capture);
    *capture = Some(ProcessCapture { process, path: path.to_owned(), file: file.clone() });
    Ok(file)
}

/// Runs when the process exits, for statics are not dropped.
extern "C" fn flush_capture() {
    // Held, or poisoned: then somebody is just making or has failed to make a file.
    let Ok(capture) = CAPTURE.try_lock() else { return };
    if let Some(capture) = &*capture
        // The locks within are not to be trusted in a forked child.
        && capture.process == process::id()
    {
        // Nobody is left to be told.
        let _ = capture.file.flush();
    }
}

/// The first empty file of those that may stand for `path`, and a lock on it to be dropped when it is not empty any
/// more.
fn claim(path: &Path, process: u32) -> io::Result<(File, Option<FileLock>)> {
    let mut candidate = path.to_owned();
    for attempt in 1_u32.. {
        let file = open_capture(&candidate)?;
        if !file.metadata()?.is_file() {
            return Ok((file, None));
        }
        let lock = FileLock::new(&file)?;
        if file.metadata()?.len() == 0 {
            if attempt > 1 {
                tracing::info!(file = %candidate.display(), "capture, for {} is taken", path.display());
            }
            return Ok((file, Some(lock)));
        }
        let label = if attempt == 1 { process.to_string() } else { format!("{process}-{}", attempt) };
        candidate = with_label(path, &label);
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// `bw.pcapng` with the label `7` is `bw.7.pcapng`.
fn with_label(path: &Path, label: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or(OsStr::new("")).to_owned();
    name.push(".");
    name.push(label);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn open_capture(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot create the capture file {}: {error}", path.display()))
    })
}

/// A lock on a file, against other processes, until it is dropped.
struct FileLock(File);

impl FileLock {
    fn new(file: &File) -> io::Result<Self> {
        let file = file.try_clone()?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self(file))
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // It is the lock that was taken above, on a descriptor that is open.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// A file that a forked child, which inherits what was still to be written, does not write to.
struct OwnFile {
    file: File,
    process: u32,
}

impl Write for OwnFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if process::id() == self.process { self.file.write(bytes) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
