//! What users read of an eviction for a node that ran short.
//!
//! Owns upstream's message and the annotations of the event, byte for byte, trailing blanks included.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::Quantity;
use rubelet_model::pod::name_of;
use rubelet_model::quantity::Format;

use super::figures::{ContainerFigures, PodFigures};
use super::rank::{Candidate, amount};
use crate::amounts::{EPHEMERAL_STORAGE, MEMORY};
use crate::demand::PodDemand;
use crate::pressure::Crossing;
use crate::rules::Rules;

const OFFENDING_CONTAINERS: &str = "offending_containers";
const OFFENDING_CONTAINERS_USAGE: &str = "offending_containers_usage";
const OFFENDING_POD: &str = "offending_pod";
const OFFENDING_POD_USAGE: &str = "offending_pod_usage";
const STARVED_RESOURCE: &str = "starved_resource";

/// The message of status, condition and event, and the event's annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionText {
    pub message: String,
    /// None where nothing is known of what the pod uses.
    pub annotations: BTreeMap<String, String>,
}

/// Why this pod is evicted.
#[must_use]
pub fn eviction_text(crossing: &Crossing, victim: &Candidate<'_>, rules: &Rules) -> EvictionText {
    let resource = crossing.key.signal.resource();
    let threshold = crossing.threshold.of(crossing.capacity.value()).canonical();
    let available = crossing.available.canonical();
    let mut text = EvictionText {
        message: format!(
            "The node was low on resource: {resource}. Threshold quantity: {threshold}, available: {available}. "
        ),
        annotations: BTreeMap::new(),
    };
    let Some(figures) = victim.figures else {
        return text;
    };
    if resource == MEMORY {
        text.add_pod(victim.pod, victim.demand, figures, rules);
    }
    text.add_containers(victim.demand, figures, resource);
    text.annotate(STARVED_RESOURCE, resource.to_owned());
    text
}

impl EvictionText {
    fn annotate(&mut self, key: &str, value: String) {
        self.annotations.insert(key.to_owned(), value);
    }

    fn add_consumption(
        &mut self,
        kind: &str,
        (name, usage): (&str, &str),
        request: &Quantity,
        resource: &str,
    ) {
        let request = request.canonical();
        self.message.push_str(&format!(
            "{kind} {name} was using {usage}, request is {request}, has larger consumption of {resource}. "
        ));
    }

    /// What the pod as a whole requests and uses.
    fn add_pod(&mut self, pod: &Pod, demand: &PodDemand, figures: &PodFigures, rules: &Rules) {
        let pod_level = demand.effective_pod_level(rules);
        let request = pod_level.and_then(|pod_level| pod_level.requests.get(MEMORY));
        let (Some(request), Some(used)) = (request, figures.working_set_bytes) else {
            return;
        };
        let used = amount(used, Format::BinarySi).canonical();
        let name = name_of(pod);
        self.add_consumption("Pod", (name, &used), request, MEMORY);
        self.annotate(OFFENDING_POD, name.to_owned());
        self.annotate(OFFENDING_POD_USAGE, used);
    }

    fn add_containers(&mut self, demand: &PodDemand, figures: &PodFigures, resource: &str) {
        let (mut names, mut usages) = (Vec::new(), Vec::new());
        for container in &figures.containers {
            let mut started = demand.started_containers();
            // Ephemeral containers can request nothing, so they are not blamed.
            let Some(demanded) = started.find(|one| one.name == container.name) else {
                continue;
            };
            let request = demanded.resources.requests.quantity(resource);
            let Some(used) = used(container, resource).filter(|used| *used > request) else {
                continue;
            };
            let used = used.canonical();
            self.add_consumption("Container", (&container.name, &used), &request, resource);
            names.push(container.name.clone());
            usages.push(used);
        }
        self.annotate(OFFENDING_CONTAINERS, names.join(","));
        self.annotate(OFFENDING_CONTAINERS_USAGE, usages.join(","));
    }
}

fn used(container: &ContainerFigures, resource: &str) -> Option<Quantity> {
    let bytes = match resource {
        MEMORY => container.working_set_bytes?,
        EPHEMERAL_STORAGE => container
            .writable_layer?
            .bytes
            .saturating_add(container.logs?.bytes),
        _ => return None,
    };
    Some(amount(bytes, Format::BinarySi))
}
