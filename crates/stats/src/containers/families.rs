//! The families of the page, by name, each with the samples of one row.
//!
//! Owns names, types and labels, which are upstream's, and which rows have a sample. Counters are shown as the kernel has them; a time that
//! the kernel counts in smaller units is shown in seconds.

mod disks;
mod table;

use rubelet_model::Timestamp;
use rubelet_usage::{CpuDetail, Detail, Interface, MemoryDetail, MemoryFigures, PressureFigures, Tasks};

use super::labels::Labels;
use super::look::{Look, PageRow};
use crate::exposition::push_value;
pub(super) use table::FAMILIES;

/// What stands above a family, and where its samples come from.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) help: &'static str,
    pub(super) samples: Samples,
}

#[derive(Clone, Copy)]
pub(super) enum Samples {
    /// One look, once.
    OfNode(fn(&Look, &mut Line<'_>)),
    /// Each row of it.
    OfRows(fn(&PageRow, &Look, &mut Line<'_>)),
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

    fn seconds(&mut self, nanos: u64) {
        self.push(&[], number(nanos) / 1e9);
    }

    /// Of facts that do not change.
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

fn unix_seconds(at: Timestamp) -> u64 {
    at.unix_seconds().unsigned_abs()
}

fn detail(row: &PageRow) -> Option<&Detail> {
    row.figures.detail.as_deref()
}

fn cpu(row: &PageRow) -> Option<CpuDetail> {
    Some(detail(row)?.cpu)
}

/// Of rows with a quota alone.
fn throttling(row: &PageRow) -> Option<CpuDetail> {
    detail(row)?.cpu_share.quota_micros?;
    cpu(row)
}

fn memory(row: &PageRow) -> Option<(MemoryFigures, MemoryDetail)> {
    Some((row.figures.memory?, detail(row)?.memory))
}

fn tasks(row: &PageRow) -> Option<Tasks> {
    Some(detail(row)?.tasks)
}

/// No limit is zero here.
fn limit(limit: Option<u64>) -> u64 {
    limit.unwrap_or(0)
}

fn stalls(line: &mut Line<'_>, pressure: Option<PressureFigures>, part: fn(&PressureFigures) -> u64) {
    if let Some(pressure) = pressure {
        line.push(&[], number(part(&pressure)) / 1e6);
    }
}

fn waiting(pressure: &PressureFigures) -> u64 {
    pressure.some.total
}

fn stalled(pressure: &PressureFigures) -> u64 {
    pressure.full.total
}

fn interfaces(row: &PageRow, line: &mut Line<'_>, counter: fn(&Interface) -> u64) {
    let network = row.figures.network.iter();
    for interface in network.flat_map(|network| &network.interfaces) {
        line.push(&[("interface", &interface.name)], number(counter(interface)));
    }
}
