//! Programs of this machine's Debian packages in images.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Layer;

/// A program of this machine with the shared libraries that it loads, at the paths where it finds them.
pub fn with_debian_program(layer: Layer, path: &str, program: &Path, mode: u32) -> Result<Layer> {
    if !program.exists() {
        bail!(
            "{} is missing: install its Debian package (make testbed does)",
            program.display()
        );
    }
    let mut layer = layer.host_file(path, &fs::canonicalize(program)?, mode);
    for library in libraries(program)? {
        let real = fs::canonicalize(&library).with_context(|| format!("find {}", library.display()))?;
        layer = layer.host_file(&library.display().to_string(), &real, 0o755);
    }
    Ok(layer)
}

/// The libraries and the loader of a dynamic program, as `ldd` finds them.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("run ldd")?;
    if !output.status.success() {
        bail!(
            "ldd {}: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(libraries_in(&String::from_utf8_lossy(&output.stdout)))
}

fn libraries_in(listing: &str) -> BTreeSet<PathBuf> {
    let words = listing.lines().filter_map(|line| {
        let found = line.split_once("=>").map_or(line, |(_, found)| found);
        found.split_whitespace().next()
    });
    words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_a_listing() {
        let listing = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected: BTreeSet<PathBuf> = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]
            .map(PathBuf::from)
            .into();
        assert_eq!(libraries_in(listing), expected);
    }
}
