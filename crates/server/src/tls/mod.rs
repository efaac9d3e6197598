//! The certificate, the authorities of clients, and what is negotiated.
//!
//! Owns the files behind them, read at the start and again when they change; the certificate's only where no other part of rubelet
//! manages it. A changed file that cannot be used is logged, and what was in force stays.

mod negotiation;
mod self_signed;
mod serving_certificate;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::select_all;
use rubelet_config::{Gate, Settings};
use rubelet_ports::{FileReader, WatchStream};
use rubelet_x509::{AnyCertificate, Authorities};
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;

use crate::ServerError;
use crate::access::ClientAuthorities;
use crate::stopping::Stopping;
use negotiation::Negotiation;
pub use serving_certificate::{BadPair, ServingCertificate};

const FILE_LIMIT_BYTES: u64 = 1 << 20;
const AUTHORITIES_SETTING: &str = "authentication.x509.clientCAFile";
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

/// The contents that what is in force was made from.
#[derive(Clone, PartialEq, Eq)]
struct Loaded {
    /// Certificate and key; `None` where another part of rubelet manages them.
    pair: Option<(Vec<u8>, Vec<u8>)>,
    authorities: Option<Vec<u8>>,
}

/// TLS as the settings want it, and as the files are now.
pub(crate) struct TlsSetup {
    files: TlsFiles,
    negotiation: Negotiation,
    reload_certificate: bool,
    reload_authorities: bool,
    loaded: Loaded,
    certificate: Arc<ServingCertificate>,
    configuration: Arc<ServerConfig>,
    authorities: watch::Sender<Option<Arc<dyn ClientCertVerifier>>>,
}

/// The files that are read here.
struct TlsFiles {
    pair: Option<CertificateFiles>,
    authorities: Option<PathBuf>,
}

impl TlsSetup {
    /// Reads everything once, and makes the self-signed certificate where none is there. Another part of rubelet
    /// manages a certificate that is given: no file of it is read.
    pub(crate) async fn prepare(
        settings: &Settings,
        node_name: &str,
        reader: &dyn FileReader,
        given: Option<Arc<ServingCertificate>>,
    ) -> Result<Self, ServerError> {
        let negotiation = Negotiation::of(settings.configuration())?;
        let pair = if given.is_some() {
            None
        } else {
            let (files, own) = CertificateFiles::of(settings);
            if own {
                self_signed::ensure(&files, node_name).await?;
            }
            Some(files)
        };
        let authorities = Some(&settings.configuration().authentication.x509.client_ca_file)
            .filter(|file| !file.is_empty())
            .map(PathBuf::from);
        let files = TlsFiles { pair, authorities };
        let loaded = files.read(reader).await?;
        let authorities = files.authorities(&loaded, &negotiation)?;
        let certificate = given.unwrap_or_default();
        files.show(&loaded, &certificate)?;
        let configuration = server_config(Arc::clone(&certificate), authorities.is_some(), &negotiation)?;
        Ok(Self {
            files,
            negotiation,
            reload_certificate: settings.gates().enabled(Gate::ReloadKubeletServerCertificateFile),
            reload_authorities: settings.gates().enabled(Gate::ReloadKubeletClientCAFile),
            loaded,
            certificate,
            configuration: Arc::new(configuration),
            authorities: watch::Sender::new(authorities),
        })
    }

    /// Where the certificate comes from, if it comes from files that are read here.
    pub(crate) fn certificate_files(&self) -> Option<&CertificateFiles> {
        self.files.pair.as_ref()
    }

    pub(crate) fn configuration(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.configuration)
    }

    pub(crate) fn authorities(&self) -> ClientAuthorities {
        self.authorities.subscribe()
    }

    /// Follows the files until the server stops.
    pub(crate) async fn follow(mut self, reader: Arc<dyn FileReader>, mut stopping: Stopping) {
        let follows_pair = self.reload_certificate && self.files.pair.is_some();
        let follows_authorities = self.reload_authorities && self.files.authorities.is_some();
        if !follows_pair && !follows_authorities {
            return;
        }
        let mut hints = self.files.watch(reader.as_ref());
        loop {
            tokio::select! {
                biased;
                () = stopping.begun() => return,
                // Cancel-safe: a hint carries nothing, and the files are read below.
                hint = hints.next() => {
                    if !matches!(hint, Some(Ok(_))) {
                        // The watch is gone, e.g. with its directory; the interval goes on, then a new watch.
                        hints = Box::pin(futures_util::stream::pending());
                    }
                }
                () = tokio::time::sleep(RELOAD_INTERVAL) => hints = self.files.watch(reader.as_ref()),
            }
            self.reload(reader.as_ref()).await;
        }
    }

    async fn reload(&mut self, reader: &dyn FileReader) {
        let mut found = match self.files.read(reader).await {
            Ok(found) => found,
            Err(error) => return tracing::warn!(%error, "Certificates cannot be read again"),
        };
        if !self.reload_certificate {
            found.pair.clone_from(&self.loaded.pair);
        }
        if !self.reload_authorities {
            found.authorities.clone_from(&self.loaded.authorities);
        }
        // Logged once for each change, also a change that is half done, such as a certificate without its key.
        if found.pair != self.loaded.pair {
            match self.files.show(&found, &self.certificate) {
                Ok(()) => tracing::info!("The serving certificate was read again"),
                Err(error) => {
                    tracing::warn!(%error, "A changed serving certificate makes no sense; the old one stays");
                }
            }
        }
        if found.authorities != self.loaded.authorities {
            match self.files.authorities(&found, &self.negotiation) {
                Ok(authorities) => {
                    tracing::info!("The authorities of clients were read again");
                    self.authorities.send_replace(authorities);
                }
                Err(error) => {
                    tracing::warn!(%error, "Changed authorities of clients make no sense; the old ones stay");
                }
            }
        }
        self.loaded = found;
    }
}

impl TlsFiles {
    async fn read(&self, reader: &dyn FileReader) -> Result<Loaded, ServerError> {
        let read = async |setting: &'static str, path: &Path| {
            reader
                .read(path, FILE_LIMIT_BYTES)
                .await
                .map_err(|error| file_error(setting, path, error.message))
        };
        Ok(Loaded {
            pair: match &self.pair {
                Some(files) => Some((
                    read("tlsCertFile", &files.certificate).await?,
                    read("tlsPrivateKeyFile", &files.key).await?,
                )),
                None => None,
            },
            authorities: match &self.authorities {
                Some(path) => Some(read(AUTHORITIES_SETTING, path).await?),
                None => None,
            },
        })
    }

    /// Directories are watched, because files are replaced by renaming.
    fn watch(&self, reader: &dyn FileReader) -> WatchStream {
        let pair = self
            .pair
            .iter()
            .flat_map(|files| [&files.certificate, &files.key]);
        let mut directories: Vec<&Path> = pair
            .chain(&self.authorities)
            .filter_map(|file| file.parent())
            .collect();
        directories.sort_unstable();
        directories.dedup();
        let streams = directories.into_iter().map(|directory| reader.watch(directory));
        Box::pin(select_all(streams))
    }

    /// Puts the pair that was read in force.
    fn show(&self, loaded: &Loaded, certificate: &ServingCertificate) -> Result<(), ServerError> {
        let (Some(files), Some((chain, key))) = (&self.pair, &loaded.pair) else {
            return Ok(());
        };
        certificate.replace(chain, key).map_err(|problem| {
            let (setting, path) = match problem {
                BadPair::Certificate(_) => ("tlsCertFile", &files.certificate),
                BadPair::Key => ("tlsPrivateKeyFile", &files.key),
            };
            file_error(setting, path, problem.to_string())
        })
    }

    fn authorities(
        &self,
        loaded: &Loaded,
        negotiation: &Negotiation,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, ServerError> {
        let (Some(content), Some(path)) = (&loaded.authorities, &self.authorities) else {
            return Ok(None);
        };
        let error = |problem: String| file_error(AUTHORITIES_SETTING, path, problem);
        let mut authorities = Authorities::default();
        for certificate in CertificateDer::pem_slice_iter(content) {
            let certificate = certificate.map_err(|problem| error(problem.to_string()))?;
            authorities
                .add(certificate)
                .map_err(|problem| error(problem.to_string()))?;
        }
        if authorities.is_empty() {
            return Err(error("it holds no certificate".to_owned()));
        }
        authorities
            .client_verifier(&negotiation.provider)
            .map(Some)
            .map_err(|problem| error(problem.to_string()))
    }
}

fn server_config(
    certificate: Arc<ServingCertificate>,
    ask_for_certificates: bool,
    negotiation: &Negotiation,
) -> Result<ServerConfig, ServerError> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(&negotiation.provider))
        .with_protocol_versions(negotiation.versions)
        .map_err(|problem| ServerError::Tls {
            setting: "tlsCipherSuites",
            problem: problem.to_string(),
        })?;
    let builder = if ask_for_certificates {
        // Whether a certificate is valid is decided at each request, as upstream does: an invalid one is a 401 and not a broken
        // connection.
        builder.with_client_cert_verifier(Arc::new(AnyCertificate::new(&negotiation.provider)))
    } else {
        builder.with_no_client_auth()
    };
    let mut configuration = builder.with_cert_resolver(certificate);
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
