//! `make run`: rubelet on a private container runtime with a demo pod, in the foreground, gone without a trace after Ctrl-C.
//!
//! Owns the demo pod and what is told about it. Everything that is started belongs to a scope, which cleans up.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::containerd::{Containerd, Flavour};
use crate::node::{Kubelet, Node, Options, PodFacts};
use crate::wait::wait_until;
use crate::{Scope, http, images};

const POD: &str = "demo";
const WEB_PORT: u16 = 8080;
const READY_DEADLINE: Duration = Duration::from_secs(120);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const HEALTH_INTERVAL: Duration = Duration::from_secs(2);

/// Runs until Ctrl-C, SIGTERM, or the end of rubelet.
pub fn run(rubelet: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let asked = async {
            tokio::select! {
                // Both are cancel-safe: a signal that nobody waits for is kept by tokio.
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        run_until(rubelet, asked, &|line| println!("run: {line}")).await
    })
}

/// Takes one line for people.
pub type Teller<'a> = &'a (dyn Fn(&str) + Sync);

/// Runs until `stop`, or the end of rubelet, and tells of it line by line.
pub async fn run_until(rubelet: &Path, stop: impl Future<Output = ()>, tell: Teller<'_>) -> Result<()> {
    let rubelet = rubelet
        .canonicalize()
        .with_context(|| format!("{} is not built", rubelet.display()))?;
    let scope = Scope::new("run")?;
    let result = demo(&scope, &rubelet, stop, tell).await;
    tell("cleaning up");
    drop(scope);
    result
}

async fn demo(scope: &Scope, rubelet: &Path, stop: impl Future<Output = ()>, tell: Teller<'_>) -> Result<()> {
    tell(&format!(
        "starting a private containerd in {}",
        scope.dir().display()
    ));
    let containerd = Containerd::start(scope, Flavour::Debian)?;
    tell("building images from files of this machine");
    for archive in [images::busybox()?, images::server()?] {
        containerd.import(&archive)?;
        tell(&format!("  {}", archive.names().join(", ")));
    }
    let options = Options::new(Kubelet::Rubelet(rubelet.to_owned()));
    let mut node = Node::create(scope, &containerd.endpoint(), options)?;
    node.write(POD, &manifest())?;
    tell("starting rubelet; Ctrl-C ends it");
    node.start_again()?;
    let result = tokio::select! {
        biased;
        () = stop => Ok(()),
        result = show(scope, &node, rubelet, tell) => result,
    };
    tell("stopping rubelet, then the pods, then containerd");
    // A rubelet that ended by itself is told by the result.
    let stopped = node.terminate().and_then(|()| containerd.stop());
    result.and(stopped)
}

/// Tells of the pod's way to being ready, and then watches over rubelet for ever.
async fn show(scope: &Scope, node: &Node, rubelet: &Path, tell: Teller<'_>) -> Result<()> {
    let pod = show_progress(node, tell).await?;
    let address = format!("{}:{WEB_PORT}", pod_ip(&pod).context("the pod has no address")?);
    // A container that runs may not listen yet.
    let answer = wait_until("the web server answers", READY_DEADLINE, async || {
        http::get(&address, "/hostname")
    })
    .await?;
    tell(&format!(
        "http://{address}/hostname says {}: {}",
        answer.status,
        answer.text().trim_end()
    ));
    show_hints(scope, node, rubelet, tell)?;
    loop {
        tokio::time::sleep(HEALTH_INTERVAL).await;
        if let Err(error) = node.healthz() {
            bail!("rubelet does not answer any more: {error:#}\n{}", node.log_tail());
        }
    }
}

async fn show_progress(node: &Node, tell: Teller<'_>) -> Result<Pod> {
    let start = Instant::now();
    let mut shown: BTreeMap<String, String> = BTreeMap::new();
    loop {
        if let Ok(pod) = node.pod(POD) {
            for (what, state) in progress(&pod) {
                if shown.get(&what) != Some(&state) {
                    let seconds = start.elapsed().as_secs_f64();
                    tell(&format!("{seconds:6.2} s  {what:<24} {state}"));
                    shown.insert(what, state);
                }
            }
            if pod.check_ready().is_ok() {
                return Ok(pod);
            }
        }
        if start.elapsed() > READY_DEADLINE {
            bail!(
                "the pod is not ready after {READY_DEADLINE:?}\n{}",
                node.log_tail()
            );
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// What there is to see of a pod: its containers in the order of their start, then the pod itself.
fn progress(pod: &Pod) -> Vec<(String, String)> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let sidecars: Vec<&str> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten())
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .map(|container| container.name.as_str())
        .collect();
    let kind = |status: &ContainerStatus, usual: &'static str| {
        if sidecars.contains(&status.name.as_str()) {
            "sidecar"
        } else {
            usual
        }
    };
    let first = status.init_container_statuses.iter().flatten();
    let rest = status.container_statuses.iter().flatten();
    let containers = first
        .map(|status| (kind(status, "init container"), status))
        .chain(rest.map(|status| ("container", status)));
    let mut lines: Vec<(String, String)> = containers
        .map(|(kind, status)| {
            let state = status.state.as_ref().map(state_text).unwrap_or_default();
            (format!("{kind} {}", status.name), state)
        })
        .collect();
    let is_ready = pod.check_ready().is_ok();
    let phase = status.phase.as_deref().unwrap_or("unknown");
    let ready = if is_ready { ", Ready" } else { "" };
    lines.push(("pod".to_owned(), format!("{phase}{ready}")));
    lines
}

fn state_text(state: &ContainerState) -> String {
    if state.running.is_some() {
        return "runs".to_owned();
    }
    if let Some(ended) = &state.terminated {
        return format!("ended with code {}", ended.exit_code);
    }
    let waiting = state
        .waiting
        .as_ref()
        .and_then(|waiting| waiting.reason.as_deref());
    format!("waits: {}", waiting.unwrap_or("not started"))
}

fn pod_ip(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.pod_ip.as_deref()
}

fn show_hints(scope: &Scope, node: &Node, rubelet: &Path, tell: Teller<'_>) -> Result<()> {
    let configuration: Value = serde_json::from_slice(&fs::read(node.dir().join("kubelet.yaml"))?)?;
    let (port, read_only) = (&configuration["port"], &configuration["readOnlyPort"]);
    tell("now try, in another terminal:");
    for (what, how) in [
        (
            "add, change or remove pods:",
            format!("YAML or JSON files in {}", node.manifests().display()),
        ),
        (
            "what pods wait for:",
            format!(
                "{} why --root-dir {}",
                rubelet.display(),
                node.root_dir().display()
            ),
        ),
        ("all pods:", format!("curl -s http://127.0.0.1:{read_only}/pods")),
        (
            "a container's log:",
            format!(
                "curl -sk https://127.0.0.1:{port}/containerLogs/default/{}/web",
                node.pod_name(POD)
            ),
        ),
        (
            "rubelet's own log:",
            scope.path("logs/kubelet.log").display().to_string(),
        ),
    ] {
        tell(&format!("  {what:<28} {how}"));
    }
    tell(&format!(
        "images for your pods: {}, {}; Ctrl-C ends everything",
        images::BUSYBOX,
        images::SERVER
    ));
    Ok(())
}

/// An init container, a sidecar and a web server.
fn manifest() -> Value {
    let shell = |script: &str| json!(["sh", "-c", script]);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": POD, "namespace": "default" },
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "initContainers": [
                {
                    "name": "setup",
                    "image": images::BUSYBOX,
                    "imagePullPolicy": "Never",
                    "command": shell("echo preparing; sleep 1; echo prepared"),
                },
                {
                    "name": "ticker",
                    "image": images::BUSYBOX,
                    "imagePullPolicy": "Never",
                    "restartPolicy": "Always",
                    "command": shell("trap 'exit 0' TERM; while true; do echo tick; sleep 5 & wait; done"),
                },
            ],
            "containers": [{
                "name": "web",
                "image": images::SERVER,
                "imagePullPolicy": "Never",
                "ports": [{ "containerPort": WEB_PORT }],
            }],
        },
    })
}
