//! What the kernel says of a process that it killed for its memory.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rubelet_host::HostMemoryKills;
use rubelet_ports::MemoryKills;
use rubelet_testbed::Scope;

const LIMIT_BYTES: u64 = 20 << 20;

/// A cgroup with little memory, and its name.
fn little_memory(scope: &Scope) -> (PathBuf, String) {
    let of_version_1 = Path::new("/sys/fs/cgroup/memory");
    let (root, limit, swap) = if of_version_1.is_dir() {
        (
            of_version_1,
            "memory.limit_in_bytes",
            ("memory.memsw.limit_in_bytes", LIMIT_BYTES),
        )
    } else {
        (Path::new("/sys/fs/cgroup"), "memory.max", ("memory.swap.max", 0))
    };
    let name = scope.cgroup_root().trim_start_matches('/').to_owned();
    let cgroup = root.join(&name);
    fs::create_dir(&cgroup).unwrap();
    fs::write(cgroup.join(limit), LIMIT_BYTES.to_string()).unwrap();
    // Only where swap is counted; without the limit the machine's swap would be eaten first.
    if cgroup.join(swap.0).exists() {
        fs::write(cgroup.join(swap.0), swap.1.to_string()).unwrap();
    }
    (cgroup, name)
}

fn run_in(cgroup: &Path, program: &str) -> Option<i32> {
    let script = format!("echo $$ >{}/cgroup.procs; exec {program}", cgroup.display());
    let status = Command::new("sh").args(["-c", &script]).status().unwrap();
    status.signal()
}

#[tokio::test]
async fn who_was_killed_for_its_memory_is_known_at_once() {
    const KILLED: Option<i32> = Some(9);
    let scope = Scope::new("memory-kills").unwrap();
    let (cgroup, name) = little_memory(&scope);
    let kills = HostMemoryKills::new();
    assert_eq!(run_in(&cgroup, "sh -c 'kill -9 $$'"), KILLED);
    assert_eq!(
        kills.was_killed(&name).await,
        Ok(false),
        "somebody else killed it"
    );
    assert_eq!(run_in(&cgroup, "tail /dev/zero"), KILLED);
    assert_eq!(kills.was_killed(&name).await, Ok(true));
    assert_eq!(kills.was_killed("another").await, Ok(false));
    // A reader that is made later learns of it too.
    assert_eq!(HostMemoryKills::new().was_killed(&name).await, Ok(true));
}
