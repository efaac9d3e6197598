//! The test bed as a library: real servers for tests, each in a scope of its own that leaves nothing behind.
//!
//! Everything here is for tests, benchmarks and `make` targets; production crates never depend on it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test bed is an edge: it runs real programs"
)]

use std::path::PathBuf;

pub mod bare_pod;
pub mod cache;
pub mod cgroup_tree;
pub mod cluster;
pub mod cni;
pub mod containerd;
pub mod control_plane;
pub mod fuse;
pub mod http;
pub mod images;
pub mod kubeadm;
pub mod metrics_text;
pub mod namespaces;
pub mod node;
pub mod node_network;
pub mod oracle;
pub mod peer;
pub mod process;
pub mod programs;
pub mod prometheus;
pub mod registry;
pub mod run;
mod runtime_traces;
pub mod scope;
mod teardown;
pub mod virtual_node;
pub mod wait;

pub use programs::Program;
pub use scope::Scope;

/// The root of the checkout.
pub fn workspace_root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Runs a test's body in a scope of its own. An error becomes a panic while the scope still lives, so that its logs are kept.
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn in_scope(test: &str, body: impl AsyncFnOnce(&Scope) -> anyhow::Result<()>) {
    let scope = Scope::new(test).expect("a scope can be made");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be made");
    if let Err(error) = runtime.block_on(body(&scope)) {
        panic!("{error:#}");
    }
}
