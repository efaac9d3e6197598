//! API objects that tests put there by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt as _, unfold};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use rubelet_model::observation::PodUid;
use rubelet_ports::{ObjectFailure, PodCertificate, PodObjects, Token, TokenQuestion, TrustQuestion};
use tokio::sync::mpsc;

#[derive(Default)]
struct Store {
    config_maps: BTreeMap<String, Arc<ConfigMap>>,
    secrets: BTreeMap<String, Arc<Secret>>,
    services: Option<Vec<Arc<Service>>>,
    classes: BTreeMap<String, Arc<RuntimeClass>>,
    /// Names that get no answer.
    hanging: BTreeSet<String>,
    registered: BTreeSet<PodUid>,
    listener: Option<mpsc::UnboundedSender<PodUid>>,
}

/// Everything is found by its name alone, whatever the namespace.
#[derive(Clone, Default)]
pub struct SimObjects {
    store: Arc<Mutex<Store>>,
}

impl SimObjects {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_all(&self) {
        let store = self.store();
        if let Some(listener) = &store.listener {
            for uid in &store.registered {
                // Nobody listens between two lives.
                let _ = listener.send(uid.clone());
            }
        }
    }

    pub fn put_config_map(&self, map: ConfigMap) {
        let name = map.metadata.name.clone().unwrap_or_default();
        self.store().config_maps.insert(name, Arc::new(map));
        self.tell_all();
    }

    pub fn put_secret(&self, secret: Secret) {
        let name = secret.metadata.name.clone().unwrap_or_default();
        self.store().secrets.insert(name, Arc::new(secret));
        self.tell_all();
    }

    pub fn put_class(&self, class: RuntimeClass) {
        let name = class.metadata.name.clone().unwrap_or_default();
        self.store().classes.insert(name, Arc::new(class));
        self.tell_all();
    }

    /// From now on ConfigMaps and classes of this name are asked for in vain.
    pub fn hang(&self, name: &str) {
        self.store().hanging.insert(name.to_owned());
    }

    async fn answers(&self, name: &str) {
        if self.store().hanging.contains(name) {
            std::future::pending::<()>().await;
        }
    }

    /// From now on services are known.
    pub fn set_services(&self, services: Vec<Service>) {
        self.store().services = Some(services.into_iter().map(Arc::new).collect());
        self.tell_all();
    }

    /// The pods that need objects now.
    #[must_use]
    pub fn registered(&self) -> BTreeSet<PodUid> {
        self.store().registered.clone()
    }
}

fn found<T>(map: &BTreeMap<String, Arc<T>>, kind: &str, name: &str) -> Result<Arc<T>, ObjectFailure> {
    let missing = || ObjectFailure::NotFound(format!("{kind} {name:?} not found"));
    map.get(name).cloned().ok_or_else(missing)
}

fn not_simulated() -> ObjectFailure {
    ObjectFailure::Unavailable("not simulated".to_owned())
}

#[async_trait]
impl PodObjects for SimObjects {
    fn register(&self, pod: &Arc<Pod>) {
        let uid = PodUid::new(pod.metadata.uid.clone().unwrap_or_default());
        self.store().registered.insert(uid);
    }

    fn unregister(&self, uid: &PodUid) {
        self.store().registered.remove(uid);
    }

    fn changes(&self) -> BoxStream<'static, PodUid> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.store().listener = Some(sender);
        unfold(receiver, |mut receiver| async move {
            let uid = receiver.recv().await?;
            Some((uid, receiver))
        })
        .boxed()
    }

    async fn config_map(&self, _: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectFailure> {
        self.answers(name).await;
        found(&self.store().config_maps, "configmap", name)
    }

    async fn secret(&self, _: &str, name: &str) -> Result<Arc<Secret>, ObjectFailure> {
        found(&self.store().secrets, "secret", name)
    }

    async fn services(&self, _: &str) -> Result<Vec<Arc<Service>>, ObjectFailure> {
        self.store().services.clone().ok_or_else(|| {
            let text = "services have not yet been read at least once, cannot construct envvars";
            ObjectFailure::Unavailable(text.to_owned())
        })
    }

    async fn runtime_class(&self, name: &str) -> Result<Arc<RuntimeClass>, ObjectFailure> {
        self.answers(name).await;
        found(&self.store().classes, "runtimeclass.node.k8s.io", name)
    }

    async fn token(&self, _: &TokenQuestion) -> Result<Token, ObjectFailure> {
        Err(not_simulated())
    }

    async fn trust_bundle(&self, _: &TrustQuestion) -> Result<Arc<str>, ObjectFailure> {
        Err(not_simulated())
    }

    async fn pod_certificate(
        &self,
        _: &Arc<Pod>,
        _: &str,
        _: usize,
    ) -> Result<PodCertificate, ObjectFailure> {
        Err(not_simulated())
    }
}
