//! The room on the node: nobody is let in beyond it, and nobody is kept out who fits.

use k8s_openapi::api::core::v1::Pod;

use super::{Checker, rules};
use crate::node;

impl Checker {
    /// At the instant when a pod begins: with everybody who lives it must fit. What lived when the agent started keeps its
    /// place, whatever it takes, and what is on its way out is not waited for by others. Nor does anybody count who came to
    /// life by a call that was given up: its pod may have lost its place since.
    pub(super) fn check_room(&mut self, uid: &str) {
        let truth = &self.truth;
        if truth.lived_at_start.contains(uid) {
            return;
        }
        let Some(pod) = truth.version(uid).cloned() else {
            return;
        };
        let others = truth.wanted_uids().into_iter().filter(|other| {
            let is_ending = truth.pods.get(other).is_some_and(|pod| pod.is_ending);
            other != uid && truth.lives(other) && !is_ending && !self.may_come_after(other, uid)
        });
        let held: i64 = others
            .filter_map(|other| truth.wanted(&other))
            .filter(|other| rules::pod_name(other) != rules::pod_name(&pod))
            .map(|other| rules::milli_cpu(other))
            .sum();
        let needed = rules::milli_cpu(&pod);
        if needed > 0 && held + needed > node::MILLI_CPU {
            self.violate(format!(
                "{uid} is started and needs {needed}m where {held}m of {}m are taken",
                node::MILLI_CPU
            ));
        }
    }

    /// Whether the newcomer may have been let in before the agent knew that somebody still wants the other one, which lived
    /// when the agent started: its source was slower, or its manifest was put back only later. Until then it is an orphan,
    /// and nobody knows what it needs.
    fn may_come_after(&self, other: &str, newcomer: &str) -> bool {
        if !self.truth.lived_at_start.contains(other) {
            return false;
        }
        let told = |uid: &str| self.truth.pods.get(uid).and_then(|pod| pod.told);
        let (Some(other), Some(new)) = (told(other), told(newcomer)) else {
            return true;
        };
        let comes_with_it = other.by == new.by && other.look <= new.look;
        // A newcomer that was refused still has to be let in.
        let refused_at = self.truth.pods.get(newcomer).and_then(|pod| pod.refused_at);
        let was_known = refused_at.is_some_and(|refused| other.at + self.slack <= refused);
        !comes_with_it && !was_known
    }

    /// A refusal that stands when the world is calm has to be one for want of room.
    pub(super) fn check_refused(&self, pod: &Pod, hanging: Option<&str>) -> Result<(), String> {
        let uid = rules::uid(pod);
        if let Some(instance) = self.truth.running(uid).next() {
            return Err(format!("it is refused, but {} runs", instance.id));
        }
        if self.truth.ready_sandboxes(uid) > 0 {
            return Err("it is refused, but its sandbox is up".to_owned());
        }
        let published = self.truth.published.iter();
        // One that hangs cannot end, also when nobody wants it any more, and keeps its place.
        let is_published = |uid: &str| published.clone().any(|other| rules::uid(other) == uid);
        let hanging = hanging.filter(|uid| !is_published(uid));
        let held: i64 = published
            .clone()
            .filter(|other| !rules::is_refused(other) && !rules::is_terminal(rules::phase(other)))
            .chain(hanging.and_then(|uid| self.truth.version(uid)))
            .map(|other| rules::milli_cpu(other))
            .sum();
        let needed = rules::milli_cpu(pod);
        if held + needed <= node::MILLI_CPU {
            return Err(format!(
                "it is refused, but needs {needed}m where only {held}m of {}m are taken",
                node::MILLI_CPU
            ));
        }
        Ok(())
    }
}
