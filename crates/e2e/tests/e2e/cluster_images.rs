//! Images of a private registry with TLS, in a cluster: those who have its password get them, others do not, also when they are there.
//!
//! `RUBELET_TEST_KUBELET=upstream` checks the test itself.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, ServiceAccount};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rubelet_testbed::cluster::{Cluster, NAMESPACE};
use rubelet_testbed::control_plane::Options;
use rubelet_testbed::images::{Image, busybox_layer};
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, shell, with};
use rubelet_testbed::node::{Kubelet, PodFacts};
use rubelet_testbed::registry::{Credentials, Registry, TlsDoor};
use serde_json::{Value, json};

const IMAGE: &str = "private.test/team/app:1";
const PASSWORD: &str = "a-long-secret";
const WRONG_PASSWORD: &str = "not-the-right-one";

#[test]
fn private_images_are_for_those_who_may_have_them() {
    in_scope("cluster_images", async |scope| {
        let cluster = Cluster::start(scope, Options::default(), Kubelet::chosen()?, |mut options| {
            options.arguments.push("--v=10".to_owned());
            options
        })
        .await?;
        let registry = Registry::start(scope, Some(Credentials::new("user", PASSWORD)))?;
        let door = registry.open_tls_door(scope)?;
        route(&cluster, &door)?;
        let image = Image::new("team/app").layer(busybox_layer()?);
        let image = image.env("PATH", "/bin").env("TEAM", "app");
        registry.push(&image.archive()?, "team/app:1")?;

        // Nobody has it yet: without the password it cannot be had.
        make_namespace(&cluster, "strangers").await?;
        create(&cluster, "strangers", "stranger", IMAGE, &[]).await?;
        refused(&cluster, "strangers", "stranger").await?;
        // The pod's own secret opens the registry, and so does that of its service account.
        make_login(&cluster, NAMESPACE, "login", PASSWORD).await?;
        create(&cluster, NAMESPACE, "owner", IMAGE, &["missing", "login"]).await?;
        ready(&cluster, NAMESPACE, "owner").await?;
        // What was tried in vain is not told either.
        make_login(&cluster, NAMESPACE, "wrong", WRONG_PASSWORD).await?;
        create(&cluster, NAMESPACE, "mistaken", IMAGE, &["wrong"]).await?;
        refused(&cluster, NAMESPACE, "mistaken").await?;
        create(
            &cluster,
            NAMESPACE,
            "absent",
            "private.test/team/none:1",
            &["wrong", "login"],
        )
        .await?;
        refused(&cluster, NAMESPACE, "absent").await?;
        make_namespace(&cluster, "friends").await?;
        make_login(&cluster, "friends", "login", PASSWORD).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client(), "friends");
        let patch = json!({"imagePullSecrets": [{"name": "login"}]});
        accounts
            .patch("default", &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        create(&cluster, "friends", "friend", IMAGE, &[]).await?;
        ready(&cluster, "friends", "friend").await?;

        // The image is there now. It is given without the registry to those who could have pulled it, and to nobody else.
        drop((door, registry));
        create(&cluster, NAMESPACE, "later", IMAGE, &["login"]).await?;
        ready(&cluster, NAMESPACE, "later").await?;
        create(&cluster, "strangers", "another", IMAGE, &[]).await?;
        refused(&cluster, "strangers", "another").await?;
        // Upstream's log has the bodies of its requests at this verbosity.
        if cluster.bed.node.kubelet().is_rubelet() {
            untold("the log", &cluster.bed.node.log()?)?;
        }
        Ok(())
    });
}

/// Looks that a text has no password, in none of the forms that a password has on its way.
fn untold(what: &str, text: &str) -> Result<()> {
    let encoded = |text: String| STANDARD.encode(text);
    for password in [PASSWORD, WRONG_PASSWORD] {
        for secret in [
            password.to_owned(),
            encoded(format!("user:{password}")),
            encoded(docker_config(password)),
        ] {
            let lines: Vec<&str> = text.lines().filter(|line| line.contains(&secret)).collect();
            ensure!(lines.is_empty(), "{what} tells a password: {lines:#?}");
        }
    }
    Ok(())
}

fn docker_config(password: &str) -> String {
    json!({"auths": {"private.test": {"username": "user", "password": password}}}).to_string()
}

/// What `rubelet why` says of a pod.
fn why(cluster: &Cluster<'_>, namespace: &str, name: &str) -> Result<String> {
    let node = &cluster.bed.node;
    let output = Command::new(node.kubelet().path()?)
        .args(["why", &format!("{namespace}/{name}"), "-o", "json", "--root-dir"])
        .arg(node.root_dir())
        .output()
        .context("run rubelet why")?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Sends pulls to the registry's door.
fn route(cluster: &Cluster<'_>, door: &TlsDoor) -> Result<()> {
    let directory = cluster.bed.containerd.dir().join("hosts/private.test");
    std::fs::create_dir_all(&directory)?;
    let (host, ca) = (door.host(), door.certificate());
    let text = format!(
        "server = \"https://{host}\"\n\n[host.\"https://{host}\"]\ncapabilities = [\"pull\", \"resolve\"]\nca = {ca:?}\n"
    );
    std::fs::write(directory.join("hosts.toml"), text).context("write the registry's configuration")
}

async fn make_namespace(cluster: &Cluster<'_>, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client(), name);
    cluster
        .eventually("the namespace has its service account", async || {
            accounts.get("default").await.map(drop).map_err(Into::into)
        })
        .await
}

async fn make_login(cluster: &Cluster<'_>, namespace: &str, name: &str, password: &str) -> Result<()> {
    let secret = json!({"metadata": {"name": name}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": docker_config(password)}});
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), namespace);
    secrets
        .create(&PostParams::default(), &serde_json::from_value(secret)?)
        .await?;
    Ok(())
}

async fn create(
    cluster: &Cluster<'_>,
    namespace: &str,
    name: &str,
    image: &str,
    secrets: &[&str],
) -> Result<()> {
    let container = with(shell("main", UNTIL_TERM), "image", json!(image));
    let container = with(container, "imagePullPolicy", json!("IfNotPresent"));
    let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
    let manifest = pod(name)
        .container(container)
        .spec("nodeName", json!(cluster.node_name()))
        .spec("imagePullSecrets", json!(secrets))
        .json();
    pods(cluster, namespace)
        .create(&PostParams::default(), &serde_json::from_value(manifest)?)
        .await?;
    Ok(())
}

fn pods(cluster: &Cluster<'_>, namespace: &str) -> Api<Pod> {
    Api::namespaced(cluster.client(), namespace)
}

async fn ready(cluster: &Cluster<'_>, namespace: &str, name: &str) -> Result<()> {
    cluster
        .eventually(&format!("pod {name} is ready"), async || {
            let pod = pods(cluster, namespace).get(name).await?;
            pod.check_ready()
                .with_context(|| serde_json::to_string(&pod.status).unwrap_or_default())
        })
        .await
}

/// Waits until the pod is told that it does not get the image, and looks that nothing secret is told.
async fn refused(cluster: &Cluster<'_>, namespace: &str, name: &str) -> Result<()> {
    let message = cluster
        .eventually(&format!("pod {name} gets no image"), async || {
            let pod = pods(cluster, namespace).get(name).await?;
            let status = pod.status.context("no status")?;
            let containers = status.container_statuses.context("no containers")?;
            let state = containers[0].state.clone().context("no state")?;
            let waiting = state.waiting.with_context(|| format!("{containers:?}"))?;
            let reason = waiting.reason.unwrap_or_default();
            ensure!(
                matches!(reason.as_str(), "ErrImagePull" | "ImagePullBackOff"),
                "{reason}"
            );
            Ok(waiting.message.unwrap_or_default())
        })
        .await?;
    untold("the status", &message)?;
    let pod = pods(cluster, namespace).get(name).await?;
    untold("the status", &serde_json::to_string(&pod.status)?)?;
    let events = cluster.events(name).await?;
    let told: Vec<String> = events.into_iter().filter_map(|event| event.message).collect();
    untold("an event", &told.join("\n"))?;
    if cluster.bed.node.kubelet().is_rubelet() {
        untold("rubelet why", &why(cluster, namespace, name)?)?;
    }
    Ok(())
}
