//! This node's pods as last seen at the API server.
//!
//! Owns the newest version of each pod, from the watch and from the answers to our own calls. Those two race: a version that is
//! older than the last answer is ignored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::pod::{PodName, is_mirror_pod, uid_text};
use rubelet_ports::Moment;
use rubelet_ports::api::Change;

/// How long the watch may lag behind an answer. After that the watch counts even if its versions are smaller, as after a restored
/// backup of the cluster's store.
const LAG: Duration = Duration::from_secs(30);
/// The answer to a creation can come after the deletion event of its pod; so many deletions are remembered.
const MAX_DELETED: usize = 64;

struct Known {
    pod: Arc<Pod>,
    /// Of a mirror: how the API server answered its creation, or how it was first seen when an earlier run created it. What admission
    /// changed is in it.
    as_made: Option<Arc<Pod>>,
    /// When we got it as an answer to a call of our own.
    answered: Option<Moment>,
}

#[derive(Default)]
pub(crate) struct ApiPods {
    /// The whole set was delivered once.
    is_known: bool,
    pods: BTreeMap<PodName, Known>,
    /// UIDs, the newest last.
    deleted: VecDeque<String>,
}

impl ApiPods {
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    pub(crate) fn get(&self, name: &PodName) -> Option<&Arc<Pod>> {
        self.pods.get(name).map(|known| &known.pod)
    }

    /// The mirror that [`Self::get`] gives, as admission made it.
    pub(crate) fn as_made(&self, name: &PodName) -> Option<&Pod> {
        self.pods.get(name)?.as_made.as_deref()
    }

    /// The mirror of this name has to show something else than when it was made.
    pub(crate) fn forget_made(&mut self, name: &PodName) {
        if let Some(known) = self.pods.get_mut(name) {
            known.as_made = None;
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &PodName> {
        self.pods.keys()
    }

    /// Takes over a change and returns the names of pods that are others than before.
    pub(crate) fn apply(&mut self, change: &Change<Pod>, now: Moment) -> Vec<PodName> {
        match change {
            Change::All(pods) => {
                self.is_known = true;
                let listed: BTreeSet<PodName> = pods.iter().map(|pod| PodName::of(pod)).collect();
                let gone = self.pods.keys().filter(|name| !listed.contains(*name));
                let mut changed: Vec<PodName> = gone.cloned().collect();
                self.pods.retain(|name, _| listed.contains(name));
                changed.extend(pods.iter().filter_map(|pod| self.seen(pod, now)));
                changed
            }
            Change::Applied(pod) => self.seen(pod, now).into_iter().collect(),
            Change::Deleted(pod) => {
                let name = PodName::of(pod);
                self.deleted.push_back(uid_text(pod).to_owned());
                if self.deleted.len() > MAX_DELETED {
                    self.deleted.pop_front();
                }
                self.gone(&name, uid_text(pod))
                    .then_some(name)
                    .into_iter()
                    .collect()
            }
            Change::Broken(_) | Change::Resumed => Vec::new(),
        }
    }

    fn seen(&mut self, pod: &Arc<Pod>, now: Moment) -> Option<PodName> {
        let name = PodName::of(pod);
        if let Some(known) = self.pods.get(&name) {
            let is_echo = known.pod.metadata.resource_version == pod.metadata.resource_version
                && uid_text(&known.pod) == uid_text(pod)
                && pod.metadata.resource_version.is_some();
            let lags = known.answered.is_some_and(|at| now.since(at) < LAG) && is_older(pod, &known.pod);
            if is_echo || lags {
                return None;
            }
        }
        self.put(name.clone(), Arc::clone(pod), None);
        Some(name)
    }

    /// The answer to a change of this pod. It counts unless the pod has gone meanwhile, or changed again.
    pub(crate) fn answered(&mut self, pod: Pod, now: Moment) {
        let name = PodName::of(&pod);
        let is_news = self
            .pods
            .get(&name)
            .is_some_and(|known| uid_text(&known.pod) == uid_text(&pod) && !is_older(&pod, &known.pod));
        if is_news {
            self.put(name, Arc::new(pod), Some(now));
        }
    }

    /// The answer to a creation.
    pub(crate) fn created(&mut self, pod: Pod, now: Moment) {
        let name = PodName::of(&pod);
        let is_gone = self.deleted.iter().any(|uid| uid == uid_text(&pod));
        let is_news = self
            .pods
            .get(&name)
            .is_none_or(|known| is_older(&known.pod, &pod));
        let pod = Arc::new(pod);
        if is_news && !is_gone {
            self.put(name.clone(), Arc::clone(&pod), Some(now));
        }
        // The watch may have been faster.
        if let Some(known) = self.pods.get_mut(&name)
            && uid_text(&known.pod) == uid_text(&pod)
        {
            known.as_made = Some(pod);
        }
    }

    /// Forgets the pod if it is still the one with this UID.
    pub(crate) fn gone(&mut self, name: &PodName, uid: &str) -> bool {
        let is_it = self
            .pods
            .get(name)
            .is_some_and(|known| uid_text(&known.pod) == uid);
        if is_it {
            self.pods.remove(name);
        }
        is_it
    }

    fn put(&mut self, name: PodName, pod: Arc<Pod>, answered: Option<Moment>) {
        let before = self.pods.remove(&name);
        let before = before.filter(|known| uid_text(&known.pod) == uid_text(&pod));
        let as_made = match before {
            Some(known) => known.as_made,
            None => is_mirror_pod(&pod).then(|| Arc::clone(&pod)),
        };
        let known = Known {
            pod,
            as_made,
            answered,
        };
        self.pods.insert(name, known);
    }
}

/// Versions are opaque, but numbers in practice: one that is no number is never older.
fn is_older(one: &Pod, other: &Pod) -> bool {
    let number = |pod: &Pod| pod.metadata.resource_version.as_deref()?.parse::<u64>().ok();
    matches!((number(one), number(other)), (Some(one), Some(other)) if one < other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, version: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".to_owned());
        pod.metadata.namespace = Some("default".to_owned());
        pod.metadata.uid = Some(uid.to_owned());
        pod.metadata.resource_version = Some(version.to_owned());
        Arc::new(pod)
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_start(Duration::from_secs(seconds))
    }

    fn shown(pods: &ApiPods) -> Vec<String> {
        let one = |known: &Known| {
            let version = known.pod.metadata.resource_version.clone().unwrap_or_default();
            format!("{}@{version}", uid_text(&known.pod))
        };
        pods.pods.values().map(one).collect()
    }

    #[test]
    fn an_answer_is_not_rolled_back_by_a_watch_that_lags() {
        let mut pods = ApiPods::default();
        assert_eq!(pods.apply(&Change::All(vec![pod("a", "5")]), at(0)).len(), 1);
        pods.answered(Pod::clone(&pod("a", "9")), at(1));
        assert!(pods.apply(&Change::Applied(pod("a", "7")), at(2)).is_empty());
        assert!(pods.apply(&Change::All(vec![pod("a", "8")]), at(2)).is_empty());
        assert!(
            pods.apply(&Change::Applied(pod("a", "9")), at(2)).is_empty(),
            "an echo is no news"
        );
        assert_eq!(shown(&pods), ["a@9"]);
        assert_eq!(pods.apply(&Change::Applied(pod("a", "12")), at(3)).len(), 1);
        // A store that was restored counts from an earlier number.
        pods.answered(Pod::clone(&pod("a", "20")), at(4));
        assert_eq!(pods.apply(&Change::All(vec![pod("a", "2")]), at(60)).len(), 1);
        assert_eq!(shown(&pods), ["a@2"]);
    }

    #[test]
    fn answers_of_pods_that_have_gone_do_not_count() {
        let mut pods = ApiPods::default();
        pods.apply(&Change::All(vec![pod("a", "5")]), at(0));
        assert_eq!(pods.apply(&Change::Deleted(pod("a", "6")), at(1)).len(), 1);
        pods.answered(Pod::clone(&pod("a", "7")), at(1));
        assert!(shown(&pods).is_empty());
        pods.apply(&Change::Applied(pod("b", "8")), at(1));
        pods.answered(Pod::clone(&pod("a", "7")), at(1));
        assert!(
            pods.apply(&Change::Deleted(pod("a", "6")), at(1)).is_empty(),
            "another pod of the name"
        );
        assert_eq!(shown(&pods), ["b@8"]);
    }

    #[test]
    fn a_creation_counts_unless_its_pod_was_deleted_meanwhile() {
        let mut pods = ApiPods::default();
        pods.apply(&Change::All(Vec::new()), at(0));
        pods.created(Pod::clone(&pod("a", "5")), at(0));
        assert_eq!(shown(&pods), ["a@5"]);
        pods.apply(&Change::Deleted(pod("a", "6")), at(1));
        pods.apply(&Change::Deleted(pod("b", "8")), at(1));
        pods.created(Pod::clone(&pod("b", "7")), at(1));
        assert!(shown(&pods).is_empty());
    }

    #[test]
    fn versions_that_are_no_numbers_are_never_older() {
        let mut pods = ApiPods::default();
        pods.apply(&Change::All(vec![pod("a", "x")]), at(0));
        pods.answered(Pod::clone(&pod("a", "y")), at(0));
        assert_eq!(pods.apply(&Change::Applied(pod("a", "a")), at(0)).len(), 1);
        assert_eq!(shown(&pods), ["a@a"]);
    }
}
