//! Tells the linker the library's name and its version nodes.
//!
//! The nodes stay empty: which symbol belongs to which is said beside the symbol (`src/exports.rs`), and rustc's own
//! version script hides all others. GNU ld refuses two scripts of which one is anonymous; lld takes them. rustc links
//! with lld on x86-64 Linux of itself, elsewhere it is asked for.

use std::{env, fs, path::Path};

/// Every node that a program or provider library of rdma-core may ask for, oldest first within a family.
const NODES: &[(&str, &[&str])] = &[
    (
        "IBVERBS_",
        &[
            "1.0", "1.1", "1.5", "1.6", "1.7", "1.8", "1.9", "1.10", "1.11", "1.12", "1.13", "1.14", "1.15", "1.16",
            "1.17", "1.18",
        ],
    ),
    ("IBVERBS_PRIVATE_", &["22", "25", "33", "34", "57", "59", "64"]),
    ("RDMACM_", &["1.0", "1.1", "1.2", "1.3", "1.4", "1.5"]),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let script = Path::new(&out).join("versions.map");
    let nodes: String = NODES
        .iter()
        .flat_map(|(family, nodes)| nodes.iter().map(move |node| format!("{family}{node} {{}};\n")))
        .collect();
    fs::write(&script, nodes).expect("OUT_DIR is writable");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    }
}
