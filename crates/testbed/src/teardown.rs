//! Ends everything that belongs to one scope, found by the scope's directory and id alone, so that it works for a scope whose
//! owner was killed as well: processes, mounts, network namespaces, links, what runtimes keep elsewhere, cgroups, and last
//! the directory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::runtime_traces;
use crate::scope::LOCK_FILE;

const DEADLINE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// Removes every trace of the scope, or says what would not go.
pub(crate) fn tear_down(dir: &Path, id: &str) -> Result<()> {
    kill_processes(dir, id)?;
    unmount_below(dir)?;
    remove_namespaces(id);
    remove_links(id);
    runtime_traces::remove(dir, id)?;
    remove_cgroups(id)?;
    remove_directory(dir)
}

/// One line for everything that the scope has on this machine at the moment, but for files in its directory.
pub(crate) fn traces(dir: &Path, id: &str) -> Vec<String> {
    let pids = processes_of(dir, id);
    let processes = pids.into_iter().map(|pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        format!(
            "process {pid} {}",
            String::from_utf8_lossy(&words).replace('\0', " ")
        )
    });
    let mounts = mounts_below(dir)
        .unwrap_or_default()
        .into_iter()
        .map(|point| format!("mount {}", point.display()));
    let namespaces = namespaces_of(id)
        .into_iter()
        .map(|path| format!("namespace {}", path.display()));
    let links = links_of(id).into_iter().map(|name| format!("link {name}"));
    let cgroups = cgroup_roots(id)
        .into_iter()
        .map(|root| format!("cgroup {}", root.display()));
    let directory = dir.exists().then(|| format!("directory {}", dir.display()));
    let elsewhere = runtime_traces::list(dir, id);
    processes
        .chain(mounts)
        .chain(namespaces)
        .chain(links)
        .chain(cgroups)
        .chain(directory)
        .chain(elsewhere)
        .collect()
}

fn kill_processes(dir: &Path, id: &str) -> Result<()> {
    let end = Instant::now() + DEADLINE;
    loop {
        let pids = processes_of(dir, id);
        if pids.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("processes {pids:?} do not end");
        }
        for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(POLL);
    }
}

/// Processes that were started with the scope's directory on their command line or in their environment, run in it, have
/// their root file system on an overlay of it, or sit in one of its cgroups.
fn processes_of(dir: &Path, id: &str) -> BTreeSet<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let mut pids = BTreeSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        if pid != own && is_alive(&entry.path()) && belongs_to(&entry.path(), dir, id) {
            pids.insert(pid);
        }
    }
    pids
}

fn is_alive(proc_dir: &Path) -> bool {
    let stat = fs::read_to_string(proc_dir.join("stat")).unwrap_or_default();
    // The state follows the command, which may itself hold blanks and parentheses.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

fn belongs_to(proc_dir: &Path, dir: &Path, id: &str) -> bool {
    let needle = format!("{}/", dir.display());
    let mentions = |file: &str| {
        fs::read(proc_dir.join(file)).is_ok_and(|bytes| {
            String::from_utf8_lossy(&bytes)
                .replace('\0', " ")
                .contains(&needle)
        })
    };
    let cgroup_name = format!("/rubelet-test-{id}");
    mentions("cmdline")
        || mentions("environ")
        || ["cwd", "exe"]
            .iter()
            .any(|link| fs::read_link(proc_dir.join(link)).is_ok_and(|path| path.starts_with(dir)))
        || fs::read_to_string(proc_dir.join("cgroup")).is_ok_and(|cgroups| cgroups.contains(&cgroup_name))
        || root_mount(proc_dir).is_some_and(|mount| mount.contains(&needle))
}

fn root_mount(proc_dir: &Path) -> Option<String> {
    let mounts = fs::read_to_string(proc_dir.join("mountinfo")).ok()?;
    mounts
        .lines()
        .find(|line| line.split(' ').nth(4) == Some("/"))
        .map(str::to_owned)
}

fn unmount_below(dir: &Path) -> Result<()> {
    // Twice: what was hidden under a mount shows only when that one is gone.
    for _ in 0..2 {
        for mount_point in mounts_below(dir)?.into_iter().rev() {
            let _ = unmount(&mount_point, UnmountFlags::DETACH);
        }
    }
    let left = mounts_below(dir)?;
    if !left.is_empty() {
        bail!("mounts {left:?} do not go");
    }
    Ok(())
}

fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("read mountinfo")?;
    Ok(mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| PathBuf::from(point.replace("\\040", " ")))
        .filter(|point| point.starts_with(dir))
        .collect())
}

fn remove_namespaces(id: &str) {
    for path in namespaces_of(id) {
        let _ = unmount(&path, UnmountFlags::DETACH);
        let _ = fs::remove_file(&path);
    }
}

/// Names made by the test carry the scope's id; those made by containerd are mounts below the scope's directory.
fn namespaces_of(id: &str) -> Vec<PathBuf> {
    entries("/run/netns")
        .into_iter()
        .filter(|path| name_of(path).contains(id))
        .collect()
}

fn remove_links(id: &str) {
    for name in links_of(id) {
        let _ = Command::new("ip")
            .args(["link", "delete", &name])
            .stderr(Stdio::null())
            .status();
    }
}

/// Links with the id in their name, each after the ports that it has as a bridge: a port's other end is in a namespace that
/// may take its time to go.
fn links_of(id: &str) -> Vec<String> {
    let mut names = Vec::new();
    for link in entries("/sys/class/net")
        .into_iter()
        .filter(|path| name_of(path).contains(id))
    {
        names.extend(entries(link.join("brif")).iter().map(|port| name_of(port)));
        names.push(name_of(&link));
    }
    names
}

fn remove_cgroups(id: &str) -> Result<()> {
    let end = Instant::now() + DEADLINE;
    for root in cgroup_roots(id) {
        while root.exists() {
            remove_cgroup_tree(&root);
            if Instant::now() > end {
                bail!("cgroup {} does not go", root.display());
            }
            if root.exists() {
                std::thread::sleep(POLL);
            }
        }
    }
    Ok(())
}

/// The scope's cgroup in every hierarchy of version 1, and in version 2's one.
fn cgroup_roots(id: &str) -> Vec<PathBuf> {
    let name = format!("rubelet-test-{id}");
    let mut roots: Vec<PathBuf> = entries("/sys/fs/cgroup")
        .iter()
        .map(|hierarchy| hierarchy.join(&name))
        .collect();
    roots.push(Path::new("/sys/fs/cgroup").join(name));
    roots.retain(|root| root.exists());
    roots
}

pub(crate) fn entries(dir: impl AsRef<Path>) -> Vec<PathBuf> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

pub(crate) fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn remove_cgroup_tree(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}

fn remove_directory(dir: &Path) -> Result<()> {
    let end = Instant::now() + DEADLINE;
    loop {
        match remove_all_and_the_lock_last(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            // A process that was just killed may still be writing its last file.
            Err(_) if Instant::now() < end => std::thread::sleep(POLL),
            Err(error) => return Err(error).with_context(|| format!("remove {}", dir.display())),
        }
    }
}

/// As long as the lock is there, a teardown that is cut short can be done again.
fn remove_all_and_the_lock_last(dir: &Path) -> std::io::Result<()> {
    for path in entries(dir).into_iter().filter(|path| name_of(path) != LOCK_FILE) {
        if path.symlink_metadata()?.is_dir() {
            fs::remove_dir_all(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
    }
    fs::remove_dir_all(dir)
}
