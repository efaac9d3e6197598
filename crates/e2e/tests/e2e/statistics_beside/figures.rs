//! A page taken apart: every figure under what it is of, so that two pages can be laid side by side.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rubelet_testbed::metrics_text::{MetricsText, Sample};
use serde_json::Value;

/// What a figure is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// Pods, their sandboxes and containers, which do the same all the time.
    Pods,
    /// The node and its cgroups, where other tests are at work too.
    Node,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    Number(f64),
    Text(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    /// The family, or the field with all fields around it.
    pub(super) kind: String,
    pub(super) rows: Rows,
    pub(super) content: Content,
}

/// By what each is of: a series, or a field with the names of all that it is in.
pub(super) type Figures = BTreeMap<String, Figure>;

/// The series of a page of metrics; cgroups outside of the node's root are left out.
pub(super) fn of_metrics(page: &MetricsText, cgroup_root: &str) -> Figures {
    let is_ours = |sample: &&Sample| {
        let id = sample.labels.get("id");
        id.is_none_or(|id| id == "/" || id.starts_with(cgroup_root))
    };
    let samples = page.families.values().flat_map(|family| &family.samples);
    let figures = samples.filter(is_ours).map(|sample| {
        let labels: Vec<String> = sample
            .labels
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let of_pod = sample.labels.get("pod").is_some_and(|pod| !pod.is_empty());
        let figure = Figure {
            kind: sample.name.clone(),
            rows: if of_pod { Rows::Pods } else { Rows::Node },
            content: Content::Number(sample.value),
        };
        (format!("{}{{{}}}", sample.name, labels.join(",")), figure)
    });
    figures.collect()
}

/// Type, labels, and whether samples have a time of their own, of every family.
pub(super) fn shapes(page: &MetricsText) -> Figures {
    let families = page.families.values().map(|family| {
        let timed = family.samples.iter().filter(|sample| sample.time_ms.is_some());
        let times = match timed.count() {
            0 => "no times",
            count if count == family.samples.len() => "times",
            _ => "times of some",
        };
        let shape = format!("{} {:?} {times}", family.kind.as_str(), family.label_names());
        let figure = Figure {
            kind: family.name.clone(),
            rows: Rows::Node,
            content: Content::Text(shape),
        };
        (family.name.clone(), figure)
    });
    families.collect()
}

/// The fields of a summary. Times are seconds since 1970.
pub(super) fn of_summary(text: &str) -> Result<Figures> {
    let summary: Value = serde_json::from_str(text).context("the summary is no JSON")?;
    let mut figures = Figures::new();
    add(&mut figures, &[], &[], &summary)?;
    Ok(figures)
}

fn add(figures: &mut Figures, kind: &[&str], key: &[&str], value: &Value) -> Result<()> {
    let content = match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                add(
                    figures,
                    &[kind, &[name]].concat(),
                    &[key, &[name]].concat(),
                    value,
                )?;
            }
            return Ok(());
        }
        Value::Array(elements) => {
            for element in elements {
                let name = [&element["name"], &element["podRef"]["name"]]
                    .into_iter()
                    .find_map(Value::as_str);
                let name = name.with_context(|| format!("{kind:?} has an element without a name"))?;
                add(figures, kind, &[key, &[name]].concat(), element)?;
            }
            return Ok(());
        }
        Value::Number(number) => Content::Number(number.as_f64().context("a number")?),
        Value::String(text) => match serde_json::from_value::<Time>(value.clone()) {
            Ok(time) => Content::Number(time.0.as_second() as f64),
            Err(_) => Content::Text(text.clone()),
        },
        other => Content::Text(other.to_string()),
    };
    let rows = if kind.first() == Some(&"pods") {
        Rows::Pods
    } else {
        Rows::Node
    };
    let figure = Figure {
        kind: kind.join("."),
        rows,
        content,
    };
    figures.insert(key.join("."), figure);
    Ok(())
}
