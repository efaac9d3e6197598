//! The end of all pods, group after group.
//!
//! Owns the waits: for the pods of a group and their volumes, at most the group's period; then, once, for the delivery of what
//! the API server has to know. It may be dropped at any time: pods that were asked to end go on ending.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Node;
use rubelet_lifecycle::node_shutdown::{EndingPod, ShutdownGroup, ShutdownPeriods, shutdown_status};
use rubelet_model::observation::PodUid;
use rubelet_ports::{Clock, NoAnswer, PodReporter, within};
use tokio::sync::watch;

use super::ShutdownPorts;
use crate::{AgentHandle, EndPod, EndReason};

/// For an API server that does not answer the machine waits no longer than this.
const DELIVERY_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at what was not delivered or cleaned up yet.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct EndPods {
    clock: Arc<dyn Clock>,
    reporter: Arc<dyn PodReporter>,
    node: watch::Receiver<Option<Arc<Node>>>,
    periods: ShutdownPeriods,
    agent: AgentHandle,
}

impl EndPods {
    pub(super) fn new(ports: &ShutdownPorts, periods: ShutdownPeriods, agent: AgentHandle) -> Self {
        Self {
            clock: Arc::clone(&ports.clock),
            reporter: Arc::clone(&ports.reporter),
            node: ports.node.clone(),
            periods,
            agent,
        }
    }

    pub(super) async fn run(self: Arc<Self>) {
        let mut asked = BTreeSet::new();
        for index in 0..self.periods.as_slice().len() {
            let Ok(group) = self.group(index, &asked).await else {
                tracing::warn!("The agent does not say which pods run; they end with the machine");
                break;
            };
            if group.pods.is_empty() {
                continue;
            }
            asked.extend(group.pods.iter().map(|pod| pod.uid.clone()));
            self.end(&group).await;
        }
        self.deliver().await;
    }

    /// The pods of a group as they are when it begins, with those of earlier groups that were not known by then.
    async fn group(&self, index: usize, asked: &BTreeSet<PodUid>) -> Result<ShutdownGroup, NoAnswer> {
        let pods = self.agent.pods_to_end().await?;
        let mut groups = self.periods.plan_groups(&pods);
        groups.truncate(index + 1);
        let mut group = groups.pop().ok_or(NoAnswer)?;
        let earlier = groups.into_iter().flat_map(|group| group.pods);
        group.pods.extend(earlier);
        group.pods.retain(|pod| !asked.contains(&pod.uid));
        Ok(group)
    }

    async fn end(&self, group: &ShutdownGroup) {
        let ShutdownGroup {
            priority,
            period,
            pods,
        } = group;
        tracing::info!(
            priority,
            period_s = period.as_secs(),
            pods = pods.len(),
            "Pods end because the machine shuts down"
        );
        // All of them are asked, however short the period is.
        let ends = join_all(pods.iter().map(|pod| self.ask(pod))).await;
        let uids: Vec<PodUid> = pods.iter().map(|pod| pod.uid.clone()).collect();
        let ended = async {
            join_all(ends.into_iter().flatten()).await;
            // The next group may have what unmounts their volumes.
            while self.agent.is_any_unfinished(uids.clone()).await {
                self.clock.sleep(LOOK_INTERVAL).await;
            }
        };
        if within(self.clock.as_ref(), *period, ended).await.is_err() {
            tracing::warn!(
                priority,
                period_s = period.as_secs(),
                "Not all pods of a group have ended in its time; the shutdown goes on"
            );
        }
    }

    async fn ask(&self, pod: &EndingPod) -> Option<impl Future<Output = ()> + use<>> {
        let request = EndPod {
            reason: EndReason::Shutdown(shutdown_status()),
            grace_seconds: Some(pod.grace_seconds),
        };
        let answer = self.agent.request_end(&pod.uid, request).await.ok()?;
        let uid = pod.uid.clone();
        Some(async move {
            if let Ok(Err(error)) = answer.await {
                tracing::warn!(pod = %uid, %error, "A pod has not ended for the machine's shutdown");
            }
        })
    }

    /// What a machine that is off cannot tell any more: the last statuses, and that the node is not ready.
    async fn deliver(&self) {
        let delivered = async {
            while self.reporter.undelivered() > 0 || self.is_node_ready() {
                self.clock.sleep(LOOK_INTERVAL).await;
            }
        };
        if within(self.clock.as_ref(), DELIVERY_LIMIT, delivered)
            .await
            .is_err()
        {
            tracing::warn!(
                statuses = self.reporter.undelivered(),
                limit_s = DELIVERY_LIMIT.as_secs(),
                "The API server does not know everything about this node's end"
            );
        }
    }

    /// Whether the API server has the node as ready.
    fn is_node_ready(&self) -> bool {
        let node = self.node.borrow();
        let status = node.as_ref().and_then(|node| node.status.as_ref());
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }
}
