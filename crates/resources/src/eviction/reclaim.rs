//! What the node gives up before it evicts a pod, and what its users read when that is not enough.

use rubelet_model::quantity::Format;

use super::rank::amount;
use crate::pressure::{Crossing, DiskLayout, Signal};

/// How many holders of space an event names.
const MAX_HOLDERS: usize = 5;

/// Something that the node can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeReclaim {
    /// All of pods that ended, and all but the newest of each name of pods that run.
    DeadContainers,
    UnusedImages,
}

/// What frees the resource that is short, in this order. All of it is done, even where the first was enough, as upstream.
#[must_use]
pub fn node_reclaim(signal: Signal, layout: DiskLayout) -> &'static [NodeReclaim] {
    const NOTHING: &[NodeReclaim] = &[];
    const CONTAINERS: &[NodeReclaim] = &[NodeReclaim::DeadContainers];
    const IMAGES: &[NodeReclaim] = &[NodeReclaim::UnusedImages];
    const BOTH: &[NodeReclaim] = &[NodeReclaim::DeadContainers, NodeReclaim::UnusedImages];
    match signal {
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => NOTHING,
        Signal::NodeFsAvailable | Signal::NodeFsInodesFree => match layout {
            DiskLayout::OneFilesystem => BOTH,
            DiskLayout::ContainersOnImageFs => NOTHING,
            DiskLayout::ContainersOnNodeFs => CONTAINERS,
        },
        Signal::ImageFsAvailable | Signal::ImageFsInodesFree => match layout {
            DiskLayout::OneFilesystem | DiskLayout::ContainersOnImageFs => BOTH,
            DiskLayout::ContainersOnNodeFs => IMAGES,
        },
        Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree => match layout {
            DiskLayout::OneFilesystem | DiskLayout::ContainersOnImageFs => BOTH,
            DiskLayout::ContainersOnNodeFs => CONTAINERS,
        },
    }
}

/// Something that takes what is short and stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceHolder {
    /// Such as `pod kube-system/etcd (critical)`.
    pub name: String,
    /// In the unit of the signal.
    pub amount: u64,
}

/// The text of the node's event when nothing more can be reclaimed.
#[must_use]
pub fn nothing_left(crossing: &Crossing, mut holders: Vec<SpaceHolder>) -> String {
    let signal = crossing.key.signal;
    let mut text = format!("{crossing}. Nothing more can be reclaimed: no pod may be evicted");
    holders.retain(|holder| holder.amount > 0);
    holders.sort_by(|left, right| (right.amount, &left.name).cmp(&(left.amount, &right.name)));
    let others = holders.len().saturating_sub(MAX_HOLDERS);
    holders.truncate(MAX_HOLDERS);
    let format = signal.format();
    let names: Vec<String> = holders
        .iter()
        .map(|holder| format!("{} has {}", holder.name, shown(holder.amount, format)))
        .collect();
    if !names.is_empty() {
        text.push_str(". Of ");
        text.push_str(signal.resource());
        text.push_str(", ");
        text.push_str(&names.join(", "));
    }
    if others > 0 {
        text.push_str(&format!(", and {others} others have less"));
    }
    text
}

/// Whole mebibytes are easier to read than exact bytes.
fn shown(number: u64, format: Format) -> String {
    const MIB: u64 = 1 << 20;
    let rounded = match format {
        Format::BinarySi if number > 10 * MIB => number / MIB * MIB,
        Format::BinarySi | Format::DecimalSi | Format::DecimalExponent => number,
    };
    amount(rounded, format).canonical()
}
