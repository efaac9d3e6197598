//! Whether the other side has the key of the certificate that it shows.
//!
//! As rustls does it, and with the bare key where webpki does not read the certificate because it is of version 1.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved};
use webpki::RawPublicKeyEntity;

use crate::plain;

/// Checks a signature of a TLS 1.2 handshake.
///
/// # Errors
/// When it is not one of the certificate's key.
pub(crate) fn verify_tls12_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let Some(key) = plain::key_of_version_1(certificate) else {
        return rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms);
    };
    let key = SubjectPublicKeyInfoDer::from(key);
    let key = RawPublicKeyEntity::try_from(&key).map_err(|_| Error::from(CertificateError::BadEncoding))?;
    let known = algorithms
        .mapping
        .iter()
        .find(|(scheme, _)| *scheme == signature.scheme);
    let (_, possible) = known.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
    let mut possible = possible.iter();
    // A signature scheme of TLS 1.2 does not name its curve.
    let is_valid = possible.any(|algorithm| {
        key.verify_signature(*algorithm, message, signature.signature())
            .is_ok()
    });
    if is_valid {
        Ok(HandshakeSignatureValid::assertion())
    } else {
        Err(CertificateError::BadSignature.into())
    }
}

/// Checks a signature of a TLS 1.3 handshake.
///
/// # Errors
/// When it is not one of the certificate's key.
pub(crate) fn verify_tls13_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    match plain::key_of_version_1(certificate) {
        Some(key) => {
            let key = SubjectPublicKeyInfoDer::from(key);
            verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
        }
        None => rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms),
    }
}
