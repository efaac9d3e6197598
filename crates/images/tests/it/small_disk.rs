//! A small disk of its own that images fill up: what nobody uses goes, the rest stays, and people are told.
//!
//! Shared by path with the end-to-end tests, which do the same with containerd 2.

use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use rubelet_cri::CriClient;
use rubelet_fakes::NodeEvents;
use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::cgroups::Layout;
use rubelet_host::signals::HostSignals;
use rubelet_host::{HostClock, TokioSpawner};
use rubelet_images::garbage::{self, GarbageHandle, GarbagePorts, GarbageSettings, NodeHolders};
use rubelet_model::Timestamp;
use rubelet_model::explanation::PodExplanation;
use rubelet_model::observation::{
    ContainerMount, ContainerObservation, ContainerState, PodObservation, PodUid,
};
use rubelet_ports::{
    Clock, ImageReader as _, Moment, NoAnswer, PodView, PodsToRun, RuntimeError, RuntimeReader as _,
    RuntimeWriter as _,
};
use rubelet_testbed::Scope;
use rubelet_testbed::bare_pod::{connect, sandbox_config};
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::images::{Image, ImageArchive, Layer, PAUSE, pause};
use rubelet_testbed::wait::wait_until;
use rubelet_wire::cri::v1;
use rustix::fs::statvfs;
use rustix::mount::{MountFlags, mount};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Far beyond what anything here takes.
const LONG: Duration = Duration::from_secs(600);
const DISK_MIB: usize = 128;
/// The runtime keeps it twice: as it came, and unpacked.
const IMAGE_BYTES: usize = 8_000_000;

/// The time of the machine, but pauses end when the test says so.
struct SteppedClock {
    host: HostClock,
    steps: watch::Sender<usize>,
    /// Pauses that were begun.
    pauses: watch::Sender<usize>,
}

impl SteppedClock {
    fn new() -> Self {
        Self {
            host: HostClock::new(),
            steps: watch::Sender::new(0),
            pauses: watch::Sender::new(0),
        }
    }

    /// Ends the pause, and waits for the next one.
    async fn step(&self) -> Result<()> {
        let before = *self.pauses.borrow();
        self.steps.send_modify(|steps| *steps += 1);
        self.paused(before + 1).await
    }

    async fn paused(&self, count: usize) -> Result<()> {
        let mut pauses = self.pauses.subscribe();
        let paused = pauses.wait_for(|pauses| *pauses >= count);
        tokio::time::timeout(LONG, paused)
            .await
            .context("the round does not end")??;
        Ok(())
    }
}

impl Clock for SteppedClock {
    fn now(&self) -> Timestamp {
        self.host.now()
    }

    fn moment(&self) -> Moment {
        self.host.moment()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if duration.is_zero() {
            return async {}.boxed();
        }
        let mut steps = self.steps.subscribe();
        let end = *steps.borrow() + 1;
        self.pauses.send_modify(|pauses| *pauses += 1);
        async move {
            let _ = steps.wait_for(|steps| *steps >= end).await;
        }
        .boxed()
    }
}

/// The agent, as far as the collection asks it.
#[derive(Default)]
struct Agent {
    wanted: Mutex<Vec<Arc<Pod>>>,
    seen: Mutex<Vec<Arc<PodObservation>>>,
}

#[async_trait]
impl PodsToRun for Agent {
    async fn pods_to_run(&self) -> Result<Option<Vec<Arc<Pod>>>, NoAnswer> {
        Ok(Some(locked(&self.wanted).clone()))
    }
}

#[async_trait]
impl PodView for Agent {
    async fn pods(&self) -> Result<Vec<Arc<Pod>>, NoAnswer> {
        Ok(Vec::new())
    }

    async fn runtime_pods(&self) -> Result<Vec<Arc<PodObservation>>, RuntimeError> {
        Ok(locked(&self.seen).clone())
    }

    async fn runtime_pod(&self, uid: &PodUid) -> Result<Option<Arc<PodObservation>>, RuntimeError> {
        Ok(locked(&self.seen).iter().find(|pod| pod.uid == *uid).cloned())
    }

    async fn explanations(&self) -> Result<Vec<PodExplanation>, NoAnswer> {
        Ok(Vec::new())
    }

    async fn flight_record(&self, _: &str) -> Result<Option<Value>, NoAnswer> {
        Ok(None)
    }

    async fn events(&self) -> Result<Vec<Value>, NoAnswer> {
        Ok(Vec::new())
    }

    fn sync_loop_health(&self) -> Result<(), String> {
        Ok(())
    }
}

struct SmallDisk {
    containerd: Containerd,
    cri: Arc<CriClient>,
    agent: Arc<Agent>,
    clock: Arc<SteppedClock>,
    told: Arc<NodeEvents>,
    scope: Scope,
}

impl SmallDisk {
    async fn start(name: &str, flavour: Flavour) -> Result<Self> {
        let scope = Scope::new(name)?;
        let mut containerd = Containerd::start(&scope, flavour)?;
        containerd.terminate()?;
        let size = CString::new(format!("size={DISK_MIB}m"))?;
        let root = containerd.dir().join("root");
        mount(
            "tmpfs",
            &root,
            "tmpfs",
            MountFlags::empty(),
            Some(size.as_c_str()),
        )?;
        containerd.start_again()?;
        containerd.import(&pause()?)?;
        Ok(Self {
            cri: Arc::new(connect(&containerd).await?),
            scope,
            containerd,
            agent: Arc::default(),
            clock: Arc::new(SteppedClock::new()),
            told: Arc::default(),
        })
    }

    fn import(&self, names: &[&str]) -> Result<()> {
        for name in names {
            self.containerd.import(&unique_image(&full(name), IMAGE_BYTES)?)?;
        }
        Ok(())
    }

    /// A small image that the runtime keeps, whoever uses it.
    async fn pin(&self, name: &str) -> Result<()> {
        let name = full(name);
        self.containerd.import(&unique_image(&name, 1000)?)?;
        self.containerd
            .ctr(&["images", "label", &name, "io.cri-containerd.pinned=pinned"])?;
        wait_until("the image is pinned", LONG, || async {
            let images = self.cri.list_images(None).await?;
            let pinned = images.iter().find(|image| image.repo_tags.contains(&name));
            ensure!(pinned.context("no such image")?.pinned);
            Ok(())
        })
        .await
    }

    /// With one image more it is too full, and two have to go then by what the runtime says of their size.
    fn collect(&self) -> Result<GarbageHandle> {
        let disk = statvfs(self.containerd.dir().join("root"))?;
        let used_bytes = (disk.f_blocks - disk.f_bavail) * disk.f_frsize;
        let percent_with = |more_bytes: usize| -> Result<u8> {
            let bytes = used_bytes + more_bytes as u64;
            Ok(u8::try_from(bytes * 100 / (disk.f_blocks * disk.f_frsize))?)
        };
        let layout = Layout::of_this_machine(CgroupVersion::of_this_machine()?)?;
        let ports = GarbagePorts {
            clock: self.clock.clone(),
            spawner: Arc::new(TokioSpawner::new(Handle::current())),
            reader: self.cri.clone(),
            writer: self.cri.clone(),
            holders: Arc::new(NodeHolders {
                runtime: self.cri.clone(),
                seen: self.agent.clone(),
                to_run: self.agent.clone(),
            }),
            signals: Arc::new(HostSignals::new(&layout)),
            events: self.told.clone(),
            node: watch::channel(None).1,
            records: None,
            metrics: None,
        };
        let settings = GarbageSettings {
            high_percent: percent_with(IMAGE_BYTES)?,
            low_percent: percent_with(IMAGE_BYTES / 2)?,
            min_age: Duration::ZERO,
            max_age: Duration::ZERO,
            by_runtime_handler: false,
        };
        Ok(garbage::start(ports, settings))
    }

    /// A container that is made and not started has its image too.
    async fn create(&self, pod: &str, image: &str) -> Result<String> {
        let config = sandbox_config(&self.scope, pod)?;
        let sandbox = self.cri.run_pod_sandbox(config.clone(), "").await?;
        let container = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: "main".to_owned(),
                attempt: 0,
            }),
            image: Some(v1::ImageSpec {
                image: full(image),
                ..v1::ImageSpec::default()
            }),
            command: vec!["/nothing".to_owned()],
            log_path: "main.log".to_owned(),
            labels: [
                ("io.kubernetes.pod.namespace", "test"),
                ("io.kubernetes.pod.name", pod),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
            linux: Some(v1::LinuxContainerConfig {
                resources: Some(v1::LinuxContainerResources::default()),
                security_context: Some(v1::LinuxContainerSecurityContext {
                    namespace_options: Some(v1::NamespaceOption {
                        pid: v1::NamespaceMode::Container.into(),
                        ..v1::NamespaceOption::default()
                    }),
                    ..v1::LinuxContainerSecurityContext::default()
                }),
            }),
            ..v1::ContainerConfig::default()
        };
        Ok(self.cri.create_container(&sandbox, container, config).await?)
    }

    /// The images that are there, by their short names; that of sandboxes is `pause`.
    async fn there(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for image in self.cri.list_images(None).await? {
            let tag = image.repo_tags.first().context("an image without a name")?;
            names.push(match tag == PAUSE {
                true => "pause".to_owned(),
                false => short(tag).to_owned(),
            });
        }
        names.sort();
        Ok(names)
    }

    async fn containers(&self) -> Result<Vec<String>> {
        let listed = self.cri.list_containers(None).await?;
        Ok(listed.into_iter().map(|container| container.id).collect())
    }

    fn events(&self) -> Vec<String> {
        let events = self.told.take();
        events
            .into_iter()
            .map(|event| format!("{}: {}", event.reason, event.message))
            .collect()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn full(name: &str) -> String {
    format!("garbage.test/{name}:1")
}

fn short(tag: &str) -> &str {
    let name = tag.strip_prefix("garbage.test/").unwrap_or(tag);
    name.strip_suffix(":1").unwrap_or(name)
}

/// Fills the disk until images go, and until none is left that may.
pub(crate) async fn full_disk(test: &str, flavour: Flavour) -> Result<()> {
    let disk = SmallDisk::start(test, flavour).await?;
    // containerd 1.6 knows no pinning.
    let pins = flavour != Flavour::Debian;
    if pins {
        disk.pin("pinned").await?;
    }
    let with_pinned = |names: &[&str]| -> Vec<String> {
        let pinned = pins.then_some("pinned");
        let mut names: Vec<String> = names.iter().copied().chain(pinned).map(str::to_owned).collect();
        names.sort();
        names
    };
    disk.import(&["used", "wanted", "never", "earlier"])?;
    disk.create("one", "used").await?;
    let earlier = disk.create("two", "earlier").await?;
    let pod = json!({"metadata": {"namespace": "ns", "name": "new"},
        "spec": {"containers": [{"name": "main", "image": full("wanted")}]}});
    *locked(&disk.agent.wanted) = vec![Arc::new(serde_json::from_value(pod)?)];
    let handle = disk.collect()?;
    disk.clock.paused(1).await?;
    let there = disk.there().await?;
    ensure!(
        there == with_pinned(&["earlier", "never", "pause", "used", "wanted"]),
        "{there:?}"
    );
    ensure!(disk.events().is_empty());

    // One more, and it is too much. Those go first that were never used.
    disk.cri.remove_container(&earlier).await?;
    disk.import(&["late"])?;
    disk.clock.step().await?;
    let events = disk.events();
    ensure!(events.is_empty(), "{events:?}");
    let there = disk.there().await?;
    ensure!(
        there == with_pinned(&["earlier", "pause", "used", "wanted"]),
        "{there:?}"
    );

    // Somebody else fills the disk: what can go goes, and who holds the rest is told.
    let filler = disk.containerd.dir().join("root/filler");
    std::fs::write(&filler, vec![1; 40 << 20])?;
    disk.clock.step().await?;
    let events = disk.events();
    ensure!(events.len() == 1, "{events:?}");
    for part in [
        "FreeDiskSpaceFailed: Insufficient free disk space on the node's image filesystem (",
        "% of 128.0 MiB used). Failed to free sufficient space by deleting unused images (freed ",
        "garbage.test/used:1 7.6 MiB (used by test/one/main)",
        "garbage.test/wanted:1 7.6 MiB (used by ns/new/main)",
        match pins {
            true => "(pinned by the runtime)",
            false => "(used by the runtime, for sandboxes)",
        },
    ] {
        ensure!(events[0].contains(part), "{part:?} is not in {events:?}");
    }
    let there = disk.there().await?;
    ensure!(there == with_pinned(&["pause", "used", "wanted"]), "{there:?}");
    std::fs::remove_file(&filler)?;

    // Nobody uses them any more, but one is mounted. Asked for, all that can go goes at once.
    locked(&disk.agent.wanted).clear();
    let mounted = mounted(&disk, "used").await?;
    locked(&disk.agent.seen).push(mounted);
    for container in disk.containers().await? {
        disk.cri.remove_container(&container).await?;
    }
    let freed = handle.free_unused().await?;
    ensure!(
        freed.images == 1 && freed.bytes > IMAGE_BYTES as u64 / 2,
        "{freed:?}"
    );
    let there = disk.there().await?;
    ensure!(there == with_pinned(&["pause", "used"]), "{there:?}");
    Ok(())
}

/// A pod with the image as a volume, as the agent sees it.
async fn mounted(disk: &SmallDisk, image: &str) -> Result<Arc<PodObservation>> {
    let spec = v1::ImageSpec {
        image: full(image),
        ..v1::ImageSpec::default()
    };
    let status = disk.cri.image_status(spec, false).await?;
    let id = status.image.context("no such image")?.id;
    let mut container =
        ContainerObservation::new("c", "main", "s", ContainerState::Created, Timestamp::EPOCH);
    container.mounts.push(ContainerMount {
        container_path: "/data".to_owned(),
        image: Some(id),
        ..ContainerMount::default()
    });
    let identity = ("uid".into(), "ns".to_owned(), "pod".to_owned());
    Ok(Arc::new(PodObservation::new(
        identity,
        Vec::new(),
        vec![container],
        Timestamp::EPOCH,
    )))
}

/// An image that shares nothing with another one, of about this size: its bytes do not compress.
pub(crate) fn unique_image(name: &str, size_bytes: usize) -> Result<ImageArchive> {
    let mut state = name.bytes().fold(0x9e37_79b9_7f4a_7c15_u64, |state, byte| {
        state.wrapping_mul(31) ^ u64::from(byte)
    });
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    });
    let bytes: Vec<u8> = noise.take(size_bytes).collect();
    Image::new(name)
        .layer(Layer::new().file("noise", bytes, 0o644))
        .archive()
}
