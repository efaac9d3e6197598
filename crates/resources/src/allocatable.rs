//! Node allocatable: the capacity without the reserved resources and without the hard eviction thresholds.
//!
//! Owns the capacity as named amounts, and the arithmetic of the node's allocatable, which admission counts with. It must not
//! look at the machine. The limit on the cgroup of all pods does not include eviction thresholds: see `node_cgroup`.

use std::collections::BTreeMap;

use rubelet_model::Quantity;
use rubelet_model::quantity::Format;

use crate::amounts::{Amounts, CPU, EPHEMERAL_STORAGE, HUGE_PAGES_PREFIX, MEMORY};
use crate::node_cgroup::Reservation;
use crate::pressure::threshold::threshold_value;

/// The number of pods as a resource.
pub const PODS: &str = "pods";
const THRESHOLDS: [(&str, &str); 2] = [
    ("memory.available", MEMORY),
    ("nodefs.available", EPHEMERAL_STORAGE),
];

/// What the machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    pub processors: i64,
    pub memory_bytes: i64,
    /// Of the filesystem that the kubelet's root directory is on; `None` when storage is not counted.
    pub ephemeral_storage_bytes: Option<i64>,
    /// Sizes in bytes, and numbers, of huge pages.
    pub huge_pages: Vec<(i64, i64)>,
}

/// `maxPods` and `podsPerCore`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodCount {
    pub max: i64,
    /// 0 is no limit per processor.
    pub per_core: i64,
}

/// Why nothing sensible is left for pods.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum AllocatableError {
    #[error("evictionHard: {signal} {value:?} is neither a positive quantity nor a percentage up to 100%")]
    Threshold { signal: &'static str, value: String },
    #[error("{resource}: {kept} are kept from pods, but the node has only {capacity}")]
    MoreThanThereIs {
        resource: String,
        kept: String,
        capacity: String,
    },
}

impl Capacity {
    /// In Kubernetes' names.
    pub fn amounts(&self, count: PodCount) -> Amounts {
        let whole = |number: i64| Quantity::new(number, Format::DecimalSi);
        let bytes = |number: i64| Quantity::new(number, Format::BinarySi);
        let pods = match count.per_core {
            0 => count.max,
            per_core => count.max.min(self.processors.saturating_mul(per_core)),
        };
        let mut all = Amounts::default();
        all.set(CPU, whole(self.processors));
        all.set(MEMORY, bytes(self.memory_bytes));
        all.set(PODS, whole(pods));
        if let Some(storage) = self.ephemeral_storage_bytes {
            all.set(EPHEMERAL_STORAGE, whole(storage));
        }
        for (size, count) in &self.huge_pages {
            let name = format!("{HUGE_PAGES_PREFIX}{}", bytes(*size).canonical());
            all.set(name, bytes(size.saturating_mul(*count)));
        }
        all
    }
}

/// What pods may use in sum. To keep more than there is, is an error.
pub fn allocatable(
    capacity: &Amounts,
    reservation: &Reservation,
    hard_eviction: &BTreeMap<String, String>,
) -> Result<Amounts, AllocatableError> {
    let mut kept = reservation.kube.clone();
    kept.add(&reservation.system);
    for (signal, resource) in THRESHOLDS {
        let text = hard_eviction.get(signal);
        let Some(text) = text else { continue };
        if let Some(free) = threshold(signal, text, &capacity.quantity(resource))? {
            kept.add(&Amounts::from_iter([(resource.to_owned(), free)]));
        }
    }
    let mut left = Amounts::default();
    for (name, whole) in capacity.iter() {
        let mut rest = whole.clone();
        rest.sub(&kept.quantity(name));
        if rest.signum() < 0 {
            return Err(AllocatableError::MoreThanThereIs {
                resource: name.to_owned(),
                kept: kept.quantity(name).canonical(),
                capacity: whole.canonical(),
            });
        }
        left.set(name, rest);
    }
    let mut memory = left.quantity(MEMORY);
    for (_, pages) in capacity
        .iter()
        .filter(|(name, _)| name.starts_with(HUGE_PAGES_PREFIX))
    {
        memory.sub(pages);
    }
    if memory.signum() < 0 {
        memory = Quantity::new(0, memory.format());
    }
    left.set(MEMORY, memory);
    Ok(left)
}

/// What a hard threshold keeps free; `None` for the two percentages that switch it off.
fn threshold(
    signal: &'static str,
    text: &str,
    capacity: &Quantity,
) -> Result<Option<Quantity>, AllocatableError> {
    let value = threshold_value(text).map_err(|_| AllocatableError::Threshold {
        signal,
        value: text.to_owned(),
    })?;
    Ok(value.map(|value| value.of(capacity.value())))
}
