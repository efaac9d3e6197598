//! containerd 2, built from its module, does what Debian's does in the test bed's own tests.

use anyhow::{Context, Result, ensure};
use rubelet_testbed::bare_pod::{BarePod, connect, sandbox_config};
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::programs::module_version;
use rubelet_testbed::{Scope, images};
use rubelet_wire::cri::v1;

#[path = "../../../testbed/tests/it/scenario.rs"]
mod scenario;

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_leaves_no_trace_twice_in_a_row() -> Result<()> {
    scenario::pod_leaves_no_trace("first-of-two", Flavour::V2).await?;
    scenario::pod_leaves_no_trace("second-of-two", Flavour::V2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn it_runs_side_by_side_with_others() -> Result<()> {
    let one = tokio::spawn(scenario::pod_leaves_no_trace("side-by-side-one", Flavour::V2));
    let other = tokio::spawn(scenario::pod_leaves_no_trace(
        "side-by-side-other",
        Flavour::V2DebianRunc,
    ));
    let third = tokio::spawn(scenario::pod_leaves_no_trace(
        "side-by-side-debian",
        Flavour::Debian,
    ));
    one.await??;
    other.await??;
    third.await?
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_survives_a_restart_and_a_kill_of_containerd() -> Result<()> {
    scenario::pod_survives_containerd("restart-and-kill", Flavour::V2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_runtime_handler_runs_pods_too() -> Result<()> {
    scenario::other_handler_runs_a_pod("other-handler", Flavour::V2).await
}

/// The reason for a runc that is newer than Debian's.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_users_of_its_own() -> Result<()> {
    let scope = Scope::new("user-namespace")?;
    let containerd = Containerd::start(&scope, Flavour::V2)?;
    containerd.import(&images::busybox()?)?;
    let client = connect(&containerd).await?;
    let mut config = sandbox_config(&scope, "mapped")?;
    let ids = || {
        vec![v1::IdMapping {
            container_id: 0,
            host_id: 100_000,
            length: 65_536,
        }]
    };
    let users = v1::UserNamespace {
        mode: v1::NamespaceMode::Pod.into(),
        uids: ids(),
        gids: ids(),
    };
    let security = config
        .linux
        .as_mut()
        .and_then(|linux| linux.security_context.as_mut());
    let namespaces = security.and_then(|security| security.namespace_options.as_mut());
    namespaces
        .context("a configuration with namespaces")?
        .userns_options = Some(users);
    let mut pod = BarePod::run_as(&client, config).await?;
    pod.start_container("shell", images::BUSYBOX, &["sh", "-c", "id -u; sleep 1000"])
        .await?;
    pod.wait_for_log("shell", " stdout F 0").await?;
    let map = pod.exec("shell", &["cat", "/proc/self/uid_map"]).await?.stdout;
    ensure!(map.split_whitespace().eq(["0", "100000", "65536"]), "{map}");
    let owner = pod
        .exec("shell", &["stat", "-c", "%u", "/bin/busybox"])
        .await?
        .stdout;
    ensure!(owner == "0\n", "{owner}");
    pod.remove().await
}

#[test]
fn what_a_killed_test_left_is_swept() -> Result<()> {
    scenario::sweep_removes_what_a_killed_test_left(
        "containerd2::what_a_killed_test_left_is_swept",
        Flavour::V2,
    )
}

/// Nothing that containerd 2 makes by default outside its directories is made by a private one.
#[test]
fn it_is_the_version_asked_for_and_keeps_to_its_directory() -> Result<()> {
    let scope = Scope::new("version")?;
    let containerd = Containerd::start(&scope, Flavour::V2)?;
    let wanted = module_version("github.com/containerd/containerd/v2")?;
    ensure!(containerd.version()? == wanted, "{}", containerd.version()?);
    let plugins = containerd.ctr(&["plugins", "list"])?;
    for plugin in ["nri", "opt"] {
        let active = plugins
            .lines()
            .any(|line| line.split_whitespace().nth(1) == Some(plugin) && line.contains(" ok"));
        ensure!(!active, "plugin {plugin} is active:\n{plugins}");
    }
    Ok(())
}
