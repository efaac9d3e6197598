//! The client: its options, its construction, and the check that the runtime serves CRI v1.
//!
//! Owns how endpoints become connections. The calls are in `runtime` and `image`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rubelet_ports::{RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::{self, v1};
use thiserror::Error;

use crate::call::Caller;
use crate::connection;
use crate::deadline::{DEFAULT_LIVENESS_INTERVAL, DEFAULT_REQUEST_TIMEOUT, Patience};
use crate::endpoint::{EndpointError, RuntimeEndpoint};
use crate::method::{self, Method};
use crate::metrics::CriMetrics;

/// What a client is made from.
#[derive(Clone, Debug)]
pub struct CriOptions {
    /// `containerRuntimeEndpoint`.
    pub endpoint: String,
    /// `imageServiceEndpoint`; without it the image service is at [`Self::endpoint`].
    pub image_endpoint: Option<String>,
    /// `runtimeRequestTimeout`.
    pub request_timeout: Duration,
    /// How often the runtime's liveness is checked while a call without deadline waits.
    pub liveness_interval: Duration,
    /// The feature gate `CRIListStreaming`.
    pub list_streaming: bool,
}

impl CriOptions {
    /// The defaults for this endpoint.
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            image_endpoint: None,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            liveness_interval: DEFAULT_LIVENESS_INTERVAL,
            list_streaming: false,
        }
    }
}

/// Why a client could not be made.
#[derive(Debug, Error)]
pub enum ConnectError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("runtimeRequestTimeout must be above zero")]
    NoTimeout,
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// A client of one runtime and its image service. It implements the runtime and image ports.
#[derive(Clone, Debug)]
pub struct CriClient {
    pub(crate) runtime: Caller,
    pub(crate) images: Caller,
}

impl CriClient {
    /// Makes a client and checks that both services are there and serve CRI v1.
    ///
    /// # Errors
    /// When an endpoint cannot be used, or a service does not answer, or answers something else than CRI v1.
    pub async fn connect(options: &CriOptions, metrics: &CriMetrics) -> Result<Self, ConnectError> {
        let client = Self::lazy(options, metrics)?;
        let fs_info = v1::ImageFsInfoRequest::default();
        client.runtime.check_version().await?;
        let answer: Result<v1::ImageFsInfoResponse, _> =
            client.images.call(&method::IMAGE_FS_INFO, fs_info).await;
        answer.map_err(|error| client.images.unsupported(&method::IMAGE_FS_INFO, error, ""))?;
        Ok(client)
    }

    /// Makes a client that connects on its first call, and checks nothing. It must be made inside a tokio runtime.
    ///
    /// # Errors
    /// When an endpoint cannot be used.
    pub fn lazy(options: &CriOptions, metrics: &CriMetrics) -> Result<Self, ConnectError> {
        if options.request_timeout.is_zero() {
            return Err(ConnectError::NoTimeout);
        }
        let endpoint = parse(&options.endpoint)?;
        let runtime = caller(&endpoint, options, metrics);
        let images = match &options.image_endpoint {
            Some(spelling) => {
                let image_endpoint = parse(spelling)?;
                if image_endpoint.socket() == endpoint.socket() {
                    Caller {
                        streams_lists: streams_lists(options),
                        ..runtime.clone()
                    }
                } else {
                    caller(&image_endpoint, options, metrics)
                }
            }
            // As upstream, each service falls back to plain lists on its own.
            None => Caller {
                streams_lists: streams_lists(options),
                ..runtime.clone()
            },
        };
        Ok(Self { runtime, images })
    }
}

fn parse(spelling: &str) -> Result<RuntimeEndpoint, EndpointError> {
    let endpoint: RuntimeEndpoint = spelling.parse()?;
    if endpoint.is_bare_path() {
        tracing::warn!(
            endpoint = spelling,
            "a bare path as runtime endpoint is deprecated; write it as {endpoint}"
        );
    }
    Ok(endpoint)
}

fn caller(endpoint: &RuntimeEndpoint, options: &CriOptions, metrics: &CriMetrics) -> Caller {
    let (channel, link) = connection::open(endpoint);
    Caller {
        channel,
        link,
        endpoint: endpoint.to_string().into(),
        metrics: metrics.clone(),
        request_timeout: options.request_timeout,
        liveness_interval: options.liveness_interval,
        streams_lists: streams_lists(options),
    }
}

fn streams_lists(options: &CriOptions) -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(options.list_streaming))
}

impl Caller {
    async fn check_version(&self) -> Result<(), RuntimeError> {
        let request = || v1::VersionRequest {
            version: cri::CLIENT_VERSION.to_owned(),
        };
        let answer: Result<v1::VersionResponse, _> = self.call(&method::VERSION, request()).await;
        let Err(error) = answer else { return Ok(()) };
        if error.kind() != RuntimeErrorKind::Unimplemented {
            return Err(error);
        }
        // The request has the same form in v1alpha2; the answer names the runtime that is too old.
        let patience = Patience::Until(self.request_timeout);
        let old: Result<v1::VersionResponse, _> = self
            .exchange(&method::VERSION_V1ALPHA2, request(), patience)
            .await;
        let found = match old {
            Ok(old) => format!(
                "it serves CRI v1alpha2 only ({} {})",
                old.runtime_name, old.runtime_version
            ),
            Err(_) => String::new(),
        };
        Err(self.unsupported(&method::VERSION, error, &found))
    }

    /// Rewrites the answer "unknown service" for users.
    fn unsupported(&self, method: &Method, error: RuntimeError, found: &str) -> RuntimeError {
        if error.kind() != RuntimeErrorKind::Unimplemented {
            return error;
        }
        let found = if found.is_empty() {
            "it has no CRI service at all, or an unknown version of it; with containerd, see whether disabled_plugins in \
             its config.toml switches the cri plugin off"
        } else {
            found
        };
        let message = format!("{}; {found}", error.message());
        self.error(method, RuntimeErrorKind::UnsupportedVersion, &message)
    }
}
