//! Real pressure on a real node: pods that fill memory, a disk and its inodes, or exceed their own limits, beside pods that must not
//! notice.
//!
//! The node's root directory is on a small filesystem of its own, and its pods have a small part of the machine's memory.

use std::ffi::CString;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use rubelet_testbed::cluster::Cluster;
use rubelet_testbed::control_plane;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{Manifest, pod, server, shell, with};
use rubelet_testbed::node::{Kubelet, Options, PodFacts};
use rubelet_testbed::scope::Scope;
use serde_json::{Value, json};

const DISK_MIB: u64 = 96;
const DISK_INODES: u64 = 3000;
/// What pods have in sum.
const PODS_MIB: u64 = 900;

fn machine_mib() -> Result<u64> {
    let info = fs::read_to_string("/proc/meminfo")?;
    let line = info.lines().find(|line| line.starts_with("MemTotal:"));
    let kib = line
        .and_then(|line| line.split_whitespace().nth(1))
        .context("MemTotal")?;
    Ok(kib.parse::<u64>()? / 1024)
}

/// The scope's teardown unmounts what is mounted in it.
fn mount_root(scope: &Scope) -> Result<PathBuf> {
    let root = scope.path("node/root");
    fs::create_dir_all(&root)?;
    let options = CString::new(format!("size={DISK_MIB}m,nr_inodes={DISK_INODES},mode=755"))?;
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &root, "tmpfs", flags, Some(options.as_c_str()))
        .context("mount a small filesystem")?;
    Ok(root)
}

fn small(options: Options, machine_mib: u64) -> Options {
    let hard = json!({"memory.available": "100Mi", "nodefs.available": "24Mi", "nodefs.inodesFree": "500"});
    let reserved = format!("{}Mi", machine_mib - PODS_MIB);
    options
        .with("evictionHard", hard)
        .with("systemReserved", json!({"memory": reserved}))
        .with("enforceNodeAllocatable", json!(["pods"]))
        .with("evictionPressureTransitionPeriod", json!("2s"))
}

/// A pod that has a request and uses less.
fn innocent(name: &str) -> Value {
    let resources = json!({"requests": {"memory": "20Mi", "ephemeral-storage": "4Mi"}});
    let script = "echo here > /data/file; trap 'exit 0' TERM; while true; do sleep 1 & wait; done";
    let container = with(shell("main", script), "resources", resources);
    with_volume(pod(name), container, &json!({})).json()
}

fn with_volume(manifest: Manifest, container: Value, empty_dir: &Value) -> Manifest {
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    manifest
        .container(with(container, "volumeMounts", mounts))
        .spec("volumes", json!([{"name": "data", "emptyDir": empty_dir}]))
        .spec("restartPolicy", json!("Always"))
}

fn check_evicted(pod: &Pod, message: &str) -> Result<String> {
    let status = pod.status.as_ref().context("a status")?;
    ensure!(status.phase.as_deref() == Some("Failed"), "it has not failed");
    ensure!(status.reason.as_deref() == Some("Evicted"), "for another reason");
    let found = status.message.clone().unwrap_or_default();
    ensure!(found.starts_with(message), "in other words: {found}");
    Ok(found)
}

async fn check_innocents(cluster: &Cluster<'_>) -> Result<()> {
    for name in ["innocent", "bystander"] {
        let pod = cluster.pod(name).await?;
        pod.check_ready().with_context(|| format!("{name} noticed"))?;
        let restarts = pod.container("main")?.restart_count;
        ensure!(restarts == 0, "{name} was started {restarts} times");
    }
    Ok(())
}

/// Starts a pod that takes too much, and waits for its end.
async fn evict(cluster: &Cluster<'_>, culprit: Manifest, message: &str) -> Result<Pod> {
    let made = cluster.create_pod(culprit.json()).await?;
    let name = made.metadata.name.clone().unwrap_or_default();
    cluster
        .wait_for_pod(&name, "is evicted", |pod| check_evicted(pod, message))
        .await?;
    let evicted = cluster.pod(&name).await?;
    check_innocents(cluster).await?;
    cluster.delete_pod(&name, Some(0)).await?;
    cluster
        .eventually("the pressure is over", async || {
            let status = cluster.node().await?.status.context("a status")?;
            let conditions = status.conditions.unwrap_or_default();
            let bad = conditions
                .iter()
                .find(|one| one.type_ != "Ready" && one.status == "True");
            ensure!(bad.is_none(), "{bad:?}");
            Ok(())
        })
        .await?;
    Ok(evicted)
}

fn check_disruption(pod: &Pod, expected: bool) -> Result<()> {
    let (status, reason, _) = pod.condition("DisruptionTarget");
    match expected {
        true => ensure!(
            (status, reason) == ("True", "TerminationByKubelet"),
            "{status} {reason}"
        ),
        false => ensure!(status.is_empty(), "{status} {reason}"),
    }
    Ok(())
}

#[test]
fn who_takes_too_much_is_evicted_and_the_others_do_not_notice() {
    in_scope("cluster_eviction", async |scope| {
        mount_root(scope)?;
        let machine_mib = machine_mib()?;
        let adjust = |options: Options| small(options, machine_mib);
        let plane = control_plane::Options::default();
        let cluster = Cluster::start(scope, plane, Kubelet::chosen()?, adjust).await?;
        for name in ["innocent", "bystander"] {
            cluster.create_pod(innocent(name)).await?;
            cluster.wait_until_ready(name).await?;
        }
        a_memory_hog(&cluster).await?;
        a_disk_filler(&cluster).await?;
        an_inode_filler(&cluster).await?;
        beyond_their_own_limits(&cluster).await?;
        check_innocents(&cluster).await
    });
}

/// The node has enough of everything.
async fn beyond_their_own_limits(cluster: &Cluster<'_>) -> Result<()> {
    let script = "dd if=/dev/zero of=/data/large bs=1M count=3; sleep 100000";
    let volume = with_volume(
        pod("volume-limit"),
        shell("main", script),
        &json!({"sizeLimit": "1Mi"}),
    );
    let message = r#"Usage of EmptyDir volume "data" exceeds the limit "1Mi". "#;
    let evicted = evict(cluster, volume, message).await?;
    check_disruption(&evicted, false)?;

    let limits = json!({"limits": {"ephemeral-storage": "1Mi"}});
    let container = with(shell("main", script), "resources", limits);
    let whole = with_volume(pod("pod-limit"), container, &json!({}));
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
    evict(cluster, whole, message).await.map(drop)
}

async fn a_memory_hog(cluster: &Cluster<'_>) -> Result<()> {
    let bytes = ((PODS_MIB - 60) << 20).to_string();
    let hog = pod("hog").container(server("main", &["memory", &bytes, "--step-bytes", "4194304"]));
    let message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: ";
    let evicted = evict(cluster, hog, message).await?;
    check_disruption(&evicted, true)?;
    let text = evicted
        .status
        .and_then(|status| status.message)
        .unwrap_or_default();
    ensure!(text.contains("Container main was using "), "{text}");
    ensure!(
        text.ends_with("request is 0, has larger consumption of memory. "),
        "{text}"
    );
    cluster
        .eventually("the event is there", async || {
            let events = cluster.events("hog").await?;
            let event = events
                .iter()
                .find(|event| event.reason.as_deref() == Some("Evicted"));
            let annotations = event.context("no event")?.metadata.annotations.clone();
            let annotations = annotations.unwrap_or_default();
            ensure!(annotations["offending_containers"] == "main", "{annotations:?}");
            ensure!(annotations["starved_resource"] == "memory", "{annotations:?}");
            let events = cluster.events(cluster.node_name()).await?;
            let of_node = events
                .iter()
                .find(|event| event.reason.as_deref() == Some("EvictionThresholdMet"));
            let message = of_node.context("no event of the node")?.message.clone();
            ensure!(
                message.as_deref() == Some("Attempting to reclaim memory"),
                "{message:?}"
            );
            Ok(())
        })
        .await
}

async fn a_disk_filler(cluster: &Cluster<'_>) -> Result<()> {
    let script = "dd if=/dev/zero of=/data/large bs=1M count=78; sleep 100000";
    let filler = with_volume(pod("disk-filler"), shell("main", script), &json!({}));
    let message = "The node was low on resource: ephemeral-storage. Threshold quantity: 24Mi, available: ";
    let evicted = evict(cluster, filler, message).await?;
    check_disruption(&evicted, true)
}

async fn an_inode_filler(cluster: &Cluster<'_>) -> Result<()> {
    let script = "i=0; while [ $i -lt 2700 ]; do : > /data/$i; i=$((i+1)); done; sleep 100000";
    let filler = with_volume(pod("inode-filler"), shell("main", script), &json!({}));
    let message = "The node was low on resource: inodes. Threshold quantity: 500, available: ";
    let evicted = evict(cluster, filler, message).await?;
    check_disruption(&evicted, true)
}
