//! Why a pod is not let in: the words for those whom the state machine does not know yet.
//!
//! Owns the choice of words alone; who stands where is decided in `admission`.

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::Timestamp;
use rubelet_model::explanation::{PodExplanation, WaitExplanation};

use super::Pods;
use super::admission::{Heir, NOT_SUPPORTED};
use super::entry::{Refused, full_name_of, pod_of, uid_of};

impl Pods {
    pub(super) fn explain_outside(&self) -> Vec<PodExplanation> {
        let desired = |uid| self.desired.get(uid);
        let refused = self.admission.refused.values();
        let refused =
            refused.map(|refused| explanation(&refused.pod, "Failed", self.wait_of_refused(refused)));
        let unjudged = self.admission.unjudged.iter().filter_map(|(uid, since)| {
            let pod = desired(uid)?;
            Some(explanation(pod, "Pending", self.wait_for_runtime(*since)))
        });
        let heirs = self.admission.heirs.iter().filter_map(|(uid, heir)| {
            let pod = desired(uid)?;
            Some(explanation(pod, "Pending", self.wait_for_victims(heir)))
        });
        let waiting = self.admission.waiting.iter().filter_map(|(uid, since)| {
            let pod = desired(uid)?;
            Some(explanation(pod, "Pending", self.wait_for_ends(*since)))
        });
        let looks = self.admission.looks.waiting.iter().filter_map(|(uid, since)| {
            let pod = desired(uid).filter(|_| !self.admission.refused.contains_key(uid))?;
            let what = "the API server to say which labels the node has";
            Some(explanation(pod, "Pending", self.waiting(what, *since, None)))
        });
        let spared = self.explain_spared();
        let outside = refused.chain(unjudged).chain(heirs).chain(waiting);
        let outside = outside
            .chain(looks)
            .chain(spared)
            .chain(self.explain_unreadable());
        outside.chain(self.explain_stuck()).collect()
    }

    /// Pods that are gone but for a sandbox that the runtime cannot remove.
    fn explain_stuck(&self) -> Vec<PodExplanation> {
        let stuck = self.stuck_sandboxes.borrow();
        let gone = stuck.iter().filter(|(_, stuck)| {
            !self.pods.contains_key(&stuck.pod) && !self.desired.contains_key(&stuck.pod)
        });
        let explained = gone.filter_map(|(id, stuck)| {
            let seen = self.seen.get(&stuck.pod)?;
            let what =
                format!("the container runtime to remove sandbox {id}, which is tried with growing gaps");
            let wait = self.waiting(what, stuck.since, Some(stuck.problem.to_string()));
            Some(explanation(&pod_of(seen), "Terminating", wait))
        });
        explained.collect()
    }

    fn wait_of_refused(&self, refused: &Refused) -> WaitExplanation {
        let refusal = &refused.refusal;
        let what = match refusal.reason.as_str() {
            NOT_SUPPORTED => "a manifest without what is not supported yet",
            "NodePorts" => "host ports that another pod holds",
            "Evicted" => "the end of the node's pressure",
            _ if refusal.is_for_now => "room on the node",
            _ => "a manifest that can run on this node",
        };
        let message = refusal.detail.as_ref().unwrap_or(&refusal.message);
        let words = match refusal.reason.as_str() {
            NOT_SUPPORTED => message.clone(),
            reason => format!("{reason}: {message}"),
        };
        self.waiting(what, refused.since, Some(words))
    }

    fn wait_for_runtime(&self, since: Timestamp) -> WaitExplanation {
        let what = if self.are_names_known {
            "the container runtime to say what it can do"
        } else {
            "the container runtime's first list of pods"
        };
        self.waiting(what, since, None)
    }

    fn wait_for_ends(&self, since: Timestamp) -> WaitExplanation {
        let what = format!(
            "what terminating pods still hold: {}",
            self.terminating_names().join(", ")
        );
        self.waiting(what, since, None)
    }

    fn wait_for_victims(&self, heir: &Heir) -> WaitExplanation {
        let entries = heir.victims.iter().filter_map(|uid| self.pods.get(uid));
        let alive = entries.filter(|entry| entry.state.may_run());
        let names: Vec<String> = alive.map(|entry| full_name_of(&entry.pod)).collect();
        let what = format!(
            "the end of pods that have to make room for it: {}",
            names.join(", ")
        );
        self.waiting(what, heir.since, None)
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
