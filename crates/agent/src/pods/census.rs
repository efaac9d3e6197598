//! Counting what there is, for the metrics.

use rubelet_lifecycle::pod_state::{PodFacts, PodState};
use rubelet_model::observation::{ContainerState, SandboxObservation};

use super::Pods;
use crate::metrics::{Census, static_label};

impl Pods {
    pub(super) fn census(&self) -> Census {
        let mut census = Census {
            mirrors: self.shared.mirrors.borrow().count(),
            ..Census::default()
        };
        for seen in self.seen.values() {
            census.running_pods += usize::from(seen.sandboxes.iter().any(SandboxObservation::is_ready));
            for container in &seen.containers {
                let state = match container.state {
                    ContainerState::Created => "created",
                    ContainerState::Running { .. } => "running",
                    ContainerState::Exited(_) => "exited",
                    ContainerState::Unknown { .. } => "unknown",
                };
                *census.containers.entry(state).or_default() += 1;
            }
        }
        for (uid, pod) in &self.desired {
            let is_static = PodFacts::of(pod).is_static;
            *census.desired.entry(is_static).or_default() += 1;
            let entry = self.pods.get(uid);
            let has_place =
                entry.is_none_or(|entry| entry.state.may_run() || entry.state == PodState::Absent);
            if has_place && !self.admission.refused.contains_key(uid) {
                *census.active.entry(is_static).or_default() += 1;
            }
            let spec = pod.spec.as_ref();
            let ephemeral = spec.and_then(|spec| spec.ephemeral_containers.as_ref());
            census.ephemeral_containers += ephemeral.map_or(0, Vec::len);
        }
        for (uid, entry) in &self.pods {
            let lifecycle = match entry.state {
                PodState::Absent | PodState::Waiting { .. } | PodState::Syncing { .. } => "sync",
                PodState::Terminating { .. } => "terminating",
                PodState::Terminated { .. } | PodState::Finished { .. } => "terminated",
            };
            let is_static = static_label(PodFacts::of(&entry.pod).is_static);
            let (config, is_static) = if self.desired.contains_key(uid) {
                ("desired", is_static)
            } else if entry.pod.spec.is_some() {
                ("orphan", is_static)
            } else {
                ("runtime_only", "unknown")
            };
            *census.working.entry((lifecycle, config, is_static)).or_default() += 1;
        }
        census
    }
}
