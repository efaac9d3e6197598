//! What does not change while the program runs: version, feature gates, the node's name, its cgroups.

use anyhow::{Context, Result};
use prometheus::Registry;
use rubelet_config::gates::{Gate, Stage};
use rubelet_config::pending::is_effective;
use rubelet_config::settings::Settings;
use rubelet_host::cgroup::CgroupVersion;
use rubelet_ports::Meters;

/// In place of the version of Go and of its compiler.
const LANGUAGE: &str = concat!("rust", env!("CARGO_PKG_RUST_VERSION"));
const COMPILER: &str = "rustc";

/// The version and the feature gates.
pub(crate) fn show_settings(registry: &Registry, settings: &Settings) -> Result<()> {
    register_version(registry, settings.reported_version()).context("register the version")?;
    let features = Meters::new(registry)
        .gauges(
            "kubernetes_feature_enabled",
            &["name", "stage"],
            "[BETA] Feature gates, by their stage, and whether they are on and their feature is there.",
        )
        .context("register the feature gates")?;
    for info in Gate::all() {
        let stage = match info.stage {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Ga => "",
            Stage::Deprecated => "DEPRECATED",
        };
        let is_on = is_effective(info.gate, settings.gates());
        features
            .with_label_values(&[info.name, stage])
            .set(i64::from(is_on));
    }
    Ok(())
}

fn register_version(registry: &Registry, version: &str) -> prometheus::Result<()> {
    let build = Meters::new(registry).gauges(
        "kubernetes_build_info",
        &[
            "major",
            "minor",
            "git_version",
            "git_commit",
            "git_tree_state",
            "build_date",
            "go_version",
            "compiler",
            "platform",
        ],
        "[BETA] The version, as labels of a constant one.",
    )?;
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    let platform = match std::env::consts::ARCH {
        "x86_64" => "linux/amd64",
        "aarch64" => "linux/arm64",
        _ => "linux",
    };
    let labels = [major, minor, version, "", "", "", LANGUAGE, COMPILER, platform];
    build.with_label_values(&labels).set(1);
    Ok(())
}

/// The node's name and its version of cgroups.
pub(crate) fn show_node(registry: &Registry, name: &str, cgroup: CgroupVersion) -> Result<()> {
    let meters = Meters::new(registry);
    let node = meters
        .gauges(
            "kubelet_node_name",
            &["node"],
            "[ALPHA] The node's name, as the label of a constant one.",
        )
        .context("register the node's name")?;
    node.with_label_values(&[name]).set(1);
    let version = meters
        .gauge(
            "kubelet_cgroup_version",
            "[ALPHA] The version of cgroups that the machine has.",
        )
        .context("register the version of cgroups")?;
    version.set(match cgroup {
        CgroupVersion::V1 => 1,
        CgroupVersion::V2 => 2,
    });
    Ok(())
}

/// For a runtime that does not report its cgroup driver, which upstream requires of every runtime from that version on.
pub(crate) fn show_losing_support(registry: &Registry) -> Result<()> {
    let losing = Meters::new(registry)
        .gauges(
            "kubelet_cri_losing_support",
            &["version"],
            "[ALPHA] The version of Kubernetes from which on the container runtime is too old.",
        )
        .context("register the runtime's last version")?;
    losing.with_label_values(&["1.38.0"]).set(1);
    Ok(())
}
