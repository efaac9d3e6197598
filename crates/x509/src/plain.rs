//! Certificates as plain openssl makes them: of version 1, or with `CA:TRUE` where they are no authority.
//!
//! Owns Go's rules for these two kinds, in the two forms in which they occur: the certificate is itself one of the trusted ones, or a
//! trusted one signed it directly. Longer chains are refused, and so are authorities with name constraints: both are rare with
//! such certificates, and each rule that is not here cannot be wrong. Signatures are checked by webpki with the algorithms of rustls.
//!
//! Go's rules, from `crypto/x509`: each certificate of a chain is in its time, has no critical extension that is not understood,
//! and allows the usage if it names usages; an issuer's subject is byte for byte what the certificate calls its issuer; an issuer of
//! version 3 has `CA:TRUE`, one of version 1 need not; an issuer with a keyUsage extension allows signing certificates in it.

use std::fmt;

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use thiserror::Error;
use webpki::RawPublicKeyEntity;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Version;

/// What a certificate is shown for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    Server,
    Client,
}

/// Why a certificate of version 1 or with `CA:TRUE` is refused.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error(
        "it is of version 1 and names no host; make one with a subjectAltName, e.g. openssl x509 -req -extfile"
    )]
    NoNames,
    #[error("it is not valid at this time")]
    NotInTime,
    #[error("it is not meant for this usage (extendedKeyUsage)")]
    OtherUsage,
    #[error("it has something that is not understood: {0}")]
    NotUnderstood(&'static str),
    #[error(
        "it is {kind}, and no trusted authority signed it directly; put the one that did among the trusted, or make one of version 3 with CA:FALSE"
    )]
    NotSigned { kind: &'static str },
    #[error("the trusted authority {authority} cannot vouch for it: {problem}")]
    Issuer {
        authority: String,
        problem: Box<Refusal>,
    },
    #[error("it does not have CA:TRUE")]
    NoAuthority,
    #[error("its key does not sign certificates (keyUsage)")]
    KeyUsage,
    #[error("it has name constraints")]
    NameConstraints,
}

impl fmt::Debug for Refusal {
    // rustls shows what it does not know itself in this form, and people read it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Checks a certificate that webpki refused. `None` where it is of neither kind, so that webpki's verdict stands.
pub(crate) fn check(
    certificate: &CertificateDer<'_>,
    authorities: &[CertificateDer<'static>],
    usage: Usage,
    now: UnixTime,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Option<Result<(), Refusal>> {
    let leaf = parse(certificate)?;
    let kind = match (leaf.version, basic_constraints(&leaf)) {
        (X509Version::V1, _) => "of version 1",
        (X509Version::V3, Some(true)) => "an authority's own (CA:TRUE)",
        _ => return None,
    };
    let result = check_alone(&leaf, usage, now).and_then(|()| {
        if authorities
            .iter()
            .any(|authority| authority.as_ref() == certificate.as_ref())
        {
            return Ok(());
        }
        check_issuers(&leaf, certificate, authorities, (usage, now), algorithms)
            .unwrap_or(Err(Refusal::NotSigned { kind }))
    });
    Some(result)
}

/// The first authority that signed the certificate and may do so decides; `None` where none signed it.
fn check_issuers(
    leaf: &X509Certificate<'_>,
    certificate: &[u8],
    authorities: &[CertificateDer<'static>],
    (usage, now): (Usage, UnixTime),
    algorithms: &WebPkiSupportedAlgorithms,
) -> Option<Result<(), Refusal>> {
    let mut problem = None;
    for authority in authorities {
        let Some(issuer) = parse(authority) else { continue };
        let is_named = issuer.subject().as_raw() == leaf.issuer().as_raw();
        if !is_named || !is_signed_by(leaf, certificate, &issuer, algorithms) {
            continue;
        }
        match check_alone(&issuer, usage, now).and_then(|()| check_issuer(&issuer)) {
            Ok(()) => return Some(Ok(())),
            Err(refusal) => {
                problem.get_or_insert_with(|| Refusal::Issuer {
                    authority: issuer.subject().to_string(),
                    problem: Box::new(refusal),
                });
            }
        }
    }
    problem.map(Err)
}

/// What holds for every certificate of a chain.
fn check_alone(certificate: &X509Certificate<'_>, usage: Usage, now: UnixTime) -> Result<(), Refusal> {
    let body = &certificate.tbs_certificate;
    let is_version_1 = body.version == X509Version::V1;
    if is_version_1 && !body.extensions().is_empty() {
        return Err(Refusal::NotUnderstood("extensions in version 1"));
    }
    if body.extensions_map().is_err() {
        return Err(Refusal::NotUnderstood("an extension that is there twice"));
    }
    if body.raw_serial().first().is_none_or(|first| first & 0x80 != 0) {
        return Err(Refusal::NotUnderstood("a negative serial number"));
    }
    if body.signature != certificate.signature_algorithm {
        return Err(Refusal::NotUnderstood("two different signature algorithms"));
    }
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = certificate.validity();
    if now < validity.not_before.timestamp() || now >= validity.not_after.timestamp() {
        return Err(Refusal::NotInTime);
    }
    for extension in body.extensions() {
        check_extension(extension.parsed_extension(), extension.critical, usage)?;
    }
    Ok(())
}

fn check_extension(extension: &ParsedExtension<'_>, is_critical: bool, usage: Usage) -> Result<(), Refusal> {
    match extension {
        ParsedExtension::ParseError { .. } => Err(Refusal::NotUnderstood("a broken extension")),
        ParsedExtension::NameConstraints(_) => Err(Refusal::NameConstraints),
        ParsedExtension::ExtendedKeyUsage(usages) => {
            let is_named = match usage {
                Usage::Server => usages.server_auth,
                Usage::Client => usages.client_auth,
            };
            (is_named || usages.any).then_some(()).ok_or(Refusal::OtherUsage)
        }
        ParsedExtension::SubjectAlternativeName(names) => {
            let is_known = |name: &GeneralName<'_>| {
                matches!(
                    name,
                    GeneralName::DNSName(_)
                        | GeneralName::IPAddress(_)
                        | GeneralName::RFC822Name(_)
                        | GeneralName::URI(_)
                )
            };
            let is_understood = !is_critical || names.general_names.iter().any(is_known);
            is_understood
                .then_some(())
                .ok_or(Refusal::NotUnderstood("a critical name of another kind"))
        }
        ParsedExtension::BasicConstraints(_) | ParsedExtension::KeyUsage(_) => Ok(()),
        _ if is_critical => Err(Refusal::NotUnderstood("a critical extension")),
        _ => Ok(()),
    }
}

/// Whether this authority may sign certificates.
fn check_issuer(issuer: &X509Certificate<'_>) -> Result<(), Refusal> {
    match (issuer.version, basic_constraints(issuer)) {
        (X509Version::V1, _) | (X509Version::V3, Some(true)) => {}
        _ => return Err(Refusal::NoAuthority),
    }
    let mut extensions = issuer.extensions().iter();
    let signs_nothing = extensions.any(|extension| match extension.parsed_extension() {
        ParsedExtension::KeyUsage(usage) => !usage.key_cert_sign(),
        _ => false,
    });
    if signs_nothing {
        return Err(Refusal::KeyUsage);
    }
    Ok(())
}

/// Whether it has `CA:TRUE`; `None` without basic constraints.
fn basic_constraints(certificate: &X509Certificate<'_>) -> Option<bool> {
    let mut extensions = certificate.extensions().iter();
    extensions.find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::BasicConstraints(constraints) => Some(constraints.ca),
        _ => None,
    })
}

fn is_signed_by(
    leaf: &X509Certificate<'_>,
    certificate: &[u8],
    issuer: &X509Certificate<'_>,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    let (Some(named), 0) = (
        algorithm_identifier(certificate),
        leaf.signature_value.unused_bits,
    ) else {
        return false;
    };
    let key = SubjectPublicKeyInfoDer::from(issuer.public_key().raw);
    let Ok(key) = RawPublicKeyEntity::try_from(&key) else {
        return false;
    };
    let mut algorithms = algorithms.all.iter();
    algorithms.any(|algorithm| {
        algorithm.signature_alg_id().as_ref() == named
            && key
                .verify_signature(
                    *algorithm,
                    leaf.tbs_certificate.as_ref(),
                    &leaf.signature_value.data,
                )
                .is_ok()
    })
}

/// The signature's algorithm with its parameters, as DER without the outer tag: the second element of a certificate.
fn algorithm_identifier(certificate: &[u8]) -> Option<&[u8]> {
    let (_, content, _) = element(certificate)?;
    let (_, _, rest) = element(content)?;
    Some(element(rest)?.1)
}

/// Tag, content and what follows of the first DER element.
#[must_use]
pub fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, bytes) = bytes.split_first()?;
    let (&first, bytes) = bytes.split_first()?;
    let (length, bytes) = match first {
        0..=0x7f => (usize::from(first), bytes),
        0x81..=0x84 => {
            let (digits, bytes) = bytes.split_at_checked(usize::from(first & 0x7f))?;
            let length = digits
                .iter()
                .fold(0usize, |sum, digit| (sum << 8) | usize::from(*digit));
            (length, bytes)
        }
        _ => return None,
    };
    let (content, rest) = bytes.split_at_checked(length)?;
    Some((tag, content, rest))
}

fn parse(certificate: &[u8]) -> Option<X509Certificate<'_>> {
    let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
    rest.is_empty().then_some(parsed)
}

/// The subject of a certificate, as DER without the outer tag.
#[must_use]
pub fn subject(certificate: &[u8]) -> Option<&[u8]> {
    let parsed = parse(certificate)?;
    Some(element(parsed.tbs_certificate.subject.as_raw())?.1)
}

/// The key that a certificate is for.
pub(crate) fn public_key(certificate: &[u8]) -> Option<&[u8]> {
    Some(parse(certificate)?.tbs_certificate.subject_pki.raw)
}

/// The key, where webpki cannot read the certificate because of its version.
pub(crate) fn key_of_version_1(certificate: &[u8]) -> Option<&[u8]> {
    let parsed = parse(certificate)?;
    (parsed.version == X509Version::V1).then_some(parsed.tbs_certificate.subject_pki.raw)
}
