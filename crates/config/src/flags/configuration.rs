//! Lays the flags that stand for configuration fields over a configuration.
//!
//! Owns the pairing of a field's path with the field, and how a flag changes the value of a file. It reads nothing and
//! applies no defaults: a flag's value stands, even where it is zero.

use std::collections::BTreeMap;

use rubelet_model::{GoDuration, Quantity};

use super::command_line::CommandLine;
use super::definition::Target;
use super::value::FlagValue;
use crate::kubelet_configuration::{
    FlushFrequency, KubeletConfiguration, MemoryReservation, Problem, StaticPodHeaders, Taint, VModuleItem,
};

/// Sets the flags of a command line over the configuration's values.
///
/// Two things are upstream's and not obvious: the two switches for split log streams are taken from flags only, and
/// `--vmodule` adds to the list instead of replacing it.
pub(crate) fn apply(command_line: &CommandLine, configuration: &mut KubeletConfiguration) -> Vec<Problem> {
    let mut problems = Vec::new();
    configuration.logging.options.text.split_stream = false;
    configuration.logging.options.json.split_stream = false;
    for (definition, value) in command_line.used() {
        let Target::Config(path) = definition.target else {
            continue;
        };
        if *value != FlagValue::Unchanged && !set(configuration, path, value) {
            // A row of the table that fits no field; a test walks the table, so this is never seen.
            problems.push(Problem::new(
                format!("--{}", definition.name),
                "",
                format!("cannot be stored in {path}"),
            ));
        }
    }
    problems
}

/// Whether the path exists and its field takes such a value.
fn set(c: &mut KubeletConfiguration, path: &str, value: &FlagValue) -> bool {
    match path {
        "address" => c.address.assign(value),
        "allowedUnsafeSysctls" => c.allowed_unsafe_sysctls.assign(value),
        "authentication.anonymous.enabled" => c.authentication.anonymous.enabled.assign(value),
        "authentication.webhook.cacheTTL" => c.authentication.webhook.cache_ttl.assign(value),
        "authentication.webhook.enabled" => c.authentication.webhook.enabled.assign(value),
        "authentication.x509.clientCAFile" => c.authentication.x509.client_ca_file.assign(value),
        "authorization.mode" => c.authorization.mode.assign(value),
        "authorization.webhook.cacheAuthorizedTTL" => {
            c.authorization.webhook.cache_authorized_ttl.assign(value)
        }
        "authorization.webhook.cacheUnauthorizedTTL" => {
            c.authorization.webhook.cache_unauthorized_ttl.assign(value)
        }
        "cgroupDriver" => c.cgroup_driver.assign(value),
        "cgroupRoot" => c.cgroup_root.assign(value),
        "cgroupsPerQOS" => c.cgroups_per_qos.assign(value),
        "clusterDNS" => c.cluster_dns.assign(value),
        "clusterDomain" => c.cluster_domain.assign(value),
        "containerLogMaxFiles" => c.container_log_max_files.assign(value),
        "containerLogMaxSize" => c.container_log_max_size.assign(value),
        "containerRuntimeEndpoint" => c.container_runtime_endpoint.assign(value),
        "contentType" => c.content_type.assign(value),
        "cpuCFSQuota" => c.cpu_cfs_quota.assign(value),
        "cpuCFSQuotaPeriod" => c.cpu_cfs_quota_period.assign(value),
        "cpuManagerPolicy" => c.cpu_manager_policy.assign(value),
        "cpuManagerPolicyOptions" => c.cpu_manager_policy_options.assign(value),
        "cpuManagerReconcilePeriod" => c.cpu_manager_reconcile_period.assign(value),
        "enableContentionProfiling" => c.enable_contention_profiling.assign(value),
        "enableControllerAttachDetach" => c.enable_controller_attach_detach.assign(value),
        "enableDebuggingHandlers" => c.enable_debugging_handlers.assign(value),
        "enableServer" => c.enable_server.assign(value),
        "enforceNodeAllocatable" => c.enforce_node_allocatable.assign(value),
        "eventBurst" => c.event_burst.assign(value),
        "eventRecordQPS" => c.event_record_qps.assign(value),
        "evictionHard" => c.eviction_hard.assign(value),
        "evictionMaxPodGracePeriod" => c.eviction_max_pod_grace_period.assign(value),
        "evictionMinimumReclaim" => c.eviction_minimum_reclaim.assign(value),
        "evictionPressureTransitionPeriod" => c.eviction_pressure_transition_period.assign(value),
        "evictionSoft" => c.eviction_soft.assign(value),
        "evictionSoftGracePeriod" => c.eviction_soft_grace_period.assign(value),
        "failCgroupV1" => c.fail_cgroup_v1.assign(value),
        "failSwapOn" => c.fail_swap_on.assign(value),
        "featureGates" => c.feature_gates.assign(value),
        "fileCheckFrequency" => c.file_check_frequency.assign(value),
        "hairpinMode" => c.hairpin_mode.assign(value),
        "healthzBindAddress" => c.healthz_bind_address.assign(value),
        "healthzPort" => c.healthz_port.assign(value),
        "httpCheckFrequency" => c.http_check_frequency.assign(value),
        "imageGCHighThresholdPercent" => c.image_gc_high_threshold_percent.assign(value),
        "imageGCLowThresholdPercent" => c.image_gc_low_threshold_percent.assign(value),
        "imageMinimumGCAge" => c.image_minimum_gc_age.assign(value),
        "imageServiceEndpoint" => c.image_service_endpoint.assign(value),
        "kernelMemcgNotification" => c.kernel_memcg_notification.assign(value),
        "kubeAPIBurst" => c.kube_api_burst.assign(value),
        "kubeAPIQPS" => c.kube_api_qps.assign(value),
        "kubeReserved" => c.kube_reserved.assign(value),
        "kubeReservedCgroup" => c.kube_reserved_cgroup.assign(value),
        "kubeletCgroups" => c.kubelet_cgroups.assign(value),
        "localStorageCapacityIsolation" => c.local_storage_capacity_isolation.assign(value),
        "logging.flushFrequency" => c.logging.flush_frequency.assign(value),
        "logging.format" => c.logging.format.assign(value),
        "logging.options.json.infoBufferSize" => c.logging.options.json.info_buffer_size.assign(value),
        "logging.options.json.splitStream" => c.logging.options.json.split_stream.assign(value),
        "logging.options.text.infoBufferSize" => c.logging.options.text.info_buffer_size.assign(value),
        "logging.options.text.splitStream" => c.logging.options.text.split_stream.assign(value),
        "logging.verbosity" => c.logging.verbosity.assign(value),
        "makeIPTablesUtilChains" => c.make_iptables_util_chains.assign(value),
        "maxOpenFiles" => c.max_open_files.assign(value),
        "maxPods" => c.max_pods.assign(value),
        "memoryManagerPolicy" => c.memory_manager_policy.assign(value),
        "nodeStatusMaxImages" => c.node_status_max_images.assign(value),
        "nodeStatusUpdateFrequency" => c.node_status_update_frequency.assign(value),
        "oomScoreAdj" => c.oom_score_adj.assign(value),
        "podCIDR" => c.pod_cidr.assign(value),
        "podPidsLimit" => c.pod_pids_limit.assign(value),
        "podsPerCore" => c.pods_per_core.assign(value),
        "port" => c.port.assign(value),
        "protectKernelDefaults" => c.protect_kernel_defaults.assign(value),
        "providerID" => c.provider_id.assign(value),
        "qosReserved" => c.qos_reserved.assign(value),
        "readOnlyPort" => c.read_only_port.assign(value),
        "registerNode" => c.register_node.assign(value),
        "registerWithTaints" => c.register_with_taints.assign(value),
        "registryBurst" => c.registry_burst.assign(value),
        "registryPullQPS" => c.registry_pull_qps.assign(value),
        "reservedMemory" => c.reserved_memory.assign(value),
        "reservedSystemCPUs" => c.reserved_system_cpus.assign(value),
        "resolvConf" => c.resolv_conf.assign(value),
        "rotateCertificates" => c.rotate_certificates.assign(value),
        "runOnce" => c.run_once.assign(value),
        "runtimeRequestTimeout" => c.runtime_request_timeout.assign(value),
        "serializeImagePulls" => c.serialize_image_pulls.assign(value),
        "serverTLSBootstrap" => c.server_tls_bootstrap.assign(value),
        "staticPodPath" => c.static_pod_path.assign(value),
        "staticPodURL" => c.static_pod_url.assign(value),
        "staticPodURLHeader" => c.static_pod_url_header.assign(value),
        "streamingConnectionIdleTimeout" => c.streaming_connection_idle_timeout.assign(value),
        "syncFrequency" => c.sync_frequency.assign(value),
        "systemCgroups" => c.system_cgroups.assign(value),
        "systemReserved" => c.system_reserved.assign(value),
        "systemReservedCgroup" => c.system_reserved_cgroup.assign(value),
        "tlsCertFile" => c.tls_cert_file.assign(value),
        "tlsCipherSuites" => c.tls_cipher_suites.assign(value),
        "tlsMinVersion" => c.tls_min_version.assign(value),
        "tlsPrivateKeyFile" => c.tls_private_key_file.assign(value),
        "topologyManagerPolicy" => c.topology_manager_policy.assign(value),
        "topologyManagerPolicyOptions" => c.topology_manager_policy_options.assign(value),
        "topologyManagerScope" => c.topology_manager_scope.assign(value),
        "volumePluginDir" => c.volume_plugin_dir.assign(value),
        "volumeStatsAggPeriod" => c.volume_stats_agg_period.assign(value),
        "logging.vmodule" => append_vmodule(&mut c.logging.vmodule, value),
        _ => false,
    }
}

fn append_vmodule(items: &mut Vec<VModuleItem>, value: &FlagValue) -> bool {
    let FlagValue::VModule(added) = value else {
        return false;
    };
    items.extend(added.iter().map(|(pattern, level)| VModuleItem {
        file_pattern: pattern.clone(),
        verbosity: *level,
    }));
    true
}

/// A field that some kinds of flag fit.
trait Assign {
    /// False when the flag's kind does not fit.
    fn assign(&mut self, value: &FlagValue) -> bool;
}

macro_rules! assign {
    ($($field:ty: $pattern:pat => $result:expr;)*) => {
        $(impl Assign for $field {
            fn assign(&mut self, value: &FlagValue) -> bool {
                let $pattern = value else { return false };
                *self = $result;
                true
            }
        })*
    };
}

assign! {
    bool: FlagValue::Bool(on) => *on;
    String: FlagValue::Text(text) => text.clone();
    i64: FlagValue::Int(number) => *number;
    u32: FlagValue::Level(level) => *level;
    GoDuration: FlagValue::Duration(duration) => *duration;
    Quantity: FlagValue::Quantity(quantity) => quantity.clone();
    Vec<String>: FlagValue::List(values) => values.clone();
    BTreeMap<String, String>: FlagValue::Map(values) => values.clone();
    BTreeMap<String, bool>: FlagValue::BoolMap(values) => values.clone();
    StaticPodHeaders: FlagValue::Headers(values) => Self(values.clone());
    Vec<MemoryReservation>: FlagValue::ReservedMemory(nodes) => nodes.clone();
    Vec<Taint>: FlagValue::Taints(taints) => taints.clone();
}

impl Assign for i32 {
    fn assign(&mut self, value: &FlagValue) -> bool {
        let FlagValue::Int(number) = value else {
            return false;
        };
        i32::try_from(*number).map(|number| *self = number).is_ok()
    }
}

impl Assign for FlushFrequency {
    fn assign(&mut self, value: &FlagValue) -> bool {
        self.duration.assign(value)
    }
}

impl<T: Assign + Default> Assign for Option<T> {
    fn assign(&mut self, value: &FlagValue) -> bool {
        self.get_or_insert_default().assign(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{Kind, definitions};
    use crate::gates::FeatureGates;
    use crate::kubelet_configuration::legacy_kubelet_configuration;

    /// A text that no flag of the kind has for its default.
    fn sample(kind: Kind, default: bool) -> &'static str {
        match kind {
            Kind::Bool => {
                if default {
                    "false"
                } else {
                    "true"
                }
            }
            Kind::Text => "other",
            Kind::Int32 | Kind::Int64 | Kind::Level => "7",
            Kind::Duration => "7m",
            Kind::Ip => "10.1.2.3",
            Kind::List => "a,b",
            Kind::StringMap | Kind::OnePair | Kind::Labels => "a=b",
            Kind::Thresholds => "memory.available<1Gi",
            Kind::BoolMap => "MemoryQoS=false",
            Kind::Headers => "a:b",
            Kind::ReservedMemory => "0:memory=1Gi",
            Kind::Taints => "a=b:NoSchedule",
            Kind::VModule => "a=1",
            Kind::Quantity => "7Ki",
            Kind::Version => "raw",
        }
    }

    #[test]
    fn every_flag_with_a_field_changes_that_field_and_no_other() {
        let gates = FeatureGates::default();
        let mut fields = 0;
        for definition in definitions() {
            let Target::Config(path) = definition.target else {
                continue;
            };
            fields += 1;
            let mut configuration = legacy_kubelet_configuration(&gates);
            let before = configuration.to_configz();
            let at = |value: &serde_json::Value| {
                path.split('.')
                    .try_fold(value, |value, name| value.get(name))
                    .cloned()
            };
            let on = at(&before) == Some(true.into());
            let line =
                CommandLine::parse(&[format!("--{}={}", definition.name, sample(definition.kind, on))])
                    .expect("valid");
            assert_eq!(apply(&line, &mut configuration), []);
            let mut after = configuration.to_configz();
            assert_ne!(at(&after), at(&before), "--{}", definition.name);
            // With the field put back, nothing differs.
            let top = path.split('.').next().expect("a name");
            match before.get(top) {
                Some(value) => after[top] = value.clone(),
                None => {
                    after.as_object_mut().expect("an object").remove(top);
                }
            }
            assert_eq!(after, before, "--{}", definition.name);
        }
        assert_eq!(fields, 107);
    }
}
