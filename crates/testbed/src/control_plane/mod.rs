//! A private Kubernetes control plane for one test: etcd, kube-apiserver, kube-controller-manager and, on request,
//! kube-scheduler, all real, on loopback, with certificates made for the occasion.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use rubelet_testbed::Scope;
//! use rubelet_testbed::control_plane::{ControlPlane, Options};
//!
//! let scope = Scope::new("example")?;
//! let control_plane = ControlPlane::start(&scope, Options::default()).await?;
//! let version = control_plane.admin_client().apiserver_version().await?;
//! let kubelet_kubeconfig = control_plane.node_kubeconfig("node-1")?;
//! # Ok(())
//! # }
//! ```
//!
//! It owns the servers and everybody's credentials. It makes no nodes and runs no pods: that is the test's business. Programs
//! end when the value is dropped, files go with the scope, and logs are the scope's.

mod apiserver;
mod bootstrap;
mod controllers;
mod entrance;
mod etcd;
mod kubeconfig;
mod metrics_server;
mod pki;
mod place;
mod token_relay;

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;

pub use self::controllers::{DEFAULT_CONTROLLERS, NODE_LIFECYCLE, POD_GARBAGE_COLLECTOR, TAINT_EVICTION};
pub use self::metrics_server::MetricsServer;
pub use self::pki::CredentialFiles;

use self::apiserver::{ApiServer, SharedFiles};
use self::etcd::Etcd;
use self::kubeconfig::{KubeconfigText, Proof};
use self::pki::Authority;
use self::place::{Place, program_path};
use crate::process::{Process, spawn_dying_with_us};
use crate::{Program, Scope};

/// The group that may do everything.
const ADMIN_GROUP: &str = "system:masters";
const ADMIN: &str = "test-admin";

/// What a test wants beyond an API server with service accounts and namespaces.
#[derive(Clone, Debug)]
pub struct Options {
    /// Run a scheduler; without one, tests set `spec.nodeName` themselves.
    pub scheduler: bool,
    /// The controllers that run, by upstream's names; none at all runs no controller manager.
    pub controllers: Vec<String>,
    /// Host names and addresses, beyond loopback's, that the API server's certificate is valid for.
    pub extra_hosts: Vec<String>,
    /// Flags for the API server, such as `--feature-gates=…` or `--v=4`; a later flag wins over ours.
    pub apiserver_flags: Vec<String>,
    /// The same for the controller manager, such as how long a silent node counts as alive.
    pub controller_manager_flags: Vec<String>,
    /// Nodes hear that their pods' tokens live for this long, which is shorter than any API server issues.
    pub token_life: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scheduler: false,
            controllers: DEFAULT_CONTROLLERS.map(str::to_owned).to_vec(),
            extra_hosts: Vec::new(),
            apiserver_flags: Vec::new(),
            controller_manager_flags: Vec::new(),
            token_life: None,
        }
    }
}

impl Options {
    /// Runs a scheduler.
    #[must_use]
    pub fn with_scheduler(mut self) -> Self {
        self.scheduler = true;
        self
    }

    /// Runs one more controller.
    #[must_use]
    pub fn with_controller(mut self, name: &str) -> Self {
        self.controllers.push(name.to_owned());
        self
    }
}

/// A running control plane. Dropping it ends its programs.
pub struct ControlPlane {
    // Fields are dropped in this order: who depends on whom, last the store.
    scheduler: Option<Process>,
    controller_manager: Option<Process>,
    apiserver: ApiServer,
    etcd: Etcd,
    place: Place,
    authority: Authority,
    files: SharedFiles,
    admin: Client,
    probe: Client,
    admin_kubeconfig: PathBuf,
    next_file: AtomicU32,
    token_life: Option<Duration>,
}

impl ControlPlane {
    /// Starts everything and waits until it works.
    pub async fn start(scope: &Scope, options: Options) -> Result<Self> {
        let place = Place::create(scope)?;
        let authority = Authority::new("rubelet-test-ca")?;
        let etcd = Etcd::start(scope, &place).await?;
        let (apiserver, files) =
            ApiServer::prepare(scope, &place, &authority, &etcd.access, &options).await?;
        let endpoint = apiserver.endpoint();
        let credentials = authority.client(ADMIN, &[ADMIN_GROUP])?;
        let text = || {
            KubeconfigText::new(
                &endpoint,
                authority.certificate_pem(),
                ADMIN,
                &Proof::Certificate(&credentials),
            )
        };
        let admin_kubeconfig = place.kubeconfigs().join("admin");
        text().write(&admin_kubeconfig)?;
        let (admin, probe) = (text().client().await?, text().probe_client().await?);
        let mut control_plane = Self {
            scheduler: None,
            controller_manager: None,
            apiserver,
            etcd,
            place,
            authority,
            files,
            admin,
            probe,
            admin_kubeconfig,
            next_file: AtomicU32::new(0),
            token_life: options.token_life,
        };
        control_plane.start_apiserver().await?;
        control_plane.start_controllers(scope, &options).await?;
        Ok(control_plane)
    }

    async fn start_controllers(&mut self, scope: &Scope, options: &Options) -> Result<()> {
        let scheduler = async {
            if !options.scheduler {
                return Ok(None);
            }
            let kubeconfig = self.kubeconfig_for("system:kube-scheduler", &[])?;
            controllers::start_scheduler(scope, &self.place, &self.authority, &kubeconfig)
                .await
                .map(Some)
        };
        let controller_manager = async {
            if options.controllers.is_empty() {
                return Ok(None);
            }
            // One mighty user for all controllers, where a production cluster has a service account for each.
            let kubeconfig = self.kubeconfig_for("system:kube-controller-manager", &[ADMIN_GROUP])?;
            let (place, authority, files) = (&self.place, &self.authority, &self.files);
            controllers::start_controller_manager(scope, place, authority, files, &kubeconfig, options)
                .await
                .map(Some)
        };
        (self.scheduler, self.controller_manager) = tokio::try_join!(scheduler, controller_manager)?;
        Ok(())
    }

    /// The API server's URL.
    pub fn endpoint(&self) -> String {
        self.apiserver.endpoint()
    }

    /// The certificate of the authority that signs for servers, users and kubelets alike.
    pub fn ca_pem(&self) -> &str {
        self.authority.certificate_pem()
    }

    /// The same as a file: a kubelet's `clientCAFile`.
    pub fn ca_file(&self) -> &Path {
        &self.files.ca
    }

    /// A client that may do everything.
    pub fn admin_client(&self) -> Client {
        self.admin.clone()
    }

    /// A client for a user in up to two groups.
    pub async fn client_for(&self, user: &str, groups: &[&str]) -> Result<Client> {
        self.kubeconfig_text(user, groups)?.client().await
    }

    /// A client that is a node's kubelet.
    pub async fn node_client(&self, node_name: &str) -> Result<Client> {
        self.client_for(&node_user(node_name), &["system:nodes"]).await
    }

    /// A new kubeconfig file for a user in up to two groups.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        self.write_kubeconfig(user, &self.kubeconfig_text(user, groups)?)
    }

    /// A new kubeconfig file for a node's kubelet.
    pub fn node_kubeconfig(&self, node_name: &str) -> Result<PathBuf> {
        self.kubeconfig_for(&node_user(node_name), &["system:nodes"])
    }

    /// The same as these options want it; a node in a network of its own finds the API server at `gateway`, the machine's
    /// address there.
    pub async fn node_kubeconfig_at(&self, node_name: &str, gateway: Option<IpAddr>) -> Result<PathBuf> {
        if gateway.is_none() && self.token_life.is_none() {
            return self.node_kubeconfig(node_name);
        }
        let user = node_user(node_name);
        let text = self.kubeconfig_text(&user, &["system:nodes"])?;
        let server = match self.token_life {
            Some(life) => {
                let client = self.node_client(node_name).await?;
                token_relay::start(&self.authority, client, life).await?
            }
            None => self.apiserver.address(),
        };
        let found = match gateway {
            Some(gateway) => entrance::open((gateway, 0).into(), server).await?,
            None => server,
        };
        self.write_kubeconfig(&user, &text.found_at(found))
    }

    /// Lets the API server be found at one more address, as long as the test's runtime lives.
    pub async fn open_entrance(&self, at: SocketAddr) -> Result<()> {
        entrance::open(at, self.apiserver.address()).await.map(drop)
    }

    /// A new kubeconfig file with a new bootstrap token, whose holder may join as a node; its requests are approved and signed.
    pub async fn bootstrap_kubeconfig(&self) -> Result<PathBuf> {
        let token = bootstrap::create_token(&self.admin).await?;
        let user = "kubelet-bootstrap";
        let text = KubeconfigText::new(&self.endpoint(), self.ca_pem(), user, &Proof::Token(&token));
        self.write_kubeconfig(user, &text)
    }

    /// A serving certificate for a kubelet that the API server will trust.
    pub fn kubelet_serving_files(&self, node_name: &str, hosts: &[&str]) -> Result<CredentialFiles> {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let credentials = self
            .authority
            .server(&node_user(node_name), &["system:nodes"], hosts)?;
        credentials.write(
            &self.place.pki(),
            &self.file_name(&format!("kubelet-{node_name}")),
        )
    }

    /// The files of a client that proves who it is with a certificate, for programs that read no kubeconfig.
    pub fn client_files(&self, user: &str) -> Result<CredentialFiles> {
        let name = self.file_name(user);
        self.authority.client(user, &[])?.write(&self.place.pki(), &name)
    }

    /// Lets a user read statistics of nodes, which is what programs that scrape kubelets need.
    pub async fn allow_metrics(&self, user: &str) -> Result<()> {
        metrics_server::allow_metrics(&self.admin, user).await
    }

    /// Starts metrics-server and waits until the API server passes requests for its API on.
    pub async fn start_metrics_server(&self, scope: &Scope) -> Result<MetricsServer> {
        let kubeconfig = self.kubeconfig_for(metrics_server::USER, &[])?;
        let parts = (&self.place, &self.authority);
        MetricsServer::start(scope, parts, &self.files.ca, (&self.admin, &kubeconfig)).await
    }

    /// Runs kubectl as the administrator and returns what it said, whether it succeeded or not.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        self.kubectl_with_input(arguments, Vec::new()).await
    }

    /// The same, with something to read.
    pub async fn kubectl_with_input(&self, arguments: &[&str], input: Vec<u8>) -> Result<Output> {
        let command = self.kubectl_command(arguments).await?;
        self.run_with_input(command, input).await
    }

    /// The same for a command that was made ready before.
    pub async fn run_with_input(&self, mut command: Command, input: Vec<u8>) -> Result<Output> {
        let stdin = if input.is_empty() {
            Stdio::null()
        } else {
            Stdio::piped()
        };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = move || {
            let mut child = spawn_dying_with_us(command)?;
            let stdin = child.stdin.take();
            // Beside the reading of its output: a full pipe must not hold up the other.
            let feeding = std::thread::spawn(move || match stdin {
                Some(mut stdin) => stdin.write_all(&input),
                None => Ok(()),
            });
            let output = child.wait_with_output()?;
            // Whoever ends early does not read everything.
            drop(feeding.join());
            Ok(output)
        };
        tokio::task::spawn_blocking(run)
            .await
            .context("wait for kubectl")?
    }

    /// Kubectl as the administrator, ready to be started.
    pub async fn kubectl_command(&self, arguments: &[&str]) -> Result<Command> {
        let program = program_path(Program::Kubectl).await?;
        let mut command = Command::new(program);
        command
            .arg(format!("--kubeconfig={}", self.admin_kubeconfig.display()))
            .args(arguments)
            .current_dir(self.place.dir())
            // Its discovery cache goes where everything else of the test goes.
            .env("HOME", self.place.dir())
            .env_remove("KUBECONFIG");
        Ok(command)
    }

    /// Stops etcd and starts it again on the same data; the API server keeps running.
    pub async fn restart_etcd(&mut self) -> Result<()> {
        self.etcd.restart(&self.place).await?;
        self.wait_ready().await
    }

    /// Waits until the API server says that it is ready.
    pub async fn wait_ready(&mut self) -> Result<()> {
        self.apiserver.wait_ready(&self.probe).await
    }

    /// Stops the API server; everything else keeps running, the objects stay.
    pub async fn stop_apiserver(&mut self) -> Result<()> {
        self.apiserver.stop().await
    }

    /// Kills the API server, which nobody is told of; everything else keeps running, the objects stay.
    pub fn kill_apiserver(&mut self) -> Result<()> {
        self.apiserver.kill()
    }

    /// Starts the API server, at the same address as ever, unless it runs, and waits until it is ready.
    pub async fn start_apiserver(&mut self) -> Result<()> {
        self.apiserver.launch(&self.place)?;
        self.wait_ready().await
    }

    /// Stops the API server and starts it again.
    pub async fn restart_apiserver(&mut self) -> Result<()> {
        self.stop_apiserver().await?;
        self.start_apiserver().await
    }

    /// The programs that run, by name.
    pub fn processes(&self) -> Vec<(&'static str, &Process)> {
        let all = [
            ("etcd", Some(&self.etcd.process)),
            ("kube-apiserver", self.apiserver.process()),
            ("kube-controller-manager", self.controller_manager.as_ref()),
            ("kube-scheduler", self.scheduler.as_ref()),
        ];
        all.into_iter()
            .filter_map(|(name, process)| Some((name, process?)))
            .collect()
    }

    fn kubeconfig_text(&self, user: &str, groups: &[&str]) -> Result<KubeconfigText> {
        let credentials = self.authority.client(user, groups)?;
        Ok(KubeconfigText::new(
            &self.endpoint(),
            self.ca_pem(),
            user,
            &Proof::Certificate(&credentials),
        ))
    }

    fn write_kubeconfig(&self, user: &str, text: &KubeconfigText) -> Result<PathBuf> {
        let path = self.place.kubeconfigs().join(self.file_name(user));
        text.write(&path)?;
        Ok(path)
    }

    /// A file name of its own for everything written on request, made of a user's or node's name.
    fn file_name(&self, name: &str) -> String {
        let plain: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        format!("{plain}-{}", self.next_file.fetch_add(1, Ordering::Relaxed))
    }
}

fn node_user(node_name: &str) -> String {
    format!("system:node:{node_name}")
}
