//! A simulated machine with the actor on it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use rubelet_fakes::PodEvents;
use rubelet_fakes::events::Recorded;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::{
    Clock, HostIps, PodObjects, PodOnDisk, PodVolumes, VolumeBatch, VolumeFailure, VolumeHostReader,
    VolumeHostWriter, VolumeStepError,
};
use rubelet_resources::amounts::MEMORY;
use rubelet_resources::{Amounts, CgroupVersion, NodeFacts, Rules};
use rubelet_sim::dice::SharedDice;
use rubelet_sim::executor::{Executor, Group, Life, Step};
use rubelet_sim::files::SimFiles;
use rubelet_sim::history::History;
use rubelet_sim::trace::Trace;
use rubelet_sim::volumes::SimVolumes;
use rubelet_storage::{StorageGates, StorageNode};
use rubelet_volumes::{Volumes, VolumesMetrics, VolumesPorts, VolumesSettings};
use serde_json::{Value, json};

use crate::objects::FakeObjects;

pub(crate) const ROOT: &str = "/var/lib/kubelet";

/// Counts what reaches the machine.
struct Counted {
    machine: SimVolumes,
    batches: Mutex<Vec<VolumeBatch>>,
}

#[async_trait]
impl VolumeHostWriter for Counted {
    async fn execute(&self, batch: VolumeBatch) -> Vec<VolumeStepError> {
        self.batches.lock().unwrap().push(batch.clone());
        self.machine.execute(batch).await
    }
}

#[async_trait]
impl VolumeHostReader for Counted {
    async fn pods_on_disk(&self, pods: &Path) -> Result<Vec<PodOnDisk>, VolumeStepError> {
        self.machine.pods_on_disk(pods).await
    }

    async fn pod_on_disk(&self, pods: &Path, uid: &PodUid) -> Result<PodOnDisk, VolumeStepError> {
        self.machine.pod_on_disk(pods, uid).await
    }
}

/// The events since the last look.
pub(crate) fn texts(events: &PodEvents) -> Vec<String> {
    events.take().iter().map(Recorded::text).collect()
}

/// The node's addresses, which change.
#[derive(Default)]
pub(crate) struct Addresses(Mutex<Vec<IpAddr>>);

impl Addresses {
    pub(crate) fn set(&self, address: &str) {
        *self.0.lock().unwrap() = vec![address.parse().unwrap()];
    }
}

impl HostIps for Addresses {
    fn host_ips(&self) -> Vec<IpAddr> {
        self.0.lock().unwrap().clone()
    }
}

pub(crate) struct Bed {
    pub(crate) executor: Executor,
    pub(crate) machine: SimVolumes,
    pub(crate) files: SimFiles,
    pub(crate) actor: Volumes,
    pub(crate) life: Life,
    /// `None` on a node without an API server.
    pub(crate) objects: Option<Arc<FakeObjects>>,
    pub(crate) addresses: Arc<Addresses>,
    host: Arc<Counted>,
    events: Arc<PodEvents>,
}

/// A question under way.
pub(crate) struct Asked<T>(tokio::sync::oneshot::Receiver<T>);

impl Bed {
    pub(crate) fn new() -> Self {
        let objects = FakeObjects::default();
        objects.put_config_map("settings", &[("a", "1"), ("b", "2")], &[]);
        objects.put_secret("keys", &[("word", b"hush")]);
        Self::with(Some(Arc::new(objects)))
    }

    pub(crate) fn with(objects: Option<Arc<FakeObjects>>) -> Self {
        let executor = Executor::new(7);
        let (history, trace) = (History::default(), Trace::default());
        let dice = |part| SharedDice::new(7, part);
        let manifests = Path::new("/etc/manifests");
        let files = SimFiles::new(
            &executor,
            dice("files"),
            history.clone(),
            trace.clone(),
            manifests,
        );
        let machine = SimVolumes::new(&executor, dice("volumes"), history, trace, files.clone());
        let host = Arc::new(Counted {
            machine: machine.clone(),
            batches: Mutex::default(),
        });
        let events = Arc::new(PodEvents::default());
        let addresses = Arc::new(Addresses::default());
        let (life, actor) = start(&executor, &host, &events, objects.as_ref(), &addresses);
        Self {
            executor,
            machine,
            files,
            actor,
            life,
            objects,
            addresses,
            host,
            events,
        }
    }

    /// The process dies where it is, and a new one begins.
    pub(crate) fn restart(&mut self) {
        self.life.end();
        let objects = self.objects.as_ref();
        (self.life, self.actor) = start(&self.executor, &self.host, &self.events, objects, &self.addresses);
    }

    pub(crate) fn objects(&self) -> &FakeObjects {
        self.objects.as_ref().unwrap()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.executor.now()
    }

    /// The events since the last look.
    pub(crate) fn events(&self) -> Vec<String> {
        texts(&self.events)
    }

    /// The batches since the last look.
    pub(crate) fn batches(&self) -> Vec<VolumeBatch> {
        std::mem::take(&mut *self.host.batches.lock().unwrap())
    }

    pub(crate) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(Volumes) -> futures_util::future::BoxFuture<'static, T>,
    ) -> Asked<T> {
        let answer = question(self.actor.clone());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.executor.spawn(
            Group::World,
            "question",
            Box::pin(async move {
                let _ = sender.send(answer.await);
            }),
        );
        Asked(receiver)
    }

    /// Lets one thing happen; time passes when nothing is ready.
    pub(crate) fn step(&self) {
        if self.executor.step() == Step::Idle {
            self.executor
                .advance(self.executor.elapsed() + Duration::from_secs(1));
        }
    }

    /// The answer, within so much time.
    #[track_caller]
    pub(crate) fn answer_within<T>(&self, asked: &mut Asked<T>, limit: Duration) -> T {
        let end = self.executor.elapsed() + limit;
        while self.executor.elapsed() <= end {
            if let Some(answer) = (&mut asked.0).now_or_never() {
                return answer.expect("an answer");
            }
            self.step();
        }
        panic!("no answer within {limit:?}");
    }

    pub(crate) fn set_up(&self, pod: &Pod) -> Result<(), VolumeFailure> {
        let pod = Arc::new(pod.clone());
        let mut asked = self.ask(|actor| Box::pin(async move { actor.set_up(pod).await }));
        self.answer_within(&mut asked, Duration::from_secs(60))
    }

    pub(crate) fn tear_down(&self, uid: &str) -> Result<(), VolumeFailure> {
        let uid = PodUid::from(uid);
        let mut asked = self.ask(|actor| Box::pin(async move { actor.tear_down(&uid).await }));
        self.answer_within(&mut asked, Duration::from_secs(120))
    }

    pub(crate) fn pass(&self, time: Duration) {
        let end = self.executor.elapsed() + time;
        while self.executor.elapsed() < end {
            if self.executor.step() == Step::Idle {
                self.executor.advance(end);
            }
        }
    }

    /// Mounts and paths of all pods.
    pub(crate) fn left(&self) -> Vec<String> {
        let paths = self.files.paths_below(&pods());
        let is_volume = |path: &PathBuf| {
            let relative = path.strip_prefix(pods()).unwrap().to_owned();
            relative.components().count() > 3
        };
        let paths = paths
            .iter()
            .filter(|path| is_volume(path))
            .map(|path| path.display().to_string());
        self.machine.leftovers().into_iter().chain(paths).collect()
    }
}

fn start(
    executor: &Executor,
    host: &Arc<Counted>,
    events: &Arc<PodEvents>,
    objects: Option<&Arc<FakeObjects>>,
    addresses: &Arc<Addresses>,
) -> (Life, Volumes) {
    let life = executor.life();
    let ports = VolumesPorts {
        clock: Arc::new(executor.clone()),
        spawner: Arc::new(life.clone()),
        events: events.clone(),
        reader: host.clone(),
        writer: host.clone(),
        objects: objects.map(|objects| Arc::clone(objects) as Arc<dyn PodObjects>),
        host_ips: addresses.clone(),
        metrics: VolumesMetrics::register(&prometheus::Registry::new()).unwrap(),
    };
    let settings = settings(Path::new(ROOT));
    (life, Volumes::new(ports, settings))
}

pub(crate) fn settings(root_dir: &Path) -> VolumesSettings {
    let mut allocatable = Amounts::default();
    allocatable.set(MEMORY, "1Gi".parse().unwrap());
    VolumesSettings {
        root_dir: root_dir.to_owned(),
        node: StorageNode {
            rules: Rules::default(),
            facts: NodeFacts {
                cgroup: CgroupVersion::V2,
                page_size_bytes: 4096,
                huge_page_sizes: Vec::new(),
                memory_capacity_bytes: 1 << 30,
                swap_capacity_bytes: 0,
                has_swap_controller: false,
                allocatable,
            },
            host_ips: Vec::new(),
            is_selinux_enabled: false,
            gates: StorageGates::default(),
        },
    }
}

pub(crate) fn pods() -> PathBuf {
    Path::new(ROOT).join("pods")
}

pub(crate) fn volume(uid: &str, plugin: &str, name: &str) -> PathBuf {
    pods().join(uid).join("volumes").join(plugin).join(name)
}

/// A pod whose one container mounts all volumes.
pub(crate) fn pod(uid: &str, volumes: Value) -> Pod {
    let mounts: Vec<Value> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|one| json!({ "name": one["name"], "mountPath": format!("/v/{}", one["name"].as_str().unwrap()) }))
        .collect();
    serde_json::from_value(json!({
        "metadata": { "name": uid, "namespace": "default", "uid": uid, "annotations": { "revision": "1" } },
        "spec": { "containers": [{ "name": "main", "volumeMounts": mounts }], "volumes": volumes },
    }))
    .unwrap()
}

pub(crate) fn all_kinds() -> Value {
    json!([
        { "name": "disk", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory" } },
        { "name": "info", "downwardAPI": { "items": [{ "path": "revision", "fieldRef": { "fieldPath": "metadata.annotations['revision']" } }] } },
        { "name": "host", "hostPath": { "path": "/srv/host", "type": "DirectoryOrCreate" } },
    ])
}

/// Volumes that show objects of the API server.
pub(crate) fn api_kinds() -> Value {
    json!([
        { "name": "map", "configMap": { "name": "settings" } },
        { "name": "key", "secret": { "secretName": "keys", "defaultMode": 0o400 } },
        { "name": "access", "projected": { "sources": [
            { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
            { "configMap": { "name": "settings", "items": [{ "key": "a", "path": "ca.crt" }] } },
            { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
        ] } },
    ])
}

pub(crate) fn every_kind() -> Value {
    let lists = [all_kinds(), api_kinds()];
    lists
        .iter()
        .flat_map(|list| list.as_array().unwrap().clone())
        .collect()
}
