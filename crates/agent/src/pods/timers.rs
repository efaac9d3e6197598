//! Timers, one per pod at most.
//!
//! Owns the moments. What follows when one has come is its user's part: the next look at a pod, the end of a grace period, the timeout of a
//! kill request.

use std::collections::{BTreeMap, BTreeSet};

use rubelet_model::observation::PodUid;
use rubelet_ports::Moment;

#[derive(Default)]
pub(super) struct Timers {
    by_pod: BTreeMap<PodUid, Moment>,
    order: BTreeSet<(Moment, PodUid)>,
}

impl Timers {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn set(&mut self, uid: &PodUid, at: Moment) {
        self.remove(uid);
        self.by_pod.insert(uid.clone(), at);
        self.order.insert((at, uid.clone()));
    }

    pub(super) fn remove(&mut self, uid: &PodUid) {
        if let Some(at) = self.by_pod.remove(uid) {
            self.order.remove(&(at, uid.clone()));
        }
    }

    /// Sets the timer unless it fires before that anyway.
    pub(super) fn set_earlier(&mut self, uid: &PodUid, at: Moment) {
        if self.by_pod.get(uid).is_none_or(|known| *known > at) {
            self.set(uid, at);
        }
    }

    pub(super) fn contains(&self, uid: &PodUid) -> bool {
        self.by_pod.contains_key(uid)
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes the next pod whose moment has come.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<PodUid> {
        let (at, uid) = self.order.first()?;
        if *at > now {
            return None;
        }
        let uid = uid.clone();
        self.remove(&uid);
        Some(uid)
    }
}
