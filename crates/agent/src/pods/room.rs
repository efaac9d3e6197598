//! Room that comes free: pods that wait for it, and pods that are preempted for it.
//!
//! Owns what follows when a pod terminates, ends or misses its time to end. A pod that fits only without pods that terminate waits
//! for them; a critical pod waits for the pods that it preempts. No wait is longer than the other pod's time to end: then a pod
//! that no source has any more stops counting, and one that a source still has counts as if it stayed, both as upstream
//! counts them (decision 0036).

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::pod_state::{
    EndCause, Event, KillRequest, PodFacts, PodState, UpdateKind, kill_timeout,
};
use rubelet_lifecycle::status::Eviction;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::PodEvent;
use rubelet_resources::admission::preemption::{DISRUPTION_MESSAGE, PREEMPTED_MESSAGE, PREEMPTED_REASON};
use rubelet_resources::admission::{Holding, Refusal};

use super::Pods;
use super::admission::Heir;
use super::entry::full_name_of;

const OVERDUE_REASON: &str = "ExceededGracePeriod";
const OVERDUE_MESSAGE: &str = "Container runtime did not kill the pod within specified grace period.";

impl Pods {
    /// The pod fits without pods that terminate: its place is booked, and it starts when they have ended.
    pub(super) fn wait_for_terminating(&mut self, uid: &PodUid, holding: Holding, since: Timestamp) {
        let is_new = !self.admission.ledger.contains(uid);
        self.admission.ledger.reserve(uid.clone(), holding);
        self.admission.refused.remove(uid);
        self.admission.waiting.insert(uid.clone(), since);
        if is_new {
            let terminating = self.terminating_names().join(", ");
            tracing::info!(pod = %uid, terminating, "The pod starts when terminating pods have freed what it needs");
        }
    }

    /// The pods that others may wait for.
    pub(super) fn terminating_names(&self) -> Vec<String> {
        let entries = self.admission.ledger.terminating();
        let entries = entries.filter_map(|uid| self.pods.get(uid));
        entries.map(|entry| full_name_of(&entry.pod)).collect()
    }

    /// Ends the victims; the pod begins when all of them have ended.
    pub(super) fn preempt(&mut self, uid: &PodUid, victims: &[PodUid], scarce: &str) {
        let since = self.now();
        let heir = Heir {
            victims: victims.to_vec(),
            since,
        };
        self.admission.heirs.insert(uid.clone(), heir);
        for victim in victims {
            tracing::info!(pod = %victim, heir = %uid, "The pod has to make room for a critical one");
            let Some(entry) = self.pods.get_mut(victim) else {
                self.count_preemption(scarce);
                self.disinherit(victim);
                continue;
            };
            entry.eviction = Some(Eviction {
                reason: PREEMPTED_REASON.to_owned(),
                message: PREEMPTED_MESSAGE.to_owned(),
                disruption: Some(DISRUPTION_MESSAGE.to_owned()),
            });
            let event = PodEvent::warning(PREEMPTED_REASON, PREEMPTED_MESSAGE);
            self.shared.ports.events.record(&entry.pod, event);
            let timeout = kill_timeout(own_grace_seconds(&entry.pod));
            let until = self.shared.ports.clock.moment().plus(timeout);
            self.admission
                .kills
                .preempt(victim.clone(), until, scarce.to_owned());
            let request = KillRequest {
                cause: EndCause::Evicted,
                grace_seconds: None,
            };
            self.apply(victim, Event::Kill(request));
        }
    }

    /// A pod that has not begun makes room by waiting on.
    fn disinherit(&mut self, uid: &PodUid) {
        self.admission.heirs.remove(uid);
        self.admission.waiting.remove(uid);
        match self.desired.get(uid).cloned() {
            Some(pod) => {
                let refusal = Refusal {
                    reason: PREEMPTED_REASON.to_owned(),
                    message: PREEMPTED_MESSAGE.to_owned(),
                    is_for_now: true,
                    detail: None,
                };
                self.note_refusal(uid, pod, refusal);
            }
            None => self.admission.release(uid),
        }
    }

    fn count_preemption(&self, scarce: &str) {
        let preemptions = &self.shared.ports.metrics.admission.preemptions;
        preemptions.with_label_values(&[scarce]).inc();
    }

    /// What the pod holds comes free when it ends, or has come free.
    pub(super) fn note_holding(&mut self, uid: &PodUid, state: PodState) {
        if !state.may_run() {
            if let Some(scarce) = self.admission.kills.end(uid) {
                self.count_preemption(&scarce);
            }
            return self.admission.release(uid);
        }
        if !self.admission.ledger.contains(uid) {
            return;
        }
        let grace_seconds = match state.ending() {
            Some(ending) if !ending.restart_requested => ending.grace_seconds,
            // It terminates as soon as every source has delivered, unless its source has it again by then. Its time to end has
            // not begun, so that it keeps its place.
            None if !self.desired.contains_key(uid) => return self.admission.ledger.set_terminating(uid),
            Some(_) | None => {
                self.admission.has_more_room |= self.admission.ledger.unset_terminating(uid);
                return;
            }
        };
        let until = self.shared.ports.clock.moment().plus(kill_timeout(grace_seconds));
        if !self.admission.kills.begin(uid, until) {
            self.admission.ledger.set_terminating(uid);
        }
    }

    /// Stops waiting for pods that missed their time to end. Their own jobs go on.
    pub(super) fn give_up_overdue(&mut self) {
        let now = self.shared.ports.clock.moment();
        for (uid, is_preempted) in self.admission.kills.mark_overdue(now) {
            if let Some(entry) = self.pods.get(&uid).filter(|_| is_preempted) {
                let event = PodEvent::warning(OVERDUE_REASON, OVERDUE_MESSAGE);
                self.shared.ports.events.record(&entry.pod, event);
            }
            if self.desired.contains_key(&uid) {
                self.admission.ledger.unset_terminating(&uid);
            } else {
                self.admission.ledger.release(&uid);
            }
            self.admission.has_more_room = true;
        }
    }

    /// Room has come free: pods that waited for it begin, and refused static pods are judged again.
    pub(super) fn share_room(&mut self) {
        if !std::mem::take(&mut self.admission.has_more_room) {
            return;
        }
        let heirs = self.admission.heirs.iter();
        let ready: Vec<PodUid> = heirs
            .filter(|(uid, heir)| self.has_room_for(uid, heir))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in ready {
            self.admission.heirs.remove(&uid);
            self.update(&uid, UpdateKind::Create);
        }
        let waiting: Vec<PodUid> = self.admission.waiting.keys().cloned().collect();
        let refused = self.admission.refused.iter();
        let hopeful: Vec<PodUid> = refused
            .filter(|(_, refused)| refused.refusal.is_for_now && PodFacts::of(&refused.pod).is_static)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in self.by_age(waiting).into_iter().chain(self.by_age(hopeful)) {
            self.let_in(&uid);
        }
    }

    /// Whether every victim has ended or missed its time, and no other pod that terminates holds what the heir needs.
    fn has_room_for(&self, uid: &PodUid, heir: &Heir) -> bool {
        let (admission, terms) = (&self.admission, &self.shared.settings.admission);
        let is_awaited =
            |victim: &PodUid| admission.ledger.contains(victim) && !admission.kills.is_overdue(victim);
        let view = self.shared.ports.node.view(None);
        !heir.victims.iter().any(is_awaited)
            && self
                .desired
                .get(uid)
                .is_none_or(|pod| !terms.waits_for_terminating(uid, pod, &admission.ledger, &view))
    }
}

fn own_grace_seconds(pod: &Pod) -> i64 {
    let spec = pod.spec.as_ref();
    let grace_seconds = spec.and_then(|spec| spec.termination_grace_period_seconds);
    grace_seconds.unwrap_or_default()
}
