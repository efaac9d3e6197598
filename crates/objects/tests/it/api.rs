//! An API server in memory, which can be down, hang, refuse and be asked what was asked of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use k8s_openapi::Metadata;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestStatus};
use k8s_openapi::api::certificates::v1::{ClusterTrustBundle, PodCertificateRequest};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret, Service, ServiceAccount};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff;
use rubelet_ports::api::{
    ApiError, ApiErrorKind, Change, Changes, NodeReader, ObjectReader, PodCertificates, TokenIssuer,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::bed::EPOCH_SECONDS;

/// How the server behaves towards one kind of object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    #[default]
    Well,
    /// Calls fail at once with this.
    Fails(ApiErrorKind),
    /// Nothing is ever answered.
    Hangs,
}

struct Follower<T> {
    only: Option<(String, String)>,
    sender: mpsc::UnboundedSender<Change<T>>,
}

struct State<T> {
    objects: BTreeMap<(String, String), Arc<T>>,
    followers: Vec<Follower<T>>,
    follows: usize,
    gets: usize,
    following: Mood,
    getting: Mood,
    last_version: u64,
}

/// The objects of one kind.
#[derive(Clone)]
pub(crate) struct Shelf<T>(Arc<Mutex<State<T>>>);

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        let state = State {
            objects: BTreeMap::new(),
            followers: Vec::new(),
            follows: 0,
            gets: 0,
            following: Mood::Well,
            getting: Mood::Well,
            last_version: 0,
        };
        Self(Arc::new(Mutex::new(state)))
    }
}

fn error(kind: ApiErrorKind) -> ApiError {
    ApiError::new("call", kind, format!("{kind:?}"))
}

impl<T> Shelf<T>
where
    T: Metadata<Ty = ObjectMeta> + DeserializeOwned + Clone + Send + Sync + 'static,
{
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap()
    }

    fn key(object: &T) -> (String, String) {
        let metadata = object.metadata();
        (
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        )
    }

    /// Creates or replaces an object.
    pub(crate) fn put(&self, object: Value) {
        let mut object: T = serde_json::from_value(object).unwrap();
        let mut state = self.state();
        state.last_version += 1;
        object.metadata_mut().resource_version = Some(state.last_version.to_string());
        let (key, object) = (Self::key(&object), Arc::new(object));
        state.objects.insert(key.clone(), Arc::clone(&object));
        state.tell(&key, &Change::Applied(object));
    }

    pub(crate) fn delete(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        let mut state = self.state();
        let object = state.objects.remove(&key).expect("an object to delete");
        state.tell(&key, &Change::Deleted(object));
    }

    pub(crate) fn find(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.state().objects.get(&key).cloned()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.state()
            .objects
            .keys()
            .map(|(_, name)| name.clone())
            .collect()
    }

    /// Changes how calls are answered; open watches get an outage and its end as changes.
    pub(crate) fn set(&self, following: Mood, getting: Mood) {
        let mut state = self.state();
        let was = state.following;
        state.following = following;
        state.getting = getting;
        match following {
            Mood::Fails(kind) => {
                for follower in &state.followers {
                    let _ = follower.sender.send(Change::Broken(error(kind)));
                }
            }
            Mood::Well if was != Mood::Well => {
                for follower in &state.followers {
                    let _ = follower.sender.send(state.all(follower.only.as_ref()));
                }
            }
            Mood::Well | Mood::Hangs => {}
        }
    }

    /// How many watches were begun, and how many are still open.
    pub(crate) fn follows(&self) -> (usize, usize) {
        let mut state = self.state();
        state.followers.retain(|follower| !follower.sender.is_closed());
        (state.follows, state.followers.len())
    }

    pub(crate) fn gets(&self) -> usize {
        self.state().gets
    }

    fn follow(&self, only: Option<(&str, &str)>) -> Changes<T> {
        let only = only.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.state();
        state.follows += 1;
        match state.following {
            Mood::Well => {
                let _ = sender.send(state.all(only.as_ref()));
            }
            Mood::Fails(kind) => {
                let _ = sender.send(Change::Broken(error(kind)));
            }
            Mood::Hangs => {}
        }
        state.followers.push(Follower { only, sender });
        unfold(receiver, |mut receiver| async {
            let change = receiver.recv().await;
            change.map(|change| (change, receiver))
        })
        .boxed()
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<T, ApiError> {
        let mood = {
            let mut state = self.state();
            state.gets += 1;
            state.getting
        };
        // An answer is never there at once.
        tokio::task::yield_now().await;
        match mood {
            Mood::Well => {
                let found = self.find(namespace, name);
                found
                    .map(|object| object.as_ref().clone())
                    .ok_or_else(|| error(ApiErrorKind::NotFound))
            }
            Mood::Fails(kind) => Err(error(kind)),
            Mood::Hangs => std::future::pending().await,
        }
    }
}

impl<T> State<T> {
    fn all(&self, only: Option<&(String, String)>) -> Change<T> {
        let objects = self.objects.iter();
        let meant = objects.filter(|(key, _)| only.is_none_or(|only| only == *key));
        Change::All(meant.map(|(_, object)| Arc::clone(object)).collect())
    }

    /// In an outage a change reaches no watch.
    fn tell(&self, key: &(String, String), change: &Change<T>)
    where
        T: Clone,
    {
        if self.following != Mood::Well {
            return;
        }
        for follower in &self.followers {
            if follower.only.as_ref().is_none_or(|only| only == key) {
                let _ = follower.sender.send(change.clone());
            }
        }
    }
}

/// What is issued, and how.
#[derive(Default)]
pub(crate) struct Issuing {
    pub(crate) requests: Vec<TokenRequest>,
    pub(crate) mood: Mood,
    /// When the server gives less than what is asked for.
    pub(crate) max_seconds: Option<i64>,
    /// Calls get their turn one after the other, this far apart.
    pub(crate) pace: std::time::Duration,
}

#[derive(Clone)]
pub(crate) struct FakeApi {
    start: Instant,
    pub(crate) config_maps: Shelf<ConfigMap>,
    pub(crate) secrets: Shelf<Secret>,
    pub(crate) services: Shelf<Service>,
    pub(crate) classes: Shelf<RuntimeClass>,
    pub(crate) bundles: Shelf<ClusterTrustBundle>,
    pub(crate) accounts: Shelf<ServiceAccount>,
    pub(crate) nodes: Shelf<Node>,
    pub(crate) requests: Shelf<PodCertificateRequest>,
    pub(crate) issuing: Arc<Mutex<Issuing>>,
    /// The server's clock is ahead of the node's by this.
    pub(crate) ahead_seconds: i64,
}

impl FakeApi {
    pub(crate) fn new(start: Instant, ahead_seconds: i64) -> Self {
        Self {
            start,
            config_maps: Shelf::default(),
            secrets: Shelf::default(),
            services: Shelf::default(),
            classes: Shelf::default(),
            bundles: Shelf::default(),
            accounts: Shelf::default(),
            nodes: Shelf::default(),
            requests: Shelf::default(),
            issuing: Arc::default(),
            ahead_seconds,
        }
    }

    pub(crate) fn now_seconds(&self) -> i64 {
        let elapsed = i64::try_from(self.start.elapsed().as_secs()).unwrap();
        EPOCH_SECONDS + self.ahead_seconds + elapsed
    }
}

#[async_trait]
impl ObjectReader for FakeApi {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<ConfigMap, ApiError> {
        self.config_maps.get(namespace, name).await
    }

    fn follow_config_map(&self, namespace: &str, name: &str) -> Changes<ConfigMap> {
        self.config_maps.follow(Some((namespace, name)))
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, ApiError> {
        self.secrets.get(namespace, name).await
    }

    fn follow_secret(&self, namespace: &str, name: &str) -> Changes<Secret> {
        self.secrets.follow(Some((namespace, name)))
    }

    fn follow_services(&self) -> Changes<Service> {
        self.services.follow(None)
    }

    fn follow_runtime_classes(&self) -> Changes<RuntimeClass> {
        self.classes.follow(None)
    }

    fn follow_trust_bundles(&self) -> Changes<ClusterTrustBundle> {
        self.bundles.follow(None)
    }

    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, ApiError> {
        self.accounts.get(namespace, name).await
    }
}

#[async_trait]
impl TokenIssuer for FakeApi {
    async fn request_token(
        &self,
        _namespace: &str,
        _service_account: &str,
        request: &TokenRequest,
    ) -> Result<TokenRequest, ApiError> {
        let (mood, number, max_seconds, pace) = {
            let mut issuing = self.issuing.lock().unwrap();
            issuing.requests.push(request.clone());
            let number = issuing.requests.len();
            (issuing.mood, number, issuing.max_seconds, issuing.pace)
        };
        tokio::time::sleep_until(self.start + pace * u32::try_from(number).unwrap()).await;
        // Long enough for others to come and ask the same.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        match mood {
            Mood::Well => {}
            Mood::Fails(kind) => return Err(error(kind)),
            Mood::Hangs => return std::future::pending().await,
        }
        let wanted = request.spec.as_ref().unwrap().expiration_seconds.unwrap();
        let seconds = max_seconds.map_or(wanted, |max| wanted.min(max));
        let now = self.now_seconds();
        let time = |seconds: i64| Some(Time(jiff::Timestamp::from_second(seconds).unwrap()));
        let mut answer = request.clone();
        answer.metadata.creation_timestamp = time(now);
        answer.spec.as_mut().unwrap().expiration_seconds = Some(seconds);
        answer.status = Some(TokenRequestStatus {
            expiration_timestamp: time(now + seconds),
            token: Some(format!("secret-{number}")),
        });
        Ok(answer)
    }
}

#[async_trait]
impl NodeReader for FakeApi {
    fn follow_node(&self, name: &str) -> Changes<Node> {
        self.nodes.follow(Some(("", name)))
    }

    async fn node(&self, name: &str) -> Result<Node, ApiError> {
        self.nodes.get("", name).await
    }
}

#[async_trait]
impl PodCertificates for FakeApi {
    async fn create_pod_certificate_request(
        &self,
        request: &PodCertificateRequest,
    ) -> Result<PodCertificateRequest, ApiError> {
        if let Mood::Fails(kind) = self.requests.state().getting {
            return Err(error(kind));
        }
        let mut request = request.clone();
        let number = self.requests.state().last_version + 1;
        let prefix = request.metadata.generate_name.clone().unwrap();
        request.metadata.name = Some(format!("{prefix}{number}"));
        let now = jiff::Timestamp::from_second(self.now_seconds()).unwrap();
        request.metadata.creation_timestamp = Some(Time(now));
        self.requests.put(serde_json::to_value(&request).unwrap());
        Ok(request)
    }

    fn follow_pod_certificate_requests(&self, _node_name: &str) -> Changes<PodCertificateRequest> {
        self.requests.follow(None)
    }
}
