//! Pod manifests: decoding, static defaulting, API defaulting and validation with field paths.
//!
//! Owns all steps from the bytes of a manifest to a pod that may run: `decode` (YAML or JSON to a typed pod) →
//! `apply_defaults` (what the API would fill in) → `static_pod` (what the source adds) → `validate` → `api_reference`.
//! `read_file` and `read_url` do all of them. Everything is pure: it opens no file and reads no clock, and takes the
//! feature gates as an argument.

mod decode;
mod defaults;
mod fields;
mod image;
mod mirror;
mod problem;
mod references;
mod static_pod;
mod tree_reader;
mod uid;
mod validation;

pub use decode::{DecodeError, Manifest, decode, decode_any};
pub use defaults::apply_defaults;
pub use image::default_pull_policy;
pub use mirror::mirror_difference;
pub use problem::{ErrorKind, FieldError, list_errors};
pub use references::api_reference;
pub use static_pod::{ManifestError, Origin, StaticPods, add_static_fields, read_file, read_url};
pub use uid::{is_recipe_uid, static_pod_uid};
pub use validation::validate;
