//! How long pods take to start, for the metrics.
//!
//! Owns the times of a start until its duration is observed. It decides nothing.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff;
use prometheus::Histogram;
use rubelet_lifecycle::pod_state::{Job, UpdateKind};
use rubelet_lifecycle::restart::is_sidecar;
use rubelet_lifecycle::status::is_api_pod;
use rubelet_model::Timestamp;

use crate::metrics::{JobMetrics, StartMetrics};
use crate::sources::SEEN_ANNOTATION;
use crate::startup::StartupTimes;

/// The start of one pod.
pub(super) struct Start {
    /// When its source first had it.
    seen_at: Timestamp,
    has_begun: bool,
    /// Why it is looked at next.
    kind: UpdateKind,
    /// It has not run yet, as far as it is known.
    awaits_running: bool,
    /// The API server has not shown it running yet, and its start counts.
    awaits_shown: bool,
    pub(super) times: Arc<StartupTimes>,
}

impl Start {
    /// A pod that lives already was started by an earlier life of the agent.
    pub(super) fn of(pod: &Pod, lives: bool, now: Timestamp) -> Self {
        let status = pod.status.as_ref();
        let was_started = status.is_some_and(|status| status.start_time.is_some());
        Self {
            seen_at: seen_at(pod).unwrap_or(now),
            has_begun: false,
            kind: UpdateKind::Create,
            awaits_running: !lives,
            awaits_shown: is_api_pod(pod) && !lives && !was_started && !is_unschedulable(status),
            times: Arc::default(),
        }
    }

    pub(super) fn asked_for(&mut self, kind: UpdateKind) {
        if self.has_begun {
            self.kind = kind;
        }
    }

    /// What upstream's metrics call the job that begins.
    pub(super) fn job_begins(
        &mut self,
        job: Job,
        pod: &Pod,
        now: Timestamp,
        metrics: &JobMetrics,
    ) -> &'static str {
        match job {
            Job::Sync => {}
            Job::Terminate { .. } | Job::TerminateOrphan { .. } => return "kill",
            Job::CleanUp => return "terminated",
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            let containers = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
            let containers = u32::try_from(containers).unwrap_or(u32::MAX);
            metrics.containers_per_pod.observe(f64::from(containers));
            let delay = now.since(self.seen_at);
            metrics.first_delays.observe(delay.as_secs_f64());
        }
        match std::mem::replace(&mut self.kind, UpdateKind::Sync) {
            UpdateKind::Create => "create",
            UpdateKind::Update => "update",
            UpdateKind::Sync => "sync",
        }
    }

    /// The first phase that is not `Pending` ends the wait; only running is measured.
    pub(super) fn phase_changed(&mut self, shown: &PodStatus, now: Timestamp, durations: &Histogram) {
        let phase = shown.phase.as_deref().unwrap_or("Pending");
        if !self.awaits_running || phase == "Pending" {
            return;
        }
        self.awaits_running = false;
        if phase == "Running" {
            durations.observe(now.since(self.seen_at).as_secs_f64());
        }
    }
}

/// A start as the API server shows it.
pub(super) struct ShownStart {
    total: Duration,
    /// Without image pulls and init containers; `None` for a pod with volumes that are more than files of its own.
    own: Option<Duration>,
    is_on_host_network: bool,
}

impl Start {
    /// The start of a pod that the API server shows as running for the first time.
    pub(super) fn shown(&mut self, pod: &Pod, now: Timestamp) -> Option<ShownStart> {
        let status = pod.status.as_ref().filter(|_| self.awaits_shown)?;
        if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) || is_unschedulable(Some(status)) {
            self.awaits_shown = false;
            return None;
        }
        let created = pod.metadata.creation_timestamp.as_ref().map(timestamp)?;
        if !has_started(status) {
            return None;
        }
        self.awaits_shown = false;
        let total = now.since(created);
        let own = total
            .saturating_sub(self.times.pulling())
            .saturating_sub(init_time(pod, status));
        Some(ShownStart {
            total,
            own: (!is_stateful(pod)).then_some(own),
            is_on_host_network: pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true),
        })
    }
}

/// Shows starts in the metrics.
#[derive(Default)]
pub(super) struct ShownStarts {
    /// A pod with a network of its own was seen to start.
    has_network_pod_started: bool,
}

impl ShownStarts {
    pub(super) fn count(&mut self, start: &ShownStart, metrics: &StartMetrics) {
        metrics.total_durations.observe(start.total.as_secs_f64());
        let Some(own) = start.own else { return };
        metrics.sli_durations.observe(own.as_secs_f64());
        if !start.is_on_host_network && !std::mem::replace(&mut self.has_network_pod_started, true) {
            metrics.first_network_pod.set(own.as_secs_f64());
        }
    }
}

fn seen_at(pod: &Pod) -> Option<Timestamp> {
    let text = pod.metadata.annotations.as_ref()?.get(SEEN_ANNOTATION)?;
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(timestamp(&Time(at)))
}

fn timestamp(time: &Time) -> Timestamp {
    Timestamp::from_unix_nanos(i64::try_from(time.0.as_nanosecond()).unwrap_or(i64::MAX))
}

fn is_unschedulable(status: Option<&PodStatus>) -> bool {
    let conditions = status.and_then(|status| status.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    conditions.any(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

/// Whether every container has started.
fn has_started(status: &PodStatus) -> bool {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let is_running = |container: &ContainerStatus| {
        let state = container.state.as_ref();
        let running = state.and_then(|state| state.running.as_ref());
        running.is_some_and(|running| running.started_at.is_some())
    };
    !containers.is_empty() && containers.iter().all(is_running)
}

/// How long init containers ran, which users answer for.
fn init_time(pod: &Pod, status: &PodStatus) -> Duration {
    let specs = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref());
    let runs_to_its_end = |name: &str| {
        let mut specs = specs.unwrap_or_default().iter();
        specs.any(|container| container.name == name && !is_sidecar(container))
    };
    let statuses = status.init_container_statuses.iter().flatten();
    let ends = statuses
        .filter(|container| runs_to_its_end(&container.name))
        .filter_map(|container| container.state.as_ref()?.terminated.as_ref());
    ends.map(|end| match (&end.started_at, &end.finished_at) {
        (Some(began), Some(ended)) => timestamp(ended).since(timestamp(began)),
        (None, _) | (_, None) => Duration::ZERO,
    })
    .sum()
}

/// Whether the pod has a volume that is more than files of its own.
fn is_stateful(pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    let is_plain = |volume: &Volume| {
        volume.secret.is_some()
            || volume.config_map.is_some()
            || volume.downward_api.is_some()
            || volume.empty_dir.is_some()
            || volume.projected.is_some()
    };
    !volumes.unwrap_or_default().iter().all(is_plain)
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, Registry};
    use serde_json::json;

    use super::*;
    use crate::metrics::AgentMetrics;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).expect("a pod")
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    #[test]
    fn jobs_have_upstreams_names_and_the_first_one_is_measured() {
        let metrics = AgentMetrics::register(&Registry::new()).expect("an empty registry takes them");
        let metrics = &metrics.jobs;
        let pod = pod(json!({
            "metadata": {"annotations": {SEEN_ANNOTATION: "1970-01-01T00:00:10.5Z"}},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]},
        }));
        let mut start = Start::of(&pod, false, at(0));
        // The kind of the first job is that it is the first.
        start.asked_for(UpdateKind::Sync);
        assert_eq!(start.job_begins(Job::Sync, &pod, at(12), metrics), "create");
        start.asked_for(UpdateKind::Update);
        assert_eq!(start.job_begins(Job::Sync, &pod, at(13), metrics), "update");
        assert_eq!(start.job_begins(Job::Sync, &pod, at(14), metrics), "sync");
        let kill = Job::Terminate { grace_seconds: 1 };
        assert_eq!(start.job_begins(kill, &pod, at(15), metrics), "kill");
        assert_eq!(
            start.job_begins(Job::CleanUp, &pod, at(16), metrics),
            "terminated"
        );
        let delays = &metrics.first_delays;
        assert_eq!((delays.get_sample_count(), delays.get_sample_sum()), (1, 1.5));
        assert_eq!(metrics.containers_per_pod.get_sample_sum(), 3.0);
    }

    #[test]
    fn only_the_way_from_pending_to_running_is_measured() {
        let check = |lives: bool, phases: &[&str], expected: u64| {
            let durations = Histogram::with_opts(HistogramOpts::new("x", "x")).expect("a histogram");
            let mut start = Start::of(&Pod::default(), lives, at(0));
            for phase in phases {
                let status = PodStatus {
                    phase: Some((*phase).to_owned()),
                    ..PodStatus::default()
                };
                start.phase_changed(&status, at(2), &durations);
            }
            assert_eq!(durations.get_sample_count(), expected, "{lives} {phases:?}");
        };
        check(false, &["Pending", "Running"], 1);
        check(false, &["Pending", "Running", "Running", "Failed"], 1);
        check(false, &["Pending", "Succeeded", "Running"], 0);
        check(true, &["Running"], 0);
    }

    #[test]
    fn what_users_answer_for_is_known() {
        let pod = pod(json!({
            "spec": {
                "containers": [],
                "initContainers": [{"name": "once"}, {"name": "side", "restartPolicy": "Always"}],
                "volumes": [{"name": "a", "emptyDir": {}}],
            },
            "status": {
                "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "state": {"running": {"startedAt": "1970-01-01T00:00:09Z"}}}],
                "initContainerStatuses": [
                    {"name": "once", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"terminated": {
                        "exitCode": 0, "startedAt": "1970-01-01T00:00:01Z", "finishedAt": "1970-01-01T00:00:05Z"}}},
                    {"name": "side", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"terminated": {
                        "exitCode": 0, "startedAt": "1970-01-01T00:00:01Z", "finishedAt": "1970-01-01T00:00:09Z"}}},
                ],
            },
        }));
        let status = pod.status.as_ref().expect("a status");
        assert_eq!(init_time(&pod, status), Duration::from_secs(4));
        assert!(has_started(status) && !has_started(&PodStatus::default()));
        assert!(!is_stateful(&pod));
        let mounted: Pod = serde_json::from_value(json!({
            "spec": {"containers": [], "volumes": [{"name": "a", "hostPath": {"path": "/x"}}]},
        }))
        .expect("a pod");
        assert!(is_stateful(&mounted));
    }
}
