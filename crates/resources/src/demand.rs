//! The resources of a pod: every list as quantities, and the totals of requests and limits.
//!
//! Owns reading and adding up: init containers, sidecars, pod-level resources, overhead. It must not decide what a total
//! means for a cgroup.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use rubelet_model::pod::{Importance, QosClass};
use rubelet_model::quantity::ParseQuantityError;

use crate::amounts::{Amounts, CPU, HUGE_PAGES_PREFIX, MEMORY};
use crate::rules::Rules;

/// A quantity of a pod that cannot be parsed.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("{field}: not a quantity")]
pub struct BadQuantity {
    /// The path of the field in the pod.
    pub field: String,
    #[source]
    pub source: ParseQuantityError,
}

/// Requests and limits of one container, or of the pod as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    pub requests: Amounts,
    pub limits: Amounts,
}

/// One container's part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerDemand {
    pub name: String,
    pub resources: Requirements,
    /// A restartable init container.
    pub is_sidecar: bool,
}

/// Whether a total has the pod's overhead in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overhead {
    Included,
    Excluded,
}

/// Everything in a pod that bears on its resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDemand {
    pub containers: Vec<ContainerDemand>,
    pub init_containers: Vec<ContainerDemand>,
    pub ephemeral_containers: Vec<ContainerDemand>,
    /// `spec.resources`, also when it is empty: one gate makes an empty one count.
    pub pod_level: Option<Requirements>,
    pub overhead: Option<Amounts>,
    /// `status.qosClass`, which wins over what the spec gives; none where the status names no class.
    pub recorded_class: Option<QosClass>,
    pub importance: Importance,
}

fn read_requirements(
    resources: Option<&ResourceRequirements>,
    field: &str,
) -> Result<Requirements, BadQuantity> {
    let read = |part: &str, list| {
        Amounts::read(list).map_err(|(name, source)| BadQuantity {
            field: format!("{field}.{part}[{name}]"),
            source,
        })
    };
    Ok(Requirements {
        requests: read("requests", resources.and_then(|all| all.requests.as_ref()))?,
        limits: read("limits", resources.and_then(|all| all.limits.as_ref()))?,
    })
}

fn read_containers(containers: &[Container], field: &str) -> Result<Vec<ContainerDemand>, BadQuantity> {
    let read = |(index, container): (usize, &Container)| {
        Ok(ContainerDemand {
            name: container.name.clone(),
            resources: read_requirements(
                container.resources.as_ref(),
                &format!("{field}[{index}].resources"),
            )?,
            is_sidecar: field == "spec.initContainers"
                && container.restart_policy.as_deref() == Some("Always"),
        })
    };
    containers.iter().enumerate().map(read).collect()
}

impl PodDemand {
    pub fn read(pod: &Pod) -> Result<Self, BadQuantity> {
        let Some(spec) = &pod.spec else {
            return Ok(Self::default());
        };
        let ephemeral = spec.ephemeral_containers.iter().flatten().enumerate();
        let ephemeral_containers = ephemeral.map(|(index, container)| {
            Ok(ContainerDemand {
                name: container.name.clone(),
                resources: read_requirements(
                    container.resources.as_ref(),
                    &format!("spec.ephemeralContainers[{index}].resources"),
                )?,
                is_sidecar: false,
            })
        });
        let pod_level = spec.resources.as_ref();
        let overhead = spec.overhead.as_ref().map(|list| Amounts::read(Some(list)));
        Ok(Self {
            containers: read_containers(&spec.containers, "spec.containers")?,
            init_containers: read_containers(
                spec.init_containers.as_deref().unwrap_or_default(),
                "spec.initContainers",
            )?,
            ephemeral_containers: ephemeral_containers.collect::<Result<_, _>>()?,
            pod_level: pod_level
                .map(|resources| read_requirements(Some(resources), "spec.resources"))
                .transpose()?,
            overhead: overhead.transpose().map_err(|(name, source)| BadQuantity {
                field: format!("spec.overhead[{name}]"),
                source,
            })?,
            recorded_class: pod
                .status
                .as_ref()
                .and_then(|status| QosClass::by_name(status.qos_class.as_deref()?)),
            importance: Importance::of(pod),
        })
    }

    /// Init and regular containers, in the order in which they start.
    pub fn started_containers(&self) -> impl Iterator<Item = &ContainerDemand> {
        self.init_containers.iter().chain(&self.containers)
    }

    /// The container of that name, of any kind.
    pub fn container(&self, name: &str) -> Option<&ContainerDemand> {
        self.containers
            .iter()
            .chain(&self.init_containers)
            .chain(&self.ephemeral_containers)
            .find(|container| container.name == name)
    }

    /// The pod-level resources, if they set anything that counts.
    pub fn effective_pod_level(&self, rules: &Rules) -> Option<&Requirements> {
        let pod_level = self.pod_level.as_ref().filter(|_| rules.pod_level_resources)?;
        let counts = has_pod_level_names(&pod_level.requests) || has_pod_level_names(&pod_level.limits);
        counts.then_some(pod_level)
    }

    /// The pod-level requests, if they set anything that counts.
    pub fn effective_pod_level_requests(&self, rules: &Rules) -> Option<&Amounts> {
        let pod_level = self.pod_level.as_ref().filter(|_| rules.pod_level_resources)?;
        has_pod_level_names(&pod_level.requests).then_some(&pod_level.requests)
    }

    /// The sum over the containers: the larger of what runs in the end and what any step of the start needs.
    pub fn container_total(&self, list: impl Fn(&ContainerDemand) -> &Amounts) -> Amounts {
        let mut running = Amounts::default();
        for container in &self.containers {
            running.add(list(container));
        }
        let mut sidecars = Amounts::default();
        let mut starting = Amounts::default();
        for container in &self.init_containers {
            if container.is_sidecar {
                running.add(list(container));
                sidecars.add(list(container));
                starting.raise_to(&sidecars);
            } else {
                let mut step = list(container).clone();
                step.add(&sidecars);
                starting.raise_to(&step);
            }
        }
        running.raise_to(&starting);
        running
    }

    /// The sum of the containers' requests alone.
    pub fn container_requests(&self) -> Amounts {
        self.container_total(|container| &container.resources.requests)
    }

    /// What the pod requests as a whole.
    pub fn requests(&self, rules: &Rules, overhead: Overhead) -> Amounts {
        let mut total = self.container_requests();
        if let Some(pod_level) = self.effective_pod_level_requests(rules) {
            replace_pod_level(&mut total, pod_level);
        }
        if let (Overhead::Included, Some(extra)) = (overhead, &self.overhead) {
            total.add(extra);
        }
        total
    }

    /// What the pod is limited to as a whole; overhead is added only to limits that exist.
    pub fn limits(&self, rules: &Rules, overhead: Overhead) -> Amounts {
        let mut total = self.container_total(|container| &container.resources.limits);
        if let Some(pod_level) = self.effective_pod_level(rules) {
            replace_pod_level(&mut total, &pod_level.limits);
        }
        if let (Overhead::Included, Some(extra)) = (overhead, &self.overhead) {
            let bounded = extra.iter().filter(|(name, _)| !total.is_zero(name));
            let bounded: Amounts = bounded
                .map(|(name, quantity)| (name.to_owned(), quantity.clone()))
                .collect();
            total.add(&bounded);
        }
        total
    }
}

/// Whether a resource may be set for the pod as a whole.
pub fn is_pod_level_name(name: &str) -> bool {
    name == CPU || name == MEMORY || name.starts_with(HUGE_PAGES_PREFIX)
}

fn has_pod_level_names(list: &Amounts) -> bool {
    list.iter().any(|(name, _)| is_pod_level_name(name))
}

fn replace_pod_level(total: &mut Amounts, pod_level: &Amounts) {
    for (name, quantity) in pod_level.iter().filter(|(name, _)| is_pod_level_name(name)) {
        total.set(name, quantity.clone());
    }
}
