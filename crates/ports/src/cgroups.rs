//! The machine's cgroups, and the cgroups of pods as the agent sees them.
//!
//! Owns the shape of three edges: the tree of the kernel (or of systemd, where that owns it) and the processes in it, which an
//! adapter implements, and what a pod's work needs of it, which the actor that keeps the tree implements. Every call has a deadline of the
//! implementation's; passing it is [`CgroupErrorKind::TimedOut`]. Removing what is not there is no error.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::cgroup::{CgroupPlace, CgroupValues, FilePlace, PodCgroupPart, PodCgroupReading};
use rubelet_model::observation::PodUid;
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CgroupErrorKind {
    /// The cgroup, or a part of it, is not there.
    NotFound,
    /// Something in it does not go.
    Busy,
    /// No answer in time.
    TimedOut,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cgroup {path}: {message}")]
pub struct CgroupError {
    pub path: String,
    pub kind: CgroupErrorKind,
    pub message: String,
}

impl CgroupError {
    #[must_use]
    pub fn new(path: impl Into<String>, kind: CgroupErrorKind, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            kind,
            message: message.into(),
        }
    }
}

/// Calls that change nothing.
#[async_trait]
pub trait CgroupReader: Send + Sync {
    /// Checks that the cgroup exists with everything that pods need; the error names what is missing.
    async fn check(&self, path: &str) -> Result<(), CgroupError>;

    /// The names of the cgroups directly below, in any hierarchy. A cgroup that is not there has none.
    async fn children(&self, path: &str) -> Result<BTreeSet<String>, CgroupError>;

    /// The texts of files of one cgroup, in the given order; `None` for a file that is not there.
    async fn read(&self, path: &str, files: &[FilePlace]) -> Result<Vec<Option<String>>, CgroupError>;
}

/// Calls that change something.
#[async_trait]
pub trait CgroupWriter: Send + Sync {
    /// Creates what is missing of a cgroup and of its parents, then writes its values. Returns what is wrong with
    /// values: the cgroup exists all the same.
    async fn create(&self, cgroup: CgroupValues) -> Result<Vec<String>, CgroupError>;

    /// Writes the values of a cgroup that exists: all that can be written, also when one of them fails.
    async fn update(&self, cgroup: CgroupValues) -> Result<(), CgroupError>;

    /// Kills whatever runs in a cgroup and removes it with all below.
    async fn remove(&self, place: CgroupPlace) -> Result<(), CgroupError>;
}

/// Where this process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnProcess {
    pub id: u32,
    /// `None` where the hierarchies that count processor time and memory have it in different cgroups.
    pub cgroup: Option<String>,
    /// It sees the machine's processes; in a container with process ids of its own it does not.
    pub is_among_all_processes: bool,
}

/// Which processes are in which cgroups. Calls that change nothing.
#[async_trait]
pub trait ProcessCgroupReader: Send + Sync {
    async fn own_process(&self) -> Result<OwnProcess, CgroupError>;

    /// The processes directly in the root cgroup, without the first one and without those of the kernel.
    async fn processes_in_root(&self) -> Result<Vec<u32>, CgroupError>;
}

/// Calls that move processes.
#[async_trait]
pub trait ProcessCgroupWriter: Send + Sync {
    /// Creates what is missing of a cgroup in every hierarchy and moves the processes into it: all that can be moved, also when
    /// one of them fails. A process that has ended is no error.
    async fn move_processes(&self, path: &str, processes: Vec<u32>) -> Result<(), CgroupError>;
}

/// The cgroups of pods. Without cgroups per QoS class all of it does nothing.
#[async_trait]
pub trait PodCgroups: Send + Sync {
    /// From now on the pod counts for its tier. The call may be repeated at any time.
    fn hold(&self, pod: &Arc<Pod>);

    /// Nothing of the pod runs any more.
    fn release(&self, uid: &PodUid);

    /// Makes the pod's cgroup, before anything of the pod is started.
    async fn create(&self, pod: &Pod) -> Result<(), CgroupError>;

    /// Whether the pod has its cgroup, where this node puts it.
    async fn exists(&self, pod: &Pod) -> Result<bool, CgroupError>;

    /// What the pod's cgroup has; `None` where pods have no cgroups.
    async fn read(&self, pod: &Pod) -> Result<Option<PodCgroupReading>, CgroupError>;

    /// Writes a part of the values that follow from the pod's resources. The cgroup has to exist.
    async fn update(&self, pod: &Pod, part: PodCgroupPart) -> Result<(), CgroupError>;

    /// Removes the pod's cgroup with everything that still runs in it.
    async fn remove(&self, uid: &PodUid) -> Result<(), CgroupError>;

    /// Every pod that has a cgroup.
    async fn pods(&self) -> Result<BTreeSet<PodUid>, CgroupError>;
}

/// A node without cgroups of pods: `cgroupsPerQOS: false`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPodCgroups;

#[async_trait]
impl PodCgroups for NoPodCgroups {
    fn hold(&self, _pod: &Arc<Pod>) {}

    fn release(&self, _uid: &PodUid) {}

    async fn create(&self, _pod: &Pod) -> Result<(), CgroupError> {
        Ok(())
    }

    async fn exists(&self, _pod: &Pod) -> Result<bool, CgroupError> {
        Ok(true)
    }

    async fn read(&self, _pod: &Pod) -> Result<Option<PodCgroupReading>, CgroupError> {
        Ok(None)
    }

    async fn update(&self, _pod: &Pod, _part: PodCgroupPart) -> Result<(), CgroupError> {
        Ok(())
    }

    async fn remove(&self, _uid: &PodUid) -> Result<(), CgroupError> {
        Ok(())
    }

    async fn pods(&self) -> Result<BTreeSet<PodUid>, CgroupError> {
        Ok(BTreeSet::new())
    }
}
