//! `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`: every field with its type and JSON name.
//!
//! Owns the shape only. Defaults, reading, merging and the rules live beside it. A field is an `Option` where upstream
//! distinguishes "not set" from the zero value; closed sets of values stay strings, because validation reports a bad one with its field.

use std::collections::BTreeMap;

use rubelet_model::GoDuration;
use serde_json::Value;

use super::logging::LoggingConfiguration;
use super::nested::{
    CrashLoopBackOffConfig, KubeletAuthentication, KubeletAuthorization, MemoryReservation,
    MemorySwapConfiguration, ShutdownGracePeriodByPodPriority, StaticPodHeaders, Taint, TracingConfiguration,
    UserNamespaces,
};
use super::schema::{Field, wire_struct};

pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
pub const KIND: &str = "KubeletConfiguration";

wire_struct! {
    /// The whole configuration of a node agent.
    pub struct KubeletConfiguration {
        enable_server: Option<bool> => "enableServer" omit,
        static_pod_path: String => "staticPodPath" omit,
        pod_logs_dir: String => "podLogsDir" omit,
        sync_frequency: GoDuration => "syncFrequency" omit,
        file_check_frequency: GoDuration => "fileCheckFrequency" omit,
        http_check_frequency: GoDuration => "httpCheckFrequency" omit,
        static_pod_url: String => "staticPodURL" omit,
        static_pod_url_header: StaticPodHeaders => "staticPodURLHeader" omit,
        address: String => "address" omit,
        port: i32 => "port" omit,
        read_only_port: i32 => "readOnlyPort" omit,
        tls_cert_file: String => "tlsCertFile" omit,
        tls_private_key_file: String => "tlsPrivateKeyFile" omit,
        tls_cipher_suites: Vec<String> => "tlsCipherSuites" omit,
        tls_curve_preferences: Vec<i32> => "tlsCurvePreferences" omit,
        tls_min_version: String => "tlsMinVersion" omit,
        rotate_certificates: bool => "rotateCertificates" omit,
        server_tls_bootstrap: bool => "serverTLSBootstrap" omit,
        authentication: KubeletAuthentication => "authentication" keep,
        authorization: KubeletAuthorization => "authorization" keep,
        registry_pull_qps: Option<i32> => "registryPullQPS" omit,
        registry_burst: i32 => "registryBurst" omit,
        image_pull_credentials_verification_policy: String => "imagePullCredentialsVerificationPolicy" omit,
        preloaded_images_verification_allowlist: Vec<String> => "preloadedImagesVerificationAllowlist" omit,
        event_record_qps: Option<i32> => "eventRecordQPS" omit,
        event_burst: i32 => "eventBurst" omit,
        enable_debugging_handlers: Option<bool> => "enableDebuggingHandlers" omit,
        enable_contention_profiling: bool => "enableContentionProfiling" omit,
        healthz_port: Option<i32> => "healthzPort" omit,
        healthz_bind_address: String => "healthzBindAddress" omit,
        oom_score_adj: Option<i32> => "oomScoreAdj" omit,
        cluster_domain: String => "clusterDomain" omit,
        cluster_dns: Vec<String> => "clusterDNS" omit,
        streaming_connection_idle_timeout: GoDuration => "streamingConnectionIdleTimeout" omit,
        node_status_update_frequency: GoDuration => "nodeStatusUpdateFrequency" omit,
        node_status_report_frequency: GoDuration => "nodeStatusReportFrequency" omit,
        node_lease_duration_seconds: i32 => "nodeLeaseDurationSeconds" omit,
        image_minimum_gc_age: GoDuration => "imageMinimumGCAge" omit,
        image_maximum_gc_age: GoDuration => "imageMaximumGCAge" omit,
        image_gc_high_threshold_percent: Option<i32> => "imageGCHighThresholdPercent" omit,
        image_gc_low_threshold_percent: Option<i32> => "imageGCLowThresholdPercent" omit,
        volume_stats_agg_period: GoDuration => "volumeStatsAggPeriod" omit,
        kubelet_cgroups: String => "kubeletCgroups" omit,
        system_cgroups: String => "systemCgroups" omit,
        cgroup_root: String => "cgroupRoot" omit,
        cgroups_per_qos: Option<bool> => "cgroupsPerQOS" omit,
        cgroup_driver: String => "cgroupDriver" omit,
        cpu_manager_policy: String => "cpuManagerPolicy" omit,
        single_process_oom_kill: Option<bool> => "singleProcessOOMKill" omit,
        cpu_manager_policy_options: BTreeMap<String, String> => "cpuManagerPolicyOptions" omit,
        cpu_manager_reconcile_period: GoDuration => "cpuManagerReconcilePeriod" omit,
        memory_manager_policy: String => "memoryManagerPolicy" omit,
        topology_manager_policy: String => "topologyManagerPolicy" omit,
        topology_manager_scope: String => "topologyManagerScope" omit,
        topology_manager_policy_options: BTreeMap<String, String> => "topologyManagerPolicyOptions" omit,
        qos_reserved: BTreeMap<String, String> => "qosReserved" omit,
        runtime_request_timeout: GoDuration => "runtimeRequestTimeout" omit,
        hairpin_mode: String => "hairpinMode" omit,
        max_pods: i32 => "maxPods" omit,
        pod_cidr: String => "podCIDR" omit,
        pod_pids_limit: Option<i64> => "podPidsLimit" omit,
        resolv_conf: Option<String> => "resolvConf" omit,
        run_once: bool => "runOnce" omit,
        cpu_cfs_quota: Option<bool> => "cpuCFSQuota" omit,
        cpu_cfs_quota_period: Option<GoDuration> => "cpuCFSQuotaPeriod" omit,
        node_status_max_images: Option<i32> => "nodeStatusMaxImages" omit,
        max_open_files: i64 => "maxOpenFiles" omit,
        content_type: String => "contentType" omit,
        kube_api_qps: Option<i32> => "kubeAPIQPS" omit,
        kube_api_burst: i32 => "kubeAPIBurst" omit,
        serialize_image_pulls: Option<bool> => "serializeImagePulls" omit,
        max_parallel_image_pulls: Option<i32> => "maxParallelImagePulls" omit,
        eviction_hard: Option<BTreeMap<String, String>> => "evictionHard" omit_nil_or_empty,
        eviction_soft: BTreeMap<String, String> => "evictionSoft" omit,
        eviction_soft_grace_period: BTreeMap<String, String> => "evictionSoftGracePeriod" omit,
        eviction_pressure_transition_period: GoDuration => "evictionPressureTransitionPeriod" omit,
        eviction_max_pod_grace_period: i32 => "evictionMaxPodGracePeriod" omit,
        eviction_minimum_reclaim: BTreeMap<String, String> => "evictionMinimumReclaim" omit,
        merge_default_eviction_settings: Option<bool> => "mergeDefaultEvictionSettings" omit,
        pods_per_core: i32 => "podsPerCore" omit,
        enable_controller_attach_detach: Option<bool> => "enableControllerAttachDetach" omit,
        protect_kernel_defaults: bool => "protectKernelDefaults" omit,
        make_iptables_util_chains: Option<bool> => "makeIPTablesUtilChains" omit,
        iptables_masquerade_bit: Option<i32> => "iptablesMasqueradeBit" omit,
        iptables_drop_bit: Option<i32> => "iptablesDropBit" omit,
        feature_gates: BTreeMap<String, bool> => "featureGates" omit,
        fail_swap_on: Option<bool> => "failSwapOn" omit,
        memory_swap: MemorySwapConfiguration => "memorySwap" omit,
        container_log_max_size: String => "containerLogMaxSize" omit,
        container_log_max_files: Option<i32> => "containerLogMaxFiles" omit,
        container_log_max_workers: Option<i32> => "containerLogMaxWorkers" omit,
        container_log_monitor_interval: Option<GoDuration> => "containerLogMonitorInterval" omit,
        config_map_and_secret_change_detection_strategy: String => "configMapAndSecretChangeDetectionStrategy" omit,
        system_reserved: BTreeMap<String, String> => "systemReserved" omit,
        kube_reserved: BTreeMap<String, String> => "kubeReserved" omit,
        reserved_system_cpus: String => "reservedSystemCPUs" omit,
        show_hidden_metrics_for_version: String => "showHiddenMetricsForVersion" omit,
        system_reserved_cgroup: String => "systemReservedCgroup" omit,
        kube_reserved_cgroup: String => "kubeReservedCgroup" omit,
        enforce_node_allocatable: Option<Vec<String>> => "enforceNodeAllocatable" omit_nil_or_empty,
        allowed_unsafe_sysctls: Vec<String> => "allowedUnsafeSysctls" omit,
        default_pod_sysctls: BTreeMap<String, String> => "defaultPodSysctls" omit,
        volume_plugin_dir: String => "volumePluginDir" omit,
        provider_id: String => "providerID" omit,
        kernel_memcg_notification: bool => "kernelMemcgNotification" omit,
        logging: LoggingConfiguration => "logging" omit,
        enable_system_log_handler: Option<bool> => "enableSystemLogHandler" omit,
        enable_system_log_query: Option<bool> => "enableSystemLogQuery" omit,
        shutdown_grace_period: GoDuration => "shutdownGracePeriod" omit,
        shutdown_grace_period_critical_pods: GoDuration => "shutdownGracePeriodCriticalPods" omit,
        shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority> => "shutdownGracePeriodByPodPriority" omit,
        crash_loop_back_off: CrashLoopBackOffConfig => "crashLoopBackOff" omit,
        reserved_memory: Vec<MemoryReservation> => "reservedMemory" omit,
        enable_profiling_handler: Option<bool> => "enableProfilingHandler" omit,
        enable_debug_flags_handler: Option<bool> => "enableDebugFlagsHandler" omit,
        seccomp_default: Option<bool> => "seccompDefault" omit,
        memory_throttling_factor: Option<f64> => "memoryThrottlingFactor" omit,
        memory_reservation_policy: String => "memoryReservationPolicy" omit,
        register_with_taints: Vec<Taint> => "registerWithTaints" omit,
        register_node: Option<bool> => "registerNode" omit,
        tracing: Option<TracingConfiguration> => "tracing" omit,
        local_storage_capacity_isolation: Option<bool> => "localStorageCapacityIsolation" omit,
        container_runtime_endpoint: String => "containerRuntimeEndpoint" keep,
        image_service_endpoint: String => "imageServiceEndpoint" omit,
        fail_cgroup_v1: Option<bool> => "failCgroupV1" omit,
        user_namespaces: Option<UserNamespaces> => "userNamespaces" omit,
    }
}

impl KubeletConfiguration {
    /// The object as `/configz` shows it: all fields that are set, with apiVersion and kind.
    pub fn to_configz(&self) -> Value {
        let mut value = self.published().to_json();
        if let Value::Object(object) = &mut value {
            object.insert("apiVersion".to_owned(), API_VERSION.into());
            object.insert("kind".to_owned(), KIND.into());
        }
        value
    }

    /// The object as upstream's internal form would give it back: a switch that has no "not set" inside is written out.
    pub fn published(&self) -> Self {
        let mut published = self.clone();
        let booleans = [
            &mut published.enable_server,
            &mut published.authentication.webhook.enabled,
            &mut published.authentication.anonymous.enabled,
            &mut published.enable_debugging_handlers,
            &mut published.cgroups_per_qos,
            &mut published.cpu_cfs_quota,
            &mut published.serialize_image_pulls,
            &mut published.merge_default_eviction_settings,
            &mut published.enable_controller_attach_detach,
            &mut published.make_iptables_util_chains,
            &mut published.fail_swap_on,
            &mut published.enable_system_log_handler,
            &mut published.enable_system_log_query,
            &mut published.enable_profiling_handler,
            &mut published.enable_debug_flags_handler,
            &mut published.seccomp_default,
            &mut published.register_node,
            &mut published.local_storage_capacity_isolation,
            &mut published.fail_cgroup_v1,
        ];
        for boolean in booleans {
            boolean.get_or_insert_default();
        }
        let numbers = [
            &mut published.registry_pull_qps,
            &mut published.event_record_qps,
            &mut published.healthz_port,
            &mut published.oom_score_adj,
            &mut published.image_gc_high_threshold_percent,
            &mut published.image_gc_low_threshold_percent,
            &mut published.node_status_max_images,
            &mut published.kube_api_qps,
            &mut published.iptables_masquerade_bit,
            &mut published.iptables_drop_bit,
            &mut published.container_log_max_files,
            &mut published.container_log_max_workers,
        ];
        for number in numbers {
            number.get_or_insert_default();
        }
        published.pod_pids_limit.get_or_insert_default();
        published.resolv_conf.get_or_insert_default();
        published.cpu_cfs_quota_period.get_or_insert_default();
        published.container_log_monitor_interval.get_or_insert_default();
        published
    }
}
