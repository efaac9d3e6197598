//! The control plane of the rows through the API server: how a kubelet joins it, and what its pods find there.
//!
//! It runs only while these rows are measured: an API server at rest is not nothing.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::audit::Audit;
use super::pod::{self, CONFIG_MAP, NAMESPACE, OWN_KEY, ROOT_CA, SECRET};
use super::runtime::DEADLINE;
use super::sightings::{Pods, Sightings};
use rubelet_testbed::Scope;
use rubelet_testbed::control_plane::{ControlPlane, CredentialFiles, Options};
use rubelet_testbed::wait::wait_until;

/// How many requests of ours are in flight when many objects are made, changed or deleted.
const REQUESTS_IN_FLIGHT: usize = 20;

/// What makes a kubelet a node of the cluster.
pub(super) struct Membership {
    pub(super) node: String,
    pub(super) kubeconfig: PathBuf,
    pub(super) address: IpAddr,
    /// What the API server believes when it calls the node.
    pub(super) serving: CredentialFiles,
}

/// A control plane and what it says of its pods. Dropping it ends it.
pub(super) struct Cluster {
    pub(super) sightings: Sightings,
    /// The requests of the nodes.
    pub(super) audit: Audit,
    pods: Api<Pod>,
    config_maps: Api<ConfigMap>,
    secrets: Api<Secret>,
    nodes: Api<Node>,
    address: IpAddr,
    plane: ControlPlane,
}

impl Cluster {
    /// Starts it and makes the objects that pods use.
    pub(super) async fn start(scope: &Scope) -> Result<Self> {
        let audit = Audit::prepare(scope)?;
        let options = Options {
            apiserver_flags: audit.apiserver_flags(),
            ..Options::default()
        };
        let plane = ControlPlane::start(scope, options).await?;
        let client = plane.admin_client();
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
        let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        wait_until("pods may be made", DEADLINE, || async {
            accounts.get("default").await?;
            config_maps.get(ROOT_CA).await.map(drop).map_err(Into::into)
        })
        .await?;
        let entries = json!({ "one": "1", "two": "2", "three": "3" });
        let object = |name: &str, field: &str| {
            let mut object = json!({ "metadata": { "name": name } });
            object[field] = entries.clone();
            object
        };
        let made = PostParams::default();
        let config_map = serde_json::from_value(object(CONFIG_MAP, "data"))?;
        config_maps.create(&made, &config_map).await?;
        let secret = serde_json::from_value(object(SECRET, "stringData"))?;
        secrets.create(&made, &secret).await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        Ok(Self {
            sightings: Sightings::start(pods.clone()).await?,
            audit,
            pods,
            config_maps,
            secrets,
            nodes: Api::all(client),
            address: rubelet_testbed::cluster::node_address()?,
            plane,
        })
    }

    /// Where the API server listens.
    pub(super) fn endpoint(&self) -> Result<SocketAddr> {
        let endpoint = self.plane.endpoint();
        let address = endpoint.strip_prefix("https://").unwrap_or(&endpoint);
        address
            .parse()
            .with_context(|| format!("{endpoint} is no address"))
    }

    /// Credentials for a node of this name, which reaches the API server at `through`, if that is another address.
    pub(super) fn membership(&self, node: &str, through: Option<SocketAddr>) -> Result<Membership> {
        let mut kubeconfig = self.plane.node_kubeconfig(node)?;
        if let Some(through) = through {
            let mut content: Value = serde_json::from_slice(&fs::read(&kubeconfig)?)?;
            content["clusters"][0]["cluster"]["server"] = json!(format!("https://{through}"));
            // It holds a key; the copy is for the same eyes as the original.
            let far = kubeconfig.with_extension("far");
            fs::copy(&kubeconfig, &far).context("copy a kubeconfig")?;
            fs::write(&far, content.to_string()).context("write a kubeconfig")?;
            kubeconfig = far;
        }
        Ok(Membership {
            node: node.to_owned(),
            kubeconfig,
            address: self.address,
            serving: self
                .plane
                .kubelet_serving_files(node, &[&self.address.to_string()])?,
        })
    }

    /// Kubectl as the administrator, ready to be started.
    pub(super) async fn kubectl_command(&self, arguments: &[&str]) -> Result<Command> {
        self.plane.kubectl_command(arguments).await
    }

    /// What kubectl says.
    pub(super) async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let output = self.plane.kubectl(arguments).await?;
        let problem = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {arguments:?}: {problem}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Waits until a node is Ready.
    pub(super) async fn wait_until_ready(&self, node: &str) -> Result<()> {
        wait_until("the node is Ready", DEADLINE, || async {
            let status = self.nodes.get(node).await?.status.unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
            let ready = ready.context("no condition Ready")?;
            ensure!(ready.status == "True", "{:?}", ready.message);
            Ok(())
        })
        .await
    }

    /// Makes pods, many at a time.
    pub(super) async fn create(&self, pods: &[Value]) -> Result<()> {
        let parameters = PostParams::default();
        let creations = pods.iter().map(|pod| async {
            let pod: Pod = serde_json::from_value(pod.clone())?;
            self.pods
                .create(&parameters, &pod)
                .await
                .context("create a pod")?;
            anyhow::Ok(())
        });
        many_at_a_time(creations).await
    }

    /// Deletes pods, many at a time, with the grace period that each has.
    pub(super) async fn delete(&self, names: &[String]) -> Result<()> {
        let (pods, parameters) = (&self.pods, &DeleteParams::default());
        let deletions = names.iter().map(|name| async move {
            let deleted = pods.delete(name, parameters).await;
            deleted.map(drop).with_context(|| format!("delete pod {name}"))
        });
        many_at_a_time(deletions).await
    }

    /// Gives the own objects of each of these pods this content, many at a time; makes those that are not there.
    pub(super) async fn write_objects(&self, pods: &[String], content: &str) -> Result<()> {
        let (config_maps, secrets, parameters) = (&self.config_maps, &self.secrets, &writing());
        let encoded = &STANDARD.encode(content);
        let writes = pods.iter().map(|pod| async move {
            let (own_config_maps, own_secret) = pod::own_objects(pod);
            let context = || format!("write the objects of pod {pod}");
            for name in &own_config_maps {
                let patch = Patch::Apply(object("ConfigMap", name, content));
                config_maps
                    .patch(name, parameters, &patch)
                    .await
                    .with_context(context)?;
            }
            let patch = Patch::Apply(object("Secret", &own_secret, encoded));
            let written = secrets.patch(&own_secret, parameters, &patch).await;
            written.map(drop).with_context(context)
        });
        many_at_a_time(writes).await
    }

    /// Deletes the own objects of each of these pods, many at a time.
    pub(super) async fn delete_objects(&self, pods: &[String]) -> Result<()> {
        let (config_maps, secrets, parameters) = (&self.config_maps, &self.secrets, &DeleteParams::default());
        let deletions = pods.iter().map(|pod| async move {
            let (own_config_maps, own_secret) = pod::own_objects(pod);
            for name in &own_config_maps {
                config_maps.delete(name, parameters).await?;
            }
            let deleted = secrets.delete(&own_secret, parameters).await;
            deleted
                .map(drop)
                .with_context(|| format!("delete the objects of pod {pod}"))
        });
        many_at_a_time(deletions).await
    }

    /// Takes back a node whose kubelet has ended, with the pods that it still has.
    pub(super) async fn forget(&mut self, node: &str) -> Result<()> {
        let now = DeleteParams::default().grace_period(0);
        self.pods
            .delete_collection(&now, &ListParams::default())
            .await
            .context("delete all pods")?;
        self.nodes
            .delete(node, &DeleteParams::default())
            .await
            .with_context(|| format!("delete node {node}"))?;
        let gone = self.sightings.wait("all pods are gone", DEADLINE, Pods::is_empty);
        gone.await.map(drop)
    }
}

/// A ConfigMap or Secret with this content.
fn object(kind: &str, name: &str, content: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": kind,
        "metadata": { "name": name },
        "data": { OWN_KEY: content },
    })
}

/// Server-side apply, which makes an object or changes it.
fn writing() -> PatchParams {
    PatchParams::apply("bench").force()
}

async fn many_at_a_time(requests: impl Iterator<Item = impl Future<Output = Result<()>>>) -> Result<()> {
    futures_util::stream::iter(requests)
        .buffer_unordered(REQUESTS_IN_FLIGHT)
        .try_collect()
        .await
}
