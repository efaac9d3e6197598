//! Everything that was measured, and the medians of it.

use std::collections::BTreeMap;
use std::fmt;

use super::budget::{Row, Sizes};
use super::marks::Mark;

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

/// How one column compares with another: the rounds' ratios. What slows the machine down for minutes slows both of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    pub(super) median: f64,
    pub(super) lowest: f64,
    pub(super) highest: f64,
}

/// Values by the round in which they were measured.
type Rounds = BTreeMap<usize, Vec<f64>>;

/// Figures by row and column.
pub(super) struct Samples {
    sizes: Sizes,
    /// Whether figures are printed as they come.
    is_heard: bool,
    round: usize,
    rows: BTreeMap<(Row, Column), Rounds>,
    widths: BTreeMap<(Row, usize), Rounds>,
    marks: BTreeMap<(Mark, Column), Vec<f64>>,
    notes: BTreeMap<String, usize>,
}

impl Samples {
    /// Nothing yet, of rows with this many pods.
    pub(super) fn new(sizes: Sizes) -> Self {
        Self {
            sizes,
            is_heard: true,
            round: 0,
            rows: BTreeMap::new(),
            widths: BTreeMap::new(),
            marks: BTreeMap::new(),
            notes: BTreeMap::new(),
        }
    }

    /// For figures that belong to no row; they are not printed either.
    pub(super) fn unheard() -> Self {
        Self {
            is_heard: false,
            ..Self::new(Sizes { many: 0, dense: 0 })
        }
    }

    /// How many pods the rows have.
    pub(super) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// What is recorded from now on belongs to this round.
    pub(super) fn begin_round(&mut self, round: usize) {
        self.round = round;
    }

    /// Adds a figure to a cell of the table and prints it.
    pub(super) fn record(&mut self, row: Row, column: Column, value: f64) {
        if self.is_heard {
            println!(
                "bench:   {column}: {}: {}",
                row.name(self.sizes),
                row.figure(value)
            );
        }
        let rounds = self.rows.entry((row, column)).or_default();
        rounds.entry(self.round).or_default().push(value);
    }

    /// Adds a figure of the floor with this many pods in flight; the row's floor is the best of them.
    pub(super) fn record_width(&mut self, row: Row, width: usize, value: f64) {
        println!(
            "bench:   {} with {width} in flight: {}: {}",
            Column::Floor,
            row.name(self.sizes),
            row.figure(value)
        );
        let rounds = self.widths.entry((row, width)).or_default();
        rounds.entry(self.round).or_default().push(value);
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
        self.rows.get(&(row, column)).map(median_of_all)
    }

    /// Rubelet's figures as multiples of another column's, round by round.
    pub(super) fn ratio(&self, row: Row, below: Column) -> Option<Ratio> {
        let ours = self.rows.get(&(row, Column::Rubelet))?;
        let theirs = match self.best_width(row) {
            Some((width, _)) if below == Column::Floor => self.widths.get(&(row, width))?,
            _ => self.rows.get(&(row, below))?,
        };
        let ratios: Vec<f64> = ours
            .iter()
            .filter_map(|(round, values)| Some((median(values), median(theirs.get(round)?))))
            // A difference of two starts can come out at nothing; no multiple of that means anything.
            .filter(|(_, below)| *below > 0.0)
            .map(|(ours, below)| ours / below)
            .collect();
        let lowest = ratios.iter().copied().reduce(f64::min)?;
        let highest = ratios.iter().copied().reduce(f64::max)?;
        Some(Ratio {
            median: median(&ratios),
            lowest,
            highest,
        })
    }

    /// Rubelet's figure per pod as a multiple of the one with fewer pods; nothing for rows without such a counterpart.
    pub(super) fn per_pod_ratio(&self, row: Row) -> Option<f64> {
        let fewer = self.figure(row.with_fewer_pods()?, Column::Rubelet)?;
        let scale = self.sizes.dense as f64 / self.sizes.many as f64;
        (fewer > 0.0).then_some(self.figure(row, Column::Rubelet)? / (fewer * scale))
    }

    /// With how many in flight the floor is lowest, and how low.
    pub(super) fn best_width(&self, row: Row) -> Option<(usize, f64)> {
        let of_row = self.widths.iter().filter(|((of, _), _)| *of == row);
        of_row
            .map(|((_, width), values)| (*width, median_of_all(values)))
            .min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// The median of a point in time.
    pub(super) fn marked_ms(&self, mark: Mark, column: Column) -> Option<f64> {
        self.marks.get(&(mark, column)).map(|values| median(values))
    }
}

fn median_of_all(rounds: &Rounds) -> f64 {
    let values: Vec<f64> = rounds.values().flatten().copied().collect();
    median(&values)
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

    const SIZES: Sizes = Sizes {
        many: 100,
        dense: 500,
    };

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
        let mut samples = Samples::new(SIZES);
        for (width, value) in [(4, 9.0), (4, 11.0), (4, 10.0), (8, 12.0), (8, 1.0), (8, 12.0)] {
            samples.record_width(Row::ManyStart, width, value);
        }
        assert_eq!(samples.best_width(Row::ManyStart), Some((4, 10.0)));
        assert_eq!(samples.figure(Row::ManyStart, Column::Floor), Some(10.0));
        assert_eq!(samples.figure(Row::ManyStop, Column::Floor), None);
    }

    #[test]
    fn costs_per_pod_are_compared_with_the_row_of_fewer_pods() {
        let mut samples = Samples::new(SIZES);
        samples.record(Row::DenseKubeletRestart, Column::Rubelet, 1.5);
        assert_eq!(samples.per_pod_ratio(Row::DenseKubeletRestart), None);
        samples.record(Row::KubeletRestart, Column::Rubelet, 0.2);
        assert_eq!(samples.per_pod_ratio(Row::DenseKubeletRestart), Some(1.5));
        assert_eq!(samples.per_pod_ratio(Row::KubeletRestart), None);
    }

    #[test]
    fn ratios_compare_what_was_measured_in_one_round() {
        let mut samples = Samples::new(SIZES);
        // The machine is slow in the first round, and for us alone in the third.
        for (round, floor, ours) in [(1, 20.0, 18.0), (2, 10.0, 9.0), (3, 10.0, 15.0)] {
            samples.begin_round(round);
            samples.record_width(Row::ManyStop, 4, floor);
            samples.record_width(Row::ManyStop, 8, floor * 3.0);
            samples.record(Row::ManyStop, Column::Rubelet, ours);
        }
        samples.begin_round(4);
        samples.record(Row::ManyStop, Column::Rubelet, 99.0);
        let expected = Ratio {
            median: 0.9,
            lowest: 0.9,
            highest: 1.5,
        };
        assert_eq!(samples.ratio(Row::ManyStop, Column::Floor), Some(expected));
        assert_eq!(samples.ratio(Row::ManyStop, Column::Upstream), None);
        samples.record(Row::VolumesStart, Column::Upstream, -1.0);
        samples.record(Row::VolumesStart, Column::Rubelet, 1.0);
        assert_eq!(samples.ratio(Row::VolumesStart, Column::Upstream), None);
    }
}
