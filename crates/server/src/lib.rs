//! The node's HTTP API and the local socket of `rubelet why`: an inbound adapter.
//!
//! Owns the listeners, TLS, authentication and authorization, and the form of every answer: paths, methods, texts and JSON are
//! upstream's. It must not decide anything about a pod: it reads pods through `PodView`, and log files, and changes neither. Of
//! the runtime it uses only the calls that open a session in a container (exec, attach, port forwarding) or write its checkpoint.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "an edge of its own: sockets, connection tasks and their timeouts, open log files"
)]

mod access;
mod api;
mod body;
mod checkpoint;
mod configz;
mod connection;
mod connection_phase;
mod connection_slots;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod health;
mod listener;
mod logs;
mod metrics;
mod metrics_body;
mod node_logs;
mod paths;
mod pods;
mod profile;
mod response;
mod rfc3339;
mod server;
mod statistics;
mod stopping;
mod streams;
mod tls;
mod upgrade;
mod verbosity;
mod why;
mod zpages;

pub use error::ServerError;
pub use metrics::ServerMetrics;
pub use server::{ListenOptions, ServeOptions, Server, ServerHandle};
pub use tls::{BadPair, ServingCertificate};
pub use verbosity::SetVerbosity;
pub use why::{SOCKET_NAME, WhySocketError, short_path};
