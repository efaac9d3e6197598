//! Calls about the objects that pods refer to: ConfigMaps, Secrets, Services, tokens.

use async_trait::async_trait;
use k8s_openapi::Resource;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::certificates::v1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceAccount};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube_core::params::{GetParams, PostParams};
use rubelet_ports::api::{ApiError, Changes, ObjectReader, TokenIssuer};

use crate::ApiServer;
use crate::call::{body, collection, collection_of, request, segment};
use crate::follow::{Followed, Object, follow};

/// Versions of the certificates' API that serve trust bundles with the same fields, the newest first.
const TRUST_BUNDLE_VERSIONS: [&str; 2] = ["certificates.k8s.io/v1", "certificates.k8s.io/v1beta1"];

impl ApiServer {
    async fn read<T: Object>(&self, namespace: &str, name: &str) -> Result<T, ApiError> {
        let request = request::<T>(Some(namespace)).get(&segment(name), &GetParams::default());
        let operation = format!("get {} {namespace}/{name}", T::KIND);
        self.core.call(&self.core.calls, operation, request).await
    }

    fn follow_one<T: Object>(&self, namespace: &str, name: &str) -> Changes<T> {
        let followed = Followed {
            paths: vec![collection::<T>(Some(namespace))],
            field_selector: Some(format!("metadata.name={name}")),
            is_streamed: true,
            what: format!("{} {namespace}/{name}", T::KIND),
            ..Followed::default()
        };
        follow(&self.core, followed)
    }

    fn follow_all<T: Object>(&self, what: &str) -> Changes<T> {
        let followed = Followed {
            paths: vec![collection::<T>(None)],
            what: what.to_owned(),
            ..Followed::default()
        };
        follow(&self.core, followed)
    }
}

#[async_trait]
impl ObjectReader for ApiServer {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<ConfigMap, ApiError> {
        self.read(namespace, name).await
    }

    fn follow_config_map(&self, namespace: &str, name: &str) -> Changes<ConfigMap> {
        self.follow_one(namespace, name)
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, ApiError> {
        self.read(namespace, name).await
    }

    fn follow_secret(&self, namespace: &str, name: &str) -> Changes<Secret> {
        self.follow_one(namespace, name)
    }

    fn follow_services(&self) -> Changes<Service> {
        let followed = Followed {
            paths: vec![collection::<Service>(None)],
            // A service without an address gives no variables.
            field_selector: Some("spec.clusterIP!=None".to_owned()),
            is_streamed: true,
            what: "services".to_owned(),
            ..Followed::default()
        };
        follow(&self.core, followed)
    }

    fn follow_runtime_classes(&self) -> Changes<RuntimeClass> {
        self.follow_all("runtime classes")
    }

    fn follow_trust_bundles(&self) -> Changes<ClusterTrustBundle> {
        let plural = ClusterTrustBundle::URL_PATH_SEGMENT;
        let paths = TRUST_BUNDLE_VERSIONS.map(|version| collection_of(version, plural, None));
        let followed = Followed {
            paths: paths.to_vec(),
            what: "cluster trust bundles".to_owned(),
            may_be_unserved: true,
            ..Followed::default()
        };
        follow(&self.core, followed)
    }

    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, ApiError> {
        self.read(namespace, name).await
    }
}

#[async_trait]
impl TokenIssuer for ApiServer {
    async fn request_token(
        &self,
        namespace: &str,
        service_account: &str,
        token: &TokenRequest,
    ) -> Result<TokenRequest, ApiError> {
        let accounts = request::<ServiceAccount>(Some(namespace));
        let name = segment(service_account);
        let request = body(token)
            .and_then(|body| accounts.create_subresource("token", &name, &PostParams::default(), body));
        let operation = format!("request a token of service account {namespace}/{service_account}");
        self.core.call(&self.core.calls, operation, request).await
    }
}
