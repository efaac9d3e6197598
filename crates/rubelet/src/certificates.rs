//! The node's own certificates: the kubeconfig that the API server's client needs, and the tasks that renew them afterwards.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use rubelet_apiserver::{
    ApiServer, ApiServerOptions, ClientIdentity, inline_certificate, kubeconfig_for_certificate, user_agent,
};
use rubelet_certificates::{
    BootstrapSigner, CertificateHandle, CertificatePorts, CertificateSink, ClientSettings, PemPair,
    ServingSettings, client_certificate_path, keep_client_certificate, keep_serving_certificate,
};
use rubelet_config::gates::Gate;
use rubelet_config::settings::Settings;
use rubelet_ports::api::SigningRequests;
use rubelet_ports::{FileWriter, Spawner as _};
use rubelet_proxy::ProxyEnvironment;
use rubelet_server::ServingCertificate;
use tokio::sync::watch;

use crate::cluster::proxies;
use crate::edges::Edges;

/// Whether the client may start without a certificate, because the bootstrap will request one.
pub(crate) fn may_come_later(settings: &Settings) -> bool {
    settings.configuration().rotate_certificates || settings.flags().bootstrap_kubeconfig.is_some()
}

/// Makes `--kubeconfig` from `--bootstrap-kubeconfig` where it is missing or holds no valid certificate. It names the certificate's
/// file, which the task of [`keep_client`] fills later; start-up does not wait for it, so that static pods start meanwhile.
pub(crate) async fn prepare_kubeconfig(settings: &Settings, files: &dyn FileWriter) -> Result<()> {
    let flags = settings.flags();
    let (Some(kubeconfig), Some(bootstrap)) = (&flags.kubeconfig, &flags.bootstrap_kubeconfig) else {
        return Ok(());
    };
    match still_valid(kubeconfig, settings) {
        Ok(()) => {
            tracing::info!("The kubeconfig holds a valid certificate; no bootstrap is needed");
            return Ok(());
        }
        Err(why) => tracing::info!(why, "The kubeconfig is made from the bootstrap kubeconfig"),
    }
    let certificate = client_certificate_path(&directory(settings)?);
    let text = kubeconfig_for_certificate(bootstrap, &certificate).context("use --bootstrap-kubeconfig")?;
    if let Some(parent) = kubeconfig.parent() {
        files
            .create_directory(parent, 0o755)
            .await
            .context("write --kubeconfig")?;
    }
    files
        .write(kubeconfig, text.as_bytes(), 0o600)
        .await
        .context("write --kubeconfig")
}

/// The error is the reason why not.
fn still_valid(kubeconfig: &Path, settings: &Settings) -> Result<(), String> {
    let mut options = ApiServerOptions::new(kubeconfig, user_agent(settings.reported_version()));
    options.may_lack_certificate = true;
    let api = ApiServer::connect(&options).map_err(|error| error.to_string())?;
    match api.identity().expires_at() {
        None => Err("it names no certificate that can be read".to_owned()),
        Some(at) if at <= SystemTime::now() => Err("its certificate has expired".to_owned()),
        Some(_) => Ok(()),
    }
}

/// Links in the directory are absolute, as upstream's.
fn directory(settings: &Settings) -> Result<PathBuf> {
    std::path::absolute(&settings.flags().cert_dir).context("find --cert-dir")
}

/// Starts the renewal of the client certificate, where the settings ask for it.
pub(crate) fn keep_client(
    settings: &Settings,
    node_name: &str,
    edges: &Edges,
) -> Result<Option<CertificateHandle>> {
    let flags = settings.flags();
    let (Some(api), Some(kubeconfig), true) = (&edges.api, &flags.kubeconfig, may_come_later(settings))
    else {
        return Ok(None);
    };
    let inline = inline_certificate(kubeconfig).context("use --kubeconfig")?;
    let client = ClientSettings {
        node_name: node_name.to_owned(),
        directory: directory(settings)?,
        rotate: settings.configuration().rotate_certificates,
        inline: inline.map(|(chain_pem, key_pem)| PemPair { chain_pem, key_pem }),
    };
    let bootstrap = flags.bootstrap_kubeconfig.as_ref().map(|kubeconfig| {
        let bootstrap = Bootstrap {
            kubeconfig: kubeconfig.clone(),
            user_agent: user_agent(settings.reported_version()),
            proxy: proxies(),
        };
        Arc::new(bootstrap) as Arc<dyn BootstrapSigner>
    });
    let sink = Arc::new(ClientSink(api.identity()));
    Ok(Some(keep_client_certificate(
        ports(edges),
        client,
        api.clone(),
        bootstrap,
        sink,
    )))
}

/// The serving certificate that the cluster's signer issues; `None` where the server has a certificate of its own.
pub(crate) fn issued_serving_certificate(
    settings: &Settings,
    edges: &Edges,
) -> Option<Arc<ServingCertificate>> {
    if !settings.configuration().server_tls_bootstrap {
        return None;
    }
    if edges.api.is_none() {
        tracing::warn!(
            "serverTLSBootstrap needs a kubeconfig; the serving certificate is a file or self-signed"
        );
        return None;
    }
    Some(ServingCertificate::new())
}

/// Starts the renewal of the certificate of [`issued_serving_certificate`], for the addresses that the node has.
pub(crate) fn keep_serving(
    settings: &Settings,
    node_name: &str,
    edges: &Edges,
    certificate: Arc<ServingCertificate>,
    node: watch::Receiver<Option<Arc<Node>>>,
) -> Result<Option<CertificateHandle>> {
    let Some(api) = &edges.api else { return Ok(None) };
    let configuration = settings.configuration();
    let (file, key) = (&configuration.tls_cert_file, &configuration.tls_private_key_file);
    let has_files = !file.is_empty() && !key.is_empty();
    let serving = ServingSettings {
        node_name: node_name.to_owned(),
        directory: directory(settings)?,
        files: has_files.then(|| (file.into(), key.into())),
        allow_dns_only: settings.gates().enabled(Gate::AllowDNSOnlyNodeCSR),
    };
    let (sender, addresses) = watch::channel(Vec::new());
    edges.vital.spawn(
        "addresses for the certificate",
        Box::pin(pass_on_addresses(node, sender)),
    );
    let sink = Arc::new(ServingSink(certificate));
    Ok(Some(keep_serving_certificate(
        ports(edges),
        serving,
        api.clone(),
        addresses,
        sink,
    )))
}

/// Sends the Node's addresses on. A Node object that is missing for a while does not empty them.
async fn pass_on_addresses(
    mut node: watch::Receiver<Option<Arc<Node>>>,
    sender: watch::Sender<Vec<NodeAddress>>,
) {
    loop {
        let addresses = {
            let node = node.borrow_and_update();
            let status = node.as_ref().and_then(|node| node.status.as_ref());
            status
                .and_then(|status| status.addresses.clone())
                .unwrap_or_default()
        };
        if !addresses.is_empty() {
            sender.send_if_modified(|known| {
                let is_new = *known != addresses;
                *known = addresses;
                is_new
            });
        }
        if node.changed().await.is_err() {
            // The renewal goes on with the addresses that it knows.
            return sender.closed().await;
        }
    }
}

fn ports(edges: &Edges) -> CertificatePorts {
    CertificatePorts {
        clock: edges.clock.clone(),
        spawner: edges.vital.clone(),
        randomness: edges.randomness.clone(),
        reader: edges.files.clone(),
        writer: edges.files.clone(),
    }
}

struct Bootstrap {
    kubeconfig: PathBuf,
    user_agent: String,
    proxy: ProxyEnvironment,
}

impl BootstrapSigner for Bootstrap {
    fn connect(&self) -> Result<Arc<dyn SigningRequests>, String> {
        let mut options = ApiServerOptions::new(&self.kubeconfig, &self.user_agent);
        options.proxy = self.proxy.clone();
        let api = ApiServer::connect(&options).map_err(|error| error.to_string())?;
        Ok(Arc::new(api))
    }
}

struct ClientSink(ClientIdentity);

impl CertificateSink for ClientSink {
    fn replace(&self, chain_pem: &[u8], key_pem: &[u8]) -> Result<(), String> {
        self.0
            .replace(chain_pem, key_pem)
            .map_err(|error| error.to_string())
    }

    fn in_use(&self) -> Option<Vec<u8>> {
        self.0.certificate_chain_der().into_iter().next()
    }
}

struct ServingSink(Arc<ServingCertificate>);

impl CertificateSink for ServingSink {
    fn replace(&self, chain_pem: &[u8], key_pem: &[u8]) -> Result<(), String> {
        self.0
            .replace(chain_pem, key_pem)
            .map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_first_certificate_is_asked_for_through_the_proxy() {
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("bootstrap.conf");
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443", "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let bootstrap = Bootstrap {
            kubeconfig,
            user_agent: "test".to_owned(),
            proxy: ProxyEnvironment {
                https_proxy: format!("http://{}", proxy.local_addr().unwrap()),
                ..ProxyEnvironment::default()
            },
        };
        let api = bootstrap.connect().unwrap();
        let wanted = CertificateSigningRequest::default();
        let asked = async {
            let (mut stream, _) = proxy.accept().await.unwrap();
            let mut line = [0; 29];
            stream.read_exact(&mut line).await.unwrap();
            String::from_utf8(line.to_vec()).unwrap()
        };
        let (_, line) = tokio::join!(api.create_signing_request(&wanted), asked);
        assert_eq!(line, "CONNECT 192.0.2.1:6443 HTTP/1");
    }
}
