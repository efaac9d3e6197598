//! The agent: its sources on the real edges of a machine, everything else on a virtual clock and simulated edges.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests are an edge: they write files, listen, spawn tasks, and fail by panicking"
)]

mod admission;
mod api_env;
mod api_pods;
mod api_restart;
mod bad_manifests;
mod bed;
mod cgroups;
mod cluster;
mod end_pod;
mod ephemeral;
mod extreme_numbers;
mod health;
mod hooks;
mod identity;
mod line;
mod memory;
mod metrics;
mod node_events;
mod node_facts;
mod node_now;
mod node_shutdown;
mod observer;
mod probes;
mod replaced;
mod resizes;
mod sources_file;
mod sources_http;
mod sources_merger;
mod sources_scene;
mod spans;
mod sync;
mod unreadable_sandboxes;
mod user_ids;
mod volumes;
mod waits;
