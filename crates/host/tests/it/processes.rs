//! Moving processes between the machine's cgroups.

use std::fs;
use std::process::{Child, Command};

use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::cgroups::{HostCgroups, Layout};
use rubelet_ports::{ProcessCgroupReader, ProcessCgroupWriter};
use rubelet_testbed::Scope;

/// Ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.end();
    }
}

fn cgroups() -> HostCgroups {
    let version = CgroupVersion::of_this_machine().unwrap();
    HostCgroups::new(Layout::of_this_machine(version).unwrap(), None)
}

#[tokio::test]
async fn a_process_moves_in_every_hierarchy() {
    let scope = Scope::new("host-processes").unwrap();
    let cgroups = cgroups();
    let path = format!("{}/a/b", scope.cgroup_root());
    let (mut ended, moved) = (Sleeper::start(), Sleeper::start());
    let gone = ended.0.id();
    ended.end();
    // One that has ended meanwhile is no error.
    let processes = vec![gone, moved.0.id()];
    cgroups.move_processes(&path, processes).await.unwrap();
    let places = fs::read_to_string(format!("/proc/{}/cgroup", moved.0.id())).unwrap();
    let end = format!(":{path}");
    assert!(places.lines().all(|line| line.ends_with(&end)), "{places}");
}

#[tokio::test]
async fn the_root_has_neither_the_first_process_nor_the_kernels() {
    let cgroups = cgroups();
    let own = cgroups.own_process().await.unwrap();
    assert_eq!(own.id, std::process::id());
    for process in cgroups.processes_in_root().await.unwrap() {
        assert_ne!(process, 1);
        // Others end meanwhile.
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        assert!(!status.contains("Kthread:\t1"), "{process}: {status}");
    }
}
