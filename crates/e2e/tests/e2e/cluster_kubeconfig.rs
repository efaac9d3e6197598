//! Kubeconfigs that lead nowhere, to a stranger, or to a server that does not take our word; a clock that is wrong; a name that is
//! taken. Each is told in one clear line, and whatever can get better by itself is tried again.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Node as NodeObject, ServiceAccount};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::control_plane::{self, ControlPlane};
use rubelet_testbed::in_scope;
use rubelet_testbed::node::{Bed, Kubelet, Options};
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

const DEADLINE: Duration = Duration::from_secs(120);

/// A node and what it is told of its cluster.
struct Newcomer<'a> {
    control_plane: ControlPlane,
    bed: Bed<'a>,
    kubeconfig: PathBuf,
    /// A kubeconfig with nothing wrong.
    good: Value,
}

#[test]
fn what_keeps_a_node_from_its_cluster_is_said() {
    in_scope("cluster_kubeconfig", async |scope| {
        let kubelet = Kubelet::chosen()?;
        if !kubelet.is_rubelet() {
            // Upstream says other things, in more lines.
            return Ok(());
        }
        let plane = control_plane::Options {
            controllers: Vec::new(),
            ..control_plane::Options::default()
        };
        let control_plane = ControlPlane::start(scope, plane).await?;
        let kubeconfig = scope.path("node.kubeconfig");
        let mut options = Options::new(kubelet);
        options
            .arguments
            .push(format!("--kubeconfig={}", kubeconfig.display()));
        let good = fs::read(control_plane.node_kubeconfig(&options.node_name(scope))?)?;
        let good: Value = serde_json::from_slice(&good)?;
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, scope.port()?));
        write(
            &kubeconfig,
            &with_cluster(&good, "server", &format!("https://{nowhere}")),
        )?;
        let mut newcomer = Newcomer {
            control_plane,
            bed: Bed::start(scope, Flavour::V2, options).await?,
            kubeconfig,
            good,
        };
        newcomer.waits_for_a_server(nowhere).await?;
        newcomer.distrusts_a_stranger().await?;
        newcomer.names_its_clock().await?;
        newcomer.names_its_expired_token().await?;
        newcomer.sees_that_its_name_is_taken().await
    });
}

impl Newcomer<'_> {
    async fn is_ready(&self) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(self.control_plane.admin_client());
        wait_until("the node is ready", DEADLINE, async || {
            let node = nodes.get(self.bed.node.name()).await?;
            let conditions = node
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
            ensure!(ready.context("no condition Ready")?.status == "True", "{ready:?}");
            Ok(())
        })
        .await
        .with_context(|| self.bed.node.log_tail())
    }

    /// Starts the kubelet again with another kubeconfig, and waits until a line of its log has all these words.
    async fn says(&mut self, kubeconfig: &Value, words: &[&str]) -> Result<()> {
        self.bed.node.terminate()?;
        write(&self.kubeconfig, kubeconfig)?;
        self.bed.node.start_again()?;
        let said = self.bed.node.wait_for_log(words).await;
        said.map(drop).with_context(|| self.bed.node.log_tail())
    }

    /// Many tries, one line, and a node that is there as soon as its server is.
    async fn waits_for_a_server(&self, nowhere: SocketAddr) -> Result<()> {
        let reason = format!("cannot reach https://{nowhere}: Connection refused");
        let words = ["no connection to the API server", reason.as_str()];
        let said = self.bed.node.wait_for_log(&words).await;
        said.with_context(|| self.bed.node.log_tail())?;
        self.control_plane.open_entrance(nowhere).await?;
        self.is_ready().await?;
        let lines = self.bed.node.log_lines(&words)?;
        ensure!(lines.len() == 1, "{lines:#?}");
        Ok(())
    }

    async fn distrusts_a_stranger(&mut self) -> Result<()> {
        let stranger = STANDARD.encode(Server::new()?.authority_pem);
        let kubeconfig = with_cluster(&self.good, "certificate-authority-data", &stranger);
        let words = [
            "is not signed by an authority that we trust",
            "is certificate-authority in the kubeconfig the right one?",
        ];
        self.says(&kubeconfig, &words).await
    }

    /// From where this node stands, a certificate that begins later and a clock that is behind are the same.
    async fn names_its_clock(&mut self) -> Result<()> {
        let server = Server::new()?;
        let authority = STANDARD.encode(&server.authority_pem);
        let address = server.start().await?;
        let kubeconfig = with_cluster(&self.good, "server", &format!("https://{address}"));
        let kubeconfig = with_cluster(&kubeconfig, "certificate-authority-data", &authority);
        let words = [
            "is valid only from 2999-01-01T00:00:00Z; this node's clock says",
            "may be behind",
        ];
        self.says(&kubeconfig, &words).await
    }

    /// No API server issues a token that has ended: the end of this one is set back, which the server likes no better.
    async fn names_its_expired_token(&mut self) -> Result<()> {
        let client = self.control_plane.admin_client();
        let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
        let account = serde_json::from_value(json!({ "metadata": { "name": "newcomer" } }))?;
        accounts.create(&PostParams::default(), &account).await?;
        let request: TokenRequest = serde_json::from_value(json!({ "spec": { "audiences": [] } }))?;
        let issued = accounts
            .create_token_request("newcomer", &PostParams::default(), &request)
            .await?;
        let issued = issued.status.and_then(|status| status.token).context("a token")?;
        let mut parts: Vec<String> = issued.split('.').map(str::to_owned).collect();
        let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(&parts[1])?)?;
        claims["exp"] = json!(1_000_000_000);
        parts[1] = URL_SAFE_NO_PAD.encode(claims.to_string());
        let token = parts.join(".");
        let mut kubeconfig = self.good.clone();
        kubeconfig["users"][0]["user"] = json!({ "token": token });
        self.says(
            &kubeconfig,
            &["Unauthorized", "our token expired at 2001-09-09T01:46:40Z"],
        )
        .await?;
        ensure!(!self.bed.node.log()?.contains(&token), "the log has the token");
        Ok(())
    }

    async fn sees_that_its_name_is_taken(&mut self) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(self.control_plane.admin_client());
        let patch = json!({ "status": { "nodeInfo": { "machineID": "another" } } });
        nodes
            .patch_status(
                self.bed.node.name(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await?;
        let words = [
            "kept by another machine",
            "another name",
            "their_machine_id=\"another\"",
        ];
        self.says(&self.good.clone(), &words).await?;
        self.is_ready().await
    }
}

fn write(path: &PathBuf, kubeconfig: &Value) -> Result<()> {
    fs::write(path, kubeconfig.to_string()).context("write the kubeconfig")
}

fn with_cluster(kubeconfig: &Value, field: &str, value: &str) -> Value {
    let mut kubeconfig = kubeconfig.clone();
    kubeconfig["clusters"][0]["cluster"][field] = json!(value);
    kubeconfig
}

/// A server of an authority of its own, whose certificate is not valid yet.
struct Server {
    authority_pem: String,
    config: ServerConfig,
}

impl Server {
    fn new() -> Result<Self> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let authority_pem = authority.self_signed(&key)?.pem();
        let issuer = Issuer::new(authority, key);
        let mut params = CertificateParams::new(vec![Ipv4Addr::LOCALHOST.to_string()])?;
        params.not_before = date_time_ymd(2999, 1, 1);
        params.not_after = date_time_ymd(3000, 1, 1);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from(certificate.der().to_vec())],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )?;
        Ok(Self {
            authority_pem,
            config,
        })
    }

    /// Shows the certificate to everybody, as long as the test's runtime lives.
    async fn start(self) -> Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let acceptor = TlsAcceptor::from(Arc::new(self.config));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // Nobody is expected to like it.
                drop(acceptor.accept(stream).await);
            }
        });
        Ok(address)
    }
}
