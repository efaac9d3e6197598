//! The client of the API server against a real one, with exactly a node's rights.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod, Secret, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use rubelet_apiserver::{ApiServer, ApiServerOptions, kubeconfig_for_certificate, user_agent};
use rubelet_ports::api::{
    ApiErrorKind, Change, Changes, EventWriter, LeaseKeeper, NodeReader, NodeWriter, ObjectReader, PodReader,
    PodWriter, Reviewer, SigningRequests, TokenIssuer,
};
use rubelet_testbed::control_plane::{ControlPlane, Options};
use rubelet_testbed::in_scope;
use rubelet_testbed::wait::wait_until;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const NODE: &str = "node-1";
const DEADLINE: Duration = Duration::from_secs(60);

fn from_json<T: DeserializeOwned>(value: Value) -> Result<T> {
    Ok(serde_json::from_value(value)?)
}

fn client(kubeconfig: impl Into<std::path::PathBuf>) -> Result<ApiServer> {
    let options = ApiServerOptions::new(kubeconfig, user_agent("v1.37.1"));
    Ok(ApiServer::connect(&options)?)
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    let done = tokio::time::timeout(DEADLINE, future).await;
    done.with_context(|| format!("{what} did not happen"))
}

async fn next<T>(changes: &mut Changes<T>) -> Result<Change<T>> {
    soon("a change", changes.next())
        .await?
        .context("following never ends")
}

/// Skips changes until one is as wanted.
async fn until<T: Debug>(changes: &mut Changes<T>, wanted: impl Fn(&Change<T>) -> bool) -> Result<Change<T>> {
    loop {
        let change = next(changes).await?;
        if wanted(&change) {
            return Ok(change);
        }
    }
}

fn is_named(change: &Change<Pod>, name: &str) -> bool {
    match change {
        Change::Applied(pod) | Change::Deleted(pod) => pod.metadata.name.as_deref() == Some(name),
        Change::All(_) | Change::Broken(_) | Change::Resumed => false,
    }
}

fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn kind_of<T>(answer: Result<T, rubelet_ports::api::ApiError>) -> Option<ApiErrorKind> {
    answer.err().map(|error| error.kind)
}

async fn default_account(control_plane: &ControlPlane) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(control_plane.admin_client(), "default");
    wait_until("the default service account", DEADLINE, async || {
        accounts.get("default").await.map(drop).map_err(Into::into)
    })
    .await
}

fn new_node() -> Result<Node> {
    from_json(json!({"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}}))
}

async fn register(api: &ApiServer) -> Result<()> {
    let node = api.create_node(&new_node()?).await?;
    ensure!(node.metadata.managed_fields.is_none());
    Ok(())
}

#[test]
fn a_node_keeps_its_own_objects() {
    in_scope("a_node_keeps_its_own_objects", async |scope| {
        let control_plane = ControlPlane::start(scope, Options::default()).await?;
        let api = client(control_plane.node_kubeconfig(NODE)?)?;
        let mut nodes = api.follow_node(NODE);
        assert_eq!(next(&mut nodes).await?, Change::All(Vec::new()));

        register(&api).await?;
        assert!(matches!(next(&mut nodes).await?, Change::Applied(_)));
        assert_eq!(
            kind_of(api.create_node(&new_node()?).await),
            Some(ApiErrorKind::AlreadyExists)
        );
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}});
        api.patch_node_status(NODE, status).await?;
        let ready = until(&mut nodes, |change| {
            let Change::Applied(node) = change else {
                return false;
            };
            let conditions = node
                .status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten());
            conditions.into_iter().any(|condition| condition.type_ == "Ready")
        });
        ready.await?;
        api.patch_node(NODE, json!({"metadata": {"annotations": {"a": "b"}}}))
            .await?;
        let read = api.node(NODE).await?;
        assert_eq!(read.metadata.annotations.unwrap_or_default()["a"], "b");
        assert_eq!(kind_of(api.node("node-2").await), Some(ApiErrorKind::Forbidden));

        assert_eq!(kind_of(api.lease(NODE).await), Some(ApiErrorKind::NotFound));
        let lease: Lease = from_json(json!({
            "metadata": {"name": NODE, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40},
        }))?;
        let first = api.create_lease(&lease).await?;
        let second = api.replace_lease(&first).await?;
        NodeWriter::reconnect(&api);
        let mut third = second.clone();
        third.spec.get_or_insert_default().lease_duration_seconds = Some(41);
        api.replace_lease(&third).await?;
        assert_eq!(
            kind_of(api.replace_lease(&second).await),
            Some(ApiErrorKind::Conflict)
        );

        let event: Event = from_json(json!({
            "metadata": {"name": "e.1", "namespace": "default"},
            "involvedObject": {"kind": "Node", "name": NODE, "uid": NODE},
            "reason": "Starting", "message": "Starting kubelet.", "type": "Normal", "count": 1,
        }))?;
        api.create_event(&event).await?;
        let patched = api.patch_event("default", "e.1", json!({"count": 2})).await?;
        assert_eq!(patched.count, Some(2));

        let review = from_json(json!({"spec": {"token": "nonsense"}}))?;
        assert_ne!(api.review_token(&review).await?.authenticated, Some(true));
        let review = from_json(json!({"spec": {
            "user": "alice", "resourceAttributes": {"verb": "get", "resource": "nodes", "name": NODE},
        }}))?;
        assert!(!api.review_access(&review).await?.allowed);
        Ok(())
    });
}

#[test]
fn pods_and_what_they_refer_to_are_followed() {
    in_scope("pods_and_what_they_refer_to_are_followed", async |scope| {
        let mut control_plane = ControlPlane::start(scope, Options::default()).await?;
        let admin = control_plane.admin_client();
        default_account(&control_plane).await?;
        let api = client(control_plane.node_kubeconfig(NODE)?)?;
        register(&api).await?;
        let mut pods = api.follow_pods(NODE);
        assert_eq!(next(&mut pods).await?, Change::All(Vec::new()));

        let secrets: Api<Secret> = Api::namespaced(admin.clone(), "default");
        let secret: Secret = from_json(json!({"metadata": {"name": "s"}, "stringData": {"k": "1"}}))?;
        secrets.create(&PostParams::default(), &secret).await?;
        // No pod of this node refers to it yet.
        assert_eq!(
            kind_of(api.secret("default", "s").await),
            Some(ApiErrorKind::Forbidden)
        );

        let all_pods: Api<Pod> = Api::namespaced(admin.clone(), "default");
        let pod: Pod = from_json(json!({
            "metadata": {"name": "p"},
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": "c", "image": "registry.test/none:1"}],
                "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
            },
        }))?;
        all_pods.create(&PostParams::default(), &pod).await?;
        let Change::Applied(pod) = next(&mut pods).await? else {
            bail!("the pod was created");
        };
        assert!(pod.metadata.managed_fields.is_none());
        let uid = pod.metadata.uid.clone().context("a pod has a UID")?;

        let mut watched = api.follow_secret("default", "s");
        until(
            &mut watched,
            |change| matches!(change, Change::All(all) if all.len() == 1),
        )
        .await?;
        let patch = Patch::Merge(json!({"stringData": {"k": "2"}}));
        secrets.patch("s", &PatchParams::default(), &patch).await?;
        let Change::Applied(secret) = next(&mut watched).await? else {
            bail!("the secret was changed");
        };
        assert_eq!(secret.data.as_ref().context("it has data")?["k"].0, b"2");

        let request: TokenRequest = from_json(json!({"spec": {
            "audiences": [], "expirationSeconds": 600,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid},
        }}))?;
        let token = api.request_token("default", "default", &request).await?;
        assert!(
            token
                .status
                .context("it was issued")?
                .token
                .is_some_and(|token| !token.is_empty())
        );
        let account = api.service_account("default", "default").await?;
        assert_eq!(account.metadata.name.as_deref(), Some("default"));
        let Change::All(services) = next(&mut api.follow_services()).await? else {
            bail!("services are listed");
        };
        assert!(
            services
                .iter()
                .any(|service| service.metadata.name.as_deref() == Some("kubernetes"))
        );
        assert_eq!(
            next(&mut api.follow_runtime_classes()).await?,
            Change::All(Vec::new())
        );
        let bundles = next(&mut api.follow_trust_bundles()).await?;
        assert!(matches!(bundles, Change::All(_)), "{bundles:?}");

        let wrong = json!({"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}, "status": {"phase": "Running"}});
        let refused = api.patch_pod_status("default", "p", wrong).await;
        assert_eq!(kind_of(refused), Some(ApiErrorKind::Conflict));
        let right = json!({"metadata": {"uid": uid}, "status": {"phase": "Running", "hostIP": "10.0.0.1"}});
        let patched = api.patch_pod_status("default", "p", right).await?;
        assert_eq!(
            patched.status.and_then(|status| status.phase).as_deref(),
            Some("Running")
        );

        // The server goes and comes back.
        control_plane.stop_apiserver().await?;
        until(&mut pods, |change| matches!(change, Change::Broken(_))).await?;
        control_plane.start_apiserver().await?;
        // The watch goes on, or the server that has just started has dropped the version, and the set is listed.
        until(&mut pods, |change| {
            matches!(change, Change::All(_) | Change::Resumed)
        })
        .await?;

        all_pods.delete("p", &DeleteParams::default()).await?;
        // A server that has just started may not know the version that we resume from; then the set is listed once more.
        until(&mut pods, |change| match change {
            Change::Applied(pod) => is_deleted(pod),
            Change::All(all) => all.iter().any(|pod| is_deleted(pod)),
            Change::Deleted(_) | Change::Broken(_) | Change::Resumed => false,
        })
        .await?;
        let other = api
            .delete_pod("default", "p", "00000000-0000-0000-0000-000000000000", 0)
            .await;
        assert_eq!(kind_of(other), Some(ApiErrorKind::Conflict));
        api.delete_pod("default", "p", &uid, 0).await?;
        until(&mut pods, |change| matches!(change, Change::Deleted(_))).await?;
        let again = api.delete_pod("default", "p", &uid, 0).await;
        assert_eq!(kind_of(again), Some(ApiErrorKind::NotFound));
        Ok(())
    });
}

/// Writes what the client's types cannot hold: the answer is not decoded.
async fn write_raw(control_plane: &ControlPlane, method: &str, path: &str, body: &Value) -> Result<()> {
    let content_type = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type)
        .body(serde_json::to_vec(body)?)?;
    let answer = control_plane.admin_client().request_text(request).await;
    answer.with_context(|| format!("{method} {path}")).map(drop)
}

#[test]
fn everything_that_the_server_accepts_is_decoded() {
    in_scope("everything_that_the_server_accepts_is_decoded", async |scope| {
        let control_plane = ControlPlane::start(scope, Options::default()).await?;
        default_account(&control_plane).await?;
        let api = client(control_plane.node_kubeconfig(NODE)?)?;
        register(&api).await?;
        let pod = json!({
            "metadata": {"name": "odd", "managedFields": [{
                "manager": "somebody", "operation": "Update", "apiVersion": "v1", "time": "9999-12-31T23:59:59Z",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {}}},
            }]},
            "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "registry.test/none:1"}]},
        });
        write_raw(&control_plane, "POST", "/api/v1/namespaces/default/pods", &pod).await?;
        // Given back as times of the years 10000 and -1.
        let status = json!({"status": {"startTime": "9999-12-31T23:59:59-12:00", "conditions": [
            {"type": "example.com/first", "status": "True", "lastTransitionTime": "0000-01-01T00:00:00+12:00"},
            {"type": "example.com/last", "status": "True", "lastTransitionTime": "9999-12-31T23:59:59Z"},
            {"type": "example.com/zero", "status": "True", "lastTransitionTime": null},
        ]}});
        let path = "/api/v1/namespaces/default/pods/odd";
        write_raw(&control_plane, "PATCH", &format!("{path}/status"), &status).await?;
        let service = json!({"metadata": {"name": "odd"}, "spec": {"ports": [{"port": 80}]}});
        write_raw(
            &control_plane,
            "POST",
            "/api/v1/namespaces/default/services",
            &service,
        )
        .await?;
        let status = json!({"status": {"conditions": [
            {"type": "a", "status": "True", "reason": "E2E", "message": "", "lastTransitionTime": null},
        ]}});
        let service = "/api/v1/namespaces/default/services/odd/status";
        write_raw(&control_plane, "PATCH", service, &status).await?;

        let mut pods = api.follow_pods(NODE);
        let Change::All(all) = next(&mut pods).await? else {
            bail!("the pods are listed");
        };
        assert_eq!(all[0].metadata.managed_fields, None);
        assert_eq!(
            all[0].spec.as_ref().context("it is decoded")?.containers[0].name,
            "c"
        );
        let status = all[0].status.as_ref().context("its status is decoded")?;
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let odd = conditions
            .iter()
            .filter(|one| one.type_.starts_with("example.com/"));
        assert_eq!(
            (odd.count(), status.start_time.is_some()),
            (3, true),
            "{status:?}"
        );
        let Change::All(services) = next(&mut api.follow_services()).await? else {
            bail!("the services are listed");
        };
        let odd = services
            .iter()
            .find(|service| service.metadata.name.as_deref() == Some("odd"));
        let status = odd.and_then(|service| service.status.as_ref());
        assert!(
            status.is_some_and(|status| status.conditions.is_some()),
            "{odd:?}"
        );

        write_raw(&control_plane, "DELETE", path, &json!({"gracePeriodSeconds": 5})).await?;
        let deleted = until(&mut pods, |change| is_named(change, "odd")).await?;
        let Change::Applied(deleted) = deleted else {
            bail!("it is gone without its grace: {deleted:?}");
        };
        assert!(deleted.metadata.deletion_timestamp.is_some());
        Ok(())
    });
}

#[test]
fn a_newcomer_gets_its_certificate_and_uses_it() {
    in_scope("a_newcomer_gets_its_certificate_and_uses_it", async |scope| {
        let control_plane = ControlPlane::start(scope, Options::default()).await?;
        let bootstrap = control_plane.bootstrap_kubeconfig().await?;
        let newcomer = client(&bootstrap)?;
        let key = rcgen::KeyPair::generate()?;
        let mut wanted = rcgen::CertificateParams::new(Vec::new())?;
        wanted.distinguished_name = rcgen::DistinguishedName::new();
        let organization = rcgen::DnType::OrganizationName;
        wanted.distinguished_name.push(organization, "system:nodes");
        let name = rcgen::DnType::CommonName;
        wanted
            .distinguished_name
            .push(name, format!("system:node:{NODE}"));
        let mut request: CertificateSigningRequest = from_json(json!({
            "metadata": {"generateName": "csr-"},
            "spec": {
                "request": "",
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["digital signature", "client auth"],
            },
        }))?;
        request.spec.request = ByteString(wanted.serialize_request(&key)?.pem()?.into_bytes());
        let created = wait_until("the token and its rights are known", DEADLINE, async || {
            Ok(newcomer.create_signing_request(&request).await?)
        })
        .await?;
        let name = created.metadata.name.context("it has a name")?;
        let mut requests = newcomer.follow_signing_request(&name);
        let certificate = soon("a certificate is issued", async {
            loop {
                let request = match requests.next().await {
                    Some(Change::Applied(request)) => request,
                    Some(Change::All(all)) if !all.is_empty() => all[0].clone(),
                    Some(_) => continue,
                    None => bail!("following never ends"),
                };
                let status = request.status.as_ref();
                if let Some(certificate) = status.and_then(|status| status.certificate.clone()) {
                    return Ok(certificate.0);
                }
            }
        })
        .await??;

        let pem = scope.dir().join("kubelet-client-current.pem");
        let kubeconfig = scope.dir().join("kubelet.conf");
        std::fs::write(&kubeconfig, kubeconfig_for_certificate(&bootstrap, &pem)?)?;
        let mut options = ApiServerOptions::new(&kubeconfig, user_agent("v1.37.1"));
        options.may_lack_certificate = true;
        let api = ApiServer::connect(&options)?;
        let refused = api.node(NODE).await;
        assert!(matches!(
            kind_of(refused),
            Some(ApiErrorKind::Unauthorized | ApiErrorKind::Forbidden)
        ));
        api.identity()
            .replace(&certificate, key.serialize_pem().as_bytes())?;
        register(&api).await?;
        assert!(api.identity().expires_at() > Some(std::time::SystemTime::now()));
        // A token that the server does not know.
        let text = std::fs::read_to_string(&bootstrap)?;
        let stranger = scope.dir().join("stranger.conf");
        let token = serde_json::from_str::<Value>(&text)?["users"][0]["user"]["token"].clone();
        let token = token
            .as_str()
            .context("a bootstrap kubeconfig has a token")?
            .to_owned();
        std::fs::write(&stranger, text.replace(&token, "abcdef.0123456789abcdef"))?;
        let error = client(&stranger)?
            .node(NODE)
            .await
            .err()
            .context("it is a stranger")?;
        assert_eq!(error.kind, ApiErrorKind::Unauthorized, "{error}");
        assert!(!error.to_string().contains("0123456789abcdef"), "{error}");
        Ok(())
    });
}
