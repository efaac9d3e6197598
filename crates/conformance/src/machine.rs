//! What a run takes of the machine itself, because the suite fixes it: ports, the kubelet's root directory, cgroups and log
//! directories. One run at a time; everything that was not there before is gone afterwards, and what a killed run left is
//! found by a mark in the kubelet's directory and cleaned by the next one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};

use rubelet_testbed::wait::wait_for;

const KUBELET_DIR: &str = "/var/lib/kubelet";
const MARK: &str = "/var/lib/kubelet/.rubelet-conformance";
const MARK_END: &str = "was there before";
/// Of the kubelet (health, API, read-only API) and of the suite's API server.
const PORTS: [u16; 4] = [10248, 10250, 10255, 6443];
/// Cgroups that the suite tells the kubelet to use, below every hierarchy's root.
const CGROUPS: [&str; 4] = ["kubepods", "kubelet", "system", "docker-daemon"];
const LOG_DIRS: [&str; 2] = ["/var/log/pods", "/var/log/containers"];
/// Made by the kubelet when it looks for volume plug-ins.
const PLUGIN_DIR: &str = "/usr/libexec/kubernetes";
const CLEANUP_DEADLINE: Duration = Duration::from_secs(30);

/// The right to run the suite on this machine. Dropping it cleans up, so everything that the run started must be dead by then.
pub(super) struct Machine {
    mark: File,
}

impl Machine {
    /// Takes the machine, after cleaning what a killed run left, or says what is in the way.
    pub(super) fn take() -> Result<Self> {
        if Path::new(MARK).exists() {
            clean_after_killed_run()?;
        }
        for port in PORTS {
            if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_err() {
                bail!("port {port} is taken; the suite needs it: stop the other kubelet, API server or run");
            }
        }
        let mut existing = traces();
        if Path::new(KUBELET_DIR).exists() {
            if holds_state()? {
                bail!(
                    "{KUBELET_DIR} holds the state of another kubelet; the suite would use it: move it away"
                );
            }
            existing.insert(KUBELET_DIR.into());
        }
        fs::create_dir_all(KUBELET_DIR).with_context(|| format!("create {KUBELET_DIR}"))?;
        let mut mark = lock_mark()?;
        let lines: Vec<String> = existing.iter().map(|path| path.display().to_string()).collect();
        write!(mark, "{}\n{MARK_END}", lines.join("\n")).context("write the mark")?;
        Ok(Self { mark })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut before = String::new();
        let cleaned = self
            .mark
            .rewind()
            .and_then(|()| self.mark.read_to_string(&mut before));
        if let Err(problem) = cleaned
            .context("read the mark")
            .and_then(|_| clean(&paths(&before)))
        {
            eprintln!("conformance: not all is cleaned up: {problem:#}");
        }
    }
}

fn clean_after_killed_run() -> Result<()> {
    let mut mark = lock_mark()?;
    let mut before = String::new();
    mark.read_to_string(&mut before)
        .context("read the mark of an earlier run")?;
    if !before.ends_with(MARK_END) {
        // Killed before it began: what was there before is unknown, and nothing has come since.
        return remove(Path::new(MARK));
    }
    eprintln!("conformance: cleaning up after a run that was killed");
    clean(&paths(&before))
}

/// Upstream's kubelet puts its socket for device plug-ins here even when its root is elsewhere; that alone is no state.
fn holds_state() -> Result<bool> {
    let mut entries = fs::read_dir(KUBELET_DIR).with_context(|| format!("list {KUBELET_DIR}"))?;
    Ok(entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "device-plugins")))
}

fn lock_mark() -> Result<File> {
    let mark = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(MARK)
        .context("mark the kubelet's directory")?;
    if flock(&mark, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("another conformance run is under way on this machine");
    }
    Ok(mark)
}

fn paths(mark: &str) -> BTreeSet<PathBuf> {
    mark.lines()
        .filter(|line| line.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// Everything that is there now and that a run would leave behind.
fn traces() -> BTreeSet<PathBuf> {
    let mut found = cgroups();
    for dir in LOG_DIRS {
        found.extend(
            fs::read_dir(dir)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path()),
        );
        found.insert(dir.into());
    }
    found.insert(PLUGIN_DIR.into());
    found.retain(|path| fs::symlink_metadata(path).is_ok());
    found
}

fn cgroups() -> BTreeSet<PathBuf> {
    let mut roots = vec![PathBuf::from("/sys/fs/cgroup")];
    roots.extend(
        fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path()),
    );
    let candidates = roots.iter().flat_map(|root| CGROUPS.map(|name| root.join(name)));
    candidates
        .filter(|path| path.join("cgroup.procs").exists())
        .collect()
}

fn clean(existed_before: &BTreeSet<PathBuf>) -> Result<()> {
    unmount_below(Path::new(KUBELET_DIR))?;
    for path in traces().difference(existed_before) {
        if path.starts_with("/sys/fs/cgroup") {
            remove_cgroup(path)?;
        } else {
            remove(path)?;
        }
    }
    if !existed_before.contains(Path::new(KUBELET_DIR)) {
        return remove(Path::new(KUBELET_DIR));
    }
    for entry in fs::read_dir(KUBELET_DIR)? {
        remove(&entry?.path())?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    let is_dir = fs::symlink_metadata(path).is_ok_and(|about| about.is_dir());
    let removed = if is_dir {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Processes in it go back to the root: the kubelet puts foreign ones into the `system` cgroup if it is told to.
fn remove_cgroup(cgroup: &Path) -> Result<()> {
    let root = cgroup.parent().context("a cgroup without a hierarchy")?;
    wait_for(
        &format!("cgroup {} goes", cgroup.display()),
        CLEANUP_DEADLINE,
        || {
            remove_cgroup_tree(cgroup, root);
            if cgroup.exists() {
                bail!("it is still there")
            } else {
                Ok(())
            }
        },
    )
}

fn remove_cgroup_tree(cgroup: &Path, root: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup_tree(&entry.path(), root);
        }
    }
    for pid in fs::read_to_string(cgroup.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
    {
        // Failing here shows as a cgroup that does not go.
        let _ = fs::write(root.join("cgroup.procs"), pid);
    }
    let _ = fs::remove_dir(cgroup);
}

fn unmount_below(dir: &Path) -> Result<()> {
    // What was hidden under a mount shows only when that one is gone, hence more than once.
    wait_for(
        &format!("mounts below {} go", dir.display()),
        CLEANUP_DEADLINE,
        || {
            let mounts = mounts_below(dir)?;
            for point in mounts.iter().rev() {
                let _ = unmount(point, UnmountFlags::DETACH);
            }
            if mounts.is_empty() {
                Ok(())
            } else {
                bail!("{mounts:?}")
            }
        },
    )
}

fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("read mountinfo")?;
    let points = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| PathBuf::from(point.replace("\\040", " ")));
    Ok(points.filter(|point| point.starts_with(dir)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_tells_what_was_there_before() {
        let check = |mark: &str, expected: &[&str]| {
            assert_eq!(
                paths(mark),
                expected.iter().map(PathBuf::from).collect::<BTreeSet<_>>(),
                "{mark}"
            );
        };
        check("", &[]);
        check(
            "/var/log/pods\n/var/lib/kubelet",
            &["/var/lib/kubelet", "/var/log/pods"],
        );
    }
}
