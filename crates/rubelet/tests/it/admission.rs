//! A small node on a real containerd: who is let in, who waits for room, who has to make it, and what a restart leaves alone.

use std::fs;

use anyhow::{Context, Result, ensure};
use rubelet_scenarios::admission::{asking, nobody_gives_way, wait_until_refused};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::Manifest;
use rubelet_testbed::node::{Bed, Kubelet, Node, Options, PodFacts};
use serde_json::{Value, json};

const UNEXPECTED: &str = "UnexpectedAdmissionError";

fn processors() -> Result<usize> {
    Ok(std::thread::available_parallelism()?.get())
}

/// So much that pods have this many thousandths of a processor.
fn reserved(left_milli: usize) -> Result<Value> {
    Ok(json!({ "cpu": format!("{}m", processors()? * 1000 - left_milli) }))
}

fn cpu(name: &str, milli: usize) -> Manifest {
    asking(name, &json!({ "cpu": format!("{milli}m") }))
}

fn is_rubelet(node: &Node) -> bool {
    node.kubelet().is_rubelet()
}

fn why(node: &Node, name: &str) -> Result<String> {
    let path = node.kubelet().path()?;
    let mut command = std::process::Command::new(path);
    command
        .arg("why")
        .arg(format!("--root-dir={}", node.root_dir().display()));
    let output = command.output().context("run rubelet why")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let full = node.pod_name(name);
    let lines: Vec<&str> = text.lines().collect();
    let place = lines.iter().position(|line| line.contains(&full));
    let place = place.with_context(|| format!("{full} is not in {text:?}"))?;
    // The last error stands below.
    Ok(lines[place..]
        .iter()
        .take(2)
        .copied()
        .collect::<Vec<_>>()
        .join(" "))
}

#[test]
fn a_small_node_lets_in_what_fits_and_the_rest_when_there_is_room() {
    in_scope("small-node", async |scope| {
        let kubelet = Kubelet::chosen_or(env!("CARGO_BIN_EXE_rubelet"));
        let options = Options::new(kubelet)
            .with("systemReserved", reserved(1000)?)
            .with("maxPods", json!(3));
        let mut bed = Bed::start(scope, Flavour::Debian, options).await?;
        fills_up(&bed.node).await?;
        number_of_pods_is_limited(&bed.node).await?;
        critical_pods_are_given_room(&bed.node).await?;
        restart_leaves_an_overfull_node_alone(&mut bed).await
    });
}

/// The third pod waits until another one's manifest goes.
async fn fills_up(node: &Node) -> Result<()> {
    for name in ["one", "two"] {
        node.write(name, &cpu(name, 400).json())?;
        node.wait_until_ready(name).await?;
    }
    node.write("three", &cpu("three", 400).json())?;
    wait_until_refused(
        node,
        "three",
        UNEXPECTED,
        &nobody_gives_way("(res: cpu, q: 200), "),
    )
    .await?;
    if is_rubelet(node) {
        let line = why(node, "three")?;
        ensure!(
            line.contains("room on the node")
                && line.contains("cpu, requested: 400, used: 800, capacity: 1000"),
            "{line}"
        );
    }
    node.remove("one")?;
    if is_rubelet(node) {
        node.wait_until_ready("three").await?;
    } else {
        node.remove("three")?;
    }
    Ok(())
}

async fn number_of_pods_is_limited(node: &Node) -> Result<()> {
    node.write("four", &cpu("four", 0).json())?;
    node.wait_until_ready("four").await?;
    if !is_rubelet(node) {
        return node.remove("four");
    }
    node.write("five", &cpu("five", 0).json())?;
    wait_until_refused(node, "five", UNEXPECTED, &nobody_gives_way("(res: pods, q: 1), ")).await?;
    node.remove("four")?;
    node.wait_until_ready("five").await?;
    node.remove("five")
}

/// `two` and `three` run. The important one takes the place of the less important.
async fn critical_pods_are_given_room(node: &Node) -> Result<()> {
    if !is_rubelet(node) {
        return Ok(());
    }
    node.remove("three")?;
    node.write("lesser", &cpu("lesser", 500).spec("priority", json!(1)).json())?;
    node.wait_until_ready("lesser").await?;
    node.write("greater", &cpu("greater", 600).spec("priority", json!(2)).json())?;
    node.wait_until_ready("greater").await?;
    node.wait_for_pod("lesser", "has made room", |pod| {
        pod.check_phase("Failed")?;
        let status = pod.status.clone().unwrap_or_default();
        ensure!(status.reason.as_deref() == Some("Preempting"), "not preempted");
        let message = "Preempted in order to admit critical pod";
        ensure!(status.message.as_deref() == Some(message), "not told so");
        let (value, reason, _) = pod.condition("DisruptionTarget");
        ensure!(
            (value, reason) == ("True", "TerminationByKubelet"),
            "{value} {reason}"
        );
        Ok(())
    })
    .await?;
    node.remove("lesser")
}

/// `two` and `greater` run on 400m and 600m. With half a processor left for pods they go on, and no other pod is admitted.
async fn restart_leaves_an_overfull_node_alone(bed: &mut Bed<'_>) -> Result<()> {
    if !is_rubelet(&bed.node) {
        return Ok(());
    }
    let mut before = Vec::new();
    for name in ["two", "greater"] {
        before.push(bed.node.wait_until_ready(name).await?.running_id("main")?);
    }
    bed.node.terminate()?;
    let file = bed.node.dir().join("kubelet.yaml");
    let mut configuration: Value = serde_json::from_slice(&fs::read(&file)?)?;
    configuration["systemReserved"] = reserved(500)?;
    fs::write(&file, serde_json::to_vec(&configuration)?)?;
    bed.node.write("new", &cpu("new", 100).json())?;
    bed.node.start_again()?;
    let node = &bed.node;
    wait_until_refused(node, "new", UNEXPECTED, &nobody_gives_way("(res: cpu, q: 600), ")).await?;
    for (name, id) in ["two", "greater"].into_iter().zip(&before) {
        let now = node.wait_until_ready(name).await?.running_id("main")?;
        ensure!(now == *id, "{name} was started again");
    }
    // Not enough: the other one alone is more than the node gives.
    node.remove("two")?;
    node.wait_for_pods("the first has gone", rubelet_testbed::node::DEADLINE, |pods| {
        ensure!(pods.len() == 2, "{} pods", pods.len());
        Ok(())
    })
    .await?;
    node.remove("greater")?;
    node.wait_until_ready("new").await?;
    node.remove("new")
}
