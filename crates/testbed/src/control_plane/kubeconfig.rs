//! Ways into the API server: kubeconfig files for programs, clients for tests, and the probe of a health endpoint.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use super::pki::{Credentials, write_private};

pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// What every certificate of the API server is good for, wherever it is found.
pub(super) const API_NAME: &str = "kubernetes.default.svc";

/// What a user shows to the API server.
pub(super) enum Proof<'a> {
    Certificate(&'a Credentials),
    Token(&'a str),
}

/// The kubeconfig of one user of one API server, everything inline, so that the file can be carried elsewhere.
pub(super) struct KubeconfigText(Value);

impl KubeconfigText {
    pub(super) fn new(endpoint: &str, ca_pem: &str, user: &str, proof: &Proof<'_>) -> Self {
        let proof = match proof {
            Proof::Certificate(credentials) => json!({
                "client-certificate-data": STANDARD.encode(&credentials.certificate_pem),
                "client-key-data": STANDARD.encode(&credentials.key_pem),
            }),
            Proof::Token(token) => json!({ "token": token }),
        };
        Self(json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "test",
                "cluster": { "server": endpoint, "certificate-authority-data": STANDARD.encode(ca_pem) },
            }],
            "users": [{ "name": user, "user": proof }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": user } }],
            "current-context": "test",
        }))
    }

    /// The same for a server that is found somewhere else than where its certificate says.
    #[must_use]
    pub(super) fn found_at(mut self, address: SocketAddr) -> Self {
        let cluster = &mut self.0["clusters"][0]["cluster"];
        cluster["server"] = json!(format!("https://{address}"));
        cluster["tls-server-name"] = json!(API_NAME);
        self
    }

    /// Writes the file; JSON is YAML too.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        write_private(path, &self.0.to_string())
    }

    /// A client for the same user.
    pub(super) async fn client(self) -> Result<Client> {
        Ok(Client::try_from(self.config().await?)?)
    }

    /// The same, that gives up on an answer after a while.
    pub(super) async fn probe_client(self) -> Result<Client> {
        let mut config = self.config().await?;
        config.read_timeout = Some(PROBE_TIMEOUT);
        Ok(Client::try_from(config)?)
    }

    async fn config(self) -> Result<Config> {
        let kubeconfig: Kubeconfig = serde_json::from_value(self.0).context("read back a kubeconfig")?;
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .context("configure a client")?;
        // A proxy of the environment has no way to this machine's loopback.
        config.proxy_url = None;
        Ok(config)
    }
}

/// Succeeds when a health endpoint says `ok`.
pub(super) async fn probe_path(client: &Client, path: &str) -> Result<()> {
    let request = http::Request::get(path).body(Vec::new())?;
    let answer = client.request_text(request).await?;
    ensure!(answer == "ok", "{path} says {answer}");
    Ok(())
}
