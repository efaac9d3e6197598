//! `make run`: a private container runtime and rubelet on it, in the foreground, gone without a trace after Ctrl-C.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::containerd::{Containerd, Flavour};
use crate::process::spawn_dying_with_us;
use crate::{Scope, wait};

/// Rubelet's own drain deadline and a little.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// Runs until Ctrl-C, SIGTERM, or the end of rubelet.
pub fn run(rubelet: &Path) -> Result<()> {
    let rubelet = rubelet
        .canonicalize()
        .with_context(|| format!("{} is not built", rubelet.display()))?;
    let scope = Scope::new("run")?;
    println!("run: starting a private containerd in {}", scope.dir().display());
    let containerd = Containerd::start(&scope, Flavour::Debian)?;
    let config = scope.path("rubelet.yaml");
    fs::write(&config, configuration(&containerd.endpoint()))?;
    println!("run: starting rubelet with {}; Ctrl-C ends it", config.display());
    let mut command = Command::new(&rubelet);
    command
        .arg("--config")
        .arg(&config)
        .arg("--root-dir")
        .arg(scope.path("root"))
        .stdin(Stdio::null());
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(supervise(command));
    println!("run: cleaning up");
    drop(containerd);
    drop(scope);
    result
}

async fn supervise(command: Command) -> Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut child = spawn_dying_with_us(command).context("start rubelet")?;
    loop {
        tokio::select! {
            // Both are cancel-safe: a signal that nobody waits for is kept by tokio.
            _ = tokio::signal::ctrl_c() => break,
            _ = terminate.recv() => break,
            () = tokio::time::sleep(Duration::from_millis(100)) => {
                if let Some(status) = child.try_wait()? {
                    bail!("rubelet ended by itself with {status}");
                }
            }
        }
    }
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .context("rubelet has no pid")?;
    kill_process(pid, Signal::TERM)?;
    let status = wait::wait_for("rubelet ends", STOP_DEADLINE, || {
        child.try_wait()?.context("it still runs")
    })?;
    println!("run: rubelet ended with {status}");
    Ok(())
}

fn configuration(endpoint: &str) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\n\
         kind: KubeletConfiguration\n\
         containerRuntimeEndpoint: {endpoint}\n\
         # This machine may still have cgroup v1; upstream's default refuses it.\n\
         failCgroupV1: false\n"
    )
}
