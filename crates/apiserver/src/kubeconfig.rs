//! Reads a kubeconfig: the server, the certificate authority and the credentials.
//!
//! Owns choosing the current context, and errors that name the file and the field. It must not connect, nor show a credential.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderMap, Uri};
use rubelet_model::document::{self, Limits, SyntaxError};
use rubelet_proxy::Proxy;
use secrecy::SecretString;
use serde_json::json;
use thiserror::Error;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::exec_plugin::ExecPlugin;

mod chosen;
mod content;
mod place;

use chosen::Chosen;
use content::Kubeconfig;
pub(crate) use content::{Cluster, ExecConfig};

/// Certificates of authorities stand in it, too.
const LIMITS: Limits = Limits {
    max_bytes: 10 << 20,
    max_nodes: 1_000_000,
};

/// Why the API server cannot even be tried.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    #[error("kubeconfig {}: {problem}", .path.display())]
    File { path: PathBuf, problem: String },
    /// `field` is spelled as in the file: `clusters[kubernetes].cluster.server`.
    #[error("kubeconfig {}: {field}: {problem}", .path.display())]
    Field {
        path: PathBuf,
        field: String,
        problem: String,
    },
    #[error("cannot connect to the API server: {0}")]
    Unusable(String),
}

/// All that is needed to talk to the server of the current context.
pub(crate) struct Access {
    pub(crate) server: Uri,
    pub(crate) trust: Trust,
    /// The name that the server's certificate must have.
    pub(crate) server_name: Option<ServerName<'static>>,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) login: Login,
    pub(crate) certificate: Option<CertificateSource>,
    pub(crate) impersonation: HeaderMap,
}

/// Whose signature on the server's certificate is accepted.
pub(crate) enum Trust {
    System,
    These(Text),
    /// `insecure-skip-tls-verify`
    AnyServer,
}

/// How requests say who we are, beside a certificate.
pub(crate) enum Login {
    Anonymous,
    Token(SecretString),
    TokenFile {
        path: PathBuf,
        /// Used while the file cannot be read.
        fallback: Option<SecretString>,
    },
    Basic {
        user: String,
        password: SecretString,
    },
    Exec(Arc<ExecPlugin>),
}

pub(crate) struct CertificateSource {
    pub(crate) certificate: Text,
    pub(crate) key: Text,
}

/// PEM text that stands in the kubeconfig or in a file that it names.
pub(crate) enum Text {
    Data { field: String, pem: Vec<u8> },
    File { field: String, path: PathBuf },
}

impl Text {
    pub(crate) fn field(&self) -> &str {
        match self {
            Self::Data { field, .. } | Self::File { field, .. } => field,
        }
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Data { .. } => None,
            Self::File { path, .. } => Some(path),
        }
    }

    pub(crate) fn read(&self) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Data { pem, .. } => Ok(pem.clone()),
            Self::File { path, .. } => std::fs::read(path),
        }
    }
}

impl Access {
    pub(crate) fn read(path: &Path) -> Result<Self, ConnectError> {
        let file = read(path)?;
        let chosen = Chosen::of(path, &file)?;
        let trust = chosen.trust()?;
        let certificate = chosen.certificate()?;
        let server = chosen.server(!matches!(trust, Trust::System) || certificate.is_some())?;
        Ok(Self {
            server_name: chosen.server_name()?,
            proxy: chosen.proxy()?,
            login: chosen.login(&server)?,
            impersonation: chosen.impersonation()?,
            server,
            trust,
            certificate,
        })
    }
}

/// The text of a kubeconfig for the same server that authenticates with the certificate and key in one PEM file. This is what
/// takes the place of the bootstrap kubeconfig once the node has a certificate.
///
/// # Errors
/// When the bootstrap kubeconfig cannot be read or lacks what is needed.
pub fn kubeconfig_for_certificate(bootstrap: &Path, certificate: &Path) -> Result<String, ConnectError> {
    let file = read(bootstrap)?;
    let chosen = Chosen::of(bootstrap, &file)?;
    let mut cluster = chosen.cluster.written.clone();
    if let Some(fields) = cluster.as_object_mut() {
        fields.remove("extensions");
        fields.retain(|_, value| !value.is_null());
        // Upstream leaves the data out when there is a file, though the data would win.
        fields.remove("certificate-authority");
        if let (None, Some(path)) = (
            &chosen.cluster.certificate_authority_data,
            &chosen.cluster.certificate_authority,
        ) {
            fields.insert("certificate-authority".to_owned(), path.as_str().into());
        }
    }
    let certificate = certificate.display().to_string();
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "users": [{
            "name": "default-auth",
            "user": {"client-certificate": certificate, "client-key": certificate},
        }],
        "contexts": [{
            "name": "default-context",
            "context": {"cluster": "default-cluster", "namespace": "default", "user": "default-auth"},
        }],
        "current-context": "default-context",
    });
    Ok(document::yaml_text(&config))
}

/// A certificate and its key.
type PemPair = (Vec<u8>, Vec<u8>);

/// The client certificate and its key as PEM, where both stand in the kubeconfig itself.
///
/// # Errors
/// When the kubeconfig cannot be read or lacks what is needed.
pub fn inline_certificate(kubeconfig: &Path) -> Result<Option<PemPair>, ConnectError> {
    let source = Access::read(kubeconfig)?.certificate;
    Ok(source.and_then(|source| match (source.certificate, source.key) {
        (Text::Data { pem: certificate, .. }, Text::Data { pem: key, .. }) => Some((certificate, key)),
        _ => None,
    }))
}

/// Paths in it are relative to the file. Of several documents the first one counts, as for upstream.
fn read(path: &Path) -> Result<Kubeconfig, ConnectError> {
    let failed = |problem: String| ConnectError::File {
        path: path.to_owned(),
        problem,
    };
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let document = document::read(&text, LIMITS).map_err(|error| failed(not_understood(&error)))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    Kubeconfig::read(&document.root, folder).map_err(|(field, problem)| {
        if field.is_empty() {
            return failed(format!("it is no kubeconfig: it {problem}"));
        }
        ConnectError::Field {
            path: path.to_owned(),
            field,
            problem,
        }
    })
}

/// The message of the parser may quote a token.
fn not_understood(error: &SyntaxError) -> String {
    match error {
        SyntaxError::YamlText { line, column, .. } => {
            format!("it is no kubeconfig: not understood at line {line}, column {column}")
        }
        SyntaxError::Yaml(_) => "it is no kubeconfig: not valid YAML".to_owned(),
        other => format!("it is no kubeconfig: {other}"),
    }
}

#[cfg(test)]
mod tests;
