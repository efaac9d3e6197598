//! What every pod of the node waits for, for `rubelet why`.
//!
//! Owns since when the runtime and its network are not ready, and the manifests that cannot be used.

use rubelet_model::Timestamp;
use rubelet_model::explanation::{ManifestExplanation, NodeExplanation, WaitExplanation};

use super::Pods;
use crate::runtime_health::RuntimeHealth;
use crate::sources::Source;

/// Nothing is known of a pod here.
pub(super) struct NodeWaits {
    runtime_down_since: Option<Timestamp>,
    network_down_since: Option<Timestamp>,
    pub(super) unusable: Vec<ManifestExplanation>,
}

impl NodeWaits {
    /// Neither the runtime nor its network has answered yet.
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            runtime_down_since: Some(now),
            network_down_since: Some(now),
            unusable: Vec::new(),
        }
    }

    pub(super) fn set_health(&mut self, health: &RuntimeHealth, now: Timestamp) {
        let note = |since: &mut Option<Timestamp>, problem: &Option<String>| match problem {
            Some(_) => {
                since.get_or_insert(now);
            }
            None => *since = None,
        };
        note(&mut self.runtime_down_since, &health.runtime_problem);
        note(&mut self.network_down_since, &health.network_problem);
    }
}

impl Pods {
    pub(super) fn node_explanation(&self) -> NodeExplanation {
        NodeExplanation {
            waits_for: self.node_waits_for(),
            manifests: self.node_waits.unusable.clone(),
        }
    }

    fn node_waits_for(&self) -> Vec<WaitExplanation> {
        let started = self.shared.started_at;
        let health = self.shared.health.borrow().clone();
        let waits = &self.node_waits;
        let mut found = Vec::new();
        let mut note = |what: &str, since: Timestamp, problem: Option<String>| {
            found.push(self.waiting(what, since, problem));
        };
        if let Some(problem) = health.runtime_problem {
            let since = waits.runtime_down_since.unwrap_or(started);
            note("the container runtime to be ready", since, Some(problem));
        } else if let Some(problem) = health.network_problem {
            let since = waits.network_down_since.unwrap_or(started);
            note(
                "the runtime's network to be ready (pods on the host's network start without it)",
                since,
                Some(problem),
            );
        }
        if !self.are_names_known {
            note("the container runtime's first list of pods", started, None);
        }
        for source in self.merger.missing() {
            let what = match source {
                Source::File => "the manifests of staticPodPath to be read",
                Source::Http => "pods from staticPodURL",
                Source::Api => "the API server to list the pods of this node",
            };
            let why = "until then no pod is removed";
            note(&format!("{what} ({why})"), started, None);
        }
        found
    }
}
