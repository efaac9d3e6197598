//! Resources that change while a pod runs: no container ever has more than its pod, and in the end all have what they were given.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::truth::Instance;
use super::{Checker, rules};
use crate::cgroups::USED_BYTES;
use crate::history::Limits;
use crate::node;

/// The kernel's period, for which quotas are made.
const PERIOD_US: i64 = 100_000;

/// The limits that a container asks for: memory in bytes, and the quota.
fn asked(container: &Container) -> Option<(i64, i64)> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    let number = |name: &str, unit: &str| limits.get(name)?.0.strip_suffix(unit)?.parse::<i64>().ok();
    let memory = number("memory", "Mi").map(|mib| mib << 20);
    let memory = memory.or_else(|| number("memory", "Ti").map(|tib| tib << 40));
    let cpu = number("cpu", "m").or_else(|| number("cpu", "").map(|cpus| cpus * 1000));
    Some((memory?, cpu? * PERIOD_US / 1000))
}

/// Whether new memory restarts the container.
fn restarts_for_memory(container: &Container) -> bool {
    let mut policies = container.resize_policy.iter().flatten();
    policies.any(|policy| policy.resource_name == "memory" && policy.restart_policy == "RestartContainer")
}

/// What the runtime and the kernel have for the containers and the cgroup of a pod.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PodLimits {
    pub(super) memory: Option<i64>,
    pub(super) quota: Option<i64>,
}

impl Checker {
    pub(super) fn pod_limited(&mut self, uid: &str, memory: Option<i64>, quota: Option<i64>) {
        self.truth.pod(uid).limits = PodLimits { memory, quota };
        let running: Vec<String> = self.truth.running(uid).map(|one| one.id.clone()).collect();
        for id in running {
            self.check_limits(&id);
        }
    }

    pub(super) fn resized(&mut self, id: &str, limits: Limits, is_update: bool) {
        let Some(instance) = self.truth.instances.get_mut(id) else {
            return;
        };
        let before = std::mem::replace(&mut instance.limits, limits);
        let is_less = limits.memory > 0 && limits.memory < before.memory;
        if is_update && is_less && u64::try_from(limits.memory).is_ok_and(|limit| limit <= USED_BYTES) {
            self.violate(format!("{id} may use {} bytes and uses more", limits.memory));
        }
        self.check_limits(id);
    }

    /// Whether any version of the pod restarts the container for memory that this instance does not have.
    pub(super) fn is_restarted_for_memory(&self, instance: &Instance) -> bool {
        let known = self.truth.pods.get(&instance.uid);
        let versions = known
            .iter()
            .flat_map(|pod| pod.versions.iter().chain(pod.shown.iter().flatten()));
        let wanted = self.truth.wanted(&instance.uid);
        versions.chain(wanted).any(|pod| {
            let container = rules::find(pod, &instance.name).filter(|one| restarts_for_memory(one));
            let asked = container.and_then(asked);
            asked.is_some_and(|(memory, _)| memory != instance.limits.memory)
        })
    }

    /// Whether any version of the pod asks for more memory than the node has.
    pub(super) fn asked_for_too_much(&self, uid: &str) -> bool {
        let known = self.truth.pods.get(uid);
        let mut versions = known
            .iter()
            .flat_map(|pod| pod.versions.iter().chain(pod.shown.iter().flatten()));
        let is_too_much = |pod: &Pod| {
            let mut containers = rules::init_containers(pod)
                .iter()
                .chain(rules::regular_containers(pod));
            containers.any(|one| asked(one).is_some_and(|(memory, _)| memory > node::MEMORY_BYTES))
        };
        versions.any(|pod| is_too_much(pod)) || self.truth.wanted(uid).is_some_and(|pod| is_too_much(pod))
    }

    /// In a calm world every resize is over: carried out, deferred for want of room, or refused for what is used.
    pub(super) fn check_resized(&self, pod: &Pod, said: &Pod) -> Result<(), String> {
        let all = rules::init_containers(pod)
            .iter()
            .chain(rules::regular_containers(pod));
        let all: Vec<(&Container, (i64, i64))> = all.filter_map(|one| Some((one, asked(one)?))).collect();
        let reason = |type_: &str| {
            let conditions = said.status.as_ref().and_then(|status| status.conditions.as_ref());
            let found = conditions.into_iter().flatten().find(|one| one.type_ == type_);
            found.map(|found| found.reason.clone().unwrap_or_default())
        };
        let (pending, in_progress) = (reason("PodResizePending"), reason("PodResizeInProgress"));
        if all.iter().any(|(_, (memory, _))| *memory > node::MEMORY_BYTES) {
            return match pending.as_deref() {
                Some("Deferred") => Ok(()),
                other => Err(format!(
                    "it asks for more than the node has, and PodResizePending is {other:?}"
                )),
            };
        }
        let is_below_usage = all
            .iter()
            .any(|(_, (memory, _))| u64::try_from(*memory).is_ok_and(|memory| memory <= USED_BYTES));
        if in_progress.as_deref() == Some("Error") && is_below_usage {
            return Ok(());
        }
        for (container, (memory, quota)) in &all {
            let name = &container.name;
            let instance = self.truth.running(rules::uid(pod)).find(|one| one.name == *name);
            let Some(instance) = instance.filter(|_| !rules::loops(pod, name)) else {
                continue;
            };
            let limits = instance.limits;
            if (limits.memory, limits.quota) != (*memory, *quota) {
                return Err(format!(
                    "{name} asks for {memory} bytes and a quota of {quota} us, and has {limits:?}; PodResizePending is {pending:?}, \
                     PodResizeInProgress {in_progress:?}"
                ));
            }
        }
        match (pending, in_progress) {
            (None, None) => Ok(()),
            (pending, in_progress) => Err(format!(
                "it has what it asks for, and PodResizePending is {pending:?}, PodResizeInProgress {in_progress:?}"
            )),
        }
    }

    /// A container never has a larger limit than its pod.
    pub(super) fn check_limits(&mut self, id: &str) {
        let Some(instance) = self.truth.instances.get(id).filter(|one| one.is_running()) else {
            return;
        };
        let (limits, uid) = (instance.limits, instance.uid.clone());
        let pod = self
            .truth
            .pods
            .get(&uid)
            .map(|pod| pod.limits)
            .unwrap_or_default();
        if pod.memory.is_some_and(|bound| limits.memory > bound) {
            self.violate(format!(
                "{id} of {uid} may use {} bytes, its pod {:?}",
                limits.memory, pod.memory
            ));
        }
        if pod.quota.is_some_and(|bound| limits.quota > bound) {
            self.violate(format!(
                "{id} of {uid} has a quota of {} us, its pod {:?}",
                limits.quota, pod.quota
            ));
        }
    }
}
