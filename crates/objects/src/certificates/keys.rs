//! Key pairs for pods' certificates, and the proof of owning one.
//!
//! Owns the types of keys that a pod may ask for. A long RSA key takes seconds to generate: the caller runs it off the executor.

use std::fmt;

use async_trait::async_trait;
use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, RsaKeySize};
use thiserror::Error;

/// The key types of `podCertificate` sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyType {
    Rsa3072,
    Rsa4096,
    EcdsaP256,
    EcdsaP384,
    EcdsaP521,
    Ed25519,
}

impl KeyType {
    pub const ALL: [Self; 6] = [
        Self::Rsa3072,
        Self::Rsa4096,
        Self::EcdsaP256,
        Self::EcdsaP384,
        Self::EcdsaP521,
        Self::Ed25519,
    ];

    /// The name in a pod's spec.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rsa3072 => "RSA3072",
            Self::Rsa4096 => "RSA4096",
            Self::EcdsaP256 => "ECDSAP256",
            Self::EcdsaP384 => "ECDSAP384",
            Self::EcdsaP521 => "ECDSAP521",
            Self::Ed25519 => "ED25519",
        }
    }

    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == name)
    }
}

/// A new key and a signed request that holds its public half only. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyAndProof {
    /// PKCS #8 as PEM; secret.
    pub key: Vec<u8>,
    /// PKCS #10 as DER.
    pub proof: Vec<u8>,
}

impl fmt::Debug for KeyAndProof {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("KeyAndProof")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no {} key: {message}", .key_type.as_str())]
pub struct KeyError {
    pub key_type: KeyType,
    pub message: String,
}

/// Makes keys somewhere where it may take its time.
#[async_trait]
pub trait KeyMaker: Send + Sync {
    async fn make(&self, key_type: KeyType) -> Result<KeyAndProof, KeyError>;
}

/// Makes a key on the spot: milliseconds, or seconds for RSA.
pub fn make_key(key_type: KeyType) -> Result<KeyAndProof, KeyError> {
    let problem = |error: rcgen::Error| KeyError {
        key_type,
        message: error.to_string(),
    };
    let pair = match key_type {
        KeyType::Rsa3072 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_3072),
        KeyType::Rsa4096 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_4096),
        KeyType::EcdsaP256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
        KeyType::EcdsaP384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
        KeyType::EcdsaP521 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512),
        KeyType::Ed25519 => KeyPair::generate_for(&rcgen::PKCS_ED25519),
    };
    let pair = pair.map_err(problem)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let proof = params.serialize_request(&pair).map_err(problem)?;
    let der = pair.serialize_der();
    let der = match key_type {
        KeyType::Ed25519 => without_public_half(&der).unwrap_or(der),
        KeyType::Rsa3072
        | KeyType::Rsa4096
        | KeyType::EcdsaP256
        | KeyType::EcdsaP384
        | KeyType::EcdsaP521 => der,
    };
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    Ok(KeyAndProof {
        key: pem::encode_config(&Pem::new("PRIVATE KEY", der), config).into_bytes(),
        proof: proof.der().to_vec(),
    })
}

/// Of an Ed25519 key in the newer form of PKCS #8, which carries the public half too and which many programs cannot read, the older
/// form. `None` for anything else.
fn without_public_half(der: &[u8]) -> Option<Vec<u8>> {
    // SEQUENCE, version 1, algorithm 1.3.101.112, and an octet string within an octet string.
    const NEW: [u8; 16] = [
        0x30, 0x51, 0x02, 0x01, 0x01, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
    ];
    const OLD: [u8; 16] = [
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
    ];
    let seed = der.strip_prefix(&NEW)?.get(..32)?;
    Some([&OLD, seed].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_key_that_can_be_read_again() {
        for key_type in KeyType::ALL {
            let made = make_key(key_type).unwrap();
            let text = String::from_utf8(made.key.clone()).unwrap();
            assert!(text.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{key_type:?}");
            let again = KeyPair::from_pem(&text).unwrap();
            let public = again.public_key_raw();
            let is_inside = made.proof.windows(public.len()).any(|window| window == public);
            assert!(is_inside, "{key_type:?}: the proof is of another key");
            assert_eq!(format!("{made:?}"), "KeyAndProof");
        }
    }

    #[test]
    fn names_lead_to_types_and_back() {
        for key_type in KeyType::ALL {
            assert_eq!(KeyType::by_name(key_type.as_str()), Some(key_type));
        }
        assert_eq!(KeyType::by_name("RSA2048"), None);
    }
}
