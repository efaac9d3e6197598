//! What the observer shows: changed pods, pods that nobody wants, and what lived before the agent did.
//!
//! Owns what follows from a sighting. It starts nothing itself: everything goes through the state machine.

use std::sync::Arc;

use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::pod_state::{Event, Job, MIN_GRACE_SECONDS, PodFacts, PodState, UpdateKind};
use rubelet_lifecycle::status::is_static_pod;
use rubelet_model::observation::PodUid;

use super::Pods;
use super::entry::{full_name, full_name_of, has_unreadable_sandbox, is_waiting, lives, pod_of};
use crate::observer::Sighting;

impl Pods {
    /// Whether anything of the pod lives, as far as anybody could say: what was only listed yet may.
    pub(super) fn may_live(&self, uid: &PodUid) -> bool {
        self.unseen.contains(uid) || self.seen.get(uid).is_some_and(|seen| lives(seen))
    }

    pub(super) fn sighted(&mut self, sighting: Sighting) {
        let observation = match sighting {
            Sighting::Pod(observation) => observation,
            Sighting::Living { living, listed } => {
                self.spared.found_at_start(&listed);
                self.admission.set_earlier(listed);
                return self.names_known(&living);
            }
            Sighting::FirstListDone => return self.first_list_done(),
        };
        let uid = observation.uid.clone();
        self.unseen.remove(&uid);
        // The garbage collector has to know them.
        let before = self.seen.get(&uid).map(|seen| has_unreadable_sandbox(seen));
        self.are_fates_stale |= has_unreadable_sandbox(&observation) || before.unwrap_or(false);
        if observation.is_empty() {
            self.seen.remove(&uid);
            self.spared.rule_out(&uid);
        } else {
            self.seen.insert(uid.clone(), Arc::clone(&observation));
        }
        let job = self.pods.get_mut(&uid).map(|entry| entry.job.as_mut());
        match job {
            // The job sees for itself, unless its last look is already behind it.
            Some(Some(job)) => job.sighted = Some(observation),
            Some(None) => self.look_again(&uid),
            None if lives(&observation) => self.orphan_sighted(&uid),
            None => {
                self.admission.take_departed(&uid);
                // It may have held its name since the first list.
                let name = full_name(&observation.name, &observation.namespace);
                let next = self.names.release(&name, &uid);
                // One that nobody wants any more keeps the name until housekeeping lets it go.
                if let Some(next) = next.filter(|next| self.desired.contains_key(next)) {
                    self.apply(&next, Event::StartAllowed);
                }
            }
        }
    }

    /// The runtime is back: what failed meanwhile is tried again at once.
    pub(super) fn runtime_is_back(&mut self) {
        let failed: Vec<PodUid> = self
            .pods
            .iter()
            .filter(|(_, entry)| entry.wake_at.is_some() && entry.waits.last_error().is_some())
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in failed {
            self.look_again(&uid);
        }
    }

    /// Something that the pod refers to has changed.
    pub(super) fn objects_changed(&mut self, uid: &PodUid) {
        if let Some(entry) = self.pods.get(uid) {
            entry.tell_job_of_news();
        }
        self.look_again(uid);
    }

    pub(super) fn look_again(&mut self, uid: &PodUid) {
        let Some(entry) = self.pods.get(uid) else { return };
        let event = Event::Update {
            kind: UpdateKind::Sync,
            pod: PodFacts::of(&entry.pod),
            is_idle: false,
        };
        match entry.state {
            PodState::Syncing { .. } | PodState::Terminating { .. } => self.apply(uid, event),
            PodState::Finished { .. } => self.stop_late_comers(uid),
            PodState::Absent | PodState::Waiting { .. } | PodState::Terminated { .. } => {}
        }
    }

    /// A call that was given up may have its effect long after the pod's end: what it has made is stopped again.
    pub(super) fn stop_late_comers(&mut self, uid: &PodUid) {
        let runs = self.seen.get(uid).is_some_and(|seen| lives(seen));
        if runs && self.pods.get(uid).is_some_and(|entry| entry.job.is_none()) {
            let grace_seconds = MIN_GRACE_SECONDS;
            self.run_job(uid, Job::TerminateOrphan { grace_seconds });
        }
    }

    /// Ends a pod that the runtime has and no source wants, once every source has delivered or a newer version needs its name.
    pub(super) fn orphan_sighted(&mut self, uid: &PodUid) {
        let may_stop = self.sources_ready || self.is_replaced(uid) || is_on(Bug::DeleteBeforeSources);
        // A pod without a place on the node must not stand there either; it is judged again after that.
        let may_stay = self.desired.contains_key(uid) && !self.admission.is_shut_out(uid);
        if !may_stop || may_stay || self.unreadable.contains_key(uid) {
            return;
        }
        if self.is_spared(uid) {
            return self.tell_spared(uid);
        }
        let Some(observation) = self.seen.get(uid).filter(|seen| lives(seen)).cloned() else {
            return;
        };
        let name = full_name(&observation.name, &observation.namespace);
        let mut desired = self.desired.values().filter(|pod| is_static_pod(pod));
        let why = if desired.any(|pod| full_name_of(pod) == name) {
            "Another kubelet, or another version of its manifest, made this static pod under another UID; it is replaced"
        } else {
            "This pod has no place here; it is stopped"
        };
        tracing::info!(
            namespace = observation.namespace,
            pod = observation.name,
            %uid,
            "{why}"
        );
        self.shared.ports.metrics.jobs.orphans.inc();
        let known = self.admission.take_departed(uid);
        let facts = known.as_deref().map(PodFacts::of);
        let mut entry = self.new_entry(known.unwrap_or_else(|| Arc::new(pod_of(&observation))));
        if let Some(pod) = facts {
            // Whose definition is known ends as that says.
            entry.state = PodState::Waiting { pod };
        }
        self.pods.insert(uid.clone(), entry);
        self.apply(uid, Event::FoundInRuntime);
    }

    /// Now it is known what runs under which name, and the static pods may queue behind it.
    fn names_known(&mut self, living: &[(String, String, PodUid)]) {
        self.are_names_known = true;
        self.unseen.extend(living.iter().map(|(_, _, uid)| uid.clone()));
        for (name, namespace, uid) in living {
            if self.pods.get(uid).is_none_or(|entry| is_waiting(&entry.state)) {
                self.names.queue(&full_name(name, namespace), uid);
            }
        }
        self.judge_waiting();
    }

    fn first_list_done(&mut self) {
        self.is_first_list_done = true;
        self.are_fates_stale = true;
        self.keep_house();
    }
}
