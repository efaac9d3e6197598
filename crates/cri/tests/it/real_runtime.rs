//! What the client must do with every containerd, whichever version it is; the tests of each version call these.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use prometheus::Registry;
use rubelet_cri::{CriClient, CriMetrics, CriOptions};
use rubelet_ports::{
    ImageReader, ImageWriter, PullProgress, RuntimeError, RuntimeErrorKind as Kind, RuntimeReader,
    RuntimeWriter,
};
use rubelet_testbed::Scope;
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::wait::wait_for;
use rubelet_wire::cri::v1;
use rustix::process::{Pid, Signal, kill_process};

const DEADLINE: Duration = Duration::from_secs(60);
const SECRET: &str = "hunter2-hunter2";

/// What differs between versions.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) version: String,
    pub(crate) has_runtime_config: bool,
    pub(crate) has_events: bool,
}

async fn connect(options: &CriOptions) -> Result<CriClient> {
    Ok(CriClient::connect(options, &CriMetrics::register(&Registry::new())?).await?)
}

/// Present or unimplemented, and nothing else.
fn is_there<T>(answer: Result<T, RuntimeError>) -> Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == Kind::Unimplemented => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn kind<T>(answer: Result<T, RuntimeError>) -> Option<Kind> {
    answer.err().map(|error| error.kind())
}

async fn until_answered(client: &CriClient) -> Result<()> {
    let answered = async {
        while client.version().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, answered)
        .await
        .context("the client does not find the runtime")
}

/// All that can be asked of a runtime that has no pods.
pub(crate) async fn readers(test: &str, flavour: Flavour) -> Result<Seen> {
    let scope = Scope::new(test)?;
    let containerd = Containerd::start(&scope, flavour)?;
    // No containerd streams lists yet: this asks, and falls back.
    let options = CriOptions {
        list_streaming: true,
        ..CriOptions::new(containerd.endpoint())
    };
    let client = connect(&options).await?;

    let version = client.version().await?;
    ensure!(
        version.runtime_name == "containerd" && version.runtime_api_version == "v1",
        "{version:?}"
    );
    let status = client.status(true).await?;
    let conditions = status.status.context("no status")?.conditions;
    ensure!(
        conditions.iter().filter(|condition| condition.status).count() >= 2,
        "{conditions:?}"
    );
    ensure!(client.list_pod_sandboxes(None).await?.is_empty());
    ensure!(client.list_containers(None).await?.is_empty());
    ensure!(client.list_container_stats(None).await?.is_empty());
    ensure!(client.list_pod_sandbox_stats(None).await?.is_empty());
    ensure!(!client.image_fs_info().await?.image_filesystems.is_empty());
    ensure!(client.ingests().await?.is_empty());

    let images = client.list_images(None).await?;
    let image = images.first().context("the test bed imports one image")?;
    let spec = |name: &str| v1::ImageSpec {
        image: name.to_owned(),
        ..v1::ImageSpec::default()
    };
    ensure!(client.image_status(spec(&image.id), true).await?.image.as_ref() == Some(image));
    ensure!(
        client
            .image_status(spec("registry.example/none:1"), false)
            .await?
            .image
            .is_none()
    );
    refusals(&client).await?;

    let mut events = client.container_events();
    // Only the one without events has something to say.
    let patience = match flavour {
        Flavour::Debian => DEADLINE,
        Flavour::V2 | Flavour::V2DebianRunc => Duration::from_millis(500),
    };
    let first = tokio::time::timeout(patience, events.next()).await;
    let has_events = match first {
        // Nothing happens, so nothing comes.
        Err(_) => true,
        Ok(Some(answer)) => is_there(answer)?,
        Ok(None) => anyhow::bail!("the stream of events ended by itself"),
    };
    let has_runtime_config = is_there(client.runtime_config().await)?;
    Ok(Seen {
        version: version.runtime_version.trim_start_matches('v').to_owned(),
        has_runtime_config,
        has_events,
    })
}

/// What a real runtime says about things that are not there.
async fn refusals(client: &CriClient) -> Result<()> {
    ensure!(kind(client.container_status("none", false).await) == Some(Kind::NotFound));
    ensure!(kind(client.pod_sandbox_status("none", false).await) == Some(Kind::NotFound));
    ensure!(kind(client.start_container("none").await).is_some());
    client
        .remove_container("none")
        .await
        .context("removing what is not there is no error")?;
    client
        .remove_pod_sandbox("none")
        .await
        .context("removing what is not there is no error")?;
    let image = v1::ImageSpec {
        image: "registry.example/none:1".to_owned(),
        ..v1::ImageSpec::default()
    };
    client
        .remove_image(image.clone())
        .await
        .context("removing what is not there is no error")?;
    let auth = v1::AuthConfig {
        username: "me".to_owned(),
        password: SECRET.to_owned(),
        ..Default::default()
    };
    let error = client
        .pull_image(image, Some(auth), None)
        .await
        .err()
        .context("there is no such registry")?;
    ensure!(
        !format!("{error} {error:?}").contains(SECRET),
        "a secret shows in the error"
    );
    ensure!(error.is_retryable(), "{error}");
    Ok(())
}

/// The runtime dies under its client and comes back.
pub(crate) async fn kill_and_return(test: &str, flavour: Flavour) -> Result<()> {
    let scope = Scope::new(test)?;
    let mut containerd = Containerd::start(&scope, flavour)?;
    let client = connect(&CriOptions::new(containerd.endpoint())).await?;
    containerd.kill()?;
    ensure!(kind(client.version().await) == Some(Kind::Unavailable));
    containerd.start_again()?;
    until_answered(&client).await
}

/// Lets the daemon go on even when the test fails.
struct Frozen(Pid);

impl Drop for Frozen {
    fn drop(&mut self) {
        // The daemon may be gone already, which is as good.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// The signal reaches the threads one by one, and the last of them could still answer.
fn all_threads_stopped(pid: Pid) -> Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))? {
        let stat = std::fs::read_to_string(thread?.path().join("stat"))?;
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, fields)| fields.chars().next());
        ensure!(state == Some('T'), "a thread is in state {state:?}");
    }
    Ok(())
}

/// The runtime's process is stopped: its socket is there and is not read.
pub(crate) async fn freeze(test: &str, flavour: Flavour) -> Result<()> {
    let scope = Scope::new(test)?;
    let containerd = Containerd::start(&scope, flavour)?;
    let options = CriOptions {
        request_timeout: Duration::from_secs(1),
        liveness_interval: Duration::from_millis(100),
        ..CriOptions::new(containerd.endpoint())
    };
    let client = CriClient::lazy(&options, &CriMetrics::register(&Registry::new())?)?;
    until_answered(&client).await?;
    let pid = containerd
        .pid()
        .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        .context("it runs")?;
    kill_process(pid, Signal::STOP)?;
    let frozen = Frozen(pid);
    wait_for("every thread of containerd stopped", DEADLINE, || {
        all_threads_stopped(pid)
    })?;
    ensure!(kind(client.list_containers(None).await) == Some(Kind::DeadlineExceeded));
    let image = v1::ImageSpec {
        image: "registry.example/none:1".to_owned(),
        ..v1::ImageSpec::default()
    };
    let pull = tokio::time::timeout(DEADLINE, client.pull_image(image, None, None)).await;
    ensure!(kind(pull.context("the pull waits for ever")?) == Some(Kind::DeadlineExceeded));
    drop(frozen);
    until_answered(&client).await
}
