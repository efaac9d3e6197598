//! The pods that are decided about again, in the order in which they are decided about.

use rubelet_lifecycle::pod_state::PodFacts;
use rubelet_lifecycle::standing::{Standing, Wait};
use rubelet_model::observation::PodUid;
use rubelet_resources::admission::Refusal;

use crate::pods::admission::{Admission, NodeRead};
use crate::pods::pod_workers::PodWorkers;
use crate::pods::records::{PodRecord, Records};

/// Decides about pods that waited for the runtime or for room, the oldest first, after the pods that were admitted before
/// rubelet was started anew.
pub(super) fn decide(pods: &mut PodWorkers) {
    let records = pods.records();
    let waiting = records
        .unadmitted()
        .filter(|(_, record)| matches!(record.standing().wait(), Some(Wait::Runtime { .. } | Wait::Room)));
    let (earlier, new): (Vec<_>, Vec<_>) = waiting.partition(|(_, record)| record.was_admitted_before());
    let uids = |pods: Vec<(&PodUid, &PodRecord)>| -> Vec<PodUid> {
        pods.into_iter().map(|(uid, _)| uid.clone()).collect()
    };
    let (earlier, new) = (uids(earlier), records.by_age(uids(new)));
    for uid in earlier.into_iter().chain(new) {
        pods.admit(&uid, NodeRead::Watched);
    }
}

/// Preemptors whose victims have left enough room.
pub(super) fn with_room(records: &Records, admission: &Admission) -> Vec<PodUid> {
    let ready = records.preemptors().filter(|(uid, record, victims)| {
        let pod = record.desired().map(AsRef::as_ref);
        admission.has_room_for(uid, pod, victims)
    });
    ready.map(|(uid, ..)| uid.clone()).collect()
}

/// Pods that admission has not let start, the oldest first.
pub(super) fn unadmitted(records: &Records, holds: impl Fn(&Standing) -> bool) -> Vec<PodUid> {
    let found = records.unadmitted();
    let found = found.filter(|(_, record)| holds(record.standing()));
    records.by_age(found.map(|(uid, _)| uid.clone()).collect())
}

pub(super) fn rejected_static_pods(records: &Records, holds: impl Fn(&Refusal) -> bool) -> Vec<PodUid> {
    unadmitted(records, |standing| match standing {
        Standing::Rejected { rejection, .. } => {
            let is_static = PodFacts::of(&rejection.pod).is_static;
            is_static && !standing.is_managed() && holds(&rejection.refusal)
        }
        Standing::Unclaimed(_) | Standing::Awaits { .. } | Standing::Managed(_) => false,
    })
}

/// Pods whose last job failed and that wait for their next one.
pub(super) fn failed(pods: &PodWorkers) -> Vec<PodUid> {
    let workers = pods.records().workers();
    let failed = workers.filter(|(uid, worker)| pods.is_requeued(uid) && worker.waits.last_error().is_some());
    failed.map(|(uid, _)| uid.clone()).collect()
}
