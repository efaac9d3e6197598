//! Directories of pods that are gone: logs, and what the agent itself put on disk.
//!
//! Owns their removal. A directory stays while the runtime has anything of its pod, or while a volume of it does not go;
//! nothing is removed across a mount.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rubelet_lifecycle::configuration::log_paths::uid_of_logs_dir;
use rubelet_model::observation::PodUid;
use rubelet_ports::FileKind;

use super::{FateView, GarbageCollector, GarbageError, GarbageReport, GarbageScope};
use crate::supervisor::contained;

/// Below the root directory: one directory per pod, named by its uid.
const PODS_DIRECTORY: &str = "pods";

/// The pod of `<namespace>_<name>_<uid>`; `None` for a directory that is not rubelet's.
fn pod_of_log_directory(name: &str) -> Option<PodUid> {
    let parts: Vec<&str> = name.split('_').collect();
    let is_ours = parts.len() == 3 && parts.iter().all(|part| !part.is_empty());
    is_ours.then(|| PodUid::from(uid_of_logs_dir(name)))
}

impl GarbageCollector {
    pub(super) async fn collect_log_directories(
        &self,
        scope: &GarbageScope,
        view: FateView<'_>,
        occupied: &BTreeSet<PodUid>,
        report: &mut GarbageReport,
    ) {
        let directory = self.settings.pod_logs_dir.clone();
        self.remove_directories(
            directory,
            pod_of_log_directory,
            (scope, view, occupied),
            false,
            report,
        )
        .await;
    }

    pub(super) async fn collect_pod_directories(
        &self,
        scope: &GarbageScope,
        view: FateView<'_>,
        occupied: &BTreeSet<PodUid>,
        report: &mut GarbageReport,
    ) {
        let directory = self.settings.root_dir.join(PODS_DIRECTORY);
        let pod = |name: &str| Some(PodUid::from(name));
        let (removed, kept) = (report.paths.len(), report.problems.len());
        self.remove_directories(directory, pod, (scope, view, occupied), true, report)
            .await;
        if *scope == GarbageScope::Node {
            let (removed, kept) = (report.paths.len() - removed, report.problems.len() - kept);
            let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
            self.ports.metrics.orphans_cleaned.set(signed(removed + kept));
            self.ports.metrics.orphans_kept.set(signed(kept));
        }
    }

    /// Removes those directories below `parent` whose pod is gone with everything.
    async fn remove_directories(
        &self,
        parent: PathBuf,
        pod: impl Fn(&str) -> Option<PodUid>,
        (scope, view, occupied): (&GarbageScope, FateView<'_>, &BTreeSet<PodUid>),
        has_volumes: bool,
        report: &mut GarbageReport,
    ) {
        let entries = match self.ports.file_reader.list(&parent).await {
            Ok(entries) => entries,
            Err(error) if error.is_not_found() => return,
            Err(error) if has_volumes => {
                return report.add_problem(parent.display().to_string(), &error.into());
            }
            Err(error) => return report.add_failure(parent.display().to_string(), &error.into()),
        };
        let directories = entries
            .into_iter()
            .filter(|entry| entry.kind == FileKind::Directory);
        for entry in directories {
            let Some(uid) = pod(&entry.name) else {
                continue;
            };
            // The view is asked each time, because the pod may have come back since the last removal.
            if !scope.has(&uid) || occupied.contains(&uid) || !view().may_content_go(&uid) {
                continue;
            }
            let path = parent.join(&entry.name);
            let removed = contained(self.remove_directory(&uid, &path, view, has_volumes)).await;
            match removed.unwrap_or_else(|panic| Err(panic.into())) {
                Ok(true) => report.paths.push(path),
                Ok(false) => {}
                Err(error) => report.add_problem(path.display().to_string(), &error),
            }
        }
    }

    /// Takes the volumes in a directory down and removes it; `false` where its pod has come back meanwhile.
    async fn remove_directory(
        &self,
        uid: &PodUid,
        path: &Path,
        view: FateView<'_>,
        has_volumes: bool,
    ) -> Result<bool, GarbageError> {
        if has_volumes {
            self.ports.volumes.tear_down(uid).await?;
        }
        // Taking volumes down takes its time.
        if !view().may_content_go(uid) {
            return Ok(false);
        }
        self.ports.file_writer.remove_tree(path).await?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_directories_of_pods() {
        let check = |name: &str, expected: Option<&str>| {
            let found = pod_of_log_directory(name);
            assert_eq!(found.as_ref().map(PodUid::as_str), expected, "{name}");
        };
        check("ns_web-0_4b1a-9c", Some("4b1a-9c"));
        check("lost+found", None);
        check("ns_web", None);
        check("ns_web_u_x", None);
        check("__u", None);
        check("", None);
    }
}
