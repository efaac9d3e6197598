//! Why a pod is not ready, or not gone: the one thing that it waits for.
//!
//! Owns the choice of that thing. The words come from the named waits and from the pod's status.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use rubelet_lifecycle::pod_state::PodState;
use rubelet_lifecycle::status::find_condition;
use rubelet_model::Timestamp;
use rubelet_model::explanation::{PodExplanation, WaitExplanation};
use rubelet_model::message::{MAX_WAIT_BYTES, bound};

use super::AgentContext;
use super::admission::Admission;
use super::garbage::Garbage;
use super::records::Records;
use super::startup::Startup;
use super::static_names::Names;
use super::unreadable_manifests::UnreadableManifests;
use super::worker::{Worker, uid_of};

pub(super) fn is_ready(status: &PodStatus) -> bool {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    find_condition(conditions, "Ready").is_some_and(|condition| condition.status == "True")
}

fn regular(status: &PodStatus) -> &[ContainerStatus] {
    status.container_statuses.as_deref().unwrap_or_default()
}

fn all(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten()
}

/// What an explanation is made from.
pub(super) struct Explainer<'a> {
    pub(super) context: &'a AgentContext,
    pub(super) records: &'a Records,
    pub(super) admission: &'a Admission,
    pub(super) names: &'a Names,
    pub(super) manifests: &'a UnreadableManifests,
    pub(super) garbage: &'a Garbage,
    pub(super) startup: Startup,
}

impl Explainer<'_> {
    pub(super) fn explanations(&self) -> Vec<PodExplanation> {
        let mut explanations = self.explain_unadmitted();
        let workers = self.records.iter();
        explanations.extend(
            workers.filter_map(|(_, record)| Some(self.explain(record.worker()?, &record.standing().life()))),
        );
        explanations.sort_by(|left, right| {
            (&left.namespace, &left.name, &left.uid).cmp(&(&right.namespace, &right.name, &right.uid))
        });
        explanations
    }

    fn explain(&self, worker: &Worker, state: &PodState) -> PodExplanation {
        let pod = worker.pod();
        let status = worker.statuses.published();
        let phase = match state {
            PodState::Terminating { .. } => "Terminating".to_owned(),
            PodState::Absent
            | PodState::Waiting { .. }
            | PodState::Syncing { .. }
            | PodState::Terminated { .. }
            | PodState::Finished { .. } => status.phase.clone().unwrap_or_default(),
        };
        PodExplanation {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: uid_of(pod),
            phase,
            containers_ready: regular(status).iter().filter(|one| one.ready).count(),
            containers: pod.spec.as_ref().map_or(0, |spec| spec.containers.len()),
            restarts: all(status).map(|one| i64::from(one.restart_count)).sum(),
            waits_for: self.waits_for(worker, state),
        }
    }

    pub(super) fn started_at(&self) -> Timestamp {
        self.context.started_at
    }

    pub(super) fn waiting(
        &self,
        what: impl Into<String>,
        since: Timestamp,
        mut last_error: Option<String>,
    ) -> WaitExplanation {
        let mut what = what.into();
        for text in last_error.iter_mut().chain([&mut what]) {
            bound(text, MAX_WAIT_BYTES);
        }
        WaitExplanation {
            what,
            since,
            age_seconds: self.context.ports.clock.now().since(since).as_secs(),
            last_error,
        }
    }

    fn waits_for(&self, worker: &Worker, state: &PodState) -> Option<WaitExplanation> {
        if let (Some(_), Some(wait)) = (&worker.job, worker.waits.current()) {
            return Some(wait);
        }
        let since = worker.resting_since;
        let last_error = worker.waits.last_error();
        match state {
            PodState::Waiting { .. } => {
                let holder = self.names.holder(worker.full_name());
                let holder = holder.map(ToString::to_string).unwrap_or_default();
                let what = format!("the end of the static pod with the same name and uid {holder}");
                Some(self.waiting(what, since, last_error))
            }
            PodState::Syncing { .. } => self.explain_resting(worker.statuses.published(), since, last_error),
            PodState::Terminating { .. } | PodState::Terminated { .. } => {
                Some(self.waiting("another try to end the pod", since, last_error))
            }
            PodState::Absent | PodState::Finished { .. } => None,
        }
    }

    /// A pod without a job that is not ready waits for one of its containers.
    fn explain_resting(
        &self,
        status: &PodStatus,
        since: Timestamp,
        last_error: Option<String>,
    ) -> Option<WaitExplanation> {
        if is_ready(status) {
            return None;
        }
        let state = |one: &ContainerStatus| one.state.clone().unwrap_or_default();
        let unready = || all(status).filter(|one| !one.ready);
        let waiting = unready().find_map(|one| {
            let waiting = state(one).waiting?;
            let reason = waiting.reason.filter(|reason| !reason.is_empty())?;
            let starts = !matches!(reason.as_str(), "PodInitializing" | "ContainerCreating");
            starts.then(|| (one.name.clone(), reason, waiting.message))
        });
        if let Some((name, reason, message)) = waiting {
            let what = format!("the next try of container {name} ({reason})");
            return Some(self.waiting(what, since, message.or(last_error)));
        }
        let running = unready().find(|one| state(one).running.is_some());
        if let Some(one) = running {
            let what = match status
                .init_container_statuses
                .iter()
                .flatten()
                .any(|init| init.name == one.name)
            {
                true => format!("init container {} to end", one.name),
                false => format!("container {} to be ready", one.name),
            };
            return Some(self.waiting(what, since, last_error));
        }
        Some(self.waiting("the next look at the pod", since, last_error))
    }
}
