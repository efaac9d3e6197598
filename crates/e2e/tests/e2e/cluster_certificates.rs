//! A node that knows nothing but a bootstrap token joins a cluster, rotates its certificates while it runs, and finds its way back
//! after they expired. The signer's certificates live for a minute.
//!
//! `RUBELET_TEST_KUBELET=upstream` checks the test itself.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;
use kube::api::ListParams;
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::control_plane::{self, ControlPlane};
use rubelet_testbed::in_scope;
use rubelet_testbed::node::{Bed, Kubelet, Options};
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(180);
/// How long the signer's certificates live.
const LIFE: Duration = Duration::from_secs(60);
/// What a certificate's times are rounded to, on either side.
const CLOCK_STEP: Duration = Duration::from_secs(2);

struct Joined<'a> {
    control_plane: ControlPlane,
    bed: Bed<'a>,
    kubeconfig: PathBuf,
}

#[test]
fn a_node_joins_by_bootstrap_and_keeps_its_certificates() {
    in_scope("cluster_certificates", async |scope| {
        let plane = control_plane::Options {
            controller_manager_flags: vec![format!("--cluster-signing-duration={}s", LIFE.as_secs())],
            ..control_plane::Options::default()
        };
        let control_plane = ControlPlane::start(scope, plane).await?;
        let bootstrap = control_plane.bootstrap_kubeconfig().await?;
        let kubeconfig = scope.path("joined.kubeconfig");
        let authentication = json!({
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": control_plane.ca_file() },
        });
        let mut options = Options::new(Kubelet::chosen()?)
            .with("address", json!("0.0.0.0"))
            .with("authentication", authentication)
            .with("authorization", json!({ "mode": "Webhook" }))
            .with("rotateCertificates", json!(true))
            .with("serverTLSBootstrap", json!(true));
        options
            .arguments
            .push(format!("--bootstrap-kubeconfig={}", bootstrap.display()));
        options
            .arguments
            .push(format!("--kubeconfig={}", kubeconfig.display()));
        let bed = Bed::start(scope, Flavour::V2, options).await?;
        let mut joined = Joined {
            control_plane,
            bed,
            kubeconfig,
        };
        joined.is_ready().await?;
        // A certificate is used at once and stored thereafter.
        joined
            .eventually("the files are as upstream's", async || joined.check_files())
            .await?;
        joined.serves_what_the_cluster_signed().await?;
        joined.counts_its_certificates().await?;
        joined.rotates_while_it_runs().await?;
        joined.recovers_after_expiry().await
    });
}

impl Joined<'_> {
    async fn eventually<T, F: Future<Output = Result<T>>>(
        &self,
        what: &str,
        state: impl FnMut() -> F,
    ) -> Result<T> {
        wait_until(what, DEADLINE, state)
            .await
            .with_context(|| self.bed.node.log_tail())
    }

    async fn is_ready(&self) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(self.control_plane.admin_client());
        self.eventually("the node is ready", async || {
            let node = nodes.get(self.bed.node.name()).await?;
            let conditions = node
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
            ensure!(ready.context("no condition Ready")?.status == "True", "not ready");
            Ok(())
        })
        .await
    }

    fn pki(&self, name: &str) -> PathBuf {
        self.bed.node.dir().join("pki").join(name)
    }

    fn check_files(&self) -> Result<()> {
        let current = self.pki("kubelet-client-current.pem");
        let target = fs::read_link(&current).context("the current certificate is a link")?;
        ensure!(target.is_absolute(), "{target:?}");
        let name = target
            .file_name()
            .and_then(|name| name.to_str())
            .context("a name")?;
        let time = name
            .strip_prefix("kubelet-client-")
            .and_then(|name| name.strip_suffix(".pem"));
        let shape: String = time
            .context("the file's name")?
            .chars()
            .map(|letter| if letter.is_ascii_digit() { '0' } else { letter })
            .collect();
        ensure!(shape == "0000-00-00-00-00-00", "{name}");
        ensure!(mode(&target)? == 0o600, "its mode is {:o}", mode(&target)?);
        let text = fs::read_to_string(&current)?;
        ensure!(
            text.starts_with("-----BEGIN CERTIFICATE-----\n"),
            "it does not begin with the certificate"
        );
        ensure!(text.contains("PRIVATE KEY-----\n"), "it holds no key");
        ensure!(
            !self.pki("kubelet-client.key.tmp").exists(),
            "the first key is still there"
        );

        ensure!(mode(&self.kubeconfig)? == 0o600, "the kubeconfig's mode");
        let kubeconfig: Value = serde_saphyr::from_str(&fs::read_to_string(&self.kubeconfig)?)?;
        ensure!(kubeconfig["current-context"] == "default-context", "{kubeconfig}");
        let user = &kubeconfig["users"][0];
        ensure!(user["name"] == "default-auth", "another user");
        for field in ["client-certificate", "client-key"] {
            ensure!(user["user"][field] == json!(current), "{field}: {user}");
        }
        Ok(())
    }

    /// Nobody but an administrator approves serving certificates.
    async fn serves_what_the_cluster_signed(&self) -> Result<()> {
        let node = self.bed.node.name();
        let path = format!("/api/v1/nodes/{node}/proxy/healthz");
        let before = self.control_plane.kubectl(&["get", "--raw", &path]).await?;
        ensure!(!before.status.success(), "it serves without a certificate");
        let requests: Api<CertificateSigningRequest> = Api::all(self.control_plane.admin_client());
        let name = self
            .eventually("a serving certificate is asked for", async || {
                let all = requests.list(&ListParams::default()).await?.items;
                let open = all.into_iter().find(|request| {
                    request.spec.signer_name == "kubernetes.io/kubelet-serving"
                        && request
                            .status
                            .as_ref()
                            .is_none_or(|status| status.conditions.is_none())
                });
                let request = open.context("no request")?;
                ensure!(
                    request.spec.username.as_deref() == Some(&format!("system:node:{node}")),
                    "by whom?"
                );
                request.metadata.name.context("a name")
            })
            .await?;
        let approved = self
            .control_plane
            .kubectl(&["certificate", "approve", &name])
            .await?;
        ensure!(
            approved.status.success(),
            "{}",
            String::from_utf8_lossy(&approved.stderr)
        );
        self.eventually("the API server trusts the node", async || {
            let answer = self.control_plane.kubectl(&["get", "--raw", &path]).await?;
            ensure!(
                answer.stdout == b"ok",
                "{}",
                String::from_utf8_lossy(&answer.stderr)
            );
            Ok(())
        })
        .await?;
        // It is used before it is stored.
        self.eventually("the serving certificate is a link", async || {
            fs::read_link(self.pki("kubelet-server-current.pem"))?;
            Ok(())
        })
        .await
    }

    async fn rotates_while_it_runs(&self) -> Result<()> {
        let current = self.pki("kubelet-client-current.pem");
        let before = fs::read_link(&current)?;
        let pid = self.bed.node.pid();
        self.eventually("the client certificate is rotated", async || {
            ensure!(fs::read_link(&current)? != before, "it is still {before:?}");
            Ok(())
        })
        .await?;
        self.beats().await?;
        ensure!(self.bed.node.pid() == pid, "the kubelet was started again");
        Ok(())
    }

    /// How long the certificates still live is on the metrics page.
    async fn counts_its_certificates(&self) -> Result<()> {
        let path = format!("/api/v1/nodes/{}/proxy/metrics", self.bed.node.name());
        self.eventually("the certificates are counted", async || {
            let answer = self.control_plane.kubectl(&["get", "--raw", &path]).await?;
            let page = String::from_utf8_lossy(&answer.stdout).into_owned();
            let value = |name: &str| -> Result<f64> {
                let line = page.lines().find(|line| line.starts_with(&format!("{name} ")));
                let text = line.and_then(|line| line.rsplit(' ').next());
                Ok(text.with_context(|| format!("no {name}"))?.parse()?)
            };
            for kind in ["client", "server"] {
                let left = value(&format!("kubelet_certificate_manager_{kind}_ttl_seconds"))?;
                ensure!(
                    left > 0.0 && left <= LIFE.as_secs_f64(),
                    "the {kind} certificate lives for {left} s"
                );
            }
            Ok(())
        })
        .await
    }

    /// Nothing of the old certificate is of use; the token still is.
    async fn recovers_after_expiry(&mut self) -> Result<()> {
        self.bed.node.kill_nine()?;
        let current = self.pki("kubelet-client-current.pem");
        let issued = fs::metadata(&current)?.modified()?;
        self.eventually("the certificate has expired", async || {
            let age = SystemTime::now().duration_since(issued)?;
            ensure!(age > LIFE + CLOCK_STEP, "it is {age:?} old");
            Ok(())
        })
        .await?;
        let before = fs::read_link(&current)?;
        self.bed.node.start_again()?;
        self.eventually("there is a new certificate", async || {
            ensure!(fs::read_link(&current)? != before, "it is still {before:?}");
            Ok(())
        })
        .await?;
        self.beats().await
    }

    /// The node's lease is renewed after this call.
    async fn beats(&self) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.control_plane.admin_client(), "kube-node-lease");
        let renewed = async || -> Result<_> {
            let lease = leases.get(self.bed.node.name()).await?;
            lease
                .spec
                .and_then(|spec| spec.renew_time)
                .context("never renewed")
        };
        let before = renewed().await?;
        self.eventually("the node's lease is renewed", async || {
            if renewed().await?.0 > before.0 {
                return Ok(());
            }
            bail!("still the one of {:?}", before.0)
        })
        .await
    }
}

fn mode(path: &Path) -> Result<u32> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o777)
}
