//! What acts on the API server's objects: the controller manager, cut down to the controllers asked for, and the scheduler.

use std::path::Path;

use anyhow::Result;
use kube::Client;

use super::Options;
use super::apiserver::SharedFiles;
use super::kubeconfig::probe_path;
use super::pki::{Authority, CredentialFiles};
use super::place::{Flags, LOOPBACK, Place, program_path, wait_serving};
use crate::process::Process;
use crate::{Program, Scope};

/// What pods, namespaces and joining nodes need. More by name in [`super::Options::controllers`].
pub const DEFAULT_CONTROLLERS: [&str; 6] = [
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "namespace-controller",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-signing-controller",
];

/// Marks a node that stopped reporting as not ready.
pub const NODE_LIFECYCLE: &str = "node-lifecycle-controller";
/// Evicts pods from nodes with a `NoExecute` taint.
pub const TAINT_EVICTION: &str = "taint-eviction-controller";
/// Removes pods whose node is gone.
pub const POD_GARBAGE_COLLECTOR: &str = "pod-garbage-collector-controller";

/// One process here with its own health endpoint.
struct Server<'a> {
    program: Program,
    name: &'static str,
    health_path: &'static str,
    flags: Flags,
    place: &'a Place,
}

/// Starts the controller manager and waits until its controllers run.
pub(super) async fn start_controller_manager(
    scope: &Scope,
    place: &Place,
    authority: &Authority,
    files: &SharedFiles,
    kubeconfig: &Path,
    options: &Options,
) -> Result<Process> {
    let name = "kube-controller-manager";
    let signer: CredentialFiles = authority.credentials().write(&place.pki(), "ca-signer")?;
    let flags = Flags::default()
        .path("kubeconfig", kubeconfig)
        .set("controllers", options.controllers.join(","))
        .path("root-ca-file", &files.ca)
        .path("service-account-private-key-file", &files.service_account_key)
        .path("cluster-signing-cert-file", &signer.certificate)
        .path("cluster-signing-key-file", &signer.key)
        .set("leader-elect", false)
        .set("profiling", false)
        .extend(&options.controller_manager_flags);
    let server = Server {
        program: Program::KubeControllerManager,
        name,
        health_path: "/healthz",
        flags,
        place,
    };
    server.start(scope, authority).await
}

/// Starts the scheduler and waits until its caches are filled.
pub(super) async fn start_scheduler(
    scope: &Scope,
    place: &Place,
    authority: &Authority,
    kubeconfig: &Path,
) -> Result<Process> {
    let flags = Flags::default()
        .path("kubeconfig", kubeconfig)
        .set("leader-elect", false)
        .set("profiling", false);
    let server = Server {
        program: Program::KubeScheduler,
        name: "kube-scheduler",
        health_path: "/readyz",
        flags,
        place,
    };
    server.start(scope, authority).await
}

impl Server<'_> {
    async fn start(self, scope: &Scope, authority: &Authority) -> Result<Process> {
        let program = program_path(self.program).await?;
        let serving = authority
            .server(self.name, &[], vec![LOOPBACK.to_string()])?
            .write(&self.place.pki(), self.name)?;
        let port = scope.port()?;
        let flags = self
            .flags
            .set("bind-address", LOOPBACK)
            .set("secure-port", port)
            .path("tls-cert-file", &serving.certificate)
            .path("tls-private-key-file", &serving.key);
        let mut process = self.place.spawn(self.name, &program, &flags)?;
        let probe = anonymous_client(port, authority)?;
        let what = format!("{} is healthy", self.name);
        wait_serving(&what, &mut process, || probe_path(&probe, self.health_path)).await?;
        Ok(process)
    }
}

fn anonymous_client(port: u16, authority: &Authority) -> Result<Client> {
    let mut config = kube::Config::new(format!("https://{LOOPBACK}:{port}").parse()?);
    config.root_cert = Some(vec![authority.certificate_der().to_vec()]);
    config.read_timeout = Some(super::kubeconfig::PROBE_TIMEOUT);
    Ok(Client::try_from(config)?)
}
