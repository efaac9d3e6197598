//! Pages of metrics in Prometheus' text format, version 0.0.4, read without mercy.
//!
//! Owns the reader. It takes what the format demands and nothing else, so that a page which some collector would misread fails a test:
//! `HELP` and `TYPE` before the samples, every family in one piece, no series twice, the same labels throughout a family,
//! histograms whose buckets add up.

mod checks;
mod line;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};

use line::Line;

/// What a family of series is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
    Untyped,
}

impl Kind {
    fn parse(word: &str) -> Result<Self> {
        Ok(match word {
            "counter" => Self::Counter,
            "gauge" => Self::Gauge,
            "histogram" => Self::Histogram,
            "summary" => Self::Summary,
            "untyped" => Self::Untyped,
            other => bail!("{other:?} is no type of metric"),
        })
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
            Self::Untyped => "untyped",
        }
    }
}

/// One number.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// With the ending that histograms and summaries add.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
    /// When it was taken, in milliseconds since 1970, where that is not the time of the page.
    pub time_ms: Option<i64>,
}

/// All series of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    pub name: String,
    pub help: String,
    pub kind: Kind,
    pub samples: Vec<Sample>,
}

impl Family {
    /// The labels that its series have, without those that the format adds.
    #[must_use]
    pub fn label_names(&self) -> BTreeSet<&str> {
        let names = self.samples.iter().flat_map(|sample| sample.labels.keys());
        let is_own = |name: &&str| match self.kind {
            Kind::Histogram => *name != "le",
            Kind::Summary => *name != "quantile",
            Kind::Counter | Kind::Gauge | Kind::Untyped => true,
        };
        names.map(String::as_str).filter(is_own).collect()
    }

    /// The upper ends of a histogram's buckets as they are spelled, in order.
    #[must_use]
    pub fn buckets(&self) -> Vec<&str> {
        let mut ends: Vec<&str> = Vec::new();
        for end in self.samples.iter().filter_map(|sample| sample.labels.get("le")) {
            if ends.contains(&end.as_str()) {
                break;
            }
            ends.push(end);
        }
        ends
    }
}

/// A page, by the names of its families.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricsText {
    pub families: BTreeMap<String, Family>,
}

/// A page that is being read.
#[derive(Default)]
struct Reader {
    page: MetricsText,
    current: Option<Family>,
    /// The family's HELP was read and its TYPE was not.
    awaits_type: bool,
}

impl MetricsText {
    /// Reads a page.
    ///
    /// # Errors
    /// For the first thing that is not as the format wants it, with its line.
    pub fn parse(text: &str) -> Result<Self> {
        ensure!(
            text.is_empty() || text.ends_with('\n'),
            "the last line has no end"
        );
        let mut reader = Reader::default();
        for (number, text) in text.lines().enumerate() {
            reader
                .take_line(text)
                .with_context(|| format!("line {}: {text}", number + 1))?;
        }
        reader.finish_family()?;
        Ok(reader.page)
    }

    #[must_use]
    pub fn family(&self, name: &str) -> Option<&Family> {
        self.families.get(name)
    }

    /// The sum of all samples of this name (with a histogram's ending, where it is one) that have these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let all = self.families.values().flat_map(|family| &family.samples);
        let matching = all.filter(|sample| {
            let has =
                |(key, value): &(&str, &str)| sample.labels.get(*key).is_some_and(|found| found == value);
            sample.name == name && labels.iter().all(has)
        });
        let values: Vec<f64> = matching.map(|sample| sample.value).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }
}

impl Reader {
    fn take_line(&mut self, text: &str) -> Result<()> {
        match line::read(text)? {
            Line::Help { name, help } => {
                self.finish_family()?;
                ensure!(!self.page.families.contains_key(&name), "{name} was there before");
                self.awaits_type = true;
                self.current = Some(Family {
                    name,
                    help,
                    kind: Kind::Untyped,
                    samples: Vec::new(),
                });
            }
            Line::Type { name, kind } => {
                let family = self.current.as_mut().filter(|family| family.name == name);
                let family = family.with_context(|| format!("TYPE of {name} without its HELP before"))?;
                ensure!(self.awaits_type, "{name} has two types");
                family.kind = kind;
                self.awaits_type = false;
            }
            Line::Sample(sample) => {
                let family = self.current.as_mut().context("a sample before any HELP")?;
                ensure!(!self.awaits_type, "a sample before the TYPE of {}", family.name);
                family.samples.push(sample);
            }
        }
        Ok(())
    }

    fn finish_family(&mut self) -> Result<()> {
        let Some(family) = self.current.take() else {
            return Ok(());
        };
        ensure!(!self.awaits_type, "{} has no TYPE", family.name);
        checks::check(&family).with_context(|| format!("family {}", family.name))?;
        self.page.families.insert(family.name.clone(), family);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
