//! Removing what pods leave behind: dead containers and sandboxes, logs, links, directories.
//!
//! Owns the effects and their order: containers, then sandboxes without any, then files of pods of which the runtime has
//! nothing left. What may go is decided by [`rubelet_lifecycle::garbage`]. It must not know the sync loop: whether a pod is
//! wanted comes as a [`FateView`].

mod cgroups;
mod directories;
mod logs;
mod stuck;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt;
use rubelet_lifecycle::configuration::labels;
use rubelet_lifecycle::garbage::{
    FoundContainer, FoundSandbox, FoundState, GarbageLimits, PodFate, PodFates, SandboxRemoval,
    containers_to_remove, sandboxes_to_remove,
};
use rubelet_lifecycle::observe::pod_uid_of;
use rubelet_model::observation::{ContainerId, PodUid, SandboxId};
use rubelet_model::{MAX_PERIOD_SECONDS, Timestamp};
use rubelet_ports::{
    CgroupError, Clock, EventType, FileError, FileReader, FileWriter, NodeEvent, NodeEventRecorder,
    PodCgroups, PodVolumes, RuntimeError, RuntimeReader, RuntimeWriter, VolumeFailure,
};
use rubelet_wire::cri::v1;
use thiserror::Error;

use crate::metrics::AgentMetrics;
use crate::node_now::NodeNow;
use crate::settings::{AgentPorts, AgentSettings};
use crate::supervisor::{Panicked, contained};

pub use logs::{LogLink, link_log, remove_logs};
pub(crate) use stuck::StuckSandbox;
use stuck::StuckSandboxes;

/// Pods whose garbage is collected at the same time: one that hangs holds up no other.
const PODS_IN_FLIGHT: usize = 4;
/// A container in an unknown state gets at least this long to end.
const MIN_GRACE_SECONDS: i64 = 2;
/// Upstream's reason for what could not be collected.
const FAILED: &str = "ContainerGCFailed";

/// What becomes of the pods, as it is now. It is asked after every look at the node and before every removal of a directory: an
/// answer from before would count a pod as unknown that came in between. So whoever answers must know a pod before anything of it
/// is created.
pub type FateView<'v> = &'v (dyn Fn() -> Arc<PodFates> + Send + Sync);

/// Where to collect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GarbageScope {
    Node,
    /// Everything of these pods that their fates let go.
    Pods(BTreeSet<PodUid>),
    /// The older dead containers of pods that live; one of each name stays whatever the limits.
    DeadContainers(BTreeSet<PodUid>),
}

impl GarbageScope {
    fn pods(&self) -> Option<&BTreeSet<PodUid>> {
        match self {
            Self::Node => None,
            Self::Pods(pods) | Self::DeadContainers(pods) => Some(pods),
        }
    }

    fn has(&self, uid: &PodUid) -> bool {
        self.pods().is_none_or(|pods| pods.contains(uid))
    }

    /// The runtime selects one pod or all of them.
    fn labels(&self) -> BTreeMap<String, String> {
        let only = self.pods().filter(|pods| pods.len() == 1);
        only.into_iter()
            .flatten()
            .map(|uid| (labels::POD_UID.to_owned(), uid.as_str().to_owned()))
            .collect()
    }
}

/// What was done, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GarbageReport {
    pub containers: Vec<ContainerId>,
    pub sandboxes: Vec<SandboxId>,
    /// Log directories, pod directories and links.
    pub paths: Vec<PathBuf>,
    /// Pods whose cgroups were removed.
    pub cgroups: Vec<PodUid>,
    /// Why something stays, by what it is.
    pub problems: BTreeMap<String, String>,
    /// What could not be searched at all, and why; these are problems too.
    pub failures: Vec<String>,
}

impl GarbageReport {
    fn add_problem(&mut self, subject: impl Into<String>, problem: &GarbageError) {
        self.problems.insert(subject.into(), problem.to_string());
    }

    /// As upstream has it: one container that stays is no failure, a list that cannot be had is.
    fn add_failure(&mut self, subject: impl Into<String>, problem: &GarbageError) {
        self.failures.push(problem.to_string());
        self.add_problem(subject, problem);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GarbageError {
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Volumes(#[from] VolumeFailure),
    #[error("a defect in rubelet: {0}")]
    Defect(String),
}

impl From<Panicked> for GarbageError {
    fn from(panic: Panicked) -> Self {
        Self::Defect(panic.to_string())
    }
}

/// The edges that collecting needs.
#[derive(Clone)]
pub struct GarbagePorts {
    pub clock: Arc<dyn Clock>,
    pub runtime_reader: Arc<dyn RuntimeReader>,
    pub runtime_writer: Arc<dyn RuntimeWriter>,
    pub file_reader: Arc<dyn FileReader>,
    pub file_writer: Arc<dyn FileWriter>,
    pub volumes: Arc<dyn PodVolumes>,
    pub cgroups: Arc<dyn PodCgroups>,
    pub node_events: Arc<dyn NodeEventRecorder>,
    pub node: NodeNow,
    pub metrics: Arc<AgentMetrics>,
}

impl From<&AgentPorts> for GarbagePorts {
    fn from(ports: &AgentPorts) -> Self {
        Self {
            clock: Arc::clone(&ports.clock),
            runtime_reader: Arc::clone(&ports.runtime_reader),
            runtime_writer: Arc::clone(&ports.runtime_writer),
            file_reader: Arc::clone(&ports.file_reader),
            file_writer: Arc::clone(&ports.file_writer),
            volumes: Arc::clone(&ports.volumes),
            cgroups: Arc::clone(&ports.cgroups),
            node_events: Arc::clone(&ports.node_events),
            node: ports.node.clone(),
            metrics: Arc::clone(&ports.metrics),
        }
    }
}

#[derive(Clone, Debug)]
pub struct GarbageSettings {
    pub limits: GarbageLimits,
    pub root_dir: PathBuf,
    pub pod_logs_dir: PathBuf,
    /// Where links to container logs are.
    pub container_logs_dir: PathBuf,
}

impl From<&AgentSettings> for GarbageSettings {
    fn from(settings: &AgentSettings) -> Self {
        Self {
            limits: settings.garbage,
            root_dir: settings.root_dir.clone(),
            pod_logs_dir: PathBuf::from(&settings.node.pod_logs_dir),
            container_logs_dir: settings.container_logs_dir.clone(),
        }
    }
}

pub struct GarbageCollector {
    ports: GarbagePorts,
    settings: GarbageSettings,
    /// Problems that were logged, so that a lasting one is logged once. Held to compare, never across an await.
    told: Mutex<BTreeMap<String, String>>,
    stuck: StuckSandboxes,
    /// The last search of the node failed, and its event was recorded.
    is_failing: AtomicBool,
}

/// What the runtime has, as far as it is ours and in the scope.
#[derive(Default)]
struct Found {
    containers: Vec<FoundContainer>,
    /// The same as listed.
    listed: BTreeMap<ContainerId, v1::Container>,
    sandboxes: Vec<FoundSandbox>,
}

impl GarbageCollector {
    #[must_use]
    pub fn new(ports: GarbagePorts, settings: GarbageSettings) -> Self {
        Self {
            ports,
            settings,
            told: Mutex::default(),
            stuck: StuckSandboxes::default(),
            is_failing: AtomicBool::new(false),
        }
    }

    /// Sandboxes that the runtime cannot remove.
    pub(crate) fn stuck_sandboxes(&self) -> BTreeMap<SandboxId, StuckSandbox> {
        self.stuck.all()
    }

    /// Removes what may go. A failure keeps only what it is about, and is logged when it is a new one.
    pub async fn collect(&self, scope: &GarbageScope, view: FateView<'_>) -> GarbageReport {
        let mut report = GarbageReport::default();
        if let Err(error) = self.collect_in(scope, view, &mut report).await {
            report.add_failure("the runtime's lists", &error);
        }
        self.tell(scope, &report);
        if *scope == GarbageScope::Node {
            self.tell_node(&report.failures);
        }
        report
    }

    async fn collect_in(
        &self,
        scope: &GarbageScope,
        view: FateView<'_>,
        report: &mut GarbageReport,
    ) -> Result<(), GarbageError> {
        self.collect_containers(scope, view, report).await?;
        if matches!(scope, GarbageScope::DeadContainers(_)) {
            return Ok(());
        }
        let found = self.collect_sandboxes(scope, view, report).await?;
        let occupied = occupied_pods(&found, report);
        self.collect_cgroups(scope, view, &occupied, report).await;
        self.collect_log_directories(scope, view, &occupied, report).await;
        if *scope == GarbageScope::Node {
            self.collect_log_links(&found, report).await;
        }
        self.collect_pod_directories(scope, view, &occupied, report).await;
        Ok(())
    }

    async fn collect_containers(
        &self,
        scope: &GarbageScope,
        view: FateView<'_>,
        report: &mut GarbageReport,
    ) -> Result<(), GarbageError> {
        let found = self.list_containers(scope).await?;
        let (fates, limits) = match scope {
            GarbageScope::Node | GarbageScope::Pods(_) => (view(), self.settings.limits),
            GarbageScope::DeadContainers(uids) => (Arc::new(living(uids)), self.limits_of_the_living()),
        };
        let now = self.ports.clock.now();
        let doomed = containers_to_remove(&found.containers, &fates, &limits, now);
        let by_pod = grouped(doomed, |one| one.pod.clone());
        let outcomes = self
            .for_each_pod(by_pod, report, async |one| {
                let Some(container) = found.listed.get(&one.id) else {
                    return (one.id, Ok(()));
                };
                // The whole directory goes with the pod, so its logs are not worth a call each.
                let keeps_logs = fates.may_content_go(&one.pod);
                let result = self.remove_container(container, one.stop_first, keeps_logs).await;
                (one.id, result)
            })
            .await;
        for (id, result) in outcomes {
            match result {
                Ok(()) => report.containers.push(id),
                Err(error) => report.add_problem(format!("container {id}"), &error),
            }
        }
        Ok(())
    }

    /// Returns what the runtime had when the sandboxes were chosen.
    async fn collect_sandboxes(
        &self,
        scope: &GarbageScope,
        view: FateView<'_>,
        report: &mut GarbageReport,
    ) -> Result<Found, GarbageError> {
        // Sandboxes first: a container that appears after their list keeps its sandbox.
        let sandboxes = self.list_sandboxes(scope).await?;
        let found = Found {
            sandboxes,
            ..self.list_containers(scope).await?
        };
        let doomed = sandboxes_to_remove(&found.sandboxes, &found.containers, &view());
        let by_pod = grouped(doomed, |one| one.pod.clone());
        let outcomes = self
            .for_each_pod(by_pod, report, async |one| {
                let result = self.try_to_remove_sandbox(&one).await;
                (one.id, result)
            })
            .await;
        for (id, result) in outcomes {
            match result {
                Ok(()) => report.sandboxes.push(id),
                Err(error) => report.add_problem(format!("sandbox {id}"), &error),
            }
        }
        if *scope == GarbageScope::Node {
            self.stuck
                .keep(&found.sandboxes.iter().map(|sandbox| &sandbox.id).collect());
        }
        Ok(found)
    }

    /// Runs the work of each pod in its order, of a few pods side by side. A panic ends the work of its own pod only.
    async fn for_each_pod<W, T, F: Future<Output = T>>(
        &self,
        by_pod: BTreeMap<PodUid, Vec<W>>,
        report: &mut GarbageReport,
        work: impl Fn(W) -> F,
    ) -> Vec<T> {
        let work = &work;
        let pods = futures_util::stream::iter(by_pod).map(|(uid, pieces)| async move {
            let mut outcomes = Vec::new();
            for piece in pieces {
                match contained(work(piece)).await {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(panic) => return (outcomes, Some((uid, panic))),
                }
            }
            (outcomes, None)
        });
        let pods: Vec<_> = pods.buffer_unordered(PODS_IN_FLIGHT).collect().await;
        let mut all = Vec::new();
        for (outcomes, panic) in pods {
            all.extend(outcomes);
            if let Some((uid, panic)) = panic {
                report.add_problem(format!("the garbage of pod {uid}"), &panic.into());
            }
        }
        all
    }

    /// Logs go before the container: they are found by what the runtime says about it.
    async fn remove_container(
        &self,
        container: &v1::Container,
        stop_first: bool,
        keeps_logs: bool,
    ) -> Result<(), GarbageError> {
        let writer = &self.ports.runtime_writer;
        if stop_first {
            let grace_seconds = grace_seconds(&container.annotations);
            done(writer.stop_container(&container.id, grace_seconds).await)?;
        }
        if !keeps_logs {
            self.remove_logs_of(&container.id).await?;
        }
        self.remove_log_link(container).await?;
        done(writer.remove_container(&container.id).await)
    }

    /// One that could not be removed is tried again with growing gaps, and has its last problem in between.
    async fn try_to_remove_sandbox(&self, doomed: &SandboxRemoval) -> Result<(), GarbageError> {
        let clock = self.ports.clock.as_ref();
        if let Some(problem) = self.stuck.not_yet(&doomed.id, clock.moment()) {
            return Err(problem);
        }
        let result = self.remove_sandbox(&doomed.id).await;
        match &result {
            Ok(()) => self.stuck.removed(&doomed.id),
            Err(problem) => self.stuck.failed(&doomed.id, &doomed.pod, problem, clock),
        }
        result
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), GarbageError> {
        let writer = &self.ports.runtime_writer;
        // It should be stopped already; if it is not, its network would be left behind.
        done(writer.stop_pod_sandbox(id.as_str()).await)?;
        done(writer.remove_pod_sandbox(id.as_str()).await)
    }

    async fn list_containers(&self, scope: &GarbageScope) -> Result<Found, GarbageError> {
        let filter = v1::ContainerFilter {
            label_selector: scope.labels(),
            ..v1::ContainerFilter::default()
        };
        let list = self.ports.runtime_reader.list_containers(Some(filter)).await?;
        let mut found = Found::default();
        for listed in list {
            let Some(pod) = pod_uid_of(&listed.labels).filter(|uid| scope.has(uid)) else {
                continue;
            };
            // What is listed twice must not count twice: one of the two would go.
            let id = ContainerId::from(listed.id.as_str());
            if !found.listed.contains_key(&id) {
                found.containers.push(found_container(pod, &listed));
                found.listed.insert(id, listed);
            }
        }
        Ok(found)
    }

    async fn list_sandboxes(&self, scope: &GarbageScope) -> Result<Vec<FoundSandbox>, GarbageError> {
        let filter = v1::PodSandboxFilter {
            label_selector: scope.labels(),
            ..v1::PodSandboxFilter::default()
        };
        let list = self.ports.runtime_reader.list_pod_sandboxes(Some(filter)).await?;
        let mut ids = BTreeSet::new();
        let once = list.iter().filter(|sandbox| ids.insert(&sandbox.id));
        let found = once.filter_map(found_sandbox);
        Ok(found.filter(|sandbox| scope.has(&sandbox.pod)).collect())
    }

    fn limits_of_the_living(&self) -> GarbageLimits {
        GarbageLimits {
            max_per_container: self.settings.limits.max_per_container.map(|limit| limit.max(1)),
            ..GarbageLimits::default()
        }
    }

    /// Recorded once until a search succeeds again.
    fn tell_node(&self, failures: &[String]) {
        let is_failing = !failures.is_empty();
        if self.is_failing.swap(is_failing, Ordering::Relaxed) || !is_failing {
            return;
        }
        self.ports.node_events.record_node(NodeEvent {
            event_type: EventType::Warning,
            reason: FAILED.into(),
            message: failures.join("; "),
            node_uid: self.ports.node.uid(),
        });
    }

    /// Logs problems that are new. A look at the whole node also forgets those that are over.
    fn tell(&self, scope: &GarbageScope, report: &GarbageReport) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |subject: &String, problem: &String| told.get(subject) != Some(problem);
        for (subject, problem) in &report.problems {
            if is_new(subject, problem) {
                tracing::warn!(reason = FAILED, subject, problem, "garbage stays");
            }
        }
        if *scope == GarbageScope::Node {
            told.clear();
        }
        told.extend(report.problems.clone());
    }
}

fn grouped<W>(work: Vec<W>, pod: impl Fn(&W) -> PodUid) -> BTreeMap<PodUid, Vec<W>> {
    let mut groups: BTreeMap<PodUid, Vec<W>> = BTreeMap::new();
    for piece in work {
        groups.entry(pod(&piece)).or_default().push(piece);
    }
    groups
}

/// What is gone already is what was wanted.
fn done(result: Result<(), RuntimeError>) -> Result<(), GarbageError> {
    match result {
        Err(error) if !error.is_not_found() => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The fates of pods that live.
fn living(uids: &BTreeSet<PodUid>) -> PodFates {
    let known = uids.iter().map(|uid| (uid.clone(), PodFate::Lives));
    PodFates {
        known: known.collect(),
        ..PodFates::default()
    }
}

/// Pods of which the runtime still has something.
fn occupied_pods(found: &Found, report: &GarbageReport) -> BTreeSet<PodUid> {
    let removed: BTreeSet<&SandboxId> = report.sandboxes.iter().collect();
    let sandboxes = found
        .sandboxes
        .iter()
        .filter(|sandbox| !removed.contains(&sandbox.id))
        .map(|sandbox| sandbox.pod.clone());
    let containers = found.containers.iter().map(|container| container.pod.clone());
    sandboxes.chain(containers).collect()
}

fn found_container(pod: PodUid, container: &v1::Container) -> FoundContainer {
    let metadata = container.metadata.clone().unwrap_or_default();
    FoundContainer {
        id: ContainerId::from(container.id.as_str()),
        pod,
        name: metadata.name,
        sandbox_id: SandboxId::from(container.pod_sandbox_id.as_str()),
        state: match v1::ContainerState::try_from(container.state) {
            Ok(v1::ContainerState::ContainerCreated) => FoundState::Created,
            Ok(v1::ContainerState::ContainerRunning) => FoundState::Running,
            Ok(v1::ContainerState::ContainerExited) => FoundState::Exited,
            Ok(v1::ContainerState::ContainerUnknown) | Err(_) => FoundState::Unknown,
        },
        attempt: metadata.attempt,
        created_at: Timestamp::from_unix_nanos(container.created_at),
    }
}

/// `None` for sandboxes of others: a runtime may serve more than this node's pods.
fn found_sandbox(sandbox: &v1::PodSandbox) -> Option<FoundSandbox> {
    Some(FoundSandbox {
        id: SandboxId::from(sandbox.id.as_str()),
        pod: pod_uid_of(&sandbox.labels)?,
        is_ready: sandbox.state == v1::PodSandboxState::SandboxReady as i32,
        attempt: sandbox.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
        created_at: Timestamp::from_unix_nanos(sandbox.created_at),
    })
}

/// How long a container may take to end, as it was recorded when it was made.
fn grace_seconds(annotations: &BTreeMap<String, String>) -> i64 {
    let recorded = |key: &str| annotations.get(key).and_then(|text| text.parse::<i64>().ok());
    recorded(labels::DELETION_GRACE_PERIOD)
        .or_else(|| recorded(labels::TERMINATION_GRACE_PERIOD))
        .unwrap_or_default()
        .clamp(MIN_GRACE_SECONDS, MAX_PERIOD_SECONDS)
}

#[cfg(test)]
mod tests;
