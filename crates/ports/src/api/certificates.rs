//! Certificates from the cluster's signers: for the node itself and for its pods.

use async_trait::async_trait;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, PodCertificateRequest};

use super::{ApiError, Changes};

/// Requests for the node's own certificates.
#[async_trait]
pub trait SigningRequests: Send + Sync {
    async fn create_signing_request(
        &self,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, ApiError>;

    /// The one request of this name.
    fn follow_signing_request(&self, name: &str) -> Changes<CertificateSigningRequest>;
}

/// Requests for certificates of pods.
#[async_trait]
pub trait PodCertificates: Send + Sync {
    async fn create_pod_certificate_request(
        &self,
        request: &PodCertificateRequest,
    ) -> Result<PodCertificateRequest, ApiError>;

    /// The requests of this node's pods.
    fn follow_pod_certificate_requests(&self, node_name: &str) -> Changes<PodCertificateRequest>;
}
