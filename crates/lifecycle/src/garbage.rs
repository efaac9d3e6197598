//! Which dead containers and sandboxes the garbage collection removes.
//!
//! Owns the choice and its order, oldest first. It removes nothing and does not know logs or directories. The caller asks twice:
//! first for containers, then, from a fresh list, for sandboxes without containers.
//!
//! Unlike upstream, the newest container of a name is never chosen while its pod is active, whatever the limits: the pod's status
//! and the decision whether it restarts are read from it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rubelet_model::Timestamp;
use rubelet_model::observation::{ContainerId, PodUid, SandboxId};

/// How many dead containers may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GarbageLimits {
    /// Younger ones stay; zero is no limit.
    pub min_age: Duration,
    /// Per pod and container name; `None` is no limit.
    pub max_per_container: Option<usize>,
    /// On the node; `None` is no limit.
    pub max_total: Option<usize>,
}

impl Default for GarbageLimits {
    fn default() -> Self {
        Self {
            min_age: Duration::ZERO,
            max_per_container: Some(1),
            max_total: None,
        }
    }
}

/// What the garbage collection may remove of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodFate {
    /// The pod runs, will run, or terminates just now.
    Lives,
    /// The pod ended for good and its source still has it: its containers stay for inspection, unless the node is short of disk space.
    Ended,
    /// No source has the pod and none of its containers runs: all of it may be removed.
    ContentMayGo,
}

/// The fates of all pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFates {
    pub known: BTreeMap<PodUid, PodFate>,
    /// Every source of pods has delivered. Before that, an unknown pod may still be delivered.
    pub sources_ready: bool,
    /// Sandboxes that the runtime lists as ready, of which nothing runs and whose status it cannot read.
    pub unreadable_sandboxes: BTreeSet<SandboxId>,
    /// The node is short of disk space: containers of pods that ended for good are removed too.
    pub also_of_ended_pods: bool,
}

/// Which containers of a pod may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    Nothing,
    BeyondLimits,
    Everything,
}

impl PodFates {
    /// Whether everything of a pod may be removed, also its logs and directories.
    #[must_use]
    pub fn may_content_go(&self, pod: &PodUid) -> bool {
        self.sources_ready
            && self
                .known
                .get(pod)
                .is_none_or(|fate| *fate == PodFate::ContentMayGo)
    }

    fn claim(&self, pod: &PodUid) -> Claim {
        match (self.known.get(pod), self.sources_ready) {
            (None, false) => Claim::Nothing,
            (None | Some(PodFate::ContentMayGo), true) => Claim::Everything,
            (Some(PodFate::Ended), true) if self.also_of_ended_pods => Claim::Everything,
            (Some(PodFate::Lives | PodFate::Ended), true) | (Some(_), false) => Claim::BeyondLimits,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoundState {
    /// Created, not started yet.
    Created,
    Running,
    Exited,
    /// It may run.
    Unknown,
}

/// A container as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundContainer {
    pub id: ContainerId,
    pub pod: PodUid,
    pub name: String,
    pub sandbox_id: SandboxId,
    pub state: FoundState,
    /// Counts the containers of this name, so that it orders them also after the clock was set back.
    pub attempt: u32,
    pub created_at: Timestamp,
}

impl FoundContainer {
    fn age_order(&self) -> (u32, Timestamp, &ContainerId) {
        (self.attempt, self.created_at, &self.id)
    }
}

/// A sandbox as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSandbox {
    pub id: SandboxId,
    pub pod: PodUid,
    pub is_ready: bool,
    pub attempt: u32,
    pub created_at: Timestamp,
}

/// A container to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRemoval {
    pub id: ContainerId,
    pub pod: PodUid,
    /// The container may run, so it is stopped before the removal.
    pub stop_first: bool,
}

impl From<&FoundContainer> for ContainerRemoval {
    fn from(container: &FoundContainer) -> Self {
        Self {
            id: container.id.clone(),
            pod: container.pod.clone(),
            stop_first: container.state == FoundState::Unknown,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRemoval {
    pub id: SandboxId,
    pub pod: PodUid,
}

/// Dead containers of one name in one pod, oldest first.
struct Unit<'c> {
    dead: Vec<&'c FoundContainer>,
    /// The last of them is the newest of its name, and its pod is active.
    keeps_last: bool,
}

impl<'c> Unit<'c> {
    /// Takes out the oldest until `limit` are left.
    fn shrink(&mut self, limit: usize) -> Vec<&'c FoundContainer> {
        let limit = if self.keeps_last { limit.max(1) } else { limit };
        let surplus = self.dead.len().saturating_sub(limit);
        self.dead.drain(..surplus).collect()
    }

    /// Those that may be removed when the node has too many.
    fn spare(&self) -> &[&'c FoundContainer] {
        match self.dead.split_last() {
            Some((_, others)) if self.keeps_last => others,
            Some(_) | None => &self.dead,
        }
    }
}

/// The containers to remove, in this order.
#[must_use]
pub fn containers_to_remove(
    containers: &[FoundContainer],
    fates: &PodFates,
    limits: &GarbageLimits,
    now: Timestamp,
) -> Vec<ContainerRemoval> {
    let mut removals: Vec<&FoundContainer> = Vec::new();
    let mut units = Vec::new();
    for (pod, all) in by_unit(containers) {
        let claim = fates.claim(pod);
        let newest = all.last().map(|container| &container.id);
        // The newest container of an active pod may be about to start.
        let starting = newest.filter(|_| claim == Claim::BeyondLimits);
        let dead: Vec<&FoundContainer> = all
            .iter()
            .copied()
            .filter(|container| is_dead(container, starting) && is_old(container, limits, now))
            .collect();
        let keeps_last = dead.last().map(|container| &container.id) == newest;
        match claim {
            Claim::Nothing => {}
            Claim::Everything => removals.extend(dead),
            Claim::BeyondLimits => units.push(Unit { dead, keeps_last }),
        }
    }
    if let Some(limit) = limits.max_per_container {
        removals.extend(units.iter_mut().flat_map(|unit| unit.shrink(limit)));
    }
    if let Some(limit) = limits.max_total {
        removals.extend(shrink_all(&mut units, limit));
    }
    removals.into_iter().map(ContainerRemoval::from).collect()
}

/// All containers of each name of each pod, oldest first.
fn by_unit(containers: &[FoundContainer]) -> impl Iterator<Item = (&PodUid, Vec<&FoundContainer>)> {
    let mut units: BTreeMap<(&PodUid, &str), Vec<&FoundContainer>> = BTreeMap::new();
    for container in containers {
        units
            .entry((&container.pod, &container.name))
            .or_default()
            .push(container);
    }
    units.into_iter().map(|((pod, _), mut unit)| {
        unit.sort_by(|left, right| left.age_order().cmp(&right.age_order()));
        (pod, unit)
    })
}

fn is_dead(container: &FoundContainer, starting: Option<&ContainerId>) -> bool {
    match container.state {
        FoundState::Running => false,
        FoundState::Created => Some(&container.id) != starting,
        FoundState::Exited | FoundState::Unknown => true,
    }
}

fn is_old(container: &FoundContainer, limits: &GarbageLimits, now: Timestamp) -> bool {
    // Without a minimum age the clock is not read, so that a clock that was set back does not stop the collection for hours.
    limits.min_age.is_zero() || container.created_at <= now.minus(limits.min_age)
}

/// Shrinks every name to an equal share first, then takes out the oldest of all.
fn shrink_all<'c>(units: &mut [Unit<'c>], limit: usize) -> Vec<&'c FoundContainer> {
    let count = |units: &[Unit<'_>]| units.iter().map(|unit| unit.dead.len()).sum::<usize>();
    if count(units) <= limit {
        return Vec::new();
    }
    let occupied = units.iter().filter(|unit| !unit.dead.is_empty()).count();
    let share = (limit / occupied.max(1)).max(1);
    let mut removals: Vec<&FoundContainer> = units.iter_mut().flat_map(|unit| unit.shrink(share)).collect();
    let surplus = count(units).saturating_sub(limit);
    let mut spare: Vec<&FoundContainer> = units.iter().flat_map(Unit::spare).copied().collect();
    spare.sort_by_key(|container| (container.created_at, &container.id));
    removals.extend(spare.into_iter().take(surplus));
    removals
}

/// The sandboxes to remove, in this order: those that neither are ready nor have a container, and the newest of a pod only when
/// all of the pod is removed. One whose status cannot be read counts as not ready. `containers` are those left after the first step.
#[must_use]
pub fn sandboxes_to_remove(
    sandboxes: &[FoundSandbox],
    containers: &[FoundContainer],
    fates: &PodFates,
) -> Vec<SandboxRemoval> {
    let occupied: BTreeSet<&SandboxId> = containers.iter().map(|container| &container.sandbox_id).collect();
    let mut by_pod: BTreeMap<&PodUid, Vec<&FoundSandbox>> = BTreeMap::new();
    for sandbox in sandboxes {
        by_pod.entry(&sandbox.pod).or_default().push(sandbox);
    }
    let mut removals = Vec::new();
    for (pod, mut all) in by_pod {
        all.sort_by_key(|sandbox| (sandbox.attempt, sandbox.created_at, &sandbox.id));
        let candidates = match fates.claim(pod) {
            Claim::Nothing => 0,
            Claim::BeyondLimits => all.len().saturating_sub(1),
            Claim::Everything => all.len(),
        };
        let gone = all
            .into_iter()
            .take(candidates)
            .filter(|sandbox| !sandbox.is_ready || fates.unreadable_sandboxes.contains(&sandbox.id))
            .filter(|sandbox| !occupied.contains(&sandbox.id));
        removals.extend(gone.map(|sandbox| SandboxRemoval {
            id: sandbox.id.clone(),
            pod: pod.clone(),
        }));
    }
    removals
}

#[cfg(test)]
mod tests;
