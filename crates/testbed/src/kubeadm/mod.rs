//! A cluster of one node that a real `kubeadm init` makes: the control plane is static pods of the kubelet under test.
//!
//! ```text
//!   kubeadm init ──► manifests, certificates, kubelet's files      the scope's directories,
//!                          │                                       at kubeadm's own paths in a
//!                          ▼                                       mount namespace of the node
//!                       kubelet ──► containerd ──► etcd, kube-apiserver, kube-controller-manager, kube-scheduler,
//!                                                  kube-proxy, CoreDNS, the test's own pods
//! ```
//!
//! The node has a network, directories and a cgroup root of its own, and no service manager: the test starts the kubelet, with the files and
//! the flags that kubeadm wrote, when kubeadm would have a service manager start it. It judges nothing: that is the test's business.

mod configuration;
mod files;
mod images;

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rustix::process::Signal;
use tokio::net::TcpStream;

use self::configuration::Configuration;
use self::files::NodeFiles;
use crate::cgroup_tree::CgroupTree;
use crate::containerd::{Containerd, Flavour};
use crate::namespaces::Namespaces;
use crate::node::{Kubelet, RuntimeView};
use crate::node_network::NodeNetwork;
use crate::process::{Process, spawn, tail};
use crate::programs::Program;
use crate::scope::Scope;
use crate::wait::wait_until;

pub use self::images::archives as image_archives;

/// How long a state may take: generous, since a whole control plane starts while other tests share the machine's two cores.
pub const DEADLINE: Duration = Duration::from_secs(180);
/// Where kubeadm has the manifests of the control plane.
const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// Where the kubelet serves its API.
const KUBELET_PORT: u16 = 10250;
/// What kubeadm prints when it has written everything that the kubelet needs.
const KUBELET_START: &str = "[kubelet-start] Starting the kubelet";
/// What kubeadm finds wrong with a machine that tests run on: cgroups of version 1 and kernels without their configuration, swap, and less
/// than a real control plane wants.
const IGNORED_CHECKS: &str = "SystemVerification,Swap,NumCPU,Mem";
/// The programs that kubeadm looks for. Without systemctl there is no service manager.
const TOOLS: [&str; 4] = ["losetup", "mount", "umount", "cp"];
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const TAIL_LINES: usize = 40;

/// The node and its cluster. Dropping it kills the kubelet; pods end with the scope.
pub struct KubeadmNode<'a> {
    pub scope: &'a Scope,
    pub containerd: Containerd,
    pub view: RuntimeView,
    name: String,
    address: IpAddr,
    namespaces: Namespaces,
    files: NodeFiles,
    kubelet: Option<Process>,
    client: Option<Client>,
}

impl<'a> KubeadmNode<'a> {
    /// A machine with a container runtime and the images of a control plane, before `kubeadm init`.
    pub async fn create(scope: &'a Scope) -> Result<Self> {
        let name = format!("node-{}", scope.id());
        let network = NodeNetwork::create(scope, "node")?;
        network.forward_packets()?;
        let files = NodeFiles::create(scope, &name, &network)?;
        let namespaces = network.namespaces().with_mounts(&files.namespace());
        let containerd = Containerd::start_in(scope, Flavour::V2, Some(namespaces.clone()))?;
        for archive in image_archives()? {
            containerd.import(&archive)?;
        }
        for archive in [crate::images::busybox()?, crate::images::server()?] {
            containerd.import(&archive)?;
        }
        CgroupTree::at(scope.cgroup_root()).make()?;
        let configuration = Configuration {
            node_name: &name,
            address: network.address(),
            runtime: &containerd.endpoint(),
            cgroup_root: &scope.cgroup_root(),
        };
        fs::write(scope.path("kubeadm/kubeadm.yaml"), configuration.text()?)?;
        let view = RuntimeView::connect(&containerd.socket()).await?;
        Ok(Self {
            scope,
            containerd,
            view,
            name,
            address: network.address(),
            namespaces,
            files,
            kubelet: None,
            client: None,
        })
    }

    /// Runs `kubeadm init`, and the kubelet as soon as its files are there.
    pub async fn init(&mut self, kubelet: &Kubelet) -> Result<()> {
        self.install_tools(kubelet)?;
        let config = format!("--config={}", self.scope.path("kubeadm/kubeadm.yaml").display());
        let ignored = format!("--ignore-preflight-errors={IGNORED_CHECKS}");
        let mut process = self.start_kubeadm("init", &[&config, &ignored])?;
        wait_until("kubeadm has written the kubelet's files", DEADLINE, || {
            let running = process.check_running();
            let printed = fs::read_to_string(process.log());
            async move {
                running?;
                ensure!(printed?.contains(KUBELET_START), "not yet");
                Ok(())
            }
        })
        .await?;
        self.start_kubelet(kubelet)?;
        self.finish(process)?;
        self.client = Some(self.connect().await?);
        Ok(())
    }

    /// Runs `kubeadm reset` after the kubelet has ended.
    pub fn reset(&mut self) -> Result<()> {
        ensure!(self.kubelet.is_none(), "the kubelet still runs");
        let socket = format!("--cri-socket={}", self.containerd.endpoint());
        let process = self.start_kubeadm("reset", &["--force", &socket])?;
        self.finish(process)
    }

    fn finish(&self, mut process: Process) -> Result<()> {
        let status = process.wait(DEADLINE).with_context(|| self.log_tail())?;
        ensure!(
            status.success(),
            "kubeadm ended with {status}:\n{}\n{}",
            process.log_tail(TAIL_LINES),
            self.log_tail()
        );
        Ok(())
    }

    /// The programs that kubeadm finds, the kubelet among them, whose version it wants to know.
    fn install_tools(&self, kubelet: &Kubelet) -> Result<()> {
        let bin = self.scope.path("kubeadm/bin");
        fs::create_dir(&bin)?;
        symlink(kubelet.path()?, bin.join("kubelet"))?;
        for tool in TOOLS {
            let program = PATH
                .split(':')
                .map(|dir| Path::new(dir).join(tool))
                .find(|program| program.exists());
            symlink(program.with_context(|| format!("no {tool}"))?, bin.join(tool))?;
        }
        Ok(())
    }

    /// kubeadm finds the installed tools and nothing else.
    fn start_kubeadm(&self, verb: &str, arguments: &[&str]) -> Result<Process> {
        let mut command = Command::new("env");
        command
            .arg(format!("PATH={}", self.scope.path("kubeadm/bin").display()))
            .arg(Program::Kubeadm.path()?)
            .arg(verb)
            .args(arguments);
        let command = self.inside(&command);
        self.scope.spawn(&format!("kubeadm-{verb}"), command)
    }

    /// The command on the node. No proxy and no other setting of the test's environment comes along; the directory of temporary files marks
    /// the program as the scope's.
    fn inside(&self, command: &Command) -> Command {
        let mut command = self.namespaces.enter(command);
        command
            .env_clear()
            .env("PATH", PATH)
            .env("TMPDIR", self.scope.dir().join("kubeadm"))
            .env("HOME", self.scope.dir().join("kubeadm"));
        command
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A client that may do everything.
    pub fn client(&self) -> Result<Client> {
        self.client.clone().context("kubeadm has made no cluster yet")
    }

    async fn connect(&self) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.admin_kubeconfig()).context("read admin.conf")?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // A proxy of the environment has no way to the node's network.
        config.proxy_url = None;
        Ok(Client::try_from(config)?)
    }

    fn admin_kubeconfig(&self) -> PathBuf {
        self.path("/etc/kubernetes/admin.conf")
    }

    /// What is mounted below a directory of the node.
    pub fn mounts_below(&self, dir: &str) -> Result<Vec<PathBuf>> {
        let mut points = self.files.mount_points()?;
        points.retain(|point| point.starts_with(dir) && point != Path::new(dir));
        Ok(points)
    }

    /// Where the machine finds a file of kubeadm's or the kubelet's directories.
    pub fn path(&self, path: &str) -> PathBuf {
        self.files.on_machine(path)
    }

    /// Starts the kubelet as kubeadm's drop-in file for a service manager does.
    pub fn start_kubelet(&mut self, kubelet: &Kubelet) -> Result<()> {
        ensure!(self.kubelet.is_none(), "a kubelet runs already");
        let flags = fs::read_to_string(self.path("/var/lib/kubelet/kubeadm-flags.env"))
            .context("read the flags that kubeadm wrote")?;
        let mut command = Command::new(kubelet.path()?);
        command
            .arg("--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf")
            .arg("--kubeconfig=/etc/kubernetes/kubelet.conf")
            .arg("--config=/var/lib/kubelet/config.yaml")
            .args(kubelet_flags(&flags)?);
        self.kubelet = Some(spawn("kubelet", self.inside(&command), &self.log())?);
        Ok(())
    }

    /// Waits until the kubelet that runs takes connections.
    pub async fn wait_until_kubelet_serves(&self) -> Result<()> {
        self.eventually("the kubelet serves", async || {
            TcpStream::connect((self.address, KUBELET_PORT)).await?;
            Ok(())
        })
        .await
    }

    /// What stands in a manifest of the control plane.
    pub fn manifest(&self, component: &str) -> Result<String> {
        let file = self.manifest_file(component);
        fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
    }

    /// Replaces a manifest of the control plane, whole, as a careful administrator does.
    pub fn write_manifest(&self, component: &str, text: &str) -> Result<()> {
        let part = self.path("/etc/kubernetes").join(format!("{component}.part"));
        fs::write(&part, text).with_context(|| format!("write {}", part.display()))?;
        fs::rename(&part, self.manifest_file(component)).context("put the manifest into the folder")
    }

    fn manifest_file(&self, component: &str) -> PathBuf {
        self.path(MANIFESTS).join(format!("{component}.yaml"))
    }

    /// Ends the kubelet with SIGTERM; pods go on running.
    pub fn terminate_kubelet(&mut self) -> Result<()> {
        let process = self.kubelet.take().context("no kubelet runs")?;
        process.terminate(DEADLINE).map(|_| ())
    }

    /// Ends the kubelet with SIGKILL; pods go on running.
    pub fn kill_kubelet(&mut self) -> Result<()> {
        let mut process = self.kubelet.take().context("no kubelet runs")?;
        process.signal(Signal::KILL)?;
        process.wait(DEADLINE).map(|_| ())
    }

    /// Puts another kubelet in the place of the one that runs.
    pub fn switch_to(&mut self, kubelet: &Kubelet) -> Result<()> {
        self.terminate_kubelet()?;
        self.start_kubelet(kubelet)
    }

    fn log(&self) -> PathBuf {
        self.scope.path("logs/kubelet.log")
    }

    /// The end of the kubelet's log, for a failure's report.
    pub fn log_tail(&self) -> String {
        format!("the kubelet's log ends with:\n{}", tail(&self.log(), TAIL_LINES))
    }

    /// Waits for a state; when it does not come, the end of the kubelet's log is in the error.
    pub async fn eventually<T>(&self, what: &str, mut state: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        let end = Instant::now() + DEADLINE;
        loop {
            match state().await {
                Ok(value) => return Ok(value),
                Err(error) if Instant::now() > end => {
                    return Err(error)
                        .with_context(|| format!("{what}: not so after {DEADLINE:?}\n{}", self.log_tail()));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// What kubectl prints; it has to succeed.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let output = tokio::process::Command::new(Program::Kubectl.path()?)
            .arg(format!("--kubeconfig={}", self.admin_kubeconfig().display()))
            .args(arguments)
            .env("HOME", self.scope.dir().join("kubeadm"))
            .env_remove("KUBECONFIG")
            .kill_on_drop(true)
            .output()
            .await
            .context("run kubectl")?;
        if !output.status.success() {
            bail!(
                "kubectl {arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The flags in the file of environment variables that kubeadm writes.
fn kubelet_flags(file: &str) -> Result<Vec<String>> {
    let quoted = file
        .lines()
        .find_map(|line| line.strip_prefix("KUBELET_KUBEADM_ARGS="))
        .context("kubeadm wrote no flags")?;
    Ok(quoted
        .trim_matches('"')
        .split_whitespace()
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_a_service_manager_reads_them() {
        let flags = kubelet_flags("KUBELET_KUBEADM_ARGS=\"--hostname-override=n --v=2\"\n").unwrap();
        assert_eq!(flags, ["--hostname-override=n", "--v=2"]);
        assert!(kubelet_flags("").is_err());
    }
}
