//! The configuration of image pulls.

use crate::backoff::PullBackoffLimits;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImagesSettings {
    /// `serializeImagePulls`: one pull at a time.
    pub serialize_pulls: bool,
    /// `maxParallelImagePulls`, when pulls are not serialized; zero is no limit.
    pub max_parallel_pulls: u32,
    /// `registryPullQPS`; zero is no limit.
    pub registry_pull_qps: f64,
    /// `registryBurst`
    pub registry_burst: u32,
    pub backoff: PullBackoffLimits,
    /// The gate `KubeletEnsureSecretPulledImages`, which shows in the text of an event.
    pub ensure_secret_pulled_images: bool,
}

impl Default for ImagesSettings {
    fn default() -> Self {
        Self {
            serialize_pulls: true,
            max_parallel_pulls: 0,
            registry_pull_qps: 5.0,
            registry_burst: 10,
            backoff: PullBackoffLimits::default(),
            ensure_secret_pulled_images: true,
        }
    }
}

impl ImagesSettings {
    pub(crate) fn places(&self) -> Option<usize> {
        match (self.serialize_pulls, self.max_parallel_pulls) {
            (true, _) => Some(1),
            (false, 0) => None,
            (false, limit) => usize::try_from(limit).ok(),
        }
    }
}
