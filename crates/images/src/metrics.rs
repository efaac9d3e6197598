//! Metrics of images, under upstream's names.
//!
//! Owns the metrics and how a pull, a request or a plugin is sorted into them. They live in the registry that the program passes in; there
//! is nothing global. Upstream's two gauges of how full its caches of records are have no counterpart: here all records are in memory.

use std::time::Duration;

use prometheus::{
    DEFAULT_BUCKETS, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry,
    core::Collector,
};

use crate::request::PullPolicy;

const PULL_SECONDS: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0,
    2700.0, 3600.0,
];
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Where a class of image sizes begins, and its name.
const SIZES: [(u64, &str); 12] = [
    (0, "0-10MB"),
    (10 * MIB, "10MB-100MB"),
    (100 * MIB, "100MB-500MB"),
    (500 * MIB, "500MB-1GB"),
    (GIB, "1GB-5GB"),
    (5 * GIB, "5GB-10GB"),
    (10 * GIB, "10GB-20GB"),
    (20 * GIB, "20GB-30GB"),
    (30 * GIB, "30GB-40GB"),
    (40 * GIB, "40GB-60GB"),
    (60 * GIB, "60GB-100GB"),
    (100 * GIB, "GT100GB"),
];

/// Why an image was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removed {
    Age,
    Space,
}

/// The verdict of the records about a pod that wants a present image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    PolicyAllowed,
    RecordFound,
    MustAuthenticate,
    Error,
}

/// Counters, gauges and histograms of images.
#[derive(Clone, Debug)]
pub struct ImagesMetrics {
    pull_durations: HistogramVec,
    garbage_collected: IntCounterVec,
    requests: IntCounterVec,
    intents: IntGauge,
    records: IntGauge,
    checks: IntCounterVec,
    plugin_errors: IntCounterVec,
    plugin_durations: HistogramVec,
    plugin_configuration: GaugeVec,
}

impl ImagesMetrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(Opts::new(name, help), labels).and_then(|made| kept(registry, made))
        };
        let gauge = |name: &str, help: &str| {
            IntGauge::with_opts(Opts::new(name, help)).and_then(|made| kept(registry, made))
        };
        let durations = |name: &str, help: &str, buckets: &[f64], label: &str| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            HistogramVec::new(options, &[label]).and_then(|made| kept(registry, made))
        };
        Ok(Self {
            pull_durations: durations(
                "kubelet_image_pull_duration_seconds",
                "[ALPHA] Time from the request for an image to its arrival in seconds, by the image's size.",
                &PULL_SECONDS,
                "image_size_in_bytes",
            )?,
            garbage_collected: counters(
                "kubelet_image_garbage_collected_total",
                "[ALPHA] Images that were removed because they are unused, by what they were removed for.",
                &["reason"],
            )?,
            requests: counters(
                "kubelet_image_manager_ensure_image_requests_total",
                "[ALPHA] Images that containers asked for, by policy, by whether they were there, and by whether they had to be pulled.",
                &["pull_policy", "present_locally", "pull_required"],
            )?,
            intents: gauge(
                "kubelet_imagemanager_ondisk_pullintents",
                "[ALPHA] Notes on disk of pulls whose end is not known yet.",
            )?,
            records: gauge(
                "kubelet_imagemanager_ondisk_pulledrecords",
                "[ALPHA] Notes on disk of who could pull an image.",
            )?,
            checks: counters(
                "kubelet_imagemanager_image_mustpull_checks_total",
                "[ALPHA] Looks at whether a pod may use an image that is there, by their result.",
                &["result"],
            )?,
            plugin_errors: counters(
                "kubelet_credential_provider_plugin_errors_total",
                "[ALPHA] Runs of credential provider plugins that failed, by plugin.",
                &["plugin_name"],
            )?,
            plugin_durations: durations(
                "kubelet_credential_provider_plugin_duration",
                "[ALPHA] Duration of the runs of credential provider plugins in seconds, by plugin.",
                DEFAULT_BUCKETS,
                "plugin_name",
            )?,
            plugin_configuration: GaugeVec::new(
                Opts::new(
                    "kubelet_credential_provider_config_info",
                    "[ALPHA] The configuration of credential provider plugins in force, by its hash.",
                ),
                &["hash"],
            )
            .and_then(|made| kept(registry, made))?,
        })
    }

    /// The configuration of plugins, by its hash.
    pub fn plugins_configured(&self, hash: &str) {
        self.plugin_configuration.reset();
        self.plugin_configuration.with_label_values(&[hash]).set(1.0);
    }

    pub(crate) fn pulled(&self, with_waiting: Duration, size_bytes: u64) {
        self.pull_durations
            .with_label_values(&[size_class(size_bytes)])
            .observe(with_waiting.as_secs_f64());
    }

    pub(crate) fn removed(&self, why: Removed) {
        let reason = match why {
            Removed::Age => "age",
            Removed::Space => "space",
        };
        self.garbage_collected.with_label_values(&[reason]).inc();
    }

    /// `None` is unknown.
    pub(crate) fn requested(
        &self,
        policy: PullPolicy,
        present_locally: Option<bool>,
        pull_required: Option<bool>,
    ) {
        let policy = match policy {
            PullPolicy::Always => "always",
            PullPolicy::IfNotPresent => "ifnotpresent",
            PullPolicy::Never => "never",
        };
        let label = |known: Option<bool>| match known {
            Some(true) => "true",
            Some(false) => "false",
            None => "unknown",
        };
        self.requests
            .with_label_values(&[policy, label(present_locally), label(pull_required)])
            .inc();
    }

    pub(crate) fn checked(&self, result: Check) {
        let result = match result {
            Check::PolicyAllowed => "credentialPolicyAllowed",
            Check::RecordFound => "credentialRecordFound",
            Check::MustAuthenticate => "mustAuthenticate",
            Check::Error => "error",
        };
        self.checks.with_label_values(&[result]).inc();
    }

    pub(crate) fn on_disk(&self, intents: usize, records: usize) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.intents.set(number(intents));
        self.records.set(number(records));
    }

    pub(crate) fn plugin_ran(&self, name: &str, duration: Duration, is_ok: bool) {
        self.plugin_durations
            .with_label_values(&[name])
            .observe(duration.as_secs_f64());
        if !is_ok {
            self.plugin_errors.with_label_values(&[name]).inc();
        }
    }
}

fn kept<C: Collector + Clone + 'static>(registry: &Registry, made: C) -> prometheus::Result<C> {
    registry.register(Box::new(made.clone()))?;
    Ok(made)
}

fn size_class(size_bytes: u64) -> &'static str {
    let class = SIZES.iter().rev().find(|(begins, _)| size_bytes >= *begins);
    class.unwrap_or(&SIZES[0]).1
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    #[test]
    fn classes_of_sizes() {
        let check = |size: u64, class: &str| assert_eq!(size_class(size), class, "{size}");
        check(0, "0-10MB");
        check(10 * MIB - 1, "0-10MB");
        check(10 * MIB, "10MB-100MB");
        check(500 * MIB, "500MB-1GB");
        check(GIB, "1GB-5GB");
        check(100 * GIB - 1, "60GB-100GB");
        check(u64::MAX, "GT100GB");
    }

    #[test]
    fn names_labels_and_values() {
        let registry = Registry::new();
        let metrics = ImagesMetrics::register(&registry).unwrap();
        assert!(ImagesMetrics::register(&registry).is_err(), "registered twice");
        metrics.pulled(Duration::from_secs(7), 20 * MIB);
        metrics.removed(Removed::Age);
        metrics.removed(Removed::Space);
        metrics.requested(PullPolicy::IfNotPresent, Some(false), Some(true));
        metrics.requested(PullPolicy::Always, None, Some(true));
        metrics.checked(Check::MustAuthenticate);
        metrics.on_disk(1, 2);
        metrics.plugin_ran("p", Duration::from_millis(20), false);
        metrics.plugins_configured("sha256:old");
        metrics.plugins_configured("sha256:a");
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for line in [
            "kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes=\"10MB-100MB\",le=\"5\"} 0",
            "kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes=\"10MB-100MB\",le=\"10\"} 1",
            "kubelet_image_garbage_collected_total{reason=\"age\"} 1",
            "kubelet_image_garbage_collected_total{reason=\"space\"} 1",
            "kubelet_image_manager_ensure_image_requests_total{present_locally=\"false\",pull_policy=\"ifnotpresent\",pull_required=\"true\"} 1",
            "kubelet_image_manager_ensure_image_requests_total{present_locally=\"unknown\",pull_policy=\"always\",pull_required=\"true\"} 1",
            "kubelet_imagemanager_image_mustpull_checks_total{result=\"mustAuthenticate\"} 1",
            "kubelet_imagemanager_ondisk_pullintents 1",
            "kubelet_imagemanager_ondisk_pulledrecords 2",
            "kubelet_credential_provider_plugin_errors_total{plugin_name=\"p\"} 1",
            "kubelet_credential_provider_plugin_duration_bucket{plugin_name=\"p\",le=\"0.025\"} 1",
            "kubelet_credential_provider_config_info{hash=\"sha256:a\"} 1",
        ] {
            assert!(lines.contains(&line), "{line:?} is missing in {lines:#?}");
        }
        assert!(!text.contains("sha256:old"));
        let helps = lines.iter().filter(|line| line.starts_with("# HELP"));
        assert!(helps.clone().count() == 9 && helps.clone().all(|line| line.contains(" [ALPHA] ")));
    }
}
