//! A virtual node: a whole Debian machine under software emulation, for what the host cannot show (cgroup v2, systemd as the
//! first process, logind, reboot, swap, a kernel out of memory, a moved clock).
//!
//! ```text
//!   start ──► on ──reboot──► on            the same disk throughout; a new `start` begins from a clean copy
//!              │ ▲
//!   power_off, │ │ start_again
//!   _hard      ▼ │
//!             off
//! ```
//!
//! Owns the emulator's process, its disks and its two ways in: commands over a forwarded loopback port (see `agent`), and the
//! runtime's socket as a unix socket on the host (see `relay`). The guest reaches nothing outside. It must not be used where
//! the host will do: code runs about fifteen times slower here.

mod agent;
mod files;
mod image;
mod machine;
mod relay;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use crate::images::ImageArchive;
use crate::process::{Process, spawn, tail};
use crate::scope::Scope;
use crate::wait::wait_for;

pub use agent::Output;
pub use machine::{Options, Shared};

use agent::Agent;
use machine::Machine;
use relay::Relay;

/// Where the files given as [`Options::share`] are, in the guest.
pub const SHARE_DIR: &str = "/mnt/share";
/// How long a command may take unless the caller says otherwise: generous, since the host may be building at the same time.
pub const COMMAND_DEADLINE: Duration = Duration::from_secs(120);

const BOOT_DEADLINE: Duration = Duration::from_secs(600);
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(180);
/// What the guest writes to its console once it serves commands.
const READY_MARK: &str = "virtual node: serving commands";

/// Makes the node's disk image if this machine has not made it yet (a minute, once), so that no test pays for it.
pub fn prepare() -> Result<()> {
    image::image().map(|_| ())
}

/// A running (or switched off) virtual node. Dropping it switches it off the hard way.
pub struct VirtualNode {
    name: String,
    logs: PathBuf,
    machine: Machine,
    agent: Agent,
    relay: Relay,
    power: Power,
    boots: u32,
}

enum Power {
    On(Process),
    Off,
}

impl VirtualNode {
    /// Boots a node from a clean disk and waits until systemd has finished starting it.
    pub fn start(scope: &Scope, options: Options) -> Result<Self> {
        let image = image::image()?;
        let name = options.name.clone();
        let machine = Machine::create(scope, &image, options)?;
        let agent = Agent::new(machine.agent_port());
        let relay = Relay::start(&machine.dir().join("containerd.sock"), machine.runtime_port())?;
        let logs = scope
            .path("logs/x")
            .parent()
            .map(Path::to_owned)
            .unwrap_or_default();
        let mut node = Self {
            name,
            logs,
            machine,
            agent,
            relay,
            power: Power::Off,
            boots: 0,
        };
        node.start_again()?;
        Ok(node)
    }

    /// Switches a node that is off on again, with the disk as it was left.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(matches!(self.power, Power::Off), "{} is on already", self.name);
        self.boots += 1;
        let console = self
            .logs
            .join(format!("{}-console-{}.log", self.name, self.boots));
        let command = self.machine.command(&console)?;
        let log = self.logs.join(format!("{}-qemu.log", self.name));
        let start = Instant::now();
        let mut process = spawn(&self.name, command, &log)?;
        let booted = wait_for(
            "the node's console says it serves commands",
            BOOT_DEADLINE,
            || {
                // Reading the log is cheap, and the emulator's own error is worth more than a timeout.
                let text = fs::read(&console).unwrap_or_default();
                let ready = String::from_utf8_lossy(&text).contains(READY_MARK);
                if ready {
                    return Ok(Ok(()));
                }
                if let Err(error) = process.check_running() {
                    return Ok(Err(error));
                }
                bail!("the console's last lines:\n{}", tail(&console, 15))
            },
        );
        booted
            .and_then(|ended| ended)
            .with_context(|| format!("boot {}", self.name))?;
        self.power = Power::On(process);
        self.wait_for_systemd(BOOT_DEADLINE.saturating_sub(start.elapsed()))
    }

    fn wait_for_systemd(&self, deadline: Duration) -> Result<()> {
        let state = self.run_with("systemctl is-system-running --wait", &[], deadline)?;
        if state.stdout.trim() != "running" {
            let why =
                self.run("systemctl --failed --no-legend; journalctl -b -p warning -n 30 --no-pager")?;
            bail!(
                "{} booted to the state {:?}:\n{}",
                self.name,
                state.stdout.trim(),
                why.stdout
            );
        }
        Ok(())
    }

    /// Runs a shell script as root, with [`COMMAND_DEADLINE`]. What it leaves in the background is killed when it ends; start
    /// what must live on with `systemd-run`.
    pub fn run(&self, script: &str) -> Result<Output> {
        self.run_with(script, &[], COMMAND_DEADLINE)
    }

    /// Runs a shell script with these bytes on its standard input.
    pub fn run_with(&self, script: &str, input: &[u8], deadline: Duration) -> Result<Output> {
        let answer = self.agent.call(script, input, deadline);
        Ok(answer
            .with_context(|| format!("run on {}: {script}", self.name))?
            .into())
    }

    /// Runs a shell script that must succeed; gives what it printed.
    pub fn succeed(&self, script: &str) -> Result<String> {
        let output = self.run(script)?;
        ensure!(
            output.status == 0,
            "on {}: {script}: exit status {}: {}",
            self.name,
            output.status,
            output.stderr.trim()
        );
        Ok(output.stdout)
    }

    /// Writes a file in the guest, whole or not at all, and safe against a hard power-off right after.
    pub fn put(&self, bytes: &[u8], guest_path: &str, mode: u32) -> Result<()> {
        let path = quoted(guest_path);
        let script = format!(
            "set -e; mkdir -p \"$(dirname {path})\"; cat >{path}.part; chmod {mode:o} {path}.part; mv {path}.part {path}; sync -f {path}"
        );
        let output = self.run_with(&script, bytes, COMMAND_DEADLINE)?;
        ensure!(
            output.status == 0,
            "put {guest_path} on {}: {}",
            self.name,
            output.stderr.trim()
        );
        Ok(())
    }

    /// Reads a file of the guest.
    pub fn get(&self, guest_path: &str) -> Result<Vec<u8>> {
        let answer = self
            .agent
            .call(&format!("cat {}", quoted(guest_path)), &[], COMMAND_DEADLINE)?;
        let problem = String::from_utf8_lossy(&answer.stderr);
        ensure!(
            answer.status == 0,
            "get {guest_path} from {}: {}",
            self.name,
            problem.trim()
        );
        Ok(answer.stdout)
    }

    /// Imports an image into the runtime. CRI learns of it by an event, a moment later: wait for its image status.
    pub fn import_image(&self, archive: &ImageArchive) -> Result<()> {
        let bytes = fs::read(archive.path()).with_context(|| format!("read {}", archive.path().display()))?;
        let output = self.run_with("ctr --namespace k8s.io images import -", &bytes, COMMAND_DEADLINE)?;
        ensure!(
            output.status == 0,
            "import {} on {}: {}",
            archive.name(),
            self.name,
            output.stderr.trim()
        );
        Ok(())
    }

    /// The guest's containerd, as a unix socket on the host. The path stays over reboots; connections do not.
    pub fn runtime_socket(&self) -> &Path {
        self.relay.socket()
    }

    /// The loopback port that leads to a port named in [`Options::forward_ports`].
    pub fn host_port(&self, guest_port: u16) -> Option<u16> {
        self.machine.host_port(guest_port)
    }

    /// The emulator's process id, when the node is on.
    pub fn pid(&self) -> Option<u32> {
        match &self.power {
            Power::On(process) => Some(process.pid()),
            Power::Off => None,
        }
    }

    /// Shuts down in order, and boots again.
    pub fn reboot(&mut self) -> Result<()> {
        self.leave("systemctl reboot")?;
        self.start_again()
    }

    /// Shuts down in order.
    pub fn power_off(&mut self) -> Result<()> {
        self.leave("systemctl poweroff")
    }

    fn leave(&mut self, command: &str) -> Result<()> {
        let Power::On(process) = &mut self.power else {
            bail!("{} is off", self.name)
        };
        // The shutdown may end the agent before it answers; the emulator's exit is the answer that counts.
        let _ = self.agent.call(command, &[], COMMAND_DEADLINE);
        let status = process
            .wait(SHUTDOWN_DEADLINE)
            .with_context(|| format!("{command} on {}", self.name))?;
        ensure!(
            status.success(),
            "the emulator ended with {status}: {}",
            process.log_tail(10)
        );
        self.power = Power::Off;
        Ok(())
    }

    /// Pulls the plug: what the guest has not synced is lost.
    pub fn power_off_hard(&mut self) -> Result<()> {
        ensure!(matches!(self.power, Power::On(_)), "{} is off", self.name);
        self.power = Power::Off;
        Ok(())
    }

    /// Sets the guest's clock to the host's plus `offset_s`; the hardware clock follows at the next boot.
    pub fn set_clock(&mut self, offset_s: i64) -> Result<()> {
        self.machine.set_clock_offset(offset_s);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .context("the host's clock is before 1970")?;
        let wanted = i64::try_from(now.as_secs())?.saturating_add(offset_s);
        self.succeed(&format!("date --set=@{wanted} >/dev/null"))
            .map(|_| ())
    }

    fn keep_journal(&self) {
        let script = "journalctl -b --no-pager -n 1000";
        if let Ok(answer) = self.agent.call(script, &[], Duration::from_secs(30)) {
            let _ = fs::write(
                self.logs.join(format!("{}-journal.log", self.name)),
                answer.stdout,
            );
        }
    }
}

impl Drop for VirtualNode {
    fn drop(&mut self) {
        if std::thread::panicking() && matches!(self.power, Power::On(_)) {
            self.keep_journal();
        }
        // The emulator first, so that the relay's connections end by themselves.
        self.power = Power::Off;
    }
}

/// A word that a shell reads as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_word_is_one_word_to_the_shell() {
        fn check(word: &str) {
            let printed = std::process::Command::new("sh")
                .arg("-c")
                .arg(format!("printf %s {}", quoted(word)))
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(printed.stdout).unwrap(), word);
        }
        check("plain");
        check("with blank");
        check("it's $HOME `id` \\ \"x\"");
        check("two\nlines");
    }
}
