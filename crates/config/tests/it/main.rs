//! The crate's integration tests.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "tests read goldens and make files, and a test may fail loudly"
)]

mod flags;
mod gates;
mod goldens;
mod kubelet_configuration;
mod kubelet_configuration_any_input;
mod kubelet_configuration_rules;
mod load;
mod load_upstream;
mod pending;

/// The text of a file that was made from upstream's own answers.
fn golden(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testbed/goldens")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
