//! What the kernel of this machine says, beside what it says to others.

use std::fs;
use std::path::Path;
use std::process::Command;

use rubelet_host::HostSignals;
use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::cgroups::Layout;
use rubelet_ports::NodeSignals;
use rubelet_testbed::Scope;
use rubelet_testbed::cgroup_tree::CgroupTree;
use rubelet_testbed::fuse::{Farewell, SilentFuse};

const MIB: u64 = 1 << 20;

fn signals() -> HostSignals {
    let version = CgroupVersion::of_this_machine().unwrap();
    HostSignals::new(&Layout::of_this_machine(version).unwrap())
}

fn meminfo(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn the_machines_memory_is_what_proc_says() {
    let reading = signals().memory().await.unwrap();
    let total = meminfo("MemTotal:");
    assert_eq!(reading.limit_bytes, Some(total));
    assert!(reading.working_set_bytes() > 0);
    assert!(reading.usage_bytes >= reading.inactive_file_bytes, "{reading:?}");
    // What the kernel has free, or could give up, is at least what is free: others allocate meanwhile, so the bound is wide.
    let used = total - meminfo("MemFree:");
    assert!(
        reading.usage_bytes <= used + total / 4,
        "{reading:?}, {used} in use"
    );
}

#[tokio::test]
async fn a_cgroup_has_its_own_usage_and_limit() {
    let scope = Scope::new("signals-cgroup").unwrap();
    let signals = signals();
    let root = scope.cgroup_root();
    assert_eq!(signals.cgroup_memory(&root).await, Ok(None));
    let tree = CgroupTree::at(root.clone());
    tree.make().unwrap();
    let empty = signals.cgroup_memory(&root).await.unwrap().unwrap();
    assert_eq!((empty.limit_bytes, empty.usage_bytes), (None, 0));
    let memory = Path::new("/sys/fs/cgroup/memory").join(root.trim_start_matches('/'));
    fs::write(memory.join("memory.limit_in_bytes"), (64 * MIB).to_string()).unwrap();
    let limited = signals.cgroup_memory(&root).await.unwrap().unwrap();
    assert_eq!(limited.limit_bytes, Some(64 * MIB));
    // Pages of a tmpfs count for the cgroup that writes them.
    let mount = scope.path("memory");
    fs::create_dir(&mount).unwrap();
    mount_tmpfs(&scope, &mount, "size=32m");
    let script = format!(
        "echo $$ > {}/cgroup.procs && head -c 16777216 /dev/zero > {}/full",
        memory.display(),
        mount.display()
    );
    assert!(
        Command::new("sh")
            .arg("-c")
            .arg(script)
            .status()
            .unwrap()
            .success()
    );
    let used = signals.cgroup_memory(&root).await.unwrap().unwrap();
    assert!((16 * MIB..32 * MIB).contains(&used.usage_bytes), "{used:?}");
    assert!(used.working_set_bytes() >= 16 * MIB, "{used:?}");
}

fn mount_tmpfs(scope: &Scope, mount: &Path, options: &str) {
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(mount);
    assert!(command.status().unwrap().success());
    let mounted = mount.to_owned();
    scope.defer("the tmpfs of a test", move || {
        let _ = Command::new("umount").arg(mounted).status();
    });
}

#[tokio::test]
async fn a_filesystem_is_what_is_left_of_it() {
    let scope = Scope::new("signals-filesystem").unwrap();
    let mount = scope.path("disk");
    fs::create_dir(&mount).unwrap();
    mount_tmpfs(&scope, &mount, "size=8m,nr_inodes=100");
    let signals = signals();
    let empty = signals.filesystem(&mount).await.unwrap();
    assert_eq!((empty.capacity_bytes, empty.available_bytes), (8 * MIB, 8 * MIB));
    assert_eq!((empty.inodes, empty.inodes_free), (100, 99), "the root is one");
    fs::write(mount.join("a"), vec![1; 3 << 20]).unwrap();
    let used = signals.filesystem(&mount).await.unwrap();
    assert_eq!((used.available_bytes, used.inodes_free), (5 * MIB, 98));
    assert_eq!(used.device, empty.device);
    assert_ne!(used.device, signals.filesystem(scope.dir()).await.unwrap().device);
    let root = signals.filesystem(Path::new("/")).await.unwrap();
    let facts = rustix::fs::statvfs("/").unwrap();
    assert_eq!(root.capacity_bytes, facts.f_blocks * facts.f_frsize);
    assert_eq!(root.inodes, facts.f_files);
    let missing = signals.filesystem(Path::new("/no/such/place")).await.unwrap_err();
    assert!(missing.to_string().starts_with("/no/such/place: "), "{missing}");
}

#[tokio::test]
async fn a_dead_filesystem_costs_its_own_reading_only() {
    let scope = Scope::new("signals-dead").unwrap();
    let signals = signals();
    let fuse = SilentFuse::mount(&scope.path("dead"), Farewell::None).unwrap();
    fuse.fall_silent();
    let (dead, alive, memory) = tokio::join!(
        signals.filesystem(fuse.mount_point()),
        signals.filesystem(Path::new("/")),
        signals.memory()
    );
    assert!(dead.unwrap_err().to_string().contains("no answer within"));
    assert!(alive.is_ok() && memory.is_ok());
    let again = signals.filesystem(fuse.mount_point()).await.unwrap_err();
    assert!(again.to_string().ends_with("still hangs"), "{again}");
}

#[tokio::test]
async fn processes_are_counted_with_their_threads() {
    let reading = signals().processes().await.unwrap();
    let limit = |name: &str| -> u64 {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap();
        text.trim().parse().unwrap()
    };
    assert_eq!(reading.most, limit("pid_max").min(limit("threads-max")));
    let own = fs::read_dir("/proc/self/task").unwrap().count() as u64;
    assert!(
        reading.running > own && reading.running < reading.most,
        "{reading:?}"
    );
}
