//! Passes the node's pod CIDRs to the container runtime.
//!
//! Owns what was passed last. A call that fails is repeated with the next change of the Node.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use rubelet_ports::{Clock, RuntimeWriter, within};
use rubelet_wire::cri::v1;

use rubelet_ports::LogThrottle;

const PUSH_LIMIT: Duration = Duration::from_secs(10);

pub(crate) struct PodNetwork {
    clock: Arc<dyn Clock>,
    runtime: Arc<dyn RuntimeWriter>,
    pushed: String,
    throttle: LogThrottle,
}

impl PodNetwork {
    pub(crate) fn new(clock: Arc<dyn Clock>, runtime: Arc<dyn RuntimeWriter>) -> Self {
        Self {
            clock,
            runtime,
            pushed: String::new(),
            throttle: LogThrottle::default(),
        }
    }

    /// Passes the CIDRs on if they are new.
    pub(crate) async fn push(&mut self, node: &Node) {
        let ranges = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.as_ref());
        let pod_cidr = ranges.map(|ranges| ranges.join(",")).unwrap_or_default();
        if pod_cidr.is_empty() || pod_cidr == self.pushed {
            return;
        }
        let config = v1::RuntimeConfig {
            network_config: Some(v1::NetworkConfig {
                pod_cidr: pod_cidr.clone(),
            }),
        };
        let call = self.runtime.update_runtime_config(config);
        let problem = match within(self.clock.as_ref(), PUSH_LIMIT, call).await {
            Ok(Ok(())) => {
                tracing::info!(pod_cidr, "The container runtime has the node's pod CIDRs");
                self.pushed = pod_cidr;
                self.throttle.end();
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(elapsed) => elapsed.to_string(),
        };
        if self.throttle.is_due(&problem, self.clock.moment()) {
            tracing::warn!(
                pod_cidr,
                problem,
                "The node's pod CIDRs cannot be passed to the container runtime"
            );
        }
    }
}
