//! How many volumes there are and how long work on them takes, under upstream's names.
//!
//! Owns the metrics, upstream's names of the kinds of volumes, and what of a pod is counted. They live in the registry that the
//! program passes in; there is nothing global. What a pod counts for goes with it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Volume};
use prometheus::{HistogramVec, IntGaugeVec, Registry};
use rubelet_ports::Meters;

use crate::record::Standing;

const SECONDS: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];
const DESIRED: &str = "desired_state_of_world";
const ACTUAL: &str = "actual_state_of_world";

#[derive(Clone, Debug)]
pub struct VolumesMetrics {
    totals: IntGaugeVec,
    operations: HistogramVec,
}

/// What was done with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Mount,
    Unmount,
}

impl VolumesMetrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let meters = Meters::new(registry);
        Ok(Self {
            totals: meters.gauges(
                "volume_manager_total_volumes",
                &["plugin_name", "state"],
                "[ALPHA] Volumes of the pods on this node, by kind and by whether they are wanted or stand.",
            )?,
            operations: meters.histograms(
                "storage_operation_duration_seconds",
                &["volume_plugin", "operation_name", "status", "migrated"],
                &SECONDS,
                "[BETA] Duration of work on a volume in seconds, by kind, by what was done and by how it ended.",
            )?,
        })
    }

    pub(crate) fn worked(&self, plugin: &str, operation: Operation, is_done: bool, took: Duration) {
        let operation = match operation {
            Operation::Mount => "volume_mount",
            Operation::Unmount => "volume_unmount",
        };
        let status = if is_done { "success" } else { "fail-unknown" };
        self.operations
            .with_label_values(&[plugin, operation, status, "false"])
            .observe(took.as_secs_f64());
    }

    /// Counts a pod's volumes as they are now instead of as they were.
    pub(crate) fn count(&self, counted: &mut Counted, record: &BTreeMap<String, Standing>) {
        let now = counted.plugins.iter().flat_map(|(volume, plugin)| {
            let stands = record.contains_key(volume).then_some((*plugin, ACTUAL));
            [Some((*plugin, DESIRED)), stands].into_iter().flatten()
        });
        let mut totals: BTreeMap<(&'static str, &'static str), i64> = BTreeMap::new();
        for key in now {
            *totals.entry(key).or_default() += 1;
        }
        self.replace(&mut counted.totals, totals);
    }

    pub(crate) fn forget(&self, counted: &mut Counted) {
        counted.plugins.clear();
        self.replace(&mut counted.totals, BTreeMap::new());
    }

    fn replace(&self, old: &mut Totals, new: Totals) {
        for ((plugin, state), count) in &new {
            self.totals.with_label_values(&[*plugin, *state]).add(*count);
        }
        for ((plugin, state), count) in std::mem::replace(old, new) {
            self.totals.with_label_values(&[plugin, state]).sub(count);
        }
    }
}

type Totals = BTreeMap<(&'static str, &'static str), i64>;

/// What a pod is counted for.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Kinds of the volumes that its containers use, by name.
    pub(crate) plugins: BTreeMap<String, &'static str>,
    totals: Totals,
}

impl Counted {
    pub(crate) fn wants<'a>(&mut self, pod: &Pod, used: impl Iterator<Item = &'a str>) {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
        let of_name = |name: &str| volumes.unwrap_or_default().iter().find(|one| one.name == name);
        let used = used.filter_map(|name| Some((name.to_owned(), plugin_name(of_name(name)?))));
        self.plugins = used.collect();
    }

    pub(crate) fn plugin(&self, volume: &str) -> &'static str {
        self.plugins.get(volume).copied().unwrap_or("N/A")
    }
}

fn plugin_name(volume: &Volume) -> &'static str {
    if volume.empty_dir.is_some() {
        "kubernetes.io/empty-dir"
    } else if volume.config_map.is_some() {
        "kubernetes.io/configmap"
    } else if volume.secret.is_some() {
        "kubernetes.io/secret"
    } else if volume.projected.is_some() {
        "kubernetes.io/projected"
    } else if volume.downward_api.is_some() {
        "kubernetes.io/downward-api"
    } else if volume.host_path.is_some() {
        "kubernetes.io/host-path"
    } else if volume.image.is_some() {
        "kubernetes.io/image"
    } else {
        "N/A"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::record::{Fingerprint, Record};

    fn total(metrics: &VolumesMetrics, plugin: &str, state: &str) -> i64 {
        metrics.totals.with_label_values(&[plugin, state]).get()
    }

    #[test]
    fn a_pod_counts_once_and_no_longer_than_it_is_there() {
        let metrics = VolumesMetrics::register(&Registry::new()).expect("an empty registry takes them");
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": [
            {"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}, {"name": "c", "secret": {"secretName": "s"}},
            {"name": "unused", "hostPath": {"path": "/x"}},
        ]}}))
        .expect("a pod");
        let mut record = Record::default();
        record.counted.wants(&pod, ["a", "b", "c"].into_iter());
        record
            .standing
            .insert("a".to_owned(), Standing::As(Fingerprint::of(&[])));
        for _ in 0..2 {
            record.show(&metrics);
            assert_eq!(total(&metrics, "kubernetes.io/empty-dir", DESIRED), 2);
            assert_eq!(total(&metrics, "kubernetes.io/empty-dir", ACTUAL), 1);
            assert_eq!(total(&metrics, "kubernetes.io/secret", DESIRED), 1);
            assert_eq!(total(&metrics, "kubernetes.io/secret", ACTUAL), 0);
            assert_eq!(total(&metrics, "kubernetes.io/host-path", DESIRED), 0);
        }
        metrics.forget(&mut record.counted);
        assert_eq!(total(&metrics, "kubernetes.io/empty-dir", DESIRED), 0);
        assert_eq!(total(&metrics, "kubernetes.io/empty-dir", ACTUAL), 0);
    }
}
