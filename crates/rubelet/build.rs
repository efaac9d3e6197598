//! What the linker does with the release binary, beside its defaults.
//!
//! Functions whose machine code is the same become one: generic code is full of them. Only the linker that comes with the
//! compiler on x86_64 is asked; elsewhere another one may be in its place that does not know how.

#![allow(
    clippy::disallowed_methods,
    reason = "a build script is configured by variables"
)]

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let is_release = variable("PROFILE") == "release";
    let is_known_linker =
        variable("CARGO_CFG_TARGET_ARCH") == "x86_64" && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    if !is_release || !is_known_linker {
        return;
    }
    println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    // For `cargo xtask size`: what is where in the binary. The folder of the binary is above `build/<package>/out`.
    if let Some(folder) = Path::new(&variable("OUT_DIR")).ancestors().nth(3) {
        let map = folder.join("rubelet.map");
        println!("cargo::rustc-link-arg-bins=-Wl,-Map={}", map.display());
    }
}
