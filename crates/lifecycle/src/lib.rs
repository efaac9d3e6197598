//! What a pod needs next: plans, backoff, status, sandbox and container configuration, all pure.

pub mod allocation;
pub mod backoff;
pub mod deliberate;
pub mod garbage;
pub mod hash;
pub mod hooks;
pub mod log_rotation;
pub mod observe;
pub mod plan;
pub mod pod_state;
pub mod restart;
pub mod standing;
pub mod status;
pub mod status_patch;
pub mod stop_signal;
pub mod termination;
pub mod user_namespaces;

pub mod configuration;
