//! Talking to a running agent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::status::Eviction;
use rubelet_model::explanation::{NodeExplanation, PodExplanation};
use rubelet_model::observation::{PodObservation, PodUid};
use rubelet_ports::{
    Clock, EvictionFailure, Moment, NoAnswer, PodEviction, PodEvictor, PodView, PodsToRun, RuntimeError,
    RuntimeErrorKind, within,
};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use crate::observer::{ObserverHandle, TableSizes};
use crate::pods::{EndPod, EndPodError, EndReason, Heartbeat, Query};
use crate::runtime_health::RuntimeHealth;
use crate::sources::Mirrors;

/// What an answer may take; the loop that gives it never blocks.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// What the removal of dead containers may take.
const REMOVAL_LIMIT: Duration = Duration::from_secs(60);
/// The loop has to turn at least this often, or twice in the time of a full resync.
const MIN_TURN: Duration = Duration::from_secs(300);

/// When everything of a pod is stopped, or the time for that is over.
pub(crate) type EndPodAnswer = oneshot::Receiver<Result<(), EndPodError>>;

/// A handle of a running agent. When the last one is gone, the agent ends and leaves its pods running.
#[derive(Clone)]
pub struct AgentHandle {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) queries: mpsc::Sender<Query>,
    pub(crate) observer: ObserverHandle,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) sync_frequency: Duration,
    pub(crate) health: watch::Receiver<RuntimeHealth>,
    pub(crate) events: Arc<dyn Fn() -> Vec<Value> + Send + Sync>,
    pub(crate) mirrors: watch::Receiver<Arc<Mirrors>>,
}

impl AgentHandle {
    /// What the runtime says of itself, and every change of it.
    #[must_use]
    pub fn runtime_health(&self) -> watch::Receiver<RuntimeHealth> {
        self.health.clone()
    }

    /// Brings the metrics that say how many there are of what up to date.
    ///
    /// # Errors
    /// When the agent is ending, or does not answer in time; the metrics then say what they said before.
    pub async fn take_census(&self) -> Result<(), NoAnswer> {
        self.ask(Query::Census).await
    }

    /// How many entries each table has that grows with the pods. On a node without pods all of them are empty; tests ask for it.
    ///
    /// # Errors
    /// When the agent is ending, or does not answer in time.
    pub async fn table_sizes(&self) -> Result<TableSizes, NoAnswer> {
        let mut sizes = self.ask(Query::Tables).await?;
        sizes.extend(self.observer.table_sizes().await);
        Ok(sizes)
    }

    /// Ends a pod and waits until nothing of it runs any more. As upstream, the wait is bounded by one and a half grace periods, and by ten
    /// seconds at least; the pod's end goes on after that. A later request can shorten the grace period of an earlier one.
    ///
    /// # Errors
    /// When no source has the pod and nothing of it runs, when the wait is over, or when the agent is ending.
    pub async fn end_pod(&self, uid: &PodUid, request: EndPod) -> Result<(), EndPodError> {
        let answer = self.request_end(uid, request).await?;
        answer.await.unwrap_or(Err(EndPodError::NoAnswer))
    }

    /// As [`Self::end_pod`], but the wait is the caller's.
    pub(crate) async fn request_end(
        &self,
        uid: &PodUid,
        request: EndPod,
    ) -> Result<EndPodAnswer, EndPodError> {
        let (reply, answer) = oneshot::channel();
        let query = Query::EndPod(uid.clone(), request, reply);
        let sent = self.queries.send(query).await;
        sent.map_err(|_| EndPodError::NoAnswer)?;
        Ok(answer)
    }

    /// The pods that run or may come to run, also before every source has delivered. A pod may be there twice.
    pub(crate) async fn pods_to_end(&self) -> Result<Vec<Arc<Pod>>, NoAnswer> {
        self.ask(Query::PodsToEnd).await
    }

    /// Whether any of the pods runs or has something left to clean up; an agent that does not answer has nothing of them.
    pub(crate) async fn is_any_unfinished(&self, uids: Vec<PodUid>) -> bool {
        let answer = self.ask(|reply| Query::AnyUnfinished(uids, reply));
        answer.await.unwrap_or(false)
    }

    /// Removes dead containers that a node short of disk space can do without.
    async fn make_space(&self) -> Result<usize, String> {
        let (reply, answer) = oneshot::channel();
        let ask = async {
            let sent = self.queries.send(Query::MakeSpace(reply)).await;
            sent.map_err(|_| NoAnswer.to_string())?;
            answer.await.map_err(|_| NoAnswer.to_string())?
        };
        let removed = within(self.clock.as_ref(), REMOVAL_LIMIT, ask).await;
        removed.unwrap_or_else(|elapsed| Err(elapsed.to_string()))
    }

    /// Lets the view show events from here.
    #[must_use]
    pub fn with_events(mut self, events: impl Fn() -> Vec<Value> + Send + Sync + 'static) -> Self {
        self.events = Arc::new(events);
        self
    }

    async fn ask<T>(&self, query: impl FnOnce(oneshot::Sender<T>) -> Query) -> Result<T, NoAnswer> {
        let (reply, answer) = oneshot::channel();
        let ask = async {
            self.queries.send(query(reply)).await.map_err(|_| NoAnswer)?;
            answer.await.map_err(|_| NoAnswer)
        };
        within(self.clock.as_ref(), ANSWER_LIMIT, ask)
            .await
            .unwrap_or(Err(NoAnswer))
    }
}

#[async_trait]
impl PodView for AgentHandle {
    async fn pods(&self) -> Result<Vec<Arc<Pod>>, NoAnswer> {
        self.ask(Query::Pods).await
    }

    async fn runtime_pods(&self) -> Result<Vec<Arc<PodObservation>>, RuntimeError> {
        let all = within(self.clock.as_ref(), ANSWER_LIMIT, self.observer.all());
        all.await.unwrap_or_else(|elapsed| {
            let kind = RuntimeErrorKind::DeadlineExceeded;
            Err(RuntimeError::new("list pods", "", kind, &elapsed.to_string()))
        })
    }

    async fn runtime_pod(&self, uid: &PodUid) -> Result<Option<Arc<PodObservation>>, RuntimeError> {
        let look = self.observer.look(uid, self.clock.moment());
        let look = within(self.clock.as_ref(), ANSWER_LIMIT, look).await;
        let observation = look.unwrap_or_else(|elapsed| {
            let kind = RuntimeErrorKind::DeadlineExceeded;
            Err(RuntimeError::new(
                "look at the pod",
                "",
                kind,
                &elapsed.to_string(),
            ))
        })?;
        Ok(Some(observation).filter(|observation| !observation.is_empty()))
    }

    async fn explanations(&self) -> Result<Vec<PodExplanation>, NoAnswer> {
        self.ask(Query::Explanations).await
    }

    async fn node_explanation(&self) -> Result<NodeExplanation, NoAnswer> {
        self.ask(Query::Node).await
    }

    async fn flight_record(&self, uid: &str) -> Result<Option<Value>, NoAnswer> {
        let record = self.ask(|reply| Query::Record(PodUid::from(uid), reply)).await?;
        // A record is made of plain values, all of which have a form in JSON.
        Ok(record.and_then(|record| serde_json::to_value(*record).ok()))
    }

    async fn events(&self) -> Result<Vec<Value>, NoAnswer> {
        Ok((self.events)())
    }

    fn uid_on_node(&self, uid: &str) -> PodUid {
        let mirrors = self.mirrors.borrow();
        mirrors
            .shown_by(uid)
            .cloned()
            .unwrap_or_else(|| PodUid::from(uid))
    }

    fn sync_loop_health(&self) -> Result<(), String> {
        let beat = Moment::from_start(Duration::from_nanos(self.heartbeat.load(Ordering::Relaxed)));
        let since = self.clock.moment().since(beat);
        let limit = MIN_TURN.max(self.sync_frequency * 2);
        if since > limit {
            return Err(format!(
                "sync Loop took longer than expected: {} s",
                since.as_secs()
            ));
        }
        Ok(())
    }
}

#[async_trait]
impl PodsToRun for AgentHandle {
    async fn pods_to_run(&self) -> Result<Option<Vec<Arc<Pod>>>, NoAnswer> {
        self.ask(Query::ActivePods).await
    }
}

#[async_trait]
impl PodEvictor for AgentHandle {
    async fn pods(&self) -> Result<Vec<Arc<Pod>>, NoAnswer> {
        self.pods_to_end().await
    }

    async fn evict(&self, uid: &PodUid, eviction: PodEviction) -> Result<(), EvictionFailure> {
        let request = EndPod {
            grace_seconds: Some(eviction.grace_seconds),
            reason: EndReason::Eviction(Eviction {
                reason: eviction.reason,
                message: eviction.message,
                disruption: eviction.disruption,
            }),
        };
        self.end_pod(uid, request).await.map_err(|error| match error {
            EndPodError::UnknownPod => EvictionFailure::UnknownPod,
            EndPodError::TimedOut => EvictionFailure::TimedOut,
            EndPodError::NoAnswer => EvictionFailure::NoAnswer,
        })
    }

    async fn is_unfinished(&self, uid: &PodUid) -> bool {
        self.is_any_unfinished(vec![uid.clone()]).await
    }

    async fn remove_dead_containers(&self) -> Result<usize, String> {
        self.make_space().await
    }
}
