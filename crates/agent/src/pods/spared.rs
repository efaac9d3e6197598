//! Pods of an earlier life whose manifest may be one that cannot be used now.
//!
//! Owns whom that spares. Which pod such a file held before, this life cannot know. So while there is one, a pod that ran from a
//! file at the start, that nobody wanted since and whose name nobody has is left as it is, with all its belongings: it may be the
//! last good version. Nobody looks after it either. When every file is good or gone, it is an orphan like any other.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rubelet_lifecycle::status::is_static_pod;
use rubelet_model::explanation::PodExplanation;
use rubelet_model::observation::PodUid;

use super::Pods;
use super::entry::{full_name, full_name_of, lives, pod_of};
use super::outside::explanation;
use super::replaced::source_of_sandboxes;
use crate::sources::Source;

/// What is known of such pods.
#[derive(Default)]
pub(super) struct Spared {
    /// Manifests that were never good in this life.
    files: Vec<PathBuf>,
    /// What the runtime had at the start and nobody has wanted since; nothing before its first list.
    candidates: Option<BTreeSet<PodUid>>,
    /// What was wanted before that list.
    wanted: BTreeSet<PodUid>,
    told: BTreeSet<PodUid>,
}

impl Spared {
    /// The source of files has delivered.
    pub(super) fn set_files(&mut self, files: Vec<PathBuf>) {
        self.files = files;
    }

    pub(super) fn found_at_start(&mut self, uids: &BTreeSet<PodUid>) {
        self.candidates = Some(uids - &std::mem::take(&mut self.wanted));
    }

    /// It is wanted in this life, or the runtime has nothing of it any more: nobody has to guess about it.
    pub(super) fn rule_out(&mut self, uid: &PodUid) {
        match &mut self.candidates {
            Some(candidates) => {
                candidates.remove(uid);
            }
            None => {
                self.wanted.insert(uid.clone());
            }
        }
    }

    /// Every source has delivered and the runtime was looked at. Files that go bad from here on are known from when they were good.
    pub(super) fn settle(&mut self) {
        if self.files.is_empty() {
            self.candidates = Some(BTreeSet::new());
        }
    }

    fn has(&self, uid: &PodUid) -> bool {
        let candidates = self.candidates.as_ref();
        !self.files.is_empty() && candidates.is_some_and(|candidates| candidates.contains(uid))
    }
}

impl Pods {
    /// Whether a pod that nobody wants has to be left as it is.
    pub(super) fn is_spared(&self, uid: &PodUid) -> bool {
        if !self.spared.has(uid) {
            return false;
        }
        // What was not looked at yet may be one.
        self.seen.get(uid).is_none_or(|seen| {
            let name = full_name(&seen.name, &seen.namespace);
            let mut desired = self.desired.values().filter(|pod| is_static_pod(pod));
            let is_from_file = source_of_sandboxes(seen) == Some(Source::File);
            is_from_file && !desired.any(|pod| full_name_of(pod) == name)
        })
    }

    pub(super) fn spared_pods(&self) -> impl Iterator<Item = &PodUid> {
        let candidates = self.spared.candidates.iter().flatten();
        candidates.filter(|uid| !self.pods.contains_key(uid) && self.is_spared(uid))
    }

    /// Tells once that a pod goes on without anybody who wants it.
    pub(super) fn tell_spared(&mut self, uid: &PodUid) {
        let Some(seen) = self.seen.get(uid).filter(|seen| lives(seen)) else {
            return;
        };
        if self.spared.told.insert(uid.clone()) {
            tracing::warn!(
                namespace = seen.namespace,
                pod = seen.name,
                %uid,
                files = ?self.spared.files,
                "This static pod runs from before and no manifest has it; it is left as it is while manifests cannot be used"
            );
        }
    }

    pub(super) fn explain_spared(&self) -> Vec<PodExplanation> {
        let living = self.spared_pods().filter_map(|uid| self.seen.get(uid));
        let living = living.filter(|seen| lives(seen));
        let explained = living.map(|seen| {
            let files: Vec<String> = self
                .spared
                .files
                .iter()
                .map(|file| file.display().to_string())
                .collect();
            let what =
                "a manifest that can be used; as long as one cannot, this pod is left as it ran before";
            let wait = self.waiting(
                what,
                self.shared.started_at,
                Some(format!("not usable: {}", files.join(", "))),
            );
            PodExplanation {
                containers: seen.running_containers().count(),
                ..explanation(&pod_of(seen), "Running", wait)
            }
        });
        explained.collect()
    }
}
