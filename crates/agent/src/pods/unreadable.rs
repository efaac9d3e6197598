//! Pods that the API server has and that cannot be decoded.
//!
//! Owns which they are. What runs of one goes on, with all its belongings, until the pod can be decoded, is deleted, or is gone.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::Timestamp;
use rubelet_model::explanation::PodExplanation;

use super::Pods;
use super::entry::uid_of;
use super::outside::explanation;

/// A pod that cannot be decoded.
pub(super) struct Unreadable {
    pod: Arc<Pod>,
    since: Timestamp,
}

impl Pods {
    /// The API source has delivered.
    pub(super) fn take_unreadable(&mut self, pods: Vec<Arc<Pod>>) {
        let now = self.now();
        let mut known = std::mem::take(&mut self.unreadable);
        for pod in pods {
            let uid = uid_of(&pod);
            let since = known.remove(&uid).map_or(now, |known| known.since);
            self.unreadable.insert(uid, Unreadable { pod, since });
        }
        self.are_fates_stale |= !known.is_empty() || !self.unreadable.is_empty();
    }

    pub(super) fn explain_unreadable(&self) -> impl Iterator<Item = PodExplanation> {
        self.unreadable.iter().map(|(uid, unreadable)| {
            let what = "a definition that can be decoded; until then what runs of the pod is left as it is";
            let wait = self.waiting(what, unreadable.since, None);
            let seen = self.seen.get(uid);
            PodExplanation {
                containers: seen.map_or(0, |seen| seen.running_containers().count()),
                ..explanation(&unreadable.pod, "Unknown", wait)
            }
        })
    }
}
