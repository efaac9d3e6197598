//! What follows from what the runtime shows, and housekeeping.

use std::sync::Arc;
use std::time::Duration;

use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::pod_state::{Event, Job, MIN_GRACE_SECONDS, PodState};
use rubelet_lifecycle::standing::{Standing, StandingEvent, Unclaimed};
use rubelet_model::observation::{PodObservation, PodUid};

use super::SyncLoop;
use crate::observer::Sighting;
use crate::pods::admission::NodeRead;
use crate::pods::records::PodRecord;
use crate::pods::static_names::is_replaced;
use crate::pods::worker::{full_name, is_waiting};

impl SyncLoop {
    pub(in crate::pods) fn runtime_event(&mut self, event: Sighting) {
        match event {
            Sighting::Pod(observation) => self.observed(&observation),
            Sighting::Living { living, listed } => {
                let found: Vec<PodUid> = listed.iter().cloned().collect();
                let alive = living.iter().map(|(_, _, uid)| uid);
                self.records.list(listed, alive);
                self.startup.names_known();
                for uid in found
                    .iter()
                    .filter(|uid| !self.records.is_desired(uid))
                    .cloned()
                    .collect::<Vec<_>>()
                {
                    self.apply(&uid, StandingEvent::Listed);
                }
                for (name, namespace, uid) in &living {
                    let standing = self.records.standing(uid);
                    if !standing.is_managed() || is_waiting(&standing.life()) {
                        self.names.queue(&full_name(name, namespace), uid);
                    }
                }
                self.decide_waiting();
            }
            Sighting::FirstListDone => {
                self.startup.inspected();
                self.keep_house();
            }
        }
    }

    fn observed(&mut self, observation: &Arc<PodObservation>) {
        let uid = &observation.uid;
        let before = self.records.observe(observation);
        self.garbage.observed(before.as_deref(), observation);
        if observation.is_empty() {
            self.apply(uid, StandingEvent::NoUnreadableManifest);
        }
        let is_alive = self.records.get(uid).is_some_and(PodRecord::is_seen_alive);
        match self.records.worker_mut(uid) {
            Some(worker) => match &mut worker.job {
                // The job sees for itself, unless its last look is already over.
                Some(job) => job.observed = Some(Arc::clone(observation)),
                None => self.look_again(uid),
            },
            None if is_alive => self.stop_orphan(uid),
            None => {
                self.apply(uid, StandingEvent::NothingRuns);
                // It may have held its name since the first list.
                let name = full_name(&observation.name, &observation.namespace);
                if let Some((next, event)) = self.release_name(&name, uid) {
                    self.apply(&next, event);
                }
            }
        }
        self.records.prune(uid);
    }

    /// A call that was cancelled may take effect long after the pod's end: what it has created is stopped again.
    pub(super) fn stop_late_containers(&mut self, uid: &PodUid) {
        let Some(record) = self.records.get(uid) else {
            return;
        };
        let has_job = record.worker().is_none_or(|worker| worker.job.is_some());
        if record.is_seen_alive() && !has_job {
            let grace_seconds = MIN_GRACE_SECONDS;
            self.run_job(uid, Job::TerminateOrphan { grace_seconds });
        }
    }

    /// Ends a pod that the runtime has and no source, once every source has delivered or a newer version needs its name.
    pub(super) fn stop_orphan(&mut self, uid: &PodUid) {
        let Some(record) = self.records.get(uid) else {
            return;
        };
        let may_stop = self.startup.are_sources_ready()
            || is_replaced(uid, &self.records, &self.merger)
            || is_on(Bug::DeleteBeforeSources);
        // What runs of a rejected pod is stopped; the pod is decided about again after that.
        let may_stay = record.desired().is_some() && !record.standing().is_shut_out();
        if !may_stop || may_stay || record.standing().is_undecodable() {
            return;
        }
        if self.manifests.keep(record, &self.records) {
            return self.manifests.log_kept(record);
        }
        let Some(seen) = record.seen().filter(|_| record.is_seen_alive()) else {
            return;
        };
        let name = full_name(&seen.name, &seen.namespace);
        let why = if self.records.has_static_name(&name) {
            "Another kubelet, or another version of its manifest, made this static pod under another UID; it is replaced"
        } else {
            "This pod has no place here; it is stopped"
        };
        tracing::info!(namespace = seen.namespace, pod = seen.name, %uid, "{why}");
        self.context.ports.metrics.jobs.orphans.inc();
        self.apply(uid, StandingEvent::Pod(Event::FoundInRuntime));
    }

    pub(super) fn end_replaced_pods(&mut self) {
        if self.startup.are_sources_ready() || !self.startup.are_names_known() {
            return;
        }
        for uid in self.names.replaced(&self.records, &self.merger) {
            if self.records.worker(&uid).is_none() {
                self.stop_orphan(&uid);
                continue;
            }
            tracing::info!(pod = %uid, "A newer version of this static pod waits for its name; the old one ends");
            self.unwanted(&uid);
        }
    }

    /// The safety net, in upstream's order: managed pods first, then what is desired and undecided, then what the runtime has and no
    /// source wants, then garbage. Until every source has delivered, only static pods may replace their older versions.
    pub(in crate::pods) fn keep_house(&mut self) {
        self.end_replaced_pods();
        if !self.startup.is_complete() {
            return;
        }
        let begun = self.moment();
        for uid in self.records.select(|record| record.worker().is_some()) {
            self.keep_managed(&uid);
        }
        let undecided = self.records.select(|record| {
            let standing = record.standing();
            record.desired().is_some() && !standing.is_managed() && !standing.is_unadmitted()
        });
        for uid in undecided {
            self.admit(&uid, NodeRead::Watched);
        }
        self.give_up_overdue();
        let unwanted = self
            .records
            .select(|record| record.worker().is_none() && record.seen().is_some());
        for uid in unwanted {
            self.stop_orphan(&uid);
        }
        self.forget_start();
        let is_busy = self.records.workers().any(|(_, worker)| worker.job.is_some());
        self.garbage.collect_due(self.moment(), is_busy);
        let took = self.moment().since(begun);
        if took > Duration::from_secs(1) {
            tracing::error!(took_ms = took.as_millis() as u64, "Housekeeping took too long");
        }
    }

    fn keep_managed(&mut self, uid: &PodUid) {
        let Some(record) = self.records.get(uid) else {
            return;
        };
        let (state, is_desired) = (record.standing().life(), record.desired().is_some());
        if matches!(state, PodState::Finished { .. }) {
            self.stop_late_containers(uid);
            if self
                .records
                .worker(uid)
                .is_some_and(|worker| worker.job.is_some())
            {
                return;
            }
        }
        if is_waiting(&state) && !is_desired {
            // What it has in the runtime ends before its name is free.
            self.unwanted(uid);
        } else {
            self.apply(uid, StandingEvent::Pod(Event::Housekeeping { is_desired }));
        }
        self.check_deadline(uid);
    }

    /// Every source has delivered and the runtime was inspected: what was found at the start is decided about.
    fn forget_start(&mut self) {
        let mut settled = self.records.select(|record| {
            let is_removed = matches!(record.standing(), Standing::Unclaimed(Unclaimed::Removed(_)));
            is_removed && record.seen().is_none() && !record.may_live()
        });
        if self.manifests.is_empty() {
            settled.extend(
                self.records
                    .select(|record| *record.standing() == Standing::FOUND_AT_START),
            );
        }
        for uid in settled {
            self.apply(&uid, StandingEvent::NothingRuns);
            self.apply(&uid, StandingEvent::NoUnreadableManifest);
        }
        self.records.forget_first_list();
    }
}
