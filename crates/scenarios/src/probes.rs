//! Startup, readiness and liveness.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::scenarios;
use super::until;
use rubelet_testbed::http;
use rubelet_testbed::node::manifest::{pause, pod, server, shell, with};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};

pub(super) const ALL: &[Scenario] = scenarios![
    failed_liveness_restarts_one_container,
    readiness_over_http_on_a_named_port,
    startup_holds_the_others_back,
    sidecar_starts_before_the_rest,
    grpc_health_decides_readiness,
    closed_tcp_port_restarts,
    slow_command_is_a_failure,
    stuck_commands_delay_no_other,
    hostile_servers_are_not_ready,
];

/// A probe that is run every second.
fn every_second(mut probe: Value) -> Value {
    probe["periodSeconds"] = json!(1);
    probe["failureThreshold"] = json!(1);
    probe
}

fn http_get(path: &str, port: &Value) -> Value {
    every_second(json!({ "httpGet": { "path": path, "port": port } }))
}

fn command(words: &[&str]) -> Value {
    every_second(json!({ "exec": { "command": words }, "timeoutSeconds": 30 }))
}

/// Asks the test server of a pod for something.
fn ask(pod: &Pod, path: &str) -> Result<String> {
    let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref());
    let address = format!("{}:8080", ip.context("the pod has no address")?);
    let answer = http::get(&address, path)?;
    ensure!(answer.status == 200, "{path} answered {}", answer.status);
    Ok(answer.text())
}

/// Waits until the container runs and its server answers.
async fn serving(bed: &Bed<'_>, name: &str, container: &str) -> Result<Pod> {
    bed.node
        .wait_for_pod(name, "serves", |pod| {
            pod.running_id(container)?;
            ask(pod, "/")?;
            Ok(pod.clone())
        })
        .await
}

/// Waits until the container has been probed this way.
async fn probed(pod: &Pod, path: &str) -> Result<()> {
    until(&format!("{path} is probed"), async || {
        let hits = ask(pod, "/hits")?;
        ensure!(
            hits.lines().any(|line| line.ends_with(&format!(" {path}"))),
            "{hits}"
        );
        Ok(())
    })
    .await
}

/// Waits until an event of the pod says so in the log, where only ours tells of events by default.
async fn told(bed: &Bed<'_>, name: &str, words: &[&str]) -> Result<()> {
    if bed.node.kubelet().is_rubelet() {
        let pod = bed.node.pod_name(name);
        let words = [&[pod.as_str()], words].concat();
        bed.node.wait_for_log(&words).await?;
    }
    Ok(())
}

async fn wait_for_ready(bed: &Bed<'_>, name: &str, container: &str, ready: bool) -> Result<Pod> {
    bed.node
        .wait_for_pod(name, &format!("has {container} ready: {ready}"), |pod| {
            let status = pod.container(container)?;
            ensure!(status.ready == ready, "{status:?}");
            let expected = if ready { "True" } else { "False" };
            ensure!(
                pod.condition("Ready").0 == expected,
                "{:?}",
                pod.condition("Ready")
            );
            Ok(pod.clone())
        })
        .await
}

/// The grace period is the probe's own: the container hears no SIGTERM, and the pod would give it a minute.
async fn failed_liveness_restarts_one_container(bed: &Bed<'_>) -> Result<()> {
    let name = "liveness";
    let mut probe = command(&["test", "-e", "/tmp/alive"]);
    probe["terminationGracePeriodSeconds"] = json!(1);
    let main = with(
        shell("main", "touch /tmp/alive; sleep 3600"),
        "livenessProbe",
        probe,
    );
    let manifest = pod(name)
        .container(main)
        .container(pause("other"))
        .spec("terminationGracePeriodSeconds", json!(60));
    bed.node.write(name, &manifest.json())?;
    let before = bed.node.wait_until_ready(name).await?;
    let (main_id, other_id) = (before.running_id("main")?, before.running_id("other")?);
    let removed = Instant::now();
    bed.view.exec(&main_id, &["rm", "/tmp/alive"]).await?;
    let after = bed
        .node
        .wait_for_pod(name, "has a new container", |pod| {
            ensure!(pod.running_id("main")? != main_id);
            ensure!(pod.container("main")?.restart_count == 1);
            Ok(pod.clone())
        })
        .await?;
    ensure!(
        removed.elapsed() < Duration::from_secs(40),
        "the probe's grace period was not used: {:?}",
        removed.elapsed()
    );
    let last = after.container("main")?.last_state.as_ref();
    let last = last
        .and_then(|state| state.terminated.as_ref())
        .context("no last state")?;
    ensure!(last.exit_code == 137, "{last:?}");
    ensure!(after.running_id("other")? == other_id);
    ensure!(after.container("other")?.restart_count == 0);
    let sandboxes = bed.view.sandboxes().await?;
    ensure!(sandboxes.iter().filter(|one| one.uid == after.uid()).count() == 1);
    bed.node.remove(name)
}

async fn readiness_over_http_on_a_named_port(bed: &Bed<'_>) -> Result<()> {
    let name = "readiness";
    let main = server("main", &["serve", "--http", "8080", "--not-ready"]);
    let main = with(main, "ports", json!([{ "name": "web", "containerPort": 8080 }]));
    let mut probe = http_get("/ready", &json!("web"));
    probe["httpGet"]["httpHeaders"] = json!([{ "name": "X-Asked-By", "value": "a test" }]);
    bed.node.write(
        name,
        &pod(name).container(with(main, "readinessProbe", probe)).json(),
    )?;
    let serving = serving(bed, name, "main").await?;
    probed(&serving, "/ready").await?;
    let pod = wait_for_ready(bed, name, "main", false).await?;
    let (_, reason, message) = pod.condition("ContainersReady");
    ensure!(
        (reason, message) == ("ContainersNotReady", "containers with unready status: [main]"),
        "{reason} {message}"
    );
    ask(&pod, "/ready/on")?;
    let pod = wait_for_ready(bed, name, "main", true).await?;
    ask(&pod, "/ready/off")?;
    let pod = wait_for_ready(bed, name, "main", false).await?;
    ensure!(pod.container("main")?.restart_count == 0);
    bed.node.remove(name)
}

async fn startup_holds_the_others_back(bed: &Bed<'_>) -> Result<()> {
    let name = "startup";
    let main = server("main", &["serve", "--http", "8080", "--not-ready", "--not-live"]);
    let mut startup = http_get("/ready", &json!(8080));
    startup["failureThreshold"] = json!(300);
    let main = with(main, "startupProbe", startup);
    // It would restart the container at once.
    let main = with(main, "livenessProbe", http_get("/live", &json!(8080)));
    let main = with(main, "readinessProbe", http_get("/status/200", &json!(8080)));
    bed.node.write(name, &pod(name).container(main).json())?;
    let pod = serving(bed, name, "main").await?;
    probed(&pod, "/ready").await?;
    let status = bed.node.pod(name)?;
    let status = status.container("main")?;
    ensure!(status.started == Some(false) && !status.ready, "{status:?}");
    let hits = ask(&pod, "/hits")?;
    ensure!(!hits.contains("/live") && !hits.contains("/status/200"), "{hits}");
    ask(&pod, "/live/on")?;
    ask(&pod, "/ready/on")?;
    let pod = wait_for_ready(bed, name, "main", true).await?;
    let status = pod.container("main")?;
    ensure!(
        status.started == Some(true) && status.restart_count == 0,
        "{status:?}"
    );
    probed(&pod, "/live").await?;
    bed.node.remove(name)
}

async fn sidecar_starts_before_the_rest(bed: &Bed<'_>) -> Result<()> {
    let name = "sidecar-startup";
    let sidecar = server("sidecar", &["serve", "--http", "8080", "--not-ready"]);
    let sidecar = with(sidecar, "restartPolicy", json!("Always"));
    let mut startup = http_get("/ready", &json!(8080));
    startup["failureThreshold"] = json!(300);
    let sidecar = with(sidecar, "startupProbe", startup);
    bed.node
        .write(name, &pod(name).init(sidecar).container(pause("main")).json())?;
    let pod = serving(bed, name, "sidecar").await?;
    probed(&pod, "/ready").await?;
    let pod = bed.node.pod(name)?;
    let waiting = pod.waiting("main")?;
    ensure!(waiting.0 == "PodInitializing", "{waiting:?}");
    ask(&pod, "/ready/on")?;
    let pod = bed.node.wait_until_ready(name).await?;
    ensure!(pod.container("sidecar")?.started == Some(true));
    bed.node.remove(name)
}

async fn grpc_health_decides_readiness(bed: &Bed<'_>) -> Result<()> {
    let name = "grpc";
    let main = server("main", &["serve", "--http", "8080", "--grpc", "9000"]);
    let probe = every_second(json!({ "grpc": { "port": 9000, "service": "test" } }));
    // Nobody knows this service.
    let unknown = every_second(json!({ "grpc": { "port": 9000, "service": "other" } }));
    let without = every_second(json!({ "grpc": { "port": 9000, "service": "unimplemented" } }));
    let manifest = pod(name)
        .container(with(main, "readinessProbe", probe))
        .container(with(pause("stranger"), "readinessProbe", unknown))
        .container(with(pause("without"), "readinessProbe", without));
    bed.node.write(name, &manifest.json())?;
    let is_ready = async |ready: bool| {
        bed.node
            .wait_for_pod(name, &format!("serves: {ready}"), |pod| {
                ensure!(pod.container("main")?.ready == ready);
                ensure!(!pod.container("stranger")?.ready && !pod.container("without")?.ready);
                Ok(pod.clone())
            })
            .await
    };
    let pod = is_ready(true).await?;
    ask(&pod, "/grpc/off")?;
    is_ready(false).await?;
    let words = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): no health here";
    told(bed, name, &["Unhealthy", words]).await?;
    bed.node.remove(name)
}

async fn closed_tcp_port_restarts(bed: &Bed<'_>) -> Result<()> {
    let name = "tcp";
    let tcp = |port: u16| every_second(json!({ "tcpSocket": { "port": port } }));
    // A server may listen late.
    let patient = with(tcp(9000), "failureThreshold", json!(30));
    let good = with(
        server("good", &["serve", "--tcp", "9000"]),
        "livenessProbe",
        patient,
    );
    let good = with(good, "readinessProbe", tcp(9000));
    let bad = with(pause("bad"), "livenessProbe", tcp(9001));
    bed.node
        .write(name, &pod(name).container(good).container(bad).json())?;
    bed.node
        .wait_for_pod(name, "has restarted what does not listen", |pod| {
            ensure!(pod.container("bad")?.restart_count >= 1);
            let good = pod.container("good")?;
            ensure!(good.ready && good.restart_count == 0, "{good:?}");
            Ok(())
        })
        .await?;
    bed.node.remove(name)
}

async fn slow_command_is_a_failure(bed: &Bed<'_>) -> Result<()> {
    let name = "slow-command";
    let mut probe = command(&["sleep", "600"]);
    probe["timeoutSeconds"] = json!(1);
    let main = with(
        shell("main", "trap 'exit 0' TERM; sleep 3600 & wait"),
        "livenessProbe",
        probe,
    );
    bed.node.write(name, &pod(name).container(main).json())?;
    bed.node
        .wait_for_pod(name, "is restarted", |pod| {
            ensure!(pod.container("main")?.restart_count >= 1);
            Ok(())
        })
        .await?;
    bed.node.remove(name)
}

async fn stuck_commands_delay_no_other(bed: &Bed<'_>) -> Result<()> {
    let name = "stuck-commands";
    let idle = "trap 'exit 0' TERM; sleep 3600 & wait";
    let mut manifest = pod(name);
    for number in 0..3 {
        let mut stuck = command(&["sleep", "600"]);
        stuck["timeoutSeconds"] = json!(600);
        let container = shell(&format!("stuck-{number}"), idle);
        let container = with(container, "readinessProbe", stuck.clone());
        manifest = manifest.container(with(container, "livenessProbe", stuck));
    }
    let good = with(
        shell("good", idle),
        "readinessProbe",
        command(&["test", "!", "-e", "/tmp/busy"]),
    );
    bed.node.write(name, &manifest.container(good).json())?;
    let wait = async |ready: bool| {
        bed.node
            .wait_for_pod(name, &format!("has good ready: {ready}"), |pod| {
                ensure!(pod.container("good")?.ready == ready);
                ensure!(!pod.container("stuck-0")?.ready);
                pod.running_id("good")
            })
            .await
    };
    let good = wait(true).await?;
    let begun = Instant::now();
    bed.view.exec(&good, &["touch", "/tmp/busy"]).await?;
    wait(false).await?;
    bed.view.exec(&good, &["rm", "/tmp/busy"]).await?;
    wait(true).await?;
    ensure!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    bed.node.remove(name)
}

/// What a probe may meet: a server that is slow, that moves away, that never ends its answer, that hangs up.
async fn hostile_servers_are_not_ready(bed: &Bed<'_>) -> Result<()> {
    let name = "hostile";
    let probes = [
        ("slow", "/delay/600000", false),
        ("circle", "/circle", false),
        ("away", "/redirect/302?to=http://192.0.2.1/", true),
        ("near", "/redirect/302?to=/status/200", true),
        ("huge", "/endless", true),
        ("reset", "/reset", false),
        ("failing", "/status/500", false),
    ];
    let mut manifest = pod(name).container(server("main", &["serve", "--http", "8080"]));
    for (container, path, _) in probes {
        let probe = http_get(path, &json!(8080));
        manifest = manifest.container(with(pause(container), "readinessProbe", probe));
    }
    bed.node.write(name, &manifest.json())?;
    let pod = serving(bed, name, "main").await?;
    for path in ["/delay/600000", "/circle", "/reset", "/endless", "/status/500"] {
        probed(&pod, path).await?;
    }
    bed.node
        .wait_for_pod(name, "tells good from bad", |pod| {
            for (container, _, ready) in probes {
                let status = pod.container(container)?;
                ensure!(status.ready == ready, "{container}: {status:?}");
            }
            Ok(())
        })
        .await?;
    told(
        bed,
        name,
        &[
            "ProbeWarning",
            "Readiness probe warning: Probe terminated redirects",
        ],
    )
    .await?;
    bed.node.remove(name)
}
