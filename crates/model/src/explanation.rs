//! Why a pod is not in its desired state: the answer of `rubelet why`.
//!
//! Owns the form of the answer. The agent knows what each pod waits for.

use serde::{Deserialize, Serialize};

use crate::observation::PodUid;
use crate::time::Timestamp;

/// One thing that something waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitExplanation {
    /// A short text, e.g. `pull image busybox:1.36 for container main`.
    pub what: String,
    pub since: Timestamp,
    pub age_seconds: u64,
    /// What went wrong at the last try.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// One pod at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodExplanation {
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
    /// `Pending`, `Running`, …; `Terminating` while it ends.
    pub phase: String,
    pub containers_ready: usize,
    pub containers: usize,
    pub restarts: i64,
    /// The one thing that keeps the pod from being ready, or from being gone. `None` when it is as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<WaitExplanation>,
}

/// What concerns all pods of the node, or pods that there are none of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeExplanation {
    /// What every pod waits for: the runtime, its network, the sources of pods.
    pub waits_for: Vec<WaitExplanation>,
    pub manifests: Vec<ManifestExplanation>,
}

/// A manifest that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestExplanation {
    pub file: String,
    pub problem: String,
}
