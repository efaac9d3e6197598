//! Where one control plane keeps its files, and how its programs are started there.
//!
//! It knows nothing of what the programs are: each has a module of its own.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpStream;

use super::pki::create_private_dir;
use crate::process::{Process, spawn};
use crate::wait::wait_until;
use crate::{Program, Scope};

/// Two control planes, a compiler and two cores: generous, because it is only ever used up by a failure.
pub(super) const START_DEADLINE: Duration = Duration::from_secs(120);
/// Every server of the control plane listens here and nowhere else.
pub(super) const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// The directories of one control plane.
pub(super) struct Place {
    dir: PathBuf,
    logs: PathBuf,
}

impl Place {
    /// Claims the scope's one control plane directory.
    pub(super) fn create(scope: &Scope) -> Result<Self> {
        let dir = scope.dir().join("control-plane");
        create_private_dir(&dir).context("a scope holds one control plane")?;
        let place = Self {
            dir,
            logs: scope.dir().join("logs"),
        };
        for sub in [place.pki(), place.kubeconfigs()] {
            create_private_dir(&sub)?;
        }
        Ok(place)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn pki(&self) -> PathBuf {
        self.dir.join("pki")
    }

    pub(super) fn kubeconfigs(&self) -> PathBuf {
        self.dir.join("kubeconfigs")
    }

    /// Starts a program with flags; its output is appended to the scope's `logs/<name>.log`.
    pub(super) fn spawn(&self, name: &str, program: &Path, flags: &Flags) -> Result<Process> {
        let mut command = Command::new(program);
        command
            .args(&flags.0)
            .current_dir(&self.dir)
            .env("HOME", &self.dir);
        spawn(name, command, &self.logs.join(format!("{name}.log")))
    }
}

/// A command line in the making.
#[derive(Clone, Default)]
pub(super) struct Flags(Vec<String>);

impl Flags {
    #[must_use]
    pub(super) fn set(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.0.push(format!("--{name}={value}"));
        self
    }

    #[must_use]
    pub(super) fn path(self, name: &str, value: &Path) -> Self {
        self.set(name, value.display())
    }

    #[must_use]
    pub(super) fn extend(mut self, flags: &[String]) -> Self {
        self.0.extend_from_slice(flags);
        self
    }
}

/// The path of a program, built first if need be, without holding up the other tasks.
pub(super) async fn program_path(program: Program) -> Result<PathBuf> {
    tokio::task::spawn_blocking(move || program.path())
        .await
        .context("build a program")?
}

/// Waits until `probe` succeeds; gives up at once, with its last words, when the process has ended.
pub(super) async fn wait_serving<F: Future<Output = Result<()>>>(
    what: &str,
    process: &mut Process,
    mut probe: impl FnMut() -> F,
) -> Result<()> {
    wait_until(what, START_DEADLINE, || {
        let running = process.check_running();
        let answer = probe();
        async move {
            if let Err(ended) = running {
                return Ok(Err(ended));
            }
            answer.await.map(Ok)
        }
    })
    .await?
}

/// Whether something listens on the port.
pub(super) async fn probe_port(port: u16) -> Result<()> {
    TcpStream::connect((LOOPBACK, port))
        .await
        .map(drop)
        .with_context(|| format!("connect to port {port}"))
}
