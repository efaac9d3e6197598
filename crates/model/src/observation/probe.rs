//! Results of probes as decisions see them.
//!
//! Owns the result types. Running probes, thresholds and initial values belong to the prober.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::identity::ContainerId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProbeResult {
    Success,
    Failure,
    Unknown,
}

/// The latest results of one container. `None`: the prober has no result, because there is no such probe or because it has
/// not begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerProbes {
    pub liveness: Option<ProbeResult>,
    pub readiness: Option<ProbeResult>,
    pub startup: Option<ProbeResult>,
}

/// The latest results of a pod's containers. Results belong to one instance of a container, hence the id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResults {
    by_container: BTreeMap<ContainerId, ContainerProbes>,
}

impl ProbeResults {
    /// Results of a container without any are empty.
    #[must_use]
    pub fn of(&self, id: &ContainerId) -> ContainerProbes {
        self.by_container.get(id).copied().unwrap_or_default()
    }

    pub fn set(&mut self, id: ContainerId, probes: ContainerProbes) {
        self.by_container.insert(id, probes);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ContainerId, &ContainerProbes)> {
        self.by_container.iter()
    }
}

impl FromIterator<(ContainerId, ContainerProbes)> for ProbeResults {
    fn from_iter<I: IntoIterator<Item = (ContainerId, ContainerProbes)>>(results: I) -> Self {
        Self {
            by_container: results.into_iter().collect(),
        }
    }
}
