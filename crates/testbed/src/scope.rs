//! A scope owns everything one test makes: a directory, ports, processes, mounts, network and cgroup names.
//!
//! Dropping a scope tears all of it down, also when the test panics. When the test process is killed instead, its lock on the
//! scope's directory goes with it, and the next scope that anybody creates sweeps what is left. Nothing here touches a
//! directory whose lock is held, so tests run side by side.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{MountFlags, mount};

use crate::process::{Process, spawn};
use crate::teardown;

/// Short, because a unix socket's path may have 107 bytes.
const BASE_DIR: &str = "/tmp/rubelet-test";
pub(crate) const LOCK_FILE: &str = "scope.lock";
/// Below the kernel's ephemeral range, so that no outgoing connection takes a port between its choice and its use.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

type Cleanup = Box<dyn FnOnce() + Send>;

/// What one test owns. See the module's documentation.
pub struct Scope {
    test: String,
    id: String,
    dir: PathBuf,
    _lock: File,
    claims: Mutex<Vec<File>>,
    cleanups: Mutex<Vec<(String, Cleanup)>>,
}

impl Scope {
    /// Creates a scope, after sweeping what killed tests left behind (once per process).
    pub fn new(test: &str) -> Result<Self> {
        Self::make(test, |_| Ok(()))
    }

    /// A scope whose directory is a file system in memory: for measurements, which a disk's history must not disturb.
    pub fn in_memory(test: &str) -> Result<Self> {
        Self::make(test, |dir| {
            mount("tmpfs", dir, "tmpfs", MountFlags::empty(), Some(c"mode=755"))
                .context("mount a file system in memory")
        })
    }

    fn make(test: &str, prepare: impl Fn(&Path) -> Result<()>) -> Result<Self> {
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep_leftovers);
        fs::create_dir_all(BASE_DIR).context("create the test base directory")?;
        loop {
            let id = unique_id();
            let dir = Path::new(BASE_DIR).join(&id);
            match fs::create_dir(&dir) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made.context("create the scope's directory")?,
            }
            match prepare(&dir) {
                // Another process's sweep took the directory for debris.
                Err(_) if !dir.exists() => continue,
                prepared => prepared?,
            }
            let lock = match File::create(dir.join(LOCK_FILE)) {
                // Another process's sweep took the directory for debris.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                made => made.context("create the scope's lock")?,
            };
            // A sweep of another process may see the directory before the lock is held and remove it: start over then.
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err()
                || !dir.join(LOCK_FILE).exists()
            {
                continue;
            }
            fs::create_dir(dir.join("logs")).context("create the scope's log directory")?;
            return Ok(Self {
                test: test.to_owned(),
                id,
                dir,
                _lock: lock,
                claims: Mutex::default(),
                cleanups: Mutex::default(),
            });
        }
    }

    /// The test's name, for messages.
    pub fn test(&self) -> &str {
        &self.test
    }

    /// Eight characters that no other live scope has: for interface, namespace and cgroup names.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The scope's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path below the scope's directory; its parent directories exist.
    pub fn path(&self, relative: &str) -> PathBuf {
        let path = self.dir.join(relative);
        if let Some(parent) = path.parent() {
            // An unwritable scope shows at once when the path is used.
            let _ = fs::create_dir_all(parent);
        }
        path
    }

    /// The cgroup (below every hierarchy's root) that the test's pods belong under.
    pub fn cgroup_root(&self) -> String {
        format!("/rubelet-test-{}", self.id)
    }

    /// A loopback port that no other scope on this machine gets while this one lives.
    pub fn port(&self) -> Result<u16> {
        // Different processes start at different places, so that they rarely meet.
        let span = PORTS.end - PORTS.start;
        let start = u16::try_from(std::process::id() % u32::from(span)).unwrap_or(0);
        for step in 0..span {
            let port = PORTS.start + (start + step) % span;
            // The claim comes first: a port that is tried here must not be one that another test is about to serve on.
            if self.claim(&port.to_string())? && TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return Ok(port);
            }
        }
        bail!("no free port between {} and {}", PORTS.start, PORTS.end)
    }

    /// Takes a machine-wide name (of a port, a subnet, …) for as long as this scope lives; false if another scope has it.
    pub(crate) fn claim(&self, name: &str) -> Result<bool> {
        let lock_dir = Path::new(BASE_DIR).join("ports");
        fs::create_dir_all(&lock_dir).context("create the directory of claims")?;
        let lock = File::create(lock_dir.join(name)).context("create a claim's lock")?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(false);
        }
        self.claims
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(lock);
        Ok(true)
    }

    /// Starts a program in a process group of its own that dies with this process; its output goes to `logs/<name>.log`.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process> {
        spawn(name, command, &self.dir.join("logs").join(format!("{name}.log")))
    }

    /// What the scope has on this machine at the moment, a line each: processes, mounts, namespaces, links, cgroups, ….
    pub fn traces(&self) -> Vec<String> {
        teardown::traces(&self.dir, &self.id)
    }

    /// Registers what to undo at the end; the last registered runs first.
    pub fn defer(&self, what: &str, cleanup: impl FnOnce() + Send + 'static) {
        let mut cleanups = self.cleanups.lock().unwrap_or_else(PoisonError::into_inner);
        cleanups.push((what.to_owned(), Box::new(cleanup)));
    }

    fn keep_logs_of_failure(&self) {
        let target = crate::workspace_root()
            .join("_artifacts/tests")
            .join(format!("{}-{}", self.test, self.id));
        eprintln!("test {} failed; its logs are in {}", self.test, target.display());
        let _ = fs::create_dir_all(&target);
        for entry in fs::read_dir(self.dir.join("logs"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let _ = fs::copy(entry.path(), target.join(entry.file_name()));
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.keep_logs_of_failure();
        }
        let cleanups = std::mem::take(&mut *self.cleanups.lock().unwrap_or_else(PoisonError::into_inner));
        for (_, cleanup) in cleanups.into_iter().rev() {
            cleanup();
        }
        if let Err(problem) = teardown::tear_down(&self.dir, &self.id) {
            eprintln!("scope {} of test {}: {problem:#}", self.id, self.test);
            // A leak is a failure of the test, unless it is failing already.
            assert!(
                std::thread::panicking(),
                "test {} left something behind: {problem:#}",
                self.test
            );
        }
    }
}

/// The traces of a scope that may be gone, by its directory (see [`Scope::traces`]).
pub fn traces_of(dir: &Path) -> Vec<String> {
    teardown::traces(
        dir,
        dir.file_name().and_then(|name| name.to_str()).unwrap_or_default(),
    )
}

/// Tears down every scope whose owner is gone. Returns how many there were.
pub fn sweep() -> usize {
    let mut swept = 0;
    for entry in fs::read_dir(BASE_DIR).into_iter().flatten().flatten() {
        let dir = entry.path();
        let Some(id) = dir
            .file_name()
            .and_then(|name| name.to_str())
            .filter(|name| *name != "ports")
        else {
            continue;
        };
        let Some(_lock) = lock_abandoned(&dir) else {
            continue;
        };
        match teardown::tear_down(&dir, id) {
            Ok(()) => swept += 1,
            Err(problem) => eprintln!("leftover scope {id}: {problem:#}"),
        }
    }
    swept
}

/// The lock of a scope that nobody owns any more. It is the first thing in a scope's directory and the last to go.
fn lock_abandoned(dir: &Path) -> Option<File> {
    // An empty directory is a scope being born, which then starts over, or debris of one killed at birth.
    if fs::remove_dir(dir).is_ok() {
        return None;
    }
    // Created if need be: the rest of a teardown that was killed itself.
    let lock = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join(LOCK_FILE))
        .ok()?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(lock)
}

fn sweep_leftovers() {
    let swept = sweep();
    if swept > 0 {
        eprintln!("test bed: cleaned up after {swept} test(s) that were killed");
    }
}

fn unique_id() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    let mut mixed = nanos
        ^ (u64::from(std::process::id()) << 40)
        ^ u64::from(NEXT.fetch_add(1, Ordering::Relaxed)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 29;
    (0..8)
        .map(|_| {
            let digit = (mixed % 36) as u32;
            mixed /= 36;
            char::from_digit(digit, 36).unwrap_or('0')
        })
        .collect()
}
