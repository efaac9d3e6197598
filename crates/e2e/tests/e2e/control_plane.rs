//! The private control plane of the test bed: that it is a real one, that it is private, and that it goes away.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, UserInfo};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Secret, ServiceAccount};
use kube::api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use rubelet_testbed::control_plane::{ControlPlane, Options};
use rubelet_testbed::wait::wait_until;
use rubelet_testbed::{Scope, in_scope};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Some of it waits for informers, which pause for half a minute after an API server was away.
const DEADLINE: Duration = Duration::from_secs(180);

#[test]
fn namespace_and_pod() {
    in_scope("namespace_and_pod", async |scope| {
        let start = Instant::now();
        let control_plane = ControlPlane::start(scope, Options::default()).await?;
        report_cost(&control_plane, start.elapsed())?;
        let client = control_plane.admin_client();

        create_namespace(&client, "shop").await?;
        let authority: ConfigMap =
            eventually("the CA is published", || get(&client, "shop", "kube-root-ca.crt")).await?;
        let published = authority.data.unwrap_or_default();
        assert_eq!(
            published.get("ca.crt").map(String::as_str),
            Some(control_plane.ca_pem())
        );

        create_pod(&client, "shop", &pod("till", Some("node-1"), None)).await?;
        let till: Pod = get(&client, "shop", "till").await?;
        let spec = till.spec.context("a pod has a spec")?;
        assert_eq!(spec.node_name.as_deref(), Some("node-1"));
        assert_eq!(spec.service_account_name.as_deref(), Some("default"));
        let volumes = spec.volumes.unwrap_or_default();
        assert!(
            volumes.iter().any(|volume| volume.projected.is_some()),
            "no token volume in {volumes:?}"
        );

        let listed = control_plane
            .kubectl(&["get", "pods", "--namespace=shop", "--output=name"])
            .await?;
        assert_eq!(
            String::from_utf8_lossy(&listed.stdout).trim(),
            "pod/till",
            "{listed:?}"
        );
        assert!(
            !control_plane
                .kubectl(&["get", "pod", "nobody"])
                .await?
                .status
                .success()
        );

        let pods: Api<Pod> = Api::namespaced(client.clone(), "shop");
        pods.delete("till", &DeleteParams::default().grace_period(0))
            .await?;
        Api::<Namespace>::all(client.clone())
            .delete("shop", &DeleteParams::default())
            .await?;
        eventually("the namespace goes", async || {
            is_gone::<Namespace>(&Api::all(client.clone()), "shop").await
        })
        .await?;

        let alice = control_plane.client_for("alice", &["buyers", "sellers"]).await?;
        let user = who_am_i(&alice).await?;
        assert_eq!(user.username.as_deref(), Some("alice"));
        let groups = user.groups.unwrap_or_default();
        assert!(
            ["buyers", "sellers"]
                .iter()
                .all(|group| groups.iter().any(|has| has == group)),
            "{groups:?}"
        );
        assert_forbidden(
            "a stranger reads secrets",
            secrets(&alice, "default").list(&ListParams::default()).await,
        );

        assert_listens_on_loopback_only(&control_plane)?;
        assert_no_key_in(&scope.dir().join("logs"))
    });
}

#[test]
fn a_node_sees_its_own_secrets_only() {
    in_scope("a_node_sees_its_own_secrets_only", async |scope| {
        let control_plane = ControlPlane::start(scope, Options::default()).await?;
        let admin = control_plane.admin_client();
        create_namespace(&admin, "shop").await?;
        for (node, secret) in [("node-1", "one"), ("node-2", "two")] {
            create_ready_node(&admin, node).await?;
            let object: Secret =
                from_json(json!({ "metadata": { "name": secret }, "stringData": { "for": node } }))?;
            secrets(&admin, "shop")
                .create(&PostParams::default(), &object)
                .await?;
            create_pod(
                &admin,
                "shop",
                &pod(&format!("reader-{secret}"), Some(node), Some(secret)),
            )
            .await?;
        }

        for (node, own, foreign) in [("node-1", "one", "two"), ("node-2", "two", "one")] {
            let kubelet = control_plane.node_client(node).await?;
            let seen = eventually("a node reads its secret", || get::<Secret>(&kubelet, "shop", own)).await?;
            assert_eq!(
                seen.data.and_then(|mut data| data.remove("for")),
                Some(ByteString(node.into()))
            );
            assert_forbidden("a foreign secret", secrets(&kubelet, "shop").get(foreign).await);
            assert_forbidden(
                "all secrets",
                secrets(&kubelet, "shop").list(&ListParams::default()).await,
            );
        }

        let kubelet = control_plane.node_client("node-1").await?;
        let nodes: Api<Node> = Api::all(kubelet);
        let label = Patch::Merge(json!({ "metadata": { "labels": { "shelf": "top" } } }));
        nodes
            .patch("node-1", &PatchParams::default(), &label)
            .await
            .context("a node labels itself")?;
        assert_forbidden(
            "a foreign node",
            nodes.patch("node-2", &PatchParams::default(), &label).await,
        );
        let role = Patch::Merge(
            json!({ "metadata": { "labels": { "node-restriction.kubernetes.io/role": "boss" } } }),
        );
        assert_forbidden(
            "a reserved label",
            nodes.patch("node-1", &PatchParams::default(), &role).await,
        );
        Ok(())
    });
}

#[test]
fn the_scheduler_binds_a_pod() {
    in_scope("the_scheduler_binds_a_pod", async |scope| {
        let start = Instant::now();
        let control_plane = ControlPlane::start(scope, Options::default().with_scheduler()).await?;
        report_cost(&control_plane, start.elapsed())?;
        let admin = control_plane.admin_client();
        default_account(&admin, "default").await?;
        create_ready_node(&admin, "node-1").await?;
        create_pod(&admin, "default", &pod("wanderer", None, None)).await?;
        let bound = eventually("the pod is bound", async || {
            let pod: Pod = get(&admin, "default", "wanderer").await?;
            pod.spec.and_then(|spec| spec.node_name).context("no node yet")
        });
        assert_eq!(bound.await?, "node-1");
        assert_listens_on_loopback_only(&control_plane)
    });
}

#[test]
fn a_bootstrap_token_gets_a_node_its_certificate() {
    in_scope("a_bootstrap_token_gets_a_node_its_certificate", async |scope| {
        let control_plane = ControlPlane::start(scope, Options::default()).await?;
        let first = control_plane.bootstrap_kubeconfig().await?;
        let second = control_plane.bootstrap_kubeconfig().await?;
        assert_ne!(fs::read(&first)?, fs::read(&second)?);
        let (newcomer, token) = client_of_token(&first).await?;
        // The token's cache in the API server may be a moment behind.
        let user = eventually("the token is known", || who_am_i(&newcomer)).await?;
        assert!(user.username.unwrap_or_default().starts_with("system:bootstrap:"));

        let key = rcgen::KeyPair::generate()?;
        let mut wanted = rcgen::CertificateParams::default();
        wanted.distinguished_name = rcgen::DistinguishedName::new();
        wanted
            .distinguished_name
            .push(rcgen::DnType::OrganizationName, "system:nodes");
        wanted
            .distinguished_name
            .push(rcgen::DnType::CommonName, "system:node:node-9");
        let mut request: CertificateSigningRequest = from_json(json!({
            "metadata": { "name": "node-9" },
            "spec": {
                "request": "",
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["digital signature", "client auth"],
            },
        }))?;
        request.spec.request = ByteString(wanted.serialize_request(&key)?.pem()?.into_bytes());
        let requests: Api<CertificateSigningRequest> = Api::all(newcomer);
        requests.create(&PostParams::default(), &request).await?;
        let issued = eventually("a certificate is issued", async || {
            let request = requests.get("node-9").await?;
            request
                .status
                .and_then(|status| status.certificate)
                .context("no certificate yet")
        });
        assert!(issued.await?.0.starts_with(b"-----BEGIN CERTIFICATE-----"));

        let logs = logs_below(&scope.dir().join("logs"))?;
        let secret = token.rsplit('.').next().context("a token has two parts")?;
        assert!(!logs.contains(secret), "the token's secret is in a log");
        Ok(())
    });
}

#[test]
fn the_api_server_knows_a_kubelet_by_its_certificate() {
    in_scope(
        "the_api_server_knows_a_kubelet_by_its_certificate",
        async |scope| {
            let control_plane = ControlPlane::start(scope, Options::default()).await?;
            let admin = control_plane.admin_client();
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            default_account(&admin, "default").await?;
            create_ready_node(&admin, "node-1").await?;
            let status = json!({ "status": {
                "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
                "daemonEndpoints": { "kubeletEndpoint": { "Port": listener.local_addr()?.port() } },
            }});
            let nodes: Api<Node> = Api::all(admin.clone());
            nodes
                .patch_status("node-1", &PatchParams::default(), &Patch::Merge(status))
                .await?;
            create_pod(&admin, "default", &pod("talker", Some("node-1"), None)).await?;
            let pods: Api<Pod> = Api::namespaced(admin.clone(), "default");
            let logs = async || pods.logs("talker", &LogParams::default()).await;

            let stranger = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
            let (certificate, key) = (stranger.cert.pem(), stranger.signing_key.serialize_pem());
            let (refused, served) = tokio::join!(
                logs(),
                serve_log(&listener, control_plane.ca_pem(), &certificate, &key)
            );
            assert!(
                refused.is_err() && served.is_err(),
                "a kubelet of unknown origin was trusted"
            );

            let files = control_plane.kubelet_serving_files("node-1", &["127.0.0.1"])?;
            let (certificate, key) = (
                fs::read_to_string(files.certificate)?,
                fs::read_to_string(files.key)?,
            );
            let (log, served) = tokio::join!(
                logs(),
                serve_log(&listener, control_plane.ca_pem(), &certificate, &key)
            );
            assert_eq!(served?, "GET /containerLogs/default/talker/main HTTP/1.1");
            assert_eq!(log?, "hello\n");
            Ok(())
        },
    );
}

#[test]
fn the_api_server_goes_and_comes_back() {
    in_scope("the_api_server_goes_and_comes_back", async |scope| {
        let mut control_plane = ControlPlane::start(scope, Options::default()).await?;
        let client = control_plane.admin_client();
        let endpoint = control_plane.endpoint();
        create_namespace(&client, "before").await?;

        control_plane.stop_apiserver().await?;
        assert!(client.apiserver_version().await.is_err());
        assert!(
            control_plane.wait_ready().await.is_err(),
            "a stopped server is not waited for"
        );
        control_plane.start_apiserver().await?;
        assert_eq!(control_plane.endpoint(), endpoint);
        get::<ServiceAccount>(&client, "before", "default")
            .await
            .context("objects and clients survive")?;

        control_plane.restart_apiserver().await?;
        create_namespace(&client, "after")
            .await
            .context("controllers find their way back")
    });
}

#[test]
fn two_at_once_twice_in_a_row() {
    for _ in 0..2 {
        in_scope("two_at_once_twice_in_a_row", async |first_scope| {
            let second_scope = Scope::new("two_at_once_twice_in_a_row-second")?;
            let (first, second) = tokio::try_join!(
                ControlPlane::start(first_scope, Options::default()),
                ControlPlane::start(&second_scope, Options::default()),
            )?;
            assert_ne!(first.endpoint(), second.endpoint());
            let (client, other) = (first.admin_client(), second.admin_client());
            tokio::try_join!(
                create_namespace(&client, "mine"),
                create_namespace(&other, "yours")
            )?;
            assert!(is_gone::<Namespace>(&Api::all(client), "yours").await.is_ok());
            assert!(is_gone::<Namespace>(&Api::all(other), "mine").await.is_ok());

            let pids: Vec<u32> = second
                .processes()
                .iter()
                .map(|(_, process)| process.pid())
                .collect();
            assert_eq!(pids.len(), 3);
            let dir = second_scope.dir().to_owned();
            drop((second, second_scope));
            assert!(!dir.exists());
            for pid in pids {
                assert!(
                    !Path::new(&format!("/proc/{pid}")).exists(),
                    "process {pid} is still there"
                );
            }
            first
                .admin_client()
                .apiserver_version()
                .await
                .context("the neighbour is not hurt")?;
            Ok(())
        });
    }
}

/// Plays a kubelet that wants a certificate of its caller, for one request, whose first line it returns.
async fn serve_log(listener: &TcpListener, ca: &str, certificate: &str, key: &str) -> Result<String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes())?)?;
    let callers =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()?;
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(callers)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes())?],
            PrivateKeyDer::from_pem_slice(key.as_bytes())?,
        )?;
    let (connection, _) = listener.accept().await?;
    let mut stream = BufReader::new(TlsAcceptor::from(Arc::new(config)).accept(connection).await?);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        ensure!(stream.read_line(&mut line).await? > 0, "the caller hung up");
        if line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n";
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    lines.into_iter().next().context("no request line")
}

fn from_json<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).context("a test object")
}

async fn eventually<T, F: Future<Output = Result<T>>>(what: &str, state: impl FnMut() -> F) -> Result<T> {
    wait_until(what, DEADLINE, state).await
}

async fn get<T>(client: &Client, namespace: &str, name: &str) -> Result<T>
where
    T: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned,
{
    Api::namespaced(client.clone(), namespace)
        .get(name)
        .await
        .with_context(|| format!("get {namespace}/{name}"))
}

async fn is_gone<T: Clone + Debug + DeserializeOwned>(api: &Api<T>, name: &str) -> Result<()> {
    ensure!(api.get_opt(name).await?.is_none(), "{name} is there");
    Ok(())
}

fn secrets(client: &Client, namespace: &str) -> Api<Secret> {
    Api::namespaced(client.clone(), namespace)
}

async fn who_am_i(client: &Client) -> Result<UserInfo> {
    let answer: SelfSubjectReview = Api::all(client.clone())
        .create(&PostParams::default(), &from_json(json!({}))?)
        .await?;
    answer
        .status
        .and_then(|status| status.user_info)
        .context("no user in the answer")
}

fn assert_forbidden<T>(what: &str, result: kube::Result<T>) {
    match result {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "{what}: {status}"),
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what}: allowed"),
    }
}

/// Creates a namespace in which pods can be created: admission wants the default service account.
async fn create_namespace(client: &Client, name: &str) -> Result<()> {
    let namespace: Namespace = from_json(json!({ "metadata": { "name": name } }))?;
    Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await?;
    default_account(client, name).await
}

async fn default_account(client: &Client, namespace: &str) -> Result<()> {
    eventually("the default service account", || {
        get::<ServiceAccount>(client, namespace, "default")
    })
    .await
    .map(drop)
}

fn pod(name: &str, node: Option<&str>, secret: Option<&str>) -> Value {
    let volumes: Vec<Value> = secret
        .iter()
        .map(|name| json!({ "name": "secret", "secret": { "secretName": name } }))
        .collect();
    json!({
        "metadata": { "name": name },
        "spec": {
            "nodeName": node,
            "containers": [{ "name": "main", "image": "registry.test/none:1" }],
            "volumes": volumes,
        },
    })
}

async fn create_pod(client: &Client, namespace: &str, pod: &Value) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    pods.create(&PostParams::default(), &from_json(pod.clone())?)
        .await
        .context("create a pod")?;
    Ok(())
}

/// Creates a node and reports it ready, as a kubelet would.
async fn create_ready_node(client: &Client, name: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node =
        from_json(json!({ "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } } }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let capacity = json!({ "cpu": "2", "memory": "4Gi", "pods": "110" });
    let status = json!({ "status": {
        "capacity": capacity, "allocatable": capacity, "conditions": [{ "type": "Ready", "status": "True" }],
    }});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    // Admission taints every new node as not ready; lifting that is a controller's job that does not run here.
    nodes
        .patch(
            name,
            &PatchParams::default(),
            &Patch::Merge(json!({ "spec": { "taints": null } })),
        )
        .await?;
    Ok(())
}

async fn client_of_token(kubeconfig: &Path) -> Result<(Client, String)> {
    let text: Value = serde_json::from_slice(&fs::read(kubeconfig)?)?;
    let token = text["users"][0]["user"]["token"]
        .as_str()
        .context("a token")?
        .to_owned();
    let kubeconfig: Kubeconfig = serde_json::from_value(text)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok((Client::try_from(config)?, token))
}

/// Prints what a control plane costs.
fn report_cost(control_plane: &ControlPlane, elapsed: Duration) -> Result<()> {
    for (name, process) in control_plane.processes() {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("no VmRSS")?;
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid()))?;
        let ticks: u64 = stat
            .split(' ')
            .skip(13)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        println!(
            "{name}: {} resident, {} ms of processor time",
            resident.trim(),
            ticks * 10
        );
    }
    println!("started in {} ms", elapsed.as_millis());
    Ok(())
}

/// Looks at the sockets themselves: a flag that a program ignores would show here.
fn assert_listens_on_loopback_only(control_plane: &ControlPlane) -> Result<()> {
    for (name, process) in control_plane.processes() {
        let mut sockets = BTreeSet::new();
        for entry in fs::read_dir(format!("/proc/{}/fd", process.pid()))?.flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            if let Some(inode) = target
                .to_str()
                .and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'))
            {
                sockets.insert(inode.to_owned());
            }
        }
        let mut listening = 0;
        for table in ["tcp", "tcp6"] {
            for line in fs::read_to_string(format!("/proc/{}/net/{table}", process.pid()))?
                .lines()
                .skip(1)
            {
                let fields: Vec<&str> = line.split_whitespace().collect();
                // State 0A is LISTEN; the address is in the kernel's byte order.
                if let [_, local, _, "0A", ..] = fields[..]
                    && fields.get(9).is_some_and(|inode| sockets.contains(*inode))
                {
                    listening += 1;
                    if !local.starts_with("0100007F:") {
                        bail!("{name} listens on {local}");
                    }
                }
            }
        }
        ensure!(listening > 0, "{name} listens nowhere: the check is blind");
    }
    Ok(())
}

fn assert_no_key_in(logs: &Path) -> Result<()> {
    let text = logs_below(logs)?;
    ensure!(!text.is_empty(), "no logs to look at");
    ensure!(!text.contains("PRIVATE KEY"), "a private key is in a log");
    Ok(())
}

fn logs_below(dir: &Path) -> Result<String> {
    let mut text = String::new();
    for entry in fs::read_dir(dir)?.flatten() {
        text.push_str(&String::from_utf8_lossy(&fs::read(entry.path())?));
    }
    Ok(text)
}
