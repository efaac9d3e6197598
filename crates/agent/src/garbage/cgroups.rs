//! Cgroups of pods that are gone.
//!
//! Owns the removal of what is left of them: a pod's own job removes its cgroup, unless rubelet was killed in between.

use std::collections::{BTreeMap, BTreeSet};

use rubelet_model::observation::PodUid;

use super::{FateView, GarbageCollector, GarbageReport, GarbageScope};

impl GarbageCollector {
    pub(super) async fn collect_cgroups(
        &self,
        scope: &GarbageScope,
        view: FateView<'_>,
        occupied: &BTreeSet<PodUid>,
        report: &mut GarbageReport,
    ) {
        let found = match self.ports.cgroups.pods().await {
            Ok(found) => found,
            Err(error) => return report.add_problem("the cgroups of pods", &error.into()),
        };
        let doomed: BTreeMap<PodUid, Vec<PodUid>> = found
            .into_iter()
            .filter(|uid| scope.has(uid) && !occupied.contains(uid))
            .map(|uid| (uid.clone(), vec![uid]))
            .collect();
        let outcomes = self
            .for_each_pod(doomed, report, async |uid| {
                // Asked right before: the pod may have come back since the list.
                if !view().may_content_go(&uid) {
                    return None;
                }
                let result = self.ports.cgroups.remove(&uid).await;
                Some((uid, result))
            })
            .await;
        for (uid, result) in outcomes.into_iter().flatten() {
            match result {
                Ok(()) => report.cgroups.push(uid),
                Err(error) => report.add_problem(format!("the cgroup of pod {uid}"), &error.into()),
            }
        }
    }
}
