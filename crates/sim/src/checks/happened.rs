//! What really happened in the runtime.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::handlers::Handled;
use super::truth::{Instance, SandboxTruth, State};
use super::{Checker, rules};
use crate::history::{Cause, Fact, Limits};

/// So many failures within the time: rubelet asks that often in a row before it gives the sandbox up.
const STATUS_TRIES: usize = 4;
const STATUS_TIME: Duration = Duration::from_secs(15);

impl Checker {
    pub(super) fn sandbox_ready(&mut self, fact: Fact) {
        let Fact::SandboxReady {
            id,
            uid,
            attempt,
            is_late,
        } = fact
        else {
            return;
        };
        let life = self.truth.life;
        let pod = self.truth.pod(&uid);
        pod.lost_sandboxes = false;
        // A call for a pod that was removed since may have its effect beside what was made for its successor of the same
        // identity: only the runtime knew of it. So may a call of an earlier life whose number came from what the runtime had
        // lost: this life could not count on from there, and has asked already.
        let has_asked = pod.sandboxes_asked.values().any(|asked| asked.life == life);
        let is_leftover = pod.sandboxes_asked.get(&attempt).is_some_and(|asked| {
            let is_unknown = asked.follows_lost && asked.life < life && has_asked;
            asked.incarnation < pod.incarnation || is_unknown
        });
        let twin = self
            .truth
            .sandboxes
            .iter()
            .find(|(_, other)| {
                other.uid == uid && other.is_ready && !other.is_leftover && !other.is_unreadable
            })
            .map(|(twin, _)| twin.clone());
        if let Some(twin) = twin.filter(|_| !is_leftover) {
            self.violate(format!("{uid} has two sandboxes: {twin} and {id}"));
        }
        self.truth.sandboxes.insert(
            id,
            SandboxTruth {
                uid,
                is_ready: true,
                is_late,
                is_leftover,
                is_unreadable: false,
                failures: Vec::new(),
            },
        );
    }

    pub(super) fn sandbox_stopped(&mut self, id: &str) {
        if let Some(sandbox) = self.truth.sandboxes.get_mut(id) {
            sandbox.is_ready = false;
        }
    }

    /// A call about a container or a sandbox failed. A sandbox about which several in a row do may count as unreadable,
    /// and its pod gets a new one, or ends where its policy forbids that.
    pub(super) fn call_failed(&mut self, at: Duration, subject: &str) {
        if let Some(instance) = self.truth.instances.get_mut(subject) {
            instance.call_failed = true;
        }
        if let Some(sandbox) = self.truth.sandboxes.get_mut(subject) {
            sandbox.failures.push(at);
            sandbox
                .failures
                .retain(|failure| at.saturating_sub(*failure) < STATUS_TIME);
            if sandbox.failures.len() >= STATUS_TRIES {
                sandbox.is_unreadable = true;
                let uid = sandbox.uid.clone();
                self.truth.pod(&uid).had_loss = true;
            }
        }
    }

    pub(super) fn network_lost(&mut self, id: &str) {
        let Some(sandbox) = self.truth.sandboxes.get_mut(id) else {
            return;
        };
        sandbox.is_unreadable = true;
        let uid = sandbox.uid.clone();
        // It may get a new sandbox, or end where its policy forbids that.
        self.truth.pod(&uid).had_loss = true;
    }

    pub(super) fn state_lost(&mut self) {
        self.truth.instances.clear();
        self.truth.by_age.clear();
        self.truth.sandboxes.clear();
        for pod in self.truth.pods.values_mut() {
            pod.had_loss = true;
            pod.lost_sandboxes = true;
        }
    }

    pub(super) fn created(&mut self, fact: Fact) {
        let Fact::Created {
            id,
            sandbox,
            uid,
            name,
            attempt,
            image,
            is_late,
        } = fact
        else {
            return;
        };
        self.truth.note_replaced(&uid, &name);
        self.truth.note_reset(&uid);
        let pod = self.truth.pod(&uid);
        let asked = pod.creates_asked.get(&(name.clone(), attempt));
        let incarnation = asked.map_or_else(|| pod.asking_incarnation(), |asked| asked.incarnation);
        let resets = pod.resets;
        let of_name = (uid.clone(), name.clone());
        self.truth.by_age.entry(of_name).or_default().push(id.clone());
        let instance = Instance {
            id: id.clone(),
            uid,
            name,
            sandbox,
            image,
            attempt,
            incarnation,
            resets,
            life: self.truth.life,
            ran: false,
            is_late,
            is_removed: false,
            state: State::Created,
            stops: Vec::new(),
            call_failed: false,
            handled: Handled::default(),
            limits: Limits::default(),
        };
        self.truth.instances.insert(id, instance);
    }

    pub(super) fn removed(&mut self, id: &str) {
        // The instance stays known: whether a container may run again depends on how its last instance ended.
        let Some(instance) = self.truth.instances.get_mut(id) else {
            return;
        };
        instance.is_removed = true;
        if instance.state == State::Created {
            self.truth.instances.remove(id);
            for ids in self.truth.by_age.values_mut() {
                ids.retain(|known| known != id);
            }
        }
    }

    pub(super) fn ended(&mut self, at: Duration, id: &str, code: i32, cause: Cause) {
        let Some(instance) = self.truth.instances.get_mut(id) else {
            return;
        };
        instance.state = State::Ended { code, cause, at };
        let instance = instance.clone();
        let uid = instance.uid.clone();
        if self.truth.asks_for_all(&instance) {
            self.truth.pod(&uid).is_resetting = true;
        }
        if cause == Cause::Lost {
            self.truth.pod(&uid).had_loss = true;
        }
    }

    pub(super) fn started(&mut self, at: Duration, id: &str, is_late: bool) {
        let Some(instance) = self.truth.instances.get_mut(id) else {
            return;
        };
        instance.state = State::Running { since: at };
        instance.ran = true;
        instance.is_late = is_late;
        let instance = instance.clone();
        self.check_cgroup(&instance);
        self.check_single(&instance);
        self.check_policy(&instance);
        self.check_starts(at, &instance);
    }

    /// A container that rubelet starts runs in its pod's cgroup. A start that an earlier life has asked for may come late, and
    /// so may one that was given up: its pod may have ended since, with its cgroup.
    fn check_cgroup(&mut self, instance: &Instance) {
        let is_of_this_life = instance.life == self.truth.life && !instance.is_late;
        if is_of_this_life && !instance.call_failed && !self.truth.cgroups.contains(&instance.uid) {
            self.violate(format!(
                "{} of {} runs without a cgroup of its pod",
                instance.id, instance.uid
            ));
        }
    }

    pub(super) fn cgroup_gone(&mut self, uid: &str) {
        self.truth.cgroups.remove(uid);
        self.check_sources(uid, "removal of the cgroup");
        let running = self.truth.running(uid).next().map(|instance| instance.id.clone());
        if let Some(id) = running {
            self.violate(format!("the cgroup of {uid} was removed while {id} ran in it"));
        }
    }

    /// One running instance of a name, and one pod of a name.
    fn check_single(&mut self, instance: &Instance) {
        let twin = self
            .truth
            .running(&instance.uid)
            .find(|other| other.id != instance.id && other.name == instance.name)
            .map(|other| other.id.clone());
        if let Some(twin) = twin {
            self.violate(format!(
                "two instances of {} of {} run: {} and {twin}",
                instance.name, instance.uid, instance.id
            ));
        }
        if instance.is_late {
            // Its pod may have ended since it was asked for, so that others have the name. That it is stopped is asked for by
            // the checks of the calm world.
            return;
        }
        if self.truth.pod(&instance.uid).is_api {
            // Only static pods of one name run one after the other.
            return;
        }
        let name = self.truth.pod(&instance.uid).name.clone();
        // What an earlier life of rubelet left is an orphan, and nobody waits for orphans.
        let namesake = self.truth.pods.iter().find(|(uid, pod)| {
            **uid != instance.uid
                && pod.name == name
                && pod.told_in_life
                && !pod.is_api
                && self.truth.running(uid).any(|other| !other.is_late)
        });
        if let Some((uid, _)) = namesake {
            let sentence = format!(
                "pods {uid} and {} of the name {name} run at the same time",
                instance.uid
            );
            self.violate(sentence);
        }
    }

    /// A container that ended for good does not run again, unless it was replaced by another or all of its pod are restarted.
    fn check_policy(&mut self, instance: &Instance) {
        let Some(pod) = self.truth.version(&instance.uid).cloned() else {
            return;
        };
        let is_ephemeral = rules::is_ephemeral(&pod, &instance.name);
        let truth = self.truth.pod(&instance.uid);
        if is_ephemeral && !truth.had_loss {
            return self.check_runs_once(instance);
        }
        if truth.had_loss {
            return;
        }
        let before = self
            .truth
            .instances
            .values()
            .filter(|other| {
                other.uid == instance.uid
                    && other.name == instance.name
                    && other.id != instance.id
                    && other.incarnation == instance.incarnation
                    && other.resets == instance.resets
                    && other.state != State::Created
            })
            .max_by_key(|other| other.attempt);
        let Some(before) = before else {
            return;
        };
        let State::Ended { code, .. } = before.state else {
            return;
        };
        let is_for_another = rules::is_init(&pod, &instance.name) && self.any_restarts(&pod);
        let in_new_sandbox =
            before.sandbox != instance.sandbox && (rules::pod_policy(&pod) != "Never" || is_for_another);
        // A source may be late with the news that the pod was removed and added again: then all of it goes before it begins.
        let was_reborn = self
            .truth
            .pods
            .get(&instance.uid)
            .is_some_and(|pod| pod.incarnation > 0);
        let begins_again = was_reborn && before.is_removed && before.sandbox != instance.sandbox;
        let has_new_image = before.image != instance.image;
        let is_replaced = has_new_image || self.is_replaced(&pod, before, instance);
        if rules::restarts(&pod, &instance.name, code) || in_new_sandbox || is_replaced || begins_again {
            return;
        }
        let sentence = format!(
            "{} of {} runs again as {} though it ended for good with {code} as {}",
            instance.name, instance.uid, instance.id, before.id
        );
        self.violate(sentence);
    }

    /// Whether a regular container's last end asks for another life of it.
    fn any_restarts(&self, pod: &Pod) -> bool {
        rules::regular_containers(pod).iter().any(|container| {
            let newest = self.truth.newest_instance(rules::uid(pod), &container.name);
            matches!(newest.map(|newest| newest.state), Some(State::Ended { code, .. }) if rules::restarts(pod, &container.name, code))
        })
    }

    /// Whatever becomes of its pod, an ephemeral container has one life.
    fn check_runs_once(&mut self, instance: &Instance) {
        let of_name = |other: &&Instance| {
            other.uid == instance.uid && other.name == instance.name && other.id != instance.id
        };
        let before = self
            .truth
            .instances
            .values()
            .filter(of_name)
            .find(|other| other.ran);
        if let Some(before) = before {
            let sentence = format!(
                "the ephemeral container {} of {} runs again as {} after {}",
                instance.name, instance.uid, instance.id, before.id
            );
            self.violate(sentence);
        }
    }
}
