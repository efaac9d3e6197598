//! What the kernel says of a process that it killed for its memory.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures_util::{FutureExt as _, StreamExt as _};
use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::cgroups::Layout;
use rubelet_host::{HostMemoryAlarm, HostMemoryKills, HostOomLog};
use rubelet_ports::{MemoryAlarm, MemoryKills, MemoryMark, OomLog, OomNews};
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
async fn a_new_kill_is_followed_and_names_the_cgroup_that_was_full() {
    let scope = Scope::new("oom-log").unwrap();
    let (cgroup, name) = little_memory(&scope);
    let mut news = HostOomLog::new().follow();
    let newest = loop {
        match news.next().await.unwrap().unwrap() {
            OomNews::UpToDate { newest } => break newest,
            OomNews::Kill(_) => {}
        }
    };
    let killed = tokio::task::spawn_blocking(move || run_in(&cgroup, "tail /dev/zero"));
    // Other tests have kills of their own.
    let kill = loop {
        match news.next().await.unwrap().unwrap() {
            OomNews::Kill(kill) if kill.limited_cgroup.contains(&name) => break kill,
            OomNews::Kill(_) | OomNews::UpToDate { .. } => {}
        }
    };
    assert_eq!(killed.await.unwrap(), Some(9));
    assert_eq!(kill.process, "tail");
    assert!(kill.sequence > newest);
    assert!(!kill.is_of_machine());
}

#[tokio::test]
async fn the_kernel_gives_a_hint_when_a_cgroup_uses_more_than_its_mark() {
    let version = CgroupVersion::of_this_machine().unwrap();
    let alarm = HostMemoryAlarm::new(&Layout::of_this_machine(version).unwrap());
    if version == CgroupVersion::V2 {
        // Stalls of the machine: a trigger is set, and when it rings is the machine's.
        alarm.set(Vec::new()).await.unwrap();
        return;
    }
    let scope = Scope::new("memory-alarm").unwrap();
    let (cgroup, name) = little_memory(&scope);
    let mark = |cgroup: &str| MemoryMark {
        cgroup: cgroup.to_owned(),
        usage_bytes: 10 << 20,
    };
    let missing = alarm
        .set(vec![mark("/rubelet-no-such-cgroup")])
        .await
        .unwrap_err();
    assert!(
        missing.to_string().contains("rubelet-no-such-cgroup"),
        "{missing}"
    );
    alarm.set(vec![mark(&name)]).await.unwrap();
    let rings = alarm.rings();
    let mut rings = std::pin::pin!(rings);
    assert!((&mut rings).now_or_never().is_none(), "nothing is used");
    let killed = tokio::task::spawn_blocking(move || run_in(&cgroup, "tail /dev/zero"));
    rings.await;
    assert_eq!(killed.await.unwrap(), Some(9));
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
