//! What the agent asks the runtime for, at the instant when the call leaves it.

use std::path::Path;
use std::time::Duration;

use rubelet_lifecycle::configuration::log_paths::uid_of_logs_dir;

use super::truth::{CreateAsked, Instance, SandboxAsked, State, StopAsked};
use super::{Checker, rules};
use crate::history::Ask;
use crate::node;

/// The least that a runtime is ever given.
const LEAST_GRACE_SECONDS: i64 = 2;
/// A container that started this shortly before a stop may not have been seen by whoever planned it.
const UNSEEN: Duration = Duration::from_secs(5);
/// How long the first static pods of a life of rubelet wait: for the runtime's list, and then for their mirrors.
const STATIC_PODS_HELD: Duration = Duration::from_secs(20);
/// How much earlier than it seems the end of a pod may have begun.
const ORDER_SLACK: Duration = Duration::from_secs(1);
/// Rounding of seconds, and the way from one task to another.
const ROUNDING_SECONDS: i64 = 2;

impl Checker {
    pub(super) fn asked(&mut self, at: Duration, ask: Ask) {
        self.check_asks(at, &ask);
        match ask {
            Ask::RunSandbox { uid, attempt } => {
                self.check_start(at, &uid, "RunPodSandbox");
                self.check_room(at, &uid);
                let life = self.truth.life;
                let pod = self.truth.pod(&uid);
                let asked = SandboxAsked {
                    incarnation: pod.asking_incarnation(),
                    life,
                    follows_lost: attempt > 0 && pod.lost_sandboxes,
                };
                pod.sandboxes_asked.insert(attempt, asked);
            }
            Ask::Create {
                sandbox,
                name,
                attempt,
            } => self.create_asked(at, &sandbox, name, attempt),
            Ask::Start { id } => {
                if let Some(instance) = self.truth.instances.get(&id) {
                    let uid = instance.uid.clone();
                    self.check_start(at, &uid, &format!("StartContainer {id}"));
                }
            }
            Ask::Update { .. } => {}
            Ask::Hook { id, kind } => self.hook_asked(at, &id, kind),
            Ask::Stop { id, grace_seconds } => self.stop_asked(at, &id, grace_seconds),
            Ask::StopSandbox { id } => self.sandbox_end_asked(at, &id, "StopPodSandbox"),
            Ask::RemoveSandbox { id } => self.sandbox_end_asked(at, &id, "RemovePodSandbox"),
            Ask::Remove { id } => {
                let Some(instance) = self.truth.instances.get(&id).cloned() else {
                    return;
                };
                self.check_sources(&instance.uid, &format!("RemoveContainer {id}"));
                if instance.is_running() {
                    self.check_reason(at, &instance, "RemoveContainer");
                    self.check_was_stopped(at, &instance, "removed");
                }
            }
        }
    }

    fn create_asked(&mut self, at: Duration, sandbox: &str, name: String, attempt: u32) {
        let Some(uid) = self.truth.sandboxes.get(sandbox).map(|one| one.uid.clone()) else {
            return;
        };
        self.truth.note_reset(&uid);
        self.check_start(at, &uid, &format!("CreateContainer {name}"));
        self.check_volumes(&uid, &name);
        self.check_initialized(&uid, sandbox, &name);
        self.check_sidecars_started(&uid, &name);
        let life = self.truth.life;
        let pod = self.truth.pod(&uid);
        let asked = CreateAsked {
            incarnation: pod.asking_incarnation(),
            life,
        };
        pod.creates_asked.insert((name, attempt), asked);
    }

    /// A container is about to be made: every init container before it has done its part in this sandbox. One that ends has
    /// ended well, one that stays was started.
    fn check_initialized(&mut self, uid: &str, sandbox: &str, name: &str) {
        let Some(pod) = self.truth.version(uid) else {
            return;
        };
        if rules::is_ephemeral(pod, name) {
            return;
        }
        let resets = self.truth.pods.get(uid).map_or(0, |pod| pod.resets);
        let is_done = |init: &str| {
            let stays = rules::is_sidecar(pod, init);
            self.truth.instances.values().any(|one| {
                let is_here = one.name == init && one.sandbox == sandbox && one.resets == resets;
                let has_succeeded = matches!(one.state, State::Ended { code: 0, .. });
                is_here && if stays { one.ran } else { has_succeeded }
            })
        };
        let before = rules::init_containers(pod)
            .iter()
            .take_while(|one| one.name != name);
        let missing = before.map(|one| one.name.as_str()).find(|one| !is_done(one));
        if let Some(missing) = missing {
            let sentence = format!("CreateContainer {name} of {uid} before {missing} has done its part");
            self.violate(sentence);
        }
    }

    /// Nothing is started of a pod that the agent could know to be gone, or that ended for good.
    fn check_start(&mut self, at: Duration, uid: &str, what: &str) {
        if self
            .truth
            .version(uid)
            .is_some_and(|pod| rules::needs_driver(pod))
        {
            self.violate(format!(
                "{what} for {uid}, which waits for the driver of its volume"
            ));
        }
        let is_told = self.truth.told_version(uid).is_some();
        let slack = self.slack;
        let pod = self.truth.pod(uid).clone();
        // Nobody is removed before all sources have delivered, and the first static pods are held for the runtime's list and
        // for their mirrors.
        let complete = self.truth.complete_since.unwrap_or(at) + STATIC_PODS_HELD;
        let learnt = pod.removal_learnt.map(|learnt| learnt.max(complete));
        match (is_told, learnt) {
            (true, _) => {}
            (false, Some(learnt)) if at.saturating_sub(learnt) <= slack => {}
            (false, Some(learnt)) => {
                let late = at.saturating_sub(learnt);
                self.violate(format!(
                    "{what} for {uid}, {:.3} s after the agent could know of its removal",
                    late.as_secs_f64()
                ));
            }
            (false, None) => self.violate(format!("{what} for {uid}, of which no source told")),
        }
        if pod.may_be_reborn && pod.terminal.is_some() {
            let truth = self.truth.pod(uid);
            truth.may_be_reborn = false;
            truth.terminal = None;
        } else if let Some((phase, said_in)) = &pod.terminal {
            let version = self.truth.version(uid);
            let has_deadline = version.is_some_and(|pod| rules::deadline_seconds(pod).is_some());
            // Only a later life has to find out again, from what the runtime still has.
            let may_forget = *said_in != self.truth.life && (pod.had_loss || has_deadline);
            if !may_forget {
                self.violate(format!("{what} for {uid}, which is {phase}"));
            }
        }
        if pod.is_ending && is_told {
            let old: Vec<String> = self
                .truth
                .running(uid)
                .filter(|instance| instance.incarnation < pod.incarnation)
                .map(|instance| instance.id.clone())
                .collect();
            if !old.is_empty() {
                self.violate(format!(
                    "{what} for {uid}, which was added again, while {old:?} of before run"
                ));
            }
            let truth = self.truth.pod(uid);
            truth.is_ending = false;
            truth.end_began = None;
        }
    }

    /// Before every source has delivered, nothing goes that no source told of in this life, except what a static pod replaces.
    pub(super) fn check_sources(&mut self, uid: &str, what: &str) {
        let is_known = self.truth.pods.get(uid).is_some_and(|pod| pod.told_in_life);
        if !self.truth.has_all_sources() && !is_known && !self.truth.is_replaced(uid) {
            self.violate(format!("{what} of {uid} before all sources delivered"));
        }
    }

    pub(super) fn tree_removed(&mut self, path: &Path) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return;
        };
        let parent = path.parent();
        let uid = if parent == Some(Path::new(node::POD_LOGS)) {
            uid_of_logs_dir(name)
        } else if parent == Some(&Path::new(node::ROOT).join("pods")) {
            name
        } else {
            return;
        };
        let uid = uid.to_owned();
        self.check_sources(&uid, &format!("removal of {}", path.display()));
        if self.truth.running(&uid).next().is_some() {
            self.violate(format!("{} is removed while containers run", path.display()));
        }
    }

    fn stop_asked(&mut self, at: Duration, id: &str, grace_seconds: i64) {
        let life = self.truth.life;
        let Some(instance) = self.truth.instances.get(id).cloned() else {
            return;
        };
        self.check_sources(&instance.uid, &format!("StopContainer {id}"));
        if instance.is_running() {
            self.check_reason(at, &instance, "StopContainer");
            self.check_pre_stop(&instance);
            self.check_grace(at, &instance, grace_seconds);
            self.check_order(at, &instance);
        }
        let for_probes = self.fails_probes(&instance);
        if let Some(instance) = self.truth.instances.get_mut(id) {
            instance.stops.push(StopAsked {
                life,
                at,
                grace_seconds,
                for_probes,
            });
        }
        let pod = self.truth.pod(&instance.uid);
        pod.first_stop.get_or_insert(at);
        if pod.removal_learnt.is_some() && pod.end_began.is_some() {
            pod.is_ending = true;
        }
    }

    fn sandbox_end_asked(&mut self, at: Duration, id: &str, what: &str) {
        let Some(sandbox) = self.truth.sandboxes.get(id).cloned() else {
            return;
        };
        self.check_sources(&sandbox.uid, &format!("{what} {id}"));
        let running: Vec<Instance> = self.truth.running_in(id).cloned().collect();
        for instance in &running {
            self.check_reason(at, instance, what);
            self.check_was_stopped(at, instance, "killed with its sandbox");
        }
        // One that came late may belong to a pod that has lost its place.
        if running.is_empty()
            && sandbox.is_ready
            && !sandbox.is_late
            && !sandbox.is_unreadable
            && self.truth.ready_sandboxes(&sandbox.uid) == 1
        {
            self.check_pod_reason(at, &sandbox.uid, &format!("{what} {id}"));
        }
    }

    /// A process gets its stop signal and its grace before it is killed.
    fn check_was_stopped(&mut self, at: Duration, instance: &Instance, what: &str) {
        let life = self.truth.life;
        let mut stops = instance.stops.iter().filter(|stop| stop.life == life);
        let was_asked = stops.clone().next().is_some();
        let had_its_time = stops.any(|stop| {
            let grace = Duration::from_secs(stop.grace_seconds.max(0).unsigned_abs());
            stop.at + grace <= at
        });
        if was_asked && !had_its_time {
            self.violate(format!(
                "{} {} of {} is {what} before its grace is over",
                instance.id, instance.name, instance.uid
            ));
        }
        let is_unseen = match instance.state {
            // Whoever looked a moment before saw it as created, and knew of nobody who starts it.
            State::Running { since } => instance.is_late && at.saturating_sub(since) <= UNSEEN,
            State::Created | State::Ended { .. } => true,
        };
        if !was_asked && !instance.call_failed && !is_unseen {
            self.violate(format!(
                "{} {} of {} is {what} without a stop before",
                instance.id, instance.name, instance.uid
            ));
        }
    }

    /// A container that runs is stopped only for a reason that the world shows.
    fn check_reason(&mut self, at: Duration, instance: &Instance, what: &str) {
        let truth = &self.truth;
        let newest = truth.newest_instance(&instance.uid, &instance.name);
        // A call of an earlier life may bring forth an instance with a higher number later.
        let is_outnumbered = truth.instances.values().any(|other| {
            other.uid == instance.uid
                && other.name == instance.name
                && other.attempt > instance.attempt
                && other.life < truth.life
                && !matches!(other.state, State::Ended { .. })
        });
        let is_superseded = is_outnumbered || newest.is_some_and(|newest| newest.id != instance.id);
        let lives_in_ready = truth
            .sandboxes
            .get(&instance.sandbox)
            .is_some_and(|sandbox| sandbox.is_ready && !sandbox.is_unreadable);
        let versions = [truth.wanted(&instance.uid), truth.told_version(&instance.uid)];
        let is_changed = versions
            .into_iter()
            .flatten()
            .any(|pod| rules::image(pod, &instance.name) != Some(instance.image.as_str()));
        let is_resized = self.is_restarted_for_memory(instance);
        if is_superseded || !lives_in_ready || is_changed || is_resized || self.is_unwell(instance) {
            return;
        }
        let what = format!("{what} {} {}", instance.id, instance.name);
        self.check_pod_reason(at, &instance.uid, &what);
    }

    /// Reasons that concern a pod as a whole.
    fn check_pod_reason(&mut self, at: Duration, uid: &str, what: &str) {
        let truth = &self.truth;
        let Some(pod) = truth.pods.get(uid) else {
            return;
        };
        let Some(version) = truth.version(uid) else {
            return;
        };
        let deadline_passed = rules::deadline_seconds(version).is_some_and(|seconds| {
            let allowed = Duration::from_secs(seconds.unsigned_abs().saturating_sub(1));
            truth.clock_moved
                || pod
                    .first_told
                    .is_some_and(|told| at.saturating_sub(told) >= allowed)
        });
        // Rubelet remembers ends of containers that the runtime has forgotten.
        let may_be_complete = pod.had_loss
            && !truth.running(uid).any(|one| {
                rules::regular_containers(version)
                    .iter()
                    .any(|regular| regular.name == one.name)
            });
        let is_fine = may_be_complete
            || pod.absent_in_life
            || truth.wanted(uid).is_none()
            || deadline_passed
            || pod.is_resetting
            || truth.ready_sandboxes(uid) > 1
            || truth.is_complete(version)
            || pod.left_out_in_life && pod.refused_at.is_some()
            || self.is_doomed(version);
        if !is_fine {
            self.violate(format!("{what} of {uid} without any reason"));
        }
    }

    /// The grace is what the pod asks for, less the time that waiting took, and a later one is never longer.
    fn check_grace(&mut self, at: Duration, instance: &Instance, grace_seconds: i64) {
        let life = self.truth.life;
        // A stop for another reason, before the pod had to end, is no measure.
        let end_began = self.truth.pod(&instance.uid).end_began.unwrap_or_default();
        let last = instance
            .stops
            .iter()
            .rev()
            .find(|stop| stop.life == life && stop.at >= end_began);
        // A sidecar's turn uses up a part of its grace, another one at each try.
        let is_sidecar = self
            .truth
            .version(&instance.uid)
            .is_some_and(|pod| rules::is_sidecar(pod, &instance.name));
        if let Some(last) = last.filter(|last| grace_seconds > last.grace_seconds && !is_sidecar) {
            let sentence = format!(
                "the grace of {} {} grew from {} s to {grace_seconds} s after {:?}",
                instance.id,
                instance.name,
                last.grace_seconds,
                at.saturating_sub(last.at)
            );
            self.violate(sentence);
        }
        let pod = self.truth.pod(&instance.uid).clone();
        let own = pod.versions.iter().map(|pod| rules::grace_seconds(pod));
        let graces = own.chain(pod.deletion_graces.iter().copied());
        let (Some(least), Some(most)) = (graces.clone().min(), graces.max()) else {
            return;
        };
        if grace_seconds > most.max(LEAST_GRACE_SECONDS) {
            self.violate(format!(
                "{} {} gets {grace_seconds} s of grace, its pod asks for {most} s",
                instance.id, instance.name
            ));
        }
        // Only of a pod that was removed under this life it is known when its end began. A source may have read of it and never
        // delivered it, while another file was slow: then it is an orphan.
        let Some(learnt) = pod.end_began.filter(|_| pod.published_in_life) else {
            return;
        };
        // An end that began for another reason before the removal has used up more of it. A restart of all containers may go on
        // until it hears of the removal.
        let may_reset = self.may_reset(&instance.uid);
        let began = if pod.is_resetting {
            learnt + self.slack
        } else {
            learnt
        };
        let began_before = self
            .truth
            .instances
            .values()
            .filter(|other| other.uid == instance.uid)
            .any(|other| other.ends_asked(life).any(|at| at < began));
        // So has one for its deadline, of which a hook that sleeps shows nothing.
        let mut versions = pod.versions.iter();
        let has_deadline = versions.any(|pod| rules::deadline_seconds(pod).is_some());
        // What ran before its manifest came was being stopped as an orphan.
        let is_told_late = pod
            .told
            .zip(self.truth.complete_since)
            .is_some_and(|(told, since)| told.at > since);
        let was_orphan = is_told_late && self.truth.lived_at_start.contains(&instance.uid);
        if may_reset || began_before || has_deadline || was_orphan {
            return;
        }
        let used = i64::try_from(at.saturating_sub(learnt).as_secs()).unwrap_or(i64::MAX);
        let expected = least.saturating_sub(used).saturating_sub(ROUNDING_SECONDS);
        if grace_seconds < expected {
            self.violate(format!(
                "{} {} gets {grace_seconds} s of grace, {expected} s were left",
                instance.id, instance.name
            ));
        }
    }

    /// A sidecar of a pod that ends is stopped after the regular containers and after the sidecars behind it, unless the grace is used up.
    fn check_order(&mut self, at: Duration, instance: &Instance) {
        let pod = self.truth.pod(&instance.uid).clone();
        let (Some(learnt), [version]) = (pod.end_began, pod.versions.as_slice()) else {
            return;
        };
        let is_known = pod.published_in_life && !pod.undecoded_in_life;
        if !is_known || !rules::is_sidecar(version, &instance.name) {
            return;
        }
        // An end that began for another reason before the removal goes on.
        let life = self.truth.life;
        let of_pod = self.truth.running(&instance.uid);
        let ends = of_pod.flat_map(|other| other.ends_asked(life));
        let began = ends.min().unwrap_or(learnt).min(learnt);
        let shortest = pod.deletion_graces.iter().copied().min();
        let grace = shortest.map_or(rules::grace_seconds(version), |least| {
            least.min(rules::grace_seconds(version))
        });
        let grace = Duration::from_secs(grace.unsigned_abs());
        // The agent may learn of a removal by the event of the folder, a moment before it has the listing.
        if at.saturating_sub(began) + ORDER_SLACK >= grace {
            return;
        }
        let place = |name: &str| {
            rules::init_containers(version)
                .iter()
                .position(|container| container.name == name)
        };
        let own = place(&instance.name);
        let early = self.truth.running(&instance.uid).find(|other| {
            let comes_first = match place(&other.name) {
                Some(_) => rules::is_sidecar(version, &other.name) && place(&other.name) > own,
                None => !rules::is_ephemeral(version, &other.name),
            };
            let is_seen = match other.state {
                State::Running { since } => at.saturating_sub(since) > UNSEEN,
                State::Created | State::Ended { .. } => false,
            };
            comes_first && is_seen
        });
        if let Some(early) = early {
            let sentence = format!(
                "the sidecar {} {} is stopped while {} {} runs, {:?} after its pod's end began",
                instance.id,
                instance.name,
                early.id,
                early.name,
                at.saturating_sub(began)
            );
            self.violate(sentence);
        }
    }
}
