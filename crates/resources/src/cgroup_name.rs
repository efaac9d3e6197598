//! The names of the kubelet's cgroups under both drivers.
//!
//! Owns `kubepods`, its tiers and the pods below them, as paths. It must not create any.

use std::fmt;

use rubelet_model::cgroup::CgroupPlace;
use rubelet_model::pod::QosClass;

pub const NODE_ALLOCATABLE: &str = "kubepods";
pub const POD_PREFIX: &str = "pod";
const SLICE: &str = ".slice";

/// `cgroupDriver`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupDriver {
    Cgroupfs,
    Systemd,
}

impl CgroupDriver {
    /// Whatever is not `systemd` is `cgroupfs`; validation has refused other values.
    pub fn by_name(name: &str) -> Self {
        match name {
            "systemd" => Self::Systemd,
            _ => Self::Cgroupfs,
        }
    }
}

/// A part of a cgroup's name that no driver can carry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be part of a cgroup's name: it has a slash or an underscore")]
pub struct BadCgroupName(pub String);

/// A cgroup as its path of parts, independent of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupName(Vec<String>);

impl CgroupName {
    /// A path as it stands in `cgroupRoot`.
    pub fn from_cgroupfs(path: &str) -> Self {
        let path = path.strip_prefix('/').unwrap_or(path);
        if path.is_empty() {
            return Self::default();
        }
        Self(path.split('/').map(str::to_owned).collect())
    }

    /// A name as a user writes it for the driver: a path, or for systemd a slice with or without the slices above it.
    pub fn from_driver(text: &str, driver: CgroupDriver) -> Self {
        match driver {
            CgroupDriver::Cgroupfs => Self::from_cgroupfs(text),
            CgroupDriver::Systemd => {
                let slice = text.rsplit('/').next().unwrap_or_default();
                let slice = slice.strip_suffix(SLICE).unwrap_or(slice);
                Self(slice.split('-').map(|part| part.replace('_', "-")).collect())
            }
        }
    }

    pub fn child(&self, part: &str) -> Result<Self, BadCgroupName> {
        // systemd's names turn `-` into `_`, so an underscore could not be turned back.
        if part.contains(['/', '_']) {
            return Err(BadCgroupName(part.to_owned()));
        }
        let mut parts = self.0.clone();
        parts.push(part.to_owned());
        Ok(Self(parts))
    }

    /// The tier's cgroup below `kubepods`; Guaranteed pods live in `kubepods` itself.
    pub fn tier(&self, class: QosClass) -> Self {
        let mut parts = self.0.clone();
        match class {
            QosClass::Guaranteed => {}
            QosClass::Burstable => parts.push("burstable".to_owned()),
            QosClass::BestEffort => parts.push("besteffort".to_owned()),
        }
        Self(parts)
    }

    /// The path below the cgroup mount.
    pub fn path(&self, driver: CgroupDriver) -> String {
        match driver {
            CgroupDriver::Cgroupfs => {
                let parts: Vec<&str> = self
                    .0
                    .iter()
                    .map(String::as_str)
                    .filter(|part| !part.is_empty())
                    .collect();
                format!("/{}", parts.join("/"))
            }
            CgroupDriver::Systemd => self.slice_path(),
        }
    }

    /// The slice and the slice above it.
    pub fn slices(&self) -> (String, String) {
        let path = self.slice_path();
        let mut parts = path.rsplit('/').filter(|part| !part.is_empty());
        let name = |part: Option<&str>| part.unwrap_or("-.slice").to_owned();
        (name(parts.next()), name(parts.next()))
    }

    /// The place of the cgroup on a machine.
    pub fn place(&self, driver: CgroupDriver) -> CgroupPlace {
        CgroupPlace {
            path: self.path(driver),
            unit: (driver == CgroupDriver::Systemd).then(|| self.slices().0),
        }
    }

    /// Every slice carries the names of its ancestors.
    fn slice_path(&self) -> String {
        let mut path = String::new();
        let mut prefix = String::new();
        for part in self.0.iter().filter(|part| !part.is_empty()) {
            let part = part.replace('-', "_");
            path.push_str(&format!("/{prefix}{part}{SLICE}"));
            prefix.push_str(&format!("{part}-"));
        }
        if path.is_empty() { "/".to_owned() } else { path }
    }
}

impl fmt::Display for CgroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path(CgroupDriver::Cgroupfs))
    }
}

/// The cgroup of everything that pods use.
pub fn node_allocatable(cgroup_root: &str) -> CgroupName {
    let mut name = CgroupName::from_cgroupfs(cgroup_root);
    name.0.push(NODE_ALLOCATABLE.to_owned());
    name
}

/// The pod's own cgroup.
pub fn pod_cgroup_name(cgroup_root: &str, class: QosClass, uid: &str) -> Result<CgroupName, BadCgroupName> {
    node_allocatable(cgroup_root)
        .tier(class)
        .child(&format!("{POD_PREFIX}{uid}"))
}

/// The pod of a cgroup that was found directly below `kubepods` or one of its tiers; `None` for anything else.
pub fn pod_uid_of(directory: &str, driver: CgroupDriver) -> Option<String> {
    let own = match driver {
        CgroupDriver::Cgroupfs => directory.to_owned(),
        CgroupDriver::Systemd => {
            let slice = directory.strip_suffix(SLICE)?;
            slice.rsplit('-').next()?.replace('_', "-")
        }
    };
    let uid = own.strip_prefix(POD_PREFIX)?;
    (!uid.is_empty()).then(|| uid.to_owned())
}

/// What the runtime is given as the parent of the pod's containers; empty without cgroups per QoS.
pub fn cgroup_parent(
    cgroup_root: &str,
    cgroups_per_qos: bool,
    driver: CgroupDriver,
    class: QosClass,
    uid: &str,
) -> Result<String, BadCgroupName> {
    if !cgroups_per_qos {
        return Ok(String::new());
    }
    Ok(pod_cgroup_name(cgroup_root, class, uid)?.path(driver))
}
