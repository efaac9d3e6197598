//! Which processes are in which cgroup, and moving them.
//!
//! Owns the files of `/proc` and the trees that say it. Which process belongs where was decided elsewhere.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rubelet_ports::{CgroupError, CgroupErrorKind, OwnProcess};
use rustix::io::Errno;

use super::layout::Layout;
use super::tree::{make, write};
use crate::cgroup::CgroupVersion;

const PROCESSES: &str = "cgroup.procs";
/// A process that is just being made is refused for a moment.
const MOVE_ATTEMPTS: usize = 5;
const MOVE_PAUSE: std::time::Duration = std::time::Duration::from_millis(30);

/// This process, by the machine's `/proc`.
pub(super) fn own_process(proc: &Path) -> io::Result<OwnProcess> {
    Ok(OwnProcess {
        id: std::process::id(),
        cgroup: own_cgroup_of(&fs::read_to_string(proc.join("self/cgroup"))?),
        is_among_all_processes: is_in_namespace_of_proc(&fs::read_to_string(proc.join("self/status"))?),
    })
}

/// A process has an id in its own namespace and one in each above, up to that of `/proc`. Comparing the namespace with that of the
/// first process would take the right to trace that.
fn is_in_namespace_of_proc(status: &str) -> bool {
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.is_none_or(|ids| ids.split_whitespace().count() < 2)
}

/// The cgroup that this process is in; `None` where the trees that count do not agree.
#[must_use]
pub fn own_cgroup() -> Option<String> {
    own_cgroup_of(&fs::read_to_string("/proc/self/cgroup").ok()?)
}

/// A line is `<number>:<controllers>:<path>`; version 2 has one line, without controllers. On version 1 systemd's own tree names the
/// unit, also where processor time and memory are not counted for it.
fn own_cgroup_of(text: &str) -> Option<String> {
    let lines: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(':'))
        .collect();
    let of = |controller: &str| {
        let has = |controllers: &str| controllers.split(',').any(|one| one == controller);
        lines
            .iter()
            .find(|(controllers, _)| has(controllers))
            .map(|(_, path)| *path)
    };
    let path = match (of("cpu"), of("memory")) {
        (Some(cpu), Some(memory)) => (cpu == memory).then(|| of("name=systemd").unwrap_or(cpu)),
        (None, None) => of(""),
        (Some(_), None) | (None, Some(_)) => None,
    };
    path.map(str::to_owned)
}

/// The processes directly in the root, without the first one and those of the kernel.
pub(super) fn in_root(layout: &Layout, proc: &Path) -> io::Result<Vec<u32>> {
    let tree = match layout.version {
        CgroupVersion::V1 => layout.of("devices").or_else(|| layout.of("memory")),
        CgroupVersion::V2 => layout.hierarchies.first(),
    };
    let Some(tree) = tree else {
        return Err(io::Error::new(ErrorKind::NotFound, "no hierarchy is mounted"));
    };
    let text = fs::read_to_string(tree.mount.join(PROCESSES))?;
    let processes = text.lines().filter_map(|line| line.trim().parse().ok());
    // Zero stands for a process that is not seen from here.
    Ok(processes
        .filter(|process| *process > 1 && !is_of_kernel(proc, *process))
        .collect())
}

/// The kernel's own processes have no program. Neither have those that have ended, which cannot be moved.
fn is_of_kernel(proc: &Path, process: u32) -> bool {
    let program = fs::read_link(proc.join(process.to_string()).join("exe"));
    program.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Moves all that can be moved; the error is the first one.
pub(super) fn move_into(layout: &Layout, path: &str, processes: &[u32]) -> Result<(), CgroupError> {
    make(layout, path)?;
    let mut first = None;
    for process in processes {
        for place in layout.directories(path) {
            let Err(error) = move_one(&place, *process) else {
                continue;
            };
            first.get_or_insert_with(|| {
                let message = format!("move process {process} into {}: {error}", place.display());
                CgroupError::new(path, CgroupErrorKind::Other, message)
            });
        }
    }
    first.map_or(Ok(()), Err)
}

fn move_one(place: &Path, process: u32) -> io::Result<()> {
    let file = place.join(PROCESSES);
    let mut attempts = 1;
    loop {
        let error = match write(&file, &process.to_string()) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            // It has ended.
            Some(Errno::SRCH) => return Ok(()),
            Some(Errno::INVAL) if attempts < MOVE_ATTEMPTS => std::thread::sleep(MOVE_PAUSE),
            _ => return Err(error),
        }
        attempts += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_process_is_in_one_cgroup_where_the_trees_agree() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(own_cgroup_of(text).as_deref(), expected, "{text:?}");
        };
        check(
            "0::/system.slice/kubelet.service\n",
            Some("/system.slice/kubelet.service"),
        );
        let v1 = "12:memory:/kubelet\n5:cpu,cpuacct:/kubelet\n0::/\n";
        check(v1, Some("/kubelet"));
        check(&v1.replace("cpuacct:/kubelet", "cpuacct:/"), None);
        // Without accounting for units, systemd's tree alone knows the unit.
        check(
            "12:memory:/\n5:cpu,cpuacct:/\n1:name=systemd:/kubelet.service\n",
            Some("/kubelet.service"),
        );
        check("", None);
    }

    /// A machine of version 2 whose root has the processes 0 (unseen), 1, 2 (of the kernel) and 17.
    fn machine() -> (tempfile::TempDir, Layout) {
        let root = tempfile::tempdir().unwrap();
        let cgroups = root.path().join("cgroup");
        for place in [cgroups.clone(), cgroups.join("system")] {
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join(PROCESSES), "").unwrap();
        }
        fs::write(cgroups.join(PROCESSES), "0\n1\n2\n17\n").unwrap();
        for process in ["1", "2", "17", "self"] {
            let directory = root.path().join("proc").join(process);
            fs::create_dir_all(&directory).unwrap();
            if process != "2" {
                symlink("/bin/true", directory.join("exe")).unwrap();
            }
        }
        let layout = Layout::unified(&cgroups, "cpu memory");
        (root, layout)
    }

    #[test]
    fn the_first_process_and_the_kernels_stay_in_the_root() {
        let (root, layout) = machine();
        let proc = root.path().join("proc");
        assert_eq!(in_root(&layout, &proc).unwrap(), [17]);
        move_into(&layout, "/system", &[17]).unwrap();
        let moved = fs::read_to_string(root.path().join("cgroup/system").join(PROCESSES));
        assert_eq!(moved.unwrap(), "17");
        fs::remove_file(root.path().join("cgroup").join(PROCESSES)).unwrap();
        assert!(in_root(&layout, &proc).is_err());
    }

    #[test]
    fn what_cannot_be_moved_is_named() {
        let (_root, layout) = machine();
        // A directory that was made here is no cgroup, and has no list of processes.
        let error = move_into(&layout, "/other", &[17, 18]).unwrap_err();
        assert!(error.message.starts_with("move process 17 into "), "{error}");
    }

    #[test]
    fn a_process_in_a_container_sees_a_part_of_the_processes() {
        let (root, _layout) = machine();
        let proc = root.path().join("proc");
        fs::write(proc.join("self/cgroup"), "0::/a\n").unwrap();
        let check = |status: &str, expected: bool| {
            fs::write(proc.join("self/status"), status).unwrap();
            let own = own_process(&proc).unwrap();
            assert_eq!(own.cgroup.as_deref(), Some("/a"));
            assert_eq!(
                (own.id, own.is_among_all_processes),
                (std::process::id(), expected),
                "{status}"
            );
        };
        check("Name:\trubelet\nNSpid:\t17\n", true);
        check("Name:\trubelet\nNSpid:\t17\t1\n", false);
        check("Name:\trubelet\n", true);
    }
}
