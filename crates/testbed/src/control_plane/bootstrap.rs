//! Joining by bootstrap token: the token itself, and the rights that let its holder ask for a node's certificate and get it.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use super::pki::random_word;

/// Group, cluster role and the binding's name: may ask for a certificate, get its first one, renew it.
const BINDINGS: [(&str, &str, &str); 3] = [
    (
        "rubelet-test:bootstrap",
        "system:bootstrappers",
        "system:node-bootstrapper",
    ),
    (
        "rubelet-test:approve-node-client",
        "system:bootstrappers",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
    ),
    (
        "rubelet-test:approve-renewal",
        "system:nodes",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
    ),
];

/// Creates a token and returns it.
pub(super) async fn create_token(admin: &Client) -> Result<String> {
    for (name, group, role) in BINDINGS {
        allow(admin, name, group, role).await?;
    }
    let (id, secret) = (random_word(6)?, random_word(16)?);
    let object: Secret = serde_json::from_value(json!({
        "metadata": { "name": format!("bootstrap-token-{id}"), "namespace": "kube-system" },
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": id,
            "token-secret": secret,
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
        },
    }))?;
    let secrets: Api<Secret> = Api::namespaced(admin.clone(), "kube-system");
    secrets
        .create(&PostParams::default(), &object)
        .await
        .context("create a bootstrap token")?;
    Ok(format!("{id}.{secret}"))
}

async fn allow(admin: &Client, name: &str, group: &str, role: &str) -> Result<()> {
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group }],
    }))?;
    match Api::all(admin.clone())
        .create(&PostParams::default(), &binding)
        .await
    {
        // An earlier token has made it.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        result => result
            .map(drop)
            .with_context(|| format!("bind {group} to {role}")),
    }
}
