//! What every pod of the node waits for, for `rubelet why`.
//!
//! Owns since when the runtime and its network are not ready, and the manifests that cannot be used.

use rubelet_model::Timestamp;
use rubelet_model::explanation::{ManifestExplanation, NodeExplanation, WaitExplanation};

use super::explain::Explainer;
use crate::runtime_health::RuntimeHealth;
use crate::sources::{Merger, Source};

/// Nothing is known of a pod here.
pub(super) struct NodeWaits {
    runtime_down_since: Option<Timestamp>,
    network_down_since: Option<Timestamp>,
    unusable: Vec<ManifestExplanation>,
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

    /// The file source has delivered.
    pub(super) fn set_unusable(&mut self, manifests: Vec<ManifestExplanation>) {
        self.unusable = manifests;
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

impl NodeWaits {
    pub(super) fn explain(&self, explainer: &Explainer<'_>, merger: &Merger) -> NodeExplanation {
        NodeExplanation {
            waits_for: self.waits_for(explainer, merger),
            manifests: self.unusable.clone(),
        }
    }

    fn waits_for(&self, explainer: &Explainer<'_>, merger: &Merger) -> Vec<WaitExplanation> {
        let started = explainer.started_at();
        let health = explainer.context.health.borrow().clone();
        let mut found = Vec::new();
        let mut note = |what: &str, since: Timestamp, problem: Option<String>| {
            found.push(explainer.waiting(what, since, problem));
        };
        if let Some(problem) = health.runtime_problem {
            let since = self.runtime_down_since.unwrap_or(started);
            note("the container runtime to be ready", since, Some(problem));
        } else if let Some(problem) = health.network_problem {
            let since = self.network_down_since.unwrap_or(started);
            note(
                "the runtime's network to be ready (pods on the host's network start without it)",
                since,
                Some(problem),
            );
        }
        if !explainer.startup.are_names_known() {
            note("the container runtime's first list of pods", started, None);
        }
        for source in merger.missing() {
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
