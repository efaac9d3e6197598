//! In which order pods are evicted.
//!
//! Owns upstream's comparison for each signal. Pods of which nothing is known come first, as for upstream; the caller decides
//! whether such a pod is a candidate at all.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::Quantity;
use rubelet_model::quantity::Format;

use super::figures::PodFigures;
use crate::admission::preemption::freed;
use crate::amounts::{EPHEMERAL_STORAGE, MEMORY};
use crate::demand::PodDemand;
use crate::pressure::{DiskLayout, Signal};
use crate::rules::Rules;

/// A pod that may be evicted.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub pod: &'a Pod,
    /// With the resources that were allocated to it.
    pub demand: &'a PodDemand,
    pub figures: Option<&'a PodFigures>,
}

/// What a ranking measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    Memory,
    Processes,
    Disk { parts: DiskParts, of: DiskResource },
}

/// What of a pod lies on the filesystem that is short. What pods take by their images cannot be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskParts {
    pub writable_layers: bool,
    pub logs: bool,
    pub local_volumes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskResource {
    Bytes,
    Inodes,
}

impl Measure {
    #[must_use]
    pub fn of(signal: Signal, layout: DiskLayout) -> Self {
        let of = match signal {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => return Self::Memory,
            Signal::PidAvailable => return Self::Processes,
            Signal::NodeFsAvailable | Signal::ImageFsAvailable | Signal::ContainerFsAvailable => {
                DiskResource::Bytes
            }
            Signal::NodeFsInodesFree | Signal::ImageFsInodesFree | Signal::ContainerFsInodesFree => {
                DiskResource::Inodes
            }
        };
        let everything = DiskParts {
            writable_layers: true,
            logs: true,
            local_volumes: true,
        };
        let is_of_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
        let is_of_images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
        let parts = match layout {
            DiskLayout::OneFilesystem => everything,
            DiskLayout::ContainersOnImageFs if is_of_node => DiskParts {
                writable_layers: false,
                ..everything
            },
            DiskLayout::ContainersOnImageFs => DiskParts {
                writable_layers: true,
                ..DiskParts::default()
            },
            DiskLayout::ContainersOnNodeFs if is_of_images => DiskParts::default(),
            DiskLayout::ContainersOnNodeFs => everything,
        };
        Self::Disk { parts, of }
    }
}

/// Puts the pod that goes first at the front. Equal pods keep their order.
pub fn rank(candidates: &mut [Candidate<'_>], measure: Measure, rules: &Rules) {
    match measure {
        Measure::Processes => candidates.sort_by_cached_key(|one| {
            let processes = one.figures.and_then(|figures| figures.processes);
            (
                one.priority(),
                one.figures.is_some(),
                Reverse(processes.unwrap_or(0)),
            )
        }),
        Measure::Memory => candidates.sort_by_cached_key(|one| {
            let used = one.figures.and_then(|figures| figures.working_set_bytes);
            let request = freed(one.demand, rules).quantity(MEMORY);
            let used = amount(used.unwrap_or(0), Format::BinarySi);
            one.key(used > request, used, &request)
        }),
        Measure::Disk { parts, of } => candidates.sort_by_cached_key(|one| {
            let used = one.figures.map(|figures| figures.disk(one.pod, parts));
            let used = used.unwrap_or_default();
            let request = freed(one.demand, rules).quantity(EPHEMERAL_STORAGE);
            match of {
                DiskResource::Bytes => {
                    let used = amount(used.bytes, Format::BinarySi);
                    one.key(used > request, used, &request)
                }
                // As upstream: any inode is more than requested, and what is subtracted are requested bytes.
                DiskResource::Inodes => {
                    one.key(used.inodes > 0, amount(used.inodes, Format::DecimalSi), &request)
                }
            }
        }),
    }
}

type Key = (bool, bool, i32, Reverse<Quantity>);

impl Candidate<'_> {
    fn priority(&self) -> i32 {
        let spec = self.pod.spec.as_ref();
        spec.and_then(|spec| spec.priority).unwrap_or(0)
    }

    fn key(&self, exceeds: bool, mut used: Quantity, request: &Quantity) -> Key {
        if self.figures.is_none() {
            return (false, false, self.priority(), Reverse(Quantity::default()));
        }
        used.sub(request);
        (true, !exceeds, self.priority(), Reverse(used))
    }
}

pub(super) fn amount(number: u64, format: Format) -> Quantity {
    Quantity::new(i64::try_from(number).unwrap_or(i64::MAX), format)
}
