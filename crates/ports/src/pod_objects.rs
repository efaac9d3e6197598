//! The API objects that pods of this node refer to, as pods' containers and volumes need them.
//!
//! Owns the calls. Watches, caches, reference counts and token renewal are behind it. Values of Secrets and tokens never appear in
//! an error or in a `Debug`.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use k8s_openapi::api::authentication::v1::BoundObjectReference;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use thiserror::Error;

/// Why an object is not available.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ObjectFailure {
    /// The API server has no such object; optional references ignore it.
    #[error("{0}")]
    NotFound(String),
    /// Anything else, as a message for users: not reachable, not allowed, not yet seen.
    #[error("{0}")]
    Unavailable(String),
}

impl ObjectFailure {
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }
}

/// A token for a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenQuestion {
    pub namespace: String,
    pub service_account: String,
    pub audiences: Vec<String>,
    pub expiration_seconds: i64,
    pub pod_name: String,
    pub pod_uid: String,
}

impl TokenQuestion {
    /// What the token is bound to.
    #[must_use]
    pub fn bound_object(&self) -> BoundObjectReference {
        BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(self.pod_name.clone()),
            uid: Some(self.pod_uid.clone()),
        }
    }
}

/// A token; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    /// When the file that holds it should be written anew.
    pub renew_at: Timestamp,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Token(renew at {:?})", self.renew_at)
    }
}

/// Which trust bundles go into a file: one by its name, or all of a signer that the labels select.
#[derive(Clone, Debug, PartialEq)]
pub enum TrustQuestion {
    Named(String),
    Signed {
        signer: String,
        labels: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
    },
}

/// What a pod's `podCertificate` source has now.
#[derive(Clone, PartialEq, Eq)]
pub struct PodCertificate {
    /// PEM; secret.
    pub key: Vec<u8>,
    /// PEM, leaf first.
    pub chain: Vec<u8>,
}

impl std::fmt::Debug for PodCertificate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("PodCertificate")
    }
}

#[async_trait]
pub trait PodObjects: Send + Sync {
    /// Registers the objects that the pod's spec refers to; a repeated call with the same spec is cheap.
    fn register(&self, pod: &Arc<Pod>);

    /// Unregisters a pod of which nothing is left.
    fn unregister(&self, uid: &PodUid);

    /// Pods to sync again because an object they refer to changed, or a token or certificate is due. One listener.
    fn changes(&self) -> BoxStream<'static, PodUid>;

    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectFailure>;
    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectFailure>;

    /// The services of a namespace and `kubernetes` of the default one; it waits (bounded) until services were listed once.
    async fn services(&self, namespace: &str) -> Result<Vec<Arc<Service>>, ObjectFailure>;

    async fn runtime_class(&self, name: &str) -> Result<Arc<RuntimeClass>, ObjectFailure>;

    async fn token(&self, question: &TokenQuestion) -> Result<Token, ObjectFailure>;

    /// PEM, normalised; not found when nothing matches.
    async fn trust_bundle(&self, question: &TrustQuestion) -> Result<Arc<str>, ObjectFailure>;

    /// The certificate of the projected source at this place of the pod's spec.
    async fn pod_certificate(
        &self,
        pod: &Arc<Pod>,
        volume: &str,
        source: usize,
    ) -> Result<PodCertificate, ObjectFailure>;
}
