//! Objects of pods, an API server in memory, and a virtual clock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use rubelet_fakes::events::Recorded;
use rubelet_fakes::{PodEvents, SameNumber, Tasks, TokioClock};
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_objects::{
    ChangeDetection, KeyAndProof, KeyError, KeyMaker, KeyType, Objects, ObjectsPorts, ObjectsSettings,
};
use rubelet_ports::{ObjectFailure, PodObjects as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::FakeApi;
use crate::volume_files::{ROOT_DIR, VolumeFiles};

/// The node's wall clock at the start of every test.
pub(crate) const EPOCH_SECONDS: i64 = 1_000_000;
/// What everything random is below a longer limit.
pub(crate) const JITTER: Duration = Duration::from_secs(7);

/// How long a key takes.
#[derive(Clone, Default)]
pub(crate) struct Keys(Arc<Mutex<KeyMaking>>);

#[derive(Default)]
struct KeyMaking {
    takes: Duration,
    at_once: usize,
    most_at_once: usize,
}

impl Keys {
    pub(crate) fn take(&self, time: Duration) {
        self.0.lock().unwrap().takes = time;
    }

    pub(crate) fn most_at_once(&self) -> usize {
        self.0.lock().unwrap().most_at_once
    }
}

#[async_trait]
impl KeyMaker for Keys {
    async fn make(&self, key_type: KeyType) -> Result<KeyAndProof, KeyError> {
        let takes = {
            let mut making = self.0.lock().unwrap();
            making.at_once += 1;
            making.most_at_once = making.most_at_once.max(making.at_once);
            making.takes
        };
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        self.0.lock().unwrap().at_once -= 1;
        rubelet_objects::make_key(key_type)
    }
}

pub(crate) struct Bed {
    pub(crate) api: FakeApi,
    pub(crate) objects: Objects,
    pub(crate) start: Instant,
    pub(crate) keys: Keys,
    /// What volumes show.
    pub(crate) files: VolumeFiles,
    events: Arc<PodEvents>,
    changes: BoxStream<'static, PodUid>,
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::with(ChangeDetection::Watch, 0)
    }

    /// The API server's clock may be ahead of the node's.
    pub(crate) fn with(detection: ChangeDetection, ahead_seconds: i64) -> Self {
        let start = Instant::now();
        let api = FakeApi::new(start, ahead_seconds);
        let edge = Arc::new(api.clone());
        let events = Arc::<PodEvents>::default();
        let keys = Keys::default();
        let files = VolumeFiles::default();
        let ports = ObjectsPorts {
            clock: Arc::new(TokioClock::since(
                start,
                Timestamp::from_unix_seconds(EPOCH_SECONDS),
            )),
            spawner: Arc::<Tasks>::default(),
            randomness: Arc::new(SameNumber(JITTER)),
            reader: edge.clone(),
            node: edge.clone(),
            tokens: edge.clone(),
            files: Arc::new(files.clone()),
            certificates: edge,
            keys: Arc::new(keys.clone()),
            events: events.clone(),
        };
        let settings = ObjectsSettings {
            node_name: "node".to_owned(),
            detection,
            sync_frequency: Duration::from_secs(60),
            max_pods: 110,
            root_dir: ROOT_DIR.into(),
        };
        let objects = Objects::start(settings, ports);
        let changes = objects.changes();
        Self {
            api,
            objects,
            start,
            keys,
            files,
            events,
            changes,
        }
    }

    pub(crate) fn register(&self, uid: &str, spec: Value) -> Arc<Pod> {
        let pod = pod(uid, spec);
        self.objects.register(&pod);
        pod
    }

    pub(crate) fn unregister(&self, uid: &str) {
        self.objects.unregister(&PodUid::from(uid));
    }

    /// Waits for the next pods to sync, as many as are named.
    pub(crate) async fn told(&mut self, uids: &[&str]) {
        let mut found = Vec::new();
        for _ in uids {
            let next = tokio::time::timeout(Duration::from_secs(100_000), self.changes.next());
            found.push(next.await.expect("somebody is told").unwrap());
        }
        found.sort();
        let expected: Vec<PodUid> = uids.iter().map(|uid| PodUid::from(*uid)).collect();
        assert_eq!(found, expected);
    }

    /// No pod is to sync for this time.
    pub(crate) async fn nobody_told(&mut self, duration: Duration) {
        let next = tokio::time::timeout(duration, self.changes.next());
        assert_eq!(next.await.ok(), None, "somebody was told");
    }

    /// Lets all tasks run until each of them waits for something.
    pub(crate) async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.events.all().iter().map(Recorded::typed_text).collect()
    }

    /// The value of key `k` of a ConfigMap in namespace `n`.
    pub(crate) async fn config_map(&self, name: &str) -> Result<String, ObjectFailure> {
        let map = self.objects.config_map("n", name).await?;
        Ok(map.data.as_ref().unwrap()["k"].clone())
    }
}

pub(crate) fn pod(uid: &str, spec: Value) -> Arc<Pod> {
    let mut spec = spec;
    let fields = spec.as_object_mut().unwrap();
    fields
        .entry("containers")
        .or_insert_with(|| json!([{"name": "c"}]));
    fields
        .entry("serviceAccountName")
        .or_insert_with(|| json!("account"));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod-{uid}"), "namespace": "n", "uid": uid},
        "spec": spec,
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// A pod spec with a volume of this ConfigMap.
pub(crate) fn with_volume(config_map: &str) -> Value {
    json!({"volumes": [{"name": "v", "configMap": {"name": config_map}}]})
}

/// A pod spec with variables of this ConfigMap.
pub(crate) fn with_variables(config_map: &str) -> Value {
    json!({"containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": config_map}}]}]})
}

pub(crate) fn config_map(name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "n"},
        "data": {"k": value},
    })
}

pub(crate) fn immutable(name: &str, value: &str) -> Value {
    let mut map = config_map(name, value);
    map["immutable"] = json!(true);
    map
}

pub(crate) fn not_found(text: &str) -> ObjectFailure {
    ObjectFailure::NotFound(text.to_owned())
}

pub(crate) fn unavailable(text: &str) -> ObjectFailure {
    ObjectFailure::Unavailable(text.to_owned())
}
