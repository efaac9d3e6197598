//! Bytes to typed pods, before anything is filled in.
//!
//! Owns syntax, apiVersion and kind, and the type of every value, with its path. Fields that do not exist are ignored, as
//! the API's own reader ignores them here; they and further documents are listed for the caller's warnings. The caller bounds the size
//! in bytes: nothing larger than the limit ever needs to be read.

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::document::node::shown;
use rubelet_model::document::{self, Limits, Node};

use crate::tree_reader;
use crate::uid::canonical_text;

/// A file of ten megabytes is upstream's bound too; the number of values bounds what aliases unfold to.
const LIMITS: Limits = Limits {
    max_bytes: 10 << 20,
    max_nodes: 2_000_000,
};

/// One pod as it stands in a manifest.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub pod: Pod,
    /// The pod's document with sorted keys and no nulls; what its identity is made from.
    pub canonical: String,
    /// Keys that stand twice; the last one counts.
    pub duplicate_keys: Vec<String>,
    /// Further YAML documents follow in the file; they are not read.
    pub has_more_documents: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("{0}")]
    Syntax(#[from] document::SyntaxError),
    #[error("the document is {0}, not an object")]
    NotAnObject(&'static str),
    #[error("{0} is missing")]
    MissingType(&'static str),
    #[error("{api_version} {kind} is not what a manifest can hold, only v1 {expected}")]
    WrongType {
        api_version: String,
        kind: String,
        expected: &'static str,
    },
    #[error("{path}: {reason}")]
    Field { path: String, reason: String },
}

/// The one pod of a file.
pub fn decode(bytes: &[u8]) -> Result<Manifest, DecodeError> {
    let document = document::read(bytes, LIMITS)?;
    require_type(&document.root, &["Pod"], "Pod")?;
    let mut manifest = pod(&document.root, "")?;
    manifest.duplicate_keys = document.duplicates;
    manifest.has_more_documents = document.has_more;
    Ok(manifest)
}

/// The pods of a response: one Pod or a PodList.
pub fn decode_any(bytes: &[u8]) -> Result<Vec<Manifest>, DecodeError> {
    let document = document::read(bytes, LIMITS)?;
    let kind = require_type(&document.root, &["Pod", "PodList"], "Pod or PodList")?;
    if kind == "Pod" {
        return Ok(vec![pod(&document.root, "")?]);
    }
    let items = match field(&document.root, "items") {
        None | Some(Node::Null) => return Ok(Vec::new()),
        Some(Node::List(items)) => items,
        Some(other) => {
            return Err(DecodeError::Field {
                path: "items".to_owned(),
                reason: format!("{} where a list is needed", other.kind()),
            });
        }
    };
    let positions = items.iter().enumerate();
    positions
        .map(|(position, item)| pod(item, &format!("items[{position}]")))
        .collect()
}

fn pod(root: &Node, path: &str) -> Result<Manifest, DecodeError> {
    let pod = tree_reader::read::<Untyped>(root, path).map_err(|mismatch| DecodeError::Field {
        path: mismatch.path,
        reason: mismatch.reason,
    })?;
    Ok(Manifest {
        pod: Pod {
            metadata: pod.metadata.unwrap_or_default(),
            spec: Some(pod.spec.unwrap_or_default()),
            status: pod.status,
        },
        canonical: canonical_text(root),
        duplicate_keys: Vec::new(),
        has_more_documents: false,
    })
}

/// The parts of a pod. An item of a list need not repeat apiVersion and kind, but if it does they are text.
#[derive(serde::Deserialize)]
struct Untyped {
    #[serde(rename = "apiVersion")]
    _api_version: Option<String>,
    #[serde(rename = "kind")]
    _kind: Option<String>,
    metadata: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>,
    spec: Option<k8s_openapi::api::core::v1::PodSpec>,
    status: Option<k8s_openapi::api::core::v1::PodStatus>,
}

fn require_type<'a>(root: &'a Node, kinds: &[&str], expected: &'static str) -> Result<&'a str, DecodeError> {
    if !matches!(root, Node::Map(_)) {
        return Err(DecodeError::NotAnObject(root.kind()));
    }
    let kind = type_field(root, "kind")?;
    let api_version = type_field(root, "apiVersion")?;
    // An empty group before the slash is the same group.
    let version = api_version.strip_prefix('/').unwrap_or(api_version);
    if version != "v1" || !kinds.contains(&kind) {
        return Err(DecodeError::WrongType {
            api_version: shown(api_version),
            kind: shown(kind),
            expected,
        });
    }
    Ok(kind)
}

fn type_field<'a>(root: &'a Node, name: &'static str) -> Result<&'a str, DecodeError> {
    match field(root, name) {
        None | Some(Node::Null) => Err(DecodeError::MissingType(name)),
        Some(Node::Text(text)) if text.is_empty() => Err(DecodeError::MissingType(name)),
        Some(Node::Text(text)) => Ok(text),
        Some(other) => Err(DecodeError::Field {
            path: name.to_owned(),
            reason: format!("{} where a string is needed", other.kind()),
        }),
    }
}

/// Of equal keys the last one counts.
fn field<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    let Node::Map(entries) = node else { return None };
    entries
        .iter()
        .rev()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value)
}
