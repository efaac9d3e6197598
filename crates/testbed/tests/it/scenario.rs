//! What every containerd must do, whichever version it is; the tests of each version call these.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rubelet_testbed::bare_pod::{BarePod, connect, sandbox_config};
use rubelet_testbed::containerd::{Containerd, Flavour, OTHER_HANDLER};
use rubelet_testbed::node_network::NodeNetwork;
use rubelet_testbed::scope::{sweep, traces_of};
use rubelet_testbed::wait::wait_for;
use rubelet_testbed::{Scope, http, images};
use tokio::runtime::Runtime;

const DEADLINE: Duration = Duration::from_secs(60);
/// Tells the re-executed test binary that it is the one to be killed.
const CHILD: &str = "RUBELET_TEST_TO_BE_KILLED";

/// A pod is run, looked at from all sides, stopped, and nothing of it is left; then nothing of containerd is left.
pub(crate) async fn pod_leaves_no_trace(test: &str, flavour: Flavour) -> Result<()> {
    let scope = Scope::new(test)?;
    let dir = scope.dir().to_owned();
    let containerd = Containerd::start(&scope, flavour)?;
    containerd.import(&images::server()?)?;
    let client = connect(&containerd).await?;
    let mut pod = BarePod::run(&client, &scope, "web").await?;
    pod.start_container("server", images::SERVER, &["serve", "--http", "8080"])
        .await?;
    look_at(&pod).await?;

    let alive = scope.traces();
    for kind in ["process", "mount", "link", "cgroup"] {
        ensure!(
            alive.iter().any(|trace| trace.starts_with(kind)),
            "no {kind} of a running pod in {alive:#?}"
        );
    }
    // The one version whose shims listen outside of its directories, which the scope must therefore know about.
    if flavour == Flavour::Debian {
        ensure!(
            alive
                .iter()
                .any(|trace| trace.starts_with("file /run/containerd/s/")),
            "no shim's socket in {alive:#?}"
        );
    }
    pod.remove().await?;
    containerd.stop()?;
    // The network's bridge and the pods' common cgroup are the scope's, not the pod's; so are its files.
    let is_of_scope = |trace: &String| {
        ["link rb-", "directory", "cgroup"]
            .iter()
            .any(|kind| trace.starts_with(kind))
    };
    // A shim whose last container is gone ends in its own time.
    wait_for("nothing is left of the removed pod", DEADLINE, || {
        let mut rest = scope.traces();
        rest.retain(|trace| !is_of_scope(trace));
        ensure!(rest.is_empty(), "it left {rest:#?}");
        let containers = cgroups_of_containers(scope.id());
        ensure!(containers.is_empty(), "it left {containers:#?}");
        Ok(())
    })?;
    drop(scope);
    let rest = traces_of(&dir);
    ensure!(rest.is_empty(), "the scope left {rest:#?}");
    Ok(())
}

async fn look_at(pod: &BarePod) -> Result<()> {
    let line = pod.wait_for_log("server", "http on").await?;
    ensure!(
        line.contains(" stdout F http on 0.0.0.0:8080"),
        "the log's line is {line:?}"
    );
    let hello = pod
        .exec("server", &["sh", "-c", "echo hello; echo problem >&2; exit 3"])
        .await?;
    ensure!(
        (hello.exit_code, hello.stdout.as_str(), hello.stderr.as_str()) == (3, "hello\n", "problem\n"),
        "{hello:?}"
    );
    let host = pod.exec("server", &["hostname"]).await?;
    ensure!(host.stdout == "web\n", "{host:?}");
    let answer = http::get(&format!("{}:8080", pod.ip().await?), "/status/202")?;
    ensure!(answer.status == 202 && answer.text() == "202\n", "{answer:?}");
    Ok(())
}

/// Everything below the cgroups of the scope's pods.
fn cgroups_of_containers(id: &str) -> Vec<PathBuf> {
    let directories = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect()
    };
    let mut found = Vec::new();
    for hierarchy in directories(Path::new("/sys/fs/cgroup")) {
        for pod in directories(&hierarchy.join(format!("rubelet-test-{id}"))) {
            found.extend(directories(&pod));
        }
    }
    found
}

/// A pod goes on while containerd is restarted and while it is dead, and is known afterwards.
pub(crate) async fn pod_survives_containerd(test: &str, flavour: Flavour) -> Result<()> {
    let scope = Scope::new(test)?;
    let mut containerd = Containerd::start(&scope, flavour)?;
    containerd.import(&images::server()?)?;
    let client = connect(&containerd).await?;
    let mut pod = BarePod::run(&client, &scope, "web").await?;
    pod.start_container("server", images::SERVER, &[]).await?;
    pod.wait_for_log("server", "http on").await?;
    let address = format!("{}:8080", pod.ip().await?);
    containerd.kill()?;
    ensure!(http::get(&address, "/")?.status == 200);
    containerd.start_again()?;
    containerd.restart()?;
    ensure!(
        http::get(&address, "/hits")?.text().starts_with("1 /\n"),
        "it is not the same server any more"
    );
    let client = connect(&containerd).await?;
    drop(client);
    rubelet_testbed::wait::wait_until("the pod is known again", DEADLINE, async || {
        pod.container_status("server").await.map(|_| ())
    })
    .await?;
    pod.remove().await
}

/// The other runtime handler runs a pod that the default one does not know.
pub(crate) async fn other_handler_runs_a_pod(test: &str, flavour: Flavour) -> Result<()> {
    let scope = Scope::new(test)?;
    let containerd = Containerd::start(&scope, flavour)?;
    containerd.import(&images::busybox()?)?;
    let client = connect(&containerd).await?;
    let mut pod = BarePod::run_by(&client, sandbox_config(&scope, "other")?, OTHER_HANDLER).await?;
    pod.start_container(
        "shell",
        images::BUSYBOX,
        &["sh", "-c", "echo started; sleep 1000"],
    )
    .await?;
    pod.wait_for_log("shell", "started").await?;
    let state_of = |handler: &str| {
        containerd
            .dir()
            .join(handler)
            .join("k8s.io")
            .join(pod.sandbox_id())
    };
    ensure!(state_of(OTHER_HANDLER).exists() && !state_of("runc").exists());
    pod.remove().await
}

/// The body of a test that another test starts in a process of its own and kills: it runs a pod and says so.
async fn run_until_killed(flavour: Flavour) -> Result<()> {
    let scope = Scope::new("to-be-killed")?;
    let network = NodeNetwork::create(&scope, "node")?;
    let containerd = Containerd::start_in(&scope, flavour, Some(network.namespaces()))?;
    containerd.import(&images::server()?)?;
    let client = connect(&containerd).await?;
    let mut pod = BarePod::run(&client, &scope, "web").await?;
    pod.start_container("server", images::SERVER, &["serve", "--on-term", "ignore"])
        .await?;
    pod.wait_for_log("server", "http on").await?;
    println!("\nrunning in {}", scope.dir().display());
    std::io::stdout().flush()?;
    std::future::pending().await
}

/// A test process that is killed leaves a pod behind, and the next sweep removes all of it.
///
/// The test runs itself once more as the one to be killed; `test` is its name in this binary.
pub(crate) fn sweep_removes_what_a_killed_test_left(test: &str, flavour: Flavour) -> Result<()> {
    if std::env::var_os(CHILD).is_some() {
        return Runtime::new()?.block_on(run_until_killed(flavour));
    }
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .context("start the test to be killed")?;
    let output = BufReader::new(child.stdout.take().context("no output of the child")?);
    let dir = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("running in ").map(PathBuf::from));
    let Some(dir) = dir else {
        bail!("the child ended early: {:?}", child.wait()?)
    };
    let alive = traces_of(&dir);
    child.kill()?;
    child.wait()?;
    for kind in ["process", "mount", "link", "cgroup", "directory"] {
        ensure!(
            alive.iter().any(|trace| trace.starts_with(kind)),
            "no {kind} in {alive:#?}"
        );
    }
    // A test beside this one may be sweeping it already: then it is a matter of waiting.
    wait_for("nothing is left of the killed test", DEADLINE, || {
        sweep();
        let rest = traces_of(&dir);
        ensure!(rest.is_empty(), "there are {rest:#?}");
        Ok(())
    })
}
