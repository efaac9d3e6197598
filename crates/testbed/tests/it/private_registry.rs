//! The private registry, with containerd as its customer.

use anyhow::{Result, ensure};
use rubelet_testbed::bare_pod::{connect, pull};
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::registry::{Credentials, Registry};
use rubelet_testbed::{Scope, images};

#[tokio::test(flavor = "multi_thread")]
async fn images_are_pulled_with_and_without_a_password() -> Result<()> {
    let scope = Scope::new("registry")?;
    let containerd = Containerd::start(&scope, Flavour::Debian)?;
    let client = connect(&containerd).await?;
    let busybox = images::busybox()?;

    let open = Registry::start(&scope, None)?;
    containerd.route_registry(open.host(), open.host())?;
    let name = open.push(&busybox, "tools/busybox:1")?;
    ensure!(pull(&client, &name, None).await? == busybox.id());
    let missing = pull(&client, &format!("{}/tools/nothing:1", open.host()), None).await;
    ensure!(missing.is_err(), "an image that does not exist was pulled");

    let user = Credentials::new("puller", "a long secret");
    let closed = Registry::start(&scope, Some(user.clone()))?;
    containerd.route_registry("private.test", closed.host())?;
    closed.push(&busybox, "tools/busybox:2")?;
    let name = "private.test/tools/busybox:2";
    let wrong = Credentials::new("puller", "a wrong secret");
    for refused in [
        pull(&client, name, None).await,
        pull(&client, name, Some(&wrong)).await,
    ] {
        let words = refusal(refused);
        ensure!(
            words.contains("401") || words.contains("authorization"),
            "{words}"
        );
        ensure!(!words.contains("secret"), "{words}");
    }
    ensure!(pull(&client, name, Some(&user)).await? == busybox.id());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_pulled_from_outside() -> Result<()> {
    let scope = Scope::new("no-outside")?;
    let containerd = Containerd::start(&scope, Flavour::Debian)?;
    let client = connect(&containerd).await?;
    let words = refusal(pull(&client, "registry.k8s.io/pause:3.10.2", None).await);
    ensure!(words.contains("127.0.0.1:9"), "{words}");
    Ok(())
}

fn refusal(pulled: Result<String>) -> String {
    pulled.map_or_else(
        |error| format!("{error:#}"),
        |id| format!("it was pulled as {id}"),
    )
}
