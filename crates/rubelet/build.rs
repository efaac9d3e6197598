//! What the linker does with the release binary, beside its defaults.
//!
//! Functions whose machine code is the same become one: generic code is full of them. Only the linker that comes with the compiler
//! on x86_64 is asked: GNU's linker, which another compiler or configuration may use, does not know how.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a build script is configured by variables, and asks the compiler"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_release = variable("PROFILE") == "release";
    if !is_release || !links_with_compilers_linker() {
        return;
    }
    println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    // For `cargo xtask size`: what is where in the binary. The folder of the binary is above `build/<package>/out`.
    if let Some(folder) = Path::new(&variable("OUT_DIR")).ancestors().nth(3) {
        let map = folder.join("rubelet.map");
        println!("cargo::rustc-link-arg-bins=-Wl,-Map={}", map.display());
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Whether the compiler has a linker of its own, and nothing names another one.
fn links_with_compilers_linker() -> bool {
    let target = variable("TARGET");
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    let is_chosen =
        flags.contains("linker") || flags.contains("link-arg") || !variable("RUSTC_LINKER").is_empty();
    let answer = Command::new(variable("RUSTC"))
        .args(["--print", "sysroot"])
        .output();
    let sysroot = answer.map(|answer| PathBuf::from(String::from_utf8_lossy(&answer.stdout).trim()));
    let linker = sysroot.map(|root| root.join("lib/rustlib").join(&target).join("bin/gcc-ld/ld.lld"));
    target == "x86_64-unknown-linux-gnu" && !is_chosen && linker.is_ok_and(|linker| linker.exists())
}
