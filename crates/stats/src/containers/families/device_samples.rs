//! Samples of devices: what cgroups read and write, and for the root the machine's filesystems and disks.
//!
//! Owns what happens where both have a series: the cgroup's counts, and that of a filesystem is left out.

use std::collections::BTreeSet;

use rubelet_usage::{DeviceNumber, DiskCounters, FilesystemFigures, IoTable};

use super::{Line, Look, PageRow, detail, number};

/// A table's operation, and of filesystems the counter of their disk, with how much of a unit one is.
pub(super) fn io(
    (row, look, line): (&PageRow, &Look, &mut Line<'_>),
    (table, operation, unit): (IoTable, &str, f64),
    disk: Option<fn(&DiskCounters) -> f64>,
) {
    let mut shown = BTreeSet::new();
    let counters = detail(row)
        .into_iter()
        .flat_map(|detail| detail.io.counters(table, operation));
    for (device, value) in counters {
        let name = look.devices.name(device);
        if !shown.contains(&name) {
            line.push(&[("device", &name)], number(value) / unit);
            shown.insert(name);
        }
    }
    let Some(disk) = disk.filter(|_| row.is_root) else {
        return;
    };
    for (filesystem, _) in &look.devices.filesystems {
        if !shown.contains(&filesystem.name) {
            let value = disk(&look.devices.counters(filesystem));
            line.push(&[("device", &filesystem.name)], value);
        }
    }
}

pub(super) fn filesystems(
    row: &PageRow,
    look: &Look,
    line: &mut Line<'_>,
    figure: fn(&FilesystemFigures) -> u64,
) {
    for (filesystem, figures) in look.devices.filesystems.iter().filter(|_| row.is_root) {
        line.push(&[("device", &filesystem.name)], number(figure(figures)));
    }
}

pub(super) fn disks(row: &PageRow, look: &Look, line: &mut Line<'_>, figure: fn(&DiskCounters) -> f64) {
    for (filesystem, _) in look.devices.filesystems.iter().filter(|_| row.is_root) {
        let counters = look.devices.counters(filesystem);
        line.push(&[("device", &filesystem.name)], figure(&counters));
    }
}

pub(super) fn operations(row: &PageRow, look: &Look, line: &mut Line<'_>) {
    let devices = detail(row)
        .into_iter()
        .flat_map(|detail| detail.io.devices(IoTable::Bytes));
    for (device, operations) in devices {
        let DeviceNumber { major, minor } = device;
        let (major, minor) = (major.to_string(), minor.to_string());
        let name = look.devices.name(device);
        for (operation, bytes) in operations {
            let labels = [
                ("device", name.as_str()),
                ("major", &major),
                ("minor", &minor),
                ("operation", operation),
            ];
            line.push(&labels, number(*bytes));
        }
    }
}
