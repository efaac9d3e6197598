//! Rounds of readings on a paused clock: what is reported, when, and when not any more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use rubelet_fakes::TokioClock;
use rubelet_model::signals::{FilesystemReading, MemoryReading, ProcessReading};
use rubelet_model::{Pressure, Timestamp};
use rubelet_node::pressure::{PressurePlaces, PressurePorts, watch_pressure};
use rubelet_ports::{
    ImageReader, NodeEvent, NodeEventRecorder, NodeSignals, RuntimeError, RuntimeErrorKind, SignalError,
};
use rubelet_resources::pressure::{PressureSettings, ThresholdTexts};
use rubelet_wire::cri::v1;
use tokio::sync::watch;
use tokio::time::Instant;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const ROOT: &str = "/var/lib/kubelet";
const IMAGES: &str = "/var/lib/containerd";

struct Machine {
    available_memory: u64,
    disks: BTreeMap<PathBuf, Result<FilesystemReading, SignalError>>,
    runtime: Result<v1::ImageFsInfoResponse, RuntimeErrorKind>,
    rounds: usize,
    events: Vec<NodeEvent>,
}

#[derive(Clone)]
struct Bed(Arc<Mutex<Machine>>);

fn disk(device: u64, available_bytes: u64) -> FilesystemReading {
    FilesystemReading {
        device,
        capacity_bytes: 100 * GIB,
        available_bytes,
        inodes: 1000,
        inodes_free: 900,
    }
}

fn usage(path: &str) -> v1::FilesystemUsage {
    v1::FilesystemUsage {
        fs_id: Some(v1::FilesystemIdentifier {
            mountpoint: path.to_owned(),
        }),
        ..v1::FilesystemUsage::default()
    }
}

impl Bed {
    fn new() -> Self {
        let disks = [(ROOT, disk(1, 50 * GIB)), (IMAGES, disk(2, 50 * GIB))];
        Self(Arc::new(Mutex::new(Machine {
            available_memory: GIB,
            disks: disks.map(|(path, disk)| (PathBuf::from(path), Ok(disk))).into(),
            runtime: Ok(v1::ImageFsInfoResponse {
                image_filesystems: vec![usage(IMAGES)],
                container_filesystems: vec![usage(IMAGES)],
            }),
            rounds: 0,
            events: Vec::new(),
        })))
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().unwrap()
    }

    fn start(
        &self,
        settings: PressureSettings,
    ) -> (watch::Receiver<Option<Pressure>>, impl Future<Output = ()>) {
        let (sender, receiver) = watch::channel(None);
        let ports = PressurePorts {
            clock: Arc::new(TokioClock::new(Timestamp::EPOCH)),
            signals: Arc::new(self.clone()),
            images: Arc::new(self.clone()),
            events: Arc::new(self.clone()),
        };
        let places = PressurePlaces {
            root_dir: PathBuf::from(ROOT),
            pods_cgroup: Some("/kubepods".to_owned()),
        };
        let task = tokio::spawn(watch_pressure(ports, settings, places, sender));
        (receiver, async move { task.await.unwrap() })
    }

    /// Lets one whole round pass.
    async fn round(&self) {
        let before = self.machine().rounds;
        while self.machine().rounds < before + 2 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    fn messages(&self) -> Vec<String> {
        let machine = self.machine();
        let events = machine.events.iter();
        events
            .map(|event| format!("{:?} {} {}", event.event_type, event.reason, event.message))
            .collect()
    }
}

#[async_trait]
impl NodeSignals for Bed {
    async fn memory(&self) -> Result<MemoryReading, SignalError> {
        let mut machine = self.machine();
        machine.rounds += 1;
        Ok(MemoryReading {
            limit_bytes: Some(4 * GIB),
            usage_bytes: 4 * GIB - machine.available_memory,
            inactive_file_bytes: 0,
        })
    }

    async fn cgroup_memory(&self, cgroup: &str) -> Result<Option<MemoryReading>, SignalError> {
        assert_eq!(cgroup, "/kubepods");
        Ok(None)
    }

    async fn filesystem(&self, path: &Path) -> Result<FilesystemReading, SignalError> {
        self.machine().disks[path].clone()
    }

    async fn processes(&self) -> Result<ProcessReading, SignalError> {
        Ok(ProcessReading {
            most: 1000,
            running: 10,
        })
    }
}

#[async_trait]
impl ImageReader for Bed {
    async fn list_images(&self, _: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, RuntimeError> {
        unreachable!("nobody asks for images")
    }

    async fn image_status(&self, _: v1::ImageSpec, _: bool) -> Result<v1::ImageStatusResponse, RuntimeError> {
        unreachable!("nobody asks for images")
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, RuntimeError> {
        let runtime = self.machine().runtime.clone();
        runtime.map_err(|kind| {
            RuntimeError::new("ImageFsInfo", "unix:///run/c.sock", kind, "the runtime is away")
        })
    }
}

impl NodeEventRecorder for Bed {
    fn record_node(&self, event: NodeEvent) {
        self.machine().events.push(event);
    }
}

fn settings(hard: &[(&str, &str)]) -> PressureSettings {
    let hard = hard
        .iter()
        .map(|(signal, value)| ((*signal).to_owned(), (*value).to_owned()))
        .collect();
    let nothing = BTreeMap::new();
    let texts = ThresholdTexts {
        hard: &hard,
        soft: &nothing,
        soft_grace: &nothing,
        minimum_reclaim: &nothing,
        are_pods_enforced: true,
    };
    let (thresholds, overridden) = texts.read().unwrap();
    PressureSettings {
        thresholds,
        transition_period: Duration::from_secs(300),
        huge_page_bytes: 0,
        overridden,
    }
}

const NONE: Pressure = Pressure {
    memory: false,
    disk: false,
    pid: false,
};

async fn comes(watched: &mut watch::Receiver<Option<Pressure>>, expected: Pressure) {
    let wait = watched.wait_for(|pressure| *pressure == Some(expected));
    let waited = tokio::time::timeout(Duration::from_secs(3600), wait).await;
    waited.expect("in time").expect("it goes on");
}

#[tokio::test(start_paused = true)]
async fn pressure_comes_and_goes_with_its_period() {
    let bed = Bed::new();
    let (mut watched, _task) = bed.start(settings(&[("memory.available", "100Mi")]));
    comes(&mut watched, NONE).await;
    assert_eq!(bed.messages(), [""; 0]);

    bed.machine().available_memory = 60 * MIB;
    let memory = Pressure { memory: true, ..NONE };
    comes(&mut watched, memory).await;
    let told = "Warning EvictionThresholdMet memory.available is 60Mi, below the hard eviction threshold of 100Mi. \
                The node reports pressure; rubelet does not reclaim memory or evict pods yet";
    assert_eq!(bed.messages(), [told]);
    bed.round().await;
    assert_eq!(bed.messages(), [told], "it is told once");

    let before = Instant::now();
    bed.machine().available_memory = GIB;
    comes(&mut watched, NONE).await;
    let held = before.elapsed();
    assert!(
        held > Duration::from_secs(280) && held < Duration::from_secs(320),
        "{held:?}"
    );

    bed.machine().available_memory = 50 * MIB;
    comes(&mut watched, memory).await;
    assert_eq!(bed.messages().len(), 2, "a new crossing is told anew");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_changes_nothing() {
    let bed = Bed::new();
    let hard = [("nodefs.available", "10%"), ("imagefs.available", "15%")];
    bed.machine()
        .disks
        .insert(PathBuf::from(IMAGES), Ok(disk(2, 12 * GIB)));
    let (mut watched, _task) = bed.start(settings(&hard));
    let disk_is_full = Pressure { disk: true, ..NONE };
    comes(&mut watched, disk_is_full).await;
    assert_eq!(
        bed.messages().len(),
        1,
        "containers share the disk: {:?}",
        bed.messages()
    );

    // Far longer than the transition period.
    bed.machine().runtime = Err(RuntimeErrorKind::Unavailable);
    for _ in 0..60 {
        bed.round().await;
    }
    assert_eq!(*watched.borrow(), Some(disk_is_full), "no news is no good news");
    bed.machine().runtime = Ok(v1::ImageFsInfoResponse {
        image_filesystems: vec![usage(IMAGES)],
        container_filesystems: Vec::new(),
    });
    bed.machine()
        .disks
        .insert(PathBuf::from(IMAGES), Ok(disk(2, 40 * GIB)));
    comes(&mut watched, NONE).await;

    let dead = Err(SignalError::new(IMAGES, "no answer within 5 s"));
    bed.machine().disks.insert(PathBuf::from(IMAGES), dead);
    bed.machine()
        .disks
        .insert(PathBuf::from(ROOT), Ok(disk(1, 5 * GIB)));
    comes(&mut watched, disk_is_full).await;
    let last = bed.messages().pop().unwrap();
    assert!(last.contains("nodefs.available is 5Gi, below"), "{last}");
}

#[tokio::test(start_paused = true)]
async fn without_thresholds_nothing_is_read() {
    let bed = Bed::new();
    let (mut watched, task) = bed.start(settings(&[("memory.available", "0%")]));
    comes(&mut watched, NONE).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.machine().rounds, 0);
    drop(watched);
    task.await;
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_nobody_listens() {
    let bed = Bed::new();
    let (mut watched, task) = bed.start(settings(&[("pid.available", "2000")]));
    comes(&mut watched, Pressure { pid: true, ..NONE }).await;
    drop(watched);
    task.await;
    let told = bed.messages();
    assert!(
        told[0].contains("pid.available is 990, below the hard eviction threshold of 2k"),
        "{told:?}"
    );
}
