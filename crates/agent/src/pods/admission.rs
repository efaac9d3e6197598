//! Letting pods in: the one place that reads and writes the ledger.
//!
//! Owns who was let in, who was refused, who waits for a decision and who waits for others to make room. The loop is the
//! ledger's only owner, so that nothing comes between a judgement and the reservation that follows from it.
//!
//! Nothing of this is written down. A pod that the runtime has anything of was let in by an earlier life of the agent: it is
//! booked as it is and never judged again, also when all of them together are more than the node has. That is why nobody is
//! judged before the runtime's first list. What a pod holds comes back when nothing of it can run any more.
//!
//! How the node is, is asked anew for every pod: labels, taints and devices of the Node object, and pressure. A pod that only
//! the labels speak against waits for a second look at them (`second_look`).
//!
//! A refusal of a static pod is not its end: when others have ended, it is judged again. Nobody else would ever bring it
//! back, whereas a pod of a cluster is made anew by its controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use rubelet_lifecycle::pod_state::{PodFacts, PodState, UpdateKind};
use rubelet_lifecycle::status::rejected_status;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::{Moment, PodEvent};
use rubelet_resources::admission::capabilities::asks_runtime;
use rubelet_resources::admission::{Judgement, Ledger, Refusal};
use tokio::sync::mpsc;

use super::entry::{Refused, uid_of};
use super::kills::Kills;
use super::second_look::{Look, SecondLooks};
use super::{Pods, problems_of};
use crate::observer::TableSizes;
use crate::sources::PodChange;

/// Why a pod is refused that needs something which is not built yet.
pub(super) const NOT_SUPPORTED: &str = "NotSupported";

/// Where pods stand that came and do not run yet.
pub(super) struct Admission {
    pub(super) ledger: Ledger,
    pub(super) refused: BTreeMap<PodUid, Refused>,
    /// Not judged yet, since when.
    pub(super) unjudged: BTreeMap<PodUid, Timestamp>,
    /// Let in, and waiting for the end of those whose place they take.
    pub(super) heirs: BTreeMap<PodUid, Heir>,
    /// Fit once pods that terminate have ended, since when; their place is booked.
    pub(super) waiting: BTreeMap<PodUid, Timestamp>,
    /// Until when the end of pods that terminate is waited for.
    pub(super) kills: Kills,
    /// Not let in by the labels that are known, and waiting for newer ones.
    pub(super) looks: SecondLooks,
    /// Added again after their end: what that end has left says nothing about them.
    reborn: BTreeSet<PodUid>,
    /// What the runtime had something of when the agent started, until every source could ask for it.
    earlier: BTreeSet<PodUid>,
    /// What sources had and have no longer, from before it was known what lives: its end is as its definition says.
    departed: BTreeMap<PodUid, Arc<Pod>>,
    /// A pod has freed what it held, or others stopped waiting for it.
    pub(super) has_more_room: bool,
}

/// A pod that others have to make room for: admitted, and waiting until the preempted pods are gone.
pub(super) struct Heir {
    pub(super) victims: Vec<PodUid>,
    pub(super) since: Timestamp,
}

impl Admission {
    /// The receiver gets what second looks have shown.
    pub(super) fn new() -> (Self, mpsc::Receiver<Look>) {
        let (looks, receiver) = SecondLooks::new();
        let admission = Self {
            ledger: Ledger::default(),
            refused: BTreeMap::new(),
            unjudged: BTreeMap::new(),
            heirs: BTreeMap::new(),
            waiting: BTreeMap::new(),
            kills: Kills::default(),
            looks,
            reborn: BTreeSet::new(),
            earlier: BTreeSet::new(),
            departed: BTreeMap::new(),
            has_more_room: false,
        };
        (admission, receiver)
    }

    pub(super) fn table_sizes(&self) -> TableSizes {
        vec![
            ("admission.refused", self.refused.len()),
            ("admission.unjudged", self.unjudged.len()),
            ("admission.heirs", self.heirs.len()),
            ("admission.looks", self.looks.waiting.len()),
            ("admission.reborn", self.reborn.len()),
            ("admission.earlier", self.earlier.len()),
            ("admission.departed", self.departed.len()),
        ]
    }

    /// Whether something was decided about the pod, or will be.
    pub(super) fn knows(&self, uid: &PodUid) -> bool {
        self.refused.contains_key(uid)
            || self.unjudged.contains_key(uid)
            || self.heirs.contains_key(uid)
            || self.waiting.contains_key(uid)
            || self.looks.waiting.contains_key(uid)
    }

    /// Nobody wants the pod any more.
    pub(super) fn left(&mut self, uid: &PodUid, pod: Arc<Pod>) {
        if self.unjudged.contains_key(uid) {
            self.departed.insert(uid.clone(), pod);
        }
        self.drop_pod(uid);
    }

    /// The definition of a pod that left before anybody knew what it has in the runtime.
    pub(super) fn take_departed(&mut self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.departed.remove(uid)
    }

    /// Forgets the definitions of pods of which the runtime has nothing.
    pub(super) fn keep_departed(&mut self, is_in_runtime: impl Fn(&PodUid) -> bool) {
        self.departed.retain(|uid, _| is_in_runtime(uid));
    }

    /// The pod does not begin.
    fn drop_pod(&mut self, uid: &PodUid) {
        self.refused.remove(uid);
        self.unjudged.remove(uid);
        self.looks.forget(uid);
        self.reborn.remove(uid);
        let (heir, waited) = (self.heirs.remove(uid), self.waiting.remove(uid));
        if heir.is_some() || waited.is_some() {
            self.release(uid);
        }
    }

    /// Gives back what a pod held that cannot run any more.
    pub(super) fn release(&mut self, uid: &PodUid) {
        self.has_more_room |= self.ledger.release(uid);
        self.kills.end(uid);
    }

    /// When a pod that others wait for misses its time to end; housekeeping is early enough where no pod waits.
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let is_awaited = !self.heirs.is_empty() || !self.waiting.is_empty();
        is_awaited.then(|| self.kills.next_deadline()).flatten()
    }

    pub(super) fn set_earlier(&mut self, uids: BTreeSet<PodUid>) {
        self.earlier = uids;
    }

    /// Every source has delivered: what comes from now on is new.
    pub(super) fn forget_earlier(&mut self) {
        self.earlier.clear();
    }

    /// It is another pod than the one that ended under this identity.
    pub(super) fn set_reborn(&mut self, uid: &PodUid) {
        self.reborn.insert(uid.clone());
    }

    pub(super) fn take_reborn(&mut self, uid: &PodUid) -> bool {
        self.reborn.remove(uid)
    }

    /// The pod was judged in this life and has no place. What lives of it came from a call that was given up.
    pub(super) fn is_shut_out(&self, uid: &PodUid) -> bool {
        let refused = self.refused.get(uid);
        // A new version that is not supported says nothing about the old one, which goes on.
        refused.is_some_and(|refused| refused.refusal.reason != NOT_SUPPORTED)
    }
}

impl Pods {
    /// Additions go by age, the oldest first, and behind what an earlier life let in: that is booked before anybody new can
    /// take its place. Everything else stays where it is.
    pub(super) fn in_order(&self, mut changes: Vec<PodChange>) -> Vec<PodChange> {
        let rank = |change: &PodChange| match change {
            PodChange::Add(pod) => {
                let uid = uid_of(pod);
                let is_new = !self.was_let_in(&uid);
                Some((is_new, pod.metadata.creation_timestamp.clone()))
            }
            PodChange::Update(_) | PodChange::Delete(_) | PodChange::Reconcile(_) | PodChange::Remove(_) => {
                None
            }
        };
        let places: Vec<usize> = (0..changes.len())
            .filter(|place| rank(&changes[*place]).is_some())
            .collect();
        let mut added: Vec<PodChange> = places.iter().map(|place| changes[*place].clone()).collect();
        added.sort_by_cached_key(rank);
        for (place, change) in places.into_iter().zip(added) {
            changes[place] = change;
        }
        changes
    }

    /// A source has a pod, new or changed.
    pub(super) fn wanted(&mut self, uid: &PodUid, pod: Arc<Pod>, kind: UpdateKind) {
        self.desired.insert(uid.clone(), Arc::clone(&pod));
        self.admission.take_departed(uid);
        let is_static = PodFacts::of(&pod).is_static;
        if is_static && let Some(message) = problems_of(&pod, &self.shared.settings.node) {
            return self.refuse(uid, pod, not_supported(message), kind);
        }
        if self.pods.contains_key(uid) {
            self.book_known_orphan(uid, &pod);
            return self.update(uid, kind);
        }
        if let Some(refused) = self.admission.refused.get_mut(uid).filter(|_| !is_static) {
            // Its end is known to the cluster; whatever changes of it, it stays the end.
            refused.pod = pod;
            return self.report_refused(uid);
        }
        if self.admission.heirs.contains_key(uid) {
            // Its place is booked; what it is by then is what starts.
            return;
        }
        self.let_in(uid);
    }

    /// What only the runtime knew could not be counted. Now it can, until its end.
    fn book_known_orphan(&mut self, uid: &PodUid, pod: &Pod) {
        let state = self.pods.get(uid).map(|entry| entry.state);
        let is_ending = matches!(state, Some(PodState::Terminating { .. }));
        if !is_ending || self.admission.ledger.contains(uid) || self.admission.is_shut_out(uid) {
            return;
        }
        if let Ok(holding) = self.shared.settings.admission.holding(pod) {
            self.admission.ledger.reserve(uid.clone(), holding);
        }
    }

    /// Whether an earlier life of the agent has let the pod in: the runtime has something of it that is not left over from
    /// an end or a call of this life.
    fn was_let_in(&self, uid: &PodUid) -> bool {
        let admission = &self.admission;
        let is_new = admission.reborn.contains(uid) || admission.is_shut_out(uid);
        !is_new && (admission.earlier.contains(uid) || self.may_live(uid))
    }

    /// Decides about a desired pod that nothing runs of as far as the loop knows, and begins it if it may run.
    pub(super) fn let_in(&mut self, uid: &PodUid) {
        let Some(pod) = self.desired.get(uid).cloned() else {
            return;
        };
        if self.may_begin(uid, &pod, None) {
            self.update(uid, UpdateKind::Create);
        }
    }

    /// As [`Self::let_in`], after a second look at the node.
    pub(super) fn let_in_after_look(&mut self, uid: &PodUid, look: &Look) {
        let Some(pod) = self.desired.get(uid).cloned() else {
            return;
        };
        if self.may_begin(uid, &pod, Some(look)) {
            self.update(uid, UpdateKind::Create);
        }
    }

    /// The pod was added again after its end.
    pub(super) fn may_begin_anew(&mut self, uid: &PodUid, pod: &Arc<Pod>) -> bool {
        self.admission.set_reborn(uid);
        if let Some(message) = problems_of(pod, &self.shared.settings.node) {
            // While the last good version ran, this one was only noted.
            self.note_refusal(uid, Arc::clone(pod), not_supported(message));
            return false;
        }
        self.may_begin(uid, pod, None)
    }

    /// `look` is what a second look at the node has shown, if there was one.
    fn may_begin(&mut self, uid: &PodUid, pod: &Arc<Pod>, look: Option<&Look>) -> bool {
        let features = self.shared.health.borrow().features;
        let now = self.now();
        if !self.are_names_known || features.is_none() && asks_runtime(pod) {
            if !self.admission.waiting.contains_key(uid) {
                self.admission.unjudged.entry(uid.clone()).or_insert(now);
            }
            return false;
        }
        self.admission.unjudged.remove(uid);
        let waited_since = self.admission.waiting.remove(uid);
        let facts = PodFacts::of(pod);
        let was_let_in = self.was_let_in(uid);
        self.admission.earlier.remove(uid);
        if was_let_in {
            // Its quantities were checked when the manifest was read.
            if let Ok(holding) = self.shared.settings.admission.holding(pod) {
                self.admission.ledger.reserve(uid.clone(), holding);
            }
            self.admission.refused.remove(uid);
            self.admission.looks.forget(uid);
            return true;
        }
        if facts.is_terminal || facts.is_deleted {
            self.admission.looks.forget(uid);
            return true;
        }
        if let Some(message) = problems_of(pod, &self.shared.settings.node) {
            self.note_refusal(uid, Arc::clone(pod), not_supported(message));
            return false;
        }
        if self.admission.looks.waiting.contains_key(uid) {
            return false;
        }
        let terms = &self.shared.settings.admission;
        let view = self.shared.ports.node.view(look.and_then(Option::as_deref));
        let features = features.unwrap_or_default();
        let judgement = terms.judge(uid, pod, &self.admission.ledger, features, &view);
        self.is_let_in(uid, pod, judgement, look.is_none(), waited_since.unwrap_or(now))
    }

    /// Books what follows from the judgement. The answer is whether the pod begins at once.
    fn is_let_in(
        &mut self,
        uid: &PodUid,
        pod: &Arc<Pod>,
        judgement: Judgement,
        may_look_twice: bool,
        since: Timestamp,
    ) -> bool {
        match judgement {
            Judgement::Fits(holding) => {
                self.count_admitted(pod);
                self.admission.ledger.reserve(uid.clone(), holding);
                self.admission.refused.remove(uid);
                true
            }
            Judgement::Preempts {
                holding,
                victims,
                scarce,
            } => {
                self.count_admitted(pod);
                self.admission.ledger.reserve(uid.clone(), holding);
                self.admission.refused.remove(uid);
                self.preempt(uid, &victims, &scarce);
                false
            }
            Judgement::Waits(holding) => {
                self.wait_for_terminating(uid, holding, since);
                false
            }
            Judgement::Mislabelled(_) if may_look_twice && self.look_twice(uid) => {
                self.admission.release(uid);
                false
            }
            Judgement::Refused(refusal) | Judgement::Mislabelled(refusal) => {
                self.note_refusal(uid, Arc::clone(pod), refusal);
                false
            }
        }
    }

    fn count_admitted(&self, pod: &Pod) {
        let has_amounts = |resources: Option<&ResourceRequirements>| {
            resources.is_some_and(|resources| {
                let has_any =
                    |amounts: &Option<BTreeMap<_, _>>| amounts.as_ref().is_some_and(|all| !all.is_empty());
                has_any(&resources.requests) || has_any(&resources.limits)
            })
        };
        let Some(spec) = &pod.spec else { return };
        let mut containers = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten());
        let of_containers = containers.any(|container| has_amounts(container.resources.as_ref()));
        let mode = match (has_amounts(spec.resources.as_ref()), of_containers) {
            (true, true) => "pod_and_container_level",
            (true, false) => "pod_level",
            (false, true) => "container_level",
            (false, false) => "",
        };
        let class = match self.qos_class_of(pod) {
            "Guaranteed" => "guaranteed",
            "Burstable" => "burstable",
            _ => "besteffort",
        };
        let levels = &self.shared.ports.metrics.admission.resource_levels;
        levels.with_label_values(&[mode, class]).inc();
    }

    /// Says that the pod cannot run here. What already runs of it is left alone.
    fn refuse(&mut self, uid: &PodUid, pod: Arc<Pod>, refusal: Refusal, kind: UpdateKind) {
        let Some(entry) = self.pods.get(uid) else {
            self.admission.drop_pod(uid);
            return self.note_refusal(uid, pod, refusal);
        };
        if entry.state.ending().is_some() {
            // When the old one is gone, the refusal is what is left.
            return self.update(uid, kind);
        }
        let event = PodEvent::warning(refusal.reason.clone(), refusal.message.clone());
        self.shared.ports.events.record(&pod, event);
        let problem = refusal.message;
        tracing::warn!(pod = %uid, problem, "The pod's new version is not supported; the last good one goes on");
    }

    /// Remembers a refusal, and tells it unless it was told.
    pub(super) fn note_refusal(&mut self, uid: &PodUid, pod: Arc<Pod>, refusal: Refusal) {
        self.admission.release(uid);
        let before = self.admission.refused.get(uid);
        let since = before.map_or_else(|| self.now(), |before| before.since);
        if before.is_none_or(|before| before.refusal.reason != refusal.reason) {
            let event = PodEvent::warning(refusal.reason.clone(), refusal.message.clone());
            self.shared.ports.events.record(&pod, event);
            self.shared.ports.metrics.admission.rejected(&refusal.reason);
        }
        let refused = Refused { pod, refusal, since };
        self.admission.refused.insert(uid.clone(), refused);
        self.report_refused(uid);
    }

    /// The status of a refused pod.
    pub(super) fn refused_status(&self, refused: &Refused) -> PodStatus {
        let class = self.qos_class_of(&refused.pod);
        rejected_status(class, &refused.refusal.reason, &refused.refusal.message)
    }

    /// What waited for something to be known is judged now, the oldest first.
    pub(super) fn judge_waiting(&mut self) {
        let admission = &self.admission;
        let waiting: Vec<PodUid> = admission
            .unjudged
            .keys()
            .chain(admission.waiting.keys())
            .cloned()
            .collect();
        // What an earlier life let in is booked before anybody new can take its place, be it dead by now.
        let (earlier, new): (Vec<PodUid>, Vec<PodUid>) =
            waiting.into_iter().partition(|uid| self.was_let_in(uid));
        for uid in earlier.into_iter().chain(self.by_age(new)) {
            self.let_in(&uid);
        }
    }

    pub(super) fn by_age(&self, mut uids: Vec<PodUid>) -> Vec<PodUid> {
        uids.sort_by_cached_key(|uid| {
            let pod = self.desired.get(uid);
            pod.and_then(|pod| pod.metadata.creation_timestamp.clone())
        });
        uids
    }
}

fn not_supported(message: String) -> Refusal {
    Refusal {
        reason: NOT_SUPPORTED.to_owned(),
        message,
        is_for_now: false,
        detail: None,
    }
}
