//! Static pods that run and whose manifest may be one that cannot be read.
//!
//! Owns the files that were never readable since rubelet started, and which pods were logged for them. Which pod such a file held
//! before the restart is not known. So while there is one, a pod that ran from a file at the start, that no source has had since
//! and whose name no static pod has is kept as it is, with its volumes and its cgroup: it may be the last good version. When every
//! file is readable or gone, it is an orphan like any other.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rubelet_lifecycle::standing::Standing;
use rubelet_model::explanation::PodExplanation;
use rubelet_model::observation::PodUid;

use super::explain::Explainer;
use super::explain_unadmitted::explanation;
use super::records::{PodRecord, Records};
use super::static_names::source_of_sandboxes;
use super::worker::{full_name, pod_of};
use crate::sources::Source;

#[derive(Default)]
pub(super) struct UnreadableManifests {
    files: Vec<PathBuf>,
    logged: BTreeSet<PodUid>,
}

impl UnreadableManifests {
    /// The file source has delivered. The answer is whether the files are others than before.
    pub(super) fn set_files(&mut self, files: Vec<PathBuf>) -> bool {
        if self.files == files {
            return false;
        }
        self.files = files;
        if self.files.is_empty() {
            self.logged.clear();
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether a pod that no source has must be kept.
    pub(super) fn keep(&self, record: &PodRecord, records: &Records) -> bool {
        if self.files.is_empty() || *record.standing() != Standing::FOUND_AT_START {
            return false;
        }
        // A pod that was not inspected yet may be one.
        record.seen().is_none_or(|seen| {
            let is_from_file = source_of_sandboxes(seen) == Some(Source::File);
            is_from_file && !records.has_static_name(&full_name(&seen.name, &seen.namespace))
        })
    }

    /// Logs once that a pod runs without a source that has it.
    pub(super) fn log_kept(&mut self, record: &PodRecord) {
        let Some(seen) = record.seen().filter(|_| record.is_seen_alive()) else {
            return;
        };
        if self.logged.insert(seen.uid.clone()) {
            tracing::warn!(
                namespace = seen.namespace,
                pod = seen.name,
                uid = %seen.uid,
                files = ?self.files,
                "This static pod runs from before and no manifest has it; it is left as it is while manifests cannot be used"
            );
        }
    }

    pub(super) fn explain(&self, record: &PodRecord, explainer: &Explainer<'_>) -> Option<PodExplanation> {
        let seen = record.seen().filter(|_| record.is_seen_alive())?;
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        let what = "a manifest that can be used; as long as one cannot, this pod is left as it ran before";
        let problem = Some(format!("not usable: {}", files.join(", ")));
        let wait = explainer.waiting(what, explainer.started_at(), problem);
        Some(PodExplanation {
            containers: seen.running_containers().count(),
            ..explanation(&pod_of(seen), "Running", wait)
        })
    }
}
