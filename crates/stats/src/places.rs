//! Where the cgroups of pods and containers are.
//!
//! Owns the names under which runtimes put containers below a pod's cgroup. Where a name may be one of several, all are given: the
//! reader takes the one that exists.

use std::sync::Arc;

use rubelet_model::pod::QosClass;
use rubelet_resources::cgroup_name::{CgroupDriver, node_allocatable, pod_cgroup_name};

/// The node's layout of cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupPlaces {
    /// `cgroupRoot`.
    pub root: String,
    pub driver: CgroupDriver,
    /// As the runtime calls itself, such as `containerd`.
    pub runtime_name: String,
    /// `cgroupsPerQOS`; without it nothing is known of where containers are.
    pub are_per_qos: bool,
}

impl CgroupPlaces {
    /// One place for each QoS class.
    pub(crate) fn pod(&self, uid: &str) -> Vec<Arc<str>> {
        if !self.are_per_qos {
            return Vec::new();
        }
        [QosClass::Burstable, QosClass::BestEffort, QosClass::Guaranteed]
            .into_iter()
            .filter_map(|class| pod_cgroup_name(&self.root, class, uid).ok())
            .map(|name| Arc::from(name.path(self.driver)))
            .collect()
    }

    /// The cgroups of all pods and of the QoS classes that have one of their own.
    pub(crate) fn tiers(&self) -> Vec<Arc<str>> {
        if !self.are_per_qos {
            return Vec::new();
        }
        let all = node_allocatable(&self.root);
        let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
        let names = classes.map(|class| all.tier(class).path(self.driver));
        names.into_iter().map(Arc::from).collect()
    }

    /// The label `container` of a sandbox.
    pub(crate) fn sandbox_label(&self) -> &'static str {
        if self.runtime_name == "cri-o" { "POD" } else { "" }
    }

    /// Of a container or a sandbox, below the places where its pod may be.
    pub(crate) fn container(&self, pod: &[Arc<str>], id: &str) -> Vec<Arc<str>> {
        let names: Vec<String> = self
            .prefixes()
            .iter()
            .map(|prefix| self.name(prefix, id))
            .collect();
        let below = |pod: &Arc<str>| {
            names
                .iter()
                .map(|name| Arc::from(format!("{pod}/{name}")))
                .collect::<Vec<_>>()
        };
        pod.iter().flat_map(below).collect()
    }

    fn name(&self, prefix: &str, id: &str) -> String {
        match self.driver {
            // containerd puts no name of its own before the id.
            CgroupDriver::Cgroupfs if prefix == "cri-containerd" => id.to_owned(),
            CgroupDriver::Cgroupfs => format!("{prefix}-{id}"),
            CgroupDriver::Systemd => format!("{prefix}-{id}.scope"),
        }
    }

    fn prefixes(&self) -> &'static [&'static str] {
        match self.runtime_name.as_str() {
            "containerd" => &["cri-containerd"],
            "cri-o" => &["crio"],
            _ => &["cri-containerd", "crio", "docker"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(driver: CgroupDriver, runtime_name: &str) -> CgroupPlaces {
        CgroupPlaces {
            root: "/r".to_owned(),
            driver,
            runtime_name: runtime_name.to_owned(),
            are_per_qos: true,
        }
    }

    fn texts(paths: &[Arc<str>]) -> Vec<&str> {
        paths.iter().map(AsRef::as_ref).collect()
    }

    #[test]
    fn a_pod_is_in_one_of_the_tiers() {
        let plain = places(CgroupDriver::Cgroupfs, "containerd");
        assert_eq!(
            texts(&plain.pod("a-1")),
            [
                "/r/kubepods/burstable/poda-1",
                "/r/kubepods/besteffort/poda-1",
                "/r/kubepods/poda-1"
            ]
        );
        let systemd = places(CgroupDriver::Systemd, "containerd");
        assert_eq!(
            texts(&systemd.pod("a-1"))[0],
            "/r.slice/r-kubepods.slice/r-kubepods-burstable.slice/r-kubepods-burstable-poda_1.slice"
        );
        assert_eq!(
            texts(&plain.tiers()),
            ["/r/kubepods", "/r/kubepods/burstable", "/r/kubepods/besteffort"]
        );
        assert_eq!(
            texts(&systemd.tiers())[2],
            "/r.slice/r-kubepods.slice/r-kubepods-besteffort.slice"
        );
        let flat = CgroupPlaces {
            are_per_qos: false,
            ..plain
        };
        assert!(flat.pod("a").is_empty() && flat.tiers().is_empty());
    }

    #[test]
    fn a_container_is_named_by_its_runtime() {
        let pod = [Arc::from("/p")];
        let check = |driver, runtime: &str, expected: &[&str]| {
            let found = places(driver, runtime).container(&pod, "7f");
            assert_eq!(texts(&found), expected, "{driver:?} {runtime}");
        };
        check(CgroupDriver::Cgroupfs, "containerd", &["/p/7f"]);
        check(
            CgroupDriver::Systemd,
            "containerd",
            &["/p/cri-containerd-7f.scope"],
        );
        check(CgroupDriver::Cgroupfs, "cri-o", &["/p/crio-7f"]);
        check(CgroupDriver::Systemd, "cri-o", &["/p/crio-7f.scope"]);
        check(
            CgroupDriver::Systemd,
            "other",
            &[
                "/p/cri-containerd-7f.scope",
                "/p/crio-7f.scope",
                "/p/docker-7f.scope",
            ],
        );
    }
}
