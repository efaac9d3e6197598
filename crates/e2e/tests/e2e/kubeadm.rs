//! A cluster that a real `kubeadm init` makes on rubelet: the control plane runs as static pods, kube-proxy and CoreDNS carry a Service, the
//! kubelet is exchanged for upstream's and back, and `kubeadm reset` leaves nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Node, Pod, Service};
use kube::Api;
use kube::api::{ListParams, PostParams};
use rubelet_testbed::in_scope;
use rubelet_testbed::kubeadm::KubeadmNode;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, server, shell};
use rubelet_testbed::node::{Kubelet, PodFacts};
use serde_json::{Value, json};

/// The static pods that kubeadm makes, each with one container of the same name.
const CONTROL_PLANE: [&str; 4] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
];
/// The Deployment and its Service.
const WEB: &str = "web";
const REPLICAS: usize = 2;
/// The pod that asks the Service.
const CLIENT: &str = "client";
/// The namespace of the tests' own pods.
const NAMESPACE: &str = "default";

/// Ids of running containers by pod and container.
type Running = BTreeMap<(String, String), String>;

/// The running containers of static pods, and those of pods that come from the API server.
async fn running(node: &KubeadmNode<'_>) -> Result<(Running, Running)> {
    let all = node.view.running().await?;
    Ok(all
        .into_iter()
        .partition(|((_, container), _)| CONTROL_PLANE.contains(&container.as_str())))
}

async fn all_pods(node: &KubeadmNode<'_>) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::all(node.client()?);
    Ok(pods
        .list(&ListParams::default())
        .await
        .context("list pods")?
        .items)
}

/// Waits until the API server has this many pods and the node, all ready, and the node reports this kubelet's version.
async fn wait_until_all_ready(node: &KubeadmNode<'_>, pods: usize, version: &str) -> Result<()> {
    node.eventually("the node and all pods are ready", async || {
        let nodes: Api<Node> = Api::all(node.client()?);
        let status = nodes.get(node.name()).await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
        let ready = ready.context("no condition Ready")?;
        ensure!(ready.status == "True", "{:?}", ready.message);
        let found = status.node_info.unwrap_or_default().kubelet_version;
        ensure!(found == version, "the node reports {found}");
        let all = all_pods(node).await?;
        ensure!(all.len() == pods, "{} pods", all.len());
        for pod in all {
            pod.check_ready().with_context(|| {
                format!(
                    "{:?}: {}",
                    pod.metadata.name,
                    serde_json::to_string(&pod.status).unwrap_or_default()
                )
            })?;
        }
        Ok(())
    })
    .await
}

/// The version that a kubelet reports.
fn version_of(kubelet: &Kubelet) -> Result<String> {
    let output = std::process::Command::new(kubelet.path()?)
        .arg("--version")
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let version = text.trim().strip_prefix("Kubernetes ").context("no version")?;
    Ok(version.to_owned())
}

async fn create_workload(node: &KubeadmNode<'_>) -> Result<()> {
    let labels = json!({ "app": WEB });
    let client = pod(CLIENT).container(shell("main", UNTIL_TERM));
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": { "name": WEB },
        "spec": {
            "replicas": REPLICAS,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [server("main", &[])], "terminationGracePeriodSeconds": 2 },
            },
        },
    }))?;
    let service: Service = serde_json::from_value(json!({
        "metadata": { "name": WEB },
        "spec": { "selector": labels, "ports": [{ "port": 80, "targetPort": 8080 }] },
    }))?;
    let parameters = PostParams::default();
    Api::namespaced(node.client()?, NAMESPACE)
        .create(&parameters, &serde_json::from_value::<Pod>(client.json())?)
        .await?;
    Api::namespaced(node.client()?, NAMESPACE)
        .create(&parameters, &deployment)
        .await?;
    Api::namespaced(node.client()?, NAMESPACE)
        .create(&parameters, &service)
        .await?;
    Ok(())
}

/// A pod finds the Service by its name, which takes CoreDNS, and reaches every replica behind its address, which takes kube-proxy.
async fn check_service(node: &KubeadmNode<'_>) -> Result<()> {
    let mut unseen: Vec<String> = all_pods(node)
        .await?
        .into_iter()
        .filter_map(|pod| pod.metadata.name)
        .filter(|name| name.starts_with(&format!("{WEB}-")))
        .collect();
    ensure!(unseen.len() == REPLICAS, "{unseen:?}");
    // Of Debian's static busybox nslookup alone can resolve names, and wget does not work at all.
    let script = format!(
        "address=$(nslookup -type=a {WEB}.{NAMESPACE}.svc.cluster.local | tail -n 2 | sed -n 's/^Address: //p') && \
         printf 'GET /hostname HTTP/1.0\\r\\n\\r\\n' | nc -w 5 $address 80 | tail -n 1"
    );
    node.eventually("every replica answers behind the Service", async || {
        let answer = node.kubectl(&["exec", CLIENT, "--", "sh", "-c", &script]).await?;
        unseen.retain(|name| name != answer.trim());
        ensure!(
            unseen.is_empty(),
            "{unseen:?} did not answer, the last was {answer:?}"
        );
        Ok(())
    })
    .await
}

/// Exchanges the kubelet. Pods of the API server keep their containers and their status, and no event tells of anything.
async fn exchange(node: &mut KubeadmNode<'_>, kubelet: &Kubelet) -> Result<()> {
    let (_, containers) = running(node).await?;
    let before = reported(node).await?;
    node.switch_to(kubelet)?;
    wait_until_all_ready(node, before.len() + CONTROL_PLANE.len(), &version_of(kubelet)?).await?;
    let (_, after) = running(node).await?;
    ensure!(
        containers == after,
        "{containers:#?} became {after:#?}\n{}",
        node.log_tail()
    );
    let after = reported(node).await?;
    for (pod, was) in &before {
        let is = &after[pod];
        ensure!(was == is, "{pod}: {was:#} became {is:#}\n{}", node.log_tail());
    }
    check_service(node).await
}

/// The status of every pod of the API server, and the events about it.
async fn reported(node: &KubeadmNode<'_>) -> Result<BTreeMap<String, Value>> {
    let events: Api<Event> = Api::all(node.client()?);
    let events = events.list(&ListParams::default()).await?.items;
    let mut reported = BTreeMap::new();
    for pod in all_pods(node).await? {
        if is_static(&pod) {
            continue;
        }
        let of_pod = events
            .iter()
            .filter(|event| event.involved_object.uid.as_deref() == Some(pod.uid()));
        // A machine under load may miss a probe. Upstream has no record of the resources of containers that it did not start: it tells that it
        // applies them, and that it has, without any change.
        let mut notes: Vec<String> = of_pod
            .filter(|event| !matches!(event.reason.as_deref(), Some("Unhealthy" | "ResizeCompleted")))
            .map(|event| {
                let reason = event.reason.as_deref().unwrap_or_default();
                format!("{reason}: {}", event.message.as_deref().unwrap_or_default())
            })
            .collect();
        notes.sort();
        let mut status = pod.status.unwrap_or_default();
        // Upstream reads both from cgroups, and reports there what the kernel shows for no limit at all.
        status.resources = None;
        status.allocated_resources = None;
        if let Some(conditions) = &mut status.conditions {
            conditions.retain(|condition| condition.type_ != "PodResizeInProgress");
        }
        let name = pod.metadata.name.unwrap_or_default();
        reported.insert(name, json!({ "status": status, "events": notes }));
    }
    Ok(reported)
}

fn is_static(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key("kubernetes.io/config.mirror"))
}

/// Exchanges the kubelet; static pods keep their containers too.
async fn exchange_with_control_plane(node: &mut KubeadmNode<'_>, kubelet: &Kubelet) -> Result<()> {
    let (before, _) = running(node).await?;
    ensure!(before.len() == CONTROL_PLANE.len(), "{before:?}");
    exchange(node, kubelet).await?;
    let (after, _) = running(node).await?;
    ensure!(
        before == after,
        "{before:#?} became {after:#?}\n{}",
        node.log_tail()
    );
    Ok(())
}

/// An administrator gives the API server a flag that it does not know, restarts the kubelet, and takes the flag back: the API server comes up
/// again, although the kubelet cannot ask one for its pods.
async fn repair_apiserver(node: &mut KubeadmNode<'_>, kubelet: &Kubelet) -> Result<()> {
    let component = "kube-apiserver";
    let (_, before) = running(node).await?;
    let pods = all_pods(node).await?.len();
    let known = node.view.containers().await?;
    let good = node.manifest(component)?;
    let bad = good.replacen(
        "- --advertise-address",
        "- --no-such-flag\n    - --advertise-address",
        1,
    );
    ensure!(bad != good, "the manifest is {good}");
    node.write_manifest(component, &bad)?;
    node.eventually("the API server has failed with the flag", async || {
        let containers = node.view.containers().await?;
        let mut of_server = containers.iter().filter(|one| one.name == component);
        ensure!(!of_server.clone().any(|one| one.running), "it runs");
        ensure!(
            of_server.any(|one| known.iter().all(|old| old.id != one.id)),
            "it has not been started"
        );
        Ok(())
    })
    .await?;
    node.kill_kubelet()?;
    node.start_kubelet(kubelet)?;
    node.wait_until_kubelet_serves().await?;
    node.write_manifest(component, &good)?;
    wait_until_all_ready(node, pods, &version_of(kubelet)?).await?;
    let (_, after) = running(node).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    check_service(node).await
}

/// Nothing runs, and of kubeadm's and the kubelet's directories nothing is left but empty ones.
async fn check_reset(node: &KubeadmNode<'_>) -> Result<()> {
    let sandboxes = node.view.sandboxes().await?;
    ensure!(sandboxes.is_empty(), "{sandboxes:?}");
    for dir in ["/etc/kubernetes", "/var/lib/kubelet", "/var/lib/etcd"] {
        let left = files_below(&node.path(dir))?;
        ensure!(left.is_empty(), "{dir} still has {left:?}");
    }
    let left = node.mounts_below("/var/lib/kubelet")?;
    ensure!(left.is_empty(), "mounts of pods are left: {left:#?}");
    Ok(())
}

fn files_below(dir: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    let mut directories = vec![dir.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            } else {
                files.push(entry.path().display().to_string());
            }
        }
    }
    Ok(files)
}

#[test]
fn kubeadm_makes_and_resets_a_cluster() {
    in_scope("kubeadm", async |scope| {
        let ours = Kubelet::chosen()?;
        let mut node = KubeadmNode::create(scope).await?;
        node.init(&ours).await?;
        // kube-proxy and two replicas of CoreDNS.
        let system = CONTROL_PLANE.len() + 3;
        wait_until_all_ready(&node, system, &version_of(&ours)?).await?;
        let before = running(&node).await?;
        // kubeadm's last phase has the service manager restart the kubelet.
        node.switch_to(&ours)?;
        create_workload(&node).await?;
        wait_until_all_ready(&node, system + REPLICAS + 1, &version_of(&ours)?).await?;
        let after = running(&node).await?;
        ensure!(before.0 == after.0, "{before:#?} became {after:#?}");
        check_service(&node).await?;

        repair_apiserver(&mut node, &ours).await?;

        // Upstream makes other UIDs of manifests, so the control plane that rubelet started starts anew once.
        exchange(&mut node, &Kubelet::Upstream).await?;
        exchange_with_control_plane(&mut node, &ours).await?;
        exchange_with_control_plane(&mut node, &Kubelet::Upstream).await?;

        node.terminate_kubelet()?;
        node.reset()?;
        check_reset(&node).await
    });
}
