//! A configuration file's bytes to a typed object.
//!
//! Owns what is checked before defaults: apiVersion and kind, the type of every value, fields that do not exist. All
//! wrong types are reported together. Unknown and duplicate fields do not stop a v1beta1 file; each is a warning.

use std::fmt;

use super::document::{self, Document};
use super::node::{Node, shown};
use super::problem::{Problem, list_problems};
use super::schema::{Field, KeyMatch, Walk};
use super::types::{API_VERSION, KIND, KubeletConfiguration};

/// A configuration is a few kilobytes; this is far beyond any honest one.
pub const MAX_DOCUMENT_BYTES: usize = 4 << 20;
/// Bounds what aliases can unfold to.
pub const MAX_DOCUMENT_NODES: usize = 100_000;
const LIMITS: document::Limits = document::Limits {
    max_bytes: MAX_DOCUMENT_BYTES,
    max_nodes: MAX_DOCUMENT_NODES,
};

const GROUP: &str = "kubelet.config.k8s.io";

/// A file that could be read. Defaults are not applied yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    pub configuration: KubeletConfiguration,
    pub warnings: Vec<Warning>,
}

/// Something in a file that has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub source_name: String,
    pub defect: IgnoredPart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IgnoredPart {
    UnknownField(String),
    DuplicateField(String),
    FurtherDocuments,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = &self.source_name;
        match &self.defect {
            IgnoredPart::UnknownField(path) => write!(f, "{source}: unknown field {path} is ignored"),
            IgnoredPart::DuplicateField(path) => write!(
                f,
                "{source}: field {path} is set more than once, the last one counts"
            ),
            IgnoredPart::FurtherDocuments => write!(f, "{source}: only the first YAML document is read"),
        }
    }
}

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodeErrors {
    #[error("{source_name}: {reason}")]
    Syntax { source_name: String, reason: String },
    #[error("{source_name}: {reason}; apiVersion must be {API_VERSION} and kind {KIND}")]
    Kind { source_name: String, reason: String },
    #[error("{source_name}: fields are set more than once: {}", paths.join(", "))]
    Duplicates { source_name: String, paths: Vec<String> },
    #[error("{source_name}: {} wrong values:\n{}", problems.len(), list_problems(problems))]
    Fields {
        source_name: String,
        problems: Vec<Problem>,
        /// Everything else of the file, so that validation can check it too and all problems are reported at once.
        readable: Box<KubeletConfiguration>,
    },
}

impl DecodeErrors {
    /// The fields with wrong types; none for a file that could not be read that far.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Fields { problems, .. } => problems,
            Self::Syntax { .. } | Self::Kind { .. } | Self::Duplicates { .. } => &[],
        }
    }
}

/// Reads a whole configuration file, YAML or JSON.
pub fn decode(bytes: &[u8], source_name: &str) -> Result<Decoded, DecodeErrors> {
    let document = read_document(bytes, source_name)?;
    check_kind(&document.root, source_name)?;
    let mut configuration = KubeletConfiguration::default();
    let mut walk = Walk::new(KeyMatch::Exact);
    let mut root = document.root.clone();
    take_type_meta(&mut root, &mut walk);
    configuration.read(&root, &mut walk);
    let warnings = warnings(&document, &walk, source_name);
    if walk.problems.is_empty() {
        return Ok(Decoded {
            configuration,
            warnings,
        });
    }
    Err(DecodeErrors::Fields {
        source_name: source_name.to_owned(),
        problems: walk.problems,
        readable: Box::new(configuration),
    })
}

pub(crate) fn read_document(bytes: &[u8], source_name: &str) -> Result<Document, DecodeErrors> {
    document::read(bytes, LIMITS).map_err(|error| DecodeErrors::Syntax {
        source_name: source_name.to_owned(),
        reason: error.to_string(),
    })
}

pub(crate) fn warnings(document: &Document, walk: &Walk, source_name: &str) -> Vec<Warning> {
    let warning = |defect| Warning {
        source_name: source_name.to_owned(),
        defect,
    };
    let unknown = walk.unknown.iter().cloned().map(IgnoredPart::UnknownField);
    let duplicates = document
        .duplicates
        .iter()
        .cloned()
        .map(IgnoredPart::DuplicateField);
    let more = document.has_more.then_some(IgnoredPart::FurtherDocuments);
    unknown.chain(duplicates).chain(more).map(warning).collect()
}

/// Removes apiVersion and kind, which are no fields of ours.
pub(crate) fn take_type_meta(root: &mut Node, walk: &mut Walk) {
    let Node::Map(entries) = root else { return };
    for (key, value) in entries.iter().filter(|(key, _)| is_type_meta(key)) {
        walk.field(key, |walk| String::new().read(value, walk));
    }
    entries.retain(|(key, _)| !is_type_meta(key));
}

fn is_type_meta(key: &str) -> bool {
    key == "apiVersion" || key == "kind"
}

/// Checks that apiVersion and kind are those of a `KubeletConfiguration`.
pub(crate) fn check_kind(root: &Node, source_name: &str) -> Result<(), DecodeErrors> {
    let refuse = |reason: String| {
        Err(DecodeErrors::Kind {
            source_name: source_name.to_owned(),
            reason,
        })
    };
    if !matches!(root, Node::Map(_) | Node::Null) {
        return refuse(format!("the file holds {}, not an object", root.kind()));
    }
    let text = |key: &str| match type_meta(root, key) {
        None | Some(Node::Null) => Ok(String::new()),
        Some(Node::Text(text)) => Ok(text.clone()),
        Some(other) => Err(format!("{key} is {}, not a string", other.kind())),
    };
    let (api_version, kind) = match (text("apiVersion"), text("kind")) {
        (Ok(api_version), Ok(kind)) => (api_version, kind),
        (Err(reason), _) | (_, Err(reason)) => return refuse(reason),
    };
    if kind.is_empty() {
        return refuse("kind is missing".to_owned());
    }
    if api_version.is_empty() {
        return refuse("apiVersion is missing".to_owned());
    }
    if api_version == API_VERSION && kind == KIND {
        return Ok(());
    }
    match api_version.split_once('/') {
        Some((GROUP, version)) if kind == KIND => {
            refuse(format!("there is no {KIND} of version {}", shown(version)))
        }
        Some(_) | None => refuse(format!(
            "the file holds a {} of {}",
            shown(&kind),
            shown(&api_version)
        )),
    }
}

/// Where nothing fits exactly, the kind is looked up without regard to case; the fields are not.
fn type_meta<'a>(root: &'a Node, key: &str) -> Option<&'a Node> {
    let Node::Map(entries) = root else { return None };
    let last = |fits: &dyn Fn(&str) -> bool| {
        entries
            .iter()
            .rev()
            .find(|(name, _)| fits(name))
            .map(|(_, node)| node)
    };
    last(&|name| name == key).or_else(|| last(&|name| name.eq_ignore_ascii_case(key)))
}
