//! Containers end, well or badly.

use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::scenarios;
use super::until;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pause, pod, shell, with};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};

/// What upstream waits before the second restart of a container.
const FIRST_BACKOFF_NS: i64 = 10_000_000_000;

pub(super) const ALL: &[Scenario] = scenarios![
    crash_loop_backs_off_and_keeps_one_dead_container,
    on_failure_runs_to_completion,
    restart_rules_by_exit_code,
    one_exit_restarts_all_containers,
    never_succeeds,
    never_fails,
    killed_container_has_a_successor,
    stopped_sandbox_is_replaced,
    failed_init_container_is_tried_again,
    failed_init_container_without_restarts_fails_the_pod,
];

async fn crash_loop_backs_off_and_keeps_one_dead_container(bed: &Bed<'_>) -> Result<()> {
    let name = "crash-loop";
    bed.node.write(
        name,
        &pod(name).container(shell("main", "echo attempt; exit 3")).json(),
    )?;
    let pod = bed
        .node
        .wait_for_pod(name, "is held back", |pod| {
            let (reason, message) = pod.waiting("main")?;
            ensure!(reason == "CrashLoopBackOff", "it waits for {reason}");
            ensure!(
                message.contains("back-off 10s restarting failed container=main"),
                "{message}"
            );
            Ok(pod.clone())
        })
        .await?;
    pod.check_phase("Running")?;
    let (ready, reason, _) = pod.condition("Ready");
    ensure!(
        (ready, reason) == ("False", "ContainersNotReady"),
        "{:?}",
        pod.status
    );
    let container = pod.container("main")?;
    ensure!(container.restart_count == 1, "{container:?}");
    let last = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let last = last.context("no last state")?;
    ensure!(
        last.exit_code == 3 && last.reason.as_deref() == Some("Error"),
        "{last:?}"
    );
    // The held-back container comes when its time has come, and of the dead ones the last is kept.
    until("the third attempt has ended", async || {
        let mut dead = bed.view.containers_of(pod.uid()).await?;
        dead.sort_by_key(|container| container.attempt);
        let newest = dead.last().context("no container")?;
        ensure!(newest.attempt >= 2 && !newest.running, "{newest:?}");
        Ok(())
    })
    .await?;
    bed.node
        .wait_for_pod(name, "counts the restarts", |pod| {
            ensure!(pod.container("main")?.restart_count >= 2);
            Ok(())
        })
        .await?;
    until("one dead container is left", async || {
        let left = bed.view.containers_of(pod.uid()).await?;
        ensure!(left.len() == 1, "{left:?}");
        Ok(())
    })
    .await?;
    let left = bed.view.containers_of(pod.uid()).await?;
    let waited = left[0].created_at_ns
        - last
            .finished_at
            .as_ref()
            .map_or(0, |time| i64::try_from(time.0.as_nanosecond()).unwrap_or(0));
    // The status tells whole seconds.
    ensure!(
        waited > FIRST_BACKOFF_NS - 2_000_000_000,
        "it was held back for {waited} ns only"
    );
    bed.node.remove(name)
}

/// A container that fails as long as nobody listens on a port of the host.
fn needs_a_listener(port: u16, code: u8) -> Value {
    let script = format!("nc -w 1 127.0.0.1 {port} -e true || exit {code}");
    shell("main", &script)
}

async fn on_failure_runs_to_completion(bed: &Bed<'_>) -> Result<()> {
    let name = "on-failure";
    let port = bed.scope.port()?;
    let manifest = pod(name)
        .container(needs_a_listener(port, 1))
        .spec("restartPolicy", json!("OnFailure"))
        .spec("hostNetwork", json!(true));
    bed.node.write(name, &manifest.json())?;
    restarted_until_it_works(bed, name, port).await
}

/// The pod restarts nothing, but the container has rules of its own.
async fn restart_rules_by_exit_code(bed: &Bed<'_>) -> Result<()> {
    let name = "restart-rules";
    let port = bed.scope.port()?;
    let rules = json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }]);
    let container = with(needs_a_listener(port, 42), "restartPolicy", json!("Never"));
    let manifest = pod(name)
        .container(with(container, "restartPolicyRules", rules))
        .spec("restartPolicy", json!("Never"))
        .spec("hostNetwork", json!(true));
    bed.node.write(name, &manifest.json())?;
    restarted_until_it_works(bed, name, port).await
}

/// In the same sandbox, the init containers too; what volumes hold stays.
async fn one_exit_restarts_all_containers(bed: &Bed<'_>) -> Result<()> {
    let name = "restart-all";
    let rules =
        json!([{ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] } }]);
    let script = format!(
        "until test -e /shared/go; do sleep 0.1; done; \
        mkdir /shared/gone 2>/dev/null && exit 42; {UNTIL_TERM}"
    );
    let mount = json!([{ "name": "shared", "mountPath": "/shared" }]);
    let main = with(shell("main", &script), "restartPolicy", json!("Never"));
    let main = with(main, "restartPolicyRules", rules);
    let init = shell("init", "echo begun >> /shared/begun");
    let manifest = pod(name)
        .init(with(init, "volumeMounts", mount.clone()))
        .container(with(main, "volumeMounts", mount))
        .container(pause("other"))
        .spec("volumes", json!([{ "name": "shared", "emptyDir": {} }]))
        .spec("restartPolicy", json!("Never"));
    bed.node.write(name, &manifest.json())?;
    let before = bed.node.wait_until_ready(name).await?;
    let (main, other) = (before.running_id("main")?, before.running_id("other")?);
    bed.view.exec(&main, &["touch", "/shared/go"]).await?;
    let after = bed
        .node
        .wait_for_pod(name, "runs anew", |pod| {
            pod.check_ready()?;
            ensure!(pod.running_id("main")? != main && pod.running_id("other")? != other);
            Ok(pod.clone())
        })
        .await?;
    let begun = bed
        .view
        .exec(&after.running_id("main")?, &["cat", "/shared/begun"])
        .await?;
    ensure!(begun == "begun\nbegun", "{begun:?}");
    for container in ["main", "other"] {
        let status = after.container(container)?;
        ensure!(status.restart_count == 1, "{status:?}");
    }
    let sandboxes = bed.view.sandboxes().await?;
    ensure!(sandboxes.iter().filter(|one| one.uid == after.uid()).count() == 1);
    bed.node.remove(name)
}

async fn restarted_until_it_works(bed: &Bed<'_>, name: &str, port: u16) -> Result<()> {
    bed.node
        .wait_for_pod(name, "was restarted", |pod| {
            ensure!(pod.container("main")?.restart_count >= 1, "not yet");
            pod.check_phase("Running")
        })
        .await?;
    let _listener = TcpListener::bind(("127.0.0.1", port))?;
    let pod = bed
        .node
        .wait_for_pod(name, "has succeeded", |pod| {
            pod.check_phase("Succeeded")?;
            Ok(pod.clone())
        })
        .await?;
    ensure!(pod.terminated("main")?.exit_code == 0);
    let (ready, reason, _) = pod.condition("Ready");
    ensure!((ready, reason) == ("False", "PodCompleted"), "{:?}", pod.status);
    bed.node.remove(name)
}

async fn never_succeeds(bed: &Bed<'_>) -> Result<()> {
    ends_once(bed, "never-succeeds", 0, "Succeeded", "Completed").await
}

async fn never_fails(bed: &Bed<'_>) -> Result<()> {
    ends_once(bed, "never-fails", 7, "Failed", "Error").await
}

async fn ends_once(bed: &Bed<'_>, name: &str, code: i32, phase: &str, reason: &str) -> Result<()> {
    let manifest = pod(name)
        .container(shell("main", &format!("exit {code}")))
        .container(shell("other", "true"))
        .spec("restartPolicy", json!("Never"));
    bed.node.write(name, &manifest.json())?;
    let pod = bed
        .node
        .wait_for_pod(name, "has ended", |pod| {
            pod.check_phase(phase)?;
            Ok(pod.clone())
        })
        .await?;
    let terminated = pod.terminated("main")?;
    ensure!(
        terminated.exit_code == code && terminated.reason.as_deref() == Some(reason),
        "{terminated:?}"
    );
    ensure!(
        pod.container("main")?.restart_count == 0,
        "{:?}",
        pod.container("main")?
    );
    // A pod that has ended has no sandbox that runs.
    super::wait_until_stopped(bed, pod.uid()).await?;
    bed.node.pod(name)?.check_phase(phase)?;
    bed.node.remove(name)
}

async fn killed_container_has_a_successor(bed: &Bed<'_>) -> Result<()> {
    let name = "killed";
    bed.node.write(
        name,
        &pod(name)
            .container(pause("main"))
            .container(pause("other"))
            .json(),
    )?;
    let before = bed.node.wait_until_ready(name).await?;
    let (id, other) = (before.running_id("main")?, before.running_id("other")?);
    bed.view.kill_container(&id).await?;
    let after = bed
        .node
        .wait_for_pod(name, "has a successor", |pod| {
            ensure!(pod.container("main")?.restart_count == 1, "no restart yet");
            pod.check_ready()?;
            Ok(pod.clone())
        })
        .await?;
    ensure!(
        after.running_id("main")? != id && after.running_id("other")? == other,
        "{:?}",
        after.status
    );
    let last = after
        .container("main")?
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let last = last.context("no last state")?;
    ensure!(
        last.exit_code == 137
            && last
                .container_id
                .as_deref()
                .is_some_and(|last| last.ends_with(&id)),
        "{last:?}"
    );
    let sandboxes: Vec<_> = bed
        .view
        .sandboxes()
        .await?
        .into_iter()
        .filter(|sandbox| sandbox.uid == after.uid())
        .collect();
    ensure!(sandboxes.len() == 1 && sandboxes[0].attempt == 0, "{sandboxes:?}");
    bed.node.remove(name)
}

async fn stopped_sandbox_is_replaced(bed: &Bed<'_>) -> Result<()> {
    let name = "sandbox";
    bed.node.write(name, &pod(name).container(pause("main")).json())?;
    let before = bed.node.wait_until_ready(name).await?;
    let sandboxes = bed.view.sandboxes().await?;
    let old = sandboxes
        .iter()
        .find(|sandbox| sandbox.uid == before.uid())
        .context("no sandbox")?;
    bed.view.stop_sandbox(&old.id).await?;
    let after = bed
        .node
        .wait_for_pod(name, "runs in another sandbox", |pod| {
            pod.check_ready()?;
            ensure!(
                pod.running_id("main")? != before.running_id("main")?,
                "this is the old container"
            );
            Ok(pod.clone())
        })
        .await?;
    ensure!(after.uid() == before.uid());
    let ready: Vec<_> = bed
        .view
        .sandboxes()
        .await?
        .into_iter()
        .filter(|sandbox| sandbox.uid == after.uid() && sandbox.ready)
        .collect();
    ensure!(ready.len() == 1 && ready[0].attempt == 1, "{ready:?}");
    bed.node.remove(name)
}

async fn failed_init_container_is_tried_again(bed: &Bed<'_>) -> Result<()> {
    let name = "init-retry";
    let port = bed.scope.port()?;
    let manifest = pod(name)
        .init(with(needs_a_listener(port, 1), "name", json!("init")))
        .container(pause("main"))
        .spec("hostNetwork", json!(true));
    bed.node.write(name, &manifest.json())?;
    let pod = bed
        .node
        .wait_for_pod(name, "has tried twice", |pod| {
            ensure!(pod.container("init")?.restart_count >= 1, "not yet");
            Ok(pod.clone())
        })
        .await?;
    pod.check_phase("Pending")?;
    let (initialized, reason, message) = pod.condition("Initialized");
    ensure!(
        (initialized, reason) == ("False", "ContainersNotInitialized") && message.contains("init"),
        "{:?}",
        pod.status
    );
    ensure!(pod.waiting("main")?.0 == "PodInitializing", "{:?}", pod.status);
    let _listener = TcpListener::bind(("127.0.0.1", port))?;
    let pod = bed.node.wait_until_ready(name).await?;
    ensure!(pod.terminated("init")?.exit_code == 0, "{:?}", pod.status);
    bed.node.remove(name)
}

async fn failed_init_container_without_restarts_fails_the_pod(bed: &Bed<'_>) -> Result<()> {
    let name = "init-fails";
    let manifest = pod(name)
        .init(shell("init", "exit 5"))
        .container(pause("main"))
        .spec("restartPolicy", json!("Never"));
    bed.node.write(name, &manifest.json())?;
    let pod = bed
        .node
        .wait_for_pod(name, "has failed", |pod| {
            pod.check_phase("Failed")?;
            Ok(pod.clone())
        })
        .await?;
    ensure!(pod.terminated("init")?.exit_code == 5, "{:?}", pod.status);
    let containers = bed.view.containers_of(pod.uid()).await?;
    ensure!(
        containers.iter().all(|container| container.name == "init"),
        "{containers:?}"
    );
    bed.node.remove(name)
}
