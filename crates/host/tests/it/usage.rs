//! Cgroups of this machine, with a process that works in one of them.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::cgroups::Layout;
use rubelet_host::{HostClock, HostUsage};
use rubelet_ports::{UsageQuestion, UsageReader as _, UsageReading};
use rubelet_usage::Classes;

const CLASSES: Classes = Classes {
    pressure: true,
    io_pressure: true,
    limits: true,
    network: true,
    processes: true,
    detail: true,
    file_limit: true,
};

fn usage() -> HostUsage {
    let layout = Layout::of_this_machine(CgroupVersion::of_this_machine().unwrap()).unwrap();
    HostUsage::new(&layout, Arc::new(HostClock::new()))
}

async fn read(usage: &HostUsage, path: &str) -> Option<UsageReading> {
    let question = UsageQuestion {
        paths: vec![Arc::from(path)],
        classes: CLASSES,
    };
    usage.read(vec![question]).await.remove(0)
}

/// A cgroup of the test's own, in every tree that counts something.
struct Own {
    path: String,
    directories: Vec<PathBuf>,
    process: Option<Child>,
}

impl Own {
    fn new(name: &str) -> Self {
        let path = format!("/rubelet-test-usage-{name}-{}", std::process::id());
        let mounts = match CgroupVersion::of_this_machine().unwrap() {
            CgroupVersion::V1 => vec!["/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/memory"],
            CgroupVersion::V2 => vec!["/sys/fs/cgroup"],
        };
        let directories: Vec<PathBuf> = mounts
            .iter()
            .map(|mount| PathBuf::from(format!("{mount}{path}")))
            .collect();
        directories
            .iter()
            .for_each(|directory| fs::create_dir(directory).unwrap());
        Self {
            path,
            directories,
            process: None,
        }
    }

    /// A process that has used a processor and memory, and waits.
    fn work(&mut self) {
        let moves: String = self
            .directories
            .iter()
            .map(|directory| format!("echo $$ > {}/cgroup.procs;", directory.display()))
            .collect();
        // What the shell reads into a variable is memory of its own.
        let script = format!("{moves} text=$(head -c 300000 /dev/zero | tr '\\0' x); echo ready; read _");
        let mut process = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        self.process = Some(process);
    }

    fn end(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.stdin.take());
            process.wait().unwrap();
        }
        for directory in self.directories.drain(..) {
            // The kernel may count the process for a moment after its end.
            while directory.exists() && fs::remove_dir(&directory).is_err() {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.end();
    }
}

#[tokio::test]
async fn a_working_process_shows_in_its_cgroup() {
    let usage = usage();
    let mut own = Own::new("works");
    own.work();
    let first = read(&usage, &own.path).await.unwrap().figures;
    assert!(first.cpu_nanos.unwrap() > 0);
    let memory = first.memory.unwrap();
    assert!(memory.working_set_bytes() > 100_000, "{memory:?}");
    assert_eq!(first.processes, Some(1));
    assert!(first.network.is_some(), "a process has a network");
    // Nothing limits it.
    assert_eq!(first.limits.unwrap().memory_bytes, None);
    assert!(first.are_alive());
    assert_eq!(usage.open_rows(), 1);
    own.end();
    assert_eq!(read(&usage, &own.path).await, None);
    assert_eq!(usage.open_rows(), 0);
}

#[tokio::test]
async fn the_root_is_the_whole_machine() {
    let usage = usage();
    let root = read(&usage, "/").await.unwrap();
    let machine = usage.machine().await.unwrap();
    let figures = root.figures;
    assert!(figures.cpu_nanos.unwrap() > 0);
    let working_set = figures.memory.unwrap().working_set_bytes();
    assert!(
        working_set > 1 << 20 && working_set < machine.memory.total_bytes,
        "{working_set}"
    );
    assert_eq!(
        figures.limits.unwrap().memory_bytes,
        Some(machine.memory.total_bytes)
    );
    assert!(machine.booted_at.unwrap() < root.read_at);
}

/// Hundreds of pods may end while a page is made.
#[tokio::test]
async fn cgroups_that_vanish_meanwhile_drop_their_rows_only() {
    let usage = Arc::new(usage());
    let stays = Own::new("stays");
    let mut goers: Vec<Own> = (0..100)
        .map(|number| Own::new(&format!("goes-{number}")))
        .collect();
    let question = |own: &Own| UsageQuestion {
        paths: vec![Arc::from(own.path.as_str())],
        classes: CLASSES,
    };
    let mut questions: Vec<UsageQuestion> = goers.iter().map(question).collect();
    questions.push(question(&stays));
    let all = usage.read(questions.clone()).await;
    assert_eq!(all.iter().flatten().count(), 101);
    let reader = {
        let (usage, questions) = (Arc::clone(&usage), questions.clone());
        tokio::spawn(async move {
            for _ in 0..50 {
                let rows = usage.read(questions.clone()).await;
                assert_eq!(rows.len(), 101);
                let last = rows[100].as_ref().expect("it stays");
                // A row is whole, or it is not there.
                let is_whole =
                    |row: &UsageReading| row.figures.cpu_nanos.is_some() && row.figures.memory.is_some();
                assert!(rows.iter().flatten().all(is_whole));
                assert!(last.path.contains("stays"));
            }
        })
    };
    tokio::task::spawn_blocking(move || goers.drain(..).for_each(|mut goer| goer.end()))
        .await
        .unwrap();
    reader.await.unwrap();
    let left = usage.read(questions).await;
    assert_eq!(left.iter().flatten().count(), 1);
    assert_eq!(usage.open_rows(), 1);
}

#[tokio::test]
async fn what_is_not_there_is_none() {
    let usage = usage();
    assert_eq!(read(&usage, "/rubelet-test-no-such-cgroup").await, None);
    assert_eq!(usage.open_rows(), 0);
}
