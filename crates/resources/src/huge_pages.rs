//! Huge page sizes and their limits.
//!
//! Owns the names (`hugepages-2Mi`, `2MB`) and the limits of pods and containers. It must not look at which sizes a machine has.

use std::collections::BTreeMap;

use rubelet_model::Quantity;
use rubelet_wire::cri::v1::HugepageLimit;

use crate::amounts::{Amounts, HUGE_PAGES_PREFIX};
use crate::demand::{ContainerDemand, PodDemand};
use crate::rules::{NodeFacts, Rules};

const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];

/// The page size in a resource name; `None` when it is not a huge page resource or has no readable size.
pub fn page_size_bytes(resource: &str) -> Option<i64> {
    let size: Quantity = resource.strip_prefix(HUGE_PAGES_PREFIX)?.parse().ok()?;
    Some(size.value())
}

/// The kernel's name of a page size, such as `2MB`; `None` when no unit fits.
pub fn page_size_name(bytes: i64) -> Option<String> {
    if bytes == 0 {
        return Some(format!("0{}", UNITS[UNITS.len() - 1]));
    }
    let mut size = bytes;
    let mut unit = 0;
    while size % 1024 == 0 && unit < UNITS.len() - 1 {
        size /= 1024;
        unit += 1;
    }
    (size <= 1024 || unit == UNITS.len() - 1).then(|| format!("{size}{}", UNITS[unit]))
}

/// Bytes allowed per page size, from a list of amounts; a name without a readable size counts for size 0, as upstream.
pub fn limits_by_size(list: &Amounts) -> BTreeMap<i64, i64> {
    let mut limits = BTreeMap::new();
    for (name, quantity) in list
        .iter()
        .filter(|(name, _)| name.starts_with(HUGE_PAGES_PREFIX))
    {
        let limit: &mut i64 = limits.entry(page_size_bytes(name).unwrap_or(0)).or_default();
        *limit = limit.wrapping_add(quantity.value());
    }
    limits
}

/// A container's limits: its own, else the pod's, else 0, for each size the machine has.
pub fn container_limits(
    demand: &PodDemand,
    container: &ContainerDemand,
    rules: &Rules,
    facts: &NodeFacts,
) -> Vec<HugepageLimit> {
    let pod_level = demand.effective_pod_level(rules).map(|all| &all.limits);
    let wanted: BTreeMap<String, u64> = pod_level
        .into_iter()
        .chain([&container.resources.limits])
        .flat_map(Amounts::iter)
        .filter_map(|(name, limit)| {
            let size = page_size_name(page_size_bytes(name)?)?;
            Some((size, limit.value() as u64))
        })
        .collect();
    let limit = |size: &String| HugepageLimit {
        page_size: size.clone(),
        limit: wanted.get(size).copied().unwrap_or(0),
    };
    facts.huge_page_sizes.iter().map(limit).collect()
}
