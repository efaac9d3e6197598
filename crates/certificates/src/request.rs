//! Signing requests: their contents, their names, and their outcome. Pure but for the generation of keys.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::string::Ia5String;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _,
    SanType,
};
use sha2::{Digest as _, Sha512_256};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use crate::wanted::Wanted;

/// A private key. It prints nothing of itself.
pub(crate) struct PrivateKey(KeyPair);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PrivateKey")
    }
}

impl PrivateKey {
    /// A new one, ECDSA over P-256.
    pub(crate) fn generate() -> Result<Self, String> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256);
        pair.map(Self)
            .map_err(|error| format!("no key can be made: {error}"))
    }

    /// `None` when the text is no such key.
    pub(crate) fn from_pem(text: &[u8]) -> Option<Self> {
        let pair = KeyPair::from_pem(std::str::from_utf8(text).ok()?).ok()?;
        // The usages that are asked for are those of a key that signs only.
        pair.is_compatible(&PKCS_ECDSA_P256_SHA256).then_some(Self(pair))
    }

    /// PKCS #8; secret.
    pub(crate) fn to_pem(&self) -> Vec<u8> {
        let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
        pem::encode_config(&Pem::new("PRIVATE KEY", self.0.serialize_der()), config).into_bytes()
    }

    /// `SubjectPublicKeyInfo` as DER.
    pub(crate) fn public(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }
}

/// How the object is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// By the server.
    Generated,
    /// By its contents and the key, so that the same request is found again.
    Digest,
}

/// The object to create.
pub(crate) fn signing_request(
    key: &PrivateKey,
    wanted: &Wanted,
    naming: Naming,
) -> Result<CertificateSigningRequest, String> {
    let metadata = match naming {
        Naming::Generated => ObjectMeta {
            generate_name: Some("csr-".to_owned()),
            ..ObjectMeta::default()
        },
        Naming::Digest => ObjectMeta {
            name: Some(digested_name(&key.public(), wanted)),
            ..ObjectMeta::default()
        },
    };
    let usages = wanted.purpose.usages();
    Ok(CertificateSigningRequest {
        metadata,
        spec: CertificateSigningRequestSpec {
            request: ByteString(request_pem(key, wanted)?),
            signer_name: wanted.purpose.signer().to_owned(),
            usages: Some(usages.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

/// PKCS #10 as PEM.
fn request_pem(key: &PrivateKey, wanted: &Wanted) -> Result<Vec<u8>, String> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters
        .distinguished_name
        .push(DnType::OrganizationName, wanted.organization);
    parameters
        .distinguished_name
        .push(DnType::CommonName, wanted.common_name.as_str());
    for name in &wanted.dns_names {
        let name = Ia5String::try_from(name.as_str())
            .map_err(|_| format!("{name:?} cannot be a DNS name of a certificate"))?;
        parameters.subject_alt_names.push(SanType::DnsName(name));
    }
    let addresses = wanted.ip_addresses.iter().copied().map(SanType::IpAddress);
    parameters.subject_alt_names.extend(addresses);
    let request = parameters
        .serialize_request(&key.0)
        .map_err(|error| format!("no request can be made: {error}"))?;
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let block = Pem::new("CERTIFICATE REQUEST", request.der().to_vec());
    Ok(pem::encode_config(&block, config).into_bytes())
}

/// Upstream's algorithm, so that rubelet and upstream's kubelet find each other's requests for the same key.
fn digested_name(public_key: &[u8], wanted: &Wanted) -> String {
    let mut hash = Sha512_256::new();
    let mut add = |part: &[u8]| {
        hash.update(URL_SAFE_NO_PAD.encode(part));
        hash.update(b"|");
    };
    add(public_key);
    add(wanted.common_name.as_bytes());
    add(wanted.organization.as_bytes());
    for usage in wanted.purpose.usages() {
        add(usage.as_bytes());
    }
    format!("node-csr-{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
}

/// The outcome of a request.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The certificate with what leads to its authority, as PEM.
    Issued(Vec<u8>),
    /// With the reason and message of the denial.
    Denied(String),
    Failed(String),
    /// Approved, and the signer has not signed yet.
    Approved,
    Waiting,
}

impl fmt::Debug for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Issued(_) => formatter.write_str("Issued"),
            Self::Denied(reason) => write!(formatter, "Denied({reason})"),
            Self::Failed(reason) => write!(formatter, "Failed({reason})"),
            Self::Approved => formatter.write_str("Approved"),
            Self::Waiting => formatter.write_str("Waiting"),
        }
    }
}

/// A denial wins over all other conditions.
pub(crate) fn judge(request: &CertificateSigningRequest) -> Verdict {
    let status = request.status.as_ref();
    let conditions = status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let find = |type_: &str| conditions.iter().find(|condition| condition.type_ == type_);
    if let Some(denied) = find("Denied") {
        return Verdict::Denied(condition_text(denied));
    }
    if let Some(failed) = find("Failed") {
        return Verdict::Failed(condition_text(failed));
    }
    if find("Approved").is_none() {
        return Verdict::Waiting;
    }
    let certificate = status.and_then(|status| status.certificate.as_ref());
    match certificate.filter(|certificate| !certificate.0.is_empty()) {
        Some(certificate) => Verdict::Issued(certificate.0.clone()),
        None => Verdict::Approved,
    }
}

fn condition_text(condition: &CertificateSigningRequestCondition) -> String {
    let texts = [&condition.reason, &condition.message];
    let texts: Vec<&str> = texts
        .into_iter()
        .flatten()
        .map(String::as_str)
        .filter(|text| !text.is_empty())
        .collect();
    match texts.is_empty() {
        true => "no reason was given".to_owned(),
        false => texts.join(": "),
    }
}

/// Why a request with our request's name is not ours.
pub(crate) fn foreign(
    found: &CertificateSigningRequest,
    key: &PrivateKey,
    wanted: &Wanted,
) -> Option<String> {
    if found.spec.signer_name != wanted.purpose.signer() {
        return Some(format!("it is for signer {:?}", found.spec.signer_name));
    }
    let block = pem::parse(&found.spec.request.0).ok();
    let der = block.as_ref().map(Pem::contents).unwrap_or_default();
    let Ok((_, request)) = X509CertificationRequest::from_der(der) else {
        return Some("it cannot be read".to_owned());
    };
    let asked = &request.certification_request_info;
    if asked.subject_pki.raw != key.public() {
        return Some("it is of another key".to_owned());
    }
    let name = asked.subject.iter_common_name().next();
    let name = name.and_then(|name| name.as_str().ok()).unwrap_or_default();
    (name != wanted.common_name).then(|| format!("it is for {name:?}"))
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestStatus;

    use super::*;

    #[test]
    fn the_name_is_made_by_upstreams_recipe() {
        let public_key = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAErLh2h7jzgBAfpK0/NBBXllhV2uNUTlCoUjPgompuNgDySFLFtb1z+DwGVFBG\
                          9AYz7Zh6en3i7Tozs9Rbh7w+aQ==";
        let public_key = STANDARD.decode(public_key).unwrap();
        let name = digested_name(&public_key, &Wanted::client("n"));
        assert_eq!(name, "node-csr-dpyyspV8sXg2dU0rMXY_HJ5pL-IdUevgljwALpaqKpE");
        assert_ne!(name, digested_name(&public_key, &Wanted::client("m")));
    }

    #[test]
    fn a_key_is_read_again_and_shows_nothing() {
        let key = PrivateKey::generate().unwrap();
        let again = PrivateKey::from_pem(&key.to_pem()).unwrap();
        assert_eq!(again.public(), key.public());
        assert_eq!(format!("{key:?}"), "PrivateKey");
        // A key of another kind has other usages.
        let other = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384)
            .unwrap()
            .serialize_pem();
        for text in [other.as_bytes(), b"nonsense", b"", &[0xff]] {
            assert!(PrivateKey::from_pem(text).is_none());
        }
    }

    fn check(conditions: &[(&str, &str, &str)], certificate: &[u8], expected: &Verdict) {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let conditions = conditions.iter();
        let conditions = conditions.map(|(type_, reason, message)| CertificateSigningRequestCondition {
            type_: (*type_).to_owned(),
            reason: text(reason),
            message: text(message),
            ..CertificateSigningRequestCondition::default()
        });
        let request = CertificateSigningRequest {
            status: Some(CertificateSigningRequestStatus {
                certificate: Some(ByteString(certificate.to_vec())),
                conditions: Some(conditions.collect()),
            }),
            ..CertificateSigningRequest::default()
        };
        assert_eq!(judge(&request), *expected);
    }

    #[test]
    fn what_became_of_a_request() {
        let denied = |reason: &str| Verdict::Denied(reason.to_owned());
        check(&[], b"", &Verdict::Waiting);
        // Only an approval makes a certificate one.
        check(&[], b"c", &Verdict::Waiting);
        check(&[("Approved", "", "")], b"", &Verdict::Approved);
        check(&[("Approved", "", "")], b"c", &Verdict::Issued(b"c".to_vec()));
        check(&[("Denied", "No", "not you")], b"", &denied("No: not you"));
        check(&[("Denied", "", "")], b"", &denied("no reason was given"));
        check(&[("Approved", "", ""), ("Denied", "No", "")], b"c", &denied("No"));
        let failed = Verdict::Failed("SignerValidationFailure: bad usages".to_owned());
        check(
            &[
                ("Approved", "", ""),
                ("Failed", "SignerValidationFailure", "bad usages"),
            ],
            b"",
            &failed,
        );
        assert_eq!(judge(&CertificateSigningRequest::default()), Verdict::Waiting);
        assert_eq!(format!("{:?}", Verdict::Issued(b"c".to_vec())), "Issued");
    }

    #[test]
    fn a_request_of_our_name_may_not_be_ours() {
        let (key, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let wanted = Wanted::client("n");
        let request = |key, name| signing_request(key, &Wanted::client(name), Naming::Digest).unwrap();
        let check = |request: &CertificateSigningRequest, expected: Option<&str>| {
            assert_eq!(foreign(request, &key, &wanted).as_deref(), expected);
        };
        check(&request(&key, "n"), None);
        check(&request(&other, "n"), Some("it is of another key"));
        check(&request(&key, "m"), Some("it is for \"system:node:m\""));
        let mut elsewhere = request(&key, "n");
        elsewhere.spec.signer_name = "example.org/other".to_owned();
        check(&elsewhere, Some("it is for signer \"example.org/other\""));
        let mut broken = request(&key, "n");
        broken.spec.request.0.truncate(100);
        check(&broken, Some("it cannot be read"));
    }
}
