//! Pods come and go on a runtime that is slow and lies: the program returns to where it began.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rubelet_fakes::cri::{FakeCri, Reaction, omit_first_container, repeat_first_container};
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::metrics_text::MetricsText;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, shell};
use rubelet_testbed::node::{DEADLINE, Kubelet, Node, Options, RuntimeView};
use rubelet_testbed::wait::wait_until;
use rubelet_testbed::{images, in_scope};
use serde_json::json;
use tonic::Code;

/// `make soak` asks for more.
const ROUNDS: &str = "RUBELET_CHURN_ROUNDS";
const PODS: usize = 4;
/// What an allocator keeps, and caches that are full by then.
const MEMORY_SLACK_KIB: u64 = 16 * 1024;
/// Connections that are being closed, and answers that no caller waits for.
const SLACK: u64 = 8;

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    files: u64,
    threads: u64,
    memory_kib: u64,
    tasks: u64,
}

fn held(node: &Node) -> Result<Held> {
    let process = format!("/proc/{}", node.pid().context("the program is gone")?);
    let count = |directory: &str| -> Result<u64> {
        Ok(u64::try_from(
            fs::read_dir(format!("{process}/{directory}"))?.count(),
        )?)
    };
    let status = fs::read_to_string(format!("{process}/status"))?;
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let memory = memory.and_then(|line| line.split_whitespace().next());
    let page = String::from_utf8(node.get("/metrics")?.body)?;
    let tasks = MetricsText::parse(&page)?.sum("rubelet_tasks", &[]);
    let tasks = tasks.context("no rubelet_tasks")?;
    Ok(Held {
        files: count("fd")?,
        threads: count("task")?,
        memory_kib: memory.context("no VmRSS")?.parse()?,
        tasks: tasks.to_string().parse()?,
    })
}

/// How the runtime behaves in this round.
fn misbehave(runtime: &FakeCri, round: usize) {
    let pause = Duration::from_millis(300);
    match round % 4 {
        0 => {
            for method in [
                "ListPodSandbox",
                "ListContainers",
                "ContainerStatus",
                "StartContainer",
            ] {
                runtime.on(method, Reaction::late(pause));
            }
        }
        1 => {
            for method in [
                "RunPodSandbox",
                "CreateContainer",
                "StartContainer",
                "StopContainer",
            ] {
                runtime.once(
                    method,
                    Reaction::fail_after(Code::Unknown, "it is done, but not said so"),
                );
            }
        }
        2 => {
            runtime.on("ListContainers", Reaction::edited(repeat_first_container));
            runtime.once("ListContainers", Reaction::edited(omit_first_container));
            runtime.once("Status", Reaction::late(pause * 10));
            runtime.once("PodSandboxStatus", Reaction::fail(Code::Unknown, "no"));
        }
        _ => {
            runtime.once("ListContainers", Reaction::late(pause * 10));
            runtime.once("ListPodSandbox", Reaction::reset());
        }
    }
}

fn behave(runtime: &FakeCri) {
    for method in [
        "ListPodSandbox",
        "ListContainers",
        "ContainerStatus",
        "StartContainer",
    ] {
        runtime.heal(method);
    }
}

/// Pods come, and go.
async fn churn(node: &Node, view: &RuntimeView, runtime: &FakeCri, round: usize) -> Result<()> {
    let names: Vec<String> = (0..PODS)
        .map(|number| format!("churn-{round}-{number}"))
        .collect();
    misbehave(runtime, round);
    for name in &names {
        let manifest = pod(name)
            .container(shell("main", UNTIL_TERM))
            .spec("terminationGracePeriodSeconds", json!(1));
        node.write(name, &manifest.json())?;
    }
    for name in &names {
        node.wait_until_ready(name).await?;
    }
    for name in &names {
        node.remove(name)?;
    }
    behave(runtime);
    wait_until("no container runs", DEADLINE * 2, async || {
        let running = view.running().await?;
        ensure!(running.is_empty(), "{running:?}");
        Ok(())
    })
    .await
}

#[test]
fn nothing_grows_with_pods_that_come_and_go() {
    in_scope("churn", async |scope| {
        let rounds = std::env::var(ROUNDS).map_or(Ok(4), |rounds| rounds.parse::<usize>())?;
        let containerd = Containerd::start(scope, Flavour::Debian)?;
        containerd.import(&images::busybox()?)?;
        let runtime = FakeCri::start().await?;
        runtime.forward_to(&containerd.socket())?;
        let kubelet = Kubelet::chosen_or(env!("CARGO_BIN_EXE_rubelet"));
        let mut node = Node::create(scope, &runtime.endpoint(), Options::new(kubelet))?;
        node.start_again()?;
        let view = RuntimeView::connect(&containerd.socket()).await?;
        // The first rounds fill what is filled once.
        for round in 0..2 {
            churn(&node, &view, &runtime, round).await?;
        }
        let before = held(&node)?;
        for round in 2..2 + rounds {
            churn(&node, &view, &runtime, round).await?;
        }
        wait_until("the program holds what it held", DEADLINE * 2, async || {
            let now = held(&node)?;
            ensure!(
                now.files <= before.files + SLACK
                    && now.threads <= before.threads + SLACK
                    && now.tasks <= before.tasks + SLACK
                    && now.memory_kib <= before.memory_kib + MEMORY_SLACK_KIB,
                "before {before:?}, after {rounds} rounds {now:?}"
            );
            Ok(())
        })
        .await
    });
}
