//! Which pods run or may come to run: those whose images and other belongings are not garbage.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_model::observation::PodUid;

use super::Pods;

fn is_over(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

impl Pods {
    /// `None` until every source has delivered and the runtime was looked at.
    pub(super) fn pods_to_run(&self) -> Option<Vec<Arc<Pod>>> {
        if !self.sources_ready || !self.is_first_list_done {
            return None;
        }
        let wanted = self.desired.iter().filter(|(uid, pod)| self.may_run(uid, pod));
        let wanted = wanted.map(|(_, pod)| pod);
        // Those that end still use what they have.
        let begun = self.pods.values().filter(|entry| !is_over(&entry.shown));
        let begun = begun.map(|entry| &entry.pod);
        Some(wanted.chain(begun).cloned().collect())
    }

    fn may_run(&self, uid: &PodUid, pod: &Pod) -> bool {
        if let Some(refused) = self.admission.refused.get(uid) {
            return refused.refusal.is_for_now;
        }
        match self.pods.get(uid) {
            Some(entry) => !is_over(&entry.shown),
            None => !pod.status.as_ref().is_some_and(is_over),
        }
    }
}
