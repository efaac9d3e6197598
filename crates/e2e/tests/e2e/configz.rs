//! The configuration in effect is upstream's, field by field: the test bed's kubelet is the truth.
//!
//! Two views of it: `/configz` of a running kubelet, and the configuration that a kubelet logs before it does anything,
//! which shows the default sets without the switches that keep a running one inside its scope.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rubelet_config::kubelet_configuration::HostFacts;
use rubelet_config::load::{Invocation, load};
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::wait::wait_until;
use rubelet_testbed::{Program, Scope, peer};
use serde_json::{Value, json};

use crate::oracle_ours::{Differences, RealFiles};

const DEADLINE: Duration = Duration::from_secs(60);
const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// What upstream changes in the object after reading it; ours shows what was read.
const CHANGED_AT_START: [(&str, &str); 2] = [
    // Upstream makes a self-signed pair in --cert-dir when no pair is configured, and writes its paths into the object.
    ("tlsCertFile", "made at start"),
    ("tlsPrivateKeyFile", "made at start"),
];

/// Our view of the same command line. Whether this machine's cgroups are good enough is not the question here.
fn ours(arguments: &[String]) -> Result<Value> {
    match load(arguments, &RealFiles, HostFacts { cgroup_v2: true })
        .map_err(|error| anyhow::anyhow!("{error}"))?
    {
        Invocation::Run(settings) => Ok(settings.configz_json()),
        Invocation::Print(text) => anyhow::bail!("{arguments:?} printed {text}"),
    }
}

fn assert_same(arguments: &[String], mut upstream: Value, changed_at_start: &[(&str, &str)]) -> Result<()> {
    let ours = ours(arguments)?;
    for (field, reason) in changed_at_start {
        let known = upstream.get(*field).is_some() && ours.get(*field).is_none();
        ensure!(
            known,
            "{field} is no longer changed by upstream ({reason}): compare it too"
        );
        upstream.as_object_mut().and_then(|object| object.remove(*field));
    }
    ensure!(
        upstream.as_object().is_some_and(|object| object.len() > 60),
        "upstream showed too little: {upstream}"
    );
    let mut differences = Differences::default();
    differences.compare("none", &json!(arguments), &upstream, &ours);
    differences.assert_none();
    Ok(())
}

/// Starts upstream's kubelet with the arguments and reads the configuration that it logs. The kubelet ends by itself: asking
/// to leave on contention for a lock without naming one is refused right after the configuration was logged and checked.
fn logged_configuration(scope: &Scope, name: &str, arguments: &[String]) -> Result<Value> {
    let mut command = Command::new(Program::Kubelet.path()?);
    command.args(arguments).arg("--exit-on-lock-contention");
    let mut kubelet = scope.spawn(name, command)?;
    let status = kubelet.wait(DEADLINE)?;
    ensure!(
        !status.success(),
        "the kubelet was meant to refuse its command line"
    );
    let log = std::fs::read_to_string(kubelet.log()).context("read the kubelet's log")?;
    let from = log
        .find("\"Effective KubeletConfiguration\" config=<")
        .context("the kubelet logged no configuration")?;
    let lines = log[from..]
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('\t'));
    let yaml: Vec<&str> = lines.filter_map(|line| line.strip_prefix('\t')).collect();
    // Our own reader of configuration files is what is under test elsewhere; this text is plain YAML of upstream's making.
    serde_saphyr::from_str(&yaml.join("\n")).context("the logged configuration is no YAML")
}

fn words(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn defaults_without_a_file_are_upstreams() -> Result<()> {
    let scope = Scope::new("configz_defaults_without_a_file")?;
    let arguments = words(&[]);
    assert_same(
        &arguments,
        logged_configuration(&scope, "kubelet", &arguments)?,
        &[],
    )
}

#[test]
fn defaults_with_a_file_are_upstreams() -> Result<()> {
    let scope = Scope::new("configz_defaults_with_a_file")?;
    let file = scope.path("kubelet.yaml");
    std::fs::write(&file, HEAD)?;
    let arguments = vec![format!("--config={}", file.display())];
    assert_same(
        &arguments,
        logged_configuration(&scope, "kubelet", &arguments)?,
        &[],
    )
}

/// Switches that keep a running kubelet inside its scope and off the machine's network rules and pod cgroups.
fn confined(scope: &Scope, containerd: &Containerd) -> Result<(Vec<String>, u16)> {
    let port = scope.port()?;
    let arguments = vec![
        format!("--root-dir={}", scope.path("kubelet").display()),
        format!("--cert-dir={}", scope.path("pki").display()),
        format!("--volume-plugin-dir={}", scope.path("volume-plugins").display()),
        format!("--container-runtime-endpoint={}", containerd.endpoint()),
        format!("--port={port}"),
        format!("--read-only-port={}", scope.port()?),
        format!("--healthz-port={}", scope.port()?),
        format!("--hostname-override=node-{}", scope.id()),
    ]
    .into_iter()
    .chain(words(&[
        "--address=127.0.0.1",
        "--fail-cgroupv1=false",
        "--cgroup-driver=cgroupfs",
        "--cgroups-per-qos=false",
        "--enforce-node-allocatable=",
        "--make-iptables-util-chains=false",
        "--oom-score-adj=0",
    ]))
    .collect();
    Ok((arguments, port))
}

/// Upstream's `/configz`, of a kubelet that lives until the end of this call.
async fn configz(scope: &Scope, arguments: &[String], port: u16) -> Result<Value> {
    let mut command = peer::kubelet()?;
    command.args(arguments);
    let mut kubelet = scope.spawn("kubelet", command)?;
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
    // The kubelet signs its own certificate, in the scope's directory.
    config.accept_invalid_certs = true;
    let client = kube::Client::try_from(config)?;
    let answer = wait_until("the kubelet's /configz", DEADLINE, || {
        let running = kubelet.check_running();
        let client = client.clone();
        async move {
            running?;
            let request = http::Request::get("/configz").body(Vec::new())?;
            Ok(client.request::<Value>(request).await?)
        }
    })
    .await?;
    // What it made is in the scope; there is nothing to wait for.
    drop(kubelet);
    Ok(answer["kubeletconfig"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn configz_without_a_file_is_upstreams() -> Result<()> {
    let scope = Scope::new("configz_without_a_file")?;
    let containerd = Containerd::start(&scope, Flavour::V2)?;
    let (arguments, port) = confined(&scope, &containerd)?;
    let upstream = configz(&scope, &arguments, port).await?;
    assert_same(&arguments, upstream, &CHANGED_AT_START)?;
    containerd.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn configz_with_a_file_is_upstreams() -> Result<()> {
    let scope = Scope::new("configz_with_a_file")?;
    let containerd = Containerd::start(&scope, Flavour::V2)?;
    // Alone, without an API server, a kubelet can ask nobody who a caller is.
    let access = "authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n";
    let more = "maxPods: 33\nfeatureGates: {PodAndContainerStatsFromCRI: true}\nclusterDNS: [10.0.0.10]\nclusterDomain: cluster.local\n";
    let file = scope.path("kubelet.yaml");
    std::fs::write(&file, format!("{HEAD}{access}{more}"))?;
    let (mut arguments, port) = confined(&scope, &containerd)?;
    arguments.extend([
        format!("--config={}", file.display()),
        "--feature-gates=EventedPLEG=false".to_owned(),
    ]);
    let upstream = configz(&scope, &arguments, port).await?;
    assert_same(&arguments, upstream, &CHANGED_AT_START)?;
    containerd.stop()
}

#[test]
fn the_kubelet_binary_is_the_version_we_follow() -> Result<()> {
    let scope = Scope::new("configz_version")?;
    let mut command = Command::new(Program::Kubelet.path()?);
    command.arg("--version");
    let mut kubelet = scope.spawn("kubelet", command)?;
    ensure!(kubelet.wait(DEADLINE)?.success(), "kubelet --version failed");
    let text = std::fs::read_to_string(kubelet.log())?;
    assert_eq!(
        text.trim(),
        format!("Kubernetes {}", rubelet_config::version::KUBERNETES_VERSION)
    );
    Ok(())
}
