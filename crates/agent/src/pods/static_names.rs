//! Static pods of one name run one after the other.
//!
//! Owns who holds a name, and whether a pod may wait for the end of an older version. Before every source has delivered, only a
//! static pod that a newer version replaces may end (decision 0022): the API server may be a static pod of this node, so that
//! its new version waits for the end of the old one, and the API source delivers only when the new version runs. The old
//! version ends as soon as its own source has delivered a complete set without it and a static pod that may start needs its name.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::pod_state::StaticNames;
use rubelet_model::observation::{PodObservation, PodUid};

use super::records::{PodRecord, Records};
use super::worker::{full_name, is_waiting};
use crate::sources::{Merger, SOURCE_ANNOTATION, Source};

#[derive(Default)]
pub(super) struct Names {
    queues: StaticNames,
    is_contested: bool,
}

impl Names {
    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn holder(&self, full_name: &str) -> Option<&PodUid> {
        self.queues.holder(full_name)
    }

    /// Puts a pod in line. The answer is whether it holds the name now.
    pub(super) fn queue(&mut self, full_name: &str, uid: &PodUid) -> bool {
        let is_holder = self.queues.queue(full_name, uid);
        self.is_contested |= !is_holder;
        is_holder
    }

    /// Takes a pod out. The answer is the pod whose turn it is now.
    pub(super) fn release(&mut self, full_name: &str, uid: &PodUid) -> Option<PodUid> {
        self.queues.release(full_name, uid)
    }

    /// A source has delivered.
    pub(super) fn set_contested(&mut self) {
        self.is_contested = true;
    }

    /// Whether a pod may have begun to wait for a name since the last call.
    pub(super) fn take_contested(&mut self) -> bool {
        std::mem::take(&mut self.is_contested)
    }

    /// The old versions of static pods whose new versions cannot start beside them.
    pub(super) fn replaced(&self, records: &Records, merger: &Merger) -> BTreeSet<PodUid> {
        let successors = records.iter().filter(|(_, record)| may_succeed(record));
        successors
            .filter_map(|(_, record)| self.holder(&super::worker::full_name_of(record.desired()?)))
            .filter(|holder| is_replaced(holder, records, merger))
            .cloned()
            .collect()
    }
}

/// Whether the pod may end though other sources have not delivered yet.
pub(super) fn is_replaced(uid: &PodUid, records: &Records, merger: &Merger) -> bool {
    let Some(record) = records.get(uid).filter(|record| record.desired().is_none()) else {
        return false;
    };
    if is_on(Bug::NamesKeptUntilSources) {
        return false;
    }
    let (source, name) = match (record.worker(), record.seen()) {
        (Some(_), _) if record.standing().life().ending().is_some() => return false,
        (Some(worker), _) => (source_of_pod(worker.pod()), worker.full_name().to_owned()),
        (None, Some(seen)) => (source_of_sandboxes(seen), full_name(&seen.name, &seen.namespace)),
        (None, None) => return false,
    };
    let has_delivered = match source {
        Some(source @ (Source::File | Source::Http)) => merger.has_delivered(source),
        Some(Source::Api) | None => false,
    };
    let mut successors = records.of_static_name(&name).filter_map(|uid| records.get(uid));
    has_delivered && successors.any(may_succeed)
}

/// Whether this is a desired static pod that starts once the pod that holds its name has ended. The old version may also hold the
/// resources or host ports that the new one needs.
fn may_succeed(record: &PodRecord) -> bool {
    let waits_for_name = record.worker().is_some() && is_waiting(&record.standing().life());
    let is_static = record
        .desired()
        .is_some_and(|pod| rubelet_lifecycle::status::is_static_pod(pod));
    is_static && (waits_for_name || record.standing().waits_for_others())
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
