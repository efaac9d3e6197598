//! Default values: those of a configuration file, those that apply without a file, and the hard eviction thresholds.
//!
//! Owns the value of every field that is not set. It changes no field that is set, and validates nothing.

use std::collections::BTreeMap;

use rubelet_model::GoDuration;

use super::types::KubeletConfiguration;
use crate::gates::{FeatureGates, Gate};

const DEFAULT_KUBELET_PORT: i32 = 10250;
const LEGACY_READ_ONLY_PORT: i32 = 10255;
const DEFAULT_HEALTHZ_PORT: i32 = 10248;
const DEFAULT_OOM_SCORE_ADJ: i32 = -999;
const DEFAULT_VOLUME_PLUGIN_DIR: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/";
const DEFAULT_POD_LOGS_DIR: &str = "/var/log/pods";
const DEFAULT_RUNTIME_ENDPOINT: &str = "unix:///run/containerd/containerd.sock";
const MAX_CONTAINER_BACK_OFF: GoDuration = GoDuration::from_secs(300);

/// Thresholds that a configuration file brings when it names none.
pub const DEFAULT_EVICTION_HARD: [(&str, &str); 5] = [
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
];

fn text(field: &mut String, default: &str) {
    if field.is_empty() {
        default.clone_into(field);
    }
}

fn duration(field: &mut GoDuration, default: GoDuration) {
    if field.is_zero() {
        *field = default;
    }
}

fn number(field: &mut i32, default: i32) {
    if *field == 0 {
        *field = default;
    }
}

/// The configuration that an empty file stands for.
pub fn default_kubelet_configuration(gates: &FeatureGates) -> KubeletConfiguration {
    let mut configuration = KubeletConfiguration::default();
    apply_defaults(&mut configuration, gates);
    configuration
}

/// What stands before the first flag is read, when there is no configuration file.
pub fn legacy_kubelet_configuration(gates: &FeatureGates) -> KubeletConfiguration {
    let mut configuration = default_kubelet_configuration(gates);
    apply_legacy_defaults(&mut configuration);
    configuration
}

/// Fills every field that is not set.
pub fn apply_defaults(configuration: &mut KubeletConfiguration, gates: &FeatureGates) {
    serving(configuration);
    authentication(configuration);
    node_status(configuration);
    images(configuration, gates);
    resources(configuration);
    pods(configuration, gates);
    host(configuration);
    configuration.logging.apply_defaults();
}

/// The four settings that keep their old defaults while no file is used.
pub fn apply_legacy_defaults(configuration: &mut KubeletConfiguration) {
    configuration.authentication.anonymous.enabled = Some(true);
    configuration.authentication.webhook.enabled = Some(false);
    "AlwaysAllow".clone_into(&mut configuration.authorization.mode);
    configuration.read_only_port = LEGACY_READ_ONLY_PORT;
}

/// The hard eviction thresholds of a file: all of them where it has no `evictionHard`, the missing ones where it asks for a merge.
pub fn apply_eviction_hard_defaults(configuration: &mut KubeletConfiguration) {
    let merge = configuration.merge_default_eviction_settings == Some(true);
    if configuration.eviction_hard.is_some() && !merge {
        return;
    }
    let thresholds = configuration.eviction_hard.get_or_insert_with(BTreeMap::new);
    for (signal, threshold) in DEFAULT_EVICTION_HARD {
        thresholds
            .entry(signal.to_owned())
            .or_insert_with(|| threshold.to_owned());
    }
}

fn serving(c: &mut KubeletConfiguration) {
    c.enable_server.get_or_insert(true);
    text(&mut c.address, "0.0.0.0");
    number(&mut c.port, DEFAULT_KUBELET_PORT);
    c.healthz_port.get_or_insert(DEFAULT_HEALTHZ_PORT);
    text(&mut c.healthz_bind_address, "127.0.0.1");
    c.enable_debugging_handlers.get_or_insert(true);
    c.enable_system_log_handler.get_or_insert(true);
    c.enable_profiling_handler.get_or_insert(true);
    c.enable_debug_flags_handler.get_or_insert(true);
    duration(
        &mut c.streaming_connection_idle_timeout,
        GoDuration::from_mins(4 * 60),
    );
    text(&mut c.content_type, "application/vnd.kubernetes.protobuf");
    c.kube_api_qps.get_or_insert(50);
    number(&mut c.kube_api_burst, 100);
    c.event_record_qps.get_or_insert(50);
    number(&mut c.event_burst, 100);
}

fn authentication(c: &mut KubeletConfiguration) {
    c.authentication.anonymous.enabled.get_or_insert(false);
    c.authentication.webhook.enabled.get_or_insert(true);
    duration(&mut c.authentication.webhook.cache_ttl, GoDuration::from_mins(2));
    text(&mut c.authorization.mode, "Webhook");
    duration(
        &mut c.authorization.webhook.cache_authorized_ttl,
        GoDuration::from_mins(5),
    );
    duration(
        &mut c.authorization.webhook.cache_unauthorized_ttl,
        GoDuration::from_secs(30),
    );
}

fn node_status(c: &mut KubeletConfiguration) {
    // Before the update frequency gets its own default: who sets only that one gets reports as often.
    let update_or_default = if c.node_status_update_frequency.is_zero() {
        GoDuration::from_mins(5)
    } else {
        c.node_status_update_frequency
    };
    duration(&mut c.node_status_report_frequency, update_or_default);
    duration(&mut c.node_status_update_frequency, GoDuration::from_secs(10));
    number(&mut c.node_lease_duration_seconds, 40);
    c.node_status_max_images.get_or_insert(50);
    c.register_node.get_or_insert(true);
}

fn images(c: &mut KubeletConfiguration, gates: &FeatureGates) {
    c.registry_pull_qps.get_or_insert(5);
    number(&mut c.registry_burst, 10);
    duration(&mut c.image_minimum_gc_age, GoDuration::from_mins(2));
    c.image_gc_high_threshold_percent.get_or_insert(85);
    c.image_gc_low_threshold_percent.get_or_insert(80);
    let one_at_a_time = c.max_parallel_image_pulls.is_none_or(|pulls| pulls < 2);
    c.serialize_image_pulls.get_or_insert(one_at_a_time);
    if gates.enabled(Gate::KubeletEnsureSecretPulledImages) {
        text(
            &mut c.image_pull_credentials_verification_policy,
            "NeverVerifyPreloadedImages",
        );
    }
}

fn resources(c: &mut KubeletConfiguration) {
    c.oom_score_adj.get_or_insert(DEFAULT_OOM_SCORE_ADJ);
    c.cgroups_per_qos.get_or_insert(true);
    text(&mut c.cgroup_driver, "cgroupfs");
    text(&mut c.cpu_manager_policy, "none");
    duration(&mut c.cpu_manager_reconcile_period, GoDuration::from_secs(10));
    text(&mut c.memory_manager_policy, "None");
    text(&mut c.topology_manager_policy, "none");
    text(&mut c.topology_manager_scope, "container");
    c.cpu_cfs_quota.get_or_insert(true);
    c.cpu_cfs_quota_period.get_or_insert(GoDuration::from_millis(100));
    duration(
        &mut c.eviction_pressure_transition_period,
        GoDuration::from_mins(5),
    );
    c.merge_default_eviction_settings.get_or_insert(false);
    c.enforce_node_allocatable
        .get_or_insert_with(|| vec!["pods".to_owned()]);
    text(&mut c.memory_reservation_policy, "None");
    c.local_storage_capacity_isolation.get_or_insert(true);
    c.fail_swap_on.get_or_insert(true);
    c.fail_cgroup_v1.get_or_insert(true);
}

fn pods(c: &mut KubeletConfiguration, gates: &FeatureGates) {
    duration(&mut c.sync_frequency, GoDuration::from_mins(1));
    duration(&mut c.file_check_frequency, GoDuration::from_secs(20));
    duration(&mut c.http_check_frequency, GoDuration::from_secs(20));
    duration(&mut c.runtime_request_timeout, GoDuration::from_mins(2));
    number(&mut c.max_pods, 110);
    if c.pod_pids_limit.is_none_or(|limit| limit < 0) {
        c.pod_pids_limit = Some(-1);
    }
    text(&mut c.container_log_max_size, "10Mi");
    c.container_log_max_files.get_or_insert(5);
    c.container_log_max_workers.get_or_insert(1);
    c.container_log_monitor_interval
        .get_or_insert(GoDuration::from_secs(10));
    text(&mut c.config_map_and_secret_change_detection_strategy, "Watch");
    c.seccomp_default.get_or_insert(false);
    text(&mut c.pod_logs_dir, DEFAULT_POD_LOGS_DIR);
    if gates.enabled(Gate::KubeletCrashLoopBackOffMax) {
        c.crash_loop_back_off
            .max_container_restart_period
            .get_or_insert(MAX_CONTAINER_BACK_OFF);
    }
}

fn host(c: &mut KubeletConfiguration) {
    duration(&mut c.volume_stats_agg_period, GoDuration::from_mins(1));
    text(&mut c.hairpin_mode, "promiscuous-bridge");
    c.resolv_conf.get_or_insert_with(|| "/etc/resolv.conf".to_owned());
    if c.max_open_files == 0 {
        c.max_open_files = 1_000_000;
    }
    c.enable_controller_attach_detach.get_or_insert(true);
    c.make_iptables_util_chains.get_or_insert(true);
    c.iptables_masquerade_bit.get_or_insert(14);
    c.iptables_drop_bit.get_or_insert(15);
    text(&mut c.volume_plugin_dir, DEFAULT_VOLUME_PLUGIN_DIR);
    text(&mut c.container_runtime_endpoint, DEFAULT_RUNTIME_ENDPOINT);
}
