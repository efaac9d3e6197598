//! Requests to end a pod: eviction and node shutdown through the agent's handle, preemption from admission.
//!
//! Owns who waits for the end of which pod, and until when. As upstream, a request waits one and a half grace periods, at least ten
//! seconds; then it is answered with a timeout, and an `ExceededGracePeriod` event is recorded. The pod's own job goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::pod_state::EndCause;
use rubelet_lifecycle::standing::{Decision, StandingEvent};
use rubelet_lifecycle::status::Eviction;
use rubelet_model::observation::PodUid;
use rubelet_ports::Moment;
use rubelet_resources::admission::Refusal;
use tokio::sync::oneshot;

use super::AgentContext;
use super::timers::Timers;

/// Why a pod ends, with the status that it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The node runs short of something; what the pod left on the node may be removed at once.
    Eviction(Eviction),
    /// The node shuts down.
    Shutdown(Eviction),
}

impl EndReason {
    pub(super) fn cause(&self) -> EndCause {
        match self {
            Self::Eviction(_) => EndCause::Evicted,
            Self::Shutdown(_) => EndCause::Killed,
        }
    }

    pub(super) fn into_status(self) -> Eviction {
        match self {
            Self::Eviction(status) | Self::Shutdown(status) => status,
        }
    }
}

/// A request to end a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndPod {
    pub reason: EndReason,
    /// Shortens the pod's own grace period.
    pub grace_seconds: Option<i64>,
}

/// Why a pod is not known to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndPodError {
    #[error("no source has the pod, and nothing of it runs here")]
    UnknownPod,
    #[error("timeout waiting to kill pod")]
    TimedOut,
    #[error("the agent is ending")]
    NoAnswer,
}

pub(crate) type EndPodReply = oneshot::Sender<Result<(), EndPodError>>;

/// Who waits for the end of a pod.
pub(super) enum Requester {
    Handle(EndPodReply),
    /// A critical pod needs this resource.
    Preemption {
        scarce: String,
    },
}

pub(super) struct KillRequests {
    context: Arc<AgentContext>,
    /// In the order of arrival.
    waiting: BTreeMap<PodUid, Vec<(Moment, Requester)>>,
    /// The first timeout of each pod.
    timers: Timers,
}

impl KillRequests {
    pub(super) fn new(context: &Arc<AgentContext>) -> Self {
        Self {
            context: Arc::clone(context),
            waiting: BTreeMap::new(),
            timers: Timers::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn add(&mut self, uid: &PodUid, until: Moment, requester: Requester) {
        let requests = self.waiting.entry(uid.clone()).or_default();
        requests.push((until, requester));
        self.timers.set_earlier(uid, until);
    }

    /// The pod ends with a shorter grace period: its requests time out no later than this.
    pub(super) fn limit(&mut self, uid: &PodUid, until: Moment) {
        let Some(requests) = self.waiting.get_mut(uid) else {
            return;
        };
        for (at, _) in requests {
            *at = until.min(*at);
        }
        self.timers.set_earlier(uid, until);
    }

    /// Everything of the pod is stopped.
    pub(super) fn answer(&mut self, uid: &PodUid) {
        self.timers.remove(uid);
        for (_, requester) in self.waiting.remove(uid).unwrap_or_default() {
            match requester {
                Requester::Handle(reply) => {
                    // The caller may have stopped waiting.
                    let _ = reply.send(Ok(()));
                }
                Requester::Preemption { scarce } => self.count_preemption(&scarce),
            }
        }
    }

    pub(super) fn count_preemption(&self, scarce: &str) {
        let preemptions = &self.context.ports.metrics.admission.preemptions;
        preemptions.with_label_values(&[scarce]).inc();
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.timers.next()
    }

    /// Answers the requests whose time is over. The answer is their pods.
    pub(super) fn time_out(&mut self, now: Moment) -> Vec<PodUid> {
        let mut overdue = Vec::new();
        while let Some(uid) = self.timers.take_due(now) {
            let mut left = Vec::new();
            for (until, requester) in self.waiting.remove(&uid).unwrap_or_default() {
                match requester {
                    requester if until > now => {
                        self.timers.set_earlier(&uid, until);
                        left.push((until, requester));
                    }
                    Requester::Handle(reply) => {
                        // The caller may have stopped waiting.
                        let _ = reply.send(Err(EndPodError::TimedOut));
                    }
                    // The preemptor stops waiting by admission's own deadline.
                    Requester::Preemption { .. } => {}
                }
            }
            if !left.is_empty() {
                self.waiting.insert(uid.clone(), left);
            }
            overdue.push(uid);
        }
        overdue
    }
}

/// A pod that has not started ends by being rejected: for now, so that it can start when there is room, or for good. `None` when no
/// source has it.
pub(super) fn rejection_of_unstarted(
    desired: Option<&Arc<Pod>>,
    status: Eviction,
    is_for_now: bool,
) -> Option<StandingEvent> {
    let refusal = Refusal {
        reason: status.reason,
        message: status.message,
        is_for_now,
        detail: None,
    };
    let pod = Arc::clone(desired?);
    Some(StandingEvent::Decided(Decision::Reject { pod, refusal }))
}
