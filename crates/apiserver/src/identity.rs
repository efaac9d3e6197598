//! The client certificate, which can be replaced while everything runs.
//!
//! Owns the certificate and key that new connections show. Each replacement is a new generation: no new request goes to a
//! connection that was made under an older one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rubelet_x509::fits_its_key;
use thiserror::Error;
use tokio_rustls::rustls::SignatureScheme;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::aws_lc_rs::sign::any_supported_type;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// Why a certificate cannot be shown. It never quotes a key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    #[error("there is no certificate in the PEM text")]
    NoCertificate,
    #[error("the certificate cannot be read: {0}")]
    BadCertificate(String),
    #[error("there is no private key in the PEM text")]
    NoKey,
    #[error("the private key cannot be used")]
    BadKey,
    #[error("the private key is not the certificate's")]
    OtherKey,
}

/// A handle on the client certificate of one [`ApiServer`](crate::ApiServer); clones are the same.
#[derive(Clone)]
pub struct ClientIdentity {
    inner: Arc<Inner>,
}

struct Inner {
    current: RwLock<Option<Held>>,
    generation: AtomicU64,
}

#[derive(Clone)]
struct Held {
    key: Arc<CertifiedKey>,
    not_before: SystemTime,
    not_after: SystemTime,
}

impl ClientIdentity {
    pub(crate) fn none() -> Self {
        Self {
            inner: Arc::new(Inner {
                current: RwLock::default(),
                generation: AtomicU64::new(0),
            }),
        }
    }

    /// Shows another certificate from now on and closes the connections that showed the old one. The same certificate again
    /// changes nothing.
    ///
    /// # Errors
    /// When certificate or key cannot be used; the old ones stay.
    pub fn replace(&self, certificate_chain_pem: &[u8], key_pem: &[u8]) -> Result<(), IdentityError> {
        let held = Held::parse(certificate_chain_pem, key_pem)?;
        {
            let mut current = self.inner.current.write().unwrap_or_else(PoisonError::into_inner);
            if current.as_ref().is_some_and(|old| old.key.cert == held.key.cert) {
                return Ok(());
            }
            *current = Some(held);
        }
        self.inner.generation.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// `NotAfter` of the certificate in use.
    #[must_use]
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.held().map(|held| held.not_after)
    }

    /// `NotBefore` of the certificate in use.
    #[must_use]
    pub fn valid_from(&self) -> Option<SystemTime> {
        self.held().map(|held| held.not_before)
    }

    /// The certificates in use, the node's own first, as DER.
    #[must_use]
    pub fn certificate_chain_der(&self) -> Vec<Vec<u8>> {
        let held = self.held();
        let chain = held.iter().flat_map(|held| held.key.cert.iter());
        chain.map(|certificate| certificate.to_vec()).collect()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.inner.generation.load(Ordering::Acquire)
    }

    fn held(&self) -> Option<Held> {
        let current = self.inner.current.read().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ClientIdentity")
            .field("expires_at", &self.expires_at())
            .finish_non_exhaustive()
    }
}

impl ResolvesClientCert for ClientIdentity {
    // The server's hints are not looked at: there is one certificate, and a wrong one is a 401 with a message.
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let key = self.held()?.key;
        key.key.choose_scheme(schemes).is_some().then_some(key)
    }

    fn has_certs(&self) -> bool {
        self.held().is_some()
    }
}

impl Held {
    fn parse(chain_pem: &[u8], key_pem: &[u8]) -> Result<Self, IdentityError> {
        let chain = CertificateDer::pem_slice_iter(chain_pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| IdentityError::BadCertificate("its PEM text is broken".to_owned()))?;
        let leaf = chain.first().ok_or(IdentityError::NoCertificate)?;
        let (_, parsed) = X509Certificate::from_der(leaf)
            .map_err(|error| IdentityError::BadCertificate(error.to_string()))?;
        let validity = parsed.validity();
        let (not_before, not_after) = (
            system_time(validity.not_before.timestamp()),
            system_time(validity.not_after.timestamp()),
        );
        let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|_| IdentityError::NoKey)?;
        let key = any_supported_type(&key).map_err(|_| IdentityError::BadKey)?;
        let key = CertifiedKey::new(chain, key);
        if !fits_its_key(&key) {
            return Err(IdentityError::OtherKey);
        }
        Ok(Self {
            key: Arc::new(key),
            not_before,
            not_after,
        })
    }
}

fn system_time(unix_seconds: i64) -> SystemTime {
    let distance = Duration::from_secs(unix_seconds.unsigned_abs());
    if unix_seconds < 0 {
        SystemTime::UNIX_EPOCH - distance
    } else {
        SystemTime::UNIX_EPOCH + distance
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn pair() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(Vec::new())
            .unwrap()
            .self_signed(&key)
            .unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn a_replacement_is_a_new_generation_and_the_same_again_is_none() {
        let identity = ClientIdentity::none();
        assert!(!identity.has_certs() && identity.expires_at().is_none());
        let (certificate, key) = pair();
        identity.replace(certificate.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(identity.generation(), 1);
        assert!(identity.expires_at() > identity.valid_from());
        identity.replace(certificate.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(identity.generation(), 1);
        let (other, other_key) = pair();
        identity.replace(other.as_bytes(), other_key.as_bytes()).unwrap();
        assert_eq!(identity.generation(), 2);
    }

    #[test]
    fn a_certificate_of_version_1_may_be_shown() {
        let all = include_str!("../../x509/testdata/certificates.pem");
        let (_, certificate) = all.split_once("# v1-by-root\n").unwrap();
        let key = include_str!("../../x509/testdata/v1-by-root.key");
        let certificate = certificate.split("# ").next().unwrap();
        let identity = ClientIdentity::none();
        identity.replace(certificate.as_bytes(), key.as_bytes()).unwrap();
        let (_, other) = pair();
        let crossed = identity.replace(certificate.as_bytes(), other.as_bytes());
        assert_eq!(crossed, Err(IdentityError::OtherKey));
    }

    #[test]
    fn certificate_and_key_may_stand_in_one_text() {
        let (certificate, key) = pair();
        let both = format!("{certificate}{key}");
        let identity = ClientIdentity::none();
        identity.replace(both.as_bytes(), both.as_bytes()).unwrap();
        assert_eq!(identity.certificate_chain_der().len(), 1);
    }

    #[test]
    fn what_cannot_be_used_leaves_the_old_one() {
        let (certificate, key) = pair();
        let (other, other_key) = pair();
        let identity = ClientIdentity::none();
        identity.replace(certificate.as_bytes(), key.as_bytes()).unwrap();
        let check = |certificate: &str, key: &str, expected: IdentityError| {
            assert_eq!(
                identity.replace(certificate.as_bytes(), key.as_bytes()),
                Err(expected)
            );
            assert_eq!(identity.generation(), 1);
        };
        check("", &key, IdentityError::NoCertificate);
        check(&certificate, "", IdentityError::NoKey);
        check(&certificate, &other_key, IdentityError::OtherKey);
        check(&other, &key, IdentityError::OtherKey);
        let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let error = identity.replace(nonsense.as_bytes(), key.as_bytes());
        assert!(
            matches!(error, Err(IdentityError::BadCertificate(_))),
            "{error:?}"
        );
    }
}
