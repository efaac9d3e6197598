//! A registry behind a bad line.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use rubelet_images::Images;
use rubelet_ports::{ImageProvider as _, ImageRequest, PresentImage};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::registry::Registry;
use rubelet_testbed::wait::wait_until;

use crate::edges::pod_request;
use crate::real::proxy::{Fault, Proxy};
use crate::real::{LONG, Node, ensure as ask, unique_image};

/// Larger than every manifest and smaller than every layer here.
const INTO_THE_LAYER: usize = 60_000;
const LAYER_BYTES: usize = 400_000;

fn pod(uid: &str, image: &str) -> ImageRequest {
    pod_request("ns", uid, image, "IfNotPresent", &[], None)
}

/// The image, as soon as the line is good: the runtime may go on for a while with what it had of a broken layer.
async fn healed(images: &Arc<Images>, name: &str) -> Result<PresentImage> {
    wait_until("the image comes", LONG, || async {
        Ok(ask(images, pod("u", name)).await?)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_bad_line_breaks_is_told_and_heals() -> Result<()> {
    let node = Node::start("bad-line", Flavour::Debian).await?;
    let registry = Registry::start(&node.scope, None)?;
    let proxy = Proxy::start(registry.host()).await?;
    node.containerd.route_registry("far.test", proxy.host())?;
    let images = node.images(None)?;
    for (repository, fault) in [
        ("cut/early", Fault::Cut { after_bytes: 0 }),
        (
            "corrupt",
            Fault::Corrupt {
                after_bytes: INTO_THE_LAYER,
            },
        ),
    ] {
        let archive = unique_image(repository, LAYER_BYTES)?;
        registry.push(&archive, &format!("{repository}:1"))?;
        let name = format!("far.test/{repository}:1");
        proxy.set(fault);
        let failure = ask(&images, pod("u", &name)).await.err();
        let failure = failure.with_context(|| format!("{fault:?} broke nothing"))?;
        ensure!(proxy.has_met(), "{fault:?}");
        ensure!(failure.reason == "ErrImagePull", "{fault:?}: {failure}");
        ensure!(failure.message.len() > 10, "{fault:?}: {failure}");
        ensure!(node.noted("pulling").is_empty(), "{fault:?}");
        proxy.set(Fault::None);
        let healed = healed(&images, &name).await;
        ensure!(healed?.image_ref == archive.id(), "{fault:?}");
    }
    // In the middle of a layer the runtime may go on where it was; either way the image is whole in the end.
    let archive = unique_image("cut/late", LAYER_BYTES)?;
    registry.push(&archive, "cut/late:1")?;
    proxy.set(Fault::Cut {
        after_bytes: INTO_THE_LAYER,
    });
    let first = ask(&images, pod("u", "far.test/cut/late:1")).await;
    ensure!(proxy.has_met());
    proxy.set(Fault::None);
    let last = match first {
        Ok(image) => image,
        Err(_) => healed(&images, "far.test/cut/late:1").await?,
    };
    ensure!(last.image_ref == archive.id());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_pull_holds_up_nobody_else() -> Result<()> {
    let node = Node::start("stalled", Flavour::Debian).await?;
    let registry = Registry::start(&node.scope, None)?;
    let proxy = Proxy::start(registry.host()).await?;
    node.containerd.route_registry("far.test", proxy.host())?;
    node.containerd.route_registry("near.test", registry.host())?;
    let slow = unique_image("slow", LAYER_BYTES)?;
    registry.push(&slow, "slow:1")?;
    registry.push(&unique_image("fast", 10_000)?, "fast:1")?;
    let images = node.images(None)?;
    proxy.set(Fault::Stall {
        after_bytes: INTO_THE_LAYER,
    });
    let asking = |uid: &'static str| {
        let images = Arc::clone(&images);
        tokio::spawn(async move { ask(&images, pod(uid, "far.test/slow:1")).await })
    };
    let first = asking("u");
    tokio::time::timeout(LONG, proxy.met())
        .await
        .context("nothing stalls")?;
    let second = asking("v");
    // Another image, and who leaves: neither waits for the stalled one.
    ask(&images, pod("w", "near.test/fast:1")).await?;
    first.abort();
    ensure!(first.await.is_err_and(|error| error.is_cancelled()));
    ensure!(node.noted("pulling").len() == 1, "one pull goes on");
    proxy.set(Fault::None);
    ensure!(second.await??.image_ref == slow.id());
    ensure!(node.noted("pulling").is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_of_a_pull_are_told_while_it_lasts() -> Result<()> {
    const LARGE_BYTES: usize = 4_000_000;
    let node = Node::start("pull-progress", Flavour::Debian).await?;
    let registry = Registry::start(&node.scope, None)?;
    let proxy = Proxy::start(registry.host()).await?;
    node.containerd.route_registry("far.test", proxy.host())?;
    registry.push(&unique_image("large", LARGE_BYTES)?, "large:1")?;
    let name = "far.test/large:1";
    let images = node.images(None)?;
    proxy.set(Fault::Stall {
        after_bytes: LARGE_BYTES / 2,
    });
    let pulling = tokio::spawn({
        let images = Arc::clone(&images);
        async move { ask(&images, pod("u", name)).await }
    });
    let told = wait_until("the pull tells its bytes", LONG, || async {
        let told = images.progress(&"u".into(), name).context("nobody pulls")?;
        // The first that is begun is the image's small configuration.
        ensure!(told.contains(" of 4.0 MB of the layers begun"), "{told}");
        Ok(told)
    })
    .await?;
    ensure!(told.starts_with("pulling for "), "{told}");
    ensure!(!told.contains("4.0 of 4.0"), "{told}");
    proxy.set(Fault::None);
    pulling.await??;
    ensure!(images.progress(&"u".into(), name).is_none());
    Ok(())
}
