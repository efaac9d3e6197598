//! How a node comes to its Node object: it makes one as it was told, takes over the one that exists, or waits for the one that
//! somebody else makes. `RUBELET_TEST_KUBELET=upstream` checks the tests themselves.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, NodeStatus, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rubelet_testbed::cluster::Cluster;
use rubelet_testbed::control_plane;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, shell};
use rubelet_testbed::node::{Bed, Kubelet, Options, PodFacts};
use serde_json::json;

const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const HOSTNAME: &str = "kubernetes.io/hostname";
const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
const ZONE: &str = "topology.kubernetes.io/zone";
/// A label that upstream's kubelet gives a Node once and never looks at again.
const RACK: &str = "test.example/rack";
/// What somebody else has put onto the Node.
const THEIRS: &str = "test.example/theirs";
/// A size that no machine of today has.
const ODD_PAGES: &str = "hugepages-64Ki";
const GPU: &str = "test.example/gpu";

/// The API server gives every new Node this taint; a controller that does not run here takes it away.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

fn told(mut options: Options) -> Options {
    let labels = format!("--node-labels={RACK}=7,{INSTANCE_TYPE}=large,{ZONE}=north");
    options.arguments.push(labels);
    options.with(
        "registerWithTaints",
        json!([
            { "key": "test.example/dedicated", "value": "cars", "effect": "NoSchedule" },
            { "key": "test.example/new", "effect": "PreferNoSchedule" },
        ]),
    )
}

#[test]
fn a_node_comes_to_its_object() {
    in_scope("cluster_registration", async |scope| {
        let kubelet = Kubelet::chosen()?;
        let plane = control_plane::Options::default();
        let mut cluster = Cluster::start(scope, plane, kubelet.clone(), told).await?;
        the_node_is_registered(&cluster).await?;
        labels_taints_and_annotations_are_as_told(&cluster).await?;
        an_existing_node_is_brought_in_line(&mut cluster).await?;
        settings_of_another_start_reach_only_what_is_ours(&mut cluster).await?;
        let bed = cluster
            .add_node("late", kubelet, |options| {
                told(options).with("registerNode", json!(false))
            })
            .await?;
        let registered = a_node_that_others_register(&cluster, &bed).await;
        registered.with_context(|| bed.node.log_tail())
    });
}

fn nodes(cluster: &Cluster<'_>) -> Api<Node> {
    Api::all(cluster.client())
}

fn labels(node: &Node) -> BTreeMap<&str, &str> {
    texts(node.metadata.labels.as_ref())
}

fn annotations(node: &Node) -> BTreeMap<&str, &str> {
    texts(node.metadata.annotations.as_ref())
}

fn texts(map: Option<&BTreeMap<String, String>>) -> BTreeMap<&str, &str> {
    let pairs = map.into_iter().flatten();
    pairs.map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

/// Keys, values and effects, without what the API server adds by itself.
fn taints(node: &Node) -> Vec<(&str, &str, &str)> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let taints = taints.unwrap_or_default().iter();
    let mut taints: Vec<_> = taints
        .map(|taint| {
            (
                taint.key.as_str(),
                taint.value.as_deref().unwrap_or_default(),
                taint.effect.as_str(),
            )
        })
        .filter(|(key, _, _)| *key != NOT_READY)
        .collect();
    taints.sort_unstable();
    taints
}

fn status(node: &Node) -> Result<&NodeStatus> {
    node.status.as_ref().context("no status")
}

fn check_labels(node: &Node, expected: &[(&str, &str)]) -> Result<()> {
    let labels = labels(node);
    for (key, value) in expected {
        ensure!(labels.get(key) == Some(value), "{key} is not {value}: {labels:?}");
    }
    Ok(())
}

async fn labels_taints_and_annotations_are_as_told(cluster: &Cluster<'_>) -> Result<()> {
    let node = cluster.node().await?;
    check_labels(
        &node,
        &[
            (RACK, "7"),
            (INSTANCE_TYPE, "large"),
            (ZONE, "north"),
            ("beta.kubernetes.io/os", "linux"),
            ("beta.kubernetes.io/arch", "amd64"),
        ],
    )?;
    let expected = [
        ("test.example/dedicated", "cars", "NoSchedule"),
        ("test.example/new", "", "PreferNoSchedule"),
    ];
    ensure!(taints(&node) == expected, "{:?}", taints(&node));
    let annotations = annotations(&node);
    ensure!(annotations.get(ATTACH_DETACH) == Some(&"true"), "{annotations:?}");
    Ok(())
}

/// What others may do to a Node while its kubelet is away.
async fn spoil(cluster: &Cluster<'_>) -> Result<()> {
    let object = json!({
        "metadata": {
            "labels": { HOSTNAME: "elsewhere", INSTANCE_TYPE: "small", ZONE: null, RACK: "8", THEIRS: "x" },
            "annotations": { ATTACH_DETACH: "false", THEIRS: "x" },
        },
        "spec": { "taints": [{ "key": THEIRS, "effect": "NoSchedule" }] },
    });
    let amounts = json!({ "cpu": "99", "memory": "1Mi", ODD_PAGES: "128Ki", GPU: "2" });
    let status = json!({ "status": {
        "capacity": amounts,
        "allocatable": amounts,
        "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }, { "type": "Hostname", "address": "elsewhere" }],
        "nodeInfo": { "kubeletVersion": "v0.1" },
    } });
    let (nodes, name) = (nodes(cluster), cluster.node_name());
    nodes
        .patch(name, &PatchParams::default(), &Patch::Merge(object))
        .await?;
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

async fn a_start_that_fails_is_an_event(cluster: &mut Cluster<'_>) -> Result<()> {
    if !cluster.bed.node.kubelet().is_rubelet() {
        return Ok(());
    }
    let files = ["tlsCertFile", "tlsPrivateKeyFile"];
    for file in files {
        cluster.bed.node.reconfigure(file, json!("/nonexistent"))?;
    }
    cluster.bed.node.launch()?;
    let status = cluster.bed.node.wait_for_exit()?;
    for file in files {
        cluster.bed.node.reconfigure(file, json!(""))?;
    }
    ensure!(status.code() == Some(1), "{status}");
    let events = cluster.events(cluster.node_name()).await?;
    let failed = |event: &&Event| event.reason.as_deref() == Some("KubeletSetupFailed");
    let event = events
        .iter()
        .find(failed)
        .context("no event of the failed start")?;
    let message = event.message.as_deref().unwrap_or_default();
    ensure!(message.contains("/nonexistent"), "{message}");
    Ok(())
}

/// Labels that schedulers go by, our annotation, amounts and addresses are the kubelet's; taints and what others have added stay.
async fn an_existing_node_is_brought_in_line(cluster: &mut Cluster<'_>) -> Result<()> {
    let before = cluster.node().await?;
    let was = status(&before)?;
    cluster.bed.node.terminate()?;
    spoil(cluster).await?;
    a_start_that_fails_is_an_event(cluster).await?;
    cluster.bed.node.start_again()?;
    let node = cluster
        .eventually("the status is the kubelet's again", async || {
            let node = cluster.node().await?;
            let now = status(&node)?;
            ensure!(now.addresses == was.addresses, "{:?}", now.addresses);
            check_amounts(was.capacity.as_ref(), now.capacity.as_ref())?;
            check_amounts(was.allocatable.as_ref(), now.allocatable.as_ref())?;
            let version = |status: &NodeStatus| status.node_info.clone().unwrap_or_default().kubelet_version;
            ensure!(version(now) == version(was), "{}", version(now));
            Ok(node)
        })
        .await?;
    ensure!(node.metadata.uid == before.metadata.uid, "another object");
    if cluster.bed.node.kubelet().is_rubelet() {
        // Upstream takes its own socket in the directory of checkpoints for a checkpoint, if that is there by now.
        let capacity = status(&node)?.capacity.clone().unwrap_or_default();
        let devices = capacity.get(GPU).map(|amount| amount.0.as_str());
        ensure!(devices == Some("0"), "nobody knows of devices yet: {capacity:?}");
    }
    check_labels(
        &node,
        &[
            (HOSTNAME, cluster.node_name()),
            (INSTANCE_TYPE, "large"),
            (ZONE, "north"),
            (RACK, "8"),
            (THEIRS, "x"),
        ],
    )?;
    let annotations = annotations(&node);
    ensure!(annotations.get(ATTACH_DETACH) == Some(&"true"), "{annotations:?}");
    ensure!(annotations.get(THEIRS) == Some(&"x"), "{annotations:?}");
    ensure!(
        taints(&node) == [(THEIRS, "", "NoSchedule")],
        "{:?}",
        taints(&node)
    );
    Ok(())
}

type Amounts = BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

/// Page sizes that the machine does not have are gone.
fn check_amounts(was: Option<&Amounts>, now: Option<&Amounts>) -> Result<()> {
    let (was, now) = (was.context("no amounts")?, now.context("no amounts")?);
    for name in ["cpu", "memory", "pods"] {
        ensure!(
            now.get(name) == was.get(name),
            "{name}: {now:?} instead of {was:?}"
        );
    }
    ensure!(!now.contains_key(ODD_PAGES), "{now:?}");
    Ok(())
}

async fn settings_of_another_start_reach_only_what_is_ours(cluster: &mut Cluster<'_>) -> Result<()> {
    let before = cluster.node().await?;
    let node = &mut cluster.bed.node;
    node.terminate()?;
    node.reconfigure("enableControllerAttachDetach", json!(false))?;
    node.reconfigure(
        "registerWithTaints",
        json!([{ "key": "test.example/later", "effect": "NoSchedule" }]),
    )?;
    node.start_again()?;
    let after = cluster
        .eventually("the annotation is gone", async || {
            let node = cluster.node().await?;
            let annotations = annotations(&node);
            ensure!(!annotations.contains_key(ATTACH_DETACH), "{annotations:?}");
            Ok(node)
        })
        .await?;
    ensure!(taints(&after) == taints(&before), "{:?}", taints(&after));
    ensure!(labels(&after) == labels(&before), "{:?}", labels(&after));
    ensure!(annotations(&after).get(THEIRS) == Some(&"x"), "{after:?}");
    Ok(())
}

/// `registerNode: false`: nothing is made, and the Node that comes one day gets its status, its lease and its pods.
async fn a_node_that_others_register(cluster: &Cluster<'_>, bed: &Bed<'_>) -> Result<()> {
    let name = bed.node.name();
    // It has asked for its object and found none; whoever would make one had done so by now.
    let missing: &[&str] = match bed.node.kubelet().is_rubelet() {
        true => &["There is no Node object of this name"],
        false => &["error getting node", "not found"],
    };
    bed.node.wait_for_log(missing).await?;
    let found = nodes(cluster).get_opt(name).await?;
    ensure!(found.is_none(), "it has made {found:?}");
    let by_hand: Node =
        serde_json::from_value(json!({ "metadata": { "name": name, "labels": { THEIRS: "x" } } }))?;
    let made = nodes(cluster).create(&PostParams::default(), &by_hand).await?;
    cluster.wait_until_ready_is(name, "True").await?;
    let node = cluster.node_named(name).await?;
    ensure!(node.metadata.uid == made.metadata.uid, "another object");
    // What a kubelet tells at registration it does not tell here: only what pods are scheduled by is kept right.
    let expected = BTreeMap::from([
        (THEIRS, "x"),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
    ]);
    ensure!(labels(&node) == expected, "{:?}", labels(&node));
    ensure!(taints(&node).is_empty(), "{:?}", taints(&node));
    ensure!(!annotations(&node).contains_key(ATTACH_DETACH), "{node:?}");
    let own = status(&node)?;
    let neighbour = cluster.node().await?;
    let other = status(&neighbour)?;
    for resource in ["cpu", "memory", "pods"] {
        let amount = |status: &NodeStatus| status.capacity.clone().unwrap_or_default().get(resource).cloned();
        ensure!(
            amount(own).is_some() && amount(own) == amount(other),
            "{resource}: {:?}",
            own.capacity
        );
    }
    let addresses = own.addresses.as_deref().unwrap_or_default();
    ensure!(
        addresses.iter().any(|found| found.type_ == "InternalIP"),
        "{addresses:?}"
    );
    check_lease(cluster, &node).await?;

    let manifest = pod("on-late")
        .container(shell("main", UNTIL_TERM))
        .spec("nodeName", json!(name));
    cluster.create::<Pod>(manifest.json()).await?;
    let ready = cluster.wait_until_ready("on-late").await?;
    let running = bed.view.running().await?;
    let id = ready.running_id("main")?;
    ensure!(running.values().any(|found| *found == id), "{running:?}");
    cluster.delete_pod("on-late", None).await?;
    cluster
        .eventually("the pod is gone", async || {
            ensure!(
                cluster.pods().get_opt("on-late").await?.is_none(),
                "the API server has it"
            );
            let running = bed.view.running().await?;
            ensure!(running.is_empty(), "{running:?}");
            Ok(())
        })
        .await
}

/// The node's lease, which its object owns.
async fn check_lease(cluster: &Cluster<'_>, node: &Node) -> Result<()> {
    let name = node.metadata.name.as_deref().context("a name")?;
    let leases: Api<Lease> = Api::namespaced(cluster.client(), "kube-node-lease");
    cluster
        .eventually("the lease is there", async || {
            let lease = leases.get(name).await?;
            let spec = lease.spec.context("a spec")?;
            ensure!(spec.lease_duration_seconds == Some(40), "{spec:?}");
            ensure!(spec.holder_identity.as_deref() == Some(name), "{spec:?}");
            let owners = lease.metadata.owner_references.unwrap_or_default();
            let is_owned = owners
                .iter()
                .any(|owner| owner.kind == "Node" && Some(&owner.uid) == node.metadata.uid.as_ref());
            ensure!(is_owned, "{owners:?}");
            Ok(())
        })
        .await
}

async fn the_node_is_registered(cluster: &Cluster<'_>) -> Result<()> {
    let node = cluster.node().await?;
    check_labels(
        &node,
        &[
            (HOSTNAME, cluster.node_name()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
        ],
    )?;
    let status = status(&node)?.clone();
    let conditions: Vec<(String, String)> = status
        .conditions
        .unwrap_or_default()
        .into_iter()
        .map(|condition| (condition.type_, condition.status))
        .collect();
    for (kind, value) in [
        ("MemoryPressure", "False"),
        ("DiskPressure", "False"),
        ("PIDPressure", "False"),
        ("Ready", "True"),
    ] {
        ensure!(
            conditions.contains(&(kind.to_owned(), value.to_owned())),
            "no {kind}={value} in {conditions:?}"
        );
    }
    let capacity = status.capacity.unwrap_or_default();
    for resource in ["cpu", "memory", "pods", "ephemeral-storage"] {
        ensure!(capacity.contains_key(resource), "no {resource} in {capacity:?}");
    }
    let info = status.node_info.context("nodeInfo")?;
    ensure!(
        info.container_runtime_version.starts_with("containerd://2"),
        "{info:?}"
    );
    ensure!(info.kubelet_version.starts_with("v1.37"), "{info:?}");
    check_lease(cluster, &node).await
}
