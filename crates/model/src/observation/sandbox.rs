//! What the runtime reports about one sandbox.
//!
//! Owns the facts only; whether a sandbox is good enough for its pod is decided elsewhere.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::identity::SandboxId;
use crate::time::Timestamp;

/// A state that this build does not know counts as not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SandboxState {
    Ready,
    NotReady,
    /// The runtime lists it as ready, but fails whenever it is asked for its status. It counts as not ready.
    Unreadable,
}

/// Whose network the sandbox uses. A runtime that reports none means the pod's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NetworkMode {
    Pod,
    Node,
    /// Neither: the runtime reports a mode that is none for a pod's network.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxObservation {
    pub id: SandboxId,
    /// Counts the sandboxes of one pod from zero.
    pub attempt: u32,
    pub state: SandboxState,
    pub created_at: Timestamp,
    pub network_mode: NetworkMode,
    /// The primary address as reported: `None` when the runtime reports no network, empty when it reports a network
    /// without an address.
    pub primary_ip: Option<String>,
    /// All usable addresses, primary first. Empty on the node's network, and when one of them is no address.
    pub ips: Vec<String>,
    pub runtime_handler: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

impl SandboxObservation {
    /// A sandbox about which only this much is known; the rest is empty.
    pub fn new(id: impl Into<SandboxId>, attempt: u32, state: SandboxState, created_at: Timestamp) -> Self {
        Self {
            id: id.into(),
            attempt,
            state,
            created_at,
            network_mode: NetworkMode::Pod,
            primary_ip: None,
            ips: Vec::new(),
            runtime_handler: String::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == SandboxState::Ready
    }
}
