//! Rounds of the collection of images, on a clock that only tests move.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use prometheus::{Registry, TextEncoder};
use rubelet_fakes::NodeEvents;
use rubelet_images::garbage::{
    self, Freed, GarbageError, GarbageHandle, GarbagePorts, GarbageSettings, HeldImage, ImageHolders,
    ImageKey,
};
use rubelet_images::{ImagesMetrics, ImagesSettings, PullRecords, RecordsPorts, VerificationPolicy};
use rubelet_model::signals::{FilesystemReading, MemoryReading, ProcessReading};
use rubelet_ports::{
    ImageReader, ImageWriter, NoAnswer, NodeSignals, RuntimeError, RuntimeErrorKind, SignalError,
};
use rubelet_wire::cri::v1;
use serde_json::json;
use tokio::sync::watch;

use crate::edges::{FakeFiles, FakeSpawner};
use crate::fakes::{Bench, ManualClock, START, image, request, runtime_error};

const INTERVAL: Duration = Duration::from_secs(300);

type Hook = Box<dyn FnMut(&str) + Send>;

/// The runtime's images, and the filesystem that they fill.
#[derive(Default)]
pub(crate) struct Store {
    images: Mutex<BTreeMap<String, v1::Image>>,
    capacity_bytes: Mutex<u64>,
    /// What is used by others than images.
    other_bytes: Mutex<u64>,
    /// Images that cannot be removed.
    stuck: Mutex<Vec<String>>,
    on_removal: Mutex<Option<Hook>>,
    removed: Mutex<Vec<String>>,
}

impl Store {
    fn put(&self, id: &str, size: u64) {
        self.put_image(v1::Image {
            id: id.to_owned(),
            repo_tags: vec![format!("r.io/{id}:1")],
            size,
            ..v1::Image::default()
        });
    }

    fn put_image(&self, image: v1::Image) {
        self.images.lock().unwrap().insert(image.id.clone(), image);
    }

    fn ids(&self) -> Vec<String> {
        self.images.lock().unwrap().keys().cloned().collect()
    }

    /// What was removed since the last time, in order.
    fn removed(&self) -> Vec<String> {
        std::mem::take(&mut self.removed.lock().unwrap())
    }
}

#[async_trait]
impl ImageReader for Store {
    async fn list_images(&self, _: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, RuntimeError> {
        Ok(self.images.lock().unwrap().values().cloned().collect())
    }

    async fn image_status(
        &self,
        image: v1::ImageSpec,
        _: bool,
    ) -> Result<v1::ImageStatusResponse, RuntimeError> {
        let images = self.images.lock().unwrap();
        let is_meant = |one: &&v1::Image| {
            let short = |tag: &String| tag.strip_prefix("r.io/") == Some(image.image.as_str());
            one.id == image.image || one.repo_tags.iter().any(|tag| *tag == image.image || short(tag))
        };
        Ok(v1::ImageStatusResponse {
            image: images.values().find(is_meant).cloned(),
            ..v1::ImageStatusResponse::default()
        })
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, RuntimeError> {
        let filesystem = |mountpoint: &str| v1::FilesystemUsage {
            fs_id: Some(v1::FilesystemIdentifier {
                mountpoint: mountpoint.to_owned(),
            }),
            ..v1::FilesystemUsage::default()
        };
        Ok(v1::ImageFsInfoResponse {
            image_filesystems: vec![filesystem("/images")],
            container_filesystems: vec![filesystem("/containers")],
        })
    }
}

#[async_trait]
impl ImageWriter for Store {
    async fn pull_image(
        &self,
        _: v1::ImageSpec,
        _: Option<v1::AuthConfig>,
        _: Option<v1::PodSandboxConfig>,
    ) -> Result<String, RuntimeError> {
        unreachable!("garbage is not pulled")
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Result<(), RuntimeError> {
        if self.stuck.lock().unwrap().contains(&image.image) {
            return Err(runtime_error(RuntimeErrorKind::Internal, "read-only"));
        }
        self.images.lock().unwrap().remove(&image.image);
        self.removed.lock().unwrap().push(image.image.clone());
        if let Some(hook) = self.on_removal.lock().unwrap().as_mut() {
            hook(&image.image);
        }
        Ok(())
    }
}

#[async_trait]
impl NodeSignals for Store {
    async fn memory(&self) -> Result<MemoryReading, SignalError> {
        unreachable!("images fill disks")
    }

    async fn cgroup_memory(&self, _: &str) -> Result<Option<MemoryReading>, SignalError> {
        unreachable!("images fill disks")
    }

    async fn filesystem(&self, path: &Path) -> Result<FilesystemReading, SignalError> {
        assert_eq!(
            path,
            Path::new("/images"),
            "the containers' own filesystem does not count"
        );
        let images: u64 = self.images.lock().unwrap().values().map(|image| image.size).sum();
        let capacity_bytes = *self.capacity_bytes.lock().unwrap();
        let used = images + *self.other_bytes.lock().unwrap();
        Ok(FilesystemReading {
            capacity_bytes,
            available_bytes: capacity_bytes.saturating_sub(used),
            ..FilesystemReading::default()
        })
    }

    async fn processes(&self) -> Result<ProcessReading, SignalError> {
        unreachable!("images fill disks")
    }
}

#[derive(Default)]
struct FakeHolders {
    containers: Mutex<Vec<HeldImage>>,
    pods: Mutex<Option<Vec<Arc<Pod>>>>,
    sandbox_image: Mutex<Option<String>>,
}

impl FakeHolders {
    /// A container has these images.
    fn run(&self, ids: &[&str]) {
        let held = ids.iter().map(|id| HeldImage {
            image: ImageKey::new(id, ""),
            holder: format!("ns/{id}/main"),
        });
        *self.containers.lock().unwrap() = held.collect();
    }

    /// There are pods with these images, which no container has yet.
    fn want(&self, names: &[&str]) {
        let pods = names
            .iter()
            .map(|name| pod(&json!({"containers": [{"name": "c", "image": name}]})));
        *self.pods.lock().unwrap() = Some(pods.collect());
    }
}

fn pod(spec: &serde_json::Value) -> Arc<Pod> {
    let pod = json!({"metadata": {"namespace": "ns", "name": "new"}, "spec": spec});
    Arc::new(serde_json::from_value(pod).unwrap())
}

#[async_trait]
impl ImageHolders for FakeHolders {
    async fn containers(&self) -> Result<Vec<HeldImage>, RuntimeError> {
        Ok(self.containers.lock().unwrap().clone())
    }

    async fn pods(&self) -> Result<Option<Vec<Arc<Pod>>>, NoAnswer> {
        Ok(self.pods.lock().unwrap().clone())
    }

    async fn sandbox_image(&self) -> Result<Option<String>, RuntimeError> {
        Ok(self.sandbox_image.lock().unwrap().clone())
    }
}

struct Yard {
    store: Arc<Store>,
    holders: Arc<FakeHolders>,
    clock: Arc<ManualClock>,
    spawner: Arc<FakeSpawner>,
    events: Arc<NodeEvents>,
    registry: Registry,
    handle: GarbageHandle,
}

fn settings() -> GarbageSettings {
    GarbageSettings {
        high_percent: 85,
        low_percent: 80,
        min_age: Duration::from_secs(120),
        max_age: Duration::ZERO,
        by_runtime_handler: false,
    }
}

impl Yard {
    /// A disk of 1000 bytes. Every source of pods has delivered, and there are none.
    fn start(settings: GarbageSettings, images: &[(&str, u64)]) -> Self {
        Self::start_with(settings, images, |_| None)
    }

    fn start_with(
        settings: GarbageSettings,
        images: &[(&str, u64)],
        records: impl FnOnce(&Arc<ManualClock>) -> Option<PullRecords>,
    ) -> Self {
        let store = Arc::<Store>::default();
        *store.capacity_bytes.lock().unwrap() = 1000;
        for (id, size) in images {
            store.put(id, *size);
        }
        let holders = Arc::<FakeHolders>::default();
        holders.want(&[]);
        let (clock, spawner, events) = (
            Arc::new(ManualClock::new(START)),
            Arc::<FakeSpawner>::default(),
            Arc::<NodeEvents>::default(),
        );
        let registry = Registry::new();
        let mut node = Node::default();
        node.metadata.uid = Some("node-uid".to_owned());
        let ports = GarbagePorts {
            clock: clock.clone(),
            spawner: spawner.clone(),
            reader: store.clone(),
            writer: store.clone(),
            holders: holders.clone(),
            signals: store.clone(),
            events: events.clone(),
            node: watch::channel(Some(Arc::new(node))).1,
            records: records(&clock),
            metrics: Some(ImagesMetrics::register(&registry).unwrap()),
        };
        let handle = garbage::start(ports, settings);
        Self {
            store,
            holders,
            clock,
            spawner,
            events,
            registry,
            handle,
        }
    }

    /// Lets time pass, and the collection do what is due.
    fn pass(&self, time: Duration) {
        self.clock.advance(time);
        assert_eq!(self.spawner.run(), 1, "the collection ended");
    }

    /// Events since the last time, as `reason: message`.
    fn events(&self) -> Vec<String> {
        let events = self.events.take();
        events
            .into_iter()
            .map(|event| format!("{}: {}", event.reason, event.message))
            .collect()
    }

    fn counted(&self, line: &str) -> bool {
        let text = TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .unwrap();
        text.lines().any(|seen| seen == line)
    }

    fn free_now(&self) -> Result<Freed, GarbageError> {
        let mut answer = self.handle.free_unused().boxed();
        assert!((&mut answer).now_or_never().is_none());
        self.spawner.run();
        answer.now_or_never().expect("no answer")
    }
}

#[test]
fn a_full_disk_loses_what_was_unused_longest() {
    let images = [("a", 200), ("b", 200), ("c", 300), ("d", 150)];
    let yard = Yard::start(settings(), &images);
    yard.holders.run(&["a", "c", "d"]);
    yard.pass(Duration::ZERO);
    yard.events();
    // Unused since the second round; `b` never was.
    yard.holders.run(&["c", "d"]);
    yard.pass(INTERVAL);
    assert_eq!(yard.store.removed(), ["b"], "one image is enough");
    assert!(yard.counted("kubelet_image_garbage_collected_total{reason=\"space\"} 1"));
    assert_eq!(yard.events(), Vec::<String>::new());
    // Below the threshold nothing goes, however long it is unused.
    yard.pass(INTERVAL * 100);
    assert_eq!(yard.store.removed(), Vec::<String>::new());
    *yard.store.other_bytes.lock().unwrap() = 250;
    yard.pass(INTERVAL);
    assert_eq!(yard.store.removed(), ["a"]);
    assert_eq!(yard.store.ids(), ["c", "d"]);
}

#[test]
fn what_holds_the_space_is_told() {
    let yard = Yard::start(settings(), &[("young", 100), ("used", 300)]);
    yard.store.put_image(v1::Image {
        id: "pinned".to_owned(),
        repo_tags: vec!["r.io/pause:3".to_owned()],
        size: 50,
        pinned: true,
        ..v1::Image::default()
    });
    *yard.store.other_bytes.lock().unwrap() = 450;
    yard.holders.run(&["used"]);
    yard.pass(Duration::ZERO);
    assert_eq!(
        yard.events(),
        [
            "FreeDiskSpaceFailed: Insufficient free disk space on the node's image filesystem (90% of 1000 B used). Failed to \
             free sufficient space by deleting unused images (freed 0 bytes). Investigate disk usage, as it could be used by \
             active images, logs, volumes, or other data. Images that stay have 450 B in all: r.io/used:1 300 B (used by \
             ns/used/main), r.io/young:1 100 B (younger than imageMinimumGCAge), r.io/pause:3 50 B (pinned by the runtime)."
        ]
    );
    assert_eq!(yard.store.ids().len(), 3);
    // What can go goes, and is enough.
    yard.pass(INTERVAL);
    assert_eq!(
        (yard.store.removed(), yard.events().len()),
        (vec!["young".to_owned()], 0)
    );
    *yard.store.other_bytes.lock().unwrap() = 600;
    yard.pass(INTERVAL);
    assert_eq!(yard.events().len(), 1, "the first failure is told once");
    yard.pass(INTERVAL);
    let events = yard.events();
    assert!(events[0].starts_with("FreeDiskSpaceFailed: "), "{events:?}");
    assert!(
        events[1].starts_with("ImageGCFailed: Insufficient free disk space"),
        "{events:?}"
    );
    assert_eq!(events.len(), 2);
}

#[test]
fn images_of_pods_that_have_no_container_yet_stay() {
    let images = [("app", 300), ("data", 200), ("pause", 50), ("tool", 350)];
    let yard = Yard::start(settings(), &images);
    let spec = json!({"containers": [{"name": "c", "image": "app:1"}, {"name": "d", "image": "not there"}],
        "volumes": [{"name": "v", "image": {"reference": "r.io/data:1"}}]});
    *yard.holders.pods.lock().unwrap() = Some(vec![pod(&spec)]);
    // This runtime pins nothing, and says what it needs itself.
    *yard.holders.sandbox_image.lock().unwrap() = Some("pause:1".to_owned());
    yard.pass(Duration::ZERO);
    yard.pass(INTERVAL);
    assert_eq!(yard.store.removed(), ["tool"]);
    *yard.store.other_bytes.lock().unwrap() = 400;
    yard.events();
    yard.pass(INTERVAL);
    let events = yard.events();
    assert!(
        events[0].contains("r.io/app:1 300 B (used by ns/new/c)"),
        "{events:?}"
    );
    assert!(
        events[0].contains("r.io/data:1 200 B (used by volume v of ns/new)"),
        "{events:?}"
    );
    assert!(
        events[0].contains("r.io/pause:1 50 B (used by the runtime, for sandboxes)"),
        "{events:?}"
    );
    assert_eq!(yard.store.removed(), Vec::<String>::new());
}

#[test]
fn nothing_goes_before_every_source_has_delivered() {
    let short = GarbageSettings {
        min_age: Duration::ZERO,
        ..settings()
    };
    let yard = Yard::start(short, &[("a", 950)]);
    *yard.holders.pods.lock().unwrap() = None;
    yard.pass(Duration::ZERO);
    for _ in 0..20 {
        yard.pass(Duration::from_secs(10));
    }
    assert_eq!(yard.free_now(), Err(GarbageError::TooEarly));
    assert_eq!((yard.store.ids().len(), yard.events().len()), (1, 0));
    // Then it does not take a whole interval.
    yard.holders.want(&[]);
    yard.pass(Duration::from_secs(10));
    assert_eq!(yard.store.removed(), ["a"]);
}

#[test]
fn old_images_go_though_there_is_room() {
    let hour = Duration::from_secs(3600);
    let yard = Yard::start(
        GarbageSettings {
            max_age: hour,
            ..settings()
        },
        &[("a", 1), ("b", 1), ("c", 1)],
    );
    yard.holders.run(&["a", "b"]);
    yard.pass(Duration::ZERO);
    for _ in 0..6 {
        yard.pass(INTERVAL);
    }
    yard.holders.run(&["b"]);
    yard.pass(INTERVAL);
    while yard.store.removed().is_empty() {
        assert_eq!(yard.store.ids(), ["a", "b", "c"]);
        yard.pass(INTERVAL);
    }
    // `c` was never used: it goes when the agent has run for so long. `a` goes half an hour later, `b` stays, and so does one that came.
    assert_eq!(yard.store.ids(), ["a", "b"]);
    yard.store.put("new", 1);
    for _ in 0..7 {
        yard.pass(INTERVAL);
    }
    assert_eq!(yard.store.ids(), ["b", "new"]);
    assert!(yard.counted("kubelet_image_garbage_collected_total{reason=\"age\"} 2"));
}

#[test]
fn an_image_that_cannot_go_keeps_nobody() {
    let yard = Yard::start(settings(), &[("a", 400), ("b", 500)]);
    yard.store.stuck.lock().unwrap().push("a".to_owned());
    yard.pass(Duration::ZERO);
    yard.events();
    yard.pass(INTERVAL);
    assert_eq!(yard.store.removed(), ["b"]);
    let events = yard.events();
    assert_eq!(
        events,
        [
            "ImageGCFailed: wanted to free 100 bytes, but freed 500 bytes space with errors in image deletion: \
          rpc error: code = Internal desc = read-only"
        ],
        "the round before had failed too"
    );
    let event = |yard: &Yard| yard.events.all().last().and_then(|event| event.node_uid.clone());
    *yard.store.other_bytes.lock().unwrap() = 500;
    yard.pass(INTERVAL);
    assert_eq!(event(&yard).as_deref(), Some("node-uid"));
}

#[test]
fn a_disk_without_a_size_is_told() {
    let yard = Yard::start(settings(), &[("a", 400)]);
    *yard.store.capacity_bytes.lock().unwrap() = 0;
    yard.pass(Duration::ZERO);
    yard.pass(INTERVAL);
    assert_eq!(
        yard.events(),
        [
            "InvalidDiskCapacity: invalid capacity 0 on image filesystem",
            "InvalidDiskCapacity: invalid capacity 0 on image filesystem",
            "ImageGCFailed: invalid capacity 0 on image filesystem",
        ]
    );
}

#[test]
fn switched_off_it_acts_only_when_asked() {
    let off = GarbageSettings {
        high_percent: 100,
        ..settings()
    };
    assert!(off.is_switched_off() && !settings().is_switched_off());
    let yard = Yard::start(off, &[("a", 400), ("b", 300), ("c", 300)]);
    yard.holders.run(&["a", "b"]);
    yard.pass(Duration::ZERO);
    yard.holders.run(&["b"]);
    yard.pass(INTERVAL);
    assert_eq!((yard.store.ids().len(), yard.events().len()), (3, 0));
    yard.store.put("young", 10);
    let freed = yard.free_now().unwrap();
    assert_eq!((freed.images, freed.bytes), (2, 700));
    assert_eq!(yard.store.removed(), ["c", "a"]);
    assert_eq!(yard.store.ids(), ["b", "young"]);
    assert!(yard.counted("kubelet_image_garbage_collected_total{reason=\"space\"} 2"));
}

#[test]
fn a_pod_that_comes_meanwhile_keeps_its_image() {
    let yard = Yard::start(settings(), &[("a", 100), ("b", 100), ("c", 100)]);
    yard.pass(Duration::ZERO);
    yard.pass(INTERVAL);
    let holders = yard.holders.clone();
    *yard.store.on_removal.lock().unwrap() = Some(Box::new(move |_| holders.want(&["b:1"])));
    assert_eq!(yard.free_now().unwrap().images, 2);
    assert_eq!(yard.store.removed(), ["a", "c"]);
}

#[test]
fn the_record_of_a_removed_image_goes_too() {
    let files = Arc::<FakeFiles>::default();
    let records = |images: &Arc<dyn ImageReader>, clock: &Arc<ManualClock>| {
        let ports = RecordsPorts {
            reader: files.clone(),
            writer: files.clone(),
            images: images.clone(),
            clock: clock.clone(),
            spawner: Arc::<FakeSpawner>::default(),
        };
        let policy = VerificationPolicy::new("NeverVerifyPreloadedImages", &[]).unwrap();
        PullRecords::new(Path::new("/root-dir"), policy, ports)
    };
    let bench = Bench::built(ImagesSettings::default(), None, |images, service, clock| {
        images.with_records(records(&(service.clone() as Arc<dyn ImageReader>), clock))
    });
    for id in ["a", "b"] {
        bench
            .service
            .add_to_registry(&format!("r.io/{id}:1"), image(id, 1));
        bench
            .ensure(request("u", &format!("r.io/{id}:1"), "Always"))
            .unwrap();
    }
    let pulled = "/root-dir/image_manager/pulled";
    assert_eq!(files.below(pulled).len(), 2);
    let yard = Yard::start_with(settings(), &[("a", 900), ("b", 10)], |clock| {
        Some(records(&(bench.service.clone() as Arc<dyn ImageReader>), clock))
    });
    yard.holders.run(&["b"]);
    yard.pass(Duration::ZERO);
    yard.pass(INTERVAL);
    assert_eq!(yard.store.removed(), ["a"]);
    assert_eq!(files.below(pulled).len(), 1);
    assert!(files.all_text().contains("\"b\"") && !files.all_text().contains("r.io/a"));
}

#[test]
fn it_ends_with_its_last_handle() {
    let yard = Yard::start(settings(), &[]);
    yard.pass(Duration::ZERO);
    let Yard { handle, spawner, .. } = yard;
    let other = handle.clone();
    drop(handle);
    assert_eq!(spawner.run(), 1);
    drop(other);
    assert_eq!(spawner.run(), 0);
}
