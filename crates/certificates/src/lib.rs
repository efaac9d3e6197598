//! The node's own certificates: the one it shows to the API server, and the one its HTTPS server shows.
//!
//! Owns when a certificate is requested, with which contents, and from which signer; the files under `pki/`, laid out as upstream's;
//! and the reports of failures. It must not make connections: the API server's client and the users of the certificate are behind
//! [`SigningRequests`](rubelet_ports::api::SigningRequests) and [`CertificateSink`]. No key leaves it but through the sink and into
//! files that only root reads.
//!
//! ```text
//!            ┌── files: another program put one there ──► sink
//!   wake ────┤
//!            └── plan(now, in use, wanted) ─┬─ wait: until the deadline, or until the addresses change
//!                                           └─ request ─► approved, issued ─► file, link, sink
//!                                                     └─► refused, no answer ─► logged, again after a backoff
//! ```
//!
//! There is one such loop for each certificate. An expired certificate leads to a request and never ends the process: with a
//! bootstrap kubeconfig the first certificate is requested again, and a renewed file is taken within seconds.

mod facts;
mod figures;
mod kept_key;
mod plan;
mod renewer;
mod request;
mod signing;
mod store;
mod wanted;

use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::NodeAddress;
use rubelet_ports::api::SigningRequests;
use rubelet_ports::{Clock, FileReader, FileWriter, Randomness, Spawner};
use tokio::sync::watch;

pub use figures::{CertificateHandle, ROTATION_AGE_BUCKETS_SECONDS, RotationAges};
use renewer::{Renewer, RenewerParts};
use store::Store;
use wanted::WantedSource;
pub use wanted::{Purpose, Wanted};

/// The ports that the renewal of certificates needs.
#[derive(Clone)]
pub struct CertificatePorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub randomness: Arc<dyn Randomness>,
    pub reader: Arc<dyn FileReader>,
    pub writer: Arc<dyn FileWriter>,
}

/// The user of a certificate: the API server's client, or the HTTPS server.
pub trait CertificateSink: Send + Sync {
    /// Shows this pair from now on.
    ///
    /// # Errors
    /// A text without secrets, when the pair cannot be used; the pair before stays in use.
    fn replace(&self, chain_pem: &[u8], key_pem: &[u8]) -> Result<(), String>;

    /// The certificate that is shown now, as DER, where others than us may replace it too.
    fn in_use(&self) -> Option<Vec<u8>> {
        None
    }
}

/// The client that requests the first certificate, made anew for each try: its credentials may have been renewed meanwhile.
pub trait BootstrapSigner: Send + Sync {
    /// # Errors
    /// A text, when the bootstrap kubeconfig cannot be used.
    fn connect(&self) -> Result<Arc<dyn SigningRequests>, String>;
}

/// What the client certificate is made from.
pub struct ClientSettings {
    pub node_name: String,
    /// `--cert-dir`
    pub directory: PathBuf,
    /// `rotateCertificates`. Without it only a certificate that is missing or expired is asked for, and only by bootstrap.
    pub rotate: bool,
    /// A certificate and key in the kubeconfig itself: stored, and replaced by one of our own at once.
    pub inline: Option<PemPair>,
}

/// What the serving certificate is made from; only for `serverTLSBootstrap`.
pub struct ServingSettings {
    pub node_name: String,
    /// `--cert-dir`
    pub directory: PathBuf,
    /// `tlsCertFile` and `tlsPrivateKeyFile`, shown until the signer's certificate is there.
    pub files: Option<(PathBuf, PathBuf)>,
    /// Feature gate `AllowDNSOnlyNodeCSR`.
    pub allow_dns_only: bool,
}

/// A certificate with what leads to its authority, and its key. It prints nothing of itself.
#[derive(Clone, PartialEq, Eq)]
pub struct PemPair {
    pub chain_pem: Vec<u8>,
    pub key_pem: Vec<u8>,
}

impl std::fmt::Debug for PemPair {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("PemPair")
    }
}

/// Where the client certificate in force is found; a kubeconfig may name it before it is there.
#[must_use]
pub fn client_certificate_path(directory: &std::path::Path) -> PathBuf {
    Store::current_path(directory, Purpose::Client)
}

/// Renews the certificate that the node shows to the API server: `ordinary` requests with the certificate in force, `bootstrap`
/// while there is no valid one.
pub fn keep_client_certificate(
    ports: CertificatePorts,
    settings: ClientSettings,
    ordinary: Arc<dyn SigningRequests>,
    bootstrap: Option<Arc<dyn BootstrapSigner>>,
    sink: Arc<dyn CertificateSink>,
) -> CertificateHandle {
    let purpose = Purpose::Client;
    let parts = RenewerParts {
        store: Store::new(&ports, settings.directory, purpose, None),
        wanted: WantedSource::Fixed(Wanted::client(&settings.node_name)),
        rotate: settings.rotate,
        inline: settings.inline.filter(|_| settings.rotate),
        ordinary,
        bootstrap,
        sink,
    };
    Renewer::start(ports, parts, purpose)
}

/// Renews the certificate of the node's HTTPS server, for the addresses that the node has. Without an address none is requested.
pub fn keep_serving_certificate(
    ports: CertificatePorts,
    settings: ServingSettings,
    signer: Arc<dyn SigningRequests>,
    addresses: watch::Receiver<Vec<NodeAddress>>,
    sink: Arc<dyn CertificateSink>,
) -> CertificateHandle {
    let purpose = Purpose::Serving;
    let parts = RenewerParts {
        store: Store::new(&ports, settings.directory, purpose, settings.files),
        wanted: WantedSource::Addresses {
            node_name: settings.node_name,
            allow_dns_only: settings.allow_dns_only,
            addresses,
        },
        rotate: true,
        inline: None,
        ordinary: signer,
        bootstrap: None,
        sink,
    };
    Renewer::start(ports, parts, purpose)
}
