//! Calls about the pods of this node.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube_core::params::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use rubelet_ports::api::{ApiError, Changes, PodReader, PodWriter};
use serde_json::Value;

use crate::ApiServer;
use crate::call::{body, collection, malformed, request, segment};
use crate::decode;
use crate::follow::{Followed, follow};

#[async_trait]
impl PodReader for ApiServer {
    fn follow_pods(&self, node_name: &str) -> Changes<Pod> {
        let followed = Followed {
            paths: vec![collection::<Pod>(None)],
            field_selector: Some(format!("spec.nodeName={node_name}")),
            what: format!("pods of node {node_name}"),
            keeps_unreadable: true,
            ..Followed::default()
        };
        follow(&self.core, followed)
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Pod, ApiError> {
        let request = request::<Pod>(Some(namespace)).get(&segment(name), &GetParams::default());
        let operation = format!("get pod {namespace}/{name}");
        self.core.call(&self.core.calls, operation, request).await
    }
}

#[async_trait]
impl PodWriter for ApiServer {
    async fn patch_pod_status(&self, namespace: &str, name: &str, patch: Value) -> Result<Pod, ApiError> {
        let patch = Patch::Strategic(patch);
        let params = PatchParams::default();
        let pods = request::<Pod>(Some(namespace));
        let request = pods.patch_subresource("status", &segment(name), &params, &patch);
        let operation = format!("patch status of pod {namespace}/{name}");
        let body = self
            .core
            .exchange(&self.core.statuses, &operation, request)
            .await?;
        // A pod that cannot be decoded can still be reported and deleted.
        decode::object(&body)
            .or_else(|_| decode::without_spec(&body))
            .map_err(|error| malformed::<Pod>(operation, &error))
    }

    async fn create_pod(&self, pod: &Pod) -> Result<Pod, ApiError> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let pods = request::<Pod>(Some(namespace));
        let request = body(pod).and_then(|body| pods.create(&PostParams::default(), body));
        let operation = format!("create pod {namespace}/{name}");
        self.core.call(&self.core.calls, operation, request).await
    }

    async fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        grace_seconds: i64,
    ) -> Result<(), ApiError> {
        let grace_seconds = u32::try_from(grace_seconds.max(0)).unwrap_or(u32::MAX);
        let params = DeleteParams::default()
            .grace_period(grace_seconds)
            .preconditions(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            });
        let request = request::<Pod>(Some(namespace)).delete(&segment(name), &params);
        let operation = format!("delete pod {namespace}/{name}");
        let answer = self.core.exchange(&self.core.statuses, &operation, request).await;
        // The answer is the pod while it terminates, or a status.
        answer.map(|_| ())
    }
}
