//! Child processes that cannot outlive the test: a process group each, a parent-death signal, output in a file.
//!
//! The kernel ties the parent-death signal to the *thread* that forked. Test threads end before the process does, so all
//! children are forked by one thread that lives as long as the process.

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const POLL: Duration = Duration::from_millis(10);

/// A running child. Dropping it kills its whole process group.
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// The process id, which is its group's id too.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of its output.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.log, lines)
    }

    /// Fails, with the end of the log, if the process has ended.
    pub fn check_running(&mut self) -> Result<()> {
        match self
            .child
            .try_wait()
            .with_context(|| format!("look at {}", self.name))?
        {
            None => Ok(()),
            Some(status) => bail!(
                "{} ended with {status}; its last words:\n{}",
                self.name,
                self.log_tail(20)
            ),
        }
    }

    /// Sends a signal to the process itself, not to its group.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid_raw()?, signal).with_context(|| format!("signal {}", self.name))
    }

    /// Waits for the end.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > end {
                bail!(
                    "{} still runs after {deadline:?}; its last words:\n{}",
                    self.name,
                    self.log_tail(20)
                );
            }
            std::thread::sleep(POLL);
        }
    }

    /// Asks for the end with SIGTERM, and takes it with SIGKILL after `grace`.
    pub fn terminate(mut self, grace: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        if let Ok(status) = self.wait(grace) {
            return Ok(status);
        }
        self.kill_group();
        self.child
            .wait()
            .with_context(|| format!("wait for {}", self.name))
    }

    fn pid_raw(&self) -> Result<Pid> {
        i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| anyhow!("{} has no pid", self.name))
    }

    fn kill_group(&mut self) {
        // Once reaped the number may belong to somebody else.
        if matches!(self.child.try_wait(), Ok(None))
            && let Ok(pid) = self.pid_raw()
        {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_group();
        let _ = self.child.wait();
    }
}

/// The last lines of a file, or why it cannot be read.
pub fn tail(path: &Path, lines: usize) -> String {
    match fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(error) => format!("({}: {error})", path.display()),
    }
}

/// Writes a shell script that can be run at once.
///
/// Another process writes it: a file that this one has open for writing is for a moment open in every child that other tests fork meanwhile,
/// and until they have let go of it the kernel refuses to run it ("Text file busy").
pub fn write_script(path: &Path, script: &str) -> Result<()> {
    let status = Command::new("sh")
        .args(["-c", r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod 755 "$0""#])
        .arg(path)
        .arg(script)
        .status()
        .context("start sh")?;
    ensure!(status.success(), "write {}: {status}", path.display());
    Ok(())
}

/// Starts `command` with its output appended to `log`.
pub(crate) fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Process> {
    let output = log_file(log)?;
    command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output);
    let child = spawn_dying_with_us(command).with_context(|| format!("start {name}"))?;
    Ok(Process {
        name: name.to_owned(),
        log: log.to_owned(),
        child,
    })
}

/// Starts `command` as it is (its streams are the caller's choice), in its own group, dying with this process.
pub fn spawn_dying_with_us(mut command: Command) -> Result<Child> {
    command.process_group(0);
    die_with_parent(&mut command);
    let (answer, result) = channel();
    FORKER
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer))
        .context("the forking thread is gone")?;
    Ok(result.recv().context("the forking thread is gone")??)
}

fn log_file(log: &Path) -> Result<File> {
    if let Some(parent) = log.parent() {
        fs::create_dir_all(parent)?;
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("open {}", log.display()))
}

#[expect(
    unsafe_code,
    reason = "pre_exec runs between fork and exec; prctl is async-signal-safe and allocates nothing"
)]
fn die_with_parent(command: &mut Command) {
    // SAFETY: the closure makes one system call and touches no memory shared with the parent.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        });
    }
}

type Request = (Command, Sender<std::io::Result<Child>>);

static FORKER: LazyLock<Mutex<Sender<Request>>> = LazyLock::new(|| {
    let (sender, requests) = channel::<Request>();
    std::thread::spawn(move || {
        for (mut command, answer) in requests {
            let _ = answer.send(command.spawn());
        }
    });
    Mutex::new(sender)
});
