//! What every kubelet must do with static pods on every containerd. The tests of each containerd run these lists on a bed.
//!
//! A scenario owns the pods whose names it uses and touches nothing else, so that many share a bed. What it expects is
//! upstream's behaviour unless it says otherwise.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "scenarios look at the real machine"
)]

pub mod admission;
mod bad_manifests;
mod cgroups;
mod configuration;
mod confinement;
mod garbage;
mod hooks;
mod image_pulls;
mod lifecycle;
mod mounts;
mod networking;
mod newer_runtimes;
mod probes;
mod restarts;
mod security;
mod termination;
mod volumes;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use rubelet_testbed::node::manifest::Manifest;
use rubelet_testbed::node::{Bed, DEADLINE, PodFacts, Scenario};
use rubelet_testbed::wait::wait_until;

/// Names functions as scenarios.
macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        &[$(rubelet_testbed::node::Scenario { name: stringify!($name), run: |bed| Box::pin($name(bed)) }),+]
    };
}
use scenarios;

/// Pods come, are edited, end and go.
pub const LIFECYCLE: &[Scenario] = lifecycle::ALL;
/// Containers end, well or badly.
pub const RESTARTS: &[Scenario] = restarts::ALL;
/// How containers are stopped and what they leave to say.
pub const TERMINATION: &[Scenario] = termination::ALL;
/// Images that are there, are not there, or come late.
pub const IMAGE_PULLS: &[Scenario] = image_pulls::ALL;
/// What a container sees of its configuration.
pub const CONFIGURATION: &[Scenario] = configuration::ALL;
/// The cgroups of pods.
pub const CGROUPS: &[Scenario] = cgroups::ALL;
/// Names, addresses and ports.
pub const NETWORKING: &[Scenario] = networking::ALL;
/// Users, rights and namespaces.
pub const SECURITY: &[Scenario] = security::ALL;
/// What a container may do and whom it is.
pub const CONFINEMENT: &[Scenario] = confinement::ALL;
/// Lifecycle hooks.
pub const HOOKS: &[Scenario] = hooks::ALL;
/// Volumes that need no API server.
pub const VOLUMES: &[Scenario] = volumes::ALL;
/// Mounts below volumes.
pub const MOUNTS: &[Scenario] = mounts::ALL;
/// Startup, readiness and liveness.
pub const PROBES: &[Scenario] = probes::ALL;
/// Log files and what is cleaned up.
pub const GARBAGE: &[Scenario] = garbage::ALL;
/// Pods that a node does not let in.
pub const ADMISSION: &[Scenario] = admission::ALL;
/// Manifests that nobody can run.
pub const BAD_MANIFESTS: &[Scenario] = bad_manifests::ALL;
/// What only containerd 2 knows.
pub const NEWER_RUNTIMES: &[Scenario] = newer_runtimes::ALL;

/// All that every containerd knows.
pub fn all() -> Vec<Scenario> {
    // Those that wait for the clock begin first.
    [
        GARBAGE,
        VOLUMES,
        MOUNTS,
        RESTARTS,
        TERMINATION,
        HOOKS,
        PROBES,
        LIFECYCLE,
        IMAGE_PULLS,
        CONFIGURATION,
        CGROUPS,
        NETWORKING,
        SECURITY,
        CONFINEMENT,
        ADMISSION,
        BAD_MANIFESTS,
    ]
    .concat()
}

/// Runs a pod of one container called `main` to its end and gives the lines that it printed.
async fn printed(bed: &Bed<'_>, name: &str, manifest: Manifest) -> Result<Vec<String>> {
    let manifest = manifest.spec("restartPolicy", json!("Never"));
    bed.node.write(name, &manifest.json())?;
    let pod = bed
        .node
        .wait_for_pod(name, "has ended", |pod| {
            pod.terminated("main")?;
            Ok(pod.clone())
        })
        .await?;
    let lines = last_log_lines(bed, &pod, "main").await?;
    ensure!(
        pod.terminated("main")?.exit_code == 0,
        "it ended with {:?} and printed {lines:?}",
        pod.terminated("main")?
    );
    bed.node.remove(name)?;
    Ok(lines)
}

/// The line that begins with `key=`, without that.
fn value<'a>(lines: &'a [String], key: &str) -> Result<&'a str> {
    let start = format!("{key}=");
    lines
        .iter()
        .find_map(|line| line.strip_prefix(&start))
        .with_context(|| format!("no {key} in {lines:?}"))
}

/// Where the log of a container's attempt is.
fn log_path(bed: &Bed<'_>, pod: &Pod, container: &str, attempt: u32) -> PathBuf {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    bed.node
        .pod_logs()
        .join(format!("{namespace}_{name}_{}", pod.uid()))
        .join(container)
        .join(format!("{attempt}.log"))
}

/// The lines of a container's log without what the runtime puts before each.
fn log_lines(bed: &Bed<'_>, pod: &Pod, container: &str, attempt: u32) -> Result<Vec<String>> {
    let path = log_path(bed, pod, container, attempt);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(text
        .lines()
        .map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned())
        .collect())
}

/// The same of a container that has ended: the runtime may have some of its words in hand, and the log open for as long.
async fn last_log_lines(bed: &Bed<'_>, pod: &Pod, container: &str) -> Result<Vec<String>> {
    let path = log_path(bed, pod, container, 0);
    until("the runtime has let go of the log", async || {
        let pid = bed.containerd.pid().context("containerd does not run")?;
        let open = fs::read_dir(format!("/proc/{pid}/fd"))?;
        let is_log = |file: fs::DirEntry| fs::read_link(file.path()).is_ok_and(|target| target == path);
        ensure!(!open.flatten().any(is_log), "{} is open", path.display());
        Ok(())
    })
    .await?;
    log_lines(bed, pod, container, 0)
}

/// Waits until a state of the runtime is so.
async fn until<T>(what: &str, state: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let mut state = state;
    let end = std::time::Instant::now() + DEADLINE;
    loop {
        match state().await {
            Ok(value) => return Ok(value),
            Err(error) if std::time::Instant::now() > end => {
                return Err(error.context(format!("{what}: not so after {DEADLINE:?}")));
            }
            // The runtime is asked less often than a variable can be looked at.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
}

/// Waits until no sandbox of this pod is ready and none of its containers runs.
async fn wait_until_stopped(bed: &Bed<'_>, uid: &str) -> Result<()> {
    until(&format!("pod {uid} is stopped"), async || {
        let running: Vec<String> = bed
            .view
            .containers_of(uid)
            .await?
            .into_iter()
            .filter(|container| container.running)
            .map(|container| container.name)
            .collect();
        ensure!(running.is_empty(), "these containers run: {running:?}");
        let ready = bed
            .view
            .sandboxes()
            .await?
            .iter()
            .any(|sandbox| sandbox.uid == uid && sandbox.ready);
        ensure!(!ready, "its sandbox is ready");
        Ok(())
    })
    .await
}

/// Waits until a path is gone.
async fn wait_until_removed(path: &std::path::Path) -> Result<()> {
    // It goes with a round of the collector, which waits for its turn.
    wait_until(&format!("{} is gone", path.display()), 3 * DEADLINE, async || {
        ensure!(path.symlink_metadata().is_err(), "it is there");
        Ok(())
    })
    .await
}
