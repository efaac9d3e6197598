//! Static pods that a newer version replaces before every source has delivered.
//!
//! Owns the one exception to the rule that no pod ends before that (decision 0022). The API server may be a static pod of this
//! node: its new version waits for the end of the old one, and the API source delivers only when the new version runs. So the
//! old version ends as soon as its own source has delivered a complete set without it and a static pod that may start needs its
//! name.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::status::is_static_pod;
use rubelet_model::observation::{PodObservation, PodUid};

use super::Pods;
use super::entry::{full_name, full_name_of, is_waiting, uid_of};
use crate::sources::{SOURCE_ANNOTATION, Source};

impl Pods {
    /// Ends the old versions of static pods whose new versions cannot start beside them.
    pub(super) fn end_replaced_pods(&mut self) {
        if self.sources_ready || !self.are_names_known {
            return;
        }
        let successors = self.desired.values().filter(|pod| self.may_succeed(pod));
        let replaced: BTreeSet<PodUid> = successors
            .filter_map(|pod| self.names.holder(&full_name_of(pod)))
            .filter(|holder| self.is_replaced(holder))
            .cloned()
            .collect();
        for uid in replaced {
            if !self.pods.contains_key(&uid) {
                self.orphan_sighted(&uid);
                continue;
            }
            tracing::info!(pod = %uid, "A newer version of this static pod waits for its name; the old one ends");
            self.unwanted(&uid);
        }
    }

    /// Whether the pod may end though other sources have not delivered yet.
    pub(super) fn is_replaced(&self, uid: &PodUid) -> bool {
        if self.desired.contains_key(uid) || is_on(Bug::NamesKeptUntilSources) {
            return false;
        }
        let (source, name) = match (self.pods.get(uid), self.seen.get(uid)) {
            (Some(entry), _) if entry.state.ending().is_some() => return false,
            (Some(entry), _) => (source_of_pod(&entry.pod), entry.full_name.clone()),
            (None, Some(seen)) => (source_of_sandboxes(seen), full_name(&seen.name, &seen.namespace)),
            (None, None) => return false,
        };
        let has_delivered = match source {
            Some(source @ (Source::File | Source::Http)) => self.merger.has_delivered(source),
            Some(Source::Api) | None => false,
        };
        let mut desired = self.desired.values();
        has_delivered && desired.any(|pod| full_name_of(pod) == name && self.may_succeed(pod))
    }

    /// Whether this is a static pod that starts once the pod that holds its name has ended.
    fn may_succeed(&self, pod: &Pod) -> bool {
        let uid = uid_of(pod);
        let waits_for_name = self.pods.get(&uid).is_some_and(|entry| is_waiting(&entry.state));
        // The old version may hold the resources or host ports that the new one needs.
        let refused = self.admission.refused.get(&uid);
        let waits_for_room = refused.is_some_and(|refused| refused.refusal.is_for_now)
            || self.admission.waiting.contains_key(&uid)
            || self.admission.heirs.contains_key(&uid);
        is_static_pod(pod) && (waits_for_name || waits_for_room)
    }
}

fn source_of_pod(pod: &Pod) -> Option<Source> {
    let annotations = pod.metadata.annotations.as_ref();
    Source::parse(annotations?.get(SOURCE_ANNOTATION)?)
}

/// The source of a pod that only the runtime knows, as rubelet and upstream's kubelet write it to its sandbox.
pub(super) fn source_of_sandboxes(observation: &PodObservation) -> Option<Source> {
    let mut sandboxes = observation.sandboxes.iter();
    sandboxes.find_map(|sandbox| Source::parse(sandbox.annotations.get(SOURCE_ANNOTATION)?))
}
