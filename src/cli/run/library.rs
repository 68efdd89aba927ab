//! Where the library is that stands in for libibverbs, and the folder that the loader is pointed to.

use anyhow::{Context as _, anyhow, bail};
use rustix::process::geteuid;
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, symlink},
    },
    path::{Path, PathBuf},
    process,
};

/// The library, as cargo calls it.
pub(crate) const FILE: &str = "liburoce_rdma_core.so";
/// Where it lies in a prefix.
pub(crate) const INSTALLED: &str = "lib/uroce";
/// What programs know it by: the libraries that it stands in for, and the names that it is linked and opened by.
pub(crate) const NAMES: [&str; 4] = ["libibverbs.so", "libibverbs.so.1", "librdmacm.so", "librdmacm.so.1"];
/// The name that is also its SONAME.
pub(crate) const SONAME: &str = "libibverbs.so.1";
/// Names it, wherever it is.
const VARIABLE: &str = "UROCE_LIBRARY";

const HOW_TO_BUILD: &str = "`cargo build -p uroce-rdma-core` in uroce's source folder makes it";

/// The library: what `UROCE_LIBRARY` names, or what lies next to this command or in its prefix.
pub(crate) fn find() -> anyhow::Result<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return fs::canonicalize(&named)
            .with_context(|| format!("{VARIABLE}={} names no library ({HOW_TO_BUILD})", named.display()));
    }
    let command = env::current_exe().context("this command does not find itself")?;
    let folder = command.parent().unwrap_or(Path::new("/"));
    let candidates = [folder.join(FILE), folder.join("..").join(INSTALLED).join(FILE)];
    candidates.iter().find_map(|candidate| fs::canonicalize(candidate).ok()).ok_or_else(|| {
        anyhow!(
            "there is no {FILE} next to {} or in ../{INSTALLED}: {HOW_TO_BUILD}, and {VARIABLE} may say where it is",
            command.display()
        )
    })
}

/// A folder in which the library has all of [`NAMES`]: its own, or one of symbolic links among this user's files.
///
/// The folder's name depends on the library's path and on nothing else, and so do its contents: whoever makes it
/// makes the same, and a library that is built anew is found by the same links.
pub(crate) fn folder(library: &Path) -> anyhow::Result<PathBuf> {
    let own = library.parent().unwrap_or(Path::new("/"));
    if is_loadable(own) && NAMES.iter().all(|name| leads_to(&own.join(name), library)) {
        return Ok(own.to_owned());
    }
    let mut problems = Vec::new();
    for base in bases() {
        match make(&base, library) {
            Ok(folder) => return Ok(folder),
            Err(problem) => problems.push(format!("{}: {problem}", base.display())),
        }
    }
    bail!("there is no place for four links to the library: {}", problems.join("; "))
}

/// Places for files of this user that need not last.
fn bases() -> Vec<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let temporary = env::temp_dir().join(format!("uroce-{}", geteuid().as_raw()));
    [variable("XDG_RUNTIME_DIR"), cache, Some(temporary)].into_iter().flatten().collect()
}

/// The folder of links within `base`.
fn make(base: &Path, library: &Path) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    let folder = base.join("uroce").join(format!("{:016x}", hasher.finish()));
    if !is_loadable(&folder) {
        return Err(io::Error::other("the loader takes no path with spaces, colons, semicolons or dollar signs"));
    }
    // What another user can change must not be loaded; nor is it ours to litter.
    if base.exists() {
        check_owner(base)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    for made in [base, &base.join("uroce"), &folder] {
        check_owner(made)?;
    }
    for name in NAMES {
        let link = folder.join(name);
        if !fs::read_link(&link).is_ok_and(|target| target == library) {
            // Renaming replaces what is there in one step, under the eyes of programs that are just loading.
            let fresh = folder.join(format!(".{name}.{}", process::id()));
            symlink(library, &fresh)?;
            fs::rename(&fresh, &link)?;
        }
    }
    Ok(folder)
}

fn check_owner(folder: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(folder)?;
    if !metadata.is_dir() || metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!("{} is not a folder that only you can change", folder.display())));
    }
    Ok(())
}

fn leads_to(link: &Path, library: &Path) -> bool {
    fs::canonicalize(link).is_ok_and(|target| target == library)
}

/// Whether a path can stand in `LD_PRELOAD` and `LD_LIBRARY_PATH`, which know no quotes.
fn is_loadable(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| byte.is_ascii_whitespace() || b":;$".contains(byte))
}

/// The loader's variables, such that it takes the names in `folder` for any other of the same name. They come before
/// what the variables said before, once.
pub(crate) fn loader_variables(
    folder: &Path,
    lookup: impl Fn(&str) -> Option<OsString>,
) -> [(&'static str, OsString); 2] {
    let prepend = |name, first: &OsStr| {
        let rest = lookup(name).filter(|rest| !rest.is_empty());
        let mut value = first.to_owned();
        if let Some(rest) = rest {
            let rest = rest.as_bytes();
            match rest.strip_prefix(first.as_bytes()) {
                Some(rest) if rest.is_empty() || rest[0] == b':' => value.push(OsStr::from_bytes(rest)),
                _ => {
                    value.push(":");
                    value.push(OsStr::from_bytes(rest));
                }
            }
        }
        (name, value)
    };
    [
        prepend("LD_LIBRARY_PATH", folder.as_os_str()),
        // Programs that are linked with a path of their own (DT_RPATH) do not ask the first.
        prepend("LD_PRELOAD", folder.join(SONAME).as_os_str()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_comes_first_and_once() {
        let variables = |library_path: &str, preload: &str| {
            let (library_path, preload) = (library_path.to_owned(), preload.to_owned());
            loader_variables(Path::new("/f"), |name| {
                Some(if name == "LD_PRELOAD" { preload.clone().into() } else { library_path.clone().into() })
            })
            .map(|(_, value)| value.into_string().unwrap())
        };
        assert_eq!(variables("", ""), ["/f", "/f/libibverbs.so.1"]);
        assert_eq!(variables("/a:/b", "x.so y.so"), ["/f:/a:/b", "/f/libibverbs.so.1:x.so y.so"]);
        assert_eq!(variables("/f", "/f/libibverbs.so.1:x.so"), ["/f", "/f/libibverbs.so.1:x.so"]);
        assert_eq!(variables("/f:/a", "/f/libibverbs.so.1"), ["/f:/a", "/f/libibverbs.so.1"]);
        assert_eq!(variables("/ff", ""), ["/f:/ff", "/f/libibverbs.so.1"]);
    }

    #[test]
    fn paths_that_the_loader_would_take_apart_are_known() {
        assert!(is_loadable(Path::new("/run/user/1000/uroce")));
        for path in ["/home/a b", "/home/a:b", "/home/a;b", "/home/$LIB"] {
            assert!(!is_loadable(Path::new(path)), "{path}");
        }
    }
}
