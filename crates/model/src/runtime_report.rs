//! What the container runtime reports about itself, as the Node's status needs it.
//!
//! Owns the types only: the agent queries the runtime and decides how often.

use std::collections::BTreeMap;
use std::time::Duration;

/// The latest knowledge of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeReport {
    pub contact: RuntimeContact,
    /// Why the runtime is not ready, with upstream's text: `container runtime not ready: ...`.
    pub runtime_problem: Option<String>,
    /// Why its network is not ready: `container runtime network not ready: ...`.
    pub network_problem: Option<String>,
    pub lists: RuntimeLists,
    /// `None` until the runtime has answered once.
    pub abilities: Option<RuntimeAbilities>,
}

/// Whether the runtime answers at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RuntimeContact {
    /// It was not asked yet, or has not answered yet.
    #[default]
    Unknown,
    Answers,
    /// It does not answer. `already` is how long the query had waited when this was reported.
    Silent {
        already: Duration,
    },
}

/// A node on which no list of all sandboxes and containers has succeeded for this long is not ready.
pub const LIST_THRESHOLD: Duration = Duration::from_secs(180);

/// Whether lists of all sandboxes and containers succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuntimeLists {
    /// The last one is younger than [`LIST_THRESHOLD`].
    #[default]
    Fresh,
    /// None has succeeded since the start, which is longer ago than that.
    Never,
    /// `already` is how long ago the last one began when this was reported.
    Overdue { already: Duration },
}

/// What the runtime can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeAbilities {
    /// By the handler's name; empty for a runtime that does not report it.
    pub handlers: BTreeMap<String, HandlerAbilities>,
    /// `None` for a runtime that does not report it.
    pub supplemental_groups_policy: Option<bool>,
    pub user_namespaces_host_network: bool,
    pub mount_options: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerAbilities {
    pub recursive_read_only_mounts: bool,
    pub user_namespaces: bool,
}
