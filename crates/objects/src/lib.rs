//! API objects that pods of this node refer to: ConfigMaps, Secrets, Services, RuntimeClasses, tokens, trust bundles, certificates.
//!
//! Owns watches, caches and renewals; those of ConfigMaps and Secrets are reference-counted by pod. It reports the pods to sync when an
//! object changes. It must not know what an object is used for: variables and files are made elsewhere. A Secret leaves it only as
//! the answer to a query.
//!
//! ```text
//! agent ── register, unregister ──► Pods ──► Named<ConfigMap>, Named<Secret>  one task per object
//!       ◄── changes ────────────────┘   └──► WholeSet<Services, ...>          one task per set, from the first query on
//! containers, volumes ── queries ────────────► Tokens, TrustBundles, Certificates
//!                                              housekeeping: due tokens, idle objects
//! ```

mod certificates;
mod changed_pods;
mod kinds;
mod label_selector;
mod named;
mod pods;
pub mod references;
mod runtime_classes;
mod services;
mod table;
mod tokens;
mod trust;
mod ttl;
mod whole_set;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use rubelet_model::observation::PodUid;
use rubelet_ports::api::{Change, NodeReader, ObjectReader, TokenIssuer};
use rubelet_ports::{
    Clock, EventRecorder, FileReader, ObjectFailure, PodCertificate, PodObjects, Randomness, Spawner, Token,
    TokenQuestion, TrustQuestion,
};
use rubelet_storage::PodLayout;
use rubelet_storage::layout::{PROJECTED, pods_directory};

use crate::certificates::Certificates;
use crate::kinds::Kind;
use crate::named::Named;
use crate::pods::{Difference, Pods, namespace_of, uid_of};
use crate::references::{Purpose, References, TokenPlace, TokenWish};
use crate::runtime_classes::RuntimeClasses;
use crate::services::Services;
use crate::table::Key;
use crate::tokens::{TokenFile, Tokens};
use crate::trust::TrustBundles;
use crate::ttl::ObjectTtl;
use crate::whole_set::WholeSet;

pub use crate::certificates::{KeyAndProof, KeyError, KeyMaker, KeyType, make_key};
pub use crate::named::ChangeDetection;

/// Housekeeping looks at least so often.
const HOUSEKEEPING: Duration = Duration::from_secs(60);
/// Objects that are only read when a container starts are not followed for longer than this many times the sync frequency.
const IDLE_SYNCS: u32 = 5;
const MIN_IDLE: Duration = Duration::from_secs(60);

/// The ports that objects need.
#[derive(Clone)]
pub struct ObjectsPorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub randomness: Arc<dyn Randomness>,
    pub reader: Arc<dyn ObjectReader>,
    pub node: Arc<dyn NodeReader>,
    pub tokens: Arc<dyn TokenIssuer>,
    /// Reads the tokens that volumes show since before rubelet started.
    pub files: Arc<dyn FileReader>,
    pub certificates: Arc<dyn rubelet_ports::api::PodCertificates>,
    pub keys: Arc<dyn KeyMaker>,
    pub events: Arc<dyn EventRecorder>,
}

#[derive(Clone, Debug)]
pub struct ObjectsSettings {
    pub node_name: String,
    /// `configMapAndSecretChangeDetectionStrategy`
    pub detection: ChangeDetection,
    /// `syncFrequency`
    pub sync_frequency: Duration,
    /// `maxPods`
    pub max_pods: usize,
    /// `--root-dir`
    pub root_dir: PathBuf,
}

/// The objects of a node's pods.
#[derive(Clone)]
pub struct Objects {
    shared: Arc<Shared>,
}

struct Shared {
    settings: ObjectsSettings,
    ports: ObjectsPorts,
    pods: Arc<Pods>,
    /// Held while a pod comes, changes or goes, so that what follows from it keeps that order.
    turn: Mutex<()>,
    config_maps: Arc<Named<ConfigMap>>,
    secrets: Arc<Named<Secret>>,
    services: Arc<WholeSet<Services>>,
    runtime_classes: Arc<WholeSet<RuntimeClasses>>,
    trust: Arc<WholeSet<TrustBundles>>,
    tokens: Tokens,
    certificates: Arc<Certificates>,
    ttl: Arc<ObjectTtl>,
}

impl Objects {
    /// Begins with housekeeping; nothing is followed before a pod needs it.
    #[must_use]
    pub fn start(settings: ObjectsSettings, ports: ObjectsPorts) -> Self {
        let shared = Arc::new(Shared::new(settings, ports));
        let spawner = &shared.ports.spawner;
        spawner.spawn("objects of pods", Box::pin(Arc::clone(&shared).keep_house()));
        if shared.settings.detection == ChangeDetection::Cache {
            spawner.spawn("lifetime of objects", Box::pin(Arc::clone(&shared).follow_ttl()));
        }
        Self { shared }
    }

    /// How many certificates of each signer are in which state (`kubelet_podcertificate_states`).
    #[must_use]
    pub fn certificate_states(&self) -> BTreeMap<(String, &'static str), usize> {
        self.shared.certificates.states()
    }
}

impl Shared {
    fn new(settings: ObjectsSettings, ports: ObjectsPorts) -> Self {
        let pods = Arc::<Pods>::default();
        let ttl = Arc::<ObjectTtl>::default();
        let means = named::Means {
            detection: settings.detection,
            reader: Arc::clone(&ports.reader),
            clock: Arc::clone(&ports.clock),
            spawner: Arc::clone(&ports.spawner),
            changed: Arc::clone(&pods.changed),
            ttl: Arc::clone(&ttl),
        };
        let services = Services {
            reader: Arc::clone(&ports.reader),
            pods: Arc::clone(&pods),
            refused: Mutex::default(),
        };
        let classes = RuntimeClasses {
            reader: Arc::clone(&ports.reader),
            pods: Arc::clone(&pods),
        };
        let seed = ports.randomness.number();
        let (reader, limit) = (Arc::clone(&ports.reader), settings.max_pods.saturating_mul(2));
        let trust = TrustBundles::new(reader, Arc::clone(&pods), seed, limit);
        let certificates = certificates::Means {
            node_name: settings.node_name.clone(),
            reader: Arc::clone(&ports.reader),
            node: Arc::clone(&ports.node),
            requests: Arc::clone(&ports.certificates),
            keys: Arc::clone(&ports.keys),
            events: Arc::clone(&ports.events),
            clock: Arc::clone(&ports.clock),
            spawner: Arc::clone(&ports.spawner),
            randomness: Arc::clone(&ports.randomness),
            pods: Arc::clone(&pods),
        };
        let edges = || (Arc::clone(&ports.clock), Arc::clone(&ports.spawner));
        let (clock, spawner) = edges();
        let services = WholeSet::new(services, clock, spawner);
        let (clock, spawner) = edges();
        let runtime_classes = WholeSet::new(classes, clock, spawner);
        let (clock, spawner) = edges();
        let trust = WholeSet::new(trust, clock, spawner);
        Self {
            config_maps: Named::new(means.clone()),
            secrets: Named::new(means),
            services,
            runtime_classes,
            trust,
            tokens: Tokens::new(
                Arc::clone(&ports.tokens),
                Arc::clone(&ports.files),
                Arc::clone(&ports.clock),
                Arc::clone(&ports.randomness),
            ),
            certificates: Certificates::new(certificates),
            ttl,
            pods,
            turn: Mutex::default(),
            settings,
            ports,
        }
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, uid: &PodUid, namespace: &str, difference: &Difference) {
        let Difference { old, new } = difference;
        let none = References::default();
        let old = old.as_deref().unwrap_or(&none);
        // What is new comes first, so that an object that both need is not let go in between.
        refer(&self.config_maps, uid, namespace, &new.config_maps);
        refer(&self.secrets, uid, namespace, &new.secrets);
        release(
            &self.config_maps,
            uid,
            namespace,
            &old.config_maps,
            &new.config_maps,
        );
        release(&self.secrets, uid, namespace, &old.secrets, &new.secrets);
        if !new.trust.is_empty() {
            self.trust.begin();
        }
        self.certificates.register(uid, &new.certificates);
    }

    /// Gets the pod's tokens ahead, from its volumes or from the API server, so that its volumes find them ready. A failure here is not final: the volumes ask again.
    fn fetch_tokens(self: &Arc<Self>, pod: &Arc<Pod>, difference: &Difference) {
        let known = |wish: &TokenWish| {
            let old = difference.old.as_ref();
            old.is_some_and(|old| old.tokens.contains_key(wish))
        };
        let wishes = difference.new.tokens.iter();
        let wishes = wishes.filter(|(wish, _)| !known(wish));
        let layout = PodLayout::new(&pods_directory(&self.settings.root_dir), &uid_of(pod));
        let mut questions = Vec::new();
        for (wish, places) in wishes {
            let question = question(pod, wish);
            let files = places.iter().map(|place| token_file(&layout, place));
            self.tokens.look_into(&question, files.collect());
            questions.push(question);
        }
        if questions.is_empty() {
            return;
        }
        let shared = Arc::clone(self);
        let fetch = async move {
            let asked = questions.iter().map(|question| shared.tokens.token(question));
            join_all(asked).await;
        };
        self.ports.spawner.spawn("tokens of a pod", Box::pin(fetch));
    }

    /// Queues pods whose tokens are due, and ends the watches of objects that no pod reads.
    async fn keep_house(self: Arc<Self>) {
        let idle = self
            .settings
            .sync_frequency
            .saturating_mul(IDLE_SYNCS)
            .max(MIN_IDLE);
        let mut told_files = self.ports.clock.moment();
        loop {
            let due = self.tokens.take_due();
            self.pods.changed.add(due.pods);
            self.config_maps.stop_idle(idle);
            self.secrets.stop_idle(idle);
            let now = self.ports.clock.moment();
            let mut wait = due.next.unwrap_or(HOUSEKEEPING).min(HOUSEKEEPING);
            if self.settings.detection != ChangeDetection::Watch {
                // Without watches no change is seen: files are refreshed as often as pods are synced.
                if now.since(told_files) >= self.settings.sync_frequency {
                    told_files = now;
                    self.pods
                        .resync_where(|registered| registered.references.has_files());
                }
                let next = told_files.plus(self.settings.sync_frequency);
                wait = wait.min(next.since(now));
            }
            // Both may be dropped: the next turn looks again.
            tokio::select! {
                biased;
                () = self.tokens.news.notified() => {}
                () = self.ports.clock.sleep(wait) => {}
            }
        }
    }

    async fn follow_ttl(self: Arc<Self>) {
        let mut changes = self.ports.node.follow_node(&self.settings.node_name);
        while let Some(change) = changes.next().await {
            let node = match &change {
                Change::All(nodes) => nodes.first(),
                Change::Applied(node) => Some(node),
                Change::Deleted(_) => None,
                Change::Broken(_) | Change::Resumed => continue,
            };
            self.ttl.set(node.and_then(|node| ttl::ttl_of(node)));
        }
    }
}

fn token_file(layout: &PodLayout, place: &TokenPlace) -> TokenFile {
    TokenFile {
        directory: layout.volume(PROJECTED, &place.volume),
        path: PathBuf::from(&place.path),
    }
}

fn question(pod: &Pod, wish: &TokenWish) -> TokenQuestion {
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.clone());
    TokenQuestion {
        namespace: namespace_of(pod).to_owned(),
        service_account: account.unwrap_or_default(),
        audiences: wish.audience.iter().cloned().collect(),
        expiration_seconds: wish.expiration_seconds,
        pod_name: pod.metadata.name.clone().unwrap_or_default(),
        pod_uid: pod.metadata.uid.clone().unwrap_or_default(),
    }
}

fn refer<T: Kind>(named: &Arc<Named<T>>, uid: &PodUid, namespace: &str, names: &BTreeMap<String, Purpose>) {
    for (name, purpose) in names {
        named.refer(&Key::new(namespace, name), uid, *purpose);
    }
}

fn release<T: Kind>(
    named: &Named<T>,
    uid: &PodUid,
    namespace: &str,
    old: &BTreeMap<String, Purpose>,
    new: &BTreeMap<String, Purpose>,
) {
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        named.release(&Key::new(namespace, name), uid);
    }
}

#[async_trait]
impl PodObjects for Objects {
    fn register(&self, pod: &Arc<Pod>) {
        let shared = &self.shared;
        let uid = uid_of(pod);
        let _turn = shared.turn();
        if let Some(difference) = shared.pods.register(&uid, pod) {
            shared.services.begin();
            let spec = pod.spec.as_ref();
            if spec.is_some_and(|spec| spec.runtime_class_name.is_some()) {
                shared.runtime_classes.begin();
            }
            shared.apply(&uid, namespace_of(pod), &difference);
            shared.fetch_tokens(pod, &difference);
        }
    }

    fn unregister(&self, uid: &PodUid) {
        let shared = &self.shared;
        let _turn = shared.turn();
        if let Some(gone) = shared.pods.unregister(uid) {
            let difference = Difference {
                old: Some(gone.references),
                new: Arc::default(),
            };
            shared.apply(uid, namespace_of(&gone.pod), &difference);
        }
        shared.tokens.forget(uid);
    }

    fn changes(&self) -> BoxStream<'static, PodUid> {
        Arc::clone(&self.shared.pods.changed).stream()
    }

    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectFailure> {
        self.shared.config_maps.get(&Key::new(namespace, name)).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectFailure> {
        self.shared.secrets.get(&Key::new(namespace, name)).await
    }

    async fn services(&self, namespace: &str) -> Result<Vec<Arc<Service>>, ObjectFailure> {
        services::services_of(&self.shared.services, namespace).await
    }

    async fn runtime_class(&self, name: &str) -> Result<Arc<RuntimeClass>, ObjectFailure> {
        runtime_classes::runtime_class(&self.shared.runtime_classes, name).await
    }

    async fn token(&self, question: &TokenQuestion) -> Result<Token, ObjectFailure> {
        self.shared.tokens.token(question).await
    }

    async fn trust_bundle(&self, question: &TrustQuestion) -> Result<Arc<str>, ObjectFailure> {
        trust::trust_bundle(&self.shared.trust, question).await
    }

    async fn pod_certificate(
        &self,
        pod: &Arc<Pod>,
        volume: &str,
        source: usize,
    ) -> Result<PodCertificate, ObjectFailure> {
        self.shared.certificates.certificate(&uid_of(pod), volume, source)
    }
}
