//! The room on the node: nobody is let in beyond it, and nobody is kept out who fits.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::pod_state::kill_timeout;

use super::{Checker, rules};
use crate::node;

impl Checker {
    /// At the instant when a pod begins: with everything that lives it must fit, also with pods that terminate and have not
    /// missed their time to end. What lived when the agent started keeps its place, whatever it takes. Nor does a pod count
    /// that came to life by a call that was given up: it may have lost its place since.
    pub(super) fn check_room(&mut self, at: Duration, uid: &str) {
        let truth = &self.truth;
        if truth.lived_at_start.contains(uid) {
            return;
        }
        let Some(pod) = truth.version(uid).cloned() else {
            return;
        };
        let others = truth.pods.keys().filter(|other| {
            other.as_str() != uid && self.holds_room(at, other) && !self.may_come_after(other, uid)
        });
        let held: i64 = others
            .filter_map(|other| truth.version(other))
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

    fn holds_room(&self, at: Duration, uid: &str) -> bool {
        let truth = &self.truth;
        if !truth.lives(uid) {
            return false;
        }
        // The agent may have judged it anew when a list lacked it.
        if truth.pods.get(uid).is_some_and(|pod| pod.left_out_in_life) && truth.lived_at_start.contains(uid) {
            return false;
        }
        // One that was put back goes on ending, also before its stop was asked for.
        let is_ending = truth.pods.get(uid).is_some_and(|pod| pod.end_began.is_some());
        if truth.wanted(uid).is_some() && !is_ending {
            return true;
        }
        // What the agent found alive, it may know without its definition; and what came late, it may not know.
        let is_late = truth.running(uid).any(|instance| instance.is_late);
        !truth.lived_at_start.contains(uid) && !is_late && self.is_waited_for(at, uid)
    }

    /// Whether a pod that terminates is within its time to end, so that others wait for it.
    fn is_waited_for(&self, at: Duration, uid: &str) -> bool {
        let pod = self.truth.pods.get(uid);
        let began = pod.and_then(|pod| pod.end_began);
        let graces = pod.into_iter().flat_map(|pod| &pod.versions);
        let shortest = graces.map(|pod| rules::grace_seconds(pod)).min();
        began
            .zip(shortest)
            .is_some_and(|(began, grace_seconds)| at < began + kill_timeout(grace_seconds))
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
    pub(super) fn check_refused(&self, pod: &Pod) -> Result<(), String> {
        let uid = rules::uid(pod);
        if let Some(instance) = self.truth.running(uid).next() {
            return Err(format!("it is refused, but {} runs", instance.id));
        }
        if self.truth.ready_sandboxes(uid) > 0 {
            return Err("it is refused, but its sandbox is up".to_owned());
        }
        let published = self.truth.published.iter();
        // A removed pod that hangs has missed its time to end by now, and holds nothing against others.
        let held: i64 = published
            .filter(|other| !rules::is_refused(other) && !rules::is_terminal(rules::phase(other)))
            .map(|other| rules::milli_cpu(other))
            .sum();
        let needed = rules::milli_cpu(pod);
        // One that was resized before it was admitted may have asked for more memory than there is.
        if self.asked_for_too_much(uid) {
            return Ok(());
        }
        if held + needed <= node::MILLI_CPU {
            return Err(format!(
                "it is refused, but needs {needed}m where only {held}m of {}m are taken",
                node::MILLI_CPU
            ));
        }
        Ok(())
    }
}
