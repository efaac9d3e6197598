//! An API server in memory: pods of one node with the rules that matter, a watch, latency and faults.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node, Pod};
use rubelet_ports::Clock;
use rubelet_ports::api::{ApiError, ApiErrorKind, Change, PodWriter};
use rubelet_sim::dice::Dice;
use serde_json::{Value, json};

use crate::strategic_merge::apply_to_pod;

type Name = (String, String);

/// What goes wrong, and how often.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Nothing gets through.
    pub(crate) is_down: bool,
    /// Calls that take effect but whose answers are lost, in percent.
    pub(crate) lost_answers: u64,
    /// Calls that the server fails at, in percent.
    pub(crate) failures: u64,
}

pub(crate) struct ApiState {
    pub(crate) pods: BTreeMap<Name, Value>,
    pub(crate) faults: Faults,
    pub(crate) latency: Duration,
    /// Answers of the next calls, whatever they are.
    pub(crate) answers: VecDeque<ApiErrorKind>,
    /// One line per call that reached the server.
    pub(crate) calls: Vec<String>,
    /// What went out of order.
    pub(crate) violations: Vec<String>,
    pub(crate) most_at_once: usize,
    /// What the watch has not delivered yet.
    pub(crate) news: VecDeque<Change<Pod>>,
    /// The watch lost its thread: a whole set comes next.
    pub(crate) is_watch_broken: bool,
    pub(crate) node: Option<Node>,
    /// What admission makes of a new pod.
    pub(crate) admission: fn(&mut Value),
    version: u64,
    last_uid: u64,
    under_way: BTreeSet<(Name, &'static str)>,
    dice: Dice,
}

#[derive(Clone)]
pub(crate) struct FakeApi {
    state: Arc<Mutex<ApiState>>,
    clock: Arc<dyn Clock>,
}

fn read(pod: &Value) -> Arc<Pod> {
    Arc::new(serde_json::from_value(pod.clone()).unwrap())
}

impl ApiState {
    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn put(&mut self, name: &Name, mut pod: Value) {
        pod["metadata"]["resourceVersion"] = self.next_version().into();
        self.news.push_back(Change::Applied(read(&pod)));
        self.pods.insert(name.clone(), pod);
    }

    fn remove(&mut self, name: &Name) {
        if let Some(mut pod) = self.pods.remove(name) {
            pod["metadata"]["resourceVersion"] = self.next_version().into();
            self.news.push_back(Change::Deleted(read(&pod)));
        }
    }

    /// All pods, in place of what was not delivered.
    pub(crate) fn relist(&mut self) -> Change<Pod> {
        self.news.clear();
        self.is_watch_broken = false;
        Change::All(self.pods.values().map(read).collect())
    }
}

impl FakeApi {
    pub(crate) fn new(clock: Arc<dyn Clock>, seed: u64) -> Self {
        let state = ApiState {
            pods: BTreeMap::new(),
            faults: Faults::default(),
            latency: Duration::from_millis(20),
            answers: VecDeque::new(),
            calls: Vec::new(),
            violations: Vec::new(),
            most_at_once: 0,
            news: VecDeque::new(),
            is_watch_broken: true,
            node: None,
            admission: |_| {},
            version: 0,
            last_uid: 0,
            under_way: BTreeSet::new(),
            dice: Dice::new(seed, "api"),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            clock,
        }
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut ApiState) -> T) -> T {
        look(&mut self.state.lock().unwrap())
    }

    /// A user creates a pod that is bound to the node.
    pub(crate) fn user_creates(&self, pod: &Value) {
        self.with(|state| {
            let name = name_of(pod);
            state.put(&name, pod.clone());
        });
    }

    /// A user changes a pod.
    pub(crate) fn user_changes(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.with(|state| {
            let name = ("default".to_owned(), name.to_owned());
            if let Some(mut pod) = state.pods.get(&name).cloned() {
                change(&mut pod);
                state.put(&name, pod);
            }
        });
    }

    /// `kubectl delete`: the pod waits for its node.
    pub(crate) fn user_deletes(&self, name: &str) {
        self.user_changes(name, |pod| {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
    }

    /// `kubectl delete --force --grace-period=0`
    pub(crate) fn user_removes(&self, name: &str) {
        self.with(|state| state.remove(&("default".to_owned(), name.to_owned())));
    }

    pub(crate) fn pod(&self, name: &str) -> Value {
        self.with(|state| {
            let pod = state.pods.get(&("default".to_owned(), name.to_owned()));
            pod.cloned().unwrap_or(Value::Null)
        })
    }

    /// The calls since the last look.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.with(|state| std::mem::take(&mut state.calls))
    }

    async fn call<T>(
        &self,
        verb: &'static str,
        name: &Name,
        effect: impl FnOnce(&mut ApiState) -> Result<T, (ApiErrorKind, String)>,
    ) -> Result<T, ApiError> {
        let place = (name.clone(), verb);
        let latency = self.with(|state| {
            if !state.under_way.insert(place.clone()) {
                state
                    .violations
                    .push(format!("two calls at once: {verb} {}", name.1));
            }
            state.most_at_once = state.most_at_once.max(state.under_way.len());
            state.latency
        });
        let _under_way = UnderWay { api: self, place };
        self.clock.sleep(latency / 2).await;
        let result = self.with(|state| {
            state.calls.push(format!("{verb} {}", name.1));
            let faults = state.faults;
            if faults.is_down {
                return Err((ApiErrorKind::Unreachable, "connection refused".to_owned()));
            }
            if let Some(kind) = state.answers.pop_front() {
                return Err((kind, "as told".to_owned()));
            }
            if state.dice.percent(faults.failures) {
                return Err((ApiErrorKind::ServerFailed, "no leader".to_owned()));
            }
            let result = effect(state);
            if state.dice.percent(faults.lost_answers) {
                return Err((ApiErrorKind::Unreachable, "connection reset".to_owned()));
            }
            result
        });
        self.clock.sleep(latency / 2).await;
        result.map_err(|(kind, message)| ApiError::new(format!("{verb} {}", name.1), kind, message))
    }
}

/// A call ends when its future does, answered or not.
struct UnderWay<'a> {
    api: &'a FakeApi,
    place: (Name, &'static str),
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.api.with(|state| state.under_way.remove(&self.place));
    }
}

fn name_of(pod: &Value) -> Name {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

#[async_trait]
impl PodWriter for FakeApi {
    async fn patch_pod_status(&self, namespace: &str, name: &str, patch: Value) -> Result<Pod, ApiError> {
        let name = (namespace.to_owned(), name.to_owned());
        self.call("patch", &name, |state| {
            let not_found = (ApiErrorKind::NotFound, "not found".to_owned());
            let pod = state.pods.get(&name).cloned().ok_or(not_found)?;
            let fields: Vec<&String> = patch.as_object().unwrap().keys().collect();
            assert_eq!(fields, ["metadata", "status"], "a patch of the status: {patch}");
            if patch["metadata"] != json!({"uid": pod["metadata"]["uid"]}) {
                return Err((ApiErrorKind::Conflict, "another UID".to_owned()));
            }
            let patched = apply_to_pod(&pod, &patch);
            if patched != pod {
                state.put(&name, patched);
            }
            Ok(Pod::clone(&read(&state.pods[&name])))
        })
        .await
    }

    async fn create_pod(&self, pod: &Pod) -> Result<Pod, ApiError> {
        let mut pod = json!(pod);
        let name = name_of(&pod);
        self.call("create", &name, |state| {
            let node = state.node.as_ref().and_then(|node| node.metadata.uid.clone());
            let owner = &pod["metadata"]["ownerReferences"][0];
            if node.is_none() || owner["uid"] != json!(node) || owner["controller"] != true {
                return Err((ApiErrorKind::Forbidden, "a mirror belongs to its node".to_owned()));
            }
            if state.pods.contains_key(&name) {
                return Err((ApiErrorKind::AlreadyExists, "already exists".to_owned()));
            }
            state.last_uid += 1;
            pod["metadata"]["uid"] = format!("mirror-{}", state.last_uid).into();
            pod["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"});
            (state.admission)(&mut pod);
            state.put(&name, pod);
            Ok(Pod::clone(&read(&state.pods[&name])))
        })
        .await
    }

    async fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        grace_seconds: i64,
    ) -> Result<(), ApiError> {
        let name = (namespace.to_owned(), name.to_owned());
        self.call("delete", &name, |state| {
            assert_eq!(grace_seconds, 0);
            let not_found = (ApiErrorKind::NotFound, "not found".to_owned());
            let pod = state.pods.get(&name).ok_or(not_found)?;
            if pod["metadata"]["uid"] != uid {
                return Err((ApiErrorKind::Conflict, "another UID".to_owned()));
            }
            state.remove(&name);
            Ok(())
        })
        .await
    }
}
