//! Calls into pods, for probes and lifecycle hooks: HTTP, a TCP connection, gRPC's health check.
//!
//! An adapter: it owns sockets, TLS without trust, redirects, limits and the texts of errors. The caller decides whether an answer
//! means healthy. Nothing is kept between two calls: a connection that is kept would hide that a server accepts no new ones.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "an adapter is where the network is used"
)]

mod error_text;
mod exchange;
mod grpc;
mod http_call;
mod lookup;
mod redirect;
mod socket;
mod tls;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rubelet_ports::{
    ConnectError, Dialer, GrpcCall, GrpcHealth, HttpAnswer, HttpCall, HttpCallError, TcpCall, host_and_port,
};
use tokio::time::Instant;

use crate::lookup::Lookups;
pub use crate::lookup::Resolver;
use crate::socket::Sockets;
use crate::tls::AnyCertificate;

/// Calls over the machine's network.
pub struct NetworkDialer {
    lookups: Lookups,
    tls: AnyCertificate,
}

impl NetworkDialer {
    #[must_use]
    pub fn new() -> Self {
        Self::with_resolver(Arc::new(lookup::system))
    }

    /// Looks host names up in a way of the caller's own.
    #[must_use]
    pub fn with_resolver(resolver: Arc<Resolver>) -> Self {
        Self {
            lookups: Lookups::new(resolver),
            tls: AnyCertificate::default(),
        }
    }
}

impl Default for NetworkDialer {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Dialer for NetworkDialer {
    async fn http_get(&self, call: &HttpCall) -> Result<HttpAnswer, HttpCallError> {
        let sockets = Sockets::new(&self.lookups, &call.pod);
        http_call::get(&sockets, &self.tls, call).await
    }

    async fn connect(&self, call: &TcpCall) -> Result<(), ConnectError> {
        let sockets = Sockets::new(&self.lookups, &call.pod);
        let connected = sockets.connect(&call.host, call.port);
        match before(deadline(Some(call.timeout)), connected).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(message)) => Err(ConnectError::Failed { message }),
            None => Err(match sockets.no_place(&call.host) {
                Some(message) => ConnectError::NoPlace { message },
                None => ConnectError::Failed {
                    message: format!("dial tcp {}: i/o timeout", host_and_port(&call.host, call.port)),
                },
            }),
        }
    }

    async fn grpc_health(&self, call: &GrpcCall) -> GrpcHealth {
        let sockets = Sockets::new(&self.lookups, &call.pod);
        grpc::check(&sockets, call).await
    }
}

fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// `None` when the deadline came first; what is not finished then is dropped.
async fn before<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}
