//! The runtime's own metrics of pods and containers, for nodes with the gate `PodAndContainerStatsFromCRI`.
//!
//! Owns which of them can stand on a page: a metric that the runtime has described, with as many values as labels, and once. Names, labels
//! and help texts are the runtime's. The description is asked for once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rubelet_model::Timestamp;
use rubelet_ports::{Clock, RuntimeReader, within};
use rubelet_wire::cri::v1;

use super::pieces::PIECE_BYTES;
use crate::exposition::{push_escaped, push_head, push_value};

/// What the runtime may take for each of its two answers.
const LIMIT: Duration = Duration::from_secs(4);

type Descriptors = BTreeMap<String, v1::MetricDescriptor>;

/// The edges, and the runtime's description of its metrics.
pub(crate) struct RuntimeMetrics {
    clock: Arc<dyn Clock>,
    runtime: Arc<dyn RuntimeReader>,
    // A std mutex: it is held to look, never across an await.
    descriptors: Mutex<Option<Arc<Descriptors>>>,
}

/// The samples of one page, by family and labels.
#[derive(Debug, Default)]
pub(crate) struct RuntimePage {
    descriptors: Arc<Descriptors>,
    families: Vec<(String, Family)>,
}

#[derive(Debug)]
struct Family {
    kind: v1::MetricType,
    /// By the values of the labels: no two samples have the same.
    samples: BTreeMap<Vec<String>, (u64, Option<Timestamp>)>,
}

impl RuntimeMetrics {
    pub(crate) fn new(clock: Arc<dyn Clock>, runtime: Arc<dyn RuntimeReader>) -> Self {
        Self {
            clock,
            runtime,
            descriptors: Mutex::default(),
        }
    }

    /// What the runtime has; nothing where it does not answer.
    pub(crate) async fn look(&self) -> RuntimePage {
        let Some(descriptors) = self.descriptors().await else {
            return RuntimePage::default();
        };
        let list = self.runtime.list_pod_sandbox_metrics();
        let problem = match within(self.clock.as_ref(), LIMIT, list).await {
            Ok(Ok(pods)) => return page(descriptors, pods),
            Ok(Err(error)) => error.to_string(),
            Err(elapsed) => elapsed.to_string(),
        };
        tracing::warn!(problem, "The runtime has no metrics of its pods");
        RuntimePage::default()
    }

    async fn descriptors(&self) -> Option<Arc<Descriptors>> {
        let known = self.known().clone();
        if known.is_some() {
            return known;
        }
        let list = self.runtime.list_metric_descriptors();
        let problem = match within(self.clock.as_ref(), LIMIT, list).await {
            Ok(Ok(list)) => {
                let by_name = list.into_iter().filter(is_well_named);
                let by_name = by_name.map(|descriptor| (descriptor.name.clone(), descriptor));
                let descriptors = Arc::new(by_name.collect());
                *self.known() = Some(Arc::clone(&descriptors));
                return Some(descriptors);
            }
            Ok(Err(error)) => error.to_string(),
            Err(elapsed) => elapsed.to_string(),
        };
        tracing::warn!(problem, "The runtime does not describe its metrics of pods");
        None
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Option<Arc<Descriptors>>> {
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Other names would break the page.
fn is_well_named(descriptor: &v1::MetricDescriptor) -> bool {
    let is_name = |name: &str, further: &[char]| {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || further.contains(&c);
        name.chars().all(fits) && name.chars().next().is_some_and(|first| !first.is_ascii_digit())
    };
    let is_good =
        is_name(&descriptor.name, &[':']) && descriptor.label_keys.iter().all(|key| is_name(key, &[]));
    if !is_good {
        tracing::warn!(
            name = descriptor.name,
            "A metric of the runtime has a name or a label that no page can hold"
        );
    }
    is_good
}

fn page(descriptors: Arc<Descriptors>, pods: Vec<v1::PodSandboxMetrics>) -> RuntimePage {
    let metrics = pods.into_iter().flat_map(|pod| {
        let of_containers = pod.container_metrics.into_iter();
        pod.metrics
            .into_iter()
            .chain(of_containers.flat_map(|container| container.metrics))
    });
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for metric in metrics {
        let kind = metric.metric_type();
        let labels = descriptors.get(&metric.name).map(|known| known.label_keys.len());
        if labels != Some(metric.label_values.len()) {
            continue;
        }
        let family = families.entry(metric.name).or_insert_with(|| Family {
            kind,
            samples: BTreeMap::new(),
        });
        let taken_at = (metric.timestamp != 0).then(|| Timestamp::from_unix_nanos(metric.timestamp));
        let value = metric.value.map_or(0, |value| value.value);
        if family.kind == kind {
            family
                .samples
                .entry(metric.label_values)
                .or_insert((value, taken_at));
        }
    }
    RuntimePage {
        descriptors,
        families: families.into_iter().collect(),
    }
}

impl RuntimePage {
    /// The text, in pieces: each ends with a family, or where one is larger than a piece.
    pub(crate) fn pieces(self: Arc<Self>) -> impl Iterator<Item = Vec<u8>> + Send {
        let count = self.families.len();
        let mut next = 0;
        std::iter::from_fn(move || {
            let mut text = String::new();
            while next < count && text.len() < PIECE_BYTES {
                self.push_family(&mut text, next);
                next += 1;
            }
            (!text.is_empty()).then(|| text.into_bytes())
        })
    }

    fn push_family(&self, text: &mut String, at: usize) {
        let Some((name, family)) = self.families.get(at) else {
            return;
        };
        let Some(descriptor) = self.descriptors.get(name) else {
            return;
        };
        let kind = match family.kind {
            v1::MetricType::Counter => "counter",
            v1::MetricType::Gauge => "gauge",
        };
        push_head(text, name, kind, &descriptor.help);
        for (values, (value, taken_at)) in &family.samples {
            text.push_str(name);
            let mut labels: Vec<(&String, &String)> = descriptor.label_keys.iter().zip(values).collect();
            labels.sort();
            for (number, (key, value)) in labels.into_iter().enumerate() {
                text.push(if number == 0 { '{' } else { ',' });
                text.push_str(key);
                text.push_str("=\"");
                push_escaped(text, value, true);
                text.push('"');
            }
            if !values.is_empty() {
                text.push('}');
            }
            push_value(text, *value as f64, *taken_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(name: &str, kind: v1::MetricType, labels: &[&str], value: u64, timestamp: i64) -> v1::Metric {
        v1::Metric {
            name: name.to_owned(),
            timestamp,
            metric_type: kind.into(),
            label_values: labels.iter().map(|label| (*label).to_owned()).collect(),
            value: Some(v1::UInt64Value { value }),
        }
    }

    fn text(page: RuntimePage) -> String {
        let pieces: Vec<Vec<u8>> = Arc::new(page).pieces().collect();
        String::from_utf8(pieces.concat()).unwrap()
    }

    #[test]
    fn what_the_runtime_described_stands_on_the_page() {
        use v1::MetricType::{Counter, Gauge};
        let descriptor = |name: &str, keys: &[&str]| {
            let descriptor = v1::MetricDescriptor {
                name: name.to_owned(),
                help: format!("Help of {name}."),
                label_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            };
            (name.to_owned(), descriptor)
        };
        let descriptors = [
            descriptor("container_b_total", &["pod", "container"]),
            descriptor("container_a", &[]),
        ];
        let metrics = vec![
            metric("container_b_total", Counter, &["web", "ma\"in"], 5, 1_500_000_000),
            // A second time, with other labels than described, of another kind, and not described.
            metric("container_b_total", Counter, &["web", "ma\"in"], 6, 0),
            metric("container_b_total", Counter, &["web"], 7, 0),
            metric("container_b_total", Gauge, &["web", "other"], 8, 0),
            metric("container_c", Gauge, &[], 9, 0),
        ];
        let of_container = v1::ContainerMetrics {
            container_id: "c".to_owned(),
            metrics: vec![metric("container_a", Gauge, &[], 1_000_000, 0)],
        };
        let pod = v1::PodSandboxMetrics {
            pod_sandbox_id: "s".to_owned(),
            metrics,
            container_metrics: vec![of_container],
        };
        assert_eq!(
            text(page(Arc::new(descriptors.into()), vec![pod])),
            "# HELP container_a Help of container_a.\n# TYPE container_a gauge\ncontainer_a 1e+06\n\
             # HELP container_b_total Help of container_b_total.\n# TYPE container_b_total counter\n\
             container_b_total{container=\"ma\\\"in\",pod=\"web\"} 5 1500\n"
        );
    }

    #[test]
    fn names_that_break_a_page_are_left_out() {
        let check = |name: &str, key: &str, expected: bool| {
            let descriptor = v1::MetricDescriptor {
                name: name.to_owned(),
                help: String::new(),
                label_keys: vec![key.to_owned()],
            };
            assert_eq!(is_well_named(&descriptor), expected, "{name} {key}");
        };
        check("container_a:b", "pod", true);
        check("_a1", "_p", true);
        check("1a", "pod", false);
        check("", "pod", false);
        check("a\nb", "pod", false);
        check("a", "p:d", false);
        check("a", "", false);
    }
}
