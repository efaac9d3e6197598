//! A cluster for tests: a real control plane and a node in it, or more, whose kubelet has exactly the rights of a node.
//!
//! Owns how the node is joined and what tests ask of both sides: the API server's objects, kubectl, the runtime's truth. It
//! judges nothing.

use std::fmt::Debug;
use std::net::{IpAddr, UdpSocket};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node as NodeObject, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::containerd::Flavour;
use crate::control_plane::{self, ControlPlane};
use crate::node::manifest::Manifest;
use crate::node::{Bed, Kubelet, Options, PodFacts};
use crate::node_network::NodeNetwork;
use crate::scope::Scope;

/// How long a state may take unless a test says otherwise.
pub const DEADLINE: Duration = Duration::from_secs(120);
/// Where tests make their objects.
pub const NAMESPACE: &str = "default";

/// A control plane with a node. More can join.
pub struct Cluster<'a> {
    pub control_plane: ControlPlane,
    pub bed: Bed<'a>,
    client: Client,
    nodes: Nodes,
}

/// What the nodes of a cluster share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nodes {
    /// The machine's network, where each has ports of its own.
    Together,
    /// Nothing that machines do not share: each is in a network of its own.
    Apart,
}

impl<'a> Cluster<'a> {
    /// Starts everything and waits until the node is Ready.
    pub async fn start(
        scope: &'a Scope,
        plane: control_plane::Options,
        kubelet: Kubelet,
        adjust: impl FnOnce(Options) -> Options,
    ) -> Result<Self> {
        Self::start_with(scope, plane, Nodes::Together, kubelet, adjust).await
    }

    /// The same with every node in a network of its own.
    pub async fn start_apart(
        scope: &'a Scope,
        plane: control_plane::Options,
        kubelet: Kubelet,
        adjust: impl FnOnce(Options) -> Options,
    ) -> Result<Self> {
        Self::start_with(scope, plane, Nodes::Apart, kubelet, adjust).await
    }

    async fn start_with(
        scope: &'a Scope,
        plane: control_plane::Options,
        nodes: Nodes,
        kubelet: Kubelet,
        adjust: impl FnOnce(Options) -> Options,
    ) -> Result<Self> {
        let control_plane = ControlPlane::start(scope, plane).await?;
        let options = joined(scope, &control_plane, nodes, Options::new(kubelet)).await?;
        let options = adjust(options);
        let bed = Bed::start(scope, Flavour::V2, options).await?;
        let cluster = Self {
            client: control_plane.admin_client(),
            control_plane,
            bed,
            nodes,
        };
        cluster.wait_until_node_ready().await?;
        cluster.wait_until_pods_may_be_made().await?;
        Ok(cluster)
    }

    /// One more node, with a containerd, a pod network, a cgroup root and directories of its own; returns once its kubelet runs,
    /// whether the cluster knows the node or not.
    pub async fn add_node(
        &self,
        label: &str,
        kubelet: Kubelet,
        adjust: impl FnOnce(Options) -> Options,
    ) -> Result<Bed<'a>> {
        let scope = self.bed.scope;
        let options = Options::new(kubelet).labelled(label);
        let options = joined(scope, &self.control_plane, self.nodes, options).await?;
        Bed::start(scope, self.bed.containerd.flavour(), adjust(options)).await
    }

    /// The same, once it is Ready.
    pub async fn join(
        &self,
        label: &str,
        kubelet: Kubelet,
        adjust: impl FnOnce(Options) -> Options,
    ) -> Result<Bed<'a>> {
        let bed = self.add_node(label, kubelet, adjust).await?;
        let ready = self.wait_until_ready_is(bed.node.name(), "True").await;
        ready.with_context(|| bed.node.log_tail())?;
        Ok(bed)
    }

    /// A client that may do everything.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub fn node_name(&self) -> &str {
        self.bed.node.name()
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), NAMESPACE)
    }

    /// The Node object.
    pub async fn node(&self) -> Result<NodeObject> {
        self.node_named(self.node_name()).await
    }

    /// Any node's object.
    pub async fn node_named(&self, name: &str) -> Result<NodeObject> {
        let nodes: Api<NodeObject> = Api::all(self.client());
        nodes.get(name).await.with_context(|| format!("get node {name}"))
    }

    /// Waits until the node has condition Ready.
    pub async fn wait_until_node_ready(&self) -> Result<()> {
        self.wait_until_ready_is(self.node_name(), "True").await
    }

    /// Waits until any node's condition Ready has this status.
    pub async fn wait_until_ready_is(&self, name: &str, status: &str) -> Result<()> {
        self.eventually(&format!("Ready of {name} is {status}"), async || {
            let node = self.node_named(name).await?;
            let conditions = node
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
            let ready = ready.context("no condition Ready")?;
            ensure!(ready.status == status, "{}: {:?}", ready.status, ready.message);
            Ok(())
        })
        .await
    }

    /// The API server refuses pods until their namespace has its service account.
    async fn wait_until_pods_may_be_made(&self) -> Result<()> {
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(self.client(), NAMESPACE);
        self.eventually("the default service account is there", async || {
            accounts.get("default").await.map(drop).map_err(Into::into)
        })
        .await
    }

    /// Waits for a state; when it does not come, the end of the kubelet's log is told too.
    pub async fn eventually<T>(&self, what: &str, mut state: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        let end = std::time::Instant::now() + DEADLINE;
        loop {
            match state().await {
                Ok(value) => return Ok(value),
                Err(error) if std::time::Instant::now() > end => {
                    return Err(error).with_context(|| {
                        format!("{what}: not so after {DEADLINE:?}\n{}", self.bed.node.log_tail())
                    });
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Makes an object of any kind in the tests' namespace.
    pub async fn create<T>(&self, object: Value) -> Result<T>
    where
        T: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Serialize,
        <T as kube::Resource>::DynamicType: Default,
    {
        let object: T = serde_json::from_value(object).context("an object of this kind")?;
        let api: Api<T> = Api::namespaced(self.client(), NAMESPACE);
        api.create(&PostParams::default(), &object)
            .await
            .context("create an object")
    }

    /// Binds a pod to the node and makes it.
    pub async fn create_pod(&self, mut manifest: Value) -> Result<Pod> {
        manifest["spec"]["nodeName"] = json!(self.node_name());
        self.create(manifest).await
    }

    /// Makes a pod and waits until it is ready.
    pub async fn start_pod(&self, manifest: Manifest) -> Result<Pod> {
        let made = self.create_pod(manifest.json()).await?;
        self.wait_until_ready(name_of(&made)).await
    }

    /// Makes a pod that runs once, and waits until its phase is this one.
    pub async fn run_pod_once(&self, manifest: Manifest, phase: &str) -> Result<Pod> {
        let manifest = manifest.spec("restartPolicy", json!("Never"));
        let made = self.create_pod(manifest.json()).await?;
        self.wait_for_pod(name_of(&made), "has ended", |pod| {
            pod.check_phase(phase)?;
            Ok(pod.clone())
        })
        .await
    }

    /// Deletes a pod and waits until nothing of it is left; without a grace period its own counts.
    pub async fn remove_pod(&self, pod: &Pod, grace_seconds: Option<u32>) -> Result<()> {
        let name = name_of(pod);
        self.delete_pod(name, grace_seconds).await?;
        self.wait_until_gone(name, pod.uid()).await
    }

    pub async fn pod(&self, name: &str) -> Result<Pod> {
        self.pods()
            .get(name)
            .await
            .with_context(|| format!("get pod {name}"))
    }

    /// Waits until the API server's pod is as `state` wants it.
    pub async fn wait_for_pod<T>(
        &self,
        name: &str,
        what: &str,
        mut state: impl FnMut(&Pod) -> Result<T>,
    ) -> Result<T> {
        self.eventually(&format!("pod {name}: {what}"), async || {
            let pod = self.pod(name).await?;
            state(&pod).with_context(|| serde_json::to_string(&pod.status).unwrap_or_default())
        })
        .await
    }

    /// Waits until the API server says that the pod is Running and Ready.
    pub async fn wait_until_ready(&self, name: &str) -> Result<Pod> {
        self.wait_for_pod(name, "is ready", |pod| {
            pod.check_ready()?;
            Ok(pod.clone())
        })
        .await
    }

    /// Waits until the API server has no pod of this name and the runtime nothing of this UID.
    pub async fn wait_until_gone(&self, name: &str, uid: &str) -> Result<()> {
        self.eventually(&format!("pod {name} is gone"), async || {
            let found = self.pods().get_opt(name).await?;
            ensure!(found.is_none(), "the API server still has it");
            let sandboxes = self.bed.view.sandboxes().await?;
            ensure!(
                sandboxes
                    .iter()
                    .all(|sandbox| sandbox.uid != uid || !sandbox.ready),
                "the runtime still runs it"
            );
            Ok(())
        })
        .await
    }

    /// Deletes a pod; without a grace period its own counts.
    pub async fn delete_pod(&self, name: &str, grace_seconds: Option<u32>) -> Result<()> {
        let parameters = DeleteParams {
            grace_period_seconds: grace_seconds,
            ..DeleteParams::default()
        };
        self.pods()
            .delete(name, &parameters)
            .await
            .map(drop)
            .with_context(|| format!("delete pod {name}"))
    }

    /// A merge patch of a pod.
    pub async fn patch_pod(&self, name: &str, patch: Value) -> Result<Pod> {
        self.pods()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("patch pod {name}"))
    }

    /// The reasons of all events about an object, oldest first.
    pub async fn event_reasons(&self, name: &str) -> Result<Vec<String>> {
        let mut events = self.events(name).await?;
        events.sort_by(|one, other| one.first_timestamp.cmp(&other.first_timestamp));
        Ok(events.into_iter().filter_map(|event| event.reason).collect())
    }

    /// All events about an object.
    pub async fn events(&self, name: &str) -> Result<Vec<Event>> {
        let events: Api<Event> = Api::all(self.client());
        let selected = ListParams::default().fields(&format!("involvedObject.name={name}"));
        Ok(events.list(&selected).await.context("list events")?.items)
    }

    /// What kubectl printed; it has to succeed.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let output: Output = self.control_plane.kubectl(arguments).await?;
        ensure!(
            output.status.success(),
            "kubectl {} failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn name_of(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// A node's options that make it one of this cluster.
async fn joined(
    scope: &Scope,
    control_plane: &ControlPlane,
    nodes: Nodes,
    mut options: Options,
) -> Result<Options> {
    let name = options.node_name(scope);
    if nodes == Nodes::Apart {
        options.network = Some(NodeNetwork::create(scope, &options.label)?);
    }
    let (address, gateway) = match &options.network {
        Some(network) => (network.address(), Some(network.gateway())),
        None => (node_address()?, None),
    };
    let serving = control_plane.kubelet_serving_files(&name, &[&address.to_string(), &name])?;
    let mut options = options
        .with("address", json!("0.0.0.0"))
        .with("tlsCertFile", json!(serving.certificate))
        .with("tlsPrivateKeyFile", json!(serving.key))
        .with(
            "authentication",
            json!({
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": control_plane.ca_file() },
            }),
        )
        .with("authorization", json!({ "mode": "Webhook" }));
    options.arguments.push(format!(
        "--kubeconfig={}",
        control_plane.node_kubeconfig_at(&name, gateway).await?.display()
    ));
    options.arguments.push(format!("--node-ip={address}"));
    Ok(options)
}

/// The machine's address towards the outside; what goes to it never leaves the machine.
pub fn node_address() -> Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").context("make a socket")?;
    // An address for documentation; nothing is sent.
    socket
        .connect("198.51.100.1:9")
        .context("the machine has no default route")?;
    Ok(socket.local_addr()?.ip())
}
