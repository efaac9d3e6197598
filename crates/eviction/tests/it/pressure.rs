//! Rounds of readings on a paused clock: what is reported, when, and when not any more.

use std::path::PathBuf;
use std::time::Duration;

use rubelet_eviction::{PressureHandle, PressureWatch};
use rubelet_model::Pressure;
use rubelet_ports::{RuntimeErrorKind, SignalError};
use rubelet_wire::cri::v1;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::node::{GIB, IMAGES, MIB, Node, ROOT, disk, places, settings, usage};

const NONE: Pressure = Pressure {
    memory: false,
    disk: false,
    pid: false,
};

struct Rounds {
    watched: watch::Receiver<Option<Pressure>>,
    handle: PressureHandle,
    task: tokio::task::JoinHandle<()>,
}

fn start(node: &Node, hard: &[(&str, &str)]) -> Rounds {
    let (sender, watched) = watch::channel(None);
    let (rounds, handle) = PressureWatch::new(node.signal_ports(), settings(hard), places(), sender);
    let task = tokio::spawn(rounds.run());
    Rounds {
        watched,
        handle,
        task,
    }
}

impl Rounds {
    async fn comes(&mut self, expected: Pressure) {
        let wait = self.watched.wait_for(|pressure| *pressure == Some(expected));
        let waited = tokio::time::timeout(Duration::from_secs(3600), wait).await;
        waited.expect("in time").expect("it goes on");
    }

    async fn due(&self) -> Vec<String> {
        let round = self.handle.look().await.expect("the rounds go on");
        round.findings.due.iter().map(ToString::to_string).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn pressure_comes_and_goes_with_its_period() {
    let node = Node::new();
    let mut rounds = start(&node, &[("memory.available", "100Mi")]);
    rounds.comes(NONE).await;
    assert_eq!(rounds.due().await, [""; 0]);

    node.state().available_memory = 60 * MIB;
    let memory = Pressure { memory: true, ..NONE };
    rounds.comes(memory).await;
    let crossing = "memory.available is 60Mi, below the hard eviction threshold of 100Mi";
    assert_eq!(rounds.due().await, [crossing]);

    let before = Instant::now();
    node.state().available_memory = GIB;
    rounds.comes(NONE).await;
    let held = before.elapsed();
    assert!(
        held > Duration::from_secs(280) && held < Duration::from_secs(320),
        "{held:?}"
    );
    assert_eq!(rounds.due().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_changes_nothing() {
    let node = Node::new();
    let hard = [("nodefs.available", "10%"), ("imagefs.available", "15%")];
    node.set_disk(IMAGES, Ok(disk(2, 12 * GIB)));
    let mut rounds = start(&node, &hard);
    let disk_is_full = Pressure { disk: true, ..NONE };
    rounds.comes(disk_is_full).await;
    let due = rounds.due().await;
    assert!(due[0].starts_with("imagefs.available is 12Gi, below"), "{due:?}");

    // Far longer than the transition period.
    node.state().runtime = Err(RuntimeErrorKind::Unavailable);
    tokio::time::sleep(Duration::from_secs(900)).await;
    assert_eq!(
        *rounds.watched.borrow(),
        Some(disk_is_full),
        "what is not known changes nothing"
    );
    assert_eq!(rounds.due().await, [""; 0], "nothing is done about it either");
    node.state().runtime = Ok(v1::ImageFsInfoResponse {
        image_filesystems: vec![usage(IMAGES)],
        container_filesystems: Vec::new(),
    });
    node.set_disk(IMAGES, Ok(disk(2, 40 * GIB)));
    rounds.comes(NONE).await;

    node.set_disk(IMAGES, Err(SignalError::new(IMAGES, "no answer within 5 s")));
    node.set_disk(ROOT, Ok(disk(1, 5 * GIB)));
    rounds.comes(disk_is_full).await;
    let due = rounds.due().await;
    assert!(due[0].starts_with("nodefs.available is 5Gi, below"), "{due:?}");
}

#[tokio::test(start_paused = true)]
async fn without_thresholds_nothing_is_read_unless_asked() {
    let node = Node::new();
    let mut rounds = start(&node, &[("memory.available", "0%")]);
    rounds.comes(NONE).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(node.state().rounds, 0);
    assert_eq!(rounds.due().await, [""; 0]);
    assert_eq!(node.state().rounds, 1);
    drop((rounds.watched, rounds.handle));
    rounds.task.await.expect("it ends");
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_no_receiver_is_left() {
    let node = Node::new();
    let mut rounds = start(&node, &[("pid.available", "2000")]);
    rounds.comes(Pressure { pid: true, ..NONE }).await;
    let due = rounds.due().await;
    let crossing = "pid.available is 990, below the hard eviction threshold of 2k";
    assert_eq!(due, [crossing]);
    drop(rounds.watched);
    rounds.task.await.expect("it ends");
    assert!(rounds.handle.look().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn rounds_come_sooner_near_a_threshold() {
    let node = Node::new();
    node.state().available_memory = 3 * GIB;
    let mut rounds = start(&node, &[("memory.available", "100Mi")]);
    rounds.comes(NONE).await;
    let counted = async || {
        let before = node.state().rounds;
        tokio::time::sleep(Duration::from_secs(60)).await;
        node.state().rounds - before
    };
    let calm = counted().await;
    assert!((6..=12).contains(&calm), "{calm} rounds in a minute");
    node.state().available_memory = 300 * MIB;
    let near = counted().await;
    assert!((100..=240).contains(&near), "{near} rounds in a minute");
    assert!(node.state().places.contains(&PathBuf::from(ROOT)));
}

#[tokio::test(start_paused = true)]
async fn a_hint_of_the_kernel_is_a_round() {
    let node = Node::new();
    node.state().available_memory = 3 * GIB;
    let mut rounds = start(&node, &[("memory.available", "100Mi")]);
    rounds.comes(NONE).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    {
        let marks = node.alarm.marks.lock().unwrap();
        let marks: Vec<(&str, u64)> = marks
            .iter()
            .map(|mark| (&*mark.cgroup, mark.usage_bytes))
            .collect();
        assert_eq!(marks, [("/", 4 * GIB - 100 * MIB)]);
    }
    node.state().available_memory = 60 * MIB;
    let before = Instant::now();
    node.alarm.bell.notify_one();
    rounds.comes(Pressure { memory: true, ..NONE }).await;
    assert!(
        before.elapsed() < Duration::from_millis(300),
        "{:?}",
        before.elapsed()
    );

    // Hints all the time are no reason to do nothing else.
    let rounds_before = node.state().rounds;
    for _ in 0..1000 {
        node.alarm.bell.notify_one();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let read = node.state().rounds - rounds_before;
    assert!(read <= 25, "{read} rounds in five seconds");
}
