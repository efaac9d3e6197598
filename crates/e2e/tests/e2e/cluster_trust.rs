//! Certificates of pods: a signer of the test issues what a pod asks for, and bundles of trust reach its files.
//!
//! `RUBELET_TEST_KUBELET=upstream` checks the test itself, up to the bundle that changes: upstream's files follow at some later sync.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PublicKeyData, SignatureAlgorithm};
use rubelet_testbed::cluster::{Cluster, NAMESPACE};
use rubelet_testbed::control_plane::Options;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, shell, with};
use rubelet_testbed::node::{Kubelet, PodFacts as _};
use serde_json::{Value, json};

const SIGNER: &str = "example.com/signer";
const BUNDLE: &str = "example.com:signer:roots";
const LIFE: Duration = Duration::from_secs(2 * 3600);
/// What stands before the 32 bytes of an Ed25519 key wherever one is named.
const ED25519_START: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

#[test]
fn certificates_and_trust_reach_a_pod() {
    in_scope("cluster_trust", async |scope| {
        let cluster =
            Cluster::start(scope, Options::default(), Kubelet::chosen()?, |options| options).await?;
        let signer = Signer::new()?;
        let bundles: Api<DynamicObject> = Api::all_with(cluster.client(), &resource("ClusterTrustBundle"));
        let bundle: DynamicObject = serde_json::from_value(json!({
            "metadata": { "name": BUNDLE },
            "spec": { "signerName": SIGNER, "trustBundle": signer.certificate },
        }))?;
        bundles.create(&PostParams::default(), &bundle).await?;

        let name = "trusted";
        let sources = json!([
            { "podCertificate": { "signerName": SIGNER, "keyType": "ED25519", "credentialBundlePath": "own.pem" } },
            { "clusterTrustBundle": { "name": BUNDLE, "path": "roots.pem" } },
            { "clusterTrustBundle": { "name": "nowhere", "optional": true, "path": "none.pem" } },
        ]);
        let mounts = json!([{ "name": "trust", "mountPath": "/trust" }]);
        let manifest = pod(name)
            .container(with(shell("main", UNTIL_TERM), "volumeMounts", mounts))
            .spec(
                "volumes",
                json!([{ "name": "trust", "projected": { "sources": sources } }]),
            )
            .json();
        cluster.create_pod(manifest).await?;
        signer
            .issue(&cluster, name)
            .await
            .context("issue a certificate")?;
        let ready = cluster.wait_until_ready(name).await?;

        let read = async |file: &str| {
            cluster
                .kubectl(&["exec", name, "--", "cat", &format!("/trust/{file}")])
                .await
        };
        let own = read("own.pem").await?;
        ensure!(own.starts_with("-----BEGIN PRIVATE KEY-----"), "{}", kinds(&own));
        let (key, chain) = own.split_at(
            own.find("-----BEGIN CERTIFICATE-----")
                .context("no certificate")?,
        );
        let key = KeyPair::from_pem(key).context("the key in the file")?;
        let leaf = certificates(chain)?.into_iter().next().context("no leaf")?;
        ensure!(
            position(&leaf, key.der_bytes()).is_some(),
            "the certificate is for another key: {}",
            kinds(&own)
        );
        ensure!(
            certificates(&read("roots.pem").await?)? == certificates(&signer.certificate)?,
            "the bundle is another one"
        );
        ensure!(
            read("none.pem").await?.is_empty(),
            "an empty bundle is an empty file"
        );

        // The next root is trusted as soon as the bundle has it.
        let next = Signer::new()?;
        let both = format!("{}{}", signer.certificate, next.certificate);
        let patch = Patch::Merge(json!({ "spec": { "trustBundle": both } }));
        bundles.patch(BUNDLE, &PatchParams::default(), &patch).await?;
        cluster
            .eventually("both roots are in the file", async || {
                let mut found = certificates(&read("roots.pem").await?)?;
                let mut expected = certificates(&both)?;
                found.sort();
                expected.sort();
                ensure!(found == expected, "{} certificates", found.len());
                Ok(())
            })
            .await?;
        cluster.delete_pod(name, Some(0)).await?;
        cluster.wait_until_gone(name, ready.uid()).await
    });
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("certificates.k8s.io", "v1", kind))
}

struct Signer {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Signer {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
        })
    }

    /// Waits for the pod's request and answers it as signers do.
    async fn issue(&self, cluster: &Cluster<'_>, pod: &str) -> Result<()> {
        let requests: Api<DynamicObject> =
            Api::namespaced_with(cluster.client(), NAMESPACE, &resource("PodCertificateRequest"));
        let request = cluster
            .eventually("the node asks for a certificate", async || {
                let all = requests.list(&ListParams::default()).await?;
                let of_pod = |request: &DynamicObject| request.data["spec"]["podName"] == pod;
                all.items.into_iter().find(of_pod).context("no request")
            })
            .await?;
        let spec = &request.data["spec"];
        ensure!(
            spec["signerName"] == SIGNER && spec["nodeName"] == cluster.node_name(),
            "{spec}"
        );
        let asked = spec["stubPKCS10Request"].as_str().context("no PKCS#10 request")?;
        let key = RequestedKey::read(&BASE64.decode(asked)?)?;
        let status = self.status(&key)?;
        let patch = Patch::Merge(json!({ "status": status }));
        let name = request.metadata.name.context("a name")?;
        requests
            .patch_status(&name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    fn status(&self, key: &RequestedKey) -> Result<Value> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let after = |time: Duration| now + time.as_secs();
        let mut params = CertificateParams::default();
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        params.not_before = epoch + Duration::from_secs(now);
        params.not_after = epoch + Duration::from_secs(after(LIFE));
        let text = |seconds: u64| anyhow::Ok(Timestamp::from_second(i64::try_from(seconds)?)?.to_string());
        Ok(json!({
            "certificateChain": params.signed_by(key, &self.issuer)?.pem(),
            "notBefore": text(now)?,
            "beginRefreshAt": text(after(LIFE / 2))?,
            "notAfter": text(after(LIFE))?,
            "conditions": [{ "type": "Issued", "status": "True", "reason": "Asked", "message": "for the test",
                "lastTransitionTime": text(now)? }],
        }))
    }
}

/// The key that a request is for.
struct RequestedKey(Vec<u8>);

impl RequestedKey {
    fn read(request: &[u8]) -> Result<Self> {
        let start = position(request, &ED25519_START).context("no Ed25519 key in the request")?;
        let key = request[start + ED25519_START.len()..].get(..32);
        Ok(Self(key.context("the request is cut off")?.to_vec()))
    }
}

impl PublicKeyData for RequestedKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

fn position(within: &[u8], part: &[u8]) -> Option<usize> {
    within.windows(part.len()).position(|window| window == part)
}

/// The certificates of a PEM text.
fn certificates(pem: &str) -> Result<Vec<Vec<u8>>> {
    let blocks = pem.split("-----BEGIN CERTIFICATE-----").skip(1);
    blocks
        .map(|block| {
            let body = block.split("-----END").next().unwrap_or_default();
            let body: String = body.split_whitespace().collect();
            BASE64.decode(body).context("a certificate's content")
        })
        .collect()
}

/// What a PEM text has, without showing any of it.
fn kinds(pem: &str) -> String {
    pem.lines().filter(|line| line.starts_with("-----")).collect()
}
