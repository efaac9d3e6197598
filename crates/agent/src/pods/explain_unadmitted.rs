//! Why a pod is not admitted, for `rubelet why`.
//!
//! Owns the wording for every standing but a managed pod's.

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::standing::{NOT_SUPPORTED, Rejection, Standing, Unclaimed, Wait};
use rubelet_model::Timestamp;
use rubelet_model::explanation::{PodExplanation, WaitExplanation};
use rubelet_model::observation::PodUid;

use super::explain::Explainer;
use super::records::PodRecord;
use super::worker::{Worker, pod_of, uid_of};

impl Explainer<'_> {
    pub(super) fn explain_unadmitted(&self) -> Vec<PodExplanation> {
        let records = self.records.iter();
        let mut explained: Vec<PodExplanation> = records
            .filter_map(|(_, record)| self.explain_standing(record))
            .collect();
        explained.extend(self.explain_stuck());
        explained
    }

    fn explain_standing(&self, record: &PodRecord) -> Option<PodExplanation> {
        let pending = |wait: WaitExplanation| Some(explanation(record.desired()?, "Pending", wait));
        match record.standing() {
            Standing::Managed(_) => None,
            Standing::Unclaimed(unclaimed) => self.explain_unclaimed(record, unclaimed),
            Standing::Rejected { rejection, .. } => Some(self.explain_rejected(rejection)),
            Standing::Awaits { wait, since } => match wait {
                Wait::Runtime { .. } => pending(self.wait_for_runtime(*since)),
                Wait::NodeRefresh {
                    rejected: Some(rejection),
                } => Some(self.explain_rejected(rejection)),
                Wait::NodeRefresh { rejected: None } => {
                    let what = "the API server to say which labels the node has";
                    pending(self.waiting(what, *since, None))
                }
                Wait::Room => {
                    let names = self.names_of(self.admission.terminating());
                    let what = format!("what terminating pods still hold: {names}");
                    pending(self.waiting(what, *since, None))
                }
                Wait::Preemption { victims } => {
                    let may_run = |uid: &&PodUid| self.records.standing(uid).life().may_run();
                    let names = self.names_of(victims.iter().filter(may_run));
                    let what = format!("the end of pods that have to make room for it: {names}");
                    pending(self.waiting(what, *since, None))
                }
            },
        }
    }

    fn explain_unclaimed(&self, record: &PodRecord, unclaimed: &Unclaimed) -> Option<PodExplanation> {
        match unclaimed {
            Unclaimed::Undecided | Unclaimed::Removed(_) => None,
            Unclaimed::FoundAtStart => {
                let is_kept = self.manifests.keep(record, self.records);
                is_kept.then(|| self.manifests.explain(record, self)).flatten()
            }
            Unclaimed::Undecodable { pod, since } => {
                let what =
                    "a definition that can be decoded; until then what runs of the pod is left as it is";
                let wait = self.waiting(what, *since, None);
                Some(PodExplanation {
                    containers: record.seen().map_or(0, |seen| seen.running_containers().count()),
                    ..explanation(pod, "Unknown", wait)
                })
            }
        }
    }

    /// Pods that are gone but for a sandbox that the runtime cannot remove.
    fn explain_stuck(&self) -> Vec<PodExplanation> {
        let stuck = self.garbage.stuck();
        let explained = stuck.iter().filter_map(|(id, stuck)| {
            let record = self.records.get(&stuck.pod)?;
            let is_gone = record.worker().is_none() && record.desired().is_none();
            let seen = record.seen().filter(|_| is_gone)?;
            let what =
                format!("the container runtime to remove sandbox {id}, which is tried with growing gaps");
            let wait = self.waiting(what, stuck.since, Some(stuck.problem.to_string()));
            Some(explanation(&pod_of(seen), "Terminating", wait))
        });
        explained.collect()
    }

    fn explain_rejected(&self, rejection: &Rejection) -> PodExplanation {
        let refusal = &rejection.refusal;
        let what = match refusal.reason.as_str() {
            NOT_SUPPORTED => "a manifest without what is not supported yet",
            "NodePorts" => "host ports that another pod holds",
            "Evicted" => "the end of the node's pressure",
            "NodeShutdown" => "the machine's next start, or the cancellation of its shutdown",
            _ if refusal.is_for_now => "room on the node",
            _ => "a manifest that can run on this node",
        };
        let message = refusal.detail.as_ref().unwrap_or(&refusal.message);
        let problem = match refusal.reason.as_str() {
            NOT_SUPPORTED => message.clone(),
            reason => format!("{reason}: {message}"),
        };
        let wait = self.waiting(what, rejection.since, Some(problem));
        explanation(&rejection.pod, "Failed", wait)
    }

    fn wait_for_runtime(&self, since: Timestamp) -> WaitExplanation {
        let what = if self.startup.are_names_known() {
            "the container runtime to say what it can do"
        } else {
            "the container runtime's first list of pods"
        };
        self.waiting(what, since, None)
    }

    fn names_of<'a>(&self, uids: impl Iterator<Item = &'a PodUid>) -> String {
        let workers = uids.filter_map(|uid| self.records.worker(uid));
        let names: Vec<&str> = workers.map(Worker::full_name).collect();
        names.join(", ")
    }
}

pub(super) fn explanation(pod: &Pod, phase: &str, wait: WaitExplanation) -> PodExplanation {
    let metadata = &pod.metadata;
    PodExplanation {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: uid_of(pod),
        phase: phase.to_owned(),
        containers_ready: 0,
        containers: pod.spec.as_ref().map_or(0, |spec| spec.containers.len()),
        restarts: 0,
        waits_for: Some(wait),
    }
}
