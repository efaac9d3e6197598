//! One call of a heartbeat: its deadline, and a new connection when calls keep failing.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rubelet_ports::api::{ApiError, ApiErrorKind, NodeWriter};
use rubelet_ports::{Clock, within};

use crate::settings::{NodePorts, NodeSettings};

/// Heartbeats that fail are tried this often before the next one is due.
pub(crate) const TRIES: u32 = 5;

#[derive(Clone)]
pub(crate) struct Heartbeat {
    clock: Arc<dyn Clock>,
    writer: Arc<dyn NodeWriter>,
    limit: Duration,
}

impl Heartbeat {
    pub(crate) fn new(ports: &NodePorts, settings: &NodeSettings) -> Self {
        let reporting = &settings.reporting;
        let lease_seconds = u64::try_from(reporting.lease_duration_seconds).unwrap_or_default();
        Self {
            clock: Arc::clone(&ports.clock),
            writer: Arc::clone(&ports.node_writer),
            // A call that takes longer is of no use: the next one is due, or the lease is over.
            limit: reporting
                .update_frequency
                .min(Duration::from_secs(lease_seconds))
                .max(Duration::from_secs(1)),
        }
    }

    pub(crate) async fn call<T>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        match within(self.clock.as_ref(), self.limit, call).await {
            Ok(answer) => answer,
            Err(elapsed) => Err(ApiError::new(
                operation,
                ApiErrorKind::DeadlineExceeded,
                elapsed.to_string(),
            )),
        }
    }

    /// A try has failed. The first failure may be chance; after that the connection is suspect. A server that asks for a pause gets
    /// it, up to the time after which the next heartbeat is due anyway.
    pub(crate) async fn failed(&self, attempt: u32, error: &ApiError) {
        if let Some(wait) = error.retry_after() {
            self.clock.sleep(wait.min(self.limit)).await;
        } else if attempt > 0 && error.is_passing() {
            self.writer.reconnect();
        }
    }
}
