//! The cluster's signing requests in memory, with a real authority behind them and faults in between.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, PublicKeyData,
    SanType, SignatureAlgorithm,
};
use rubelet_ports::api::{ApiError, ApiErrorKind, Change, Changes, SigningRequests};
use tokio::sync::watch;
use tokio::time::Instant;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer as _;

/// What happens to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Sign,
    /// They stay unanswered.
    Ignore,
    /// Approved, but not signed.
    ApproveOnly,
    Deny,
    /// The server cannot be reached.
    Outage,
    /// The certificate is for another key.
    OtherKey,
    /// Addresses are left out.
    WithoutAddresses,
}

#[derive(Clone)]
pub(crate) struct Signer {
    inner: Arc<Mutex<Inner>>,
    version: Arc<watch::Sender<u64>>,
    start: Instant,
    authority: Arc<Authority>,
}

struct Inner {
    mode: Mode,
    life: Duration,
    dated_back: Duration,
    requests: BTreeMap<String, CertificateSigningRequest>,
    /// Who asked for what, in order; also what was asked for again.
    log: Vec<String>,
    count: u64,
}

struct Authority {
    parameters: CertificateParams,
    key: KeyPair,
}

/// One way to the signer; the log says which was used.
#[derive(Clone)]
pub(crate) struct Door {
    signer: Signer,
    name: &'static str,
}

struct PublicPoint(Vec<u8>);

impl PublicKeyData for PublicPoint {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl Signer {
    pub(crate) fn new(start: Instant) -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self {
            inner: Arc::new(Mutex::new(Inner {
                mode: Mode::Sign,
                life: Duration::from_hours(24),
                dated_back: Duration::ZERO,
                requests: BTreeMap::new(),
                log: Vec::new(),
                count: 0,
            })),
            version: Arc::new(watch::Sender::new(0)),
            start,
            authority: Arc::new(Authority { parameters, key }),
        }
    }

    pub(crate) fn door(&self, name: &'static str) -> Door {
        Door {
            signer: self.clone(),
            name,
        }
    }

    /// From now on; requests that wait are treated so too.
    pub(crate) fn set_mode(&self, mode: Mode) {
        self.inner.lock().unwrap().mode = mode;
        self.treat_all();
    }

    pub(crate) fn set_life(&self, life: Duration, dated_back: Duration) {
        let mut inner = self.inner.lock().unwrap();
        (inner.life, inner.dated_back) = (life, dated_back);
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.inner.lock().unwrap().log.clone()
    }

    pub(crate) fn requests(&self) -> Vec<CertificateSigningRequest> {
        self.inner.lock().unwrap().requests.values().cloned().collect()
    }

    pub(crate) fn delete_all(&self) {
        self.inner.lock().unwrap().requests.clear();
        self.version.send_modify(|version| *version += 1);
    }

    /// Waits until this many requests were made.
    pub(crate) async fn asked(&self, count: usize) {
        let mut version = self.version.subscribe();
        let enough = version.wait_for(|_| self.log().len() >= count);
        tokio::time::timeout(crate::bed::DEADLINE, enough)
            .await
            .unwrap_or_else(|_| panic!("only asked {:?}", self.log()))
            .unwrap();
    }

    fn treat_all(&self) {
        {
            let mut inner = self.inner.lock().unwrap();
            let (mode, life, dated_back) = (inner.mode, inner.life, inner.dated_back);
            for request in inner.requests.values_mut().filter(|request| is_open(request)) {
                self.treat(request, mode, life, dated_back);
            }
        }
        self.version.send_modify(|version| *version += 1);
    }

    fn treat(
        &self,
        request: &mut CertificateSigningRequest,
        mode: Mode,
        life: Duration,
        dated_back: Duration,
    ) {
        let condition = |type_: &str| CertificateSigningRequestCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: Some("Tested".to_owned()),
            message: Some(format!("{type_} by the test")),
            ..CertificateSigningRequestCondition::default()
        };
        let (type_, certificate) = match mode {
            Mode::Ignore | Mode::Outage => return,
            Mode::Deny => ("Denied", None),
            Mode::ApproveOnly => ("Approved", None),
            Mode::Sign | Mode::OtherKey | Mode::WithoutAddresses => (
                "Approved",
                Some(self.certificate(request, mode, life, dated_back)),
            ),
        };
        request.status = Some(CertificateSigningRequestStatus {
            certificate: certificate.map(|text| ByteString(text.into_bytes())),
            conditions: Some(vec![condition(type_)]),
        });
    }

    fn certificate(
        &self,
        request: &CertificateSigningRequest,
        mode: Mode,
        life: Duration,
        dated_back: Duration,
    ) -> String {
        let asked = Asked::of(request);
        let mut parameters = asked.parameters(mode != Mode::WithoutAddresses);
        let now = self.start.elapsed();
        crate::bed::set_validity(&mut parameters, now, dated_back, now + life);
        let point = match mode {
            Mode::OtherKey => KeyPair::generate().unwrap().der_bytes().to_vec(),
            _ => asked.public_point,
        };
        let issuer = Issuer::from_params(&self.authority.parameters, &self.authority.key);
        parameters.signed_by(&PublicPoint(point), &issuer).unwrap().pem()
    }
}

fn is_open(request: &CertificateSigningRequest) -> bool {
    let status = request.status.as_ref();
    let is_denied = status
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|conditions| conditions.iter().any(|condition| condition.type_ == "Denied"));
    !is_denied && status.is_none_or(|status| status.certificate.is_none())
}

/// What a request says.
pub(crate) struct Asked {
    pub(crate) common_name: String,
    pub(crate) organization: String,
    pub(crate) names: Vec<String>,
    pub(crate) addresses: Vec<std::net::IpAddr>,
    pub(crate) public_point: Vec<u8>,
}

impl Asked {
    pub(crate) fn of(request: &CertificateSigningRequest) -> Self {
        let block = pem::parse(&request.spec.request.0).unwrap();
        assert_eq!(block.tag(), "CERTIFICATE REQUEST");
        let (_, parsed) = X509CertificationRequest::from_der(block.contents()).unwrap();
        let info = &parsed.certification_request_info;
        let mut asked = Self {
            common_name: info
                .subject
                .iter_common_name()
                .next()
                .unwrap()
                .as_str()
                .unwrap()
                .to_owned(),
            organization: info
                .subject
                .iter_organization()
                .next()
                .unwrap()
                .as_str()
                .unwrap()
                .to_owned(),
            names: Vec::new(),
            addresses: Vec::new(),
            public_point: info.subject_pki.subject_public_key.data.to_vec(),
        };
        for extension in parsed.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(names) = extension else {
                continue;
            };
            for name in &names.general_names {
                match name {
                    GeneralName::DNSName(name) => asked.names.push((*name).to_owned()),
                    GeneralName::IPAddress(octets) => {
                        asked.addresses.push(<[u8; 4]>::try_from(*octets).unwrap().into());
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        asked
    }

    fn parameters(&self, with_addresses: bool) -> CertificateParams {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        let name = &mut parameters.distinguished_name;
        name.push(DnType::OrganizationName, self.organization.as_str());
        name.push(DnType::CommonName, self.common_name.as_str());
        if with_addresses {
            let names = self.names.iter();
            let names = names.map(|name| SanType::DnsName(name.as_str().try_into().unwrap()));
            parameters.subject_alt_names.extend(names);
            let addresses = self.addresses.iter().copied().map(SanType::IpAddress);
            parameters.subject_alt_names.extend(addresses);
        }
        parameters
    }
}

fn unreachable() -> ApiError {
    ApiError::new(
        "signing requests",
        ApiErrorKind::Unreachable,
        "connection refused",
    )
}

#[async_trait]
impl SigningRequests for Door {
    async fn create_signing_request(
        &self,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, ApiError> {
        let mut request = request.clone();
        let name = {
            let mut inner = self.signer.inner.lock().unwrap();
            if inner.mode == Mode::Outage {
                return Err(unreachable());
            }
            inner.count += 1;
            let count = inner.count;
            let generated = |prefix: &String| format!("{prefix}{count}");
            let metadata = &mut request.metadata;
            let name = metadata.name.clone();
            let name = name
                .or_else(|| metadata.generate_name.as_ref().map(generated))
                .unwrap();
            metadata.name = Some(name.clone());
            metadata.uid = Some(format!("uid-{count}"));
            inner.log.push(format!("{} {name}", self.name));
            if inner.requests.contains_key(&name) {
                drop(inner);
                self.signer.treat_all();
                return Err(ApiError::new(
                    "create",
                    ApiErrorKind::AlreadyExists,
                    "it is there",
                ));
            }
            inner.requests.insert(name.clone(), request);
            name
        };
        self.signer.treat_all();
        Ok(self.signer.inner.lock().unwrap().requests[&name].clone())
    }

    fn follow_signing_request(&self, name: &str) -> Changes<CertificateSigningRequest> {
        let (signer, name) = (self.signer.clone(), name.to_owned());
        let mut version = signer.version.subscribe();
        version.mark_changed();
        let start = (
            signer,
            name,
            version,
            None::<Arc<CertificateSigningRequest>>,
            true,
        );
        Box::pin(stream::unfold(
            start,
            async |(signer, name, mut version, last, is_first)| {
                loop {
                    version.changed().await.ok()?;
                    let (found, mode) = {
                        let inner = signer.inner.lock().unwrap();
                        (inner.requests.get(&name).cloned().map(Arc::new), inner.mode)
                    };
                    if mode == Mode::Outage {
                        let change = Change::Broken(unreachable());
                        return Some((change, (signer, name, version, last, true)));
                    }
                    let change = match (&last, found.clone()) {
                        _ if is_first => Change::All(found.clone().into_iter().collect()),
                        (Some(last), None) => Change::Deleted(last.clone()),
                        (None, None) => continue,
                        (_, Some(found)) => Change::Applied(found),
                    };
                    return Some((change, (signer, name, version, found, false)));
                }
            },
        ))
    }
}
