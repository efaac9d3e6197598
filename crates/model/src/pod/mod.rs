//! A pod read: its identity, its source, how critical it is, its phase and its QoS class.
//!
//! Owns the annotation keys and the names of the API that the kubelet's behaviour depends on; each exists here once. The pod
//! itself is `k8s-openapi`'s `Pod`; a missing name, namespace or UID reads as an empty one.

mod importance;
mod phase;
mod qos;
mod source;

use std::fmt;

use k8s_openapi::api::core::v1::{Pod, Volume};

use crate::observation::PodUid;

pub use importance::{
    Importance, SYSTEM_CRITICAL_PRIORITY, SYSTEM_NODE_CRITICAL, SYSTEM_NODE_CRITICAL_PRIORITY,
};
pub use phase::{Phase, is_terminal, phase_of};
pub use qos::QosClass;
pub use source::{Source, is_api_pod, is_mirror_pod, is_static_pod, source_of};

/// The prefix of the annotations that a kubelet writes itself.
pub const CONFIG_ANNOTATION_PREFIX: &str = "kubernetes.io/config.";
/// The source a pod came from, see [`Source`].
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// Marks a mirror pod; the value is the hash of its static pod.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// The hash of a static pod, which differs between its versions.
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
/// When this kubelet first received the pod.
pub const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";
/// The prefix of the old AppArmor annotations; the container's name follows.
pub const APP_ARMOR_ANNOTATION_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Namespace and name: what the API server knows a pod by. Printed as `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

impl PodName {
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        Self {
            namespace: namespace_of(pod).to_owned(),
            name: name_of(pod).to_owned(),
        }
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

#[must_use]
pub fn namespace_of(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

#[must_use]
pub fn name_of(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

#[must_use]
pub fn uid_of(pod: &Pod) -> PodUid {
    PodUid::from(uid_text(pod))
}

/// The UID without a copy.
#[must_use]
pub fn uid_text(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Upstream's full name, `name_namespace`.
#[must_use]
pub fn full_name(name: &str, namespace: &str) -> String {
    format!("{name}_{namespace}")
}

#[must_use]
pub fn full_name_of(pod: &Pod) -> String {
    full_name(name_of(pod), namespace_of(pod))
}

/// Whether the pod has this namespace and name.
#[must_use]
pub fn is_named(pod: &Pod, namespace: &str, name: &str) -> bool {
    namespace_of(pod) == namespace && name_of(pod) == name
}

#[must_use]
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

#[must_use]
pub fn uses_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true)
}

/// The names of the Secrets that a volume needs, in upstream's order of sources; only the first source counts. A name may be empty.
#[must_use]
pub fn volume_secrets(volume: &Volume) -> Vec<&str> {
    let reference = if let Some(source) = &volume.azure_file {
        return vec![&source.secret_name];
    } else if let Some(source) = &volume.cephfs {
        source.secret_ref.as_ref()
    } else if let Some(source) = &volume.cinder {
        source.secret_ref.as_ref()
    } else if let Some(source) = &volume.flex_volume {
        source.secret_ref.as_ref()
    } else if let Some(source) = &volume.projected {
        let sources = source.sources.iter().flatten();
        let secrets = sources.filter_map(|source| source.secret.as_ref());
        return secrets.map(|secret| secret.name.as_str()).collect();
    } else if let Some(source) = &volume.rbd {
        source.secret_ref.as_ref()
    } else if let Some(source) = &volume.secret {
        return source.secret_name.as_deref().into_iter().collect();
    } else if let Some(source) = &volume.scale_io {
        Some(&source.secret_ref)
    } else if let Some(source) = &volume.iscsi {
        source.secret_ref.as_ref()
    } else if let Some(source) = &volume.storageos {
        source.secret_ref.as_ref()
    } else {
        let csi = volume.csi.as_ref();
        csi.and_then(|source| source.node_publish_secret_ref.as_ref())
    };
    reference
        .map(|reference| reference.name.as_str())
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests;
