//! The real metrics-server asks the kubelet: `kubectl top` shows nodes, pods and containers, and an autoscaler adds a pod where the
//! processor has work.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::Api;
use rubelet_testbed::cgroup_tree::CgroupTree;
use rubelet_testbed::cluster::{Cluster, NAMESPACE};
use rubelet_testbed::control_plane::{MetricsServer, Options};
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pause, pod, shell, with};
use rubelet_testbed::node::{Kubelet, PodFacts as _};
use serde_json::{Value, json};

/// Always wants a processor, and gets a fifth of one.
const WORK: &str = "while :; do :; done";
const WORK_MILLICORES: f64 = 200.0;
const WORKER: &str = "worker";
const MIB: f64 = (1 << 20) as f64;

fn plane() -> Options {
    let mut options = Options::default();
    for controller in [
        "deployment-controller",
        "replicaset-controller",
        "horizontal-pod-autoscaler-controller",
    ] {
        options = options.with_controller(controller);
    }
    // It looks at figures of pods that have just started, and looks often.
    options.controller_manager_flags = [
        "--horizontal-pod-autoscaler-sync-period=2s",
        "--horizontal-pod-autoscaler-cpu-initialization-period=1s",
        "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
    ]
    .map(str::to_owned)
    .to_vec();
    options
}

fn worker() -> Value {
    let resources = json!({ "requests": { "cpu": "100m" }, "limits": { "cpu": "200m", "memory": "32Mi" } });
    with(shell("main", WORK), "resources", resources)
}

async fn make(cluster: &Cluster<'_>) -> Result<()> {
    cluster
        .create::<Deployment>(json!({
            "metadata": { "name": WORKER },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": { "app": WORKER } },
                "template": {
                    "metadata": { "labels": { "app": WORKER } },
                    "spec": {
                        "nodeName": cluster.node_name(),
                        "containers": [worker()],
                        "terminationGracePeriodSeconds": 0,
                    },
                },
            },
        }))
        .await?;
    let metric = json!({ "type": "Resource", "resource": {
        "name": "cpu",
        "target": { "type": "Utilization", "averageUtilization": 50 },
    } });
    cluster
        .create::<HorizontalPodAutoscaler>(json!({
            "metadata": { "name": WORKER },
            "spec": {
                "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": WORKER },
                "minReplicas": 1,
                "maxReplicas": 2,
                "metrics": [metric],
            },
        }))
        .await?;
    // One of its containers has ended, before it an init container: what runs has figures all the same.
    let half = pod("half")
        .init(shell("before", "true"))
        .container(shell("ended", "true"))
        .container(shell(
            "kept",
            &format!("head -c 8388608 /dev/zero >/dev/shm/kept; {UNTIL_TERM}"),
        ))
        .spec("restartPolicy", json!("Never"));
    cluster.create_pod(half.json()).await?;
    cluster
        .create_pod(pod("idle").container(pause("main")).json())
        .await?;
    cluster.wait_until_ready("idle").await?;
    cluster
        .wait_for_pod("half", "one container has ended and one runs", |pod| {
            pod.running_id("kept")?;
            pod.terminated("ended").map(drop)
        })
        .await
}

/// The columns of `kubectl top`, by the names in front of them.
fn table(text: &str, names: usize) -> Result<BTreeMap<Vec<&str>, Vec<&str>>> {
    let rows = text.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (names, figures) = words.split_at_checked(names).context("a short line")?;
        Ok((names.to_vec(), figures.to_vec()))
    });
    rows.collect::<Result<_>>().with_context(|| text.to_owned())
}

fn figure(words: &[&str], at: usize, unit: &str) -> Result<f64> {
    let word = words.get(at).context("a column is missing")?;
    let number = word
        .strip_suffix(unit)
        .with_context(|| format!("{word} has not the unit {unit}"))?;
    Ok(number.parse()?)
}

/// A container's working set, as the kernel counts it.
fn working_set_mib(cluster: &Cluster<'_>, uid: &str, id: &str) -> Result<f64> {
    let tree = CgroupTree::at(cluster.bed.scope.cgroup_root());
    let path = format!("/kubepods/besteffort/pod{uid}/{id}");
    let usage: f64 = tree.read("memory", &path, "memory.usage_in_bytes")?.parse()?;
    let stat = tree.read("memory", &path, "memory.stat")?;
    let inactive = stat
        .lines()
        .find_map(|line| line.strip_prefix("total_inactive_file "));
    let inactive: f64 = inactive.context("no total_inactive_file")?.parse()?;
    Ok((usage - inactive) / MIB)
}

async fn check_nodes(cluster: &Cluster<'_>) -> Result<()> {
    let text = cluster.kubectl(&["top", "node", "--no-headers"]).await?;
    let nodes = table(&text, 1)?;
    let figures = nodes
        .get(&vec![cluster.node_name()])
        .with_context(|| format!("kubectl top node: {text}"))?;
    let cores = figure(figures, 0, "m")?;
    ensure!(cores >= WORK_MILLICORES / 2.0, "the node uses {cores} m: {text}");
    for (at, unit) in [(1, "%"), (2, "Mi"), (3, "%")] {
        ensure!(figure(figures, at, unit)? > 0.0, "column {at} of {text}");
    }
    Ok(())
}

async fn check_pods(cluster: &Cluster<'_>) -> Result<()> {
    let text = cluster
        .kubectl(&["top", "pod", "--containers", "--no-headers"])
        .await?;
    let containers = table(&text, 2)?;
    let worker = containers
        .iter()
        .find(|(names, _)| names[0].starts_with(WORKER))
        .with_context(|| format!("no pod of the deployment: {text}"))?;
    let cores = figure(worker.1, 0, "m")?;
    // A busy machine gives less than the limit.
    ensure!(
        (WORK_MILLICORES / 2.0..=WORK_MILLICORES * 1.15).contains(&cores),
        "the worker uses {cores} m: {text}"
    );
    let of_half: Vec<&str> = containers
        .keys()
        .filter(|names| names[0] == "half")
        .map(|names| names[1])
        .collect();
    ensure!(of_half == ["kept"], "{of_half:?} of the pod half: {text}");
    let half = cluster.pod("half").await?;
    let expected = working_set_mib(cluster, half.uid(), &half.running_id("kept")?)?;
    let shown = figure(&containers[&vec!["half", "kept"]], 1, "Mi")?;
    ensure!(
        shown >= 8.0 && (shown - expected).abs() <= 2.0,
        "{shown} Mi instead of {expected}"
    );
    let idle = &containers
        .get(&vec!["idle", "main"])
        .with_context(|| format!("no idle pod: {text}"))?;
    ensure!(figure(idle, 0, "m")? <= 5.0, "{text}");
    Ok(())
}

async fn check_scaled(cluster: &Cluster<'_>) -> Result<()> {
    let scalers: Api<HorizontalPodAutoscaler> = Api::namespaced(cluster.client(), NAMESPACE);
    let status = scalers.get(WORKER).await?.status.context("no status")?;
    let conditions = status.conditions.unwrap_or_default();
    let active = conditions
        .iter()
        .find(|condition| condition.type_ == "ScalingActive");
    let active = active.context("not looked at yet")?;
    ensure!(active.status == "True", "{:?}", active.message);
    ensure!(status.desired_replicas == 2, "{:?}", status.current_metrics);
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), NAMESPACE);
    let status = deployments.get(WORKER).await?.status.unwrap_or_default();
    ensure!(status.ready_replicas == Some(2), "{status:?}");
    Ok(())
}

async fn check(cluster: &Cluster<'_>, server: &MetricsServer) -> Result<()> {
    let seen = async {
        cluster
            .eventually("kubectl top node shows the node", async || {
                check_nodes(cluster).await
            })
            .await?;
        cluster
            .eventually("kubectl top pod shows the pods", async || {
                check_pods(cluster).await
            })
            .await?;
        cluster
            .eventually("the deployment is scaled", async || check_scaled(cluster).await)
            .await
    };
    seen.await.with_context(|| server.log_tail())
}

#[test]
fn kubectl_top_shows_figures_and_a_deployment_is_scaled_by_them() {
    in_scope("metrics_server", async |scope| {
        let cluster = Cluster::start(scope, plane(), Kubelet::chosen()?, |options| options).await?;
        let (server, made) = tokio::join!(cluster.control_plane.start_metrics_server(scope), make(&cluster));
        made?;
        check(&cluster, &server?).await
    });
}
