//! Mirror pods, which show static pods in the API.
//!
//! Owns how a mirror pod is made and which one is up to date. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use rubelet_model::pod::{
    HASH_ANNOTATION, MIRROR_ANNOTATION, SEEN_ANNOTATION, annotation, is_mirror_pod, uid_text,
};

/// The hash of a static pod, which differs between its versions.
fn hash_of(static_pod: &Pod) -> &str {
    annotation(static_pod, HASH_ANNOTATION).unwrap_or_else(|| uid_text(static_pod))
}

/// Whether this is the mirror of exactly this static pod, and stays. What admission made of it (`as_made`) is right too: it would
/// do so again.
pub(crate) fn is_right(mirror: &Pod, as_made: Option<&Pod>, static_pod: &Pod) -> bool {
    let shown = Shown::of(mirror, static_pod);
    is_mirror_pod(mirror)
        && mirror.metadata.deletion_timestamp.is_none()
        && annotation(mirror, MIRROR_ANNOTATION) == Some(hash_of(static_pod))
        && (shown == Shown::of(static_pod, static_pod)
            || as_made.is_some_and(|made| shown == Shown::of(made, static_pod)))
}

/// Whether a new version of a static pod shows something else in its mirror, though its hash is the same.
pub(crate) fn shows_other(old: &Pod, new: &Pod) -> bool {
    Shown::of(old, new) != Shown::of(new, new)
}

/// The fields of a mirror pod that are compared, as far as the static pod sets them: others may add labels and annotations.
#[derive(PartialEq)]
struct Shown<'a> {
    labels: Vec<Option<&'a String>>,
    annotations: Vec<Option<&'a String>>,
    images: Vec<(&'a str, Option<&'a String>)>,
}

impl<'a> Shown<'a> {
    fn of(pod: &'a Pod, static_pod: &Pod) -> Self {
        let (shown, wanted) = (&pod.metadata, &static_pod.metadata);
        let spec = pod.spec.iter();
        let containers = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
        Self {
            labels: values(shown.labels.as_ref(), wanted.labels.as_ref()),
            annotations: values(shown.annotations.as_ref(), wanted.annotations.as_ref()),
            images: containers
                .map(|container| (container.name.as_str(), container.image.as_ref()))
                .collect(),
        }
    }
}

type Texts = BTreeMap<String, String>;

/// The values of the keys that the static pod has.
fn values<'a>(shown: Option<&'a Texts>, wanted: Option<&Texts>) -> Vec<Option<&'a String>> {
    let wanted = wanted.into_iter().flat_map(BTreeMap::keys);
    wanted
        .filter(|key| *key != SEEN_ANNOTATION)
        .map(|key| shown?.get(key))
        .collect()
}

/// Whether the Node object can own mirrors: a mirror without an owner is refused, one of a Node that goes would go with it.
pub(crate) fn can_own(node: &Node) -> bool {
    node.metadata.deletion_timestamp.is_none()
        && node.metadata.uid.as_deref().is_some_and(|uid| !uid.is_empty())
}

/// What of the Node object decides about its mirrors.
pub(crate) fn ownership(node: &Node) -> (bool, Option<&str>, Option<&str>) {
    let metadata = &node.metadata;
    (can_own(node), metadata.name.as_deref(), metadata.uid.as_deref())
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
