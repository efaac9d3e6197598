//! One try to get a certificate: create the request, wait until it is approved and signed.
//!
//! Owns the deadlines of both, and the difference between a refusal and a temporary failure. It retries nothing.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use rubelet_ports::api::{ApiError, ApiErrorKind, Change, SigningRequests};
use rubelet_ports::{Clock, within};
use thiserror::Error;

use crate::facts::{CertificateFacts, FactsError};
use crate::kept_key::KeptKey;
use crate::plan::spelled;
use crate::request::{Naming, PrivateKey, Verdict, foreign, judge, signing_request};
use crate::wanted::Wanted;
use crate::{BootstrapSigner, PemPair};

/// For the API server to take the request.
const CREATE_LIMIT: Duration = Duration::from_secs(60);
/// For the approval and for the signer to sign.
const ISSUE_LIMIT: Duration = Duration::from_mins(15);

/// Why no certificate came of a try.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RequestFailure {
    #[error("{0}")]
    Api(ApiError),
    #[error("the API server took no request within {} s", CREATE_LIMIT.as_secs())]
    NoAnswer,
    #[error("the bootstrap kubeconfig cannot be used: {0}")]
    Bootstrap(String),
    #[error("signing request {name} was denied: {reason}")]
    Denied { name: String, reason: String },
    #[error("the signer failed on signing request {name}: {reason}")]
    Failed { name: String, reason: String },
    #[error("signing request {name} was deleted before a certificate was issued")]
    Deleted { name: String },
    #[error("signing request {name} has the name of ours but other contents: {problem}")]
    Foreign { name: String, problem: String },
    #[error(
        "signing request {name} {} within {} min{}",
        if *.is_approved { "is approved but was not signed" } else { "was not approved" },
        ISSUE_LIMIT.as_secs() / 60,
        .problem.as_ref().map(|problem| format!(" ({problem})")).unwrap_or_default()
    )]
    TooLate {
        name: String,
        is_approved: bool,
        /// Why the last watch of the request failed.
        problem: Option<ApiError>,
    },
    #[error("the certificate that was issued cannot be used: {0}")]
    Unusable(String),
    #[error("{0}")]
    Own(String),
}

impl RequestFailure {
    /// The same request would be refused again.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Denied { .. } | Self::Failed { .. } | Self::Foreign { .. } | Self::Unusable(_) => true,
            Self::Api(_)
            | Self::NoAnswer
            | Self::Bootstrap(_)
            | Self::Deleted { .. }
            | Self::TooLate { .. }
            | Self::Own(_) => false,
        }
    }
}

/// The API server's client for signing requests, and the bootstrap one.
pub(crate) struct Issuer {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ordinary: Arc<dyn SigningRequests>,
    pub(crate) bootstrap: Option<Arc<dyn BootstrapSigner>>,
    pub(crate) kept_key: KeptKey,
}

impl Issuer {
    /// Gets a certificate for a new key. Dropping it half-way leaves at most an unused request at the API server.
    pub(crate) async fn obtain(
        &self,
        wanted: &Wanted,
        has_valid: bool,
    ) -> Result<(PemPair, CertificateFacts), RequestFailure> {
        let bootstrap = self.bootstrap.as_ref().filter(|_| !has_valid);
        let (signer, key, naming) = match bootstrap {
            Some(bootstrap) => {
                let signer = bootstrap.connect().map_err(RequestFailure::Bootstrap)?;
                let key = self.kept_key.load_or_make().await;
                (signer, key.map_err(RequestFailure::Own)?, Naming::Digest)
            }
            None => {
                let key = PrivateKey::generate().map_err(RequestFailure::Own)?;
                (self.ordinary.clone(), key, Naming::Generated)
            }
        };
        let request = signing_request(&key, wanted, naming).map_err(RequestFailure::Own)?;
        let (name, uid) = self.create(signer.as_ref(), &request).await?;
        tracing::info!(
            request = name,
            signer = wanted.purpose.signer(),
            "A certificate was asked for; it waits for approval"
        );
        let mut following = Following {
            uid,
            key: &key,
            wanted,
            name,
            was_seen: false,
            is_approved: false,
        };
        let chain_pem = self.issued(signer.as_ref(), &mut following).await?;
        let facts = self.checked(&chain_pem, &key).map_err(RequestFailure::Unusable)?;
        let key_pem = key.to_pem();
        Ok((PemPair { chain_pem, key_pem }, facts))
    }

    /// The request's name, and its UID unless it was there already.
    async fn create(
        &self,
        signer: &dyn SigningRequests,
        request: &CertificateSigningRequest,
    ) -> Result<(String, Option<String>), RequestFailure> {
        let created = within(
            self.clock.as_ref(),
            CREATE_LIMIT,
            signer.create_signing_request(request),
        )
        .await;
        match created.map_err(|_| RequestFailure::NoAnswer)? {
            Ok(created) => Ok((created.metadata.name.unwrap_or_default(), created.metadata.uid)),
            Err(error) if error.kind == ApiErrorKind::AlreadyExists => match &request.metadata.name {
                Some(name) => {
                    tracing::info!(
                        request = name,
                        "The signing request of an earlier run is used again"
                    );
                    Ok((name.clone(), None))
                }
                None => Err(RequestFailure::Api(error)),
            },
            Err(error) => Err(RequestFailure::Api(error)),
        }
    }

    async fn issued(
        &self,
        signer: &dyn SigningRequests,
        following: &mut Following<'_>,
    ) -> Result<Vec<u8>, RequestFailure> {
        let clock = self.clock.as_ref();
        let end = clock.moment().plus(ISSUE_LIMIT);
        let mut changes = signer.follow_signing_request(&following.name);
        let mut problem = None;
        while let Ok(Some(change)) = within(clock, end.since(clock.moment()), changes.next()).await {
            if let Change::Broken(error) = &change {
                tracing::debug!(%error, "The signing request cannot be followed at the moment");
                problem = Some(error.clone());
                continue;
            }
            problem = None;
            if let Some(certificate) = following.take(&change)? {
                return Ok(certificate);
            }
        }
        Err(RequestFailure::TooLate {
            name: following.name.clone(),
            is_approved: following.is_approved,
            problem,
        })
    }

    fn checked(&self, chain_pem: &[u8], key: &PrivateKey) -> Result<CertificateFacts, String> {
        let facts = CertificateFacts::of_pem(chain_pem).map_err(|error: FactsError| error.to_string())?;
        if facts.public_key != key.public() {
            return Err("it is for another key".to_owned());
        }
        let now = self.clock.now();
        if facts.is_expired(now) {
            return Err(format!(
                "it expired already at {}; this node's clock may be ahead",
                spelled(facts.not_after)
            ));
        }
        if facts.not_before > now {
            tracing::warn!(
                valid_from = spelled(facts.not_before),
                "The new certificate is not valid yet; this node's clock may be behind"
            );
        }
        Ok(facts)
    }
}

/// A request that was created.
struct Following<'a> {
    name: String,
    /// Known once it was created or seen.
    uid: Option<String>,
    key: &'a PrivateKey,
    wanted: &'a Wanted,
    was_seen: bool,
    is_approved: bool,
}

impl Following<'_> {
    /// The certificate, once it is there.
    fn take(
        &mut self,
        change: &Change<CertificateSigningRequest>,
    ) -> Result<Option<Vec<u8>>, RequestFailure> {
        let is_it = |object: &&Arc<CertificateSigningRequest>| {
            object.metadata.name.as_deref() == Some(self.name.as_str())
        };
        let found = match change {
            Change::All(all) => all.iter().find(is_it),
            Change::Applied(object) => Some(object).filter(is_it),
            Change::Deleted(object) if is_it(&object) => return Err(self.deleted()),
            Change::Deleted(_) | Change::Broken(_) | Change::Resumed => None,
        };
        let Some(object) = found else {
            // A list may be older than the request; but what was seen does not vanish by itself.
            return match change {
                Change::All(_) if self.was_seen => Err(self.deleted()),
                _ => Ok(None),
            };
        };
        self.was_seen = true;
        match &self.uid {
            None => self.uid.clone_from(&object.metadata.uid),
            Some(uid) if object.metadata.uid.as_ref() != Some(uid) => return Err(self.deleted()),
            Some(_) => {}
        }
        let name = self.name.clone();
        if let Some(problem) = foreign(object, self.key, self.wanted) {
            return Err(RequestFailure::Foreign { name, problem });
        }
        match judge(object) {
            Verdict::Issued(certificate) => Ok(Some(certificate)),
            Verdict::Denied(reason) => Err(RequestFailure::Denied { name, reason }),
            Verdict::Failed(reason) => Err(RequestFailure::Failed { name, reason }),
            Verdict::Approved => {
                self.is_approved = true;
                Ok(None)
            }
            Verdict::Waiting => Ok(None),
        }
    }

    fn deleted(&self) -> RequestFailure {
        RequestFailure::Deleted {
            name: self.name.clone(),
        }
    }
}
