//! Verification of certificates.
//!
//! Owns the verifiers of both sides of TLS. What webpki accepts is accepted. It refuses two kinds of certificates that plain
//! openssl makes and Go's crypto/x509 accepts: version 1, and `CA:TRUE` in a server's or client's own certificate. These are
//! checked here by Go's rules (see `plain`), so that nothing is accepted that Go refuses. No IO and no clock: the time is given.

mod handshake;
mod plain;

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use webpki::EndEntityCert;

use handshake::{verify_tls12_signature, verify_tls13_signature};
pub use plain::{Refusal, element, subject};
use plain::{Usage, check};

/// Certificates that are trusted.
#[derive(Clone, Debug)]
pub struct Authorities {
    roots: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

impl Default for Authorities {
    fn default() -> Self {
        Self {
            roots: RootCertStore::empty(),
            certificates: Vec::new(),
        }
    }
}

impl Authorities {
    /// Trusts one more.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn add(&mut self, certificate: CertificateDer<'static>) -> Result<(), Error> {
        self.roots.add(certificate.clone())?;
        self.certificates.push(certificate);
        Ok(())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }

    /// For clients: accepts servers with a valid certificate.
    ///
    /// # Errors
    /// When there are no authorities.
    pub fn server_verifier(
        self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ServerCertVerifier>, VerifierError> {
        let roots = Arc::new(self.roots);
        let strict = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
        Ok(Arc::new(Servers {
            strict: strict.map_err(|error| VerifierError(error.to_string()))?,
            authorities: self.certificates,
            algorithms: provider.signature_verification_algorithms,
        }))
    }

    /// For servers: accepts clients with a valid certificate.
    ///
    /// # Errors
    /// When there are no authorities.
    pub fn client_verifier(
        self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, VerifierError> {
        let roots = Arc::new(self.roots);
        let strict = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
        Ok(Arc::new(Clients {
            strict: strict.map_err(|error| VerifierError(error.to_string()))?,
            authorities: self.certificates,
            algorithms: provider.signature_verification_algorithms,
        }))
    }
}

/// The authorities cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct VerifierError(String);

/// Whether a certificate is that of the key beside it.
#[must_use]
pub fn fits_its_key(pair: &CertifiedKey) -> bool {
    let of_key = pair.key.public_key();
    let of_certificate = pair
        .cert
        .first()
        .and_then(|certificate| plain::public_key(certificate));
    of_key.is_some() && of_key.as_deref() == of_certificate
}

/// The methods that rustls has in the same form for clients and for servers: they check the signature of the handshake.
macro_rules! signatures_of_the_handshake {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, certificate, signature, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

#[derive(Debug)]
struct Servers {
    strict: Arc<WebPkiServerVerifier>,
    authorities: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let strict = self
            .strict
            .verify_server_cert(certificate, intermediates, name, ocsp, now);
        let error = match strict {
            Ok(verified) => return Ok(verified),
            Err(error) => error,
        };
        match check(
            certificate,
            &self.authorities,
            Usage::Server,
            now,
            &self.algorithms,
        ) {
            None => Err(error),
            Some(Err(refusal)) => Err(refused(refusal)),
            Some(Ok(())) => {
                // Go looks at no other place for the name either, so that version 1 never names a host.
                let parsed = EndEntityCert::try_from(certificate).map_err(|_| refused(Refusal::NoNames))?;
                parsed
                    .verify_is_valid_for_subject_name(name)
                    .map_err(|_| Error::from(CertificateError::NotValidForName))?;
                Ok(ServerCertVerified::assertion())
            }
        }
    }

    signatures_of_the_handshake!();
}

#[derive(Debug)]
struct Clients {
    strict: Arc<dyn ClientCertVerifier>,
    authorities: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.strict.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let strict = self.strict.verify_client_cert(certificate, intermediates, now);
        let error = match strict {
            Ok(verified) => return Ok(verified),
            Err(error) => error,
        };
        match check(
            certificate,
            &self.authorities,
            Usage::Client,
            now,
            &self.algorithms,
        ) {
            None => Err(error),
            Some(Err(refusal)) => Err(refused(refusal)),
            Some(Ok(())) => Ok(ClientCertVerified::assertion()),
        }
    }

    signatures_of_the_handshake!();
}

/// Accepts any certificate whose key the other side has: the handshake's signature is still checked. As a server it requests the client's
/// certificate without requiring it, and without hints, because the authorities may change while a connection is open.
#[derive(Debug)]
pub struct AnyCertificate {
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyCertificate {
    #[must_use]
    pub fn new(provider: &CryptoProvider) -> Self {
        Self {
            algorithms: provider.signature_verification_algorithms,
        }
    }
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    signatures_of_the_handshake!();
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    signatures_of_the_handshake!();
}

fn refused(refusal: Refusal) -> Error {
    CertificateError::Other(OtherError(Arc::new(refusal))).into()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use rustls::crypto::aws_lc_rs;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    /// 2030-01-01, when Go was asked.
    const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_893_456_000));

    fn certificates() -> BTreeMap<&'static str, CertificateDer<'static>> {
        let text = include_str!("../testdata/certificates.pem");
        let parts = text.split("# ").filter(|part| !part.is_empty());
        let named = parts.map(|part| {
            let (name, pem) = part.split_once('\n').unwrap();
            (name, CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
        });
        named.collect()
    }

    fn accepts(root: &CertificateDer<'static>, leaf: &CertificateDer<'_>, usage: &str) -> Result<(), String> {
        let mut authorities = Authorities::default();
        authorities.add(root.clone()).map_err(|error| error.to_string())?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verified = match usage {
            "client" => {
                let verifier = authorities.client_verifier(&provider).unwrap();
                verifier.verify_client_cert(leaf, &[], NOW).map(drop)
            }
            _ => {
                let verifier = authorities.server_verifier(&provider).unwrap();
                let name = ServerName::try_from("localhost").unwrap();
                verifier.verify_server_cert(leaf, &[], &name, &[], NOW).map(drop)
            }
        };
        verified.map_err(|error| error.to_string())
    }

    /// Accepted by Go and refused here, each for its reason.
    const STRICTER: &[(&str, &str, &str)] = &[
        // The name constraints of an authority are not looked at.
        ("root-for-names", "root-for-names", "client"),
        ("root-for-names", "v1-by-root-for-names", "client"),
    ];

    #[test]
    fn plain_openssls_certificates_hold_where_go_accepts_them_and_nowhere_else() {
        let certificates = certificates();
        let accepted = include_str!("../testdata/accepted.txt");
        let accepted: BTreeSet<(&str, &str, &str)> = accepted
            .lines()
            .skip(1)
            .map(|line| {
                let parts: Vec<&str> = line.split('\t').collect();
                (parts[0], parts[1], parts[2])
            })
            .collect();
        let expected: BTreeSet<_> = accepted
            .iter()
            .copied()
            .filter(|case| !STRICTER.contains(case))
            .collect();
        let is_root = |name: &str| {
            name.starts_with("root") || ["other", "self-signed", "v1-by-root", "ca-by-root"].contains(&name)
        };
        let mut found = BTreeSet::new();
        for (root_name, root) in certificates.iter().filter(|(name, _)| is_root(name)) {
            for (leaf_name, leaf) in &certificates {
                for usage in ["client", "server"] {
                    if accepts(root, leaf, usage).is_ok() {
                        found.insert((*root_name, *leaf_name, usage));
                    }
                }
            }
        }
        let only_here: Vec<_> = found.difference(&accepted).collect();
        assert!(only_here.is_empty(), "Go refuses {only_here:?}");
        let missing: Vec<_> = expected.difference(&found).collect();
        assert!(missing.is_empty(), "only Go accepts {missing:?}");
        assert_eq!(found, expected);
    }

    #[test]
    fn a_refusal_says_why_and_what_to_do() {
        let certificates = certificates();
        let check = |root: &str, leaf: &str, usage: &str, expected: &str| {
            let problem = accepts(&certificates[root], &certificates[leaf], usage).unwrap_err();
            assert!(problem.contains(expected), "{leaf} by {root}: {problem}");
        };
        check("root", "v1-by-root", "server", "names no host");
        check(
            "other",
            "v1-by-root",
            "client",
            "no trusted authority signed it directly",
        );
        check(
            "root",
            "v1-forged",
            "client",
            "no trusted authority signed it directly",
        );
        check(
            "root",
            "v1-by-middle",
            "client",
            "no trusted authority signed it directly",
        );
        check("root", "ca-for-servers", "client", "extendedKeyUsage");
        check("root-no-ca", "v1-by-root-no-ca", "client", "CN=root-no-ca");
        check("root-not-signing", "ca-by-root-not-signing", "server", "keyUsage");
        check("root", "ca-nameless", "server", "NotValidForName");
    }

    #[test]
    fn a_subject_is_read_from_every_version() {
        let certificates = certificates();
        for name in ["v1-by-root", "ca-by-root"] {
            let found = subject(&certificates[name]).unwrap();
            let text = String::from_utf8_lossy(found).into_owned();
            assert!(text.contains("system:masters") && text.contains(name), "{text}");
        }
        assert_eq!(subject(b"nonsense"), None);
    }
}
