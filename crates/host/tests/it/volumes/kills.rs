//! Kill -9 at every step of setting up and of cleaning up: what is left is found, can be finished, and can be removed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rubelet_host::HostVolumes;
use rubelet_ports::volume_host::{VolumeBatch, VolumeStep};
use rubelet_ports::{VolumeHostReader, VolumeHostWriter};
use rustix::process::{Signal, getpid, kill_process};

use super::{LONG, Node, clean_up, downward, empty_dir, mounts_below, of, sub_path};

const CHILD: &str = "RUBELET_VOLUME_CHILD";
const TASK: &str = "RUBELET_VOLUME_TASK";
const STOP_AFTER: &str = "RUBELET_VOLUME_STOP_AFTER";

/// A pod with everything that is mounted: memory, files, and parts of both.
fn set_up(pod: &Path) -> Vec<VolumeStep> {
    let mut steps = empty_dir(pod, "disk", false);
    steps.extend(empty_dir(pod, "memory", true));
    steps.extend(downward(pod, "about", "text"));
    for (index, volume) in ["disk", "memory"].into_iter().enumerate() {
        let root = pod.join("volumes/kubernetes.io~empty-dir").join(volume);
        let target = pod
            .join("volume-subpaths")
            .join(volume)
            .join("main")
            .join(index.to_string());
        steps.push(of(&format!("part of {volume}"), sub_path(&root, "a/b", &target)));
    }
    steps
}

async fn steps_of(task: &str, volumes: &HostVolumes, pods: &Path) -> Vec<VolumeStep> {
    if task == "set up" {
        return set_up(&pods.join("u"));
    }
    let found = volumes.pods_on_disk(pods).await.unwrap();
    found.iter().flat_map(|pod| clean_up(pod, pods)).collect()
}

/// The process that is killed: by itself after some steps, or by the test at any time.
#[tokio::test]
#[ignore = "a part of the tests beside it, which start it as a process of its own"]
async fn child() {
    let Ok(pods) = std::env::var(CHILD) else {
        panic!("{CHILD} is not set");
    };
    let volumes = HostVolumes::new();
    let task = std::env::var(TASK).unwrap();
    let mut steps = steps_of(&task, &volumes, Path::new(&pods)).await;
    if let Ok(number) = std::env::var(STOP_AFTER) {
        steps.truncate(number.parse().unwrap());
    }
    println!("begins");
    std::io::stdout().flush().unwrap();
    let batch = VolumeBatch {
        key: "u".into(),
        steps,
        deadline: LONG,
    };
    assert_eq!(volumes.execute(batch).await, []);
    kill_process(getpid(), Signal::KILL).unwrap();
}

fn start_child(pods: &Path, task: &str, stop_after: Option<usize>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "volumes::kills::child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CHILD, pods)
        .env(TASK, task)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(number) = stop_after {
        command.env(STOP_AFTER, number.to_string());
    }
    command.spawn().unwrap()
}

/// Lets a process do some steps; it ends by a kill in any case.
fn run_killed(pods: &Path, task: &str, stop_after: usize) {
    use std::os::unix::process::ExitStatusExt;
    let status = start_child(pods, task, Some(stop_after))
        .wait_with_output()
        .unwrap();
    assert_eq!(status.status.signal(), Some(9), "{status:?}");
}

/// Kills a process some time after it has begun, wherever it is then.
fn kill_after(pods: &Path, task: &str, time: Duration) {
    let mut child = start_child(pods, task, None);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("begins") {
        line.clear();
        assert!(
            output.read_line(&mut line).unwrap() > 0,
            "the process ended too early"
        );
    }
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
    let _ = child.kill();
    child.wait().unwrap();
}

/// Finishes what was begun, where asked for, and removes it.
async fn recover(node: &Node, finish: bool, what: &str) {
    if finish {
        assert_eq!(
            node.execute("u", set_up(&node.pods().join("u"))).await,
            [],
            "{what}"
        );
    }
    let steps = steps_of("clean up", &node.volumes, &node.pods()).await;
    assert_eq!(node.execute("u", steps).await, [], "{what}");
    assert_eq!(node.on_disk().await, [], "{what}");
    assert_eq!(mounts_below(&node.pods()), [], "{what}");
    // Directories without any trace of a volume go with the pod's own.
    let _ = fs::remove_dir_all(node.pods().join("u"));
}

#[tokio::test]
async fn after_any_step_of_setting_up() {
    let node = Node::new("kill-set-up");
    let count = set_up(&node.pods().join("u")).len();
    assert!(count >= 14, "{count}");
    for number in 0..=count {
        run_killed(&node.pods(), "set up", number);
        recover(&node, number % 2 == 0, &format!("after {number} steps")).await;
    }
}

#[tokio::test]
async fn after_any_step_of_cleaning_up() {
    let node = Node::new("kill-clean-up");
    let mut number = 0;
    loop {
        assert_eq!(node.execute("u", set_up(&node.pods().join("u"))).await, []);
        let count = steps_of("clean up", &node.volumes, &node.pods()).await.len();
        run_killed(&node.pods(), "clean up", number);
        recover(&node, number.is_multiple_of(3), &format!("after {number} steps")).await;
        number += 1;
        if number > count {
            break;
        }
    }
    assert!(number > 8);
}

/// Within the steps: at moments that differ by less than a system call takes.
#[tokio::test]
async fn at_any_moment() {
    let node = Node::new("kill-any-time");
    for number in 0..30_u64 {
        let time = Duration::from_micros(number * 150);
        kill_after(&node.pods(), "set up", time);
        recover(&node, number % 2 == 0, &format!("{time:?} after the beginning")).await;
        assert_eq!(node.execute("u", set_up(&node.pods().join("u"))).await, []);
        kill_after(&node.pods(), "clean up", time);
        recover(&node, number % 2 == 1, &format!("{time:?} into cleaning up")).await;
    }
}
