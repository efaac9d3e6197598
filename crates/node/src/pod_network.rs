//! The range of pod addresses that the cluster gave to this node, told to the container runtime.
//!
//! Owns what the runtime was told last. A push that fails is repeated with the next look at the Node.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use rubelet_ports::{Clock, RuntimeWriter, within};
use rubelet_wire::cri::v1;

use rubelet_ports::Complaint;

const PUSH_LIMIT: Duration = Duration::from_secs(10);

pub(crate) struct PodNetwork {
    clock: Arc<dyn Clock>,
    runtime: Arc<dyn RuntimeWriter>,
    told: String,
    complaint: Complaint,
}

impl PodNetwork {
    pub(crate) fn new(clock: Arc<dyn Clock>, runtime: Arc<dyn RuntimeWriter>) -> Self {
        Self {
            clock,
            runtime,
            told: String::new(),
            complaint: Complaint::default(),
        }
    }

    /// Tells the runtime what it does not know yet.
    pub(crate) async fn push(&mut self, node: &Node) {
        let ranges = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.as_ref());
        let pod_cidr = ranges.map(|ranges| ranges.join(",")).unwrap_or_default();
        if pod_cidr.is_empty() || pod_cidr == self.told {
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
                tracing::info!(pod_cidr, "The container runtime knows the range of pod addresses");
                self.told = pod_cidr;
                self.complaint.end();
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(elapsed) => elapsed.to_string(),
        };
        if self.complaint.is_due(&problem, self.clock.moment()) {
            tracing::warn!(
                pod_cidr,
                problem,
                "The container runtime cannot be told the range of pod addresses"
            );
        }
    }
}
