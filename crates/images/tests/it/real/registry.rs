//! Private registries, with passwords from secrets, files and plugins, with and without TLS.

use std::sync::Arc;

use anyhow::{Result, ensure};
use rubelet_credential_plugins::PluginPrograms;
use rubelet_fakes::events::Recorded;
use rubelet_host::HostClock;
use rubelet_images::{CredentialProviders, read_configuration};
use rubelet_ports::{ImageProvider as _, ImageRequest};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::process::write_script;
use rubelet_testbed::registry::{Credentials, Registry};
use serde_json::json;

use crate::edges::pod_request;
use crate::real::{Log, Node, ensure as ask, unique_image};

const PASSWORD: &str = "a-long-secret";

fn pod(namespace: &str, image: &str, policy: &str, secrets: &[&str]) -> ImageRequest {
    pod_request(
        namespace,
        &format!("uid-{namespace}"),
        image,
        policy,
        secrets,
        None,
    )
}

async fn secrets_open_it(flavour: Flavour) -> Result<()> {
    let node = Node::start("pull-secrets", flavour).await?;
    let registry = Registry::start(&node.scope, Some(Credentials::new("user", PASSWORD)))?;
    node.containerd.route_registry("private.test", registry.host())?;
    let archive = unique_image("team/app", 50_000)?;
    registry.push(&archive, "team/app:1")?;
    let name = "private.test/team/app:1";
    for (namespace, secret, password) in [
        ("a", "good", PASSWORD),
        ("b", "copy", PASSWORD),
        ("c", "wrong", "not-this-one"),
    ] {
        node.objects
            .put_login(namespace, secret, "private.test", password);
    }
    node.objects
        .put_login("a", "wrong-first", "private.test/team", "not-this-one");

    let images = node.images(None)?;
    for (namespace, secrets) in [("c", vec!["wrong"]), ("d", vec![])] {
        let failure = ask(&images, pod(namespace, name, "IfNotPresent", &secrets))
            .await
            .unwrap_err();
        ensure!(failure.reason == "ErrImagePull", "{failure}");
        ensure!(
            failure.message.contains("401") || failure.message.contains("authorization"),
            "{failure}"
        );
        ensure!(!failure.message.contains("not-this-one"), "{failure}");
    }
    ensure!(node.noted("pulling").is_empty() && node.noted("pulled").is_empty());
    let got = ask(&images, pod("a", name, "IfNotPresent", &["wrong-first", "good"])).await?;
    ensure!(got.image_ref == archive.id(), "{got:?}");
    ensure!(node.noted("pulling").is_empty() && node.noted("pulled").len() == 1);

    // The image is there now: for those who could have pulled it, also after a restart.
    for images in [images, node.images(None)?] {
        ensure!(
            ask(&images, pod("b", name, "IfNotPresent", &["copy"]))
                .await
                .is_ok()
        );
        ensure!(ask(&images, pod("b", name, "Never", &["copy"])).await.is_ok());
        let refused = ask(&images, pod("d", name, "IfNotPresent", &[]))
            .await
            .unwrap_err();
        ensure!(refused.reason == "ErrImagePull", "{refused}");
        let refused = ask(&images, pod("d", name, "Never", &[])).await.unwrap_err();
        ensure!(refused.reason == "ErrImageNeverPull", "{refused}");
    }

    // Deleted underneath, it is pulled again.
    node.remove(name).await?;
    let images = node.images(None)?;
    ensure!(
        images
            .present(&pod("b", name, "IfNotPresent", &["copy"]))
            .await
            .is_none()
    );
    ensure!(ask(&images, pod("b", name, "Never", &["copy"])).await.is_err());
    ensure!(
        ask(&images, pod("b", name, "IfNotPresent", &["copy"]))
            .await?
            .image_ref
            == archive.id()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_open_a_private_registry() -> Result<()> {
    secrets_open_it(Flavour::Debian).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_own_file_opens_it_for_everybody() -> Result<()> {
    let node = Node::start("node-file", Flavour::Debian).await?;
    let registry = Registry::start(&node.scope, Some(Credentials::new("user", PASSWORD)))?;
    node.containerd.route_registry("private.test", registry.host())?;
    registry.push(&unique_image("team/tool", 20_000)?, "team/tool:1")?;
    let images = node.images(None)?;
    let name = "private.test/team/tool:1";
    ensure!(ask(&images, pod("a", name, "Always", &[])).await.is_err());
    // The file counts as soon as it is there.
    let config = json!({"auths": {"*.test": {"username": "user", "password": PASSWORD}}});
    std::fs::write(node.root_dir.join("config.json"), config.to_string())?;
    ask(&images, pod("a", name, "Always", &[])).await?;
    std::fs::remove_file(node.root_dir.join("config.json"))?;
    ensure!(ask(&images, pod("z", name, "IfNotPresent", &[])).await.is_ok());
    ensure!(ask(&images, pod("z", name, "Always", &[])).await.is_err());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_opens_it_and_a_bad_one_does_not() -> Result<()> {
    let node = Node::start("plugin", Flavour::Debian).await?;
    let registry = Registry::start(&node.scope, Some(Credentials::new("user", PASSWORD)))?;
    node.containerd.route_registry("private.test", registry.host())?;
    let archive = unique_image("team/site", 20_000)?;
    registry.push(&archive, "team/site:1")?;
    let name = "private.test/team/site:1";
    let answer = json!({"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
        "cacheKeyType": "Registry", "auth": {"private.test": {"username": "user", "password": PASSWORD}}});
    let directory = node.scope.path("plugins");
    std::fs::create_dir(&directory)?;
    let providers = |script: &str| -> Result<CredentialProviders> {
        write_script(&directory.join("teller"), script)?;
        let file = json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [{
            "name": "teller", "matchImages": ["private.test"], "defaultCacheDuration": "1h",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1"}]});
        let settings = read_configuration(&[("f".to_owned(), file.to_string().into_bytes())], true)
            .map_err(|problems| anyhow::anyhow!("{problems:?}"))?;
        let programs = PluginPrograms::open(&directory, ["teller"])?;
        Ok(CredentialProviders::new(
            settings,
            Arc::new(programs),
            None,
            Arc::new(HostClock::new()),
            None,
        ))
    };
    let images = node.images(Some(providers(&format!("echo {PASSWORD} >&2; exit 7"))?))?;
    let log = Log::default();
    let kept = log.keep();
    let failure = ask(&images, pod("a", name, "Always", &[])).await.unwrap_err();
    drop(kept);
    let reason = "credential provider teller: exit status: 7";
    ensure!(failure.message.contains(reason), "{failure}");
    let texts: Vec<String> = node.events.all().iter().map(Recorded::text).collect();
    let (recorded, logged) = (texts.join("\n"), log.text());
    ensure!(recorded.contains(reason), "{recorded}");
    ensure!(logged.contains("A credential provider gave nothing"), "{logged}");
    for text in [format!("{failure} {failure:?}"), recorded, logged] {
        ensure!(!text.contains(PASSWORD), "{text}");
    }
    let images = node.images(Some(providers("echo 'no json at all'")?))?;
    let failure = ask(&images, pod("a", name, "Always", &[])).await.unwrap_err();
    ensure!(
        failure
            .message
            .contains("credential provider teller: its answer is no JSON"),
        "{failure}"
    );
    let good = format!("grep -q private.test/team/site || exit 1\ncat <<'END'\n{answer}\nEND");
    let images = node.images(Some(providers(&good)?))?;
    ensure!(ask(&images, pod("a", name, "Always", &[])).await?.image_ref == archive.id());
    // What a plugin of the node opens is open to the node's pods.
    let images = node.images(None)?;
    ensure!(ask(&images, pod("z", name, "IfNotPresent", &[])).await.is_ok());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_with_tls() -> Result<()> {
    let node = Node::start("tls-registry", Flavour::Debian).await?;
    let registry = Registry::start(&node.scope, Some(Credentials::new("user", PASSWORD)))?;
    let archive = unique_image("team/safe", 20_000)?;
    registry.push(&archive, "team/safe:1")?;
    let door = registry.open_tls_door(&node.scope)?;
    node.objects.put_login("a", "good", "safe.test", PASSWORD);
    let name = "safe.test/team/safe:1";
    let images = node.images(None)?;
    node.route_tls("safe.test", door.host(), None)?;
    let failure = ask(&images, pod("a", name, "IfNotPresent", &["good"]))
        .await
        .unwrap_err();
    ensure!(failure.message.contains("x509"), "{failure}");
    node.route_tls("safe.test", door.host(), Some(door.certificate()))?;
    ensure!(
        ask(&images, pod("a", name, "IfNotPresent", &["good"]))
            .await?
            .image_ref
            == archive.id()
    );
    ensure!(ask(&images, pod("d", name, "IfNotPresent", &[])).await.is_err());
    Ok(())
}
