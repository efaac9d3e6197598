//! The certificate that the server shows, replaceable while it serves.
//!
//! Owns the pair in force. Where it comes from (files, the API server's signer, the node itself) is decided by the holder of the
//! other end; a pair that does not fit is refused, and what was in force stays.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rubelet_x509::fits_its_key;
use thiserror::Error;
use tokio_rustls::rustls::crypto::aws_lc_rs::sign::any_supported_type;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

/// Why a pair cannot be shown. It never repeats the key's text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadPair {
    #[error("{0}")]
    Certificate(String),
    #[error("it holds no private key")]
    Key,
}

/// What the server shows to clients. Without a pair, handshakes fail; connections that are there already go on.
#[derive(Default)]
pub struct ServingCertificate {
    // Held for a copy of a pointer.
    pair: RwLock<Option<Arc<CertifiedKey>>>,
}

impl ServingCertificate {
    /// With nothing to show yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Shows this from the next connection on: PEM of the certificate with what leads to its authority, and of its key.
    ///
    /// # Errors
    /// When one of them cannot be read, or they do not fit each other. The pair in force stays then.
    pub fn replace(&self, certificates: &[u8], key: &[u8]) -> Result<(), BadPair> {
        let bad = |problem: String| BadPair::Certificate(problem);
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(|problem| bad(problem.to_string()))?;
        if chain.is_empty() {
            return Err(bad("it holds no certificate".to_owned()));
        }
        // The parser's error may repeat what it read.
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| BadPair::Key)?;
        let key = any_supported_type(&key).map_err(|_| BadPair::Key)?;
        let pair = CertifiedKey::new(chain, key);
        if !fits_its_key(&pair) {
            return Err(bad("it does not fit its key".to_owned()));
        }
        *self.pair.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(pair));
        Ok(())
    }

    fn pair(&self) -> Option<Arc<CertifiedKey>> {
        self.pair.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let pair = self.pair();
        if pair.is_none() {
            tracing::debug!("A client was sent away: there is no serving certificate yet");
        }
        pair
    }
}

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = if self.pair().is_some() {
            "a pair"
        } else {
            "nothing"
        };
        write!(f, "ServingCertificate({shown})")
    }
}
