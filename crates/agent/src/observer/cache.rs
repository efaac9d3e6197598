//! The last observation of each pod.
//!
//! Owns the observations and to which pod a sandbox belongs. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use rubelet_model::Timestamp;
use rubelet_model::observation::{PodObservation, PodUid, SandboxId};
use rubelet_ports::Moment;

use super::TableSizes;
use super::listing::Listed;

struct Entry {
    observation: Arc<PodObservation>,
    /// When the look began that it comes from.
    looked_at: Moment,
    /// The facts of containers that run may be others since then.
    outdated_at: Option<Moment>,
}

#[derive(Default)]
pub(super) struct ObservationCache {
    pods: BTreeMap<PodUid, Entry>,
    sandboxes: BTreeMap<SandboxId, PodUid>,
}

impl ObservationCache {
    pub(super) fn get(&self, uid: &PodUid) -> Option<&Arc<PodObservation>> {
        self.pods.get(uid).map(|entry| &entry.observation)
    }

    /// The facts of containers that run have changed.
    pub(super) fn outdate(&mut self, uid: &PodUid, at: Moment) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.outdated_at = entry.outdated_at.max(Some(at));
        }
    }

    /// What a look need not ask for again: the observation, without containers whose facts may be others by now.
    pub(super) fn known_facts(&self, uid: &PodUid) -> Option<Arc<PodObservation>> {
        let entry = self.pods.get(uid)?;
        if entry.outdated_at.is_none() {
            return Some(Arc::clone(&entry.observation));
        }
        let mut known = entry.observation.as_ref().clone();
        known.containers.retain(|container| !container.state.is_running());
        Some(Arc::new(known))
    }

    /// The observation, if its look began at `after` or later.
    pub(super) fn get_after(&self, uid: &PodUid, after: Moment) -> Option<&Arc<PodObservation>> {
        let entry = self.pods.get(uid).filter(|entry| entry.looked_at >= after);
        entry.map(|entry| &entry.observation)
    }

    pub(super) fn looked_at(&self, uid: &PodUid) -> Option<Moment> {
        self.pods.get(uid).map(|entry| entry.looked_at)
    }

    pub(super) fn pod_of_sandbox(&self, id: &SandboxId) -> Option<&PodUid> {
        self.sandboxes.get(id)
    }

    /// What the runtime has.
    pub(super) fn present(&self) -> Vec<Arc<PodObservation>> {
        let observations = self.pods.values().map(|entry| &entry.observation);
        observations
            .filter(|observation| !observation.is_empty())
            .cloned()
            .collect()
    }

    /// Returns whether the observation differs from the one before. The absence of an unknown pod is no difference.
    pub(super) fn record(&mut self, observation: &Arc<PodObservation>, looked_at: Moment) -> bool {
        let uid = &observation.uid;
        let known = self.get(uid).cloned();
        let has_changed = match &known {
            Some(known) => !same_facts(known, observation),
            None => !observation.is_empty(),
        };
        if has_changed {
            let before = known.iter().flat_map(|known| &known.sandboxes);
            before.for_each(|sandbox| drop(self.sandboxes.remove(&sandbox.id)));
            let ids = observation.sandboxes.iter().map(|sandbox| sandbox.id.clone());
            self.sandboxes.extend(ids.map(|id| (id, uid.clone())));
        }
        let observation = Arc::clone(observation);
        let outdated_at = self.pods.get(uid).and_then(|before| before.outdated_at);
        let entry = Entry {
            observation,
            looked_at,
            // A look that began before has read the old facts.
            outdated_at: outdated_at.filter(|at| *at > looked_at),
        };
        self.pods.insert(entry.observation.uid.clone(), entry);
        has_changed
    }

    /// Forgets a pod of which the runtime has nothing. Returns whether it was one.
    pub(super) fn forget_absent(&mut self, uid: &PodUid) -> bool {
        let is_absent = self.get(uid).is_some_and(|observation| observation.is_empty());
        if is_absent {
            self.pods.remove(uid);
        }
        is_absent
    }

    /// Pods of which a list that began at `began` shows something else than their observations.
    pub(super) fn changed(&self, list: &BTreeMap<PodUid, Listed>, began: Moment) -> Vec<PodUid> {
        let differs = |(uid, listed): &(&PodUid, &Listed)| match self.pods.get(*uid) {
            Some(entry) => entry.looked_at < began && listed.differs_from(&entry.observation),
            None => true,
        };
        let has_vanished = |(uid, entry): &(&PodUid, &Entry)| {
            entry.looked_at < began && !list.contains_key(*uid) && !entry.observation.is_empty()
        };
        let changed = list.iter().filter(differs).map(|(uid, _)| uid);
        let vanished = self.pods.iter().filter(has_vanished).map(|(uid, _)| uid);
        changed.chain(vanished).cloned().collect()
    }

    /// Whether the pod's look began after the event. A wall clock that was set back makes the comparison worthless.
    pub(super) fn covers_event(&self, uid: &PodUid, event_unix_nanos: i64, now: Timestamp) -> bool {
        self.get(uid).is_some_and(|observation| {
            let observed_at = observation.observed_at;
            observed_at <= now && event_unix_nanos < observed_at.unix_nanos()
        })
    }

    pub(super) fn table_sizes(&self) -> TableSizes {
        vec![
            ("observer.pods", self.pods.len()),
            ("observer.sandboxes", self.sandboxes.len()),
        ]
    }
}

/// Whether two observations hold the same facts; when they were made does not count.
pub(crate) fn same_facts(left: &PodObservation, right: &PodObservation) -> bool {
    left.sandboxes == right.sandboxes && left.containers == right.containers && left.ips == right.ips
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rubelet_model::observation::{SandboxObservation, SandboxState};
    use rubelet_wire::cri::v1;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_start(Duration::from_secs(seconds))
    }

    fn pod(name: &str) -> PodUid {
        PodUid::from(name)
    }

    /// A pod with one ready sandbox for each of these ids.
    fn observed(name: &str, sandboxes: &[&str]) -> Arc<PodObservation> {
        let now = Timestamp::from_unix_nanos(100);
        let sandboxes = sandboxes
            .iter()
            .map(|id| SandboxObservation::new(*id, 0, SandboxState::Ready, now))
            .collect();
        let identity = (pod(name), "default".to_owned(), name.to_owned());
        Arc::new(PodObservation::new(identity, sandboxes, Vec::new(), now))
    }

    fn listed(pods: &[(&str, &[&str])]) -> BTreeMap<PodUid, Listed> {
        let sandbox = |id: &&str| v1::PodSandbox {
            id: (*id).to_owned(),
            state: i32::from(v1::PodSandboxState::SandboxReady),
            ..v1::PodSandbox::default()
        };
        let listed = |(name, ids): &(&str, &[&str])| {
            let listed = Listed {
                sandboxes: ids.iter().map(sandbox).collect(),
                ..Listed::default()
            };
            (pod(name), listed)
        };
        pods.iter().map(listed).collect()
    }

    #[test]
    fn a_record_tells_changes_from_repetitions() {
        let mut cache = ObservationCache::default();
        assert!(
            !cache.record(&observed("web", &[]), at(0)),
            "an absent pod is no change"
        );
        assert!(cache.record(&observed("web", &["one"]), at(1)));
        assert!(!cache.record(&observed("web", &["one"]), at(2)));
        assert!(cache.get_after(&pod("web"), at(2)).is_some());
        assert!(cache.get_after(&pod("web"), at(3)).is_none());
        assert_eq!(cache.present(), [observed("web", &["one"])]);
        assert!(!cache.forget_absent(&pod("web")), "the runtime has it");
        assert!(cache.record(&observed("web", &[]), at(3)));
        assert!(cache.present().is_empty());
        assert!(cache.forget_absent(&pod("web")));
        assert!(cache.table_sizes().iter().all(|(_, size)| *size == 0));
    }

    #[test]
    fn a_sandbox_leads_to_its_pod() {
        let mut cache = ObservationCache::default();
        let owner = |cache: &ObservationCache, id: &str| cache.pod_of_sandbox(&SandboxId::from(id)).cloned();
        cache.record(&observed("web", &["one"]), at(0));
        cache.record(&observed("db", &["two"]), at(0));
        assert_eq!(owner(&cache, "one"), Some(pod("web")));
        cache.record(&observed("web", &["three"]), at(1));
        assert_eq!(owner(&cache, "one"), None);
        assert_eq!(owner(&cache, "three"), Some(pod("web")));
        assert_eq!(owner(&cache, "two"), Some(pod("db")));
    }

    #[test]
    fn a_list_shows_what_changed() {
        let mut cache = ObservationCache::default();
        cache.record(&observed("web", &["one"]), at(5));
        cache.record(&observed("gone", &[]), at(5));
        let check = |list: &[(&str, &[&str])], began: u64, expected: &[&str]| {
            let expected: Vec<PodUid> = expected.iter().map(|name| pod(name)).collect();
            assert_eq!(
                cache.changed(&listed(list), at(began)),
                expected,
                "{list:?} {began}"
            );
        };
        check(&[("web", &["one"])], 6, &[]);
        check(&[("web", &["two"])], 6, &["web"]);
        check(&[("web", &["one", "two"])], 6, &["web"]);
        check(&[("web", &["one"]), ("new", &["three"])], 6, &["new"]);
        check(&[], 6, &["web"]);
        check(&[("web", &["one"]), ("gone", &["four"])], 6, &["gone"]);
        // The look began after the list.
        check(&[("web", &["two"])], 5, &[]);
        check(&[], 5, &[]);
    }

    #[test]
    fn an_event_is_covered_by_a_later_look() {
        let mut cache = ObservationCache::default();
        cache.record(&observed("web", &["one"]), at(0));
        let check = |name: &str, event: i64, now: i64, expected: bool| {
            let now = Timestamp::from_unix_nanos(now);
            assert_eq!(
                cache.covers_event(&pod(name), event, now),
                expected,
                "{event} {now:?}"
            );
        };
        check("web", 99, 200, true);
        check("web", 100, 200, false);
        check("web", 99, 50, false);
        check("new", 99, 200, false);
    }
}
