//! The reporter in front of an API server in memory.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use rubelet_lifecycle::status::StatusGates;
use rubelet_model::observation::PodUid;
use rubelet_ports::{Clock, PodReport, PodReporter};
use rubelet_reporting::{Reporter, ReportingPorts};
use rubelet_sim::dice::SharedDice;
use rubelet_sim::executor::{Executor, Group, Step};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::api::FakeApi;

pub(crate) struct Bed {
    pub(crate) executor: Executor,
    pub(crate) api: FakeApi,
    pub(crate) reporter: Reporter,
    node: watch::Sender<Option<Arc<Node>>>,
}

impl Bed {
    /// With a node and a watch that delivered an empty set.
    pub(crate) fn new(seed: u64) -> Self {
        let executor = Executor::new(seed);
        let api = FakeApi::new(Arc::new(executor.clone()), seed);
        let (node, receiver) = watch::channel(None);
        let ports = ReportingPorts {
            clock: Arc::new(executor.clone()),
            spawner: Arc::new(executor.life()),
            randomness: Arc::new(SharedDice::new(seed, "reporter")),
            pods: Arc::new(api.clone()),
        };
        let reporter = Reporter::start(ports, StatusGates::default(), receiver);
        let bed = Self {
            executor,
            api,
            reporter,
            node,
        };
        bed.watch(seed);
        bed
    }

    /// The watch: news arrive after a while, and in order.
    fn watch(&self, seed: u64) {
        let (api, clock, reporter) = (self.api.clone(), self.executor.clone(), self.reporter.clone());
        let dice = SharedDice::new(seed, "watch");
        let task = async move {
            loop {
                clock.sleep(dice.with(|dice| dice.millis(1, 30))).await;
                let change = api.with(|state| {
                    if state.faults.is_down {
                        state.is_watch_broken = true;
                        None
                    } else if state.is_watch_broken {
                        Some(state.relist())
                    } else {
                        state.news.pop_front()
                    }
                });
                if let Some(change) = change {
                    reporter.api_pods(&change);
                }
            }
        };
        self.executor.spawn(Group::World, "watch", Box::pin(task));
    }

    pub(crate) fn set_node(&self, node: Option<Value>) {
        let node: Option<Node> = node.map(|node| serde_json::from_value(node).unwrap());
        self.api.with(|state| state.node.clone_from(&node));
        self.node.send_replace(node.map(Arc::new));
    }

    pub(crate) fn with_node(self) -> Self {
        self.set_node(Some(json!({"metadata": {"name": "node", "uid": "node-uid"}})));
        self
    }

    pub(crate) fn pass(&self, time: Duration) {
        let end = self.executor.elapsed() + time;
        while self.executor.elapsed() < end {
            if self.executor.step() == Step::Idle {
                self.executor.advance(end);
            }
        }
        assert_eq!(self.executor.take_panics(), Vec::<String>::new());
        let violations = self.api.with(|state| std::mem::take(&mut state.violations));
        assert_eq!(violations, Vec::<String>::new());
    }

    /// Lets things happen until it is so; the answer is how long that took.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) -> Duration {
        let start = self.executor.elapsed();
        while self.executor.elapsed() < start + Duration::from_secs(600) {
            if is_so(self) {
                self.pass(Duration::ZERO);
                return self.executor.elapsed() - start;
            }
            if self.executor.step() == Step::Idle {
                self.executor.advance(start + Duration::from_secs(600));
            }
        }
        panic!(
            "not within ten minutes: {what}; pods: {:#?}",
            self.api.with(|state| state.pods.clone())
        );
    }

    pub(crate) fn report(&self, pod: &Value, status: &Value) {
        self.report_as(pod, status, false);
    }

    pub(crate) fn report_as(&self, pod: &Value, status: &Value, is_finished: bool) {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        self.reporter.report(PodReport {
            pod: Arc::new(pod),
            status: Arc::new(serde_json::from_value(status.clone()).unwrap()),
            is_finished,
        });
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.reporter.forget(&PodUid::from(uid));
    }
}

/// An API pod of this name, whose UID is `uid-<name>`.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": {"nodeName": "node", "containers": [{"name": "main", "image": "image"}]},
        "status": {"phase": "Pending", "qosClass": "BestEffort", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    })
}

/// A static pod; its UID is its hash.
pub(crate) fn static_pod(name: &str, hash: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": hash, "labels": {"app": name}, "annotations": {
            "kubernetes.io/config.source": "file", "kubernetes.io/config.hash": hash, "kubernetes.io/config.seen": "2026-01-01T00:00:00Z"}},
        "spec": {"nodeName": "node", "containers": [{"name": "main", "image": "image"}]},
    })
}

/// A running pod with so many restarts behind it.
pub(crate) fn running(restarts: i32) -> Value {
    status("Running", restarts, true)
}

pub(crate) fn status(phase: &str, restarts: i32, ready: bool) -> Value {
    let holds = |holds: bool| if holds { "True" } else { "False" };
    json!({
        "phase": phase, "qosClass": "BestEffort", "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": holds(ready)}],
        "containerStatuses": [{"name": "main", "ready": ready, "restartCount": restarts, "image": "image", "imageID": "digest"}],
    })
}

/// Restarts as the API server shows them.
pub(crate) fn restarts(pod: &Value) -> Option<i64> {
    pod["status"]["containerStatuses"][0]["restartCount"].as_i64()
}
