//! TLS towards the API server, and towards a proxy on the way to it.
//!
//! Owns the trusted authorities: those of the kubeconfig (read again when their file changed), or those of the machine. The
//! client certificate comes from `identity`.

use std::sync::{Arc, Mutex, PoisonError};

use rubelet_x509::{AnyCertificate, Authorities};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use crate::identity::ClientIdentity;
use crate::kubeconfig::{Text, Trust};
use crate::stamp::Stamp;

pub(crate) const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

pub(crate) struct Tls {
    trust: Trust,
    identity: ClientIdentity,
    built: Mutex<Built>,
}

struct Built {
    config: ClientConfig,
    stamp: Option<Stamp>,
}

impl Tls {
    /// An error names the field of the kubeconfig, if it is one, and the problem.
    pub(crate) fn new(trust: Trust, identity: ClientIdentity) -> Result<Self, (Option<String>, String)> {
        let built = build(&trust, &identity)?;
        Ok(Self {
            trust,
            identity,
            built: Mutex::new(built),
        })
    }

    /// For the next connection.
    pub(crate) fn config(&self, only_http1: bool) -> Arc<ClientConfig> {
        // A panic while the lock is held would leave nothing half-changed here.
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamp(&self.trust);
        if stamp != built.stamp {
            match build(&self.trust, &self.identity) {
                Ok(new) => *built = new,
                Err((_, problem)) => {
                    // The old ones stay, and this is logged once per file.
                    built.stamp = stamp;
                    tracing::warn!(problem, "the certificate authorities cannot be read again");
                }
            }
        }
        let mut config = built.config.clone();
        config.alpn_protocols = if only_http1 {
            vec![HTTP_1_1.to_vec()]
        } else {
            vec![H2.to_vec(), HTTP_1_1.to_vec()]
        };
        Arc::new(config)
    }
}

fn stamp(trust: &Trust) -> Option<Stamp> {
    match trust {
        Trust::System | Trust::AnyServer => None,
        Trust::These(text) => text.path().and_then(Stamp::of),
    }
}

fn build(trust: &Trust, identity: &ClientIdentity) -> Result<Built, (Option<String>, String)> {
    let stamp = stamp(trust);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| (None, error.to_string()))?;
    let believed = |authorities: Authorities| {
        let verifier = authorities.server_verifier(&provider);
        verifier.map_err(|error| (None, error.to_string()))
    };
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::System => believed(system_roots()?)?,
        Trust::These(text) => believed(these_roots(text)?)?,
        // `insecure-skip-tls-verify`: the connection is encrypted, and the server is not authenticated.
        Trust::AnyServer => Arc::new(AnyCertificate::new(&provider)),
    };
    let mut config = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(identity.clone()));
    // A resumed session would go on under the certificate of the first one.
    config.resumption = Resumption::disabled();
    Ok(Built { config, stamp })
}

fn these_roots(text: &Text) -> Result<Authorities, (Option<String>, String)> {
    let field = || Some(text.field().to_owned());
    let pem = text.read().map_err(|error| {
        let place = text
            .path()
            .map_or(String::new(), |path| format!("{}: ", path.display()));
        (field(), format!("{place}{error}"))
    })?;
    let mut roots = Authorities::default();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|_| (field(), "its PEM text is broken".to_owned()))?;
        roots
            .add(certificate)
            .map_err(|error| (field(), format!("a certificate in it cannot be used: {error}")))?;
    }
    if roots.is_empty() {
        return Err((field(), "there is no certificate in it".to_owned()));
    }
    Ok(roots)
}

fn system_roots() -> Result<Authorities, (Option<String>, String)> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = Authorities::default();
    for certificate in found.certs {
        // Some that cannot be read are no reason to trust none.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        let problem = "the kubeconfig names no certificate authority, and this machine has none either";
        return Err((None, problem.to_owned()));
    }
    Ok(roots)
}
