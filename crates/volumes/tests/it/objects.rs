//! An API server's objects in memory: changed, taken away, refused or slow at will.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::{ObjectFailure, PodCertificate, PodObjects, Token, TokenQuestion, TrustQuestion};
use tokio::sync::watch;

#[derive(Default)]
struct State {
    config_maps: BTreeMap<String, Arc<ConfigMap>>,
    secrets: BTreeMap<String, Arc<Secret>>,
    bundles: BTreeMap<String, Arc<str>>,
    /// How often tokens and certificates were made anew.
    generation: u32,
    /// Why nothing can be had, if so.
    outage: Option<String>,
    questions: Vec<String>,
}

pub(crate) struct FakeObjects {
    state: Mutex<State>,
    /// Whether answers are given.
    is_open: watch::Sender<bool>,
}

impl Default for FakeObjects {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            is_open: watch::Sender::new(true),
        }
    }
}

impl FakeObjects {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn put_config_map(&self, name: &str, texts: &[(&str, &str)], binary: &[(&str, &[u8])]) {
        let map = ConfigMap {
            data: Some(
                texts
                    .iter()
                    .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
                    .collect(),
            ),
            binary_data: Some(
                binary
                    .iter()
                    .map(|(key, bytes)| ((*key).to_owned(), ByteString(bytes.to_vec())))
                    .collect(),
            ),
            ..ConfigMap::default()
        };
        self.lock()
            .config_maps
            .insert(format!("default/{name}"), Arc::new(map));
    }

    pub(crate) fn put_secret(&self, name: &str, keys: &[(&str, &[u8])]) {
        let data = keys
            .iter()
            .map(|(key, bytes)| ((*key).to_owned(), ByteString(bytes.to_vec())));
        let secret = Secret {
            data: Some(data.collect()),
            ..Secret::default()
        };
        self.lock()
            .secrets
            .insert(format!("default/{name}"), Arc::new(secret));
    }

    pub(crate) fn put_bundle(&self, name: &str, anchors: &str) {
        self.lock().bundles.insert(name.to_owned(), Arc::from(anchors));
    }

    /// The object is deleted.
    pub(crate) fn take(&self, name: &str) {
        let mut state = self.lock();
        state.config_maps.remove(&format!("default/{name}"));
        state.secrets.remove(&format!("default/{name}"));
        state.bundles.remove(name);
    }

    /// Tokens and certificates are renewed.
    pub(crate) fn renew(&self) {
        self.lock().generation += 1;
    }

    pub(crate) fn fail(&self, outage: Option<&str>) {
        self.lock().outage = outage.map(ToOwned::to_owned);
    }

    /// Answers are held back, or given.
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_open.send_replace(!is_held);
    }

    /// The questions since the last look.
    pub(crate) fn questions(&self) -> Vec<String> {
        let mut questions = std::mem::take(&mut self.lock().questions);
        questions.sort();
        questions
    }

    async fn ask<T>(
        &self,
        question: String,
        find: impl FnOnce(&State) -> Option<T>,
    ) -> Result<T, ObjectFailure> {
        self.lock().questions.push(question.clone());
        let mut is_open = self.is_open.subscribe();
        is_open.wait_for(|is_open| *is_open).await.unwrap();
        let state = self.lock();
        match &state.outage {
            Some(outage) => Err(ObjectFailure::Unavailable(outage.clone())),
            None => find(&state).ok_or_else(|| ObjectFailure::NotFound(format!("{question} not found"))),
        }
    }
}

#[async_trait]
impl PodObjects for FakeObjects {
    fn register(&self, _: &Arc<Pod>) {}

    fn unregister(&self, _: &PodUid) {}

    fn changes(&self) -> BoxStream<'static, PodUid> {
        stream::pending().boxed()
    }

    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectFailure> {
        let key = format!("{namespace}/{name}");
        self.ask(format!("configmap {name:?}"), |state| {
            state.config_maps.get(&key).cloned()
        })
        .await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectFailure> {
        let key = format!("{namespace}/{name}");
        self.ask(format!("secret {name:?}"), |state| {
            state.secrets.get(&key).cloned()
        })
        .await
    }

    async fn services(&self, _: &str) -> Result<Vec<Arc<Service>>, ObjectFailure> {
        panic!("volumes need no services");
    }

    async fn runtime_class(&self, _: &str) -> Result<Arc<RuntimeClass>, ObjectFailure> {
        panic!("volumes need no runtime classes");
    }

    async fn token(&self, question: &TokenQuestion) -> Result<Token, ObjectFailure> {
        let TokenQuestion {
            namespace,
            service_account,
            audiences,
            expiration_seconds,
            pod_name,
            pod_uid,
        } = question;
        let text = format!(
            "{namespace}/{service_account} for {audiences:?} {expiration_seconds} s {pod_name}/{pod_uid}"
        );
        self.ask(format!("token {text}"), |state| {
            Some(Token {
                text: format!("{text} #{}", state.generation),
                renew_at: Timestamp::from_unix_nanos(0),
            })
        })
        .await
    }

    async fn trust_bundle(&self, question: &TrustQuestion) -> Result<Arc<str>, ObjectFailure> {
        let name = match question {
            TrustQuestion::Named(name) => name.clone(),
            TrustQuestion::Signed { signer, .. } => signer.clone(),
        };
        self.ask(format!("bundle {name:?}"), |state| {
            state.bundles.get(&name).cloned()
        })
        .await
    }

    async fn pod_certificate(
        &self,
        pod: &Arc<Pod>,
        volume: &str,
        source: usize,
    ) -> Result<PodCertificate, ObjectFailure> {
        let place = format!(
            "{} {volume} {source}",
            pod.metadata.name.as_deref().unwrap_or_default()
        );
        self.ask(format!("certificate {place}"), |state| {
            Some(PodCertificate {
                key: format!("key #{}\n", state.generation).into_bytes(),
                chain: format!("chain of {place} #{}\n", state.generation).into_bytes(),
            })
        })
        .await
    }
}
