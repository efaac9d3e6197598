//! Images that are there, are not there, or come late.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::super::bed::scenarios;
use super::super::manifest::{pod, with};
use super::super::{Bed, PodFacts, Scenario};
use crate::images;
use crate::registry::Registry;

pub(super) const ALL: &[Scenario] = scenarios![
    missing_image_comes_once_it_is_pushed,
    missing_image_with_never,
    bad_image_name,
    present_image_needs_no_registry,
    one_bad_image_does_not_keep_the_other_container_from_running,
];

fn container(image: &str, policy: &str) -> Value {
    json!({ "name": "main", "image": image, "imagePullPolicy": policy, "command": ["sleep", "1000"] })
}

async fn missing_image_with_never(bed: &Bed<'_>) -> Result<()> {
    waits_for(
        bed,
        "never-pull",
        "rubelet.test/nothing:1",
        "Never",
        "ErrImageNeverPull",
    )
    .await
}

async fn bad_image_name(bed: &Bed<'_>) -> Result<()> {
    waits_for(bed, "bad-name", "Not A//Name", "IfNotPresent", "InvalidImageName").await
}

async fn waits_for(bed: &Bed<'_>, name: &str, image: &str, policy: &str, reason: &str) -> Result<()> {
    bed.node
        .write(name, &pod(name).container(container(image, policy)).json())?;
    let pod = bed
        .node
        .wait_for_pod(name, reason, |pod| {
            let (found, message) = pod.waiting("main")?;
            ensure!(found == reason, "it waits for {found}: {message}");
            ensure!(message.contains(image), "the message names no image: {message}");
            Ok(pod.clone())
        })
        .await?;
    pod.check_phase("Pending")?;
    let containers = bed.view.containers_of(pod.uid()).await?;
    ensure!(containers.is_empty(), "{containers:?}");
    bed.node.remove(name)
}

async fn missing_image_comes_once_it_is_pushed(bed: &Bed<'_>) -> Result<()> {
    let name = "late-image";
    let registry = Registry::start(bed.scope, None)?;
    bed.containerd.route_registry(registry.host(), registry.host())?;
    // An image of its own: what is known by its digest is pulled in no time, but must be pulled all the same.
    let archive = images::Image::new("rubelet.test/late:1")
        .layer(images::busybox_layer()?)
        .env("PATH", "/bin")
        .label("for", name)
        .archive()?;
    let image = format!("{}/late:1", registry.host());
    bed.node.write(
        name,
        &pod(name)
            .container(with(container(&image, "IfNotPresent"), "name", json!("main")))
            .json(),
    )?;
    for reason in ["ErrImagePull", "ImagePullBackOff"] {
        bed.node
            .wait_for_pod(name, reason, |pod| {
                let (found, message) = pod.waiting("main")?;
                ensure!(found == reason, "it waits for {found}: {message}");
                ensure!(message.contains(&image), "the message names no image: {message}");
                Ok(())
            })
            .await?;
    }
    registry.push(&archive, "late:1")?;
    let pod = bed.node.wait_until_ready(name).await?;
    let found = &pod.container("main")?.image_id;
    ensure!(
        found.contains("sha256:") && !found.is_empty(),
        "the image's id is {found:?}"
    );
    bed.node.remove(name)
}

async fn present_image_needs_no_registry(bed: &Bed<'_>) -> Result<()> {
    let name = "present-image";
    bed.node.write(
        name,
        &pod(name)
            .container(container(images::BUSYBOX, "IfNotPresent"))
            .json(),
    )?;
    let pod = bed.node.wait_until_ready(name).await?;
    ensure!(
        pod.container("main")?.image == images::BUSYBOX,
        "{:?}",
        pod.container("main")?
    );
    bed.node.remove(name)
}

async fn one_bad_image_does_not_keep_the_other_container_from_running(bed: &Bed<'_>) -> Result<()> {
    let name = "half-images";
    let manifest = pod(name)
        .container(container("rubelet.test/nothing:1", "Never"))
        .container(super::super::manifest::pause("good"));
    bed.node.write(name, &manifest.json())?;
    bed.node
        .wait_for_pod(name, "runs the good one", |pod| {
            pod.running_id("good")?;
            let (reason, _) = pod.waiting("main")?;
            ensure!(reason == "ErrImageNeverPull", "{reason}");
            let (ready, _, message) = pod.condition("Ready");
            ensure!(
                ready == "False" && message == "containers with unready status: [main]",
                "{message}"
            );
            Ok(())
        })
        .await?;
    bed.node.remove(name)
}
