//! Debian's containerd.

use anyhow::{Result, ensure};
use rubelet_ports::ImageReader;
use rubelet_testbed::bare_pod::{BarePod, connect, sandbox_config};
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::images::{self, Image, ImageArchive, Layer, busybox_layer};
use rubelet_testbed::scope::traces_of;
use rubelet_testbed::{Scope, http};
use rubelet_wire::cri::v1;

use crate::scenario;

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_leaves_no_trace_twice_in_a_row() -> Result<()> {
    scenario::pod_leaves_no_trace("first-of-two", Flavour::Debian).await?;
    scenario::pod_leaves_no_trace("second-of-two", Flavour::Debian).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_containerds_run_side_by_side() -> Result<()> {
    let one = tokio::spawn(scenario::pod_leaves_no_trace("side-by-side-one", Flavour::Debian));
    let other = tokio::spawn(scenario::pod_leaves_no_trace(
        "side-by-side-other",
        Flavour::Debian,
    ));
    one.await??;
    other.await?
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_survives_a_restart_and_a_kill_of_containerd() -> Result<()> {
    scenario::pod_survives_containerd("restart-and-kill", Flavour::Debian).await
}

/// What an image says about modes, owners, user, environment and command is what a container sees.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_means_what_it_says() -> Result<()> {
    let scope = Scope::new("image")?;
    let containerd = Containerd::start(&scope, Flavour::Debian)?;
    ensure!(
        containerd.version()?.starts_with("1.6"),
        "{}",
        containerd.version()?
    );
    let layer = Layer::new()
        .owned_by(1000, 50000)
        .file("data/note", "mine", 0o640)
        .file("data/probe", "#!", 0o4755);
    let image = Image::new("rubelet.test/told:1")
        .also_named("rubelet.test/told:2")
        .layer(busybox_layer()?)
        .layer(layer)
        .user("1000:50000")
        .env("GREETING", "good day")
        .working_dir("/data")
        .command(&["sh", "-c", "echo $GREETING from $PWD; id -u; sleep 1000"]);
    let archive = ImageArchive::write(&image, &scope.path("told.tar"))?;
    containerd.import_file(archive.path())?;

    let client = connect(&containerd).await?;
    let known = client.list_images(None).await?;
    let told = known.iter().find(|known| known.id == archive.id());
    let names = told.map(|told| told.repo_tags.clone()).unwrap_or_default();
    ensure!(
        names.len() == 2 && archive.names().iter().all(|name| names.contains(name)),
        "{names:?}"
    );

    let mut pod = BarePod::run(&client, &scope, "told").await?;
    pod.start_container("told", "rubelet.test/told:2", &[]).await?;
    pod.wait_for_log("told", "good day from /data").await?;
    let seen = pod
        .exec(
            "told",
            &["stat", "-c", "%n %a %u:%g", "/data/note", "/data/probe", "/tmp"],
        )
        .await?;
    ensure!(
        seen.stdout == "/data/note 640 1000:50000\n/data/probe 4755 1000:50000\n/tmp 1777 0:0\n",
        "{seen:?}"
    );

    containerd.import(&images::server()?)?;
    pod.start_container("failing", images::SERVER, &["exit", "7"])
        .await?;
    ensure!(pod.wait_for_exit("failing").await? == 7);
    pod.remove().await
}

/// A host port needs packet filter rules; they go with the scope even when nobody takes the pod down.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_port_leads_to_the_pod_and_leaves_no_rule() -> Result<()> {
    let scope = Scope::new("host-port")?;
    let dir = scope.dir().to_owned();
    let containerd = Containerd::start(&scope, Flavour::Debian)?;
    containerd.import(&images::server()?)?;
    let client = connect(&containerd).await?;
    let host_port = scope.port()?;
    let mut config = sandbox_config(&scope, "web")?;
    let mapping = v1::PortMapping {
        container_port: 8080,
        host_port: host_port.into(),
        ..Default::default()
    };
    config.port_mappings.push(mapping);
    let mut pod = BarePod::run_as(&client, config).await?;
    pod.start_container("server", images::SERVER, &[]).await?;
    pod.wait_for_log("server", "http on").await?;
    let answer = http::get(
        &format!("{}:{host_port}", containerd.network().gateway()),
        "/hostname",
    )?;
    ensure!(answer.text() == "web\n", "{answer:?}");
    let rules = scope
        .traces()
        .into_iter()
        .filter(|trace| trace.starts_with("packet filter rule"))
        .count();
    ensure!(rules > 0, "no rule in {:#?}", scope.traces());
    drop(containerd);
    drop(scope);
    let rest = traces_of(&dir);
    ensure!(rest.is_empty(), "{rest:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_runtime_handler_runs_pods_too() -> Result<()> {
    scenario::other_handler_runs_a_pod("other-handler", Flavour::Debian).await
}
