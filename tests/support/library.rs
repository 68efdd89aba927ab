//! The library that stands in for libibverbs, for tests that run unmodified programs on it.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The library, up to date, next to the `uroce` command.
///
/// cargo builds no shared library for tests, not even for those of its own package, so the first test of a process
/// that asks has it build this one: the same profile, the same target folder. Where tests run without cargo, it has to
/// be there.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // From target/debug/deps/TEST.
        let test = env::current_exe().unwrap();
        let folder = test.ancestors().nth(2).unwrap();
        if let Some(cargo) = env::var_os("CARGO") {
            build(Path::new(&cargo), folder);
        }
        let library = folder.join("liburoce_rdma_core.so");
        assert!(library.exists(), "{} is missing: cargo build -p uroce-rdma-core makes it", library.display());
        library
    })
}

fn build(cargo: &Path, folder: &Path) {
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        // What cargo test builds with, optimised a little: programs that poll want it.
        Some("debug") | None => "test",
        Some(profile) => profile,
    };
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--locked", "--package", "uroce-rdma-core", "--profile", profile])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(status.success(), "the library does not build: cargo build -p uroce-rdma-core says why");
}
