//! Pods that exceed a limit of local storage: an emptyDir, a container or the pod as a whole.
//!
//! Owns when each pod with a limit is measured, on its own and more often while it writes fast. Such a pod is evicted whatever the
//! node has left; several may go at once, as for upstream. Whether a limit is exceeded decides
//! `rubelet_resources::eviction::LocalStorageRules`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rubelet_model::observation::PodUid;
use rubelet_model::pod::PodName;
use rubelet_ports::{EvictionFailure, Moment, NoPodUsage, PodEvent, PodEviction, StorageQuestion, within};
use rubelet_resources::eviction::{
    EVICTED_REASON, Exceeded, IMMEDIATE_GRACE_SECONDS, LocalStorageRules, PodFigures, StorageWatch,
};
use tokio::sync::{mpsc, oneshot};

use crate::evictor::EvictionPorts;
use crate::pressure::PressureHandle;
use crate::victims::{KnownPod, figures_of, known_pods};

/// What measuring the pods of one round may take; what takes longer is tried again.
const MEASURE_LIMIT: Duration = Duration::from_mins(6);
const ASK_BUFFER: usize = 2;

type Ask = oneshot::Sender<usize>;

/// Asks for a check now.
#[derive(Clone, Debug)]
pub(crate) struct LocalStorageHandle(mpsc::Sender<Ask>);

impl LocalStorageHandle {
    /// Measures all pods with limits. The answer is how many were evicted.
    pub(crate) async fn check(&self) -> usize {
        let (reply, answer) = oneshot::channel();
        match self.0.send(reply).await {
            Ok(()) => answer.await.unwrap_or(0),
            Err(_) => 0,
        }
    }
}

pub(crate) struct LocalStorage {
    ports: EvictionPorts,
    rules: LocalStorageRules,
    pressure: PressureHandle,
    /// Pods with a limit.
    watched: BTreeMap<PodUid, Watched>,
    asked: mpsc::Receiver<Ask>,
}

#[derive(Clone, Copy, Default)]
struct Watched {
    watch: StorageWatch,
    next_at: Moment,
    /// It was evicted and has not ended yet.
    is_ending: bool,
}

impl LocalStorage {
    pub(crate) fn new(
        ports: EvictionPorts,
        rules: LocalStorageRules,
        pressure: PressureHandle,
    ) -> (Self, LocalStorageHandle) {
        let (asks, asked) = mpsc::channel(ASK_BUFFER);
        let local_storage = Self {
            ports,
            rules,
            pressure,
            watched: BTreeMap::new(),
            asked,
        };
        (local_storage, LocalStorageHandle(asks))
    }

    pub(crate) async fn run(mut self) {
        let clock = Arc::clone(&self.ports.clock);
        let mut pause = clock.sleep(Duration::ZERO);
        loop {
            // Both arms are cancel-safe: the channel keeps what was not taken, the timer is kept.
            tokio::select! {
                biased;
                Some(ask) = self.asked.recv() => {
                    self.watched.values_mut().for_each(|watched| watched.next_at = Moment::default());
                    // The caller may have stopped waiting.
                    let _ = ask.send(self.check().await);
                }
                () = pause.as_mut() => {
                    self.check().await;
                }
            }
            pause = clock.sleep(self.until_next());
        }
    }

    /// New pods are found every few seconds; one that writes fast is measured sooner.
    fn until_next(&self) -> Duration {
        let now = self.ports.clock.moment();
        let watched = self.watched.values().filter(|watched| !watched.is_ending);
        let next = watched.map(|watched| watched.next_at.since(now)).min();
        let next = next.unwrap_or(StorageWatch::LONGEST);
        next.clamp(StorageWatch::SHORTEST, StorageWatch::LONGEST)
    }

    /// Measures the pods whose time has come and evicts those that exceed a limit.
    async fn check(&mut self) -> usize {
        let Ok(pods) = self.ports.pods.pods().await else {
            return 0;
        };
        let due = self.take_due(known_pods(pods)).await;
        if due.is_empty() {
            return 0;
        }
        let Some(layout) = self.pressure.layout().await else {
            return 0;
        };
        let began = self.ports.clock.moment();
        let measured = match self.measure(&due).await {
            Ok(measured) => measured,
            Err(error) => {
                tracing::warn!(%error, "The local storage of pods cannot be measured");
                return 0;
            }
        };
        let now = self.ports.clock.moment();
        let took = now.since(began) / u32::try_from(due.len()).unwrap_or(u32::MAX);
        let mut victims = Vec::new();
        for known in due {
            // Nothing of it runs now.
            let Some(figures) = measured.get(&known.uid) else {
                continue;
            };
            let exceeded = self.rules.exceeded(&known.pod, &known.demand, figures, layout);
            self.note(&known, figures, exceeded.is_some(), (now, took));
            victims.extend(exceeded.map(|exceeded| (known, exceeded)));
        }
        let evictions = victims
            .iter()
            .map(|(known, exceeded)| self.evict(known, exceeded));
        let ended = join_all(evictions).await;
        ended.into_iter().filter(|has_ended| *has_ended).count()
    }

    /// The pods with limits that are due; the others are forgotten or wait.
    async fn take_due(&mut self, pods: Vec<KnownPod>) -> Vec<KnownPod> {
        let now = self.ports.clock.moment();
        let mut before = std::mem::take(&mut self.watched);
        let mut due = Vec::new();
        for known in pods {
            if known.is_critical() || !self.rules.has_limit(&known.pod, &known.demand) {
                continue;
            }
            let mut watched = before.remove(&known.uid).unwrap_or_default();
            watched.is_ending = watched.is_ending && self.ports.pods.is_unfinished(&known.uid).await;
            self.watched.insert(known.uid.clone(), watched);
            if !watched.is_ending && watched.next_at <= now {
                due.push(known);
            }
        }
        due
    }

    async fn measure(&self, due: &[KnownPod]) -> Result<BTreeMap<PodUid, PodFigures>, NoPodUsage> {
        let question = StorageQuestion {
            pods: due.iter().map(|known| Arc::clone(&known.pod)).collect(),
            with_writable_layers: due.iter().any(|known| self.rules.limits_layers(&known.demand)),
        };
        let measured = self.ports.storage.storage_of(question);
        let measured = within(self.ports.clock.as_ref(), MEASURE_LIMIT, measured).await;
        let measured = measured.unwrap_or_else(|elapsed| Err(NoPodUsage(elapsed.to_string())))?;
        let figures = measured
            .into_iter()
            .map(|usage| (usage.uid.clone(), figures_of(usage)));
        Ok(figures.collect())
    }

    fn note(
        &mut self,
        known: &KnownPod,
        figures: &PodFigures,
        is_ending: bool,
        (now, took): (Moment, Duration),
    ) {
        let Some(watched) = self.watched.get_mut(&known.uid) else {
            return;
        };
        let share = self.rules.share(&known.pod, &known.demand, figures);
        let (watch, pause) = watched.watch.next(share, now.since(Moment::default()), took);
        *watched = Watched {
            watch,
            next_at: now.plus(pause),
            is_ending,
        };
    }

    /// Whether the pod ends, or has ended.
    async fn evict(&self, known: &KnownPod, exceeded: &Exceeded) -> bool {
        let message = exceeded.to_string();
        let pod = PodName::of(&known.pod);
        tracing::warn!(%pod, uid = %known.uid, %exceeded, "Evicting a pod");
        let event = PodEvent::warning(EVICTED_REASON, message.clone());
        self.ports.events.record(&known.pod, event);
        let eviction = PodEviction {
            reason: EVICTED_REASON.to_owned(),
            message,
            // As upstream: the pod itself exceeds its limit.
            disruption: None,
            grace_seconds: IMMEDIATE_GRACE_SECONDS,
        };
        let ended = self.ports.pods.evict(&known.uid, eviction).await;
        if let Err(error) = ended {
            tracing::warn!(%pod, %error, "The evicted pod is not known to have ended");
        }
        let is_evicted = matches!(ended, Ok(()) | Err(EvictionFailure::TimedOut));
        if is_evicted {
            self.ports.metrics.evicted(exceeded.signal());
        }
        is_evicted
    }
}
