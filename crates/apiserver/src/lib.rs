//! Client of the API server, behind every trait of `ports::api`.
//!
//! Owns the kubeconfig, the credentials and their renewal, the connections (normal calls, reviews, heartbeats, events and
//! watches are apart, so that none waits for another), their rate limits, the deadline of every call, lists and watches of sets of
//! objects, and the messages of failures. It must not decide anything about pods or the node, retry a call, or show the content of an
//! object in a message or log.
//!
//! The requests are kube-rs'; sending is done here, because its client logs whole answers that it cannot decode (they may be
//! Secrets) and drops `Retry-After`.
//!
//! Reading order: [`ApiServer`] → `node`, `pods`, `objects`, `certificates`, `reviews` (one method per call) → `call` (what all
//! calls share) and `follow` (lists and watches) → `channel`, `dial`, `tls`, `identity` → `kubeconfig`, `credentials`.
#![allow(
    clippy::disallowed_methods,
    reason = "an adapter at the edge: it owns sockets, credential files, deadlines and the pace of its calls"
)]

mod answer;
mod call;
mod certificates;
mod channel;
mod credentials;
mod decode;
mod dial;
mod exec_plugin;
mod failure;
mod follow;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod identity;
mod kubeconfig;
mod limiter;
mod metrics;
mod node;
mod objects;
mod pods;
mod reachability;
mod reviews;
mod server;
mod stamp;
mod tls;
mod watch_lines;
mod watch_pool;

pub use identity::{ClientIdentity, IdentityError};
pub use kubeconfig::{ConnectError, inline_certificate, kubeconfig_for_certificate};
pub use limiter::RateLimit;
pub use metrics::ApiServerMetrics;
pub use server::{ApiServer, ApiServerOptions, Liveness, user_agent};
