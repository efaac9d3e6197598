//! Whose business it is.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;

/// What the API server knows a pod by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl PodName {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

pub(crate) fn uid_of(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub(crate) fn pod_uid_of(pod: &Pod) -> PodUid {
    PodUid::new(uid_of(pod).to_owned())
}
