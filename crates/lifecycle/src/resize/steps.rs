//! The writes of a resize, in their order.
//!
//! Owns the order and the check before it. The pod's cgroup is raised before its containers and lowered after them, so that no container
//! ever has more than its pod; limits grow before requests and shrink after them. What the pod's cgroup has is read when the steps are
//! made, because an earlier try may have ended in the middle.
//!
//! A limit that the pod has no more stays in its cgroup, as upstream leaves it.

use std::collections::BTreeMap;

use rubelet_model::cgroup::PodCgroupReading;
use rubelet_resources::PodCgroup;
use rubelet_resources::cpu::is_same_after_weight;

use super::needs::PodResize;
use crate::allocation::numbers::Resource;
use crate::deliberate::{Bug, is_on};

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeStep {
    PodMemoryLimit,
    PodCpuQuota,
    PodCpuShares,
    /// The update of this number in the list of the resource.
    Container {
        resource: Resource,
        index: usize,
    },
    /// The pod as a whole has its own request and limit of the resource.
    PodDone(Resource),
}

/// The steps for memory, then those for CPU. `has` is what the pod's cgroup has; `None` where pods have no cgroups.
#[must_use]
pub fn steps(resize: &PodResize, desired: &PodCgroup, has: Option<&PodCgroupReading>) -> Vec<ResizeStep> {
    let mut steps = Vec::new();
    if resize.pod || !resize.memory.is_empty() {
        let limit = has.map(|has| {
            let has = bound(has.memory_limit_bytes);
            (has, desired.memory_bytes.map_or(has, |bytes| bound(Some(bytes))))
        });
        let around = [(ResizeStep::PodMemoryLimit, limit)];
        surround(&mut steps, resize, Resource::Memory, &around);
    }
    if resize.pod || !resize.cpu.is_empty() {
        let quota = has.map(|has| {
            let has = bound(has.cpu_quota_us);
            (has, desired.cpu_quota_us.map_or(has, |quota| bound(Some(quota))))
        });
        let shares = has.and_then(|has| shares_change(has.cpu_shares, desired.cpu_shares));
        let around = [
            (ResizeStep::PodCpuQuota, quota),
            (ResizeStep::PodCpuShares, shares),
        ];
        surround(&mut steps, resize, Resource::Cpu, &around);
    }
    steps
}

/// Puts the writes to the pod's cgroup that grow before the containers, in the given order, and those that shrink behind them, in the
/// opposite one.
fn surround(
    steps: &mut Vec<ResizeStep>,
    resize: &PodResize,
    resource: Resource,
    pod: &[(ResizeStep, Option<(i64, i64)>)],
) {
    let first = !is_on(Bug::PodRaisedLast);
    let where_it = |grows: bool| {
        move |(step, change): &(ResizeStep, Option<(i64, i64)>)| {
            let (has, wanted) = (*change)?;
            let is_due = if grows { wanted > has } else { wanted < has };
            is_due.then_some(*step)
        }
    };
    if first {
        steps.extend(pod.iter().filter_map(where_it(true)));
    }
    let containers = 0..resize.updates(resource).len();
    steps.extend(containers.map(|index| ResizeStep::Container { resource, index }));
    if !first {
        steps.extend(pod.iter().filter_map(where_it(true)));
    }
    steps.extend(pod.iter().rev().filter_map(where_it(false)));
    if resize.pod {
        steps.push(ResizeStep::PodDone(resource));
    }
}

/// No limit is the largest one.
fn bound(limit: Option<i64>) -> i64 {
    limit.filter(|limit| *limit > 0).unwrap_or(i64::MAX)
}

/// A weight gives back other shares than were written, and those are no change.
fn shares_change(has: Option<u64>, wanted: Option<u64>) -> Option<(i64, i64)> {
    let (has, wanted) = (has?, wanted?);
    let is_same = has == wanted || is_same_after_weight(wanted, has);
    let signed = |shares: u64| i64::try_from(shares).unwrap_or(i64::MAX);
    (!is_same).then(|| (signed(has), signed(wanted)))
}

/// The memory limits that get lower, or that were not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryDecrease {
    /// Of the pod's cgroup.
    pub pod: Option<i64>,
    /// By container; with the place in the list of updates.
    pub containers: BTreeMap<usize, i64>,
}

impl MemoryDecrease {
    #[must_use]
    pub fn of(resize: &PodResize, desired: &PodCgroup, has: Option<&PodCgroupReading>) -> Self {
        let mut found = Self::default();
        if resize.pod || !resize.memory.is_empty() {
            let limit = desired.memory_bytes.filter(|bytes| *bytes > 0);
            found.pod = limit.filter(|limit| has.is_some_and(|has| *limit < bound(has.memory_limit_bytes)));
        }
        for (index, update) in resize.memory.iter().enumerate() {
            let (current, desired) = (
                update.change.current.memory_limit_bytes,
                update.change.desired.memory_limit_bytes,
            );
            if desired > 0 && desired < bound(Some(current)) {
                found.containers.insert(index, desired);
            }
        }
        found
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pod.is_none() && self.containers.is_empty()
    }

    /// Why the limits cannot be lowered now, in upstream's words. `pod_usage` and `usage` are what is used at the moment, by the place in
    /// the list of updates; what cannot be read is missing.
    #[must_use]
    pub fn problem(
        &self,
        resize: &PodResize,
        pod_usage: Option<u64>,
        usage: &BTreeMap<usize, u64>,
    ) -> Option<String> {
        let mut problems = Vec::new();
        if let Some(limit) = self.pod {
            match pod_usage {
                None => problems.push("missing pod memory usage".to_owned()),
                Some(used) if is_below(limit, used) => problems.push(format!(
                    "attempting to set pod memory limit ({limit}) below current usage ({used})"
                )),
                Some(_) => {}
            }
        }
        for (index, limit) in &self.containers {
            let name = resize
                .memory
                .get(*index)
                .map_or("", |update| update.name.as_str());
            match usage.get(index) {
                None => problems.push(format!("missing container {name:?} memory usage")),
                Some(used) if is_below(*limit, *used) => problems.push(format!(
                    "attempting to set container {name:?} memory limit ({limit}) below current usage ({used})"
                )),
                Some(_) => {}
            }
        }
        let text = match problems.as_slice() {
            [] => return None,
            [only] => only.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        Some(format!("cannot decrease memory limits: {text}"))
    }
}

fn is_below(limit: i64, used: u64) -> bool {
    u64::try_from(limit).is_ok_and(|limit| used >= limit)
}
