//! emptyDir: media, sizes of what is kept in memory, huge pages.
//!
//! Owns upstream's rules for both. The limit of a volume on disk is recorded in the pod and enforced by eviction, not here.

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};
use rubelet_model::Quantity;
use rubelet_resources::amounts::MEMORY;
use rubelet_resources::huge_pages::page_size_bytes;
use rubelet_resources::{Amounts, PodDemand, Rules, pod_cgroup};

use crate::{StorageError, StorageNode};

const HUGE_PAGES: &str = "HugePages";
const HUGE_PAGES_OF_SIZE: &str = "HugePages-";

/// What an emptyDir is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    Disk,
    Memory {
        size_bytes: Option<u64>,
    },
    HugePages {
        page_size_bytes: u64,
        any_page_size: bool,
    },
}

pub(crate) fn medium(
    source: &EmptyDirVolumeSource,
    pod: &Pod,
    node: &StorageNode,
) -> Result<Medium, StorageError> {
    let medium = source.medium.as_deref().unwrap_or_default();
    match medium {
        "" => Ok(Medium::Disk),
        "Memory" => {
            let limit = source.size_limit.as_ref().map(|limit| limit.0.as_str());
            let size_bytes = memory_size(pod, node, limit)?;
            Ok(Medium::Memory { size_bytes })
        }
        HUGE_PAGES => huge_pages(medium, None, pod, &node.rules),
        sized if sized.starts_with(HUGE_PAGES_OF_SIZE) => {
            let size = sized[HUGE_PAGES_OF_SIZE.len()..].parse::<Quantity>();
            let size = size.map_err(|_| StorageError::Medium(medium.to_owned()))?;
            huge_pages(medium, Some(size.value()), pod, &node.rules)
        }
        other => Err(StorageError::Medium(other.to_owned())),
    }
}

/// The size of a tmpfs: the smallest of what all pods may use, what this pod may use and what the volume may have. A limit of
/// zero, or one that is larger than what is left, does not count.
pub(crate) fn memory_size(
    pod: &Pod,
    node: &StorageNode,
    size_limit: Option<&str>,
) -> Result<Option<u64>, StorageError> {
    let mut size = node.facts.allocatable.quantity(MEMORY);
    let mut shrink = |limit: Quantity| {
        if limit.value() > 0 && limit <= size {
            size = limit;
        }
    };
    let demand = PodDemand::read(pod)?;
    if let Some(bytes) = pod_cgroup(&demand, &node.rules, &node.facts, false).memory_bytes {
        shrink(Quantity::new(bytes, rubelet_model::quantity::Format::BinarySi));
    }
    if let Some(text) = size_limit {
        let limit = text
            .parse()
            .map_err(|_| StorageError::SizeLimit(text.to_owned()))?;
        shrink(limit);
    }
    // Without a size the kernel takes half of the memory.
    Ok(u64::try_from(size.value()).ok().filter(|size| *size > 0))
}

/// The page size comes from what the containers request; they must agree unless the volume names one.
fn huge_pages(medium: &str, wanted: Option<i64>, pod: &Pod, rules: &Rules) -> Result<Medium, StorageError> {
    let demand = PodDemand::read(pod)?;
    let pod_level = demand.effective_pod_level(rules).map(|all| &all.requests);
    let containers = demand.started_containers().map(|one| &one.resources.requests);
    let names = pod_level.into_iter().chain(containers).flat_map(Amounts::iter);
    let mut found: Option<i64> = None;
    for size in names.filter_map(|(name, _)| page_size_bytes(name)) {
        match (wanted, found) {
            (Some(wanted), _) if wanted != size => {}
            (None, Some(other)) if other != size => {
                return Err(StorageError::ManyPageSizes(medium.to_owned()));
            }
            _ => found = Some(size),
        }
    }
    let page_size_bytes = found
        .and_then(|size| u64::try_from(size).ok())
        .ok_or_else(|| StorageError::NoHugePages(medium.to_owned()))?;
    Ok(Medium::HugePages {
        page_size_bytes,
        any_page_size: wanted.is_none(),
    })
}
