//! Seeded questions for upstream beside the fixed corpus: manifests and configurations, good and bad.
//!
//! The same seed always gives the same object. Nothing here knows the rules of the code under test.

mod configuration_values;
mod configurations;
mod manifest_parts;
mod manifests;

pub use configurations::configuration;
pub use manifests::{manifest, mutated_manifest};
