//! Where the test bed keeps what is expensive to make: outside the checkout, keyed by version, made once.
//!
//! Makers hold a file lock, so that tests that run side by side build a thing once; what is half-made is never seen, because
//! it is renamed into place.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

/// `$RUBELET_TESTBED_CACHE`, or `rubelet-testbed` in the user's cache directory.
pub fn cache_root() -> PathBuf {
    if let Some(dir) = std::env::var_os("RUBELET_TESTBED_CACHE") {
        return dir.into();
    }
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache");
    base.unwrap_or_else(home).join("rubelet-testbed")
}

/// The path `<cache>/<key>/<name>`, made by `make` if it does not exist. `make` gets a path to create (file or directory) that
/// is renamed to the final one when it succeeds. One progress line goes to standard error.
pub fn made_once(key: &str, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let dir = cache_root().join(key);
    let path = dir.join(name);
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let lock = File::create(dir.join(format!("{name}.lock"))).context("create a lock in the cache")?;
    flock(&lock, FlockOperation::LockExclusive).context("wait for another maker")?;
    if path.exists() {
        return Ok(path);
    }
    let partial = dir.join(format!("{name}.partial"));
    remove(&partial);
    eprintln!("test bed: making {key}/{name} …");
    let start = Instant::now();
    make(&partial).with_context(|| format!("make {key}/{name}"))?;
    fs::rename(&partial, &path).with_context(|| format!("put {} into place", path.display()))?;
    eprintln!("test bed: made {key}/{name} in {} s", start.elapsed().as_secs());
    Ok(path)
}

fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir_all(path);
}
