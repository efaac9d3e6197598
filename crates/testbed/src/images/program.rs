//! The test server's program: built once per version of its source, statically linked, so that it runs in an empty image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::cache::made_once;
use crate::workspace_root;

const PACKAGE: &str = "rubelet-testserver";

/// The program's path; builds it if this machine has not built this source yet.
pub fn test_server_program() -> Result<PathBuf> {
    let name = format!("server-{}", &source_hash()?[..16]);
    made_once("testserver", &name, build)
}

fn source_dir() -> PathBuf {
    workspace_root().join("crates/testserver")
}

/// Everything that decides about the program but the versions of its dependencies, which it does not show.
fn source_hash() -> Result<String> {
    let mut files = vec![source_dir().join("Cargo.toml")];
    let mut directories = vec![source_dir().join("src")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).with_context(|| format!("list {}", directory.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(fs::read(&file).with_context(|| format!("read {}", file.display()))?);
    }
    Ok(super::hex(&hash.finalize()))
}

fn build(out: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(source_dir())
        .args([
            "rustc",
            "--package",
            PACKAGE,
            "--bin",
            PACKAGE,
            "--message-format=json-render-diagnostics",
        ])
        .args([
            "--",
            "-Ctarget-feature=+crt-static",
            "-Cstrip=symbols",
            "-Cdebuginfo=0",
        ])
        .output()
        .context("run cargo")?;
    if !output.status.success() {
        bail!("build {PACKAGE}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let executable = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back()
        .context("cargo told of no program")?;
    fs::copy(&executable, out).with_context(|| format!("copy {}", executable.display()))?;
    Ok(())
}
