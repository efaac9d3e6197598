//! What follows when a threshold is due.
//!
//! Owns the order of the steps: the event of the node, what the node can do without, a fresh look, the ranking, the end of one pod, and
//! a fresh look again. A victim is waited for; while it still runs no other pod is evicted.
//!
//! ```text
//! due ─► event ─► reclaim ─► look ─► relieved: done
//!                              └───► still due ─► usage ─► rank ─► evict one ─► until it is gone, at most 30 s ─► look ─┐
//!          ▲                                                                                                          │
//!          └──────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_model::pod::PodName;
use rubelet_ports::{
    Clock, EventRecorder, EventType, EvictionFailure, Moment, NodeEvent, NodeEventRecorder, PodEvent,
    PodEviction, PodEvictor, PodStorageReader, PodUsageReader, Spawner, UnusedImages, UsageExtent, within,
};
use rubelet_resources::Rules;
use rubelet_resources::eviction::{
    EVICTED_REASON, LocalStorageRules, Measure, NodeReclaim, THRESHOLD_REASON, eviction_text, grace_seconds,
    node_reclaim, nothing_left,
};
use rubelet_resources::pressure::pace::LONGEST;
use rubelet_resources::pressure::{Crossing, Signal};

use crate::local_storage::LocalStorageHandle;
use crate::metrics::EvictionMetrics;
use crate::pressure::{PressureHandle, Round};
use crate::victims::{KnownPod, add_usage, choose, fresh_usage, holders, known_pods};

/// As upstream: a victim that is not cleaned up by then is waited for no longer.
const CLEANUP_LIMIT: Duration = Duration::from_secs(30);
const CLEANUP_INTERVAL: Duration = Duration::from_millis(100);
/// While a victim runs on, no other pod is evicted for this long: the end of another would not help where nothing can be stopped.
const STUCK_LIMIT: Duration = Duration::from_mins(2);
/// What removing images or containers may take.
const RECLAIM_LIMIT: Duration = Duration::from_mins(2);

/// The edges, each behind its port.
#[derive(Clone)]
pub struct EvictionPorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub pods: Arc<dyn PodEvictor>,
    pub usage: Arc<dyn PodUsageReader>,
    pub storage: Arc<dyn PodStorageReader>,
    pub images: Arc<dyn UnusedImages>,
    pub events: Arc<dyn EventRecorder>,
    pub node_events: Arc<dyn NodeEventRecorder>,
    pub metrics: EvictionMetrics,
}

#[derive(Clone, Debug)]
pub struct EvictionSettings {
    pub rules: Rules,
    /// `evictionMaxPodGracePeriod`
    pub most_grace_seconds: i64,
    /// `localStorageCapacityIsolation`: pods are held to their limits of local storage.
    pub local_storage: Option<LocalStorageRules>,
}

/// A pod that was evicted and has not ended in its time.
struct StuckVictim {
    uid: PodUid,
    since: Moment,
}

/// What a threshold that is due has led to.
enum Outcome {
    /// Something was done: the signals are read again at once.
    Acted,
    /// Nothing is due, or nothing can be done about it now.
    Waits,
}

pub(crate) struct Evictor {
    ports: EvictionPorts,
    settings: EvictionSettings,
    pressure: PressureHandle,
    local_storage: Option<LocalStorageHandle>,
    stuck: Vec<StuckVictim>,
    /// When the last victim ended: older figures of pods show it still.
    last_end: Timestamp,
    /// What led to nothing is not tried again before.
    retry_at: Moment,
}

impl Evictor {
    pub(crate) fn new(
        ports: EvictionPorts,
        settings: EvictionSettings,
        pressure: PressureHandle,
        local_storage: Option<LocalStorageHandle>,
    ) -> Self {
        Self {
            ports,
            settings,
            pressure,
            local_storage,
            stuck: Vec::new(),
            last_end: Timestamp::EPOCH,
            retry_at: Moment::default(),
        }
    }

    /// Evicts pods while thresholds are due, until the rounds end.
    pub(crate) async fn run(mut self) {
        let mut rounds = self.pressure.rounds();
        while rounds.changed().await.is_ok() {
            let mut round = rounds.borrow_and_update().clone();
            while let Some(current) = round {
                round = match self.act(&current).await {
                    Outcome::Acted => self.pressure.look().await,
                    Outcome::Waits => None,
                };
            }
            // What was published meanwhile was acted on.
            rounds.borrow_and_update();
        }
    }

    async fn act(&mut self, round: &Round) -> Outcome {
        let Some(first) = round.findings.due.first() else {
            return Outcome::Waits;
        };
        let now = self.ports.clock.moment();
        if now < self.retry_at && round.findings.crossed.is_empty() {
            return Outcome::Waits;
        }
        self.retry_at = now.plus(LONGEST);
        if self.is_victim_running().await {
            return Outcome::Waits;
        }
        let signal = first.key.signal;
        tracing::warn!(crossing = %first, "Attempting to reclaim {}", signal.resource());
        self.record_node(format!("Attempting to reclaim {}", signal.resource()));
        if self.has_evicted_for_limits(signal, round).await {
            self.retry_at = Moment::default();
            return Outcome::Acted;
        }
        let steps = node_reclaim(signal, round.layout());
        for step in steps {
            self.reclaim(*step).await;
        }
        let Some(fresh) = self.pressure.look().await else {
            return Outcome::Waits;
        };
        let due = &fresh.findings.due;
        let Some(crossing) = due.iter().find(|one| one.key == first.key) else {
            if !due.is_empty() {
                // Another one is short, which has its own steps first.
                self.retry_at = Moment::default();
                return Outcome::Acted;
            }
            tracing::info!(%signal, "Enough is left again without an eviction");
            return Outcome::Waits;
        };
        if !steps.is_empty() && !fresh.is_any_crossed {
            tracing::info!(%signal, "Enough is left again without an eviction");
            return Outcome::Waits;
        }
        self.evict_one(crossing, &fresh).await
    }

    /// Where disks are short, pods beyond their own limits go before all others, as upstream.
    async fn has_evicted_for_limits(&self, signal: Signal, round: &Round) -> bool {
        match (&self.local_storage, Measure::of(signal, round.layout())) {
            (Some(local_storage), Measure::Disk { .. }) => local_storage.check().await > 0,
            (Some(_), Measure::Memory | Measure::Processes) | (None, _) => false,
        }
    }

    /// A victim that has not ended in its time and still uses something.
    async fn is_victim_running(&mut self) -> bool {
        let mut unfinished = Vec::new();
        for victim in std::mem::take(&mut self.stuck) {
            if self.ports.pods.is_unfinished(&victim.uid).await {
                unfinished.push(victim);
            }
        }
        self.stuck = unfinished;
        let now = self.ports.clock.moment();
        let is_waited_for = |victim: &StuckVictim| now.since(victim.since) < STUCK_LIMIT;
        if !self.stuck.iter().any(is_waited_for) {
            return false;
        }
        let clock = self.ports.clock.as_ref();
        let extent = UsageExtent::MemoryAndProcesses;
        let usage = fresh_usage(self.ports.usage.as_ref(), clock, extent, self.last_end).await;
        let running: BTreeSet<PodUid> = usage.into_iter().flatten().map(|pod| pod.uid).collect();
        let mut waited_for = self.stuck.iter().filter(|victim| is_waited_for(victim));
        let Some(victim) = waited_for.find(|victim| running.contains(&victim.uid)) else {
            return false;
        };
        tracing::warn!(pod = %victim.uid, "The evicted pod still runs; no other pod is evicted meanwhile");
        true
    }

    async fn reclaim(&self, step: NodeReclaim) {
        let work = async {
            match step {
                NodeReclaim::DeadContainers => {
                    let removed = self.ports.pods.remove_dead_containers().await?;
                    tracing::info!(removed, "Removed dead containers and sandboxes");
                }
                NodeReclaim::UnusedImages => {
                    let freed = self.ports.images.remove_unused().await?;
                    tracing::info!(
                        images = freed.images,
                        bytes = freed.bytes,
                        "Removed unused images"
                    );
                }
            }
            Ok::<(), String>(())
        };
        let done = within(self.ports.clock.as_ref(), RECLAIM_LIMIT, work).await;
        if let Err(error) = done.unwrap_or_else(|elapsed| Err(elapsed.to_string())) {
            tracing::warn!(
                ?step,
                error,
                "Not everything could be removed that the node can do without"
            );
        }
    }

    async fn evict_one(&mut self, crossing: &Crossing, round: &Round) -> Outcome {
        let measure = Measure::of(crossing.key.signal, round.layout());
        let Some(pods) = self.pods_with_usage(measure).await else {
            return Outcome::Waits;
        };
        let left_out = self.stuck.iter().map(|victim| victim.uid.clone()).collect();
        let Some(victim) = choose(&pods, &left_out, measure, &self.settings.rules) else {
            let text = nothing_left(crossing, holders(&pods, measure));
            tracing::warn!("{text}");
            self.record_node(text);
            return Outcome::Waits;
        };
        let now = self.ports.clock.now();
        for due in &round.findings.due {
            let age = now.since(round.read_at);
            self.ports.metrics.show_age(due.key.signal.name(), age);
        }
        if !self.evict(victim, crossing).await {
            return Outcome::Waits;
        }
        self.retry_at = Moment::default();
        Outcome::Acted
    }

    async fn pods_with_usage(&self, measure: Measure) -> Option<Vec<KnownPod>> {
        let extent = match measure {
            Measure::Memory | Measure::Processes => UsageExtent::MemoryAndProcesses,
            Measure::Disk { .. } => UsageExtent::Everything,
        };
        let (reader, clock) = (self.ports.usage.as_ref(), self.ports.clock.as_ref());
        let usage = fresh_usage(reader, clock, extent, self.last_end).await;
        let usage = usage
            .inspect_err(|error| tracing::warn!(%error, "No pod is evicted: what pods use is not known"))
            .ok()?;
        let pods = self.ports.pods.pods().await;
        let pods = pods
            .inspect_err(
                |error| tracing::warn!(%error, "No pod is evicted: the agent does not say which there are"),
            )
            .ok()?;
        let mut pods = known_pods(pods);
        add_usage(&mut pods, usage);
        Some(pods)
    }

    /// Whether the pod ends, or has ended.
    async fn evict(&mut self, victim: &KnownPod, crossing: &Crossing) -> bool {
        let signal = crossing.key.signal;
        let text = eviction_text(crossing, &victim.candidate(), &self.settings.rules);
        let spec = victim.pod.spec.as_ref();
        let own_seconds = spec.and_then(|spec| spec.termination_grace_period_seconds);
        let eviction = PodEviction {
            reason: EVICTED_REASON.to_owned(),
            message: text.message.clone(),
            disruption: Some(text.message.clone()),
            grace_seconds: grace_seconds(crossing.is_hard, self.settings.most_grace_seconds, own_seconds),
        };
        let event = PodEvent::warning(EVICTED_REASON, text.message).annotated(text.annotations);
        let pod = PodName::of(&victim.pod);
        tracing::warn!(%pod, uid = %victim.uid, %crossing, grace_s = eviction.grace_seconds, "Evicting a pod");
        self.ports.events.record(&victim.pod, event);
        let began = self.ports.clock.moment();
        let ended = self.ports.pods.evict(&victim.uid, eviction).await;
        match ended {
            Ok(()) => self.ports.metrics.evicted(signal.name()),
            // As upstream, a pod that takes longer to end is evicted all the same.
            Err(error @ EvictionFailure::TimedOut) => {
                self.ports.metrics.evicted(signal.name());
                tracing::warn!(%pod, %error, "The evicted pod has not ended in time");
            }
            Err(error @ (EvictionFailure::UnknownPod | EvictionFailure::NoAnswer)) => {
                tracing::warn!(%pod, %error, "The pod was not evicted");
                return false;
            }
        }
        if !self.is_cleaned_up(&victim.uid).await {
            tracing::warn!(%pod, "The evicted pod is not cleaned up in time");
            self.stuck.push(StuckVictim {
                uid: victim.uid.clone(),
                since: began,
            });
        }
        self.last_end = self.ports.clock.now();
        true
    }

    async fn is_cleaned_up(&self, uid: &PodUid) -> bool {
        let cleaned_up = async {
            while self.ports.pods.is_unfinished(uid).await {
                self.ports.clock.sleep(CLEANUP_INTERVAL).await;
            }
        };
        within(self.ports.clock.as_ref(), CLEANUP_LIMIT, cleaned_up)
            .await
            .is_ok()
    }

    fn record_node(&self, message: String) {
        self.ports.node_events.record_node(NodeEvent {
            event_type: EventType::Warning,
            reason: THRESHOLD_REASON.into(),
            message,
            // As upstream: it names the node only.
            node_uid: None,
        });
    }
}
