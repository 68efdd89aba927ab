//! Which library the loader takes, by the way in which a program asks for libibverbs or librdmacm: the table in
//! docs/running-programs.md.
#![cfg(feature = "cli")]

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use support::library::library;

/// Prints the file that a function of a library comes from that it is linked with, or that it opens by a name.
const PROGRAM: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdio.h>
    #include <infiniband/verbs.h>
    #include <rdma/rdma_cma.h>

    int main(int count, char **arguments) {
        void *function = count > 1 ? NULL : (void *)ibv_get_device_list;
        if (count > 1) {
            void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
            if (!library)
                return 1;
            function = dlsym(library, arguments[2]);
        }
        Dl_info info;
        if (!dladdr(function, &info))
            return 2;
        puts(info.dli_fname);
        return 0;
    }
"#;

struct Program(PathBuf);

impl Program {
    /// The program, linked with these further options; `None` where there is no compiler or no libibverbs-dev.
    fn build(name: &str, options: &[&str]) -> Option<Self> {
        if !Path::new("/usr/bin/cc").exists() || !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
            eprintln!("left out: it takes gcc, libibverbs-dev and librdmacm-dev");
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loader");
        fs::create_dir_all(&folder).unwrap();
        let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
        fs::write(&source, PROGRAM).unwrap();
        let output = Command::new("cc")
            .args(["-fPIC", "-o"])
            .args([&program, &source])
            .args(options)
            .args(["-Wl,--no-as-needed", "-libverbs", "-lrdmacm", "-ldl"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Self(program))
    }

    /// Whether it takes uroce's library, under `uroce run`.
    fn takes_ours(&self, arguments: &[&str]) -> bool {
        let ours = fs::canonicalize(library()).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_uroce"))
            .args(["run", "--"])
            .arg(&self.0)
            .args(arguments)
            .env_remove("LD_LIBRARY_PATH")
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let taken = String::from_utf8(output.stdout).unwrap();
        fs::canonicalize(taken.trim()).unwrap() == ours
    }
}

/// Where the distribution has its libraries.
fn system_folder() -> String {
    let output = Command::new("cc").args(["-print-file-name=libibverbs.so"]).output().unwrap();
    let file = fs::canonicalize(String::from_utf8(output.stdout).unwrap().trim()).unwrap();
    file.parent().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_linked_program_takes_ours() {
    let Some(program) = Program::build("linked", &[]) else { return };
    assert!(program.takes_ours(&[]));
}

#[test]
fn a_program_with_a_path_of_its_own_takes_ours() {
    for (name, tags) in [("rpath", "--disable-new-dtags"), ("runpath", "--enable-new-dtags")] {
        let path = format!("-Wl,{tags},-rpath,{}", system_folder());
        let Some(program) = Program::build(name, &[&path]) else { return };
        assert!(program.takes_ours(&[]), "{name}");
    }
}

#[test]
fn names_that_are_opened_are_ours() {
    let Some(program) = Program::build("opening", &[]) else { return };
    for (name, function) in [
        ("libibverbs.so.1", "ibv_get_device_list"),
        ("libibverbs.so", "ibv_get_device_list"),
        ("librdmacm.so.1", "rdma_create_id"),
        ("librdmacm.so", "rdma_create_id"),
    ] {
        assert!(program.takes_ours(&[name, function]), "{name}");
    }
}

#[test]
fn files_that_are_opened_by_their_path_are_not() {
    let Some(program) = Program::build("opening-by-path", &[]) else { return };
    let file = format!("{}/libibverbs.so.1", system_folder());
    assert!(!program.takes_ours(&[&file, "ibv_get_device_list"]));
}
