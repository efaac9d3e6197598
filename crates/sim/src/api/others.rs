//! What other clients write into the statuses of pods.
//!
//! Owns the form of their changes. When they come is the scenario's choice, or that of chance while a patch of the node is under way.

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use super::{SimApi, is_terminal, uid_of};
use crate::dice::Dice;

/// Conditions that the node writes.
const OWNED: [&str; 5] = [
    "Ready",
    "ContainersReady",
    "Initialized",
    "PodScheduled",
    "PodReadyToStartContainers",
];

/// A change of what only the node should write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// The node lifecycle controller takes the node for lost.
    NotReady,
    /// A condition has the opposite status.
    Flip(&'static str),
    /// A condition is removed.
    Remove(&'static str),
    /// The pod's reason and message.
    Reason,
}

impl Overwrite {
    #[must_use]
    pub fn roll(dice: &mut Dice) -> Self {
        let type_ = OWNED[dice.below(OWNED.len())];
        match dice.below(10) {
            0..5 => Self::NotReady,
            5..8 => Self::Flip(type_),
            8 => Self::Remove(type_),
            _ => Self::Reason,
        }
    }

    /// Whether the status is another one now.
    fn apply(self, status: &mut PodStatus) -> bool {
        let conditions = status.conditions.get_or_insert_default();
        let find = |conditions: &mut Vec<PodCondition>, type_: &str| {
            conditions.iter().position(|one| one.type_ == type_)
        };
        match self {
            Self::NotReady => match find(conditions, "Ready") {
                Some(place) if conditions[place].status == "True" => {
                    "False".clone_into(&mut conditions[place].status);
                    true
                }
                Some(_) | None => false,
            },
            Self::Flip(type_) => {
                let Some(place) = find(conditions, type_) else {
                    return false;
                };
                let is_true = conditions[place].status == "True";
                let opposite = if is_true { "False" } else { "True" };
                opposite.clone_into(&mut conditions[place].status);
                true
            }
            Self::Remove(type_) => match find(conditions, type_) {
                Some(place) => {
                    conditions.remove(place);
                    true
                }
                None => false,
            },
            Self::Reason => {
                status.reason = Some("NodeLost".to_owned());
                status.message = Some("Node sim which was running pod is unresponsive".to_owned());
                true
            }
        }
    }
}

impl SimApi {
    /// Another client changes what the node has written.
    pub fn overwrite(&self, uid: &str, overwrite: Overwrite) {
        let Some(pod) = self.pod_of(uid) else { return };
        let mut status = pod.status.clone().unwrap_or_default();
        if overwrite.apply(&mut status) {
            self.say(format!(
                "another client changes the status of {uid}: {overwrite:?}"
            ));
            self.change(uid, |pod| pod.status = Some(status));
        }
    }

    /// The node lifecycle controller has heard nothing from the node for long.
    pub fn mark_all_not_ready(&self) {
        for pod in self.pods() {
            self.overwrite(&uid_of(&pod), Overwrite::NotReady);
        }
    }

    /// Of a hundred status patches so many find a status that another client has changed since.
    pub fn set_overwritten_percent(&self, percent: u64) {
        self.store().overwritten_percent = percent;
    }

    /// The next status patches of a pod find a status that another client has changed since.
    pub fn overwrite_next(&self, uid: &str, patches: u64) {
        self.store().overwrites_left = Some((uid.to_owned(), patches));
    }

    /// Whether one of so many patches came.
    #[must_use]
    pub fn has_overwritten(&self, patches: u64) -> bool {
        let store = self.store();
        let left = store.overwrites_left.as_ref();
        left.is_none_or(|(_, left)| *left < patches)
    }

    /// Other clients leave the pods of `overwrite_next` alone from now on.
    pub fn overwrite_no_more(&self) {
        self.store().overwrites_left = None;
    }

    /// Whether another client is faster than this patch.
    fn is_overtaken(&self, uid: &str, dice: &mut Dice) -> bool {
        let mut store = self.store();
        let left = store.overwrites_left.take();
        match left {
            Some((pod, left)) if pod == uid => {
                store.overwrites_left = (left > 1).then(|| (pod, left - 1));
                true
            }
            left => {
                store.overwrites_left = left;
                dice.percent(store.overwritten_percent)
            }
        }
    }

    /// Perhaps another client is faster than a patch that is under way.
    pub(super) fn overwrite_perhaps(&self, uid: &str) {
        // By dice of its own, so that everything else goes on as without it.
        let mut dice = self.inner.dice.with(|dice| dice.aside("overwrite"));
        if self.is_overtaken(uid, &mut dice) {
            self.overwrite(uid, Overwrite::roll(&mut dice));
        }
    }

    /// Another client has a condition of its own.
    pub fn set_condition(&self, uid: &str, type_: &str, holds: bool) {
        self.change(uid, |pod| {
            let conditions = pod
                .status
                .get_or_insert_default()
                .conditions
                .get_or_insert_default();
            conditions.retain(|condition| condition.type_ != type_);
            conditions.push(PodCondition {
                type_: type_.to_owned(),
                status: if holds { "True" } else { "False" }.to_owned(),
                ..PodCondition::default()
            });
        });
    }

    /// The status of a pod that has not ended is lost, as by a restored backup.
    pub fn lose_status(&self, uid: &str) {
        let pod = self.pod_of(uid);
        if pod.is_none_or(|pod| is_terminal(&pod)) {
            return;
        }
        self.say(format!("the API server loses the status of {uid}"));
        self.change(uid, |pod| {
            pod.status = Some(PodStatus {
                phase: Some("Pending".to_owned()),
                ..PodStatus::default()
            });
        });
    }
}
