//! What the API server has, and what the agent was told of it.
//!
//! An object goes by the node's word only when nothing of its pod runs, an end that was written stays, and what stands at the API
//! server when the world is calm is the newest that the agent says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_model::MAX_PERIOD_SECONDS;
use rubelet_ports::api::Change;

use super::truth::{Told, ToldBy};
use super::{Checker, rules};

fn is_mirror(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key("kubernetes.io/config.mirror"))
}

fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// What a status says, without the order of what has none.
fn essence(status: &PodStatus) -> impl PartialEq + '_ {
    let conditions: BTreeMap<&str, (&str, Option<&str>)> = status
        .conditions
        .iter()
        .flatten()
        .map(|one| (one.type_.as_str(), (one.status.as_str(), one.reason.as_deref())))
        .collect();
    (
        (&status.phase, &status.reason, &status.message),
        (&status.start_time, &status.pod_ip, &status.qos_class),
        (&status.container_statuses, &status.init_container_statuses),
        &status.ephemeral_container_statuses,
        conditions,
    )
}

/// Where the object at the API server is not what the agent says, in words.
fn difference(said: &Pod, object: &Pod) -> Option<String> {
    let nothing = PodStatus::default();
    let (ours, theirs) = (said.status.as_ref(), object.status.as_ref());
    if essence(ours.unwrap_or(&nothing)) == essence(theirs.unwrap_or(&nothing)) {
        return None;
    }
    let words = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|status| &status.conditions).flatten();
        let conditions: Vec<String> = conditions
            .map(|one| format!("{}={}", one.type_, one.status))
            .collect();
        format!("{} {} {conditions:?}", rules::phase(pod), rules::summary(pod))
    };
    Some(format!(
        "{} is {} at the API server, the agent says {}",
        rules::uid(said),
        words(object),
        words(said)
    ))
}

impl Checker {
    pub(super) fn api_applied(&mut self, pod: Arc<Pod>) {
        if is_mirror(&pod) {
            self.truth.mirrors.insert(rules::uid(&pod).to_owned(), pod);
            return;
        }
        let (uid, phase) = (rules::uid(&pod).to_owned(), rules::phase(&pod).to_owned());
        let before = self.truth.api.insert(uid.clone(), Arc::clone(&pod));
        if let Some(before) = before {
            let before = rules::phase(&before);
            if rules::is_terminal(before) && before != phase {
                self.violate(format!("{uid} was {before} at the API server and is {phase:?}"));
            }
        }
        if rules::is_terminal(&phase) {
            self.check_nothing_runs(&uid, &phase);
        }
        let truth = self.truth.pod(&uid);
        let is_bare = rules::statuses(&pod).next().is_none();
        if is_bare {
            // What it has lost, a life that has not looked yet cannot know either.
            truth.restarts_said.clear();
        }
        truth.is_api = true;
        truth.name = rules::pod_name(&pod).to_owned();
        truth.deletion_graces.extend(
            pod.metadata
                .deletion_grace_period_seconds
                .map(|grace| grace.min(MAX_PERIOD_SECONDS)),
        );
        let is_new = truth.versions.last().is_none_or(|last| last.spec != pod.spec);
        if is_new {
            truth.versions.push(pod);
        }
    }

    pub(super) fn api_removed(&mut self, uid: &str, by_node: bool) {
        self.truth.mirrors.remove(uid);
        if self.truth.api.remove(uid).is_none() {
            return;
        }
        self.truth.pod(uid).absent_in_life = true;
        if by_node {
            self.check_nothing_runs(uid, "gone");
        }
    }

    pub(super) fn api_told(&mut self, at: Duration, change: Change<Pod>) {
        self.truth.api_changes += 1;
        match change {
            Change::All(pods) => {
                self.truth.api_listed_in_life = true;
                self.note_sources(at);
                let known = std::mem::take(&mut self.truth.told_by_api);
                for pod in pods {
                    self.api_told_one(at, &pod);
                }
                for uid in known.keys() {
                    self.learn_removal(at, uid);
                }
            }
            Change::Applied(pod) => self.api_told_one(at, &pod),
            Change::Deleted(pod) => {
                let uid = rules::uid(&pod);
                self.truth.told_by_api.remove(uid);
                if !is_mirror(&pod) {
                    self.learn_removal(at, uid);
                }
            }
            Change::Broken(_) | Change::Resumed => {}
        }
    }

    fn api_told_one(&mut self, at: Duration, pod: &Arc<Pod>) {
        if is_mirror(pod) {
            return;
        }
        let uid = rules::uid(pod).to_owned();
        let shown = &mut self.truth.pod(&uid).shown;
        shown.rotate_right(1);
        shown[0] = Some(Arc::clone(pod));
        if pod.spec.is_none() {
            self.truth.pod(&uid).undecoded_in_life = true;
        }
        if !is_deleted(pod) && pod.spec.is_none() {
            // It is left as it runs.
            return;
        }
        if !is_deleted(pod) {
            self.truth.told_by_api.insert(uid, Arc::clone(pod));
            let told = Told {
                at,
                by: ToldBy::Api,
                look: self.truth.api_changes,
            };
            return self.learn_pod(told, pod);
        }
        self.truth.told_by_api.remove(&uid);
        let truth = self.truth.pod(&uid);
        truth.first_told.get_or_insert(at);
        truth.told_in_life = true;
        // Its end does not wait for other sources.
        truth.end_began.get_or_insert(at);
        self.learn_removal(at, &uid);
    }

    /// What is at the API server and should not be, or is not what the agent says.
    pub(super) fn api_unsettled(&self) -> Vec<String> {
        let mut open = Vec::new();
        for (uid, pod) in &self.truth.api {
            if is_deleted(pod) {
                open.push(format!("{uid} is deleted and still at the API server"));
                continue;
            }
            let said = self.truth.published.iter().find(|said| rules::uid(said) == uid);
            open.extend(said.and_then(|said| difference(said, pod)));
        }
        open
    }

    /// Whether the API server shows what the agent says of this pod.
    ///
    /// # Errors
    /// With the difference.
    pub fn check_reported(&self, uid: &str) -> Result<(), String> {
        let is_it = |said: &&Arc<Pod>| rules::uid(said) == uid;
        let (Some(said), Some(object)) = (self.truth.published.iter().find(is_it), self.truth.api.get(uid))
        else {
            return Err(format!("{uid} is not published, or not at the API server"));
        };
        difference(said, object).map_or(Ok(()), Err)
    }

    /// Static pods of a cluster that others cannot see there, or not as they are.
    pub(super) fn mirrors_unsettled(&self, hanging: Option<&str>) -> Vec<String> {
        if !self.truth.has_api {
            return Vec::new();
        }
        let is_static = |pod: &&Arc<Pod>| {
            let truth = self.truth.pods.get(rules::uid(pod));
            truth.is_some_and(|truth| !truth.is_api) && Some(rules::uid(pod)) != hanging
        };
        let mut open = Vec::new();
        for said in self.truth.published.iter().filter(is_static) {
            let uid = rules::uid(said);
            let mut mirrors = self.truth.mirrors.values();
            match mirrors.find(|mirror| rules::pod_name(mirror) == rules::pod_name(said)) {
                None => open.push(format!("{uid} has no object at the API server")),
                // One that is refused may still start: until then it has not ended for others.
                Some(_) if rules::is_refused(said) => {}
                // An end is an end there, also when a later life starts the pod again.
                Some(mirror) if rules::is_terminal(rules::phase(mirror)) => {}
                Some(mirror) => open.extend(difference(said, mirror)),
            }
        }
        open
    }
}
