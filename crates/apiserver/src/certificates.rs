//! Certificates from the cluster's signers.

use async_trait::async_trait;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, PodCertificateRequest};
use kube_core::params::PostParams;
use rubelet_ports::api::{ApiError, Changes, PodCertificates, SigningRequests};

use crate::ApiServer;
use crate::call::{body, collection, request};
use crate::follow::{Followed, follow};

#[async_trait]
impl SigningRequests for ApiServer {
    async fn create_signing_request(
        &self,
        wanted: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, ApiError> {
        let requests = request::<CertificateSigningRequest>(None);
        let request = body(wanted).and_then(|body| requests.create(&PostParams::default(), body));
        let operation = "create a certificate signing request".to_owned();
        self.core.call(&self.core.calls, operation, request).await
    }

    fn follow_signing_request(&self, name: &str) -> Changes<CertificateSigningRequest> {
        let followed = Followed {
            paths: vec![collection::<CertificateSigningRequest>(None)],
            field_selector: Some(format!("metadata.name={name}")),
            what: format!("certificate signing request {name}"),
            ..Followed::default()
        };
        follow(&self.core, followed)
    }
}

#[async_trait]
impl PodCertificates for ApiServer {
    async fn create_pod_certificate_request(
        &self,
        wanted: &PodCertificateRequest,
    ) -> Result<PodCertificateRequest, ApiError> {
        let namespace = wanted.metadata.namespace.as_deref().unwrap_or("default");
        let requests = request::<PodCertificateRequest>(Some(namespace));
        let request = body(wanted).and_then(|body| requests.create(&PostParams::default(), body));
        let operation = format!("create a pod certificate request in namespace {namespace}");
        self.core.call(&self.core.calls, operation, request).await
    }

    fn follow_pod_certificate_requests(&self, node_name: &str) -> Changes<PodCertificateRequest> {
        let followed = Followed {
            paths: vec![collection::<PodCertificateRequest>(None)],
            field_selector: Some(format!("spec.nodeName={node_name}")),
            what: format!("pod certificate requests of node {node_name}"),
            may_be_unserved: true,
            ..Followed::default()
        };
        follow(&self.core, followed)
    }
}
