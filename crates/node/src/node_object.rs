//! The task that registers the Node object and keeps its status up to date.
//!
//! Owns when the status is computed (every ten seconds, and at once when an input changed) and when it is written (when it
//! changed, or after five minutes). The first Ready needs no polling: the inputs that make the node ready wake the task.
//!
//! ```text
//! first report of the runtime ──► register ──► status ◄──► wait: tick | runtime, pressure, volumes, shutdown | the Node changed
//! ```

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use rubelet_ports::api::{ApiError, ApiErrorKind, Change, Changes};
use rubelet_ports::{EventType, Moment, NodeEvent, Randomness};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::facts::FactReader;
use crate::heartbeat::{Heartbeat, TRIES};
use crate::metrics::MeasuredStart;
use crate::own_node::OwnNode;
use crate::pod_network::PodNetwork;
use crate::registration::{FIRST_PAUSE, LONGEST_PAUSE, Registrar, malformed};
use crate::settings::{NodeInputs, NodePorts, NodeSettings};
use crate::status::{
    AddressProblem, StatusEvent, StatusFacts, derive, initial_node, is_ready, lasting_difference,
    status_patch,
};
use rubelet_ports::LogThrottle;

/// The shortest gap between two computations: while the node gets ready, and afterwards.
const QUICK_GAP: Duration = Duration::from_millis(100);
const READY_GAP: Duration = Duration::from_secs(1);
/// A node that is not ready by then uses the longer gap too.
const QUICK_LIMIT: Duration = Duration::from_secs(120);
/// The random part of a period, so that the nodes of a cluster do not write at the same time.
const JITTER_DIVISOR: u32 = 25;
const CGROUP_V1_WARNING: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. \
     Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

pub(crate) struct NodeObject {
    ports: NodePorts,
    settings: Arc<NodeSettings>,
    inputs: NodeInputs,
    own_node: OwnNode,
    heartbeat: Heartbeat,
    facts: FactReader,
    pod_network: PodNetwork,
    reports: Reports,
    /// What the API server did not store of the last write: a server of another version drops unknown fields, which would
    /// otherwise be written every ten seconds.
    refused: Option<Value>,
    recorded: Recorded,
    began: Moment,
    was_ready: bool,
    start: MeasuredStart,
    throttles: LogThrottles,
}

/// One for each kind of problem.
#[derive(Default)]
struct LogThrottles {
    writing: LogThrottle,
    following: LogThrottle,
    addresses: LogThrottle,
}

/// What is recorded already.
#[derive(Default)]
struct Recorded {
    /// The events of the change that is being written, so that another try does not record them again.
    events: Vec<StatusEvent>,
    is_unschedulable: bool,
    /// Of the first Node that was seen, as for upstream.
    node_uid: Option<String>,
}

/// When a status was written last, and how long it may stay unchanged.
#[derive(Default)]
struct Reports {
    last: Option<Moment>,
    gap: Duration,
}

impl Reports {
    fn is_due(&self, now: Moment) -> bool {
        self.last.is_none_or(|last| now.since(last) >= self.gap)
    }

    /// After a change the next forced report comes after a random time, then at even intervals.
    fn plan(&mut self, changed: bool, frequency: Duration, randomness: &dyn Randomness) {
        self.gap = if changed || self.last.is_none() {
            frequency / 2 + randomness.part_of(frequency)
        } else {
            frequency
        };
    }
}

impl NodeObject {
    pub(crate) fn new(
        ports: NodePorts,
        settings: Arc<NodeSettings>,
        inputs: NodeInputs,
        own_node: OwnNode,
    ) -> Self {
        Self {
            heartbeat: Heartbeat::new(&ports, &settings),
            facts: FactReader::new(ports.clone(), Arc::clone(&settings)),
            pod_network: PodNetwork::new(Arc::clone(&ports.clock), Arc::clone(&ports.runtime_writer)),
            began: ports.clock.moment(),
            start: MeasuredStart::new(ports.metrics.clone()),
            ports,
            settings,
            inputs,
            own_node,
            reports: Reports::default(),
            refused: None,
            recorded: Recorded::default(),
            was_ready: false,
            throttles: LogThrottles::default(),
        }
    }

    pub(crate) async fn run(mut self) {
        self.record_start();
        self.facts.await_runtime(&self.inputs).await;
        if self.settings.registration.is_wanted {
            self.register().await;
        }
        let mut changes = self.ports.node_reader.follow_node(&self.settings.node_name);
        loop {
            self.sync().await;
            self.wait(&mut changes).await;
        }
    }

    async fn register(&mut self) {
        let registrar = Registrar::new(&self.ports, &self.settings);
        let mut pause = FIRST_PAUSE;
        loop {
            let facts = self.facts.read(&mut self.inputs).await;
            let initial = initial_node(&self.settings, &facts, self.ports.clock.now());
            self.log_address_problem(initial.address_problem.as_ref());
            self.record_once(&initial.events);
            self.start.tries(self.ports.clock.now());
            match registrar.attempt(&initial.node).await {
                Ok(registered) => {
                    self.throttles.writing.end();
                    let status = registered.node.status.as_ref();
                    let is_ready = is_ready(status.and_then(|status| status.conditions.as_ref()));
                    if registered.is_new {
                        self.start.is_registered(self.ports.clock.now());
                    }
                    self.learn(Arc::new(registered.node));
                    if registered.is_new && is_ready {
                        // A node that is ready from the start gets the event as well.
                        self.record(StatusEvent::of_status(&self.settings.node_name, "NodeReady"));
                    }
                    break;
                }
                Err(error) => {
                    self.log_write_error(&error, "The node cannot be registered; it is tried again");
                    self.ports.clock.sleep(error.pause(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        self.recorded.events.clear();
    }

    /// One look at the status, and the write that it needs.
    async fn sync(&mut self) {
        let facts = self.facts.read(&mut self.inputs).await;
        for attempt in 0..TRIES {
            let Err(error) = self.try_sync(attempt, &facts).await else {
                if self.throttles.writing.end() {
                    tracing::info!("The node's status is written again");
                }
                return;
            };
            if error.kind == ApiErrorKind::NotFound {
                self.own_node.forget();
                self.log_write_error(
                    &error,
                    "There is no Node object of this name; without one no pod comes to this node",
                );
                return;
            }
            self.heartbeat.failed(attempt, &error).await;
            if attempt + 1 == TRIES {
                self.log_write_error(&error, "The node's status cannot be written; it is tried again");
            }
        }
    }

    /// The first try trusts the watch, the others ask.
    async fn try_sync(&mut self, attempt: u32, facts: &StatusFacts) -> Result<(), ApiError> {
        let known = self.own_node.current().filter(|_| attempt == 0);
        let original = match known {
            Some(node) => node,
            None => self.get().await?,
        };
        self.pod_network.push(&original).await;
        let derived = derive(&original, &self.settings, facts, self.ports.clock.now());
        self.log_address_problem(derived.address_problem.as_ref());
        self.record_once(&derived.events);
        let difference = lasting_difference(&original, &derived.node).map_err(|error| malformed(&error))?;
        let changed = difference != json!({}) && self.refused.as_ref() != Some(&difference);
        if !changed && !self.reports.is_due(self.ports.clock.moment()) {
            self.recorded.events.clear();
            return Ok(());
        }
        let frequency = self.settings.reporting.report_frequency;
        self.reports
            .plan(changed, frequency, self.ports.randomness.as_ref());
        let patch = status_patch(&original, &derived.node).map_err(|error| malformed(&error))?;
        let writer = Arc::clone(&self.ports.node_writer);
        let call = writer.patch_node_status(&self.settings.node_name, patch);
        let updated = self.heartbeat.call("patch the status of the Node", call).await?;
        self.reports.last = Some(self.ports.clock.moment());
        self.recorded.events.clear();
        self.refused = lasting_difference(&updated, &derived.node).ok();
        self.learn(Arc::new(updated));
        Ok(())
    }

    async fn get(&mut self) -> Result<Arc<Node>, ApiError> {
        let reader = Arc::clone(&self.ports.node_reader);
        let call = reader.node(&self.settings.node_name);
        let node = Arc::new(self.heartbeat.call("get the Node", call).await?);
        self.learn(Arc::clone(&node));
        Ok(node)
    }

    /// Ends when the next look is due. The Node's own changes are taken in meanwhile.
    async fn wait(&mut self, changes: &mut Changes<Node>) {
        let looked = self.ports.clock.moment();
        let frequency = self.settings.reporting.update_frequency;
        let jitter = self.ports.randomness.part_of(frequency / JITTER_DIVISOR);
        let mut due = looked.plus(frequency + jitter);
        if let Some(end) = self.facts.grace_end() {
            due = due.min(end);
        }
        let soon = looked.plus(self.gap());
        loop {
            let rest = due.since(self.ports.clock.moment());
            if rest.is_zero() {
                return;
            }
            let timer = self.ports.clock.sleep(rest);
            let NodeInputs {
                runtime,
                pressure,
                volumes_in_use,
                shutting_down,
            } = &mut self.inputs;
            // Every arm can be dropped: a watch remembers what was seen, a stream what comes next.
            tokio::select! {
                biased;
                // There may be no later moment to write it.
                () = changed(shutting_down) => return,
                () = changed(runtime) => due = due.min(soon),
                () = changed(pressure) => due = due.min(soon),
                () = changed(volumes_in_use) => due = due.min(soon),
                Some(change) = changes.next() => {
                    let was_known = self.own_node.current().is_some();
                    self.take_in(change).await;
                    if !was_known && self.own_node.current().is_some() {
                        due = due.min(soon);
                    }
                }
                () = timer => return,
            }
        }
    }

    /// The least time between two looks.
    fn gap(&self) -> Duration {
        let age = self.ports.clock.moment().since(self.began);
        if self.was_ready || age >= QUICK_LIMIT {
            READY_GAP
        } else {
            QUICK_GAP
        }
    }

    async fn take_in(&mut self, change: Change<Node>) {
        match &change {
            Change::Broken(error) => {
                let now = self.ports.clock.moment();
                if self.throttles.following.is_due(&error.to_string(), now) {
                    tracing::warn!(node = self.settings.node_name, %error, "The Node object cannot be followed; it is tried again");
                }
            }
            Change::All(_) | Change::Applied(_) | Change::Deleted(_) | Change::Resumed => {
                self.throttles.following.end();
            }
        }
        let was_known = self.own_node.current().is_some();
        self.own_node.apply(change);
        match self.own_node.current() {
            Some(node) => {
                self.notice(&node);
                self.pod_network.push(&node).await;
            }
            None if was_known => tracing::warn!(
                node = self.settings.node_name,
                "The Node object was deleted; it is registered again when rubelet is restarted"
            ),
            None => {}
        }
    }

    fn learn(&mut self, node: Arc<Node>) {
        self.notice(&node);
        self.own_node.learn(node);
    }

    /// What others may have changed on the Node.
    fn notice(&mut self, node: &Node) {
        if self.recorded.node_uid.is_none() {
            self.recorded.node_uid.clone_from(&node.metadata.uid);
        }
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        if is_ready(conditions) {
            self.was_ready = true;
            self.start.is_ready(self.ports.clock.now());
        }
        let is_unschedulable = node
            .spec
            .as_ref()
            .is_some_and(|spec| spec.unschedulable == Some(true));
        if is_unschedulable != self.recorded.is_unschedulable {
            self.recorded.is_unschedulable = is_unschedulable;
            let reason = match is_unschedulable {
                true => "NodeNotSchedulable",
                false => "NodeSchedulable",
            };
            self.record(StatusEvent::of_status(&self.settings.node_name, reason));
        }
    }

    fn record_start(&self) {
        self.record(StatusEvent {
            event_type: EventType::Normal,
            reason: "Starting",
            message: "Starting kubelet.".to_owned(),
        });
        if self.settings.is_cgroup_v1 {
            self.record(StatusEvent {
                event_type: EventType::Warning,
                reason: "CgroupV1",
                message: CGROUP_V1_WARNING.to_owned(),
            });
        }
    }

    /// Records the events that no earlier try of the same write has recorded.
    fn record_once(&mut self, events: &[StatusEvent]) {
        for event in events {
            if !self.recorded.events.contains(event) {
                self.recorded.events.push(event.clone());
                self.record(event.clone());
            }
        }
    }

    fn record(&self, event: StatusEvent) {
        self.ports.events.record_node(NodeEvent {
            event_type: event.event_type,
            reason: event.reason.into(),
            message: event.message,
            node_uid: self.recorded.node_uid.clone(),
        });
    }

    fn log_write_error(&mut self, error: &ApiError, what: &'static str) {
        let now = self.ports.clock.moment();
        if self.throttles.writing.is_due(&format!("{what}: {error}"), now) {
            tracing::warn!(node = self.settings.node_name, %error, "{what}");
        }
    }

    fn log_address_problem(&mut self, problem: Option<&AddressProblem>) {
        let Some(problem) = problem else {
            self.throttles.addresses.end();
            return;
        };
        if self
            .throttles
            .addresses
            .is_due(&problem.to_string(), self.ports.clock.moment())
        {
            tracing::warn!(node = self.settings.node_name, %problem, "The node's addresses stay as they are");
        }
    }
}

/// Waits for a change; forever once the sender is gone.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
