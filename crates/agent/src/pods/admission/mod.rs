//! Admission: which pods may run, and what each of them holds.
//!
//! Owns the ledger, the time that terminating pods have to free what they hold, and the refresh of the Node object. It answers
//! with a [`Decision`]; where a pod stands because of it is the standing's part. The sync loop is the ledger's only user, so
//! that nothing comes between a decision and the reservation that follows from it.
//!
//! Nothing of this is stored. A pod that the runtime has anything of was admitted before rubelet was started anew: it is reserved as
//! it is and never judged again, also when all of them together are more than the node has. That is why no pod is judged
//! before the runtime's first list. A reservation ends when nothing of the pod can run any more.
//!
//! Labels, taints and devices of the Node object, and pressure, are read anew for every decision. A pod that only the labels speak
//! against waits until the Node object is read again (`node_refresh`).
//!
//! A pod that fits only without terminating pods waits for them; a critical pod waits for the pods that it preempts. No wait
//! is longer than the other pod's time to end: then a pod that no source has any more stops counting, and one that a source still
//! has counts as if it stayed, both as upstream counts them (decision 0036).

mod node_refresh;
mod termination_deadlines;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, ResourceRequirements};
use rubelet_lifecycle::allocation::rebuilt;
use rubelet_lifecycle::configuration::unsupported;
use rubelet_lifecycle::pod_state::{PodFacts, PodState, kill_timeout};
use rubelet_lifecycle::standing::{Decision, NOT_SUPPORTED, Wait};
use rubelet_model::observation::PodUid;
use rubelet_ports::Moment;
use rubelet_resources::admission::capabilities::asks_runtime;
use rubelet_resources::admission::{Judgement, Ledger, Refusal, RuntimeFeatures};
use tokio::sync::mpsc;

use super::records::PodRecord;
use super::{AgentContext, qos_class_of};
use crate::observer::TableSizes;
use crate::supervisor::Supervisor;
use node_refresh::NodeRefresh;
pub(super) use node_refresh::Refreshed;
use termination_deadlines::TerminationDeadlines;

/// Which Node object a decision is made from.
#[derive(Clone, Copy)]
pub(super) enum NodeRead<'a> {
    /// The one that was seen last; its labels may be outdated.
    Watched,
    /// The one that was read for this decision; `None` when it cannot be read, so that the last one counts.
    Fresh(Option<&'a Node>),
}

/// What becomes of a change of a pod's resources.
pub(super) enum ResizeJudgement {
    Fits,
    /// Not now, for this reason.
    Deferred(String),
    /// Once these pods have ended.
    Preempts {
        victims: Vec<PodUid>,
        /// The first scarce resource.
        scarce: String,
        message: String,
    },
}

pub(super) struct Admission {
    context: Arc<AgentContext>,
    ledger: Ledger,
    deadlines: TerminationDeadlines,
    refresh: NodeRefresh,
    /// A pod has freed what it held, or others stopped waiting for it.
    is_room_freed: bool,
}

impl Admission {
    /// The receiver gets the Node objects that were read.
    pub(super) fn new(
        context: &Arc<AgentContext>,
        supervisor: &Supervisor,
    ) -> (Self, mpsc::Receiver<Refreshed>) {
        let (refresh, refreshed) = NodeRefresh::new(context, supervisor);
        let admission = Self {
            context: Arc::clone(context),
            ledger: Ledger::default(),
            deadlines: TerminationDeadlines::default(),
            refresh,
            is_room_freed: false,
        };
        (admission, refreshed)
    }

    pub(super) fn table_sizes(&self) -> TableSizes {
        vec![
            ("admission.holdings", self.ledger.holdings().count()),
            ("admission.deadlines", self.deadlines.len()),
            ("admission.node_refresh", self.refresh.len()),
        ]
    }

    // ---- decisions

    /// The pod with the resources that it counts with: a pod that was admitted before with what was allocated to it then.
    pub(in crate::pods) fn counted_definition(&self, uid: &PodUid, record: &PodRecord) -> Option<Arc<Pod>> {
        let pod = Arc::clone(record.desired()?);
        let known = self.context.resources.allocated.get(uid);
        let allocated = match known {
            Some(known) => known.applied(&pod),
            None if record.was_admitted_before() => rebuilt::allocated(&pod).applied(&pod),
            None => None,
        };
        Some(allocated.map_or(pod, Arc::new))
    }

    /// Decides about a desired pod whose state machine does not run, and reserves what it holds. `None`: it goes on waiting.
    pub(super) fn decide(
        &mut self,
        uid: &PodUid,
        pod: &Arc<Pod>,
        record: &PodRecord,
        is_runtime_listed: bool,
        node: NodeRead<'_>,
    ) -> Option<Decision> {
        let features = self.context.health.borrow().features;
        if !is_runtime_listed || features.is_none() && asks_runtime(pod) {
            return Some(Decision::AwaitRuntime);
        }
        if record.was_admitted_before() {
            self.reserve_running(uid, pod);
            return Some(Decision::Admit);
        }
        let facts = PodFacts::of(pod);
        if facts.is_terminal || facts.is_deleted {
            return Some(Decision::Admit);
        }
        if let Some(refusal) = unsupported_refusal(pod, &self.context) {
            let pod = Arc::clone(pod);
            return Some(Decision::Reject { pod, refusal });
        }
        let is_refreshing = matches!(record.standing().wait(), Some(Wait::NodeRefresh { .. }));
        if is_refreshing && matches!(node, NodeRead::Watched) {
            return None;
        }
        Some(self.judge(uid, pod, features.unwrap_or_default(), node))
    }

    fn judge(
        &mut self,
        uid: &PodUid,
        pod: &Arc<Pod>,
        features: RuntimeFeatures,
        node: NodeRead<'_>,
    ) -> Decision {
        let fresh = match node {
            NodeRead::Watched => None,
            NodeRead::Fresh(node) => node,
        };
        let view = self.context.ports.node.view(fresh);
        let terms = &self.context.settings.admission;
        match terms.judge(uid, pod, &self.ledger, features, &view) {
            Judgement::Fits(holding) => {
                self.count_admitted(pod);
                self.ledger.reserve(uid.clone(), holding);
                Decision::Admit
            }
            Judgement::Preempts {
                holding,
                victims,
                scarce,
            } => {
                self.count_admitted(pod);
                self.ledger.reserve(uid.clone(), holding);
                Decision::Preempt { victims, scarce }
            }
            Judgement::Waits(holding) => {
                self.ledger.reserve(uid.clone(), holding);
                Decision::AwaitRoom
            }
            Judgement::Mislabelled(_) if matches!(node, NodeRead::Watched) && self.refresh.ask(uid) => {
                Decision::AwaitNodeRefresh
            }
            Judgement::Refused(refusal) | Judgement::Mislabelled(refusal) => Decision::Reject {
                pod: Arc::clone(pod),
                refusal,
            },
        }
    }

    /// Takes the pods that the Node object was read for. Pods that asked since then get the next read.
    pub(super) fn take_refreshed(&mut self, refreshed: &Refreshed) -> Vec<PodUid> {
        self.refresh.take_answered(refreshed)
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
        let class = match qos_class_of(pod, &self.context) {
            "Guaranteed" => "guaranteed",
            "Burstable" => "burstable",
            _ => "besteffort",
        };
        let levels = &self.context.ports.metrics.admission.resource_levels;
        levels.with_label_values(&[mode, class]).inc();
    }

    /// Whether the pod can have other resources than it has now, and holds what it needs of them if it can.
    pub(super) fn judge_resize(&mut self, uid: &PodUid, pod: &Arc<Pod>) -> ResizeJudgement {
        let features = self.context.health.borrow().features.unwrap_or_default();
        let view = self.context.ports.node.view(None);
        let terms = &self.context.settings.admission;
        let short = || terms.shortage(uid, pod, &self.ledger, &view).unwrap_or_default();
        match terms.judge(uid, pod, &self.ledger, features, &view) {
            Judgement::Fits(mut holding) => {
                // Until its containers have less, it has what it had.
                if let Some(before) = self.ledger.holding(uid) {
                    holding.need.raise_to(&before.need);
                }
                self.ledger.reserve(uid.clone(), holding);
                ResizeJudgement::Fits
            }
            Judgement::Waits(_) => ResizeJudgement::Deferred(short()),
            Judgement::Preempts { victims, scarce, .. } => ResizeJudgement::Preempts {
                message: short(),
                victims,
                scarce,
            },
            Judgement::Refused(refusal) | Judgement::Mislabelled(refusal) => {
                ResizeJudgement::Deferred(refusal.message)
            }
        }
    }

    /// The pod's containers have what is allocated to it. The answer is whether it holds less than before.
    pub(super) fn settle(&mut self, uid: &PodUid, pod: &Pod) -> bool {
        let (Some(before), Ok(holding)) = (
            self.ledger.holding(uid),
            self.context.settings.admission.holding(pod),
        ) else {
            return false;
        };
        if before.need == holding.need {
            return false;
        }
        self.ledger.reserve(uid.clone(), holding);
        self.is_room_freed = true;
        true
    }

    // ---- what pods hold

    fn reserve(&mut self, uid: &PodUid, pod: &Pod) {
        // Its quantities were checked when the manifest was read.
        if let Ok(holding) = self.context.settings.admission.holding(pod) {
            self.ledger.reserve(uid.clone(), holding);
        }
    }

    /// A pod that runs holds the most of what is allocated to it and what its containers have.
    fn reserve_running(&mut self, uid: &PodUid, pod: &Pod) {
        let terms = &self.context.settings.admission;
        // Its quantities were checked when the manifest was read.
        let Ok(mut holding) = terms.holding(pod) else {
            return;
        };
        let actuated = self.context.resources.actuated.get(uid);
        let has = actuated.and_then(|actuated| actuated.applied(pod));
        if let Some(has) = has.and_then(|pod| terms.holding(&pod).ok()) {
            holding.need.raise_to(&has.need);
        }
        self.ledger.reserve(uid.clone(), holding);
    }

    /// A source has a pod that is stopped and that only the runtime knew: from now on it counts until its end.
    pub(super) fn reserve_stopping(&mut self, uid: &PodUid, pod: &Pod) {
        if !self.ledger.contains(uid) {
            self.reserve(uid, pod);
        }
    }

    /// Gives back what a pod held that cannot run any more.
    pub(super) fn release(&mut self, uid: &PodUid) {
        self.is_room_freed |= self.ledger.release(uid);
        self.deadlines.end(uid);
    }

    /// What a managed pod holds comes free when it ends, or has come free.
    pub(super) fn note_state(&mut self, uid: &PodUid, state: PodState, is_desired: bool) {
        if !state.may_run() {
            return self.release(uid);
        }
        if !self.ledger.contains(uid) {
            return;
        }
        let grace_seconds = match state.ending() {
            Some(ending) if !ending.restart_requested => ending.grace_seconds,
            // It terminates as soon as every source has delivered, unless its source has it again by then. Its time to end has
            // not begun, so that it keeps what it holds.
            None if !is_desired => return self.ledger.set_terminating(uid),
            Some(_) | None => {
                self.is_room_freed |= self.ledger.unset_terminating(uid);
                return;
            }
        };
        let until = self
            .context
            .ports
            .clock
            .moment()
            .plus(kill_timeout(grace_seconds));
        if !self.deadlines.begin(uid, until) {
            self.ledger.set_terminating(uid);
        }
    }

    /// The pod is preempted and gets this time to end, also if it missed its time once before.
    pub(super) fn preempted(&mut self, uid: &PodUid, until: Moment) {
        self.deadlines.restart(uid, until);
    }

    /// When a terminating pod misses its time to end.
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.next()
    }

    /// Stops waiting for pods that missed their time to end. Their own jobs go on.
    pub(super) fn give_up_overdue(&mut self, is_desired: impl Fn(&PodUid) -> bool) {
        let now = self.context.ports.clock.moment();
        while let Some(uid) = self.deadlines.take_overdue(now) {
            if is_desired(&uid) {
                self.ledger.unset_terminating(&uid);
            } else {
                self.ledger.release(&uid);
            }
            self.is_room_freed = true;
        }
    }

    /// Whether room has come free since the last call.
    pub(super) fn take_room_freed(&mut self) -> bool {
        std::mem::take(&mut self.is_room_freed)
    }

    /// Whether every preempted pod has ended or missed its time, and no other terminating pod holds what the preemptor needs.
    pub(super) fn has_room_for(&self, uid: &PodUid, pod: Option<&Pod>, victims: &[PodUid]) -> bool {
        let is_awaited = |victim: &PodUid| self.ledger.contains(victim) && !self.deadlines.is_overdue(victim);
        let view = self.context.ports.node.view(None);
        let terms = &self.context.settings.admission;
        !victims.iter().any(is_awaited)
            && pod.is_none_or(|pod| !terms.waits_for_terminating(uid, pod, &self.ledger, &view))
    }

    /// The pods that others may wait for.
    pub(super) fn terminating(&self) -> impl Iterator<Item = &PodUid> {
        self.ledger.terminating()
    }
}

/// Why the pod cannot run here whatever the node has, if it asks for something that is not supported.
pub(super) fn unsupported_refusal(pod: &Pod, context: &AgentContext) -> Option<Refusal> {
    let problems = unsupported(pod, &context.settings.node);
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    (!problems.is_empty()).then(|| Refusal {
        reason: NOT_SUPPORTED.to_owned(),
        message: problems.join("; "),
        is_for_now: false,
        detail: None,
    })
}
