//! A second look at the Node object, before a pod is refused for the node's labels alone.
//!
//! Owns who waits for it. Somebody who binds a pod because of a label that was just set may be ahead of what is known here. One
//! call serves everybody who asked before it began; nobody waits for longer than its limit, and when it fails, what is known
//! decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use rubelet_lifecycle::pod_state::PodFacts;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::api::NodeReader;
use rubelet_ports::within;
use rubelet_resources::admission::NODE_AFFINITY;
use tokio::sync::mpsc;

use super::Pods;

const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// The Node object as it is now; nothing when it cannot be had.
pub(super) type Look = Option<Arc<Node>>;

/// Pods that wait for it.
pub(super) struct SecondLooks {
    sender: mpsc::Sender<Look>,
    /// Since when.
    pub(super) waiting: BTreeMap<PodUid, Timestamp>,
    /// Those whom the call under way is for.
    served: BTreeSet<PodUid>,
    is_under_way: bool,
}

impl SecondLooks {
    pub(super) fn new() -> (Self, mpsc::Receiver<Look>) {
        // There is one call at most.
        let (sender, receiver) = mpsc::channel(1);
        let looks = Self {
            sender,
            waiting: BTreeMap::new(),
            served: BTreeSet::new(),
            is_under_way: false,
        };
        (looks, receiver)
    }

    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.waiting.remove(uid);
        self.served.remove(uid);
    }
}

impl Pods {
    /// Has the pod wait for a second look. The answer is whether anybody can be asked.
    pub(super) fn look_twice(&mut self, uid: &PodUid) -> bool {
        let Some(reader) = self.shared.ports.node.reader.clone() else {
            return false;
        };
        let now = self.now();
        self.admission.looks.waiting.entry(uid.clone()).or_insert(now);
        if !self.admission.looks.is_under_way {
            self.begin_look(reader);
        }
        true
    }

    fn begin_look(&mut self, reader: Arc<dyn NodeReader>) {
        let looks = &mut self.admission.looks;
        looks.is_under_way = true;
        looks.served = looks.waiting.keys().cloned().collect();
        let sender = looks.sender.clone();
        let (clock, name) = (
            Arc::clone(&self.shared.ports.clock),
            self.shared.settings.node_name.clone(),
        );
        self.supervisor.spawn("second look at the node", async move {
            let answer = within(clock.as_ref(), LOOK_LIMIT, reader.node(&name)).await;
            let problem = match answer {
                Ok(Ok(node)) => Ok(node),
                Ok(Err(error)) => Err(error.to_string()),
                Err(elapsed) => Err(elapsed.to_string()),
            };
            let tell = |error: &String| {
                tracing::warn!(
                    error,
                    "The Node cannot be looked at again; its labels count as last seen"
                );
            };
            let node = problem.inspect_err(tell).ok().map(Arc::new);
            // Nobody listens any more when the agent ends.
            let _ = sender.send(node).await;
        });
    }

    /// Judges everybody whom the look was for.
    pub(super) fn looked_again(&mut self, look: &Look) {
        self.admission.looks.is_under_way = false;
        let served = std::mem::take(&mut self.admission.looks.served);
        let waiting = &mut self.admission.looks.waiting;
        let served: Vec<PodUid> = served
            .into_iter()
            .filter(|uid| waiting.remove(uid).is_some())
            .collect();
        for uid in self.by_age(served) {
            self.let_in_after_look(&uid, look);
        }
        let looks = &self.admission.looks;
        if !looks.is_under_way
            && !looks.waiting.is_empty()
            && let Some(reader) = self.shared.ports.node.reader.clone()
        {
            self.begin_look(reader);
        }
    }

    /// The Node object is another one: its labels may be what a static pod waits for, which nobody would ever bring back.
    pub(super) fn node_changed(&mut self) {
        let refused = self.admission.refused.iter();
        let hopeful: Vec<PodUid> = refused
            .filter(|(_, refused)| refused.refusal.reason == NODE_AFFINITY)
            .filter(|(_, refused)| PodFacts::of(&refused.pod).is_static)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in self.by_age(hopeful) {
            // Nobody could say anything newer.
            self.let_in_after_look(&uid, &None);
        }
    }
}
