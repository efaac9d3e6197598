//! Everything that was measured, and the medians of it.

use std::collections::BTreeMap;
use std::fmt;

use super::budget::{Mark, Row};

/// Who was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Column {
    /// Bare CRI calls without any kubelet.
    Floor,
    Upstream,
    Rubelet,
}

impl fmt::Display for Column {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Floor => "CRI floor",
            Self::Upstream => "upstream",
            Self::Rubelet => "rubelet",
        })
    }
}

/// Figures by row and column.
pub(super) struct Samples {
    pods: usize,
    rows: BTreeMap<(Row, Column), Vec<f64>>,
    widths: BTreeMap<(Row, usize), Vec<f64>>,
    marks: BTreeMap<(Mark, Column), Vec<f64>>,
    notes: BTreeMap<String, usize>,
}

impl Samples {
    /// Nothing yet, of rows with this many pods.
    pub(super) fn new(pods: usize) -> Self {
        Self {
            pods,
            rows: BTreeMap::new(),
            widths: BTreeMap::new(),
            marks: BTreeMap::new(),
            notes: BTreeMap::new(),
        }
    }

    /// How many pods the rows of many pods have.
    pub(super) fn pods(&self) -> usize {
        self.pods
    }

    /// Adds a figure to a cell of the table and prints it.
    pub(super) fn record(&mut self, row: Row, column: Column, value: f64) {
        println!(
            "bench:   {column}: {}: {}",
            row.name(self.pods),
            row.figure(value)
        );
        self.rows.entry((row, column)).or_default().push(value);
    }

    /// Adds a figure of the floor with this many pods in flight; the row's floor is the best of them.
    pub(super) fn record_width(&mut self, row: Row, width: usize, value: f64) {
        println!(
            "bench:   {} with {width} in flight: {}: {}",
            Column::Floor,
            row.name(self.pods),
            row.figure(value)
        );
        self.widths.entry((row, width)).or_default().push(value);
    }

    /// Adds when, in milliseconds after its beginning, an action reached a point.
    pub(super) fn mark(&mut self, mark: Mark, column: Column, value_ms: f64) {
        self.marks.entry((mark, column)).or_default().push(value_ms);
    }

    /// Counts something that a reader of the figures has to know.
    pub(super) fn note(&mut self, text: String) {
        eprintln!("bench: note: {text}");
        *self.notes.entry(text).or_default() += 1;
    }

    /// The notes, each with how often it was made.
    pub(super) fn notes(&self) -> impl Iterator<Item = (&str, usize)> {
        self.notes.iter().map(|(text, count)| (text.as_str(), *count))
    }

    /// The median of a cell.
    pub(super) fn figure(&self, row: Row, column: Column) -> Option<f64> {
        if column == Column::Floor
            && let Some((_, best)) = self.best_width(row)
        {
            return Some(best);
        }
        self.rows.get(&(row, column)).map(|values| median(values))
    }

    /// With how many in flight the floor is lowest, and how low.
    pub(super) fn best_width(&self, row: Row) -> Option<(usize, f64)> {
        let of_row = self.widths.iter().filter(|((of, _), _)| *of == row);
        of_row
            .map(|((_, width), values)| (*width, median(values)))
            .min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// The median of a point in time.
    pub(super) fn marked_ms(&self, mark: Mark, column: Column) -> Option<f64> {
        self.marks.get(&(mark, column)).map(|values| median(values))
    }
}

/// The middle value, or the mean of the two middle ones; not a number without values.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let check = |values: &[f64], expected: f64| assert_eq!(median(values), expected, "{values:?}");
        check(&[3.0], 3.0);
        check(&[9.0, 1.0, 2.0], 2.0);
        check(&[4.0, 1.0, 2.0, 9.0], 3.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn the_floor_is_the_width_with_the_lowest_median() {
        let mut samples = Samples::new(100);
        for (width, value) in [(4, 9.0), (4, 11.0), (4, 10.0), (8, 12.0), (8, 1.0), (8, 12.0)] {
            samples.record_width(Row::ManyStart, width, value);
        }
        assert_eq!(samples.best_width(Row::ManyStart), Some((4, 10.0)));
        assert_eq!(samples.figure(Row::ManyStart, Column::Floor), Some(10.0));
        assert_eq!(samples.figure(Row::ManyStop, Column::Floor), None);
    }
}
