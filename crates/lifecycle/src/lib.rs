//! What a pod needs next, as pure functions.
//!
//! Owns a pod's life cycle: where it stands (`standing`), its state machine (`pod_state`), its plan (`plan`), the configuration of
//! sandboxes and containers (`configuration`), its status (`status`, `status_patch`), how it stops (`termination`), which of its dead
//! containers are removed (`garbage`), and the rules that these share. It must not call anything: effects and actions are data.

pub mod allocation;
pub mod backoff;
pub mod deliberate;
pub mod garbage;
pub mod hash;
pub mod hooks;
pub mod log_rotation;
pub mod node_shutdown;
pub mod observe;
pub mod plan;
pub mod pod_state;
pub mod resize;
pub mod restart;
pub mod standing;
pub mod status;
pub mod status_patch;
pub mod stop_signal;
pub mod termination;
pub mod user_namespaces;

pub mod configuration;
