//! A containerd of the test's own: root, state, socket, network, cgroup root and registry configuration are the scope's, so that any
//! number of them run side by side and beside the system's.
//!
//! Owns starting, restarting, killing and stopping it and what is needed before a pod can run. Pods are the test's business.
//! Whatever is alive when the scope ends is ended by the scope's teardown.

mod call;
mod config;

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::cni::PodNetwork;
use crate::images::{self, ImageArchive};
use crate::namespaces::Namespaces;
use crate::process::Process;
use crate::programs::Program;
use crate::scope::Scope;
use crate::wait::wait_for;
use config::Config;

const DEADLINE: Duration = Duration::from_secs(60);
const DEBIAN_CONTAINERD: &str = "/usr/bin/containerd";
const DEBIAN_CTR: &str = "/usr/bin/ctr";
const DEBIAN_RUNC: &str = "/usr/sbin/runc";
/// A runtime handler beside the default one, for what selects handlers by name.
pub const OTHER_HANDLER: &str = "other";
/// containerd's namespace for everything that comes through the CRI.
const CRI_NAMESPACE: &str = "k8s.io";

/// Which containerd, with which runc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Debian's containerd 1.6 and runc 1.1.
    Debian,
    /// containerd 2 and a recent runc, which user namespaces need.
    V2,
    /// containerd 2 with Debian's runc.
    V2DebianRunc,
}

impl Flavour {
    fn runc(self) -> Result<PathBuf> {
        match self {
            Self::Debian | Self::V2DebianRunc => Ok(DEBIAN_RUNC.into()),
            Self::V2 => Program::Runc.path(),
        }
    }

    fn containerd(self) -> Result<PathBuf> {
        match self {
            Self::Debian => Ok(DEBIAN_CONTAINERD.into()),
            Self::V2 | Self::V2DebianRunc => Program::Containerd.path(),
        }
    }

    fn ctr(self) -> Result<PathBuf> {
        match self {
            Self::Debian => Ok(DEBIAN_CTR.into()),
            Self::V2 | Self::V2DebianRunc => Program::Ctr.path(),
        }
    }
}

/// A private containerd. Dropping it kills the daemon; its pods go with the scope.
pub struct Containerd {
    flavour: Flavour,
    name: String,
    dir: PathBuf,
    log: PathBuf,
    network: PodNetwork,
    /// Where the daemon runs, and where its pods' network and mounts are; the machine's without it.
    place: Option<Namespaces>,
    ctr: PathBuf,
    program: PathBuf,
    process: Option<Process>,
}

impl Containerd {
    /// Starts a containerd, waits until it can run pods, and imports the image of the pods' pause process.
    pub fn start(scope: &Scope, flavour: Flavour) -> Result<Self> {
        Self::start_in(scope, flavour, None)
    }

    /// The same in a node's own namespaces.
    pub fn start_in(scope: &Scope, flavour: Flavour, place: Option<Namespaces>) -> Result<Self> {
        let (number, dir) = new_directory(scope)?;
        let network = PodNetwork::create(scope, &dir, number)?;
        let config = Config {
            dir: &dir,
            network: &network,
            runc: flavour.runc()?,
        };
        let text = match flavour {
            Flavour::Debian => config.version_2(),
            Flavour::V2 | Flavour::V2DebianRunc => config.version_3(&Program::ContainerdShim.path()?),
        };
        fs::write(dir.join("config.toml"), text).context("write containerd's configuration")?;
        if flavour == Flavour::Debian {
            prepare_shim_sockets()?;
        }
        for directory in ["tmp", "s", "cdi"] {
            fs::create_dir(dir.join(directory)).with_context(|| format!("create {directory}"))?;
        }
        let name = if number == 0 {
            "containerd".to_owned()
        } else {
            format!("containerd-{number}")
        };
        let mut containerd = Self {
            flavour,
            log: scope.path(&format!("logs/{name}.log")),
            name,
            network,
            place,
            ctr: flavour.ctr()?,
            program: flavour.containerd()?,
            process: None,
            dir,
        };
        containerd.route_registry("_default", "127.0.0.1:9")?;
        containerd.start_again()?;
        containerd.import(&images::pause()?)?;
        Ok(containerd)
    }

    /// The socket, as the kubelet's `--container-runtime-endpoint` takes it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The socket's path.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("c.sock")
    }

    /// The directory that holds its root, state and configuration.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The daemon's log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The pods' network.
    pub fn network(&self) -> &PodNetwork {
        &self.network
    }

    /// Which containerd this is.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// The daemon's process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Runs `ctr` in the CRI's namespace and gives its output.
    pub fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let socket = self.socket();
        let output = Command::new(&self.ctr)
            .args(["--namespace", CRI_NAMESPACE, "--address"])
            .arg(&socket)
            .args(arguments)
            .env("TMPDIR", self.dir.join("tmp"))
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run {}", self.ctr.display()))?;
        if !output.status.success() {
            bail!(
                "ctr {arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The daemon's version, as it tells it.
    pub fn version(&self) -> Result<String> {
        let text = self.ctr(&["version"])?;
        let server = text.split_once("Server:").map_or("", |(_, server)| server);
        let version = server
            .lines()
            .find_map(|line| line.trim().strip_prefix("Version:"));
        version
            .map(|version| version.trim().to_owned())
            .context("ctr told no version of the server")
    }

    /// Imports an image and waits until the CRI knows it under all its names.
    pub fn import(&self, archive: &ImageArchive) -> Result<()> {
        let path = archive
            .path()
            .to_str()
            .context("an archive's path that is not text")?;
        self.ctr(&["images", "import", path])?;
        for name in archive.names() {
            wait_for(
                &format!("image {name} known to the CRI"),
                DEADLINE,
                || match call::image_id(&self.socket(), name)? {
                    Some(id) if id == archive.id() => Ok(()),
                    Some(id) => bail!("the name stands for {id}"),
                    None => bail!("not known"),
                },
            )?;
        }
        Ok(())
    }

    /// Imports an image from a file.
    pub fn import_file(&self, path: &Path) -> Result<()> {
        self.import(&ImageArchive::open(path)?)
    }

    /// Sends pulls of `registry/…` to the plain HTTP server at `host`. Takes effect at once.
    pub fn route_registry(&self, registry: &str, host: &str) -> Result<()> {
        let dir = self.dir.join("hosts").join(registry);
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let text = format!(
            "server = \"http://{host}\"\n\n[host.\"http://{host}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
        );
        fs::write(dir.join("hosts.toml"), text).context("write a registry's configuration")
    }

    /// Ends the daemon with SIGTERM and starts it again; pods go on running.
    pub fn restart(&mut self) -> Result<()> {
        self.terminate()?;
        self.start_again()
    }

    /// Ends the daemon with SIGKILL; pods go on running.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::KILL)?;
            process.wait(DEADLINE)?;
        }
        Ok(())
    }

    /// Starts the daemon on what it left behind and waits until it is ready.
    pub fn start_again(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(self.dir.join("config.toml"));
        if let Some(place) = &self.place {
            command = place.enter(&command);
        }
        command.env_clear();
        // No proxy of the environment: what is not in the private registry does not exist. The directory of temporary files
        // also marks everything that containerd starts as the scope's: network plugins carry no other sign of it.
        command.env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
        command.env("TMPDIR", self.dir.join("tmp"));
        let mut process = crate::process::spawn(&self.name, command, &self.log)?;
        wait_for("containerd ready to run pods", DEADLINE, || {
            process.check_running()?;
            call::check_ready(&self.socket())
        })
        .with_context(|| process.log_tail(20))?;
        self.process = Some(process);
        Ok(())
    }

    /// Ends the daemon with SIGTERM; pods go on running.
    pub fn terminate(&mut self) -> Result<()> {
        if let Some(process) = self.process.take() {
            process.terminate(DEADLINE)?;
        }
        Ok(())
    }

    /// Stops and removes all pods, then ends the daemon.
    pub fn stop(mut self) -> Result<()> {
        call::remove_pods(&self.socket())?;
        self.terminate()
    }
}

/// containerd 1 has its shims listen below its default state directory. Unless that exists with the mode that a system's
/// containerd gives it, the first shim makes it with one that keeps everybody else out.
fn prepare_shim_sockets() -> Result<()> {
    let (state, sockets) = ("/run/containerd", "/run/containerd/s");
    for (dir, mode) in [(state, 0o711), (sockets, 0o700)] {
        match DirBuilder::new().mode(mode).create(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("create {dir}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The first free directory for one more containerd in this scope. Names are short for the sake of socket paths.
fn new_directory(scope: &Scope) -> Result<(usize, PathBuf)> {
    for number in 0..10 {
        let dir = scope.path(&format!("c{number}"));
        match fs::create_dir(&dir) {
            Ok(()) => return Ok((number, dir)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("create {}", dir.display())),
        }
    }
    bail!("ten containerds in one scope are enough")
}
