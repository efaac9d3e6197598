//! End-to-end tests.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests look at the real machine"
)]

mod configz;
mod containerd2;
mod control_plane;
mod cri_containerd2;
mod cri_facts;
mod oracle_config;
mod oracle_configuration;
mod oracle_gates;
mod oracle_goldens;
mod oracle_ours;
mod oracle_pods;
mod oracle_quantity;
mod oracle_resources;
mod oracle_status;
mod virtual_node;
