//! What pods refer to: ConfigMaps, Secrets, Services, RuntimeClasses, trust bundles, service account tokens.

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::certificates::v1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceAccount};
use k8s_openapi::api::node::v1::RuntimeClass;

use super::{ApiError, Changes};

/// Calls that change nothing. Node authorization lets a node read a Secret or ConfigMap by its name only, and only while a pod of
/// the node refers to it: each is followed alone.
#[async_trait]
pub trait ObjectReader: Send + Sync {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<ConfigMap, ApiError>;
    fn follow_config_map(&self, namespace: &str, name: &str) -> Changes<ConfigMap>;

    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, ApiError>;
    fn follow_secret(&self, namespace: &str, name: &str) -> Changes<Secret>;

    /// The services of all namespaces that have an address: headless ones are left out.
    fn follow_services(&self) -> Changes<Service>;
    fn follow_runtime_classes(&self) -> Changes<RuntimeClass>;
    /// Of the newest version that the server has, given as `v1`, whose fields are the same.
    fn follow_trust_bundles(&self) -> Changes<ClusterTrustBundle>;

    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, ApiError>;
}

#[async_trait]
pub trait TokenIssuer: Send + Sync {
    /// A new token of a service account. The answer is secret.
    async fn request_token(
        &self,
        namespace: &str,
        service_account: &str,
        request: &TokenRequest,
    ) -> Result<TokenRequest, ApiError>;
}
