//! The current state of the node: labels and taints from the API server, its pressure, and whether it shuts down.
//!
//! Owns the part of a Node object that admission uses. What does not change while the node runs is in `NodeTerms`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Taint};
use rubelet_model::{Pressure, Quantity};

use super::need::{Allocatable, is_extended};

/// What is known of the Node object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// `None` while no Node object is known: then those count that the node gives itself.
    pub labels: Option<BTreeMap<String, String>>,
    pub taints: Vec<Taint>,
    /// Devices and the like that the Node object has in `allocatable`, in whole units.
    pub extended: BTreeMap<String, i64>,
    pub pressure: Pressure,
    /// No pod is admitted while the machine shuts down.
    pub is_shutting_down: bool,
}

impl NodeView {
    #[must_use]
    pub fn of(node: Option<&Node>, pressure: Pressure, is_shutting_down: bool) -> Self {
        let Some(node) = node else {
            return Self {
                pressure,
                is_shutting_down,
                ..Self::default()
            };
        };
        let status = node.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        let extended = allocatable.into_iter().flatten().filter_map(|(name, text)| {
            let quantity: Quantity = text.0.parse().ok()?;
            is_extended(name).then(|| (name.clone(), quantity.value()))
        });
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
        Self {
            labels: Some(node.metadata.labels.clone().unwrap_or_default()),
            taints: taints.unwrap_or_default(),
            extended: extended.collect(),
            pressure,
            is_shutting_down,
        }
    }

    /// What pods may have in sum, with what only the Node object knows of. Of device plugins' resources the node itself knows: the
    /// object may still show what another kubelet had.
    pub(super) fn allocatable(&self, own: &Allocatable) -> Allocatable {
        let mut all = own.clone();
        for (name, amount) in &self.extended {
            all.resources.others.entry(name.clone()).or_insert(*amount);
        }
        all
    }
}
