//! Programs are linked to names and versions. Every one of them is there, and nothing else is.

#[allow(unreachable_pub, reason = "other tests have it in a module of theirs")]
#[path = "../../tests/support/library.rs"]
mod library;

use library::library;
use std::{
    collections::BTreeSet,
    ffi::{CStr, CString},
    os::unix::ffi::OsStrExt,
    process::Command,
};

/// The private versions, whose names differ but for the version itself.
const PRIVATE: [&str; 7] = ["22", "25", "33", "34", "57", "59", "64"];

/// `name@VERSION`, one a line.
fn expected() -> BTreeSet<(String, String)> {
    let listed = include_str!("exports.txt").lines().filter(|line| !line.starts_with('#'));
    let listed =
        listed.map(|line| line.split_once('@').unwrap()).map(|(name, version)| (name.to_owned(), version.to_owned()));
    let (private, public): (BTreeSet<_>, BTreeSet<_>) =
        listed.partition(|(_, version)| version.starts_with("IBVERBS_PRIVATE_"));
    let private = PRIVATE.into_iter().flat_map(|version| {
        private.iter().map(move |(name, _)| {
            (name.replace("driver_34", &format!("driver_{version}")), format!("IBVERBS_PRIVATE_{version}"))
        })
    });
    public.into_iter().chain(private).collect()
}

/// The error of the dynamic linker.
fn dl_error() -> String {
    // SAFETY: dlerror returns NULL or a string that lasts until this thread calls the linker again.
    let error = unsafe { libc::dlerror().as_ref() };
    // SAFETY: as above.
    error.map_or_else(String::new, |error| unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned())
}

#[test]
fn the_linker_finds_every_name_under_its_version() {
    let path = CString::new(library().as_os_str().as_bytes()).unwrap();
    // SAFETY: the library's initializers do nothing but what Rust's standard library does.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{}", dl_error());
    for (name, version) in expected() {
        let (c_name, c_version) = (CString::new(name.clone()).unwrap(), CString::new(version.clone()).unwrap());
        // SAFETY: the handle is open, the names are C strings.
        let found = unsafe { libc::dlvsym(handle, c_name.as_ptr(), c_version.as_ptr()) };
        assert!(!found.is_null(), "{name}@{version}: {}", dl_error());
    }
}

/// What `objdump -T` says a library exports; `None` where it cannot be run.
fn exports(library: &str) -> Option<BTreeSet<(String, String)>> {
    let output =
        Command::new("objdump").args(["-T", library]).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).unwrap();
    let exports =
        text.lines().filter(|line| (line.contains(" DF ") || line.contains(" DO ")) && !line.contains("*UND*"));
    Some(
        exports
            .filter_map(|line| {
                let mut words = line.split_whitespace().rev();
                let name = words.next()?.to_owned();
                let version = words.next()?.trim_matches(['(', ')']).to_owned();
                // A version node has an entry of its own.
                (name != version).then_some((name, version))
            })
            .collect(),
    )
}

#[test]
fn nothing_else_is_exported() {
    let Some(exports) = exports(library().to_str().unwrap()) else {
        eprintln!("skipped, because there is no objdump here");
        return;
    };
    assert_eq!(exports.difference(&expected()).collect::<Vec<_>>(), Vec::<&(String, String)>::new());
}

#[test]
fn nothing_is_missing_that_this_machine_s_libraries_have() {
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let path = folders.map(|folder| format!("{folder}/{name}")).into_iter().find_map(|path| exports(&path));
        let Some(theirs) = path else {
            eprintln!("{name}: skipped, because it or objdump is not here");
            continue;
        };
        let ours = exports(library().to_str().unwrap()).unwrap();
        assert_eq!(theirs.difference(&ours).collect::<Vec<_>>(), Vec::<&(String, String)>::new(), "{name}");
    }
}
