//! The API server: which flags it runs with, and starting it as often as a test wants.
//!
//! It listens on loopback only, authorizes with Node and RBAC, and admits with NodeRestriction on top of the defaults.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use rustix::process::Signal;

use super::Options;
use super::etcd::EtcdAccess;
use super::kubeconfig::{API_NAME, probe_path};
use super::pki::{Authority, write_private, write_service_account_keys};
use super::place::{Flags, LOOPBACK, Place, program_path, wait_serving};
use crate::process::Process;
use crate::{Program, Scope};

/// Requests in flight get this long when the API server is stopped; then it is killed. It stops listening at once, and what it
/// would wait for beyond this are the watches of others, for a minute.
const STOP_GRACE: Duration = Duration::from_secs(1);
const END_DEADLINE: Duration = Duration::from_secs(30);
const SERVICE_CIDR: &str = "10.96.0.0/16";
/// The first address of the service range, under which pods see the API server.
const SERVICE_ADDRESS: &str = "10.96.0.1";

/// As whom the API server passes requests on to the servers that extend it.
const FRONT_PROXY: &str = "front-proxy-client";

/// The API server of one control plane; the process comes and goes, port and keys stay.
pub(super) struct ApiServer {
    program: PathBuf,
    flags: Flags,
    port: u16,
    process: Option<Process>,
}

/// Files that other parts of the control plane and the kubelet share with the API server.
pub(super) struct SharedFiles {
    pub(super) ca: PathBuf,
    pub(super) service_account_key: PathBuf,
}

impl ApiServer {
    /// Prepares the API server; it does not run yet.
    pub(super) async fn prepare(
        scope: &Scope,
        place: &Place,
        authority: &Authority,
        etcd: &EtcdAccess,
        options: &Options,
    ) -> Result<(Self, SharedFiles)> {
        let program = program_path(Program::KubeApiserver).await?;
        let port = scope.port()?;
        let pki = place.pki();
        let ca = pki.join("ca.crt");
        write_private(&ca, authority.certificate_pem())?;
        let mut hosts: Vec<String> = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            API_NAME,
            SERVICE_ADDRESS,
        ]
        .map(str::to_owned)
        .to_vec();
        hosts.push(LOOPBACK.to_string());
        hosts.extend(options.extra_hosts.iter().cloned());
        let serving = authority
            .server("kube-apiserver", &[], hosts)?
            .write(&pki, "apiserver")?;
        let kubelet_client = authority
            .client("kube-apiserver-kubelet-client", &["system:masters"])?
            .write(&pki, "apiserver-kubelet-client")?;
        let service_account = write_service_account_keys(&pki)?;
        let front_proxy = authority.client(FRONT_PROXY, &[])?.write(&pki, FRONT_PROXY)?;

        let flags = listening_flags(port)
            .path("tls-cert-file", &serving.certificate)
            .path("tls-private-key-file", &serving.key)
            .path("client-ca-file", &ca)
            .set("etcd-servers", &etcd.url)
            .path("etcd-cafile", &etcd.ca)
            .path("etcd-certfile", &etcd.client.certificate)
            .path("etcd-keyfile", &etcd.client.key)
            .path("kubelet-certificate-authority", &ca)
            .path("kubelet-client-certificate", &kubelet_client.certificate)
            .path("kubelet-client-key", &kubelet_client.key)
            .path("requestheader-client-ca-file", &ca)
            .path("proxy-client-cert-file", &front_proxy.certificate)
            .path("proxy-client-key-file", &front_proxy.key)
            .path("service-account-key-file", &service_account.certificate)
            .path("service-account-signing-key-file", &service_account.key);
        let flags = behaviour_flags(flags).extend(&options.apiserver_flags);
        let shared = SharedFiles {
            ca,
            service_account_key: service_account.key,
        };
        Ok((
            Self {
                program,
                flags,
                port,
                process: None,
            },
            shared,
        ))
    }

    pub(super) fn endpoint(&self) -> String {
        format!("https://{LOOPBACK}:{}", self.port)
    }

    pub(super) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Starts the process unless it runs.
    pub(super) fn launch(&mut self, place: &Place) -> Result<()> {
        if self.process.is_none() {
            self.process = Some(place.spawn("kube-apiserver", &self.program, &self.flags)?);
        }
        Ok(())
    }

    /// Waits until every start-up hook has run and the store answers.
    pub(super) async fn wait_ready(&mut self, probe: &Client) -> Result<()> {
        let process = self.process.as_mut().context("the API server is stopped")?;
        wait_serving("the API server is ready", process, || {
            probe_path(probe, "/readyz")
        })
        .await
    }

    pub(super) fn address(&self) -> SocketAddr {
        (LOOPBACK, self.port).into()
    }

    /// Ends the process with SIGKILL.
    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::KILL)?;
            process.wait(END_DEADLINE)?;
        }
        Ok(())
    }

    /// Ends the process, gently at first.
    pub(super) async fn stop(&mut self) -> Result<()> {
        if let Some(process) = self.process.take() {
            tokio::task::spawn_blocking(move || process.terminate(STOP_GRACE))
                .await
                .context("stop the API server")??;
        }
        Ok(())
    }
}

fn listening_flags(port: u16) -> Flags {
    Flags::default()
        .set("bind-address", LOOPBACK)
        .set("advertise-address", LOOPBACK)
        .set("secure-port", port)
        // A loopback address is no valid endpoint of the `kubernetes` service, so nobody publishes one.
        .set("endpoint-reconciler-type", "none")
        .set("service-cluster-ip-range", SERVICE_CIDR)
}

fn behaviour_flags(flags: Flags) -> Flags {
    flags
        .set("authorization-mode", "Node,RBAC")
        .set("enable-admission-plugins", "NodeRestriction")
        .set("enable-bootstrap-token-auth", true)
        .set(
            "service-account-issuer",
            "https://kubernetes.default.svc.cluster.local",
        )
        .set("requestheader-allowed-names", FRONT_PROXY)
        .set("requestheader-username-headers", "X-Remote-User")
        .set("requestheader-group-headers", "X-Remote-Group")
        .set("requestheader-extra-headers-prefix", "X-Remote-Extra-")
        .set("kubelet-preferred-address-types", "InternalIP,Hostname")
        .set("allow-privileged", true)
        // Cost without use on a machine that lives for one test.
        .set("enable-priority-and-fairness", false)
        .set("etcd-compaction-interval", "0")
        .set("etcd-count-metric-poll-period", "0")
        .set("etcd-db-metric-poll-interval", "0")
        .set("profiling", false)
}
