//! Reads static pods from the bytes of a source: all steps, and the fields that the source adds to each pod.
//!
//! The error of a refused pod names the field; the caller adds the file. Nothing is opened here.

use k8s_openapi::api::core::v1::{Pod, PodStatus, Toleration};
use rubelet_config::FeatureGates;
use rubelet_model::pod::{HASH_ANNOTATION, Phase, SYSTEM_NODE_CRITICAL, SYSTEM_NODE_CRITICAL_PRIORITY};

use crate::decode::{DecodeError, Manifest, decode, decode_any};
use crate::defaults::apply_defaults;
use crate::fields::text;
use crate::problem::{FieldError, list_errors};
use crate::references::{UnknownSource, api_reference};
use crate::uid::static_pod_uid;
use crate::validation::names::is_path_segment;
use crate::validation::validate;

/// Where a manifest comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin<'a> {
    File { path: &'a str },
    Url { url: &'a str },
}

/// What a source delivers.
#[derive(Clone, Debug, PartialEq)]
pub struct StaticPods {
    pub pods: Vec<Pod>,
    /// Warnings about things that work, one line each.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ManifestError {
    #[error("cannot be read: {0}")]
    Decode(#[from] DecodeError),
    #[error("metadata.name: a static pod needs a name")]
    NoName,
    #[error(
        "metadata.uid: {0:?} cannot name a directory: it may not be \".\" or \"..\", contain \"/\" or \"%\", or have more than 255 bytes"
    )]
    Uid(String),
    #[error("invalid pod: {}", list_errors(.0))]
    Invalid(Vec<FieldError>),
    #[error("static pods may not reference {0}")]
    Reference(&'static str),
    #[error("volume {0:?} has no source that static pods know")]
    UnknownSource(String),
}

impl From<UnknownSource> for ManifestError {
    fn from(error: UnknownSource) -> Self {
        Self::UnknownSource(error.volume)
    }
}

/// The pod of a file.
pub fn read_file(
    bytes: &[u8],
    path: &str,
    node_name: &str,
    gates: &FeatureGates,
) -> Result<StaticPods, ManifestError> {
    finish(vec![decode(bytes)?], &Origin::File { path }, node_name, gates)
}

/// The pods of a response. One bad pod refuses them all.
pub fn read_url(
    bytes: &[u8],
    url: &str,
    node_name: &str,
    gates: &FeatureGates,
) -> Result<StaticPods, ManifestError> {
    finish(decode_any(bytes)?, &Origin::Url { url }, node_name, gates)
}

fn finish(
    manifests: Vec<Manifest>,
    origin: &Origin<'_>,
    node_name: &str,
    gates: &FeatureGates,
) -> Result<StaticPods, ManifestError> {
    let mut done = StaticPods {
        pods: Vec::with_capacity(manifests.len()),
        warnings: Vec::new(),
    };
    for manifest in manifests {
        let Manifest {
            mut pod,
            canonical,
            duplicate_keys,
            has_more_documents,
        } = manifest;
        apply_defaults(&mut pod, gates);
        if text(&pod.metadata.name).is_empty() {
            return Err(ManifestError::NoName);
        }
        add_static_fields(&mut pod, &canonical, origin, node_name);
        // Directories and log files of the pod have its name, and are removed with it.
        if let Some(uid) = pod.metadata.uid.as_ref().filter(|uid| !is_path_segment(uid)) {
            return Err(ManifestError::Uid(uid.clone()));
        }
        let errors = validate(&pod, gates);
        if !errors.is_empty() {
            return Err(ManifestError::Invalid(errors));
        }
        if let Some(resource) = api_reference(&pod)? {
            return Err(ManifestError::Reference(resource));
        }
        let repeated = duplicate_keys
            .into_iter()
            .map(|key| format!("{key} stands more than once; the last one counts"));
        done.warnings.extend(repeated);
        if has_more_documents {
            done.warnings
                .push("only the first document of the file is read".to_owned());
        }
        done.warnings.extend(priority_warning(&pod).map(str::to_owned));
        done.pods.push(pod);
    }
    Ok(done)
}

/// What the source adds to a pod: identity, name with the node, namespace, node, hash, toleration, phase.
pub fn add_static_fields(pod: &mut Pod, canonical: &str, origin: &Origin<'_>, node_name: &str) {
    let metadata = &mut pod.metadata;
    if text(&metadata.uid).is_empty() {
        metadata.uid = Some(static_pod_uid(canonical, origin, node_name));
    }
    metadata.name = Some(format!("{}-{}", text(&metadata.name), node_name.to_lowercase()));
    if text(&metadata.namespace).is_empty() {
        metadata.namespace = Some("default".to_owned());
    }
    let uid = text(&metadata.uid).to_owned();
    metadata
        .annotations
        .get_or_insert_default()
        .insert(HASH_ANNOTATION.to_owned(), uid);
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.to_owned());
    if let Origin::File { .. } = origin {
        tolerate_no_execute(spec.tolerations.get_or_insert_default());
    }
    let status: &mut PodStatus = pod.status.get_or_insert_default();
    status.phase = Some(Phase::Pending.as_str().to_owned());
}

/// A file's pod is not evicted for the node's problems. An equal toleration with another deadline is replaced.
fn tolerate_no_execute(tolerations: &mut Vec<Toleration>) {
    let wanted = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let mut found = false;
    for toleration in tolerations.iter_mut() {
        let same = text(&toleration.key).is_empty()
            && text(&toleration.value).is_empty()
            && toleration.operator == wanted.operator
            && toleration.effect == wanted.effect;
        if same {
            *toleration = wanted.clone();
            found = true;
        }
    }
    if !found {
        tolerations.push(wanted);
    }
}

fn priority_warning(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    match (spec.priority, text(&spec.priority_class_name)) {
        (None, "") => None,
        (None, _) => {
            Some("priorityClassName without priority has no effect here, and the mirror pod may be refused")
        }
        (Some(_), "") => Some("priority without priorityClassName: the mirror pod may be refused"),
        (Some(SYSTEM_NODE_CRITICAL_PRIORITY), SYSTEM_NODE_CRITICAL) => None,
        (Some(_), _) => {
            Some("a static pod below system-node-critical cannot be evicted, though others may try")
        }
    }
}
