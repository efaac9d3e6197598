//! The families of the page, by name, and the samples that one row has in each.
//!
//! Owns names, types and labels, which are upstream's, and which rows have a sample. Counters are shown as the kernel has them; a time that
//! the kernel counts in smaller units is shown in seconds.

mod device_samples;
mod disks;
mod memory;
mod others;
mod processors;

use rubelet_model::Timestamp;
use rubelet_ports::MachineReading;
use rubelet_usage::{
    CpuDetail, Detail, Dimms, DiskCounters, Figures, FileLimit, FilesystemFigures, Interface, IoTable,
    MemoryDetail, MemoryFigures, PressureFigures, Tasks,
};

use super::labels::Labels;
use super::look::{Look, PageRow};
use crate::exposition::push_value;

/// What stands above a family, and where its samples come from.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) help: &'static str,
    pub(super) samples: Samples,
}

/// Where the samples of a family come from: of the whole look, or of each of its rows.
#[derive(Clone, Copy)]
pub(super) enum Samples {
    Node(fn(&Look, &mut Line<'_>)),
    Machine(fn(&MachineReading) -> u64),
    /// Of each type of memory modules.
    Dimms(fn(&Dimms) -> u64),
    Rows(fn(&PageRow, &Look, &mut Line<'_>)),
    /// A limit or another fact, without a time.
    Limit(fn(&PageRow) -> Option<u64>),
    Cpu(fn(&CpuDetail) -> f64),
    /// Of rows with a quota alone.
    Throttling(fn(&CpuDetail) -> f64),
    Memory(fn(&MemoryFigures, &MemoryDetail) -> u64),
    Tasks(fn(&Tasks) -> u64),
    Network(fn(&Interface) -> u64),
    Pressure(
        fn(&Figures) -> Option<PressureFigures>,
        fn(&PressureFigures) -> u64,
    ),
    /// A table's operation, how many of its units are one, and of filesystems what their disk has.
    Io(IoTable, &'static str, f64, Option<fn(&DiskCounters) -> f64>),
    /// Of the machine's filesystems, and of the disks that they are on.
    Filesystem(fn(&FilesystemFigures) -> u64),
    Disk(fn(&DiskCounters) -> f64),
}

impl Samples {
    /// Whether it is the whole look that has them.
    pub(super) fn are_of_node(self) -> bool {
        matches!(self, Self::Node(_) | Self::Machine(_) | Self::Dimms(_))
    }

    pub(super) fn push_node(self, look: &Look, line: &mut Line<'_>) {
        let machine = look.machine.as_ref();
        match self {
            Self::Node(samples) => samples(look, line),
            Self::Machine(figure) => line.maybe(machine.map(figure)),
            Self::Dimms(figure) => {
                for (kind, dimms) in machine.iter().flat_map(|machine| &machine.figures.dimms) {
                    line.push(&[("type", kind)], number(figure(dimms)));
                }
            }
            _ => {}
        }
    }

    pub(super) fn push_row(self, row: &PageRow, look: &Look, line: &mut Line<'_>) {
        match self {
            Self::Rows(samples) => samples(row, look, line),
            Self::Limit(limit) => line.without_time().maybe(limit(row)),
            Self::Cpu(figure) => {
                if let Some(detail) = detail(row) {
                    line.push(&[], figure(&detail.cpu));
                }
            }
            Self::Throttling(figure) => {
                if let Some(detail) = detail(row).filter(|detail| detail.cpu_share.quota_micros.is_some()) {
                    line.push(&[], figure(&detail.cpu));
                }
            }
            Self::Memory(figure) => line.maybe(memory(row).map(|(memory, detail)| figure(&memory, &detail))),
            Self::Tasks(figure) => line.maybe(detail(row).map(|detail| figure(&detail.tasks))),
            Self::Network(figure) => {
                let network = row.figures.network.iter();
                for interface in network.flat_map(|network| &network.interfaces) {
                    line.push(&[("interface", &interface.name)], number(figure(interface)));
                }
            }
            Self::Pressure(pressure, total) => {
                if let Some(pressure) = pressure(&row.figures) {
                    line.push(&[], number(total(&pressure)) / 1e6);
                }
            }
            Self::Io(table, operation, unit, disk) => {
                device_samples::io((row, look, line), (table, operation, unit), disk);
            }
            Self::Filesystem(figure) => device_samples::filesystems(row, look, line, figure),
            Self::Disk(figure) => device_samples::disks(row, look, line, figure),
            Self::Node(_) | Self::Machine(_) | Self::Dimms(_) => {}
        }
    }
}

const GROUPS: [&[Family]; 4] = [
    processors::FAMILIES,
    disks::FAMILIES,
    memory::FAMILIES,
    others::FAMILIES,
];

/// The families by their names.
pub(super) fn family(mut at: usize) -> Option<&'static Family> {
    for group in GROUPS {
        match group.get(at) {
            Some(family) => return Some(family),
            None => at -= group.len(),
        }
    }
    None
}

const fn counter(name: &'static str, help: &'static str, samples: Samples) -> Family {
    Family {
        name,
        kind: "counter",
        help,
        samples,
    }
}

const fn gauge(name: &'static str, help: &'static str, samples: Samples) -> Family {
    Family {
        name,
        kind: "gauge",
        help,
        samples,
    }
}

/// The next sample of a family: all but its own labels and its value is set.
pub(super) struct Line<'a> {
    text: &'a mut String,
    name: &'static str,
    labels: Option<&'a Labels>,
    taken_at: Option<Timestamp>,
}

impl<'a> Line<'a> {
    pub(super) fn of_machine(text: &'a mut String, family: &Family, look: &'a Look) -> Self {
        Self {
            text,
            name: family.name,
            labels: Some(&look.machine_labels),
            taken_at: None,
        }
    }

    pub(super) fn of_row(text: &'a mut String, family: &Family, row: &'a PageRow) -> Self {
        Self {
            text,
            name: family.name,
            labels: Some(&row.labels),
            taken_at: Some(row.read_at),
        }
    }

    fn push(&mut self, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(self.name);
        match self.labels {
            Some(own) => own.push(self.text, labels),
            None => Labels::default().push(self.text, labels),
        }
        push_value(self.text, value, self.taken_at);
    }

    fn value(&mut self, value: u64) {
        self.push(&[], number(value));
    }

    fn maybe(&mut self, value: Option<u64>) {
        if let Some(value) = value {
            self.value(value);
        }
    }

    fn without_time(&mut self) -> &mut Self {
        self.taken_at = None;
        self
    }

    fn without_labels(&mut self) -> &mut Self {
        self.labels = None;
        self
    }
}

#[expect(clippy::cast_precision_loss, reason = "as the format has it")]
fn number(value: u64) -> f64 {
    value as f64
}

fn seconds(nanos: u64) -> f64 {
    number(nanos) / 1e9
}

fn millis(millis: u64) -> f64 {
    number(millis) / 1e3
}

fn unix_seconds(at: Timestamp) -> u64 {
    at.unix_seconds().unsigned_abs()
}

fn detail(row: &PageRow) -> Option<&Detail> {
    row.figures.detail.as_deref()
}

fn memory(row: &PageRow) -> Option<(MemoryFigures, MemoryDetail)> {
    Some((row.figures.memory?, detail(row)?.memory))
}

/// No limit is zero here.
fn limit(limit: Option<u64>) -> u64 {
    limit.unwrap_or(0)
}

fn waiting(pressure: &PressureFigures) -> u64 {
    pressure.some.total
}

fn stalled(pressure: &PressureFigures) -> u64 {
    pressure.full.total
}

fn version(look: &Look, line: &mut Line<'_>) {
    let labels = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", look.names.kernel_version.as_str()),
        ("osVersion", &look.names.os_image),
    ];
    line.without_labels().push(&labels, 1.0);
}

fn persistent_memory(look: &Look, line: &mut Line<'_>) {
    for mode in ["app_direct_mode", "memory_mode"] {
        if look.machine.is_some() {
            line.push(&[("mode", mode)], 0.0);
        }
    }
}

fn last_seen(_: &PageRow, look: &Look, line: &mut Line<'_>) {
    line.taken_at = Some(look.at);
    line.value(unix_seconds(look.at));
}

/// As upstream's, it has no row before anything ran.
fn processor_time(row: &PageRow, _: &Look, line: &mut Line<'_>) {
    if let Some(nanos) = row.figures.cpu_nanos.filter(|nanos| *nanos > 0) {
        line.push(&[("cpu", "total")], seconds(nanos));
    }
}

fn page_faults(row: &PageRow, _: &Look, line: &mut Line<'_>) {
    let Some((memory, _)) = memory(row) else {
        return;
    };
    for scope in ["container", "hierarchy"] {
        let faults = [
            ("pgfault", memory.page_faults),
            ("pgmajfault", memory.major_page_faults),
        ];
        for (kind, count) in faults {
            line.push(&[("failure_type", kind), ("scope", scope)], number(count));
        }
    }
}

fn file_limit(row: &PageRow, _: &Look, line: &mut Line<'_>) {
    let value = match detail(row).and_then(|detail| detail.tasks.open_files) {
        Some(FileLimit::Files(files)) => number(files),
        Some(FileLimit::Unlimited) => -1.0,
        None => return,
    };
    line.push(&[("ulimit", "max_open_files")], value);
}
