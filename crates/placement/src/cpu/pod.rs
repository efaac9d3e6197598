//! CPUs of pods as a whole: hints of the pod scope, and pods whose containers share what belongs to the pod.

use std::collections::BTreeMap;

use rubelet_model::CpuSet;

use super::CpuState;
use super::static_policy::{Given, StaticCpus};
use super::take::take;
use crate::refusal::Refusal;
use crate::request::{ContainerKind, PodRequest};
use crate::topology::{Hint, Hints};

impl StaticCpus {
    /// Where the CPUs of all containers could come from. Nothing where the pod wants none.
    pub fn pod_hints(&self, state: &CpuState, pod: &PodRequest, reusable: &CpuSet) -> Option<Hints> {
        if pod.cpus == 0 {
            return None;
        }
        if pod.is_pod_level {
            if let Some(held) = state.pods.get(&pod.uid) {
                return Some(self.hints_for(held, &CpuSet::default(), pod.cpus));
            }
            if check_shared_part(pod).is_err() {
                return Some(Hints::new());
            }
        }
        let mut held = CpuSet::default();
        for container in &pod.containers {
            if let Some(cpus) = state.of_container(&pod.uid, &container.name) {
                if cpus.len() != container.cpus as u64 {
                    return Some(Hints::new());
                }
                held = held.union(cpus);
            }
        }
        if held.len() == pod.cpus as u64 {
            return Some(self.hints_for(&held, &CpuSet::default(), pod.cpus));
        }
        Some(self.hints_for(&self.free(state), &reusable.union(&held), pod.cpus))
    }

    /// Gives a pod with resources of its own all its CPUs at once, and each container its part. What it already has stays.
    pub fn allocate_pod(&self, state: &mut CpuState, pod: &PodRequest, hint: Hint) -> Result<Given, Refusal> {
        if pod.cpus == 0 {
            return Ok(Given::Nothing);
        }
        if state.pods.contains_key(&pod.uid) {
            return Ok(Given::Held);
        }
        check_shared_part(pod)?;
        self.check_cores(state, pod.cpus)?;
        let all = self.choose(state, pod.cpus, hint, &CpuSet::default())?;
        for (container, cpus) in self.parts(pod, &all)? {
            state.set(&pod.uid, &container, cpus);
        }
        state.pods.insert(pod.uid.clone(), all.clone());
        Ok(Given::New(all))
    }

    /// Sidecars keep their part, other init containers use what sidecars leave and give it back, regular containers take
    /// theirs, and all others share the rest.
    fn parts(&self, pod: &PodRequest, all: &CpuSet) -> Result<BTreeMap<String, CpuSet>, Refusal> {
        let take_from = |free: &CpuSet, count: usize| {
            take(&self.machine, self.options, free, count).map_err(|error| Refusal::unexpected(&error))
        };
        let mut parts = BTreeMap::new();
        let mut free = all.clone();
        for container in &pod.containers {
            let part = match (container.kind, container.cpus) {
                (ContainerKind::Init, 0) => free.clone(),
                (ContainerKind::Init, count) => take_from(&free, count)?,
                (ContainerKind::Sidecar | ContainerKind::Regular, 0) => continue,
                (ContainerKind::Sidecar | ContainerKind::Regular, count) => {
                    let part = take_from(&free, count)?;
                    free = free.difference(&part);
                    part
                }
            };
            parts.insert(container.name.clone(), part);
        }
        for container in &pod.containers {
            parts
                .entry(container.name.clone())
                .or_insert_with(|| free.clone());
        }
        Ok(parts)
    }
}

/// Containers without CPUs of their own need some of the pod's.
fn check_shared_part(pod: &PodRequest) -> Result<(), Refusal> {
    let mut own = 0;
    let mut share = false;
    for container in &pod.containers {
        match (container.kind, container.cpus) {
            (ContainerKind::Init, 0) if own >= pod.cpus => {
                return Err(Refusal::EmptyPodSharedPool(
                    "pod rejected, pod has shared init containers but no cpus available for them".to_owned(),
                ));
            }
            (ContainerKind::Init, _) => {}
            (ContainerKind::Sidecar | ContainerKind::Regular, 0) => share = true,
            (ContainerKind::Sidecar | ContainerKind::Regular, count) => own += count,
        }
    }
    if share && own >= pod.cpus {
        return Err(Refusal::EmptyPodSharedPool(
            "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers"
                .to_owned(),
        ));
    }
    Ok(())
}
