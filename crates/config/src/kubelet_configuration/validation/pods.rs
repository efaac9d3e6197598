//! Rules about pods: sysctls, restarts, container logs.

use std::collections::BTreeSet;

use rubelet_model::{GoDuration, names};

use super::Rules;
use crate::gates::Gate;
use crate::kubelet_configuration::paths::clean_path;

pub(super) fn check(rules: &mut Rules<'_>) {
    sysctls(rules);
    restarts(rules);
    container_logs(rules);
    logs_folder(rules);
}

fn sysctls(rules: &mut Rules<'_>) {
    let sysctls = &rules.configuration.default_pod_sysctls;
    if sysctls.is_empty() {
        return;
    }
    if !rules.enabled(Gate::DefaultPodSysctls) {
        rules.refuse(
            "defaultPodSysctls",
            "the object",
            "needs the feature gate DefaultPodSysctls",
        );
        return;
    }
    let mut seen = BTreeSet::new();
    for name in sysctls.keys() {
        if !names::is_sysctl_name(name) {
            rules.refuse_text(
                "defaultPodSysctls",
                name,
                "must be a sysctl name of at most 253 characters",
            );
            continue;
        }
        if !names::is_namespaced_sysctl(name) {
            rules.refuse_text(
                "defaultPodSysctls",
                name,
                "must be a sysctl that each pod has of its own",
            );
        }
        if !seen.insert(names::normalize_sysctl(name)) {
            rules.refuse_text(
                "defaultPodSysctls",
                name,
                "must not stand twice, once with dots and once with slashes",
            );
        }
    }
}

fn restarts(rules: &mut Rules<'_>) {
    const PATH: &str = "crashLoopBackOff.maxContainerRestartPeriod";
    let period = rules
        .configuration
        .crash_loop_back_off
        .max_container_restart_period;
    match (rules.enabled(Gate::KubeletCrashLoopBackOffMax), period) {
        (true, None) => rules.refuse(
            PATH,
            "",
            "must be set while the feature gate KubeletCrashLoopBackOffMax is on",
        ),
        (true, Some(period)) => {
            if !(1_000..=300_000).contains(&period.as_millis()) {
                rules.refuse(PATH, period, "must be between 1s and 300s");
            }
        }
        (false, Some(period)) => {
            rules.refuse(PATH, period, "needs the feature gate KubeletCrashLoopBackOffMax");
        }
        (false, None) => {}
    }
}

fn container_logs(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    rules.at_least(
        "containerLogMaxWorkers",
        c.container_log_max_workers.unwrap_or_default().into(),
        1,
    );
    rules.at_least(
        "containerLogMaxFiles",
        c.container_log_max_files.unwrap_or_default().into(),
        2,
    );
    let interval = c.container_log_monitor_interval.unwrap_or_default();
    if interval < GoDuration::from_secs(3) {
        rules.refuse("containerLogMonitorInterval", interval, "must be at least 3s");
    }
}

/// The folder's name ends up in metrics, hence the rule about ASCII.
fn logs_folder(rules: &mut Rules<'_>) {
    let folder = &rules.configuration.pod_logs_dir;
    if folder.is_empty() {
        rules.refuse_text("podLogsDir", folder, "must be set");
        return;
    }
    if !folder.starts_with('/') {
        rules.refuse_text("podLogsDir", folder, "must be an absolute path");
    }
    if clean_path(folder) != *folder {
        rules.refuse_text(
            "podLogsDir",
            folder,
            format!("must be in its shortest form ({:?})", clean_path(folder)),
        );
    }
    if !folder.is_ascii() {
        rules.refuse_text("podLogsDir", folder, "must have ASCII characters only");
    }
}
