//! What has to hold within a family.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::line::number;
use super::{Family, Kind, Sample};

pub(super) fn check(family: &Family) -> Result<()> {
    ensure!(!family.help.is_empty(), "no help");
    ensure!(!family.samples.is_empty(), "no samples");
    let mut seen = BTreeSet::new();
    for sample in &family.samples {
        let is_new = seen.insert((&sample.name, &sample.labels));
        ensure!(is_new, "{} {:?} is there twice", sample.name, sample.labels);
    }
    match family.kind {
        Kind::Counter | Kind::Gauge | Kind::Untyped => check_plain(family),
        Kind::Histogram => check_groups(family, "le", check_histogram),
        Kind::Summary => check_groups(family, "quantile", |_, _| Ok(())),
    }
}

fn check_plain(family: &Family) -> Result<()> {
    let names = |sample: &Sample| sample.labels.keys().cloned().collect::<Vec<_>>();
    let expected = family.samples.first().map(names);
    for sample in &family.samples {
        ensure!(sample.name == family.name, "{} does not belong here", sample.name);
        ensure!(Some(names(sample)) == expected, "series with different labels");
        if family.kind == Kind::Counter {
            let is_count = sample.value.is_finite() && sample.value >= 0.0;
            ensure!(is_count, "a counter of {}", sample.value);
        }
    }
    Ok(())
}

/// The samples of one series of a histogram or summary.
#[derive(Default)]
struct Group<'a> {
    parts: Vec<&'a Sample>,
    sum: Option<f64>,
    count: Option<f64>,
}

fn check_groups(
    family: &Family,
    part_label: &str,
    check: impl Fn(&[&Sample], f64) -> Result<()>,
) -> Result<()> {
    let part_name = match family.kind {
        Kind::Histogram => format!("{}_bucket", family.name),
        _ => family.name.clone(),
    };
    let mut groups: BTreeMap<BTreeMap<&String, &String>, Group<'_>> = BTreeMap::new();
    for sample in &family.samples {
        let own = sample
            .labels
            .iter()
            .filter(|(name, _)| name.as_str() != part_label);
        let group = groups.entry(own.collect()).or_default();
        let has_part = sample.labels.contains_key(part_label);
        if sample.name == part_name && has_part {
            group.parts.push(sample);
        } else if sample.name == format!("{}_sum", family.name) && !has_part {
            group.sum = Some(sample.value);
        } else if sample.name == format!("{}_count", family.name) && !has_part {
            group.count = Some(sample.value);
        } else {
            anyhow::bail!("{} {:?} does not belong here", sample.name, sample.labels);
        }
    }
    let names =
        |labels: &BTreeMap<&String, &String>| labels.keys().map(|name| (*name).clone()).collect::<Vec<_>>();
    let expected = groups.keys().next().map(names);
    let mut spelled: Option<Vec<&String>> = None;
    for (labels, group) in &groups {
        let context = || format!("series {labels:?}");
        ensure!(Some(names(labels)) == expected, "series with different labels");
        group.sum.context("no sum").with_context(context)?;
        let count = group.count.context("no count").with_context(context)?;
        check(&group.parts, count).with_context(context)?;
        let ends: Vec<&String> = group
            .parts
            .iter()
            .filter_map(|part| part.labels.get(part_label))
            .collect();
        let same = spelled.get_or_insert_with(|| ends.clone());
        ensure!(*same == ends, "series with different buckets");
    }
    Ok(())
}

fn check_histogram(buckets: &[&Sample], count: f64) -> Result<()> {
    let mut last: Option<(f64, f64)> = None;
    for bucket in buckets {
        let end = bucket.labels.get("le").context("a bucket without an end")?;
        let end = number(end)?;
        if let Some((last_end, last_count)) = last {
            ensure!(end > last_end, "bucket {end} after {last_end}");
            ensure!(
                bucket.value >= last_count,
                "bucket {end} has fewer than the one before"
            );
        }
        last = Some((end, bucket.value));
    }
    let (end, all) = last.context("no buckets")?;
    ensure!(end.is_infinite(), "the last bucket ends at {end}");
    ensure!(all == count, "{all} in all buckets and a count of {count}");
    Ok(())
}
