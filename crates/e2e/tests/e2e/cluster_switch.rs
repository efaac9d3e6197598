//! A node of a cluster changes from upstream's kubelet to rubelet and back on the same containerd, directories and Node object:
//! no pod notices.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::Api;
use kube::api::{Patch, PatchParams};
use rubelet_testbed::cluster::{Cluster, NAMESPACE};
use rubelet_testbed::control_plane::Options;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pause, pod, shell, with};
use rubelet_testbed::node::{Kubelet, PodFacts};
use serde_json::{Value, json};

/// The pods that live through both changes.
const STAY: [&str; 7] = [
    "plain",
    "probed",
    "files",
    "sidecar",
    "host",
    "restarted",
    "whole",
];
/// Running containers of them all.
const CONTAINERS: usize = 9;
/// A pod that has ended long ago.
const ENDED: &str = "ended";

fn manifests(gate: &Path) -> Vec<Value> {
    let limits = json!({ "limits": { "cpu": "100m", "memory": "32Mi" } });
    let ports = json!([{ "name": "web", "containerPort": 80 }]);
    let quick = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1, "timeoutSeconds": 30 });
    // Not ready as soon as the file is there.
    let gated = json!({ "exec": { "command": ["test", "!", "-e", "/gate/shut"] }, "periodSeconds": 1,
        "timeoutSeconds": 30, "failureThreshold": 1 });
    let mut probed = with(shell("main", UNTIL_TERM), "readinessProbe", gated);
    probed["livenessProbe"] = quick.clone();
    probed["startupProbe"] = quick;
    probed["volumeMounts"] = json!([{ "name": "gate", "mountPath": "/gate" }]);
    let mounts = json!([{ "name": "page", "mountPath": "/page" }, { "name": "seal", "mountPath": "/seal" },
        { "name": "all", "mountPath": "/all" }, { "name": "scratch", "mountPath": "/scratch" }]);
    let volumes = json!([
        { "name": "page", "configMap": { "name": "page" } },
        { "name": "seal", "secret": { "secretName": "seal" } },
        { "name": "scratch", "emptyDir": {} },
        { "name": "all", "projected": { "sources": [
            { "configMap": { "name": "page" } },
            { "serviceAccountToken": { "path": "token", "audience": "somebody" } },
            { "downwardAPI": { "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } } ] } },
    ]);
    let sidecar = with(shell("sidecar", UNTIL_TERM), "restartPolicy", json!("Always"));
    let files = with(
        shell("main", &format!("echo kept > /scratch/file; {UNTIL_TERM}")),
        "volumeMounts",
        mounts,
    );
    vec![
        pod("plain")
            .container(with(pause("main"), "resources", limits.clone()))
            .container(with(pause("port"), "ports", ports))
            .json(),
        pod("probed")
            .container(probed)
            .spec(
                "volumes",
                json!([{ "name": "gate", "hostPath": { "path": gate } }]),
            )
            .json(),
        pod("files").container(files).spec("volumes", volumes).json(),
        pod("sidecar")
            .init(shell("first", "true"))
            .init(sidecar)
            .container(pause("main"))
            .json(),
        pod("host")
            .container(pause("main"))
            .spec("hostNetwork", json!(true))
            .json(),
        pod("restarted").container(pause("main")).json(),
        pod("whole")
            .container(with(pause("main"), "resources", limits))
            .spec(
                "resources",
                json!({ "requests": { "cpu": "100m" }, "limits": { "cpu": "200m", "memory": "64Mi" } }),
            )
            .json(),
        pod("leaves-first").container(pause("main")).json(),
        pod("leaves-second").container(pause("main")).json(),
        pod(ENDED)
            .container(shell("main", "exit 0"))
            .spec("restartPolicy", json!("Never"))
            .json(),
    ]
}

/// A container that started less than this before upstream's kubelet counts as started by it, and is not ready until a probe says
/// so.
const UPSTREAM_MARGIN: Duration = Duration::from_secs(10);

/// What a change of the kubelet must leave as it is.
#[derive(Debug, PartialEq)]
struct Unchanged {
    /// Ids and times of start of the running containers, as the runtime has them.
    containers: BTreeMap<String, i64>,
    /// The sandboxes that are ready.
    sandboxes: Vec<String>,
    /// How many containers of the ended pod the runtime still has or has again.
    ended: usize,
    /// What the API server shows of each pod: the whole status, with the conditions and their times.
    statuses: BTreeMap<String, Value>,
    /// The events of each pod: type, reason and message, and how often.
    events: BTreeMap<String, BTreeMap<String, i32>>,
    /// Since when the node is Ready.
    node: String,
}

impl Unchanged {
    async fn of(cluster: &Cluster<'_>) -> Result<Self> {
        let mut statuses = BTreeMap::new();
        let mut events = BTreeMap::new();
        let mut uids = Vec::new();
        for name in STAY.into_iter().chain([ENDED]) {
            let pod = cluster.pod(name).await?;
            if name == ENDED {
                pod.check_phase("Succeeded")?;
            } else {
                pod.check_ready()
                    .with_context(|| format!("{name}: {:?}", pod.status))?;
                uids.push(pod.uid().to_owned());
            }
            let mut status = serde_json::to_value(&pod.status)?;
            if name == ENDED {
                forget_what_no_kubelet_knows(&mut status);
            }
            statuses.insert(name.to_owned(), status);
            events.insert(name.to_owned(), events_of(cluster, name).await?);
        }
        let ended = cluster.pod(ENDED).await?;
        let all = cluster.bed.view.containers().await?;
        let mut sandboxes = cluster.bed.view.sandboxes().await?;
        sandboxes.retain(|sandbox| sandbox.ready && uids.contains(&sandbox.uid));
        let mut sandboxes: Vec<String> = sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
        sandboxes.sort();
        let mut containers = cluster.bed.view.identities().await?;
        containers.retain(|id, _| all.iter().any(|one| one.id == *id && uids.contains(&one.uid)));
        Ok(Self {
            containers,
            sandboxes,
            ended: all.iter().filter(|one| one.uid == ended.uid()).count(),
            statuses,
            events,
            node: node_ready_since(cluster).await?,
        })
    }

    /// The same without the pod whose readiness the test changes.
    fn without_probed(mut self) -> Self {
        self.statuses.remove("probed");
        self.events.remove("probed");
        self
    }

    /// Fails unless nothing has changed since, and names what has.
    fn check(&self, now: &Self, cluster: &Cluster<'_>) -> Result<()> {
        ensure!(
            self == now,
            "{}\n{}",
            differences(&format!("{self:#?}"), &format!("{now:#?}")),
            cluster.bed.node.log_tail()
        );
        Ok(())
    }
}

/// Of a pod that has ended, either kubelet loses the addresses when it restarts, and shows the totals instead of the cgroup.
fn forget_what_no_kubelet_knows(status: &mut Value) {
    if let Value::Object(fields) = status {
        for name in ["podIP", "podIPs", "resources"] {
            fields.remove(name);
        }
    }
}

/// The lines that only one of the two texts has.
fn differences(before: &str, after: &str) -> String {
    let missing = |from: &str, other: &str, sign: char| -> Vec<String> {
        let known: Vec<&str> = other.lines().collect();
        let lines = from.lines().filter(|line| !known.contains(line));
        lines.map(|line| format!("{sign}{line}")).collect()
    };
    let gone = missing(before, after, '-');
    let new = missing(after, before, '+');
    [gone, new].concat().join("\n")
}

async fn events_of(cluster: &Cluster<'_>, name: &str) -> Result<BTreeMap<String, i32>> {
    let mut counts = BTreeMap::new();
    for event in cluster.events(name).await? {
        let text = |part: Option<String>| part.unwrap_or_default();
        let key = [text(event.type_), text(event.reason), text(event.message)].join(" ");
        *counts.entry(key).or_default() += event.count.unwrap_or(1);
    }
    Ok(counts)
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    statuses
        .into_iter()
        .flatten()
        .map(|container| container.restart_count)
        .sum()
}

async fn node_ready_since(cluster: &Cluster<'_>) -> Result<String> {
    let node = cluster.node().await?;
    let conditions = node
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    let ready = conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready");
    let ready = ready.context("no condition Ready")?;
    ensure!(ready.status == "True", "{ready:?}");
    Ok(serde_json::to_string(&ready.last_transition_time)?)
}

/// Exchanges the kubelet; meanwhile a pod is bound and another one deleted.
async fn exchange(cluster: &mut Cluster<'_>, kubelet: Kubelet, comes: &str, leaves: &str) -> Result<()> {
    let uid = cluster.pod(leaves).await?.uid().to_owned();
    if !kubelet.is_rubelet() {
        wait_until_old(cluster).await?;
    }
    cluster.bed.node.terminate()?;
    cluster
        .create_pod(pod(comes).container(pause("main")).json())
        .await?;
    cluster.delete_pod(leaves, None).await?;
    cluster.bed.node.switch_to(kubelet)?;
    cluster.wait_until_ready(comes).await?;
    cluster.wait_until_gone(leaves, &uid).await?;
    // Events are sent in order: what the new kubelet has to say of older pods is there by then.
    cluster
        .eventually("the new pod's events", async || {
            let reasons = cluster.event_reasons(comes).await?;
            ensure!(reasons.iter().any(|reason| reason == "Started"), "{reasons:?}");
            Ok(())
        })
        .await?;
    cluster.wait_until_node_ready().await
}

/// Waits until every container is older than upstream's margin.
async fn wait_until_old(cluster: &Cluster<'_>) -> Result<()> {
    cluster
        .eventually("the containers are old", async || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
            for started_at in cluster.bed.view.identities().await?.into_values() {
                let started = Duration::from_nanos(u64::try_from(started_at)?);
                let age = now.saturating_sub(started);
                ensure!(
                    age > UPSTREAM_MARGIN + Duration::from_secs(1),
                    "one is {age:?} old"
                );
            }
            Ok(())
        })
        .await
}

/// Waits until every pod shows what its cgroup has, which it does in a sync after its phase is known to be Running. A cgroup of
/// version 1 always has a limit of memory; with version 2 only the CPU request of one pod tells, by what its weight has lost.
async fn wait_until_cgroups_show(cluster: &Cluster<'_>) -> Result<()> {
    let is_version_1 = !Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let waiting: &[&str] = if is_version_1 { &STAY } else { &STAY[..1] };
    for name in waiting {
        cluster
            .wait_for_pod(name, "shows its cgroup", |pod| {
                let status = serde_json::to_value(&pod.status)?;
                let resources = &status["resources"];
                let is_lossy = resources["requests"]["cpu"] != "100m";
                let memory = &resources["limits"]["memory"];
                let is_shown = if is_version_1 {
                    memory.is_string() && *memory != "32Mi"
                } else {
                    is_lossy
                };
                ensure!(is_shown, "{resources}");
                Ok(())
            })
            .await?;
    }
    Ok(())
}

/// The kubelet that runs now does all the work for pods that another one started.
async fn is_in_charge(cluster: &Cluster<'_>, gate: &Path, word: &str) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), NAMESPACE);
    let patch = Patch::Merge(json!({ "data": { "word": word } }));
    maps.patch("page", &PatchParams::default(), &patch).await?;
    std::fs::write(gate.join("shut"), "")?;
    cluster
        .wait_for_pod("probed", "is not ready", |pod| {
            ensure!(
                pod.condition("Ready").0 == "False",
                "{:?}",
                pod.condition("Ready")
            );
            Ok(())
        })
        .await?;
    std::fs::remove_file(gate.join("shut"))?;
    cluster.wait_until_ready("probed").await?;
    cluster
        .eventually("the files have changed", async || {
            let shown = "cat /page/word; cat /all/word; echo; cat /seal/key; echo; cat /all/name; echo; cat /scratch/file; \
                test -s /all/token && echo token";
            let text = cluster.kubectl(&["exec", "files", "--", "sh", "-c", shown]).await?;
            ensure!(text == format!("{word}{word}\nopen\nfiles\nkept\ntoken\n"), "{text}");
            Ok(())
        })
        .await
}

#[test]
fn api_pods_keep_running_when_the_kubelet_is_exchanged() {
    in_scope("cluster_switch", async |scope| {
        let ours = Kubelet::chosen()?;
        let gate = scope.path("gate");
        std::fs::create_dir_all(&gate)?;
        // Upstream's looks at changed objects when it looks at the pod again, which is once in a minute unless told otherwise.
        let mut cluster = Cluster::start(scope, Options::default(), Kubelet::Upstream, |options| {
            options.with("syncFrequency", json!("2s"))
        })
        .await?;
        cluster
            .create::<ConfigMap>(json!({ "metadata": { "name": "page" }, "data": { "word": "none" } }))
            .await?;
        cluster
            .create::<Secret>(json!({ "metadata": { "name": "seal" }, "stringData": { "key": "open" } }))
            .await?;
        for manifest in manifests(&gate) {
            cluster.create_pod(manifest).await?;
        }
        let restarted = cluster.wait_until_ready("restarted").await?;
        cluster
            .bed
            .view
            .kill_container(&restarted.running_id("main")?)
            .await?;
        cluster
            .wait_for_pod("restarted", "has restarted", |pod| {
                ensure!(restarts(pod) == 1, "{}", restarts(pod));
                pod.check_ready()
            })
            .await?;
        for name in STAY.iter().chain(&["leaves-first", "leaves-second"]) {
            cluster.wait_until_ready(name).await?;
        }
        cluster
            .wait_for_pod(ENDED, "has ended", |pod| pod.check_phase("Succeeded"))
            .await?;
        wait_until_cgroups_show(&cluster).await?;
        let before = Unchanged::of(&cluster).await?;
        ensure!(before.containers.len() == CONTAINERS, "{before:?}");
        ensure!(before.sandboxes.len() == STAY.len(), "{before:?}");

        exchange(&mut cluster, ours, "first", "leaves-first").await?;
        before.check(&Unchanged::of(&cluster).await?, &cluster)?;
        is_in_charge(&cluster, &gate, "one").await?;
        let during = Unchanged::of(&cluster).await?;
        let before = before.without_probed();

        exchange(&mut cluster, Kubelet::Upstream, "second", "leaves-second").await?;
        let after = Unchanged::of(&cluster).await?;
        during.check(&after, &cluster)?;
        before.check(&after.without_probed(), &cluster)?;
        is_in_charge(&cluster, &gate, "two").await?;
        let uid = cluster.pod("first").await?.uid().to_owned();
        cluster.delete_pod("first", None).await?;
        cluster.wait_until_gone("first", &uid).await?;
        let after = Unchanged::of(&cluster).await?;
        before.check(&after.without_probed(), &cluster)
    });
}
