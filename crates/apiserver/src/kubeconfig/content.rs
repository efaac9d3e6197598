//! What stands in a kubeconfig.
//!
//! Owns its fields, and that paths in it are relative to its folder. It must not open another file, nor choose a context.

use std::path::Path;

use rubelet_model::document::Node;
use secrecy::SecretString;
use serde_json::Value;

use super::place::{Misfit, Named, Place};

pub(super) struct Kubeconfig {
    pub(super) current_context: Option<String>,
    pub(super) contexts: Vec<Named<Context>>,
    pub(super) clusters: Vec<Named<Cluster>>,
    pub(super) users: Vec<Named<User>>,
}

pub(super) struct Context {
    pub(super) cluster: String,
    pub(super) user: Option<String>,
}

#[derive(Clone, Default)]
pub(crate) struct Cluster {
    pub(crate) server: Option<String>,
    pub(crate) insecure_skip_tls_verify: Option<bool>,
    pub(crate) certificate_authority: Option<String>,
    pub(crate) certificate_authority_data: Option<String>,
    pub(crate) proxy_url: Option<String>,
    pub(crate) disable_compression: Option<bool>,
    pub(crate) tls_server_name: Option<String>,
    pub(crate) extensions: Vec<Extension>,
    /// All fields, also those that are not known here, as they stand in the file.
    pub(crate) written: Value,
}

#[derive(Clone)]
pub(crate) struct Extension {
    pub(crate) name: String,
    pub(crate) extension: Value,
}

#[derive(Clone, Default)]
pub(super) struct User {
    pub(super) username: Option<String>,
    pub(super) password: Option<SecretString>,
    pub(super) token: Option<SecretString>,
    pub(super) token_file: Option<String>,
    pub(super) client_certificate: Option<String>,
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key: Option<String>,
    pub(super) client_key_data: Option<SecretString>,
    pub(super) impersonate: Option<String>,
    pub(super) impersonate_uid: Option<String>,
    pub(super) impersonate_groups: Vec<String>,
    pub(super) impersonate_user_extra: Vec<(String, Vec<String>)>,
    pub(super) has_auth_provider: bool,
    pub(super) exec: Option<ExecConfig>,
}

/// The program that a user's credentials come from.
#[derive(Clone, Default)]
pub(crate) struct ExecConfig {
    pub(crate) api_version: Option<String>,
    pub(crate) command: Option<String>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) install_hint: Option<String>,
    pub(crate) interactive_mode: Option<String>,
    pub(crate) provide_cluster_info: bool,
}

impl Kubeconfig {
    /// `folder` is where the file is.
    pub(super) fn read(root: &Node, folder: &Path) -> Result<Self, Misfit> {
        let root = Place::root(root);
        let mut read = Self {
            current_context: root.get("current-context")?.text()?,
            contexts: root.get("contexts")?.named("context", Context::read)?,
            clusters: root.get("clusters")?.named("cluster", Cluster::read)?,
            users: root.get("users")?.named("user", User::read)?,
        };
        for cluster in &mut read.clusters {
            if let Some(cluster) = &mut cluster.value {
                make_absolute(&mut cluster.certificate_authority, folder);
            }
        }
        for user in &mut read.users {
            let Some(user) = &mut user.value else { continue };
            make_absolute(&mut user.client_certificate, folder);
            make_absolute(&mut user.client_key, folder);
            make_absolute(&mut user.token_file, folder);
            // A name without a slash is looked for in the PATH.
            if let Some(exec) = &mut user.exec
                && exec.command.as_ref().is_some_and(|name| name.contains('/'))
            {
                make_absolute(&mut exec.command, folder);
            }
        }
        Ok(read)
    }
}

fn make_absolute(path: &mut Option<String>, folder: &Path) {
    if let Some(path) = path
        && !path.is_empty()
        && let Some(joined) = folder.join(path.as_str()).to_str()
    {
        *path = joined.to_owned();
    }
}

impl Context {
    fn read(place: &Place<'_>) -> Result<Self, Misfit> {
        Ok(Self {
            cluster: place.get("cluster")?.text()?.unwrap_or_default(),
            user: place.get("user")?.text()?,
        })
    }
}

impl Cluster {
    fn read(place: &Place<'_>) -> Result<Self, Misfit> {
        let text = |name| place.get(name)?.text();
        Ok(Self {
            server: text("server")?,
            insecure_skip_tls_verify: place.get("insecure-skip-tls-verify")?.flag()?,
            certificate_authority: text("certificate-authority")?,
            certificate_authority_data: text("certificate-authority-data")?,
            proxy_url: text("proxy-url")?,
            disable_compression: place.get("disable-compression")?.flag()?,
            tls_server_name: text("tls-server-name")?,
            extensions: place.get("extensions")?.items(Extension::read)?,
            written: place.node().clone().into(),
        })
    }
}

impl Extension {
    fn read(place: &Place<'_>) -> Result<Self, Misfit> {
        Ok(Self {
            name: place.get("name")?.text()?.unwrap_or_default(),
            extension: place.get("extension")?.node().clone().into(),
        })
    }
}

impl User {
    fn read(place: &Place<'_>) -> Result<Self, Misfit> {
        let text = |name| place.get(name)?.text();
        let secret = |name| text(name).map(|found| found.map(SecretString::from));
        let exec = place.get("exec")?;
        Ok(Self {
            username: text("username")?,
            password: secret("password")?,
            token: secret("token")?,
            token_file: text("tokenFile")?,
            client_certificate: text("client-certificate")?,
            client_certificate_data: text("client-certificate-data")?,
            client_key: text("client-key")?,
            client_key_data: secret("client-key-data")?,
            impersonate: text("as")?,
            impersonate_uid: text("as-uid")?,
            impersonate_groups: place.get("as-groups")?.items(plain_text)?,
            impersonate_user_extra: place
                .get("as-user-extra")?
                .entries(|values| values.items(plain_text))?,
            has_auth_provider: !place.get("auth-provider")?.is_absent(),
            exec: if exec.is_absent() {
                None
            } else {
                Some(ExecConfig::read(&exec)?)
            },
        })
    }
}

impl ExecConfig {
    fn read(place: &Place<'_>) -> Result<Self, Misfit> {
        let text = |name| place.get(name)?.text();
        let mode = place.get("interactiveMode")?;
        let interactive_mode = mode.text()?.filter(|mode| !mode.is_empty());
        if !matches!(
            interactive_mode.as_deref(),
            None | Some("Never" | "IfAvailable" | "Always")
        ) {
            return Err(mode.misfit("is none of Never, IfAvailable, Always"));
        }
        Ok(Self {
            api_version: text("apiVersion")?,
            command: text("command")?,
            args: place.get("args")?.items(plain_text)?,
            env: place.get("env")?.items(|variable| {
                let name = variable.get("name")?.text()?.unwrap_or_default();
                Ok((name, variable.get("value")?.text()?.unwrap_or_default()))
            })?,
            install_hint: text("installHint")?,
            interactive_mode,
            provide_cluster_info: place.get("provideClusterInfo")?.flag()?.unwrap_or_default(),
        })
    }
}

fn plain_text(place: &Place<'_>) -> Result<String, Misfit> {
    place.text().map(Option::unwrap_or_default)
}
