//! Two nodes in one cluster, each with a runtime, a network namespace, a mount namespace, a cgroup root and directories of its own:
//! pods are spread over both, and move when one of them dies.
//!
//! Each runtime shares its node's network namespace but not its kubelet's mount namespace: like a kubelet that runs in a
//! container, this one has a shared directory by which its mounts reach the runtime.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use rubelet_testbed::cgroup_tree::CgroupTree;
use rubelet_testbed::cluster::Cluster;
use rubelet_testbed::control_plane::{NODE_LIFECYCLE, Options, TAINT_EVICTION};
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{UNTIL_TERM, shell};
use rubelet_testbed::node::{self, Bed, Kubelet, PodFacts};
use serde_json::{Value, json};

const APP: &str = "shop";
const REPLICAS: usize = 4;
/// Seconds for which a lease counts; it is renewed after a quarter of them.
const LEASE_SECONDS: u32 = 20;

/// A control plane that does not take long to miss a node.
fn control_plane() -> Options {
    let mut options = Options::default().with_scheduler();
    for controller in [
        "deployment-controller",
        "replicaset-controller",
        NODE_LIFECYCLE,
        TAINT_EVICTION,
    ] {
        options = options.with_controller(controller);
    }
    options.controller_manager_flags = vec![
        "--node-monitor-period=1s".to_owned(),
        format!("--node-monitor-grace-period={LEASE_SECONDS}s"),
    ];
    options
}

fn kubelet(options: node::Options) -> node::Options {
    options.with("nodeLeaseDurationSeconds", json!(LEASE_SECONDS))
}

/// Pods go to both nodes alike as long as both take pods, and leave a dead one at once.
fn deployment() -> Value {
    let gone = |taint: &str| json!({ "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0 });
    json!({
        "metadata": { "name": APP },
        "spec": {
            "replicas": REPLICAS,
            "selector": { "matchLabels": { "app": APP } },
            "template": {
                "metadata": { "labels": { "app": APP } },
                "spec": {
                    "containers": [shell("main", &format!("echo here; {UNTIL_TERM}"))],
                    "terminationGracePeriodSeconds": 2,
                    "tolerations": [gone("node.kubernetes.io/unreachable"), gone("node.kubernetes.io/not-ready")],
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "DoNotSchedule",
                        "nodeTaintsPolicy": "Honor",
                        "labelSelector": { "matchLabels": { "app": APP } },
                    }],
                },
            },
        },
    })
}

async fn pods_on(cluster: &Cluster<'_>, node: &str) -> Result<Vec<Pod>> {
    let selected = ListParams::default()
        .labels(&format!("app={APP}"))
        .fields(&format!("spec.nodeName={node}"));
    Ok(cluster.pods().list(&selected).await?.items)
}

async fn wait_until_ready_on(cluster: &Cluster<'_>, node: &str, count: usize) -> Result<Vec<Pod>> {
    cluster
        .eventually(&format!("{count} pods are ready on {node}"), async || {
            let pods = pods_on(cluster, node).await?;
            ensure!(pods.len() == count, "{} pods", pods.len());
            for pod in &pods {
                pod.check_ready()?;
            }
            Ok(pods)
        })
        .await
}

fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().map(|pod| pod.uid().to_owned()).collect()
}

/// A namespace of a process, as the kernel names it.
fn namespace(pid: Option<u32>, kind: &str) -> Result<PathBuf> {
    let path = format!("/proc/{}/ns/{kind}", pid.context("it does not run")?);
    std::fs::read_link(&path).context(path)
}

/// The nodes share with each other and with the machine what machines share, which is nothing.
fn check_apart(beds: [&Bed<'_>; 2]) -> Result<()> {
    for kind in ["net", "mnt"] {
        let mut found = BTreeSet::from([namespace(Some(std::process::id()), kind)?]);
        for bed in beds {
            ensure!(
                found.insert(namespace(bed.node.pid(), kind)?),
                "{} has no {kind} of its own",
                bed.node.name()
            );
        }
    }
    for bed in beds {
        ensure!(
            namespace(bed.containerd.pid(), "net")? == namespace(bed.node.pid(), "net")?,
            "the runtime of {} is in another network",
            bed.node.name()
        );
    }
    Ok(())
}

/// Every node is found at its own address, and at the port that every kubelet has on a machine of its own.
async fn check_found(cluster: &Cluster<'_>, bed: &Bed<'_>) -> Result<()> {
    let status = cluster
        .node_named(bed.node.name())
        .await?
        .status
        .unwrap_or_default();
    let network = bed.node.network().context("a network of its own")?;
    let addresses = status.addresses.unwrap_or_default();
    ensure!(
        addresses
            .iter()
            .any(|found| found.type_ == "InternalIP" && found.address == network.address().to_string()),
        "{addresses:?} instead of {}",
        network.address()
    );
    let port = status
        .daemon_endpoints
        .and_then(|all| all.kubelet_endpoint)
        .map(|endpoint| endpoint.port);
    ensure!(port == Some(10250), "{port:?}");
    Ok(())
}

/// Pods may go to these nodes.
async fn wait_until_untainted(cluster: &Cluster<'_>, nodes: [&str; 2]) -> Result<()> {
    cluster
        .eventually("pods may go to both nodes", async || {
            for node in nodes {
                let taints = cluster.node_named(node).await?.spec.and_then(|spec| spec.taints);
                ensure!(taints.iter().flatten().next().is_none(), "{node}: {taints:?}");
            }
            Ok(())
        })
        .await
}

/// The API server finds the way to a node's containers.
async fn check_entered(cluster: &Cluster<'_>, bed: &Bed<'_>, pods: &[Pod]) -> Result<()> {
    for pod in pods {
        let name = pod.metadata.name.as_deref().context("a name")?;
        cluster
            .eventually("the container has said where it is", async || {
                let log = cluster.kubectl(&["logs", name]).await?;
                ensure!(log == "here\n", "the log of {name} is {log:?}");
                Ok(())
            })
            .await?;
        let address = cluster.kubectl(&["exec", name, "--", "hostname", "-i"]).await?;
        let told = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref());
        ensure!(Some(address.trim()) == told, "{address:?} instead of {told:?}");
        let subnet = bed.containerd.network().subnet();
        let prefix = subnet.trim_end_matches("0/22");
        ensure!(address.starts_with(prefix), "{address:?} is not in {subnet}");
    }
    Ok(())
}

/// The pods that a node's runtime runs are those that the API server has there, and each has its cgroup below the node's.
async fn check_own(bed: &Bed<'_>, pods: &[Pod], cgroups: &CgroupTree) -> Result<()> {
    let containers = bed.view.containers().await?;
    let running: BTreeSet<String> = containers
        .into_iter()
        .filter(|container| container.running)
        .map(|container| container.uid)
        .collect();
    ensure!(running == uids(pods), "{running:?} instead of {:?}", uids(pods));
    for uid in &running {
        cgroups.check_there(&format!("/kubepods/besteffort/pod{uid}"))?;
        let logs = std::fs::read_dir(bed.node.pod_logs())?;
        let mut names = logs.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        ensure!(
            names.any(|name| name.ends_with(uid.as_str())),
            "no log directory of {uid}"
        );
    }
    Ok(())
}

#[test]
fn pods_move_when_a_node_dies() {
    in_scope("cluster_two_nodes", async |scope| {
        let ours = Kubelet::chosen()?;
        let cluster = Cluster::start_apart(scope, control_plane(), ours.clone(), kubelet).await?;
        let mut other = cluster.join("other", ours, kubelet).await?;
        let (here, there) = (cluster.node_name().to_owned(), other.node.name().to_owned());
        wait_until_untainted(&cluster, [&here, &there]).await?;
        cluster.create::<Deployment>(deployment()).await?;
        let stay = wait_until_ready_on(&cluster, &here, REPLICAS / 2).await?;
        let move_away = wait_until_ready_on(&cluster, &there, REPLICAS / 2).await?;
        let root = scope.cgroup_root();
        check_own(&cluster.bed, &stay, &CgroupTree::at(root.clone()))
            .await
            .context(here.clone())?;
        check_own(&other, &move_away, &CgroupTree::at(format!("{root}/other")))
            .await
            .context(there.clone())?;
        check_apart([&cluster.bed, &other])?;
        for (bed, pods) in [(&cluster.bed, &stay), (&other, &move_away)] {
            check_found(&cluster, bed).await?;
            check_entered(&cluster, bed, pods).await?;
        }
        let before = cluster.bed.view.identities().await?;

        other.node.kill_nine()?;
        cluster.wait_until_ready_is(&there, "Unknown").await?;
        let all = wait_until_ready_on(&cluster, &here, REPLICAS).await?;
        let kept = uids(&stay);
        ensure!(kept.is_subset(&uids(&all)), "{kept:?} of {:?}", uids(&all));
        let after = cluster.bed.view.identities().await?;
        ensure!(
            before.iter().all(|(id, start)| after.get(id) == Some(start)),
            "{before:?} became {after:?}"
        );

        // Back again, it ends what has moved away, and takes pods again.
        other.node.start_again()?;
        cluster
            .wait_until_ready_is(&there, "True")
            .await
            .with_context(|| other.node.log_tail())?;
        cluster
            .eventually("nothing is left of the old pods", async || {
                let pods = pods_on(&cluster, &there).await?;
                ensure!(pods.is_empty(), "the API server has {:?}", uids(&pods));
                let sandboxes = other.view.sandboxes().await?;
                ensure!(sandboxes.iter().all(|sandbox| !sandbox.ready), "{sandboxes:?}");
                Ok(())
            })
            .await
            .with_context(|| other.node.log_tail())?;
        wait_until_untainted(&cluster, [&here, &there]).await?;
        cluster
            .kubectl(&[
                "scale",
                "deployment",
                APP,
                &format!("--replicas={}", REPLICAS + 2),
            ])
            .await?;
        wait_until_ready_on(&cluster, &there, 2)
            .await
            .with_context(|| other.node.log_tail())?;
        Ok(())
    });
}
