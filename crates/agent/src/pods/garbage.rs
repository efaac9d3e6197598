//! When garbage is collected, and what the collector knows of the pods.
//!
//! Owns the schedule and the published fates of pods. A fate is published before anything of the pod is made, and only the pods that
//! changed are looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rubelet_lifecycle::garbage::{PodFate, PodFates};
use rubelet_lifecycle::pod_state::PodState;
use rubelet_lifecycle::standing::Standing;
use rubelet_model::observation::{PodObservation, PodUid, SandboxId};
use rubelet_ports::Moment;
use tokio::sync::{mpsc, oneshot, watch};

use super::AgentContext;
use super::records::{PodRecord, Records};
use super::unreadable_manifests::UnreadableManifests;
use super::worker::unreadable_sandboxes;
use crate::garbage::{
    GarbageCollector, GarbagePorts, GarbageReport, GarbageScope, GarbageSettings, StuckSandbox,
};
use crate::supervisor::{Supervisor, contained};

/// A search that is asked for, and where to report how much was removed.
struct Search {
    scope: GarbageScope,
    /// The node is short of disk space: see [`PodFates::also_of_ended_pods`].
    reply: Option<SpaceReply>,
}

/// How many containers and sandboxes were removed, or why none could be searched for.
pub(crate) type SpaceReply = oneshot::Sender<Result<usize, String>>;

pub(super) type StuckById = BTreeMap<SandboxId, StuckSandbox>;

/// How often everything is searched for garbage.
const GARBAGE_INTERVAL: Duration = Duration::from_secs(60);
/// What a pod leaves behind goes this long after it: stopping others comes first.
const GARBAGE_DELAY: Duration = Duration::from_secs(5);

/// Whose garbage is to be collected, and when.
#[derive(Default)]
struct Schedule {
    /// When the schedule was first asked.
    begun: Option<Moment>,
    last: Option<Moment>,
    gone: BTreeSet<PodUid>,
    restarted: BTreeSet<PodUid>,
    since: Option<Moment>,
}

impl Schedule {
    /// A pod left; what it used can go soon.
    fn pod_gone(&mut self, uid: PodUid) {
        self.gone.insert(uid);
    }

    /// A container was started again; its older predecessors can go.
    fn container_restarted(&mut self, uid: PodUid) {
        self.restarted.insert(uid);
    }

    /// What to collect now. While pods start and stop, garbage waits, up to a limit.
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
            // What was left before the restart can wait for pods that stop now.
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
        if is_full_time {
            self.last = Some(now);
            return vec![GarbageScope::Node];
        }
        let is_anyone = |scope: &GarbageScope| match scope {
            GarbageScope::Pods(pods) | GarbageScope::DeadContainers(pods) => !pods.is_empty(),
            GarbageScope::Node => true,
        };
        let scopes = [GarbageScope::Pods(gone), GarbageScope::DeadContainers(restarted)];
        scopes.into_iter().filter(is_anyone).collect()
    }
}

/// What the sync loop knows of garbage.
pub(super) struct Garbage {
    schedule: Schedule,
    searches: mpsc::Sender<Search>,
    fates: watch::Sender<Arc<PodFates>>,
    /// Sandboxes that the runtime cannot read, of pods of which nothing runs.
    unreadable: BTreeSet<SandboxId>,
    /// Sandboxes that the collector cannot remove.
    stuck: watch::Receiver<StuckById>,
}

impl Garbage {
    /// Starts the collector.
    pub(super) fn new(context: &Arc<AgentContext>, supervisor: &Supervisor) -> Self {
        let (searches, search_receiver) = mpsc::channel(64);
        let (fates, fates_receiver) = watch::channel(Arc::default());
        let (stuck_sender, stuck) = watch::channel(StuckById::default());
        supervisor.spawn(
            "garbage",
            collect(Arc::clone(context), search_receiver, fates_receiver, stuck_sender),
        );
        Self {
            schedule: Schedule::default(),
            searches,
            fates,
            unreadable: BTreeSet::new(),
            stuck,
        }
    }

    pub(super) fn stuck(&self) -> watch::Ref<'_, StuckById> {
        self.stuck.borrow()
    }

    /// A pod left; what it used can go soon.
    pub(super) fn pod_gone(&mut self, uid: PodUid) {
        self.schedule.pod_gone(uid);
    }

    /// A container was started again; its older predecessors can go.
    pub(super) fn container_restarted(&mut self, uid: PodUid) {
        self.schedule.container_restarted(uid);
    }

    /// Collects what is due.
    pub(super) fn collect_due(&mut self, now: Moment, is_busy: bool) {
        for scope in self.schedule.due(now, is_busy) {
            // A collector that is behind finds it with its next search of everything.
            let _ = self.searches.try_send(Search { scope, reply: None });
        }
    }

    /// Removes now what a node that is short of disk space can do without.
    pub(super) fn make_space(&self, reply: SpaceReply) {
        let scope = GarbageScope::Node;
        // A reply that is dropped reports that the search was not done.
        let _ = self.searches.try_send(Search {
            scope,
            reply: Some(reply),
        });
    }

    /// The runtime shows another view of a pod.
    pub(super) fn observed(&mut self, before: Option<&PodObservation>, after: &PodObservation) {
        for sandbox in before.into_iter().flat_map(unreadable_sandboxes) {
            self.unreadable.remove(&sandbox.id);
        }
        let unreadable = unreadable_sandboxes(after).map(|sandbox| sandbox.id.clone());
        self.unreadable.extend(unreadable);
    }

    /// Publishes the fates of pods that changed.
    pub(super) fn publish_fates(
        &self,
        records: &mut Records,
        manifests: &UnreadableManifests,
        is_complete: bool,
    ) {
        let mut changed = records.take_changed();
        if !manifests.is_empty() {
            // Whether such a pod is kept depends on others.
            changed.extend(records.select(|record| *record.standing() == Standing::FOUND_AT_START));
        }
        let is_current = {
            let known = self.fates.borrow();
            known.sources_ready == is_complete && known.unreadable_sandboxes == self.unreadable
        };
        if changed.is_empty() && is_current {
            return;
        }
        self.fates.send_modify(|fates| {
            // Copied only while the collector works with the last one.
            let fates = Arc::make_mut(fates);
            for uid in changed {
                let record = records.get(&uid);
                match record.and_then(|record| fate_of(record, records, manifests)) {
                    Some(fate) => fates.known.insert(uid, fate),
                    None => fates.known.remove(&uid),
                };
            }
            fates.sources_ready = is_complete;
            fates.unreadable_sandboxes.clone_from(&self.unreadable);
        });
    }
}

fn fate_of(record: &PodRecord, records: &Records, manifests: &UnreadableManifests) -> Option<PodFate> {
    if record.worker().is_some() {
        return Some(match record.standing().life() {
            state if state.may_content_go() => PodFate::ContentMayGo,
            PodState::Terminated { .. } | PodState::Finished { .. } => PodFate::Ended,
            PodState::Absent
            | PodState::Waiting { .. }
            | PodState::Syncing { .. }
            | PodState::Terminating { .. } => PodFate::Lives,
        });
    }
    let is_undecodable = record.standing().is_undecodable();
    let is_kept = record.desired().is_some() || is_undecodable || manifests.keep(record, records);
    is_kept.then_some(PodFate::Lives)
}

/// Collects garbage, one search after the other, until the sync loop ends.
async fn collect(
    context: Arc<AgentContext>,
    mut searches: mpsc::Receiver<Search>,
    fates: watch::Receiver<Arc<PodFates>>,
    stuck: watch::Sender<StuckById>,
) {
    let collector = GarbageCollector::new(
        GarbagePorts::from(&context.ports),
        GarbageSettings::from(&context.settings),
    );
    while let Some(Search { scope, reply }) = searches.recv().await {
        let is_short = reply.is_some();
        let view = || {
            let known = fates.borrow().clone();
            if !is_short {
                return known;
            }
            Arc::new(PodFates {
                also_of_ended_pods: true,
                ..PodFates::clone(&known)
            })
        };
        let collected = async {
            let report = collector.collect(&scope, &view).await;
            if let Some(reply) = reply {
                // The caller may have stopped waiting.
                let _ = reply.send(removed(&report));
            }
            stuck.send_replace(collector.stuck_sandboxes());
            let known = view();
            if known.sources_ready {
                let is_known = |uid: &PodUid| known.known.contains_key(uid);
                context.user_ids.sweep(&context.ports, is_known).await;
            }
        };
        // What is left behind can wait for the next search; the node's pods cannot wait for a new process.
        if let Err(panic) = contained(collected).await {
            tracing::error!(?scope, error = %panic, "A defect in rubelet: this search for garbage was cut short");
        }
    }
}

fn removed(report: &GarbageReport) -> Result<usize, String> {
    match report.failures.first() {
        Some(failure) => Err(failure.clone()),
        None => Ok(report.containers.len() + report.sandboxes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_wait_are_collected_together() {
        let at = |seconds: u64| Moment::from_start(Duration::from_secs(seconds));
        let mut schedule = Schedule::default();
        assert_eq!(schedule.due(at(0), false), [GarbageScope::Node]);
        let uids: BTreeSet<PodUid> = (0..20).map(|number| PodUid::new(format!("u{number}"))).collect();
        uids.iter().for_each(|uid| schedule.pod_gone(uid.clone()));
        assert_eq!(schedule.due(at(2), false), []);
        schedule.container_restarted(PodUid::from("web"));
        let restarted = BTreeSet::from([PodUid::from("web")]);
        assert_eq!(
            schedule.due(at(8), false),
            [GarbageScope::Pods(uids), GarbageScope::DeadContainers(restarted)]
        );
        assert_eq!(schedule.due(at(20), false), []);
    }

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
