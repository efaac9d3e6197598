//! The control plane's store: one etcd member on loopback, behind client certificates, that never waits for the disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use super::pki::{Authority, CredentialFiles};
use super::place::{Flags, LOOPBACK, Place, probe_port, program_path, wait_serving};
use crate::process::Process;
use crate::{Program, Scope};

const END_DEADLINE: Duration = Duration::from_secs(30);

/// A running etcd.
pub(super) struct Etcd {
    pub(super) process: Process,
    program: PathBuf,
    flags: Flags,
    port: u16,
    /// What the API server needs to reach it.
    pub(super) access: EtcdAccess,
}

/// How to reach an etcd.
pub(super) struct EtcdAccess {
    pub(super) url: String,
    pub(super) ca: PathBuf,
    pub(super) client: CredentialFiles,
}

impl Etcd {
    pub(super) async fn start(scope: &Scope, place: &Place) -> Result<Self> {
        let program = program_path(Program::Etcd).await?;
        let pki = place.pki();
        // An authority of its own: a user of the API server is not a user of its store.
        let authority = Authority::new("etcd-ca")?;
        let ca = pki.join("etcd-ca.crt");
        super::pki::write_private(&ca, authority.certificate_pem())?;
        let member = authority
            .peer("etcd", vec![LOOPBACK.to_string()])?
            .write(&pki, "etcd")?;
        let client = authority
            .client("kube-apiserver-etcd-client", &[])?
            .write(&pki, "etcd-client")?;

        let client_port = scope.port()?;
        let url = format!("https://{LOOPBACK}:{client_port}");
        let peer_url = format!("https://{LOOPBACK}:{}", scope.port()?);
        let flags = Flags::default()
            .set("name", "etcd")
            .path("data-dir", &place.dir().join("etcd"))
            .set("listen-client-urls", &url)
            .set("advertise-client-urls", &url)
            .set("listen-peer-urls", &peer_url)
            .set("initial-advertise-peer-urls", &peer_url)
            .set("initial-cluster", format!("etcd={peer_url}"))
            .path("cert-file", &member.certificate)
            .path("key-file", &member.key)
            .path("trusted-ca-file", &ca)
            .set("client-cert-auth", true)
            .path("peer-cert-file", &member.certificate)
            .path("peer-key-file", &member.key)
            .path("peer-trusted-ca-file", &ca)
            .set("peer-client-cert-auth", true)
            // The data does not outlive the test, so nothing has to survive a power failure.
            .set("unsafe-no-fsync", true)
            .set("log-level", "warn");
        Ok(Self {
            process: launch(place, &program, &flags, client_port).await?,
            program,
            flags,
            port: client_port,
            access: EtcdAccess { url, ca, client },
        })
    }

    /// Kills it and starts it again on what it has stored.
    pub(super) async fn restart(&mut self, place: &Place) -> Result<()> {
        self.process.signal(Signal::KILL)?;
        self.process.wait(END_DEADLINE)?;
        self.process = launch(place, &self.program, &self.flags, self.port).await?;
        Ok(())
    }
}

async fn launch(place: &Place, program: &Path, flags: &Flags, port: u16) -> Result<Process> {
    let mut process = place.spawn("etcd", program, flags)?;
    wait_serving("etcd listens", &mut process, || probe_port(port)).await?;
    Ok(process)
}
