//! The emulated machine: what it has (disks, memory, ports) and the command line that says so. It starts nothing itself.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use super::files::{copy_tree, total_bytes};
use super::image::{Image, run};
use crate::scope::Scope;

const AGENT_PORT: u16 = 7001;
const RUNTIME_PORT: u16 = 7002;

/// How a node differs from the plain one.
#[derive(Clone, Debug)]
pub struct Options {
    /// The host name; two nodes of one scope need two names.
    pub name: String,
    pub memory_mib: u32,
    pub cpus: u32,
    /// Swap space that is on from boot; 0 for none.
    pub swap_mib: u32,
    /// Files and directories of the host, read only in the guest's [`SHARE_DIR`](super::SHARE_DIR).
    pub share: Vec<Shared>,
    /// Guest ports to reach from the host, see [`VirtualNode::host_port`](super::VirtualNode::host_port).
    pub forward_ports: Vec<u16>,
    /// Added to the kernel's command line.
    pub kernel_args: Vec<String>,
    /// The hardware clock against the host's, at boot.
    pub clock_offset_s: i64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "virtual-node".to_owned(),
            memory_mib: 1024,
            cpus: 2,
            swap_mib: 0,
            share: Vec::new(),
            forward_ports: Vec::new(),
            kernel_args: Vec::new(),
            clock_offset_s: 0,
        }
    }
}

/// A file or directory that the guest gets to see.
#[derive(Clone, Debug)]
pub struct Shared {
    pub source: PathBuf,
    /// Its name in the guest's share directory.
    pub name: String,
}

pub(super) struct Machine {
    options: Options,
    dir: PathBuf,
    kernel: PathBuf,
    machine_id: String,
    /// Guest port → loopback port of the host.
    ports: BTreeMap<u16, u16>,
}

impl Machine {
    /// Makes the disks and reserves the ports.
    pub(super) fn create(scope: &Scope, image: &Image, options: Options) -> Result<Self> {
        let dir = scope.path(&options.name);
        fs::create_dir(&dir).with_context(|| format!("create {}; is the name taken?", dir.display()))?;
        let mut ports = BTreeMap::new();
        for guest_port in [AGENT_PORT, RUNTIME_PORT].iter().chain(&options.forward_ports) {
            ports.insert(*guest_port, scope.port()?);
        }
        let hash = Sha256::digest(format!("{} {}", scope.id(), options.name));
        let machine_id = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let machine = Self {
            options,
            dir,
            kernel: image.kernel.clone(),
            machine_id,
            ports,
        };
        machine.make_disks(image)?;
        Ok(machine)
    }

    fn make_disks(&self, image: &Image) -> Result<()> {
        run(Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
            .arg(&image.disk)
            .arg(self.dir.join("root.qcow2")))?;
        if self.options.swap_mib > 0 {
            let swap = self.dir.join("swap.raw");
            File::create(&swap)?.set_len(u64::from(self.options.swap_mib) << 20)?;
            run(Command::new("mkswap").args(["--label", "node-swap"]).arg(&swap))?;
        }
        if !self.options.share.is_empty() {
            self.make_share()?;
        }
        Ok(())
    }

    fn make_share(&self) -> Result<()> {
        let stage = self.dir.join("share");
        fs::create_dir(&stage)?;
        for shared in &self.options.share {
            let plain = Path::new(&shared.name).components().count() == 1 && !shared.name.starts_with('.');
            ensure!(plain, "{:?} is no plain name for a shared file", shared.name);
            copy_tree(&shared.source, &stage.join(&shared.name))?;
        }
        let disk = self.dir.join("share.raw");
        // Room for the file system's own structures on top of the files.
        let bytes = total_bytes(&stage)?;
        File::create(&disk)?.set_len(bytes + bytes / 8 + (32 << 20))?;
        let format = [
            "-q",
            "-t",
            "ext4",
            "-m",
            "0",
            "-O",
            "^has_journal",
            "-L",
            "node-share",
            "-E",
            "root_owner=0:0",
        ];
        run(Command::new("mke2fs")
            .args(format)
            .arg("-d")
            .arg(&stage)
            .arg(&disk))?;
        fs::remove_dir_all(&stage).context("remove the staged share")
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn host_port(&self, guest_port: u16) -> Option<u16> {
        self.ports.get(&guest_port).copied()
    }

    pub(super) fn agent_port(&self) -> u16 {
        self.ports[&AGENT_PORT]
    }

    pub(super) fn runtime_port(&self) -> u16 {
        self.ports[&RUNTIME_PORT]
    }

    pub(super) fn set_clock_offset(&mut self, offset_s: i64) {
        self.options.clock_offset_s = offset_s;
    }

    /// The emulator's command line for one power-on. A reboot of the guest ends the emulator.
    pub(super) fn command(&self, console: &Path) -> Result<Command> {
        let options = &self.options;
        let mut command = Command::new("qemu-system-x86_64");
        // Software emulation on purpose: hardware virtualisation is not there, or hangs, on the machines the tests run on.
        command.args([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            &options.cpus.to_string(),
        ]);
        command.args([
            "-m",
            &options.memory_mib.to_string(),
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ]);
        command.args([
            "-name",
            &options.name,
            "-serial",
            &format!("file:{}", console.display()),
        ]);
        command
            .arg("-kernel")
            .arg(&self.kernel)
            .args(["-append", &self.kernel_command_line()]);
        command.args(["-rtc", &format!("base={}", self.clock_base()?)]);
        for (index, (disk, format, read_only)) in self.disks().iter().enumerate() {
            let file = self.dir.join(disk);
            // No fsync on the host: a killed emulator loses nothing that the guest had flushed, only a dead host would.
            let drive = format!(
                "file={},if=none,id=disk{index},format={format},cache=unsafe{read_only}",
                file.display()
            );
            // One NVMe disk only, since the kernel numbers several as they answer; the others are found by label.
            let model = if index == 0 { "nvme" } else { "virtio-blk-pci" };
            command.args([
                "-drive",
                &drive,
                "-device",
                &format!("{model},serial=disk{index},drive=disk{index}"),
            ]);
        }
        let forwards: String = self
            .ports
            .iter()
            .map(|(guest, host)| format!(",hostfwd=tcp:127.0.0.1:{host}-:{guest}"))
            .collect();
        command.args(["-netdev", &format!("user,id=net0,restrict=on,ipv6=off{forwards}")]);
        command.args([
            "-device",
            "virtio-net-pci,netdev=net0,romfile=",
            "-device",
            "virtio-rng-pci",
        ]);
        Ok(command)
    }

    /// File, format, and what to add for a read-only one. The root disk comes first.
    fn disks(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        let mut disks = vec![("root.qcow2", "qcow2", "")];
        if self.options.swap_mib > 0 {
            disks.push(("swap.raw", "raw", ""));
        }
        if !self.options.share.is_empty() {
            disks.push(("share.raw", "raw", ",readonly=on"));
        }
        disks
    }

    fn kernel_command_line(&self) -> String {
        let mut words = vec![
            "root=/dev/nvme0n1".to_owned(),
            "rw".to_owned(),
            "console=ttyS0".to_owned(),
            "quiet".to_owned(),
            "panic=-1".to_owned(),
            "net.ifnames=0".to_owned(),
            format!("systemd.hostname={}", self.options.name),
            format!("systemd.machine_id={}", self.machine_id),
        ];
        if self.options.swap_mib > 0 {
            words.push("node.swap".to_owned());
        }
        if !self.options.share.is_empty() {
            words.push("node.share".to_owned());
        }
        words.extend(self.options.kernel_args.iter().cloned());
        words.join(" ")
    }

    fn clock_base(&self) -> Result<String> {
        if self.options.clock_offset_s == 0 {
            return Ok("utc".to_owned());
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .context("the host's clock is before 1970")?;
        utc_text(i64::try_from(now.as_secs())?.saturating_add(self.options.clock_offset_s))
    }
}

/// `1970-01-01T00:00:00` for 0.
fn utc_text(epoch_s: i64) -> Result<String> {
    let output = Command::new("date")
        .args(["-u", "-d", &format!("@{epoch_s}"), "+%Y-%m-%dT%H:%M:%S"])
        .output()?;
    ensure!(
        output.status.success(),
        "date cannot print {epoch_s}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(options: Options) -> Machine {
        let ports = BTreeMap::from([(AGENT_PORT, 20_001), (RUNTIME_PORT, 20_002), (10_250, 20_003)]);
        Machine {
            options,
            dir: "/d".into(),
            kernel: "/k".into(),
            machine_id: "0".repeat(32),
            ports,
        }
    }

    fn arguments(options: Options) -> Vec<String> {
        let command = machine(options).command(Path::new("/c")).unwrap();
        command
            .get_args()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn options_show_on_the_command_line() {
        fn check(options: Options, expected: &str) {
            let arguments = arguments(options).join(" ");
            assert!(arguments.contains(expected), "{expected} is not in {arguments}");
        }
        let shared = || {
            vec![Shared {
                source: "/x".into(),
                name: "x".into(),
            }]
        };
        check(Options::default(), "-smp 2 -m 1024 ");
        check(
            Options {
                memory_mib: 512,
                cpus: 1,
                ..Options::default()
            },
            "-smp 1 -m 512 ",
        );
        check(
            Options::default(),
            "restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:20001-:7001,",
        );
        check(
            Options {
                swap_mib: 64,
                ..Options::default()
            },
            "file=/d/swap.raw,if=none,id=disk1,format=raw,cache=unsafe ",
        );
        check(
            Options {
                swap_mib: 64,
                ..Options::default()
            },
            " node.swap ",
        );
        check(
            Options {
                share: shared(),
                ..Options::default()
            },
            "id=disk1,format=raw,cache=unsafe,readonly=on ",
        );
        check(
            Options {
                share: shared(),
                ..Options::default()
            },
            " node.share ",
        );
        check(
            Options {
                kernel_args: vec!["psi=1".into()],
                ..Options::default()
            },
            " psi=1 -rtc base=utc ",
        );
        check(
            Options {
                name: "second".into(),
                ..Options::default()
            },
            "systemd.hostname=second ",
        );
    }

    #[test]
    fn a_plain_node_has_neither_swap_nor_share() {
        let arguments = arguments(Options::default()).join(" ");
        assert!(
            !arguments.contains("node.swap")
                && !arguments.contains("node.share")
                && !arguments.contains("disk1")
        );
    }

    #[test]
    fn a_moved_clock_is_a_date() {
        assert_eq!(utc_text(0).unwrap(), "1970-01-01T00:00:00");
        assert_eq!(utc_text(1_700_000_000).unwrap(), "2023-11-14T22:13:20");
        let base = machine(Options {
            clock_offset_s: -86_400,
            ..Options::default()
        })
        .clock_base()
        .unwrap();
        assert_eq!(base.len(), "1970-01-01T00:00:00".len());
    }
}
