//! What each pod uses, for decisions about pods that use too much.
//!
//! Owns the shape of the edge. Every figure comes with its age: memory and processes are read by the call, figures of disks may be
//! older, and what the decision may rest on is the caller's.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_usage::DiskUsage;
use thiserror::Error;

/// How much is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageExtent {
    MemoryAndProcesses,
    /// With writable layers, logs and volumes.
    Everything,
}

/// A figure with the time of its reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aged<T> {
    pub value: T,
    pub read_at: Timestamp,
    /// How old it was when the call was answered.
    pub age: Duration,
}

impl<T> Aged<T> {
    #[must_use]
    pub fn new(value: T, read_at: Timestamp, now: Timestamp) -> Self {
        Self {
            value,
            read_at,
            age: now.since(read_at),
        }
    }
}

/// What a pod uses. What could not be read is missing, which is not the same as nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUsage {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    pub working_set_bytes: Option<Aged<u64>>,
    pub processes: Option<Aged<u64>>,
    /// Writable layers, logs, and volumes that count for it.
    pub ephemeral_storage: Option<Aged<DiskUsage>>,
    /// Those that run, by name.
    pub containers: Vec<ContainerUsage>,
    pub volumes: Vec<VolumeUsage>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerUsage {
    pub name: String,
    pub working_set_bytes: Option<Aged<u64>>,
    pub writable_layer: Option<Aged<DiskUsage>>,
    pub logs: Option<Aged<DiskUsage>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUsage {
    pub name: String,
    pub used: Aged<DiskUsage>,
}

/// The runtime does not say what runs, and never did.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("what pods use is not known: {0}")]
pub struct NoPodUsage(pub String);

/// Calls that change nothing.
#[async_trait]
pub trait PodUsageReader: Send + Sync {
    /// One entry for each sandbox in which a container runs.
    async fn usage_of_pods(&self, extent: UsageExtent) -> Result<Vec<PodUsage>, NoPodUsage>;
}

/// Pods whose files are measured now.
#[derive(Clone, Debug)]
pub struct StorageQuestion {
    pub pods: Vec<Arc<Pod>>,
    /// Writable layers are the runtime's figures, which it may have to collect.
    pub with_writable_layers: bool,
}

/// Calls that change nothing.
#[async_trait]
pub trait PodStorageReader: Send + Sync {
    /// One entry for each of these pods of which a container runs, without memory and processes. Volumes are walked through by the
    /// call, which takes as long as they have files.
    async fn storage_of(&self, question: StorageQuestion) -> Result<Vec<PodUsage>, NoPodUsage>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when the port can no longer be used as a trait object.
    #[test]
    fn the_port_is_object_safe() {
        fn takes(_: Option<&dyn PodUsageReader>, _: Option<&dyn PodStorageReader>) {}
        takes(None, None);
    }

    #[test]
    fn a_step_of_the_clock_makes_nothing_old() {
        let at = Timestamp::from_unix_seconds;
        assert_eq!(Aged::new((), at(10), at(70)).age, Duration::from_mins(1));
        assert_eq!(Aged::new((), at(70), at(10)).age, Duration::ZERO);
    }
}
