//! Credential provider plugins as programs of the node.
//!
//! An adapter: it runs a program with an input and returns its output. It decides nothing and knows the form of neither. A program
//! is killed at its deadline, with everything in its process group, and its output is kept up to a limit. Its standard error is
//! dropped: programs that fail have been seen to print their credentials.
//!
//! ```text
//! start ─► input ─┬─► program ends ─► its process group has a moment to finish its output ─► group killed ─► answer, or exit status
//!                 ├─► deadline, or too much output ─► group killed ─► failure
//!                 └─► caller gone ─► group killed
//! ```
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "an adapter is where programs are run"
)]

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use rubelet_ports::{CredentialPlugins, PluginCall, PluginFailure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::task::JoinError;

/// How long a child of an ended program, such as a filter, may still write output.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);
const CHUNK_BYTES: usize = 16 * 1024;

#[derive(Debug, Error)]
pub enum PluginProgramError {
    #[error("plugin binary directory {} did not exist", .0.display())]
    NoDirectory(PathBuf),
    #[error("plugin binary executable {} did not exist", .0.display())]
    NoProgram(PathBuf),
    #[error("plugin binary executable {} is not executable", .0.display())]
    NotExecutable(PathBuf),
    #[error("error inspecting {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
}

/// The programs of one directory.
#[derive(Clone, Debug)]
pub struct PluginPrograms {
    directory: PathBuf,
}

impl PluginPrograms {
    /// # Errors
    /// When the directory or one of these programs is not there, or cannot be run.
    pub fn open<'n>(
        directory: &Path,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Self, PluginProgramError> {
        look(directory, PluginProgramError::NoDirectory)?;
        for name in names {
            let program = directory.join(name);
            let metadata = look(&program, PluginProgramError::NoProgram)?;
            if metadata.is_dir() || metadata.permissions().mode() & 0o111 == 0 {
                return Err(PluginProgramError::NotExecutable(program));
            }
        }
        Ok(Self {
            directory: directory.to_owned(),
        })
    }
}

fn look(path: &Path, missing: fn(PathBuf) -> PluginProgramError) -> Result<fs::Metadata, PluginProgramError> {
    fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => missing(path.to_owned()),
        _ => PluginProgramError::Unreadable {
            path: path.to_owned(),
            source,
        },
    })
}

#[async_trait]
impl CredentialPlugins for PluginPrograms {
    async fn run(&self, call: PluginCall) -> Result<Vec<u8>, PluginFailure> {
        let mut command = Command::new(self.directory.join(&call.name));
        command
            .args(&call.args)
            .envs(call.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true);
        let mut running = match command.spawn().and_then(Running::new) {
            Ok(running) => running,
            Err(error) => {
                return Err(PluginFailure {
                    reason: format!("it cannot be run: {error}"),
                });
            }
        };
        let mut output = Vec::new();
        let limit = call.max_output_bytes;
        let ended =
            tokio::time::timeout(call.deadline, running.exchange(&call.input, limit, &mut output)).await;
        let reason = match ended {
            Ok(Ok(status)) if status.success() => return Ok(output),
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(reason)) => reason,
            Err(_) => format!("it has not ended within {} s", call.deadline.as_secs_f64()),
        };
        Err(PluginFailure { reason })
    }
}

/// A program with its process group. Dropping it kills the group.
struct Running {
    child: Child,
    /// As long as the program is not reaped, the kernel does not reuse its process id. `None` once it is.
    group: Option<Pid>,
}

impl Running {
    fn new(child: Child) -> io::Result<Self> {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Ok(Self {
            group: id.and_then(Pid::from_raw),
            child,
        })
    }

    /// Writes the program's input and reads its output until it ends.
    async fn exchange(
        &mut self,
        input: &[u8],
        max_output_bytes: usize,
        output: &mut Vec<u8>,
    ) -> Result<std::process::ExitStatus, String> {
        let streams = (self.child.stdin.take(), self.child.stdout.take());
        let (Some(mut stdin), Some(mut stdout)) = streams else {
            return Err("its streams are missing".to_owned());
        };
        let group = self.group.ok_or("it has no process id")?;
        // Waits without reaping: until the program is reaped, its group keeps its id. The thread returns once the program is gone.
        let mut exit = tokio::task::spawn_blocking(move || {
            waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).map(drop)
        });
        let feed = async {
            // A program that does not read its input may still know an answer.
            let _ = stdin.write_all(input).await;
            drop(stdin);
            Ok(())
        };
        let output = read(&mut stdout, output, max_output_bytes);
        let streams = async { tokio::try_join!(feed, output).map(drop) };
        tokio::pin!(streams);
        let ended = |ended: Result<rustix::io::Result<()>, JoinError>| match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("it cannot be waited for: {error}")),
            Err(error) => Err(format!("it cannot be waited for: {error}")),
        };
        // Both go on where they were when the other comes first.
        tokio::select! {
            biased;
            closed = &mut streams => {
                closed?;
                ended(exit.await)?;
            }
            exited = &mut exit => {
                ended(exited)?;
                if let Ok(closed) = tokio::time::timeout(OUTPUT_GRACE, &mut streams).await {
                    closed?;
                }
            }
        }
        self.kill_group();
        self.child.wait().await.map_err(|error| error.to_string())
    }

    fn kill_group(&mut self) {
        if let Some(group) = self.group.take() {
            // An empty group is no error.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill_group();
    }
}

async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    into: &mut Vec<u8>,
    limit_bytes: usize,
) -> Result<(), String> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = stream.read(&mut chunk).await.map_err(|error| error.to_string())?;
        if count == 0 {
            return Ok(());
        }
        let room = limit_bytes - into.len();
        into.extend_from_slice(&chunk[..count.min(room)]);
        if count > room {
            return Err(format!("it wrote more than {limit_bytes} bytes"));
        }
    }
}
