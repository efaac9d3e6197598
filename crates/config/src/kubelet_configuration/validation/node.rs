//! Rules about the node itself: ports, limits, taints, shutdown, swap, user namespaces.

use rubelet_model::address::is_port;
use rubelet_model::{GoDuration, names};

use super::Rules;
use crate::gates::Gate;

const ID_RANGE_LENGTH: i64 = 65_536;

pub(super) fn check(rules: &mut Rules<'_>) {
    limits(rules);
    ports(rules);
    switches(rules);
    taints(rules);
    shutdown(rules);
    swap(rules);
    user_namespaces(rules);
}

fn limits(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    if c.node_lease_duration_seconds <= 0 {
        rules.refuse(
            "nodeLeaseDurationSeconds",
            c.node_lease_duration_seconds,
            "must be more than 0",
        );
    }
    rules.not_negative("eventBurst", c.event_burst.into());
    rules.not_negative("eventRecordQPS", c.event_record_qps.unwrap_or_default().into());
    rules.not_negative("kubeAPIBurst", c.kube_api_burst.into());
    rules.not_negative("kubeAPIQPS", c.kube_api_qps.unwrap_or_default().into());
    rules.not_negative("maxOpenFiles", c.max_open_files);
    rules.not_negative("maxPods", c.max_pods.into());
    rules.not_negative("podsPerCore", c.pods_per_core.into());
    rules.at_least(
        "nodeStatusMaxImages",
        c.node_status_max_images.unwrap_or_default().into(),
        -1,
    );
    rules.in_range(
        "iptablesDropBit",
        c.iptables_drop_bit.unwrap_or_default().into(),
        0,
        31,
    );
    rules.in_range(
        "iptablesMasqueradeBit",
        c.iptables_masquerade_bit.unwrap_or_default().into(),
        0,
        31,
    );
    rules.in_range(
        "oomScoreAdj",
        c.oom_score_adj.unwrap_or_default().into(),
        -1000,
        1000,
    );
}

fn ports(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    let healthz_port = c.healthz_port.unwrap_or_default();
    if healthz_port != 0 && !is_port(healthz_port.into()) {
        rules.refuse(
            "healthzPort",
            healthz_port,
            "must be 0 (off) or between 1 and 65535",
        );
    }
    if !is_port(c.port.into()) {
        rules.refuse("port", c.port, "must be between 1 and 65535");
    }
    if c.read_only_port != 0 && !is_port(c.read_only_port.into()) {
        rules.refuse(
            "readOnlyPort",
            c.read_only_port,
            "must be 0 (off) or between 1 and 65535",
        );
    }
}

fn switches(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    if c.server_tls_bootstrap && !rules.enabled(Gate::RotateKubeletServerCertificate) {
        rules.refuse(
            "serverTLSBootstrap",
            true,
            "needs the feature gate RotateKubeletServerCertificate",
        );
    }
    if c.run_once {
        rules.refuse("runOnce", true, "must be false: the mode was removed");
    }
    if c.container_runtime_endpoint.is_empty() {
        rules.refuse_text(
            "containerRuntimeEndpoint",
            "",
            "must name the socket of a container runtime",
        );
    }
    rules.one_of(
        "hairpinMode",
        &c.hairpin_mode,
        &["none", "hairpin-veth", "promiscuous-bridge"],
    );
}

fn taints(rules: &mut Rules<'_>) {
    for (position, taint) in rules.configuration.register_with_taints.iter().enumerate() {
        let path = format!("registerWithTaints[{position}]");
        if !names::is_qualified_name(&taint.key) {
            rules.refuse_text(
                format!("{path}.key"),
                &taint.key,
                "must be a label key, such as example.com/dedicated",
            );
        }
        if !names::is_label_value(&taint.value) {
            rules.refuse_text(
                format!("{path}.value"),
                &taint.value,
                "must be empty or a label value of at most 63 characters",
            );
        }
        if !taint.effect.is_empty() {
            rules.one_of(
                &format!("{path}.effect"),
                &taint.effect,
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            );
        }
        if let Some(time) = &taint.time_added {
            rules.refuse_text(format!("{path}.timeAdded"), &time.0, "must not be set");
        }
    }
}

fn shutdown(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    let (total, critical) = (c.shutdown_grace_period, c.shutdown_grace_period_critical_pods);
    let second = GoDuration::from_secs(1);
    let by_priority = !c.shutdown_grace_period_by_pod_priority.is_empty();
    let any_period = total > GoDuration::ZERO || critical > GoDuration::ZERO;
    if rules.enabled(Gate::GracefulNodeShutdown) {
        if critical > total {
            rules.refuse(
                "shutdownGracePeriodCriticalPods",
                critical,
                format!("must be at most shutdownGracePeriod ({total})"),
            );
        }
        for (path, period) in [
            ("shutdownGracePeriod", total),
            ("shutdownGracePeriodCriticalPods", critical),
        ] {
            if !period.is_zero() && period < second {
                rules.refuse(path, period, "must be 0 or at least 1s");
            }
        }
    } else if any_period {
        let (path, period) = if total > GoDuration::ZERO {
            ("shutdownGracePeriod", total)
        } else {
            ("shutdownGracePeriodCriticalPods", critical)
        };
        rules.refuse(path, period, "needs the feature gate GracefulNodeShutdown");
    }
    if by_priority && !rules.enabled(Gate::GracefulNodeShutdownBasedOnPodPriority) {
        rules.refuse(
            "shutdownGracePeriodByPodPriority",
            "the list",
            "needs the feature gate GracefulNodeShutdownBasedOnPodPriority",
        );
    } else if by_priority && any_period {
        rules.refuse(
            "shutdownGracePeriodByPodPriority",
            "the list",
            "must not be set together with shutdownGracePeriod or shutdownGracePeriodCriticalPods",
        );
    }
}

fn swap(rules: &mut Rules<'_>) {
    let behavior = &rules.configuration.memory_swap.swap_behavior;
    if rules.enabled(Gate::NodeSwap) {
        rules.one_of(
            "memorySwap.swapBehavior",
            behavior,
            &["", "NoSwap", "LimitedSwap"],
        );
    } else if !behavior.is_empty() {
        rules.refuse_text(
            "memorySwap.swapBehavior",
            behavior,
            "needs the feature gate NodeSwap",
        );
    }
}

fn user_namespaces(rules: &mut Rules<'_>) {
    let Some(ids) = rules
        .configuration
        .user_namespaces
        .as_ref()
        .and_then(|namespaces| namespaces.ids_per_pod)
    else {
        return;
    };
    let in_range = (ID_RANGE_LENGTH..=i64::from(u32::MAX)).contains(&ids);
    if !in_range || ids % ID_RANGE_LENGTH != 0 {
        let allowed = format!(
            "must be a multiple of {ID_RANGE_LENGTH}, at least that and at most {}",
            u32::MAX
        );
        rules.refuse("userNamespaces.idsPerPod", ids, allowed);
    }
}
