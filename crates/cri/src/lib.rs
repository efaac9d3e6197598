//! Client of the container runtime interface, CRI v1, over a unix socket.
//!
//! Owns the connection (made on first use, made again with backoff after the runtime restarts), the deadline of every call,
//! the limits of message sizes, and the translation of gRPC's failures to [`rubelet_ports::RuntimeError`]. It implements the
//! runtime and image ports, that of a pull's progress where the runtime is a containerd, and nothing else. It must not decide
//! anything about pods, keep state about them, retry a call, or log what a message holds.
//!
//! Reading order: [`CriClient`] → `runtime` and `image` (one method per call) → `call` (what all calls share) →
//! `connection` and `backoff`.
#![allow(
    clippy::disallowed_methods,
    reason = "an adapter at the edge: it owns the socket, the deadlines and the clock of its metrics"
)]

mod answer;
mod backoff;
mod call;
mod client;
mod codec;
mod connection;
mod deadline;
mod endpoint;
mod events;
mod failure;
mod image;
mod method;
mod metrics;
mod pull_progress;
mod runtime;

pub use client::{ConnectError, CriClient, CriOptions};
pub use deadline::{DEFAULT_LIVENESS_INTERVAL, DEFAULT_REQUEST_TIMEOUT};
pub use endpoint::{EndpointError, RuntimeEndpoint};
pub use metrics::CriMetrics;

/// The largest message either side may send, as upstream.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// The most that one list may add up to when it is streamed. Upstream has no bound; far beyond what a node can run.
pub const MAX_STREAMED_LIST_BYTES: usize = 16 * MAX_MESSAGE_BYTES;
