//! The first list of everything after rubelet's start.
//!
//! Owns which pods of that list the observer still has to look at, and which it still owes to the sync loop. Pure.
//!
//! ```text
//!               listed                    looked (the last pod)
//!   NotListed ──────────► Looking { pods } ─────────────────────► Done
//! ```
//!
//! A pod whose look fails does not hold up the first list, but it stays owed until a look succeeds: the sync loop gets an
//! observation of each pod that was listed as alive, also when the pod is gone by then.

use std::collections::{BTreeMap, BTreeSet};

use rubelet_model::observation::{PodObservation, PodUid};

use super::listing::Listed;
use super::{Sighting, TableSizes};

#[derive(Default)]
enum Stage {
    #[default]
    NotListed,
    /// Pods of the first list whose looks have not ended.
    Looking {
        pods: BTreeSet<PodUid>,
    },
    Done,
}

#[derive(Default)]
pub(super) struct FirstList {
    stage: Stage,
    /// Namespace and name of the pods that were listed as alive and not observed since.
    owed: BTreeMap<PodUid, (String, String)>,
}

impl FirstList {
    /// A list has arrived; the observer looks at `changed` next. The first list is reported before any look, because a look
    /// may hang and the sync loop must know at once which pods hold their names.
    pub(super) fn listed(&mut self, pods: &BTreeMap<PodUid, Listed>, changed: &[PodUid]) -> Option<Sighting> {
        if !matches!(self.stage, Stage::NotListed) {
            return None;
        }
        self.stage = Stage::Looking {
            pods: changed.iter().cloned().collect(),
        };
        let alive = pods.iter().filter(|(_, listed)| listed.may_run());
        self.owed = alive
            .map(|(uid, listed)| (uid.clone(), (listed.namespace.clone(), listed.name.clone())))
            .collect();
        let living = self.owed.iter();
        Some(Sighting::Living {
            living: living
                .map(|(uid, (namespace, name))| (name.clone(), namespace.clone(), uid.clone()))
                .collect(),
            listed: pods.keys().cloned().collect(),
        })
    }

    /// Owed pods that a later list does not have. They were never observed, so that comparing with observations finds no end.
    pub(super) fn vanished(&self, pods: &BTreeMap<PodUid, Listed>) -> Vec<PodUid> {
        let owed = self.owed.keys().filter(|uid| !pods.contains_key(uid));
        owed.cloned().collect()
    }

    /// A look has ended, with or without an observation.
    pub(super) fn looked(&mut self, uid: &PodUid) {
        if let Stage::Looking { pods } = &mut self.stage {
            pods.remove(uid);
        }
    }

    /// Returns whether the observation has to be reported even if it holds no change. A pod that is gone gets its name back.
    pub(super) fn settle(&mut self, observation: &mut PodObservation) -> bool {
        let Some((namespace, name)) = self.owed.remove(&observation.uid) else {
            return false;
        };
        if observation.name.is_empty() {
            (observation.namespace, observation.name) = (namespace, name);
        }
        true
    }

    /// Returns once that every pod of the first list was looked at.
    pub(super) fn finish(&mut self) -> Option<Sighting> {
        let is_done = matches!(&self.stage, Stage::Looking { pods } if pods.is_empty());
        is_done.then(|| {
            self.stage = Stage::Done;
            Sighting::FirstListDone
        })
    }

    pub(super) fn table_sizes(&self) -> TableSizes {
        let looking = match &self.stage {
            Stage::Looking { pods } => pods.len(),
            Stage::NotListed | Stage::Done => 0,
        };
        vec![
            ("observer.first_looks", looking),
            ("observer.owed", self.owed.len()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use rubelet_model::Timestamp;
    use rubelet_wire::cri::v1;

    use super::*;

    fn list(pods: &[(&str, v1::ContainerState)]) -> BTreeMap<PodUid, Listed> {
        let listed = |(name, state): &(&str, v1::ContainerState)| {
            let container = v1::Container {
                state: i32::from(*state),
                ..v1::Container::default()
            };
            let listed = Listed {
                namespace: "default".to_owned(),
                name: (*name).to_owned(),
                containers: vec![container],
                ..Listed::default()
            };
            (PodUid::from(*name), listed)
        };
        pods.iter().map(listed).collect()
    }

    const RUNNING: v1::ContainerState = v1::ContainerState::ContainerRunning;
    const EXITED: v1::ContainerState = v1::ContainerState::ContainerExited;

    fn observed(name: &str) -> PodObservation {
        let identity = (PodUid::from(name), String::new(), String::new());
        PodObservation::new(identity, Vec::new(), Vec::new(), Timestamp::EPOCH)
    }

    #[test]
    fn the_first_list_is_done_after_its_last_look() {
        let mut first = FirstList::default();
        assert!(first.finish().is_none(), "nothing is listed");
        let pods = list(&[("dead", EXITED), ("web", RUNNING)]);
        let changed: Vec<PodUid> = pods.keys().cloned().collect();
        let Some(Sighting::Living { living, listed }) = first.listed(&pods, &changed) else {
            panic!("the first list is not reported");
        };
        let web = ("web".to_owned(), "default".to_owned(), PodUid::from("web"));
        assert_eq!(living, [web]);
        assert_eq!(listed.len(), 2);
        assert!(first.listed(&pods, &changed).is_none(), "reported twice");
        first.looked(&changed[0]);
        assert!(first.finish().is_none());
        first.looked(&changed[1]);
        assert!(matches!(first.finish(), Some(Sighting::FirstListDone)));
        assert!(first.finish().is_none(), "reported twice");
        assert_eq!(
            first.table_sizes(),
            [("observer.first_looks", 0), ("observer.owed", 1)]
        );
    }

    #[test]
    fn an_empty_list_is_done_at_once() {
        let mut first = FirstList::default();
        first.listed(&BTreeMap::new(), &[]);
        assert!(first.finish().is_some());
    }

    #[test]
    fn living_pods_are_owed_until_they_are_observed() {
        let mut first = FirstList::default();
        first.listed(&list(&[("dead", EXITED), ("web", RUNNING)]), &[]);
        assert!(first.vanished(&list(&[("web", RUNNING)])).is_empty());
        assert_eq!(first.vanished(&BTreeMap::new()), [PodUid::from("web")]);
        assert!(!first.settle(&mut observed("dead")));
        let mut web = observed("web");
        assert!(first.settle(&mut web));
        assert_eq!((web.namespace.as_str(), web.name.as_str()), ("default", "web"));
        assert!(!first.settle(&mut web), "owed twice");
        assert!(first.vanished(&BTreeMap::new()).is_empty());
    }
}
