//! The rows of what a person does with kubectl: following a log, entering a container, forwarding a port.
//!
//! Everything goes through kubectl and the API server, as it does for that person. The times are whole: kubectl's own start is in them,
//! the same for both kubelets.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::SETTLING;
use super::budget::Row;
use super::cluster::Cluster;
use super::kubelet::{Kubelet, Place};
use super::pod::{self, NAMESPACE};
use super::runtime::DEADLINE;
use super::samples::Samples;
use super::sightings::Pods;
use rubelet_testbed::images::BUSYBOX;
use rubelet_testbed::process::spawn_dying_with_us;
use rubelet_testbed::{Scope, wait};

/// What the container writes before anything is measured, and what it sends over a forwarded port.
pub(super) const MEGABYTES: usize = 128;
const BYTES: usize = MEGABYTES << 20;
/// How often each is done in a round.
const LOGS: usize = 3;
const ENTRIES: usize = 10;
const FORWARDS: usize = 3;
const NAME: &str = "streams";
const PORT: u16 = 9000;
/// A line is as long as lines of logs are.
const LINE: &str = "The quick brown fox jumps over the lazy dog, again and again, until the log is as large as it has to be. ";
const LAST_LINE: &str = "all is written";

/// The rows of one kubelet, which is a node of the cluster.
pub(super) async fn measure(
    scope: &Scope,
    place: &Place<'_>,
    cluster: &mut Cluster,
    samples: &mut Samples,
) -> Result<()> {
    let (mut kubelet, _) = place.start()?;
    cluster.wait_until_ready(place.node()).await?;
    kubelet.settle(SETTLING).await?;
    cluster.create(&[talkative(place.node())]).await?;
    let is_ready = |pods: &Pods| pods.get(NAME).is_some_and(|pod| pod.is_ready);
    cluster.sightings.wait(NAME, DEADLINE, is_ready).await?;
    let written = wait::wait_until("the log is written", DEADLINE, || async {
        let last = cluster
            .kubectl(&["logs", "--tail=1", "--namespace", NAMESPACE, NAME])
            .await?;
        ensure!(last.trim() == LAST_LINE, "the last line is {last:?}");
        Ok(())
    });
    written.await?;
    follow_logs(&kubelet, cluster, samples)
        .await
        .context("follow a log")?;
    enter(&kubelet, cluster, samples)
        .await
        .context("enter a container")?;
    forward(scope, &kubelet, cluster, samples)
        .await
        .context("forward a port")?;
    kubelet.stop()?;
    cluster.forget(place.node()).await
}

/// Writes its log, says that it is done, and sends bytes to whoever calls.
fn talkative(node: &str) -> Value {
    let script = format!(
        "yes '{LINE}' | head -c {BYTES}; echo; echo '{LAST_LINE}'; exec nc -ll -p {PORT} -e head -c {BYTES} /dev/zero"
    );
    let container = json!({
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
    });
    pod::without_service_account(pod::bound(pod::with_containers(NAME, &[container]), node))
}

async fn follow_logs(kubelet: &Kubelet, cluster: &Cluster, samples: &mut Samples) -> Result<()> {
    for _ in 0..LOGS {
        let command = cluster
            .kubectl_command(&["logs", "--follow", "--namespace", NAMESPACE, NAME])
            .await?;
        let took = tokio::task::spawn_blocking(move || follow_to_the_last_line(command)).await??;
        samples.record(Row::LogsFollowed, kubelet.column(), took.as_secs_f64());
    }
    Ok(())
}

fn follow_to_the_last_line(mut command: Command) -> Result<Duration> {
    let begin = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut kubectl = spawn_dying_with_us(command)?;
    let output = kubectl.stdout.take().context("kubectl has no output")?;
    let mut output = BufReader::with_capacity(1 << 20, output);
    let (mut line, mut bytes) = (Vec::new(), 0);
    loop {
        line.clear();
        let length = output.read_until(b'\n', &mut line)?;
        ensure!(length > 0, "kubectl ended after {bytes} bytes");
        bytes += length;
        if line.trim_ascii() == LAST_LINE.as_bytes() {
            break;
        }
    }
    let took = begin.elapsed();
    kubectl.kill()?;
    kubectl.wait()?;
    ensure!(bytes > BYTES, "the log has {bytes} bytes only");
    Ok(took)
}

async fn enter(kubelet: &Kubelet, cluster: &Cluster, samples: &mut Samples) -> Result<()> {
    for _ in 0..ENTRIES {
        let begin = Instant::now();
        let said = cluster
            .kubectl(&["exec", "--namespace", NAMESPACE, NAME, "--", "echo", "here"])
            .await?;
        samples.record(
            Row::Entered,
            kubelet.column(),
            begin.elapsed().as_secs_f64() * 1e3,
        );
        ensure!(said.trim() == "here", "the container said {said:?}");
    }
    Ok(())
}

async fn forward(scope: &Scope, kubelet: &Kubelet, cluster: &Cluster, samples: &mut Samples) -> Result<()> {
    let port = scope.port()?;
    let ports = format!("{port}:{PORT}");
    let command = cluster
        .kubectl_command(&["port-forward", "--namespace", NAMESPACE, NAME, &ports])
        .await?;
    let forwarder = scope.spawn(&format!("port-forward-{}", kubelet.node()), command)?;
    wait::wait_until("the port is forwarded", DEADLINE, || async {
        TcpStream::connect(("127.0.0.1", port))
            .map(drop)
            .map_err(Into::into)
    })
    .await?;
    for _ in 0..FORWARDS {
        let took = tokio::task::spawn_blocking(move || receive(port)).await??;
        samples.record(Row::PortForwarded, kubelet.column(), took.as_secs_f64());
    }
    drop(forwarder);
    Ok(())
}

fn receive(port: u16) -> Result<Duration> {
    let begin = Instant::now();
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        bytes += length;
    }
    ensure!(bytes == BYTES, "{bytes} bytes came");
    Ok(begin.elapsed())
}
