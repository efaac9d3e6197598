//! metrics-server: what `kubectl top` and autoscalers ask for the use of nodes and pods. It asks the kubelets.
//!
//! ```text
//!   kubectl, controllers ──► API server ──► metrics-server ──► /metrics/resource of every kubelet
//! ```
//!
//! Owns its objects in the cluster, its rights, which are those of a production cluster, and its process. It judges no figure.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::Client;
use serde_json::{Value, json};

use super::pki::Authority;
use super::place::{Flags, LOOPBACK, Place, program_path, wait_serving};
use crate::process::Process;
use crate::{Program, Scope};

/// As whom it asks the API server and kubelets.
pub(super) const USER: &str = "metrics-server";
const NAMESPACE: &str = "kube-system";
const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";
/// The shortest that it takes.
const RESOLUTION: Duration = Duration::from_secs(10);
const KUBELET_TIMEOUT: Duration = Duration::from_secs(8);
const RBAC: &str = "rbac.authorization.k8s.io";

/// A running metrics-server. It ends with this value.
pub struct MetricsServer {
    process: Process,
}

impl MetricsServer {
    pub(super) async fn start(
        scope: &Scope,
        (place, authority): (&Place, &Authority),
        ca: &Path,
        (admin, kubeconfig): (&Client, &Path),
    ) -> Result<Self> {
        let program = program_path(Program::MetricsServer).await?;
        allow_its_work(admin).await?;
        // The API server speaks to it by the name of its service.
        let host = format!("{USER}.{NAMESPACE}.svc");
        let serving = authority
            .server(USER, &[], vec![host])?
            .write(&place.pki(), USER)?;
        let port = scope.port()?;
        let flags = Flags::default()
            .path("kubeconfig", kubeconfig)
            .path("authentication-kubeconfig", kubeconfig)
            .path("authorization-kubeconfig", kubeconfig)
            .set("bind-address", LOOPBACK)
            .set("secure-port", port)
            .path("tls-cert-file", &serving.certificate)
            .path("tls-private-key-file", &serving.key)
            .path("kubelet-certificate-authority", ca)
            .set("kubelet-use-node-status-port", true)
            .set("kubelet-preferred-address-types", "InternalIP")
            .set("metric-resolution", format!("{}s", RESOLUTION.as_secs()))
            .set(
                "kubelet-request-timeout",
                format!("{}s", KUBELET_TIMEOUT.as_secs()),
            );
        let mut process = place.spawn(USER, &program, &flags)?;
        join(admin, port, authority.certificate_pem()).await?;
        let path = format!("/apis/{GROUP}/{VERSION}");
        wait_serving("metrics-server's API is served", &mut process, || async {
            let request = http::Request::get(&path).body(Vec::new())?;
            admin.request_text(request).await.map(drop).map_err(Into::into)
        })
        .await?;
        Ok(Self { process })
    }

    /// The end of its log, for a failure's report.
    pub fn log_tail(&self) -> String {
        format!("the end of metrics-server's log:\n{}", self.process.log_tail(20))
    }
}

/// Reading nodes and pods, asking who a client is and what it may, and reading how the API server proves itself.
async fn allow_its_work(admin: &Client) -> Result<()> {
    let rules = json!([
        { "apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"] },
        { "apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"] },
    ]);
    allow(admin, USER, &format!("system:{USER}"), rules).await?;
    let (binding, role) = (format!("{USER}:delegator"), "system:auth-delegator");
    bind(
        admin,
        "clusterrolebindings",
        &binding,
        ("ClusterRole", role),
        USER,
    )
    .await?;
    let bindings = format!("namespaces/{NAMESPACE}/rolebindings");
    let reader = "extension-apiserver-authentication-reader";
    bind(
        admin,
        &bindings,
        &format!("{USER}-reader"),
        ("Role", reader),
        USER,
    )
    .await
}

/// Lets a user read the statistics of nodes.
pub(super) async fn allow_metrics(admin: &Client, user: &str) -> Result<()> {
    let rules =
        json!([{ "apiGroups": [""], "resources": ["nodes/metrics", "nodes/stats"], "verbs": ["get"] }]);
    allow(admin, user, &format!("rubelet-test:metrics-{user}"), rules).await
}

async fn allow(admin: &Client, user: &str, role: &str, rules: Value) -> Result<()> {
    let path = format!("/apis/{RBAC}/v1/clusterroles");
    create(
        admin,
        &path,
        json!({ "metadata": { "name": role }, "rules": rules }),
    )
    .await?;
    bind(admin, "clusterrolebindings", role, ("ClusterRole", role), user).await
}

async fn bind(
    admin: &Client,
    bindings: &str,
    name: &str,
    (kind, role): (&str, &str),
    user: &str,
) -> Result<()> {
    let binding = json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": RBAC, "kind": kind, "name": role },
        "subjects": [{ "apiGroup": RBAC, "kind": "User", "name": user }],
    });
    create(admin, &format!("/apis/{RBAC}/v1/{bindings}"), binding).await
}

/// Makes the API server pass requests on. No pod runs behind the service: it is another name for this machine.
async fn join(admin: &Client, port: u16, ca_pem: &str) -> Result<()> {
    let service = json!({
        "metadata": { "name": USER },
        "spec": { "type": "ExternalName", "externalName": "localhost", "ports": [{ "port": port }] },
    });
    create(
        admin,
        &format!("/api/v1/namespaces/{NAMESPACE}/services"),
        service,
    )
    .await?;
    let api_service = json!({
        "metadata": { "name": format!("{VERSION}.{GROUP}") },
        "spec": {
            "service": { "name": USER, "namespace": NAMESPACE, "port": port },
            "group": GROUP,
            "version": VERSION,
            "caBundle": STANDARD.encode(ca_pem),
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        },
    });
    create(admin, "/apis/apiregistration.k8s.io/v1/apiservices", api_service).await
}

async fn create(admin: &Client, path: &str, object: Value) -> Result<()> {
    let request = http::Request::post(path)
        .header("Content-Type", "application/json")
        .body(serde_json::to_vec(&object)?)?;
    let made = admin.request_text(request).await;
    made.map(drop).with_context(|| format!("create one of {path}"))
}
