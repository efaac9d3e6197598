//! Images that are there, are not there, or come late.

use anyhow::{Result, ensure};
use rubelet_ports::{ImageReader as _, ImageWriter as _};
use rubelet_wire::cri::v1;
use serde_json::{Value, json};

use super::scenarios;
use rubelet_testbed::images::{self, ImageArchive};
use rubelet_testbed::node::manifest::{pod, with};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};
use rubelet_testbed::registry::Registry;

pub(super) const ALL: &[Scenario] = scenarios![
    missing_image_comes_once_it_is_pushed,
    missing_image_with_never,
    bad_image_name,
    present_image_needs_no_registry,
    image_removed_underneath_is_pulled_for_the_next_start,
    image_removed_underneath_stays_away_with_never,
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
    let archive = image_of_its_own("rubelet.test/late:1", name)?;
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

fn image_of_its_own(image: &str, name: &str) -> Result<ImageArchive> {
    images::Image::new(image)
        .layer(images::busybox_layer()?)
        .env("PATH", "/bin")
        .label("for", name)
        .archive()
}

/// Runs a pod, removes its image and kills its container.
async fn lose_image(bed: &Bed<'_>, name: &str, image: &str, policy: &str) -> Result<String> {
    bed.node
        .write(name, &pod(name).container(container(image, policy)).json())?;
    let id = bed.node.wait_until_ready(name).await?.running_id("main")?;
    let spec = v1::ImageSpec {
        image: image.to_owned(),
        ..v1::ImageSpec::default()
    };
    bed.view.client().remove_image(spec).await?;
    ensure!(!has_image(bed, image).await?, "{image} is still there");
    bed.view.kill_container(&id).await?;
    Ok(id)
}

async fn has_image(bed: &Bed<'_>, image: &str) -> Result<bool> {
    let spec = v1::ImageSpec {
        image: image.to_owned(),
        ..v1::ImageSpec::default()
    };
    Ok(bed.view.client().image_status(spec, false).await?.image.is_some())
}

async fn image_removed_underneath_is_pulled_for_the_next_start(bed: &Bed<'_>) -> Result<()> {
    let name = "removed-image";
    let registry = Registry::start(bed.scope, None)?;
    bed.containerd.route_registry(registry.host(), registry.host())?;
    registry.push(&image_of_its_own("rubelet.test/removed:1", name)?, "removed:1")?;
    let image = format!("{}/removed:1", registry.host());
    let first = lose_image(bed, name, &image, "IfNotPresent").await?;
    bed.node
        .wait_for_pod(name, "runs again", |pod| {
            let second = pod.running_id("main")?;
            ensure!(second != first, "the container was not killed yet");
            pod.check_ready()
        })
        .await?;
    ensure!(
        has_image(bed, &image).await?,
        "{image} was not pulled, and its container runs"
    );
    bed.node.remove(name)
}

async fn image_removed_underneath_stays_away_with_never(bed: &Bed<'_>) -> Result<()> {
    let name = "removed-image-never";
    let image = "rubelet.test/removed-never:1";
    bed.containerd.import(&image_of_its_own(image, name)?)?;
    lose_image(bed, name, image, "Never").await?;
    bed.node
        .wait_for_pod(name, "waits for its image", |pod| {
            let (reason, message) = pod.waiting("main")?;
            ensure!(reason == "ErrImageNeverPull", "it waits for {reason}: {message}");
            ensure!(message.contains(image), "the message names no image: {message}");
            Ok(())
        })
        .await?;
    bed.node.remove(name)
}

async fn one_bad_image_does_not_keep_the_other_container_from_running(bed: &Bed<'_>) -> Result<()> {
    let name = "half-images";
    let manifest = pod(name)
        .container(container("rubelet.test/nothing:1", "Never"))
        .container(rubelet_testbed::node::manifest::pause("good"));
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
