//! Mirrors: what the API server shows of static pods.
//!
//! Owns how a mirror looks and which one is right. Pure.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use rubelet_lifecycle::status::is_mirror_pod;

use crate::names::uid_of;

const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    let all = pod.metadata.annotations.as_ref()?;
    all.get(key).map(String::as_str)
}

/// What tells one version of a static pod from another.
fn hash_of(static_pod: &Pod) -> &str {
    annotation(static_pod, HASH_ANNOTATION).unwrap_or_else(|| uid_of(static_pod))
}

/// Whether this is the mirror of exactly this static pod, and stays.
pub(crate) fn is_right(mirror: &Pod, static_pod: &Pod) -> bool {
    is_mirror_pod(mirror)
        && mirror.metadata.deletion_timestamp.is_none()
        && annotation(mirror, MIRROR_ANNOTATION) == Some(hash_of(static_pod))
}

/// Whether the Node object can own mirrors: a mirror without an owner is refused, one of a Node that goes would go with it.
pub(crate) fn can_own(node: &Node) -> bool {
    node.metadata.deletion_timestamp.is_none()
        && node.metadata.uid.as_deref().is_some_and(|uid| !uid.is_empty())
}

/// The mirror of a static pod on this node.
pub(crate) fn mirror_of(static_pod: &Pod, node: &Node) -> Pod {
    let metadata = &static_pod.metadata;
    let mut annotations = metadata.annotations.clone().unwrap_or_default();
    annotations.insert(MIRROR_ANNOTATION.to_owned(), hash_of(static_pod).to_owned());
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    Pod {
        metadata: ObjectMeta {
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            labels: metadata.labels.clone(),
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: static_pod.spec.clone(),
        status: None,
    }
}
