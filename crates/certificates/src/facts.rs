//! The contents of a certificate. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rubelet_model::Timestamp;
use thiserror::Error;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

/// The leaf of a chain, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateFacts {
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
    pub(crate) common_name: String,
    pub(crate) organizations: BTreeSet<String>,
    pub(crate) dns_names: BTreeSet<String>,
    pub(crate) ip_addresses: BTreeSet<IpAddr>,
    /// `SubjectPublicKeyInfo` as DER.
    pub(crate) public_key: Vec<u8>,
}

/// Why a certificate cannot be read. It repeats nothing of what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum FactsError {
    #[error("it holds no certificate")]
    NoCertificate,
    #[error("its PEM text is broken")]
    Pem,
    #[error("its certificate cannot be read")]
    Certificate,
}

impl CertificateFacts {
    /// Of the first certificate of PEM text that may hold a chain and a key.
    pub(crate) fn of_pem(text: &[u8]) -> Result<Self, FactsError> {
        let blocks = pem::parse_many(text).map_err(|_| FactsError::Pem)?;
        let leaf = blocks.iter().find(|block| block.tag() == "CERTIFICATE");
        Self::of_der(leaf.ok_or(FactsError::NoCertificate)?.contents())
    }

    pub(crate) fn of_der(der: &[u8]) -> Result<Self, FactsError> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|_| FactsError::Certificate)?;
        let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            value.as_str().map(str::to_owned).unwrap_or_default()
        };
        let subject = certificate.subject();
        let mut facts = Self {
            not_before: Timestamp::from_unix_seconds(certificate.validity().not_before.timestamp()),
            not_after: Timestamp::from_unix_seconds(certificate.validity().not_after.timestamp()),
            common_name: subject.iter_common_name().next().map(text).unwrap_or_default(),
            organizations: subject.iter_organization().map(text).collect(),
            dns_names: BTreeSet::new(),
            ip_addresses: BTreeSet::new(),
            public_key: certificate.public_key().raw.to_vec(),
        };
        let names = certificate
            .subject_alternative_name()
            .map_err(|_| FactsError::Certificate)?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(name) => {
                    facts.dns_names.insert((*name).to_owned());
                }
                GeneralName::IPAddress(octets) => facts.ip_addresses.extend(ip_address(octets)),
                _ => {}
            }
        }
        Ok(facts)
    }

    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        now > self.not_after
    }
}

fn ip_address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from))
        .ok()
}
