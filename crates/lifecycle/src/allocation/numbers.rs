//! The four numbers of a container that can be changed while it runs.
//!
//! Owns how they follow from requirements. A container without a limit has the pod's, as the runtime gets it.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_model::Quantity;
use rubelet_model::quantity::Format;
use rubelet_resources::amounts::{CPU, MEMORY};
use serde::{Deserialize, Serialize};

use super::{Amounts, quantity};

/// What can be changed while a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Resource {
    Memory,
    Cpu,
}

impl Resource {
    /// The API's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => MEMORY,
            Self::Cpu => CPU,
        }
    }
}

type NamedAmounts = Vec<(String, Quantity)>;

/// Zero means that there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceNumbers {
    pub cpu_request_millis: i64,
    pub cpu_limit_millis: i64,
    pub memory_request_bytes: i64,
    pub memory_limit_bytes: i64,
}

impl ResourceNumbers {
    /// Of a container in a pod with these resources of its own.
    #[must_use]
    pub fn of(pod: Option<&ResourceRequirements>, container: &ResourceRequirements) -> Self {
        let requests = container.requests.as_ref();
        let limits = container.limits.as_ref();
        let pod_limits = pod.and_then(|pod| pod.limits.as_ref());
        let limit = |name: &str| {
            let own = amount(limits, name).filter(|own| !own.is_zero());
            own.or_else(|| amount(pod_limits, name)).unwrap_or_default()
        };
        let request = |name: &str| amount(requests, name).unwrap_or_default();
        Self {
            cpu_request_millis: request(CPU).milli_value(),
            cpu_limit_millis: limit(CPU).milli_value(),
            memory_request_bytes: request(MEMORY).value(),
            memory_limit_bytes: limit(MEMORY).value(),
        }
    }

    /// Request and limit of one resource.
    #[must_use]
    pub fn part(&self, resource: Resource) -> (i64, i64) {
        match resource {
            Resource::Memory => (self.memory_request_bytes, self.memory_limit_bytes),
            Resource::Cpu => (self.cpu_request_millis, self.cpu_limit_millis),
        }
    }

    /// These numbers with request and limit of one resource from others.
    #[must_use]
    pub fn with_part(self, resource: Resource, other: &Self) -> Self {
        match resource {
            Resource::Memory => Self {
                memory_request_bytes: other.memory_request_bytes,
                memory_limit_bytes: other.memory_limit_bytes,
                ..self
            },
            Resource::Cpu => Self {
                cpu_request_millis: other.cpu_request_millis,
                cpu_limit_millis: other.cpu_limit_millis,
                ..self
            },
        }
    }

    /// Requests and limits, without those that there are none of.
    #[must_use]
    pub fn amounts(&self) -> (NamedAmounts, NamedAmounts) {
        let list = |cpu_millis, memory_bytes| {
            let cpu = (
                CPU.to_owned(),
                Quantity::from_millis(cpu_millis, Format::DecimalSi),
            );
            let memory = (MEMORY.to_owned(), Quantity::new(memory_bytes, Format::BinarySi));
            let all = [cpu, memory].into_iter();
            all.filter(|(_, quantity)| !quantity.is_zero()).collect()
        };
        (
            list(self.cpu_request_millis, self.memory_request_bytes),
            list(self.cpu_limit_millis, self.memory_limit_bytes),
        )
    }

    /// Writes the numbers into requirements, which keep everything else that they have.
    #[must_use]
    pub fn written(&self, mut into: ResourceRequirements) -> ResourceRequirements {
        let cpu = |millis| Quantity::from_millis(millis, Format::DecimalSi);
        let memory = |bytes| Quantity::new(bytes, Format::BinarySi);
        set(&mut into.requests, CPU, &cpu(self.cpu_request_millis));
        set(&mut into.limits, CPU, &cpu(self.cpu_limit_millis));
        set(&mut into.requests, MEMORY, &memory(self.memory_request_bytes));
        set(&mut into.limits, MEMORY, &memory(self.memory_limit_bytes));
        into
    }
}

fn set(list: &mut Option<Amounts>, name: &str, value: &Quantity) {
    if !value.is_zero() {
        let list = list.get_or_insert_default();
        list.insert(name.to_owned(), ApiQuantity(value.canonical()));
    } else if let Some(list) = list {
        list.remove(name);
    }
}

fn amount(list: Option<&Amounts>, name: &str) -> Option<Quantity> {
    quantity(list?.get(name)?)
}
