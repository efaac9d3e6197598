//! A simulated API server: the pods that are bound to the node, as everybody sees them.
//!
//! Owns the objects, the order of their changes and the rules of deletion. It has no opinion of what the node does with them. Every
//! change is a fact at the instant when it happens; what the agent was told of it is another fact, later.

mod objects;
mod others;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::stream::{StreamExt as _, unfold};
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff;
use rubelet_lifecycle::status::StatusGates;
use rubelet_model::Timestamp;
use rubelet_ports::api::{ApiError, ApiErrorKind, Change, Changes, PodReader};
use rubelet_ports::{Clock as _, Spawner};
use rubelet_reporting::{Reporter, ReportingPorts};
use tokio::sync::watch;

use crate::dice::SharedDice;
use crate::executor::Executor;
use crate::history::{Fact, History};
use crate::trace::{Actor, Trace};

pub use objects::SimObjects;
pub use others::Overwrite;
pub use writer::Written;

struct Inner {
    executor: Executor,
    dice: SharedDice,
    history: History,
    trace: Trace,
    store: Mutex<Store>,
    changed: watch::Sender<u64>,
}

struct Store {
    /// By UID.
    pods: BTreeMap<String, Arc<Pod>>,
    /// Every change there ever was.
    log: Vec<Change<Pod>>,
    version: u64,
    is_up: bool,
    written: Vec<Written>,
    /// Of a hundred calls so many have their effect and no answer.
    lost_percent: u64,
    /// Of a hundred status patches so many find a status that another client has changed since.
    overwritten_percent: u64,
    /// So many further status patches of a pod find such a status in any case.
    overwrites_left: Option<(String, u64)>,
    /// Pods that the adapter cannot decode.
    undecodable: BTreeSet<String>,
}

/// A handle; all handles are of one server.
#[derive(Clone)]
pub struct SimApi {
    inner: Arc<Inner>,
}

/// How far somebody has followed.
struct Follower {
    api: SimApi,
    changed: watch::Receiver<u64>,
    /// The next change; `None` before a list.
    next: Option<usize>,
    is_broken: bool,
    /// Pods as they were decoded last.
    decoded: BTreeMap<String, Arc<Pod>>,
}

fn text(field: &Option<String>) -> String {
    field.clone().unwrap_or_default()
}

pub(crate) fn uid_of(pod: &Pod) -> String {
    text(&pod.metadata.uid)
}

pub(crate) fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn api_time(at: Timestamp) -> Time {
    let nanos = i128::from(at.unix_nanos());
    Time(jiff::Timestamp::from_nanosecond(nanos).unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

impl SimApi {
    #[must_use]
    pub fn new(executor: &Executor, dice: SharedDice, history: History, trace: Trace) -> Self {
        let store = Store {
            pods: BTreeMap::new(),
            log: Vec::new(),
            version: 0,
            is_up: true,
            written: Vec::new(),
            lost_percent: 0,
            overwritten_percent: 0,
            overwrites_left: None,
            undecodable: BTreeSet::new(),
        };
        Self {
            inner: Arc::new(Inner {
                executor: executor.clone(),
                dice,
                history,
                trace,
                store: Mutex::new(store),
                changed: watch::channel(0).0,
            }),
        }
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.inner.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, text: impl Into<String>) {
        let at = self.inner.executor.elapsed();
        self.inner.trace.say(at, Actor::Scenario, text);
    }

    fn wake(&self) {
        self.inner.changed.send_modify(|number| *number += 1);
    }

    /// The object as it is from now on.
    fn put(&self, mut pod: Pod) -> Arc<Pod> {
        let mut store = self.store();
        store.version += 1;
        pod.metadata.resource_version = Some(store.version.to_string());
        let pod = Arc::new(pod);
        store.pods.insert(uid_of(&pod), Arc::clone(&pod));
        store.log.push(Change::Applied(Arc::clone(&pod)));
        drop(store);
        let fact = Fact::ApiApplied {
            pod: Arc::clone(&pod),
        };
        self.inner.history.add(self.inner.executor.elapsed(), fact);
        self.wake();
        pod
    }

    /// The object is gone. `by_node`: the node said that nothing of it is left.
    fn remove(&self, uid: &str, by_node: bool) {
        let mut store = self.store();
        let Some(pod) = store.pods.remove(uid) else { return };
        store.log.push(Change::Deleted(pod));
        drop(store);
        self.say(format!("the API server has {uid} no longer"));
        let fact = Fact::ApiRemoved {
            uid: uid.to_owned(),
            by_node,
        };
        self.inner.history.add(self.inner.executor.elapsed(), fact);
        self.wake();
    }

    /// Changes an object in place.
    pub fn change(&self, uid: &str, change: impl FnOnce(&mut Pod)) {
        let Some(mut pod) = self.pod_of(uid).map(|pod| Pod::clone(&pod)) else {
            return;
        };
        change(&mut pod);
        self.put(pod);
    }

    #[must_use]
    pub fn pod_of(&self, uid: &str) -> Option<Arc<Pod>> {
        self.store().pods.get(uid).cloned()
    }

    fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let is = |field: &Option<String>, wanted: &str| field.as_deref().unwrap_or_default() == wanted;
        let store = self.store();
        let mut pods = store.pods.values();
        let found = pods.find(|pod| is(&pod.metadata.namespace, namespace) && is(&pod.metadata.name, name));
        found.cloned()
    }

    #[must_use]
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.store().pods.values().cloned().collect()
    }

    /// Somebody has bound a pod to the node.
    pub fn create(&self, mut pod: Pod) {
        self.say(format!(
            "the API server has {} {}",
            text(&pod.metadata.name),
            uid_of(&pod)
        ));
        pod.metadata.creation_timestamp = Some(api_time(self.inner.executor.now()));
        pod.metadata.generation = Some(1);
        pod.status = Some(PodStatus {
            phase: Some("Pending".to_owned()),
            ..PodStatus::default()
        });
        self.put(pod);
    }

    /// Somebody deletes a pod. Without a grace of their own it is the pod's; none at all takes the object away at once, and so it
    /// does when the pod has ended. A grace that was given once only shrinks.
    pub fn delete(&self, uid: &str, grace_seconds: Option<i64>) {
        let Some(pod) = self.pod_of(uid) else { return };
        let own = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.termination_grace_period_seconds);
        let wanted = grace_seconds.or(own).unwrap_or(30);
        let grace = pod
            .metadata
            .deletion_grace_period_seconds
            .map_or(wanted, |before| before.min(wanted));
        self.say(format!("{uid} is deleted with {grace} s of grace"));
        if grace <= 0 || is_terminal(&pod) {
            return self.remove(uid, false);
        }
        let at = self.inner.executor.now();
        let seconds = std::time::Duration::from_secs(grace.unsigned_abs());
        self.change(uid, |pod| {
            pod.metadata.deletion_timestamp = Some(api_time(at.plus(seconds)));
            pod.metadata.deletion_grace_period_seconds = Some(grace);
            *pod.metadata.generation.get_or_insert_default() += 1;
        });
    }

    /// The adapter cannot decode the pod, or can again.
    pub fn set_undecodable(&self, uid: &str, is_undecodable: bool) {
        self.say(format!("{uid} can be decoded: {}", !is_undecodable));
        let mut store = self.store();
        if is_undecodable {
            store.undecodable.insert(uid.to_owned());
        } else {
            store.undecodable.remove(uid);
        }
        drop(store);
        self.change(uid, |_| {});
    }

    /// The pod as the adapter gives it: one that it cannot decode has no spec.
    fn as_decoded(&self, pod: Arc<Pod>) -> Arc<Pod> {
        if !self.store().undecodable.contains(&uid_of(&pod)) {
            return pod;
        }
        Arc::new(Pod {
            metadata: pod.metadata.clone(),
            spec: None,
            status: pod.status.clone(),
        })
    }

    /// The adapter can decode every pod again.
    pub fn set_all_decodable(&self) {
        let undecodable = self.store().undecodable.clone();
        for uid in undecodable {
            self.set_undecodable(&uid, false);
        }
    }

    /// Nobody reaches the server while it is down.
    pub fn set_up(&self, is_up: bool) {
        self.say(format!("the API server is {}", if is_up { "up" } else { "down" }));
        self.store().is_up = is_up;
        self.wake();
    }

    #[must_use]
    pub fn is_up(&self) -> bool {
        self.store().is_up
    }

    /// The real reporter, for one life of the agent.
    #[must_use]
    pub fn reporter(&self, spawner: Arc<dyn Spawner>, node: watch::Receiver<Option<Arc<Node>>>) -> Reporter {
        let ports = ReportingPorts {
            clock: Arc::new(self.inner.executor.clone()),
            spawner,
            randomness: Arc::new(self.inner.dice.clone()),
            pods: Arc::new(self.clone()),
        };
        Reporter::start(ports, StatusGates::default(), node)
    }

    async fn delay(&self) {
        let delay = self.inner.dice.with(|dice| dice.millis(1, 30));
        self.inner.executor.sleep(delay).await;
    }
}

impl Follower {
    async fn next(&mut self) -> Change<Pod> {
        loop {
            // Whatever changes from here on wakes us up.
            self.changed.borrow_and_update();
            if !self.api.is_up() {
                self.next = None;
                if !std::mem::replace(&mut self.is_broken, true) {
                    return Change::Broken(unreachable_server("follow pods"));
                }
            } else if self.has_news() {
                self.api.delay().await;
                if !self.api.is_up() {
                    continue;
                }
                if let Some(change) = self.take() {
                    self.is_broken = false;
                    let fact = Fact::ApiTold {
                        change: change.clone(),
                    };
                    self.api
                        .inner
                        .history
                        .add(self.api.inner.executor.elapsed(), fact);
                    return change;
                }
            }
            // The server outlives everybody who follows it.
            let _ = self.changed.changed().await;
        }
    }

    fn has_news(&self) -> bool {
        self.next.is_none_or(|next| next < self.api.store().log.len())
    }

    fn take(&mut self) -> Option<Change<Pod>> {
        let store = self.api.store();
        match self.next {
            None => {
                self.next = Some(store.log.len());
                let pods: Vec<_> = store.pods.values().cloned().collect();
                drop(store);
                let all = pods.into_iter().map(|pod| self.decode(&pod));
                Some(Change::All(all.collect()))
            }
            Some(next) => {
                let change = store.log.get(next).cloned()?;
                drop(store);
                self.next = Some(next + 1);
                Some(match change {
                    Change::Applied(pod) => Change::Applied(self.decode(&pod)),
                    change => change,
                })
            }
        }
    }

    /// A pod that was decoded once keeps its content of then.
    fn decode(&mut self, pod: &Arc<Pod>) -> Arc<Pod> {
        let read = self.api.as_decoded(Arc::clone(pod));
        if read.spec.is_some() {
            self.decoded.insert(uid_of(pod), Arc::clone(&read));
            return read;
        }
        let Some(known) = self.decoded.get_mut(&uid_of(pod)) else {
            return read;
        };
        Arc::make_mut(known).metadata = pod.metadata.clone();
        Arc::clone(known)
    }
}

fn unreachable_server(operation: &str) -> ApiError {
    ApiError::new(operation, ApiErrorKind::Unreachable, "connection refused")
}

#[async_trait]
impl PodReader for SimApi {
    fn follow_pods(&self, _node_name: &str) -> Changes<Pod> {
        let follower = Follower {
            api: self.clone(),
            changed: self.inner.changed.subscribe(),
            next: None,
            is_broken: false,
            decoded: BTreeMap::new(),
        };
        unfold(follower, |mut follower| async move {
            let change = follower.next().await;
            Some((change, follower))
        })
        .boxed()
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Pod, ApiError> {
        self.delay().await;
        if !self.is_up() {
            return Err(unreachable_server("get pod"));
        }
        self.find(namespace, name)
            .map(|pod| Pod::clone(&pod))
            .ok_or_else(|| ApiError::new("get pod", ApiErrorKind::NotFound, "not found"))
    }
}
