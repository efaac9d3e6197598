//! The crate's integration tests.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod allocation;
mod allocation_checkpoint;
mod backoff;
mod configuration;
mod configuration_texts;
mod configuration_unsupported;
mod configuration_users;
mod env_file;
mod hash;
mod hooks;
mod node_shutdown;
mod object_variables;
mod observe;
mod plan;
mod plan_pod;
mod plan_properties;
mod plan_unreadable;
mod pod_state;
mod recovery;
mod resize;
mod resize_conditions;
mod resize_steps;
mod sample;
mod service_variables;
mod standing;
mod status;
mod status_foreign;
mod status_goldens;
mod status_oracle;
mod status_patch;
mod status_pod_resources;
mod strategic_merge;
mod termination;
mod user_namespaces;
