//! Probes and lifecycle hooks: what they forbid, and what they are a reason for.
//!
//! A container is stopped for its probes only after as many failures in a row as its pod allows, nobody overtakes a sidecar whose
//! startup probe has not passed, and a hook before the stop runs before the stop, once.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Probe};
use rubelet_ports::ProbeKind;

use super::truth::Instance;
use super::{Checker, rules};
use crate::history::HookKind;

/// How far a hook is, in this life of rubelet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    NotAsked,
    Asked,
    Ended,
}

/// What an instance's probes and hooks came to, in this life of rubelet.
#[derive(Clone, Debug, Default)]
pub(super) struct Handled {
    /// Failures in a row. A call that went wrong may count or not.
    failures: BTreeMap<ProbeKind, u32>,
    post_start: Progress,
    post_start_failed: bool,
    pre_stop: Progress,
    /// When the hook before its stop was first asked for.
    pub(super) pre_stop_asked: Option<Duration>,
}

impl Handled {
    /// Whether its first hook is under way.
    pub(super) fn is_starting(&self) -> bool {
        self.post_start == Progress::Asked
    }
}

/// Upstream's default.
const FAILURE_THRESHOLD: i32 = 3;

fn threshold(probe: &Probe) -> u32 {
    probe
        .failure_threshold
        .unwrap_or(FAILURE_THRESHOLD)
        .unsigned_abs()
}

impl Checker {
    pub(super) fn probed(&mut self, id: &str, kind: ProbeKind, is_good: bool) {
        let Some(instance) = self.truth.instances.get_mut(id) else {
            return;
        };
        let failures = instance.handled.failures.entry(kind).or_default();
        *failures = if is_good { 0 } else { *failures + 1 };
        let (uid, name) = (instance.uid.clone(), instance.name.clone());
        if is_good && kind == ProbeKind::Startup {
            self.truth.pod(&uid).passed_startup.insert(name);
        }
    }

    pub(super) fn hook_asked(&mut self, at: Duration, id: &str, kind: HookKind) {
        let Some(instance) = self.truth.instances.get_mut(id) else {
            return;
        };
        let handled = &mut instance.handled;
        let (hook, word) = match kind {
            HookKind::PostStart => (&mut handled.post_start, "postStart"),
            HookKind::PreStop => {
                handled.pre_stop_asked.get_or_insert(at);
                (&mut handled.pre_stop, "preStop")
            }
        };
        let before = std::mem::replace(hook, Progress::Asked);
        if before == Progress::Ended {
            let sentence = format!("{id} {} runs its {word} hook again", instance.name);
            self.violate(sentence);
        }
    }

    pub(super) fn hook_ended(&mut self, id: &str, kind: HookKind, is_good: bool) {
        let Some(instance) = self.truth.instances.get_mut(id) else {
            return;
        };
        match kind {
            HookKind::PostStart => {
                instance.handled.post_start = Progress::Ended;
                instance.handled.post_start_failed |= !is_good;
            }
            HookKind::PreStop => instance.handled.pre_stop = Progress::Ended,
        }
    }

    /// Whether its own probes or its first hook are a reason to stop it.
    pub(super) fn is_unwell(&self, instance: &Instance) -> bool {
        instance.handled.post_start_failed || self.fails_probes(instance)
    }

    /// Whether a probe failed as often as its pod allows.
    pub(super) fn fails_probes(&self, instance: &Instance) -> bool {
        let version = self.truth.version(&instance.uid);
        let Some(container) = version.and_then(|pod| rules::find(pod, &instance.name)) else {
            return false;
        };
        let probes = [
            (ProbeKind::Startup, &container.startup_probe),
            (ProbeKind::Liveness, &container.liveness_probe),
        ];
        probes.into_iter().any(|(kind, probe)| {
            let failures = instance.handled.failures.get(&kind).copied().unwrap_or(0);
            probe.as_ref().is_some_and(|probe| failures >= threshold(probe))
        })
    }

    /// Whether nothing of the pod will run, because what still does is stopped for its probes and never runs again.
    pub(super) fn is_doomed(&self, pod: &Pod) -> bool {
        rules::regular_containers(pod).iter().all(|container| {
            let name = &container.name;
            let newest = self.truth.newest_instance(rules::uid(pod), name);
            let is_stopped =
                newest.is_some_and(|one| self.is_unwell(one)) && rules::policy(pod, name) == "Never";
            is_stopped || self.truth.ended_for_good(pod, name).is_some()
        })
    }

    /// Whether an instance was stopped for its probes by the life of rubelet that asked for its successor, which then follows
    /// however the first one ended. A later life goes by the end alone.
    pub(super) fn is_replaced(&self, pod: &Pod, before: &Instance, successor: &Instance) -> bool {
        let number = (successor.name.clone(), successor.attempt);
        let truth = self.truth.pods.get(&before.uid);
        let asked = truth.and_then(|pod| pod.creates_asked.get(&number));
        let mut stops = before.stops.iter();
        rules::policy(pod, &before.name) != "Never"
            && stops.any(|stop| stop.for_probes && Some(stop.life) == asked.map(|asked| asked.life))
    }

    /// Whether this may be a stop for the restart of all containers, which gives nobody any time.
    pub(super) fn may_reset(&self, uid: &str) -> bool {
        self.truth.pods.get(uid).is_some_and(|pod| pod.is_resetting)
    }

    /// A container is about to be stopped that has a command to run before.
    pub(super) fn check_pre_stop(&mut self, instance: &Instance) {
        let Some(pod) = self.truth.pods.get(&instance.uid) else {
            return;
        };
        let has_hook = pod
            .versions
            .last()
            .is_some_and(|pod| rules::has_pre_stop_command(pod, &instance.name));
        // Without any grace there is no time for it, as when all containers of a pod are restarted.
        let own = pod.versions.iter().map(|pod| rules::grace_seconds(pod));
        let mut graces = own.chain(pod.deletion_graces.iter().copied());
        let has_time = !self.may_reset(&instance.uid) && !graces.any(|grace| grace <= 0);
        let is_known = !pod.undecoded_in_life;
        if has_hook && has_time && is_known && instance.handled.pre_stop == Progress::NotAsked {
            self.violate(format!(
                "{} {} of {} is stopped without its preStop hook",
                instance.id, instance.name, instance.uid
            ));
        }
    }

    /// A container is about to be made: the sidecars before it have passed their startup probes, once at least.
    pub(super) fn check_sidecars_started(&mut self, uid: &str, name: &str) {
        let Some(pod) = self.truth.version(uid) else {
            return;
        };
        if rules::is_ephemeral(pod, name) {
            return;
        }
        let before = rules::init_containers(pod)
            .iter()
            .take_while(|one| one.name != name);
        let passed = self.truth.pods.get(uid).map(|pod| &pod.passed_startup);
        let missing = before
            .filter(|one| rules::is_sidecar(pod, &one.name) && one.startup_probe.is_some())
            .find(|one| passed.is_none_or(|passed| !passed.contains(&one.name)));
        if let Some(missing) = missing {
            let sentence = format!(
                "CreateContainer {name} of {uid} before the startup probe of {} passed",
                missing.name
            );
            self.violate(sentence);
        }
    }
}
