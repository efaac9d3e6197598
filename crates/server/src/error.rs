//! Why the server cannot start, with upstream's text where upstream has one.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

use crate::why::WhySocketError;

#[derive(Debug, Error)]
pub enum ServerError {
    #[error(
        "no client provided, cannot use webhook authentication \
         (authentication.webhook.enabled needs a kubeconfig; set it to false on a node without API server)"
    )]
    WebhookAuthentication,
    #[error(
        "no client provided, cannot use webhook authorization \
         (authorization.mode Webhook needs a kubeconfig; set it to AlwaysAllow on a node without API server)"
    )]
    WebhookAuthorization,
    #[error(
        "no authentication method configured (set authentication.x509.clientCAFile or \
         authentication.anonymous.enabled)"
    )]
    NoAuthenticationMethod,
    #[error("no authorization mode specified (authorization.mode)")]
    NoAuthorizationMode,
    #[error("unknown authorization mode {0} (authorization.mode)")]
    UnknownAuthorizationMode(String),
    #[error("{setting}: {}: {problem}", path.display())]
    File {
        setting: &'static str,
        path: PathBuf,
        problem: String,
    },
    #[error("{} and {} must both be there: only one can be read", certificate.display(), key.display())]
    HalfAPair { certificate: PathBuf, key: PathBuf },
    #[error("cannot make a self-signed certificate: {0}")]
    SelfSigned(String),
    /// A value of a TLS setting that cannot be honoured.
    #[error("{setting}: {problem}")]
    Tls { setting: &'static str, problem: String },
    #[error("{setting}: {value:?} is no address to listen on")]
    BadAddress { setting: &'static str, value: String },
    #[error("{setting}: cannot listen on {address} (does another kubelet run here?)")]
    Listen {
        setting: &'static str,
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    WhySocket(#[from] WhySocketError),
}
