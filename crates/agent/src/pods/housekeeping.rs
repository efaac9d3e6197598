//! The safety net: what should have come by an event and did not, and the garbage.
//!
//! Owns the order, which is upstream's: known pods first, then what is desired and unknown, then what the runtime has and
//! no source wants, then garbage. Until every source has delivered, it only lets static pods replace their older versions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rubelet_lifecycle::garbage::{PodFate, PodFates};
use rubelet_lifecycle::pod_state::{Event, PodState};
use rubelet_model::observation::{PodUid, SandboxId, SandboxState};
use rubelet_ports::Moment;

use super::Pods;
use super::entry::{is_waiting, lives};
use crate::garbage::GarbageScope;

/// How often everything is searched for garbage.
const GARBAGE_INTERVAL: Duration = Duration::from_secs(60);
/// What a pod leaves behind goes this long after it: stopping others comes first.
const GARBAGE_DELAY: Duration = Duration::from_secs(5);
/// With more pods than this, one search of everything is less work.
const MAX_SINGLE_PODS: usize = 8;

/// Whose garbage is to be collected, and when.
#[derive(Default)]
pub(super) struct Schedule {
    /// The first time that anybody asked.
    begun: Option<Moment>,
    last: Option<Moment>,
    gone: BTreeSet<PodUid>,
    restarted: BTreeSet<PodUid>,
    since: Option<Moment>,
}

impl Schedule {
    /// A pod left; what it used can go soon.
    pub(super) fn pod_gone(&mut self, uid: PodUid) {
        self.gone.insert(uid);
    }

    /// A container was started again; its older predecessors can go.
    pub(super) fn container_restarted(&mut self, uid: PodUid) {
        self.restarted.insert(uid);
    }

    /// What to collect now. While pods start and stop, the runtime has better things to do, up to a limit.
    fn due(&mut self, now: Moment, is_busy: bool) -> Vec<GarbageScope> {
        let waiting = self.gone.len() + self.restarted.len();
        if waiting > 0 && self.since.is_none() {
            self.since = Some(now);
        }
        let delay = if is_busy { GARBAGE_INTERVAL } else { GARBAGE_DELAY };
        let is_time = self.since.is_some_and(|since| now.since(since) >= delay);
        let interval = if is_busy {
            2 * GARBAGE_INTERVAL
        } else {
            GARBAGE_INTERVAL
        };
        let begun = *self.begun.get_or_insert(now);
        let is_full_time = match self.last {
            // What an earlier life left can wait for pods that stop now.
            None => !is_busy || now.since(begun) >= interval,
            Some(last) => now.since(last) >= interval,
        };
        if !is_time && !is_full_time {
            return Vec::new();
        }
        self.since = None;
        let (gone, restarted) = (
            std::mem::take(&mut self.gone),
            std::mem::take(&mut self.restarted),
        );
        if is_full_time || waiting > MAX_SINGLE_PODS {
            self.last = Some(now);
            return vec![GarbageScope::Node];
        }
        let gone = gone.into_iter().map(GarbageScope::Pod);
        gone.chain(restarted.into_iter().map(GarbageScope::DeadContainers))
            .collect()
    }
}

impl Pods {
    pub(super) fn keep_house(&mut self) {
        self.end_replaced_pods();
        if !self.sources_ready || !self.is_first_list_done {
            return;
        }
        let begun = self.shared.ports.clock.moment();
        for (uid, is_finished) in self.ends() {
            let is_desired = self.desired.contains_key(&uid);
            if is_finished {
                self.stop_late_comers(&uid);
            }
            let is_at_work = self.pods.get(&uid).is_some_and(|entry| entry.job.is_some());
            if is_finished && is_at_work {
                continue;
            }
            let is_waiting = self.pods.get(&uid).is_some_and(|entry| is_waiting(&entry.state));
            if is_waiting && !is_desired {
                // What it has in the runtime ends before its name is free.
                self.unwanted(&uid);
            } else {
                self.apply(&uid, Event::Housekeeping { is_desired });
            }
            self.check_deadline(&uid);
        }
        let unknown: Vec<PodUid> = self
            .desired
            .keys()
            .filter(|uid| !self.pods.contains_key(uid) && !self.admission.knows(uid))
            .cloned()
            .collect();
        for uid in unknown {
            self.let_in(&uid);
        }
        self.admission.forget_earlier();
        self.give_up_overdue();
        let unwanted: Vec<PodUid> = self
            .seen
            .keys()
            .filter(|uid| !self.pods.contains_key(uid))
            .cloned()
            .collect();
        for uid in unwanted {
            self.orphan_sighted(&uid);
        }
        let (seen, unseen) = (&self.seen, &self.unseen);
        self.admission
            .keep_departed(|uid| seen.contains_key(uid) || unseen.contains(uid));
        self.spared.settle();
        self.collect_garbage();
        let took = self.shared.ports.clock.moment().since(begun);
        if took > Duration::from_secs(1) {
            tracing::error!(took_ms = took.as_millis() as u64, "Housekeeping took too long");
        }
    }

    /// Every pod, and whether it is finished.
    fn ends(&self) -> Vec<(PodUid, bool)> {
        let is_finished = |state: &PodState| matches!(state, PodState::Finished { .. });
        self.pods
            .iter()
            .map(|(uid, entry)| (uid.clone(), is_finished(&entry.state)))
            .collect()
    }

    fn collect_garbage(&mut self) {
        let now = self.shared.ports.clock.moment();
        let is_busy = self.pods.values().any(|entry| entry.job.is_some());
        for scope in self.garbage.due(now, is_busy) {
            // A collector that is behind finds it with its next search of everything.
            let _ = self.garbage_scopes.try_send(scope);
        }
    }

    /// Sandboxes that the runtime cannot read, of pods of which nothing runs.
    fn unreadable_sandboxes(&self) -> BTreeSet<SandboxId> {
        let idle = self.seen.values().filter(|seen| !lives(seen));
        let sandboxes = idle.flat_map(|seen| &seen.sandboxes);
        let unreadable = sandboxes.filter(|sandbox| sandbox.state == SandboxState::Unreadable);
        unreadable.map(|sandbox| sandbox.id.clone()).collect()
    }

    /// Tells the collector what becomes of the pods. It has to know a pod before anything of it is made.
    pub(super) fn publish_fates(&self) {
        let of_entries = self.pods.iter().map(|(uid, entry)| {
            let fate = match entry.state {
                state if state.may_content_go() => PodFate::ContentMayGo,
                PodState::Terminated { .. } | PodState::Finished { .. } => PodFate::Ended,
                PodState::Absent
                | PodState::Waiting { .. }
                | PodState::Syncing { .. }
                | PodState::Terminating { .. } => PodFate::Lives,
            };
            (uid.clone(), fate)
        });
        let desired = self.desired.keys().map(|uid| (uid.clone(), PodFate::Lives));
        let spared = self.spared_pods().map(|uid| (uid.clone(), PodFate::Lives));
        let unreadable = self.unreadable.keys().map(|uid| (uid.clone(), PodFate::Lives));
        let fates = PodFates {
            known: spared
                .chain(unreadable)
                .chain(desired)
                .chain(of_entries)
                .collect(),
            sources_ready: self.sources_ready && self.is_first_list_done,
            unreadable_sandboxes: self.unreadable_sandboxes(),
            also_of_ended_pods: false,
        };
        self.fates.send_replace(Arc::new(fates));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_waits_while_pods_start_and_stop() {
        let check = |asked: &[(u64, bool, bool)], gone_at: Option<u64>| {
            let mut schedule = Schedule::default();
            for (seconds, is_busy, is_due) in asked {
                if gone_at.is_some_and(|at| at == *seconds) {
                    schedule.pod_gone(PodUid::from("u"));
                }
                let now = Moment::from_start(Duration::from_secs(*seconds));
                let due = schedule.due(now, *is_busy);
                assert_eq!(!due.is_empty(), *is_due, "{seconds} s of {asked:?}: {due:?}");
            }
        };
        // At rest: at once, then every minute.
        check(&[(0, false, true), (59, false, false), (60, false, true)], None);
        // Busy from the start: after two minutes at the latest.
        check(
            &[
                (0, true, false),
                (2, true, false),
                (119, true, false),
                (120, true, true),
                (239, true, false),
            ],
            None,
        );
        check(&[(0, true, false), (2, true, false), (14, false, true)], None);
        // Of a pod that is gone: soon, and within a minute.
        check(
            &[(0, false, true), (10, false, false), (15, false, true)],
            Some(10),
        );
        check(
            &[
                (0, false, true),
                (10, true, false),
                (15, true, false),
                (69, true, false),
                (70, true, true),
            ],
            Some(10),
        );
    }
}
