//! Removing a cgroup with everything that still runs in it.
//!
//! Owns the killing of leftovers. A process is killed only after its handle was opened and it was seen in the cgroup again, so
//! that a process id that the kernel reused meanwhile is never hit.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rubelet_ports::{CgroupError, CgroupErrorKind};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::layout::{Layout, directory};
use super::tree::write;

/// Killed processes take a moment to exit. The caller retries what takes longer.
const PATIENCE: Duration = Duration::from_millis(700);
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How many numbers an error names.
const NAMED_PROCESSES: usize = 5;

pub(super) fn remove(layout: &Layout, path: &str) -> Result<(), CgroupError> {
    let mut left: Vec<PathBuf> = layout.directories(path).collect();
    let mut last = String::new();
    remove_trees(&mut left, &mut last);
    if left.is_empty() {
        return Ok(());
    }
    let end = Instant::now() + PATIENCE;
    let mut pause = FIRST_PAUSE;
    // A fork bomb would outrun the killing.
    limit_processes(layout, path, "0");
    loop {
        kill_all(&left);
        remove_trees(&mut left, &mut last);
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= end {
            // The removal failed: the next owner of this cgroup must be able to start processes.
            limit_processes(layout, path, "max");
            return Err(CgroupError::new(
                path,
                CgroupErrorKind::Busy,
                still_there(&left, &last),
            ));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn limit_processes(layout: &Layout, path: &str, limit: &str) {
    if let Some(hierarchy) = layout.of("pids") {
        // Where it is gone already there is nothing to limit.
        let _ = write(&directory(&hierarchy.mount, path).join("pids.max"), limit);
    }
}

/// Removes the trees that can go and keeps the others.
fn remove_trees(left: &mut Vec<PathBuf>, last: &mut String) {
    left.retain(|tree| match remove_tree(tree) {
        Ok(()) => false,
        Err(error) => {
            *last = error.to_string();
            true
        }
    });
}

/// Children first. Only directories are removed: the kernel's files go with them. It does not recurse: a container may have
/// made a tree that is deeper than the stack of this thread.
fn remove_tree(tree: &Path) -> io::Result<()> {
    let mut open = vec![(tree.to_owned(), false)];
    while let Some((directory, is_listed)) = open.pop() {
        match remove_directory(&directory) {
            Ok(()) => {}
            // Its children are gone, so that something else holds it.
            Err(error) if is_listed => return Err(error),
            Err(_) => {
                let children = children(&directory)?;
                open.push((directory, true));
                open.extend(children.into_iter().map(|child| (child, false)));
            }
        }
    }
    Ok(())
}

fn remove_directory(directory: &Path) -> io::Result<()> {
    match rustix::fs::rmdir(directory) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(io::Error::from(error)),
    }
}

pub(super) fn children(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn kill_all(trees: &[PathBuf]) {
    // Version 2 kills a whole tree by itself.
    if trees
        .iter()
        .all(|tree| write(&tree.join("cgroup.kill"), "1").is_ok())
    {
        return;
    }
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let handles: Vec<(i32, _)> = processes(trees)
        .into_iter()
        .filter(|pid| *pid > 1 && *pid != own)
        .filter_map(|pid| {
            let handle = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
            Some((pid, handle))
        })
        .collect();
    let still = processes(trees);
    for (pid, handle) in handles {
        if still.contains(&pid) {
            // One that has ended meanwhile is what was wanted.
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
}

fn processes(trees: &[PathBuf]) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut open: Vec<PathBuf> = trees.to_vec();
    while let Some(tree) = open.pop() {
        let text = fs::read_to_string(tree.join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| line.trim().parse::<i32>().ok()));
        open.extend(children(&tree).unwrap_or_default());
    }
    found
}

fn still_there(left: &[PathBuf], last: &str) -> String {
    let processes = processes(left);
    if processes.is_empty() {
        let names: Vec<String> = left.iter().map(|tree| tree.display().to_string()).collect();
        return format!("cannot be removed ({last}): {}", names.join(", "));
    }
    let named: Vec<String> = processes
        .iter()
        .take(NAMED_PROCESSES)
        .map(ToString::to_string)
        .collect();
    let rest = if processes.len() > NAMED_PROCESSES {
        ", …"
    } else {
        ""
    };
    format!(
        "{} processes in it do not end: {}{rest}",
        processes.len(),
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deep_tree_needs_no_deep_stack() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("pod");
        let deepest = (0..1500).fold(top.clone(), |path, _| path.join("c"));
        fs::create_dir_all(deepest.join("d")).unwrap();
        fs::create_dir(top.join("e")).unwrap();
        let small = std::thread::Builder::new().stack_size(64 << 10);
        let tree = top.clone();
        let removed = small.spawn(move || remove_tree(&tree)).unwrap().join();
        removed.unwrap().unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn what_holds_a_tree_is_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("pod");
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/file"), "").unwrap();
        let error = remove_tree(&top).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::DirectoryNotEmpty);
        assert!(!top.join("a/b").exists());
    }
}
