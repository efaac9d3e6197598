//! The certificate, the authorities of clients, and what is negotiated.
//!
//! Owns the files behind them, read at the start and again when they change. A changed file that makes no sense is told in
//! the log, and what was in force stays.

mod client_certificates;
mod negotiation;
mod self_signed;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::select_all;
use rubelet_config::{Gate, Settings};
use rubelet_ports::{FileReader, WatchStream};
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::ServerError;
use crate::authentication::ClientAuthorities;
use crate::stopping::Stopping;
use client_certificates::AnyClientCertificate;
use negotiation::Negotiation;

const FILE_LIMIT_BYTES: u64 = 1 << 20;
/// The safety net below the watches.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);

/// Where the certificate that the server shows comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl CertificateFiles {
    /// The configured pair, or the self-signed one of `--cert-dir`.
    fn of(settings: &Settings) -> (Self, bool) {
        let configuration = settings.configuration();
        let (certificate, key) = (&configuration.tls_cert_file, &configuration.tls_private_key_file);
        if certificate.is_empty() && key.is_empty() {
            let directory = &settings.flags().cert_dir;
            let own = Self {
                certificate: directory.join("kubelet.crt"),
                key: directory.join("kubelet.key"),
            };
            return (own, true);
        }
        let configured = Self {
            certificate: certificate.into(),
            key: key.into(),
        };
        (configured, false)
    }
}

/// The contents that the configuration in force was made from.
#[derive(Clone, PartialEq, Eq)]
struct Loaded {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authorities: Option<Vec<u8>>,
}

/// TLS as the settings want it, and as the files are now.
pub(crate) struct TlsSetup {
    pub(crate) files: CertificateFiles,
    authorities_file: Option<PathBuf>,
    negotiation: Negotiation,
    reload_certificate: bool,
    reload_authorities: bool,
    loaded: Loaded,
    configuration: watch::Sender<Arc<ServerConfig>>,
    authorities: watch::Sender<Option<Arc<dyn ClientCertVerifier>>>,
}

impl TlsSetup {
    /// Makes the self-signed certificate where none is there, and reads everything once.
    pub(crate) async fn prepare(
        settings: &Settings,
        node_name: &str,
        reader: &dyn FileReader,
    ) -> Result<Self, ServerError> {
        let negotiation = Negotiation::of(settings.configuration())?;
        let (files, own) = CertificateFiles::of(settings);
        if own {
            self_signed::ensure(&files, node_name).await?;
        }
        let authorities_file = Some(&settings.configuration().authentication.x509.client_ca_file)
            .filter(|file| !file.is_empty())
            .map(PathBuf::from);
        let loaded = read_all(reader, &files, authorities_file.as_deref()).await?;
        let authorities = read_authorities(&loaded, authorities_file.as_deref(), &negotiation)?;
        let configuration = server_config(&loaded, &files, authorities.is_some(), &negotiation)?;
        Ok(Self {
            files,
            authorities_file,
            negotiation,
            reload_certificate: settings.gates().enabled(Gate::ReloadKubeletServerCertificateFile),
            reload_authorities: settings.gates().enabled(Gate::ReloadKubeletClientCAFile),
            loaded,
            configuration: watch::Sender::new(Arc::new(configuration)),
            authorities: watch::Sender::new(authorities),
        })
    }

    pub(crate) fn configuration(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.configuration.subscribe()
    }

    pub(crate) fn authorities(&self) -> ClientAuthorities {
        self.authorities.subscribe()
    }

    /// Follows the files until the server stops.
    pub(crate) async fn follow(mut self, reader: Arc<dyn FileReader>, mut stopping: Stopping) {
        if !self.reload_certificate && !self.reload_authorities {
            return;
        }
        let mut hints = self.watch(reader.as_ref());
        loop {
            tokio::select! {
                biased;
                () = stopping.begun() => return,
                // Cancel-safe: a hint only says to look, and looking is done below.
                hint = hints.next() => {
                    if !matches!(hint, Some(Ok(()))) {
                        // The watch is gone, e.g. with its directory; the interval goes on, then a new watch.
                        hints = Box::pin(futures_util::stream::pending());
                    }
                }
                () = tokio::time::sleep(RELOAD_INTERVAL) => hints = self.watch(reader.as_ref()),
            }
            self.reload(reader.as_ref()).await;
        }
    }

    /// Directories are watched, because files are replaced by renaming.
    fn watch(&self, reader: &dyn FileReader) -> WatchStream {
        let mut directories: Vec<&Path> = [&self.files.certificate, &self.files.key]
            .into_iter()
            .chain(&self.authorities_file)
            .filter_map(|file| file.parent())
            .collect();
        directories.sort_unstable();
        directories.dedup();
        let streams = directories.into_iter().map(|directory| reader.watch(directory));
        Box::pin(select_all(streams))
    }

    async fn reload(&mut self, reader: &dyn FileReader) {
        let mut found = match read_all(reader, &self.files, self.authorities_file.as_deref()).await {
            Ok(found) => found,
            Err(error) => return tracing::warn!(%error, "Certificates cannot be read again"),
        };
        if !self.reload_certificate {
            found.certificate.clone_from(&self.loaded.certificate);
            found.key.clone_from(&self.loaded.key);
        }
        if !self.reload_authorities {
            found.authorities.clone_from(&self.loaded.authorities);
        }
        if found == self.loaded {
            return;
        }
        let negotiation = &self.negotiation;
        let renewed =
            read_authorities(&found, self.authorities_file.as_deref(), negotiation).and_then(|authorities| {
                server_config(&found, &self.files, authorities.is_some(), negotiation)
                    .map(|configuration| (authorities, configuration))
            });
        match renewed {
            Ok((authorities, configuration)) => {
                tracing::info!("Certificates were read again");
                self.configuration.send_replace(Arc::new(configuration));
                self.authorities.send_replace(authorities);
            }
            // Told once for each change, also where it is half done, such as a certificate without its key.
            Err(error) => tracing::warn!(%error, "Changed certificates make no sense; the old ones stay"),
        }
        self.loaded = found;
    }
}

async fn read_all(
    reader: &dyn FileReader,
    files: &CertificateFiles,
    authorities: Option<&Path>,
) -> Result<Loaded, ServerError> {
    let read = async |setting: &'static str, path: &Path| {
        reader
            .read(path, FILE_LIMIT_BYTES)
            .await
            .map_err(|error| file_error(setting, path, error.message))
    };
    Ok(Loaded {
        certificate: read("tlsCertFile", &files.certificate).await?,
        key: read("tlsPrivateKeyFile", &files.key).await?,
        authorities: match authorities {
            Some(path) => Some(read("authentication.x509.clientCAFile", path).await?),
            None => None,
        },
    })
}

fn read_authorities(
    loaded: &Loaded,
    path: Option<&Path>,
    negotiation: &Negotiation,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, ServerError> {
    let (Some(content), Some(path)) = (&loaded.authorities, path) else {
        return Ok(None);
    };
    let error = |problem: String| file_error("authentication.x509.clientCAFile", path, problem);
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(content) {
        let certificate = certificate.map_err(|problem| error(problem.to_string()))?;
        roots
            .add(certificate)
            .map_err(|problem| error(problem.to_string()))?;
    }
    if roots.is_empty() {
        return Err(error("it holds no certificate".to_owned()));
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&negotiation.provider))
        .build()
        .map(Some)
        .map_err(|problem| error(problem.to_string()))
}

fn server_config(
    loaded: &Loaded,
    files: &CertificateFiles,
    ask_for_certificates: bool,
    negotiation: &Negotiation,
) -> Result<ServerConfig, ServerError> {
    let certificate_error = |problem: String| file_error("tlsCertFile", &files.certificate, problem);
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&loaded.certificate)
        .collect::<Result<_, _>>()
        .map_err(|problem| certificate_error(problem.to_string()))?;
    if chain.is_empty() {
        return Err(certificate_error("it holds no certificate".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(&loaded.key)
        // The parser's words may repeat what it read.
        .map_err(|_| {
            file_error(
                "tlsPrivateKeyFile",
                &files.key,
                "it holds no private key".to_owned(),
            )
        })?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&negotiation.provider))
        .with_protocol_versions(negotiation.versions)
        .map_err(|problem| ServerError::Tls {
            setting: "tlsCipherSuites",
            problem: problem.to_string(),
        })?;
    let builder = if ask_for_certificates {
        builder.with_client_cert_verifier(Arc::new(AnyClientCertificate::new(&negotiation.provider)))
    } else {
        builder.with_no_client_auth()
    };
    let mut configuration = builder
        .with_single_cert(chain, key)
        .map_err(|problem| certificate_error(format!("it does not fit its key: {problem}")))?;
    configuration.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(configuration)
}

fn file_error(setting: &'static str, path: &Path, problem: String) -> ServerError {
    ServerError::File {
        setting,
        path: path.to_owned(),
        problem,
    }
}
