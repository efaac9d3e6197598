//! Calls into pods, for probes and lifecycle hooks: HTTP, a TCP connection, gRPC's health check.
//!
//! An adapter: it owns sockets, TLS without trust, redirects, limits and the words for what went wrong. Whether an answer
//! means healthy is decided by whoever asks. Nothing is kept between two calls: a connection that is kept would hide that a
//! server takes no new ones.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "an adapter is where the network is used"
)]

mod exchange;
mod grpc;
mod http_call;
mod redirect;
mod socket;
mod tls;
mod words;

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use rubelet_ports::{
    ConnectError, Dialer, GrpcCall, GrpcHealth, HttpAnswer, HttpCall, HttpCallError, host_and_port,
};
use tokio::time::Instant;

use crate::socket::Sockets;
use crate::tls::AnyCertificate;

/// Calls over the machine's network.
#[derive(Default)]
pub struct NetworkDialer {
    sockets: Sockets,
    tls: AnyCertificate,
}

impl NetworkDialer {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl Dialer for NetworkDialer {
    async fn http_get(&self, call: &HttpCall) -> Result<HttpAnswer, HttpCallError> {
        http_call::get(&self.sockets, &self.tls, call).await
    }

    async fn connect(&self, host: &str, port: u16, timeout: Duration) -> Result<(), ConnectError> {
        let connected = self.sockets.connect(host, port);
        match before(deadline(Some(timeout)), connected).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(message)) => Err(ConnectError { message }),
            None => Err(ConnectError {
                message: format!("dial tcp {}: i/o timeout", host_and_port(host, port)),
            }),
        }
    }

    async fn grpc_health(&self, call: &GrpcCall) -> GrpcHealth {
        grpc::check(&self.sockets, call).await
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
