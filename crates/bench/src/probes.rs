//! The rows of probes: many that ask over the network, and some that run commands.
//!
//! When a probe came is noted where it arrives, in the pod, so that both kubelets are measured alike. A probe is late by how
//! much longer than its period it took, counted from the earliest of its runs: what every run takes is not in it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rubelet_ports::{RuntimeReader as _, RuntimeWriter as _};
use serde_json::{Value, json};

use super::budget::Row;
use super::kubelet::Kubelet;
use super::runtime::{DEADLINE, Runtime};
use super::samples::Samples;
use super::{Options, pod};
use rubelet_testbed::http;
use rubelet_testbed::images::{BUSYBOX, PAUSE, SERVER};

const PODS: usize = 10;
/// Beside the server of each pod; each has two probes.
const CONTAINERS: usize = 25;
/// Probes of the network in a second.
pub(super) const REQUESTS_PER_SECOND: usize = PODS * CONTAINERS * 2;
/// Probes that run a command, in a second. A command costs the runtime some 50 ms of a processor.
pub(super) const COMMANDS_PER_SECOND: usize = 5;
const PERIOD_US: f64 = 1e6;
/// From the last start to the beginning of the measurement.
const REST: Duration = Duration::from_secs(5);
const FIRST_DOOR: usize = 10_000;
const START_DEADLINE: Duration = Duration::from_secs(600);

/// Both groups of probes, one after the other; the kubelet has no pod before and after.
pub(super) async fn measure(
    options: &Options,
    kubelet: &mut Kubelet,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let names: Vec<String> = (0..PODS).map(|number| format!("probed-{number}")).collect();
    start(kubelet, &names, request_pod).await?;
    measure_requests(options, kubelet, runtime, samples)
        .await
        .context("requests")?;
    end(kubelet, runtime, &names).await?;
    let names = ["commands".to_owned()];
    start(kubelet, &names, command_pod).await?;
    measure_commands(options, kubelet, runtime, samples)
        .await
        .context("commands")?;
    end(kubelet, runtime, &names).await
}

async fn start(kubelet: &mut Kubelet, names: &[String], manifest: fn(&str) -> Value) -> Result<()> {
    for name in names {
        kubelet.stage(name, &manifest(name).to_string())?;
        kubelet.put(name)?;
    }
    // Hundreds of containers take their time on a busy machine; how long is measured elsewhere.
    let until = Instant::now() + START_DEADLINE;
    loop {
        let pods = kubelet.pods()?;
        let ready = pods.iter().filter(|pod| pod.is_ready()).count();
        if ready == names.len() {
            break;
        }
        ensure!(
            Instant::now() < until,
            "{ready} of {} pods are ready",
            names.len()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    kubelet.settle(REST).await
}

async fn end(kubelet: &Kubelet, runtime: &mut Runtime, names: &[String]) -> Result<()> {
    for name in names {
        kubelet.take(name)?;
    }
    for name in names {
        kubelet.wait_until_gone(name).await?;
    }
    // Upstream's kubelet stops serving a pod before its containers have ended; hundreds of them keep the runtime busy.
    let until = Instant::now() + START_DEADLINE;
    while let running @ 1.. = runtime.running().await?.len() {
        ensure!(Instant::now() < until, "{running} containers still run");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    runtime.remove_everything().await
}

async fn measure_requests(
    options: &Options,
    kubelet: &Kubelet,
    runtime: &Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let column = kubelet.column();
    let addresses = addresses(runtime).await?;
    ensure!(
        addresses.len() == PODS,
        "{} pods have an address",
        addresses.len()
    );
    for address in &addresses {
        arrivals(address)?;
    }
    let (begin, cpu_before) = (Instant::now(), kubelet.cpu_seconds()?);
    tokio::time::sleep(options.steady()).await;
    let (cpu, took) = (kubelet.cpu_seconds()? - cpu_before, begin.elapsed().as_secs_f64());
    let mut probes = Vec::new();
    for address in &addresses {
        probes.extend(arrivals(address)?.into_values());
    }
    ensure!(
        probes.len() == REQUESTS_PER_SECOND,
        "{} probes came of {REQUESTS_PER_SECOND}",
        probes.len()
    );
    let runs: usize = probes.iter().map(Vec::len).sum();
    let late = lateness_ms(&probes);
    samples.record(Row::RequestsRate, column, runs as f64 / took);
    samples.record(Row::RequestsLate, column, percentile(&late, 99.0));
    samples.record(Row::RequestsLatest, column, percentile(&late, 100.0));
    samples.record(Row::RequestsCpu, column, cpu / took * 100.0);
    Ok(())
}

async fn measure_commands(
    options: &Options,
    kubelet: &Kubelet,
    runtime: &Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let column = kubelet.column();
    let containers = runtime.running().await?;
    let call = async |words: &[&str]| {
        let mut outputs = Vec::new();
        for id in &containers {
            let command = words.iter().map(|word| (*word).to_owned()).collect();
            let answer = runtime.client().exec_sync(id, command, Some(DEADLINE)).await?;
            outputs.push(String::from_utf8_lossy(&answer.stdout).into_owned());
        }
        anyhow::Ok(outputs)
    };
    call(&["sh", "-c", ": > /tmp/runs"]).await?;
    let (begin, cpu_before) = (Instant::now(), kubelet.cpu_seconds()?);
    tokio::time::sleep(options.steady()).await;
    let (cpu, took) = (kubelet.cpu_seconds()? - cpu_before, begin.elapsed().as_secs_f64());
    let outputs = call(&["cat", "/tmp/runs"]).await?;
    let probes: Vec<Vec<f64>> = outputs.iter().map(|text| uptimes_us(text)).collect();
    let runs: usize = probes.iter().map(Vec::len).sum();
    samples.record(Row::CommandsRate, column, runs as f64 / took);
    samples.record(Row::CommandsLate, column, percentile(&lateness_ms(&probes), 99.0));
    samples.record(Row::CommandsCpu, column, cpu / took * 100.0);
    Ok(())
}

/// Where the pods' servers are.
async fn addresses(runtime: &Runtime) -> Result<Vec<String>> {
    let mut addresses = Vec::new();
    for sandbox in runtime.client().list_pod_sandboxes(None).await? {
        let answer = runtime.client().pod_sandbox_status(&sandbox.id, false).await?;
        let network = answer.status.and_then(|status| status.network);
        let ip = network.map(|network| network.ip).unwrap_or_default();
        if !ip.is_empty() {
            addresses.push(format!("{ip}:8080"));
        }
    }
    Ok(addresses)
}

/// When each probe came since the last question, in microseconds.
fn arrivals(address: &str) -> Result<BTreeMap<String, Vec<f64>>> {
    let answer = http::get(address, "/arrivals")?;
    ensure!(answer.status == 200, "/arrivals answered {}", answer.status);
    let text = answer.text();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    Ok(lines
        .map(|(name, times)| {
            let times = times.split(' ').filter_map(|time| time.parse().ok());
            (format!("{address} {name}"), times.collect())
        })
        .collect())
}

/// The first number of every line, which is in seconds.
fn uptimes_us(text: &str) -> Vec<f64> {
    let firsts = text.lines().filter_map(|line| line.split(' ').next());
    firsts
        .filter_map(|first| first.parse::<f64>().ok())
        .map(|seconds| seconds * 1e6)
        .collect()
}

/// How late every run was, by the grid of its probe's earliest run.
fn lateness_ms(probes: &[Vec<f64>]) -> Vec<f64> {
    let mut late = Vec::new();
    for runs in probes {
        let Some(first) = runs.first() else { continue };
        let offsets: Vec<f64> = runs
            .iter()
            .map(|run| {
                let periods = ((run - first) / PERIOD_US).round();
                run - first - periods * PERIOD_US
            })
            .collect();
        let earliest = offsets.iter().copied().fold(f64::INFINITY, f64::min);
        late.extend(offsets.iter().map(|offset| (offset - earliest) / 1e3));
    }
    late
}

fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

fn probed(mut container: Value, readiness: Value, liveness: Option<Value>) -> Value {
    let complete = |mut probe: Value| {
        probe["periodSeconds"] = json!(1);
        probe["timeoutSeconds"] = json!(5);
        probe["failureThreshold"] = json!(60);
        probe
    };
    container["readinessProbe"] = complete(readiness);
    if let Some(liveness) = liveness {
        container["livenessProbe"] = complete(liveness);
    }
    container["imagePullPolicy"] = json!("Never");
    container
}

/// The probes of a pod take turns: HTTP, TCP, gRPC.
fn request(number: usize) -> Value {
    match number % 3 {
        0 => json!({ "httpGet": { "port": 8080, "path": format!("/arrive/http-{number}") } }),
        1 => json!({ "tcpSocket": { "port": FIRST_DOOR + number / 3 } }),
        _ => json!({ "grpc": { "port": 9000, "service": format!("arrive-{number}") } }),
    }
}

fn request_pod(name: &str) -> Value {
    let doors = (CONTAINERS * 2).div_ceil(3).to_string();
    let server = json!({
        "name": "server", "image": SERVER, "imagePullPolicy": "Never",
        "args": ["serve", "--http", "8080", "--grpc", "9000", "--doors", doors],
    });
    let mut containers = vec![server];
    for number in 0..CONTAINERS {
        let container = json!({ "name": format!("c{number}"), "image": PAUSE });
        let (readiness, liveness) = (request(number * 2), request(number * 2 + 1));
        containers.push(probed(container, readiness, Some(liveness)));
    }
    pod::with_containers(name, &containers)
}

fn command_pod(name: &str) -> Value {
    let command = json!({ "exec": { "command": ["sh", "-c", "cat /proc/uptime >> /tmp/runs"] } });
    let containers = (0..COMMANDS_PER_SECOND).map(|number| {
        let container = json!({
            "name": format!("c{number}"), "image": BUSYBOX,
            "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 86400 & wait"],
        });
        probed(container, command.clone(), None)
    });
    pod::with_containers(name, &containers.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_counts_from_the_earliest_run() {
        let check = |runs: &[f64], expected: &[f64]| {
            let runs: Vec<f64> = runs.iter().map(|ms| ms * 1e3).collect();
            let found: Vec<f64> = lateness_ms(&[runs]).iter().map(|ms| ms.round()).collect();
            assert_eq!(found, expected);
        };
        check(&[], &[]);
        check(&[500.0], &[0.0]);
        check(&[500.0, 1510.0, 2500.0], &[0.0, 10.0, 0.0]);
        // The first was late itself, and one was left out.
        check(&[520.0, 1500.0, 3501.0], &[20.0, 0.0, 1.0]);
    }

    #[test]
    fn percentiles() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&values, 99.0), 198.0);
        assert_eq!(percentile(&values, 100.0), 200.0);
        assert_eq!(percentile(&[7.0], 99.0), 7.0);
    }

    #[test]
    fn every_probe_has_a_place_of_its_own() {
        let pod = request_pod("a");
        let text = pod.to_string();
        for part in ["/arrive/http-48", "arrive-47", "\"port\":10016"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(
            pod["spec"]["containers"].as_array().map(Vec::len),
            Some(CONTAINERS + 1)
        );
    }
}
