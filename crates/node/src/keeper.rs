//! The task that keeps the Node object true.
//!
//! Owns when the status is looked at (every ten seconds, and at once when something changed) and when it is written (when it
//! changed, or after five minutes). Nothing is polled for the first Ready: what would make the node ready wakes the task.
//!
//! ```text
//! first word of the runtime ──► register ──► status ◄──► wait: tick | runtime, pressure, volumes | the Node changed
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
use rubelet_ports::Complaint;

/// How soon after one look the next may follow: while the node gets ready, and afterwards.
const QUICK_GAP: Duration = Duration::from_millis(100);
const CALM_GAP: Duration = Duration::from_secs(1);
/// A node that is not ready by then is in no hurry any more.
const QUICK_LIMIT: Duration = Duration::from_secs(120);
/// The part of a period that is added by chance, so that nodes do not fall into step.
const JITTER_DIVISOR: u32 = 25;
const CGROUP_V1_WARNING: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. \
     Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

pub(crate) struct Keeper {
    ports: NodePorts,
    settings: Arc<NodeSettings>,
    inputs: NodeInputs,
    own_node: OwnNode,
    heartbeat: Heartbeat,
    facts: FactReader,
    pod_network: PodNetwork,
    reports: Reports,
    /// What the API server did not take over from the last write: a server of another version drops fields that it does not
    /// know, and would be told them every ten seconds.
    refused: Option<Value>,
    told: Told,
    began: Moment,
    was_ready: bool,
    start: MeasuredStart,
    complaints: Complaints,
}

/// One for each trouble that may last.
#[derive(Default)]
struct Complaints {
    writing: Complaint,
    following: Complaint,
    addresses: Complaint,
}

/// What people were told already.
#[derive(Default)]
struct Told {
    /// Of the change that is being written, so that another try does not tell it again.
    events: Vec<StatusEvent>,
    is_unschedulable: bool,
    /// Of the first Node that was seen, as for upstream.
    node_uid: Option<String>,
}

/// When a status was written last, and how long it may stand unchanged.
#[derive(Default)]
struct Reports {
    last: Option<Moment>,
    gap: Duration,
}

impl Reports {
    fn is_due(&self, now: Moment) -> bool {
        self.last.is_none_or(|last| now.since(last) >= self.gap)
    }

    /// After a change the next forced report comes by chance, then in even steps.
    fn plan(&mut self, changed: bool, frequency: Duration, randomness: &dyn Randomness) {
        self.gap = if changed || self.last.is_none() {
            frequency / 2 + randomness.part_of(frequency)
        } else {
            frequency
        };
    }
}

impl Keeper {
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
            told: Told::default(),
            was_ready: false,
            complaints: Complaints::default(),
        }
    }

    pub(crate) async fn run(mut self) {
        self.tell_start();
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
            self.complain_of_address(initial.address_problem.as_ref());
            self.tell(&initial.events);
            self.start.tries(self.ports.clock.now());
            match registrar.attempt(&initial.node).await {
                Ok(registered) => {
                    self.complaints.writing.end();
                    let status = registered.node.status.as_ref();
                    let is_ready = is_ready(status.and_then(|status| status.conditions.as_ref()));
                    if registered.is_new {
                        self.start.is_registered(self.ports.clock.now());
                    }
                    self.learn(Arc::new(registered.node));
                    if registered.is_new && is_ready {
                        // Whoever waits for a node to become ready hears it also of one that is so from its first moment.
                        self.record(StatusEvent::of_status(&self.settings.node_name, "NodeReady"));
                    }
                    break;
                }
                Err(error) => self.complain(&error, "The node cannot be registered; it is tried again"),
            }
            self.ports.clock.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.told.events.clear();
    }

    /// One look at the status, and the write that it needs.
    async fn sync(&mut self) {
        let facts = self.facts.read(&mut self.inputs).await;
        for attempt in 0..TRIES {
            let Err(error) = self.try_sync(attempt, &facts).await else {
                if self.complaints.writing.end() {
                    tracing::info!("The node's status is written again");
                }
                return;
            };
            if error.kind == ApiErrorKind::NotFound {
                self.own_node.forget();
                self.complain(
                    &error,
                    "There is no Node object of this name; without one no pod comes to this node",
                );
                return;
            }
            self.heartbeat.failed(attempt, &error);
            if attempt + 1 == TRIES {
                self.complain(&error, "The node's status cannot be written; it is tried again");
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
        self.complain_of_address(derived.address_problem.as_ref());
        self.tell(&derived.events);
        let difference = lasting_difference(&original, &derived.node).map_err(|error| malformed(&error))?;
        let changed = difference != json!({}) && self.refused.as_ref() != Some(&difference);
        if !changed && !self.reports.is_due(self.ports.clock.moment()) {
            self.told.events.clear();
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
        self.told.events.clear();
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
            } = &mut self.inputs;
            // Every arm can be dropped: a watch remembers what was seen, a stream what comes next.
            tokio::select! {
                biased;
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
            CALM_GAP
        } else {
            QUICK_GAP
        }
    }

    async fn take_in(&mut self, change: Change<Node>) {
        match &change {
            Change::Broken(error) => {
                let now = self.ports.clock.moment();
                if self.complaints.following.is_due(&error.to_string(), now) {
                    tracing::warn!(node = self.settings.node_name, %error, "The Node object cannot be followed; it is tried again");
                }
            }
            Change::All(_) | Change::Applied(_) | Change::Deleted(_) => drop(self.complaints.following.end()),
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
                "Somebody has deleted the Node object; it is registered again when rubelet is restarted"
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
        if self.told.node_uid.is_none() {
            self.told.node_uid.clone_from(&node.metadata.uid);
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
        if is_unschedulable != self.told.is_unschedulable {
            self.told.is_unschedulable = is_unschedulable;
            let reason = match is_unschedulable {
                true => "NodeNotSchedulable",
                false => "NodeSchedulable",
            };
            self.record(StatusEvent::of_status(&self.settings.node_name, reason));
        }
    }

    fn tell_start(&self) {
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

    /// Tells what was not told in an earlier try of the same write.
    fn tell(&mut self, events: &[StatusEvent]) {
        for event in events {
            if !self.told.events.contains(event) {
                self.told.events.push(event.clone());
                self.record(event.clone());
            }
        }
    }

    fn record(&self, event: StatusEvent) {
        self.ports.events.record_node(NodeEvent {
            event_type: event.event_type,
            reason: event.reason.into(),
            message: event.message,
            node_uid: self.told.node_uid.clone(),
        });
    }

    fn complain(&mut self, error: &ApiError, what: &'static str) {
        let now = self.ports.clock.moment();
        if self.complaints.writing.is_due(&format!("{what}: {error}"), now) {
            tracing::warn!(node = self.settings.node_name, %error, "{what}");
        }
    }

    fn complain_of_address(&mut self, problem: Option<&AddressProblem>) {
        let Some(problem) = problem else {
            self.complaints.addresses.end();
            return;
        };
        if self
            .complaints
            .addresses
            .is_due(&problem.to_string(), self.ports.clock.moment())
        {
            tracing::warn!(node = self.settings.node_name, %problem, "The node's addresses stay as they are");
        }
    }
}

/// A sender that is gone has nothing more to say.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
