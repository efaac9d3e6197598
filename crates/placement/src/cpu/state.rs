//! Which CPUs are shared, and which belong to a container or a pod.

use std::collections::BTreeMap;

use rubelet_model::CpuSet;

/// The CPUs of containers by pod UID and container name.
pub type ContainerCpus = BTreeMap<String, BTreeMap<String, CpuSet>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuState {
    /// What containers without CPUs of their own run on.
    pub shared: CpuSet,
    pub containers: ContainerCpus,
    /// Everything that a pod with resources of its own has; its containers have parts of it.
    pub pods: BTreeMap<String, CpuSet>,
    /// What containers had when they were let in; kept only with the gate `InPlacePodVerticalScalingExclusiveCPUs`.
    pub baselines: ContainerCpus,
}

impl CpuState {
    /// The container's own set.
    pub fn of_container(&self, pod: &str, container: &str) -> Option<&CpuSet> {
        self.containers.get(pod)?.get(container)
    }

    /// What the container runs on.
    pub fn of_container_or_shared(&self, pod: &str, container: &str) -> &CpuSet {
        self.of_container(pod, container).unwrap_or(&self.shared)
    }

    /// Everything that belongs to a container or a pod.
    pub fn exclusive(&self) -> CpuSet {
        let of_containers = self.containers.values().flat_map(BTreeMap::values);
        let all = of_containers.chain(self.pods.values());
        all.fold(CpuSet::default(), |sum, cpus| sum.union(cpus))
    }

    /// Everything that belongs to the pod.
    pub fn of_pod(&self, pod: &str) -> CpuSet {
        let of_containers = self.containers.get(pod).into_iter().flat_map(BTreeMap::values);
        let all = of_containers.chain(self.pods.get(pod));
        all.fold(CpuSet::default(), |sum, cpus| sum.union(cpus))
    }

    pub(super) fn set(&mut self, pod: &str, container: &str, cpus: CpuSet) {
        let of_pod = self.containers.entry(pod.to_owned()).or_default();
        of_pod.insert(container.to_owned(), cpus);
    }

    /// Gives back everything of the pod. `allowed` is what may be shared on this machine, so that a CPU which the machine
    /// no longer has does not come back.
    pub(super) fn release(&mut self, pod: &str, allowed: &CpuSet) -> CpuSet {
        let released = self.of_pod(pod);
        self.containers.remove(pod);
        self.pods.remove(pod);
        self.baselines.remove(pod);
        let released = released.intersection(allowed).difference(&self.exclusive());
        self.shared = self.shared.union(&released);
        released
    }
}
