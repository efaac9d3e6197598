//! Figures of volumes, taken in the background.
//!
//! Owns the rounds: while volumes are asked for, each is walked through once in a period, one at a time; pages show the last result with
//! its time. Three periods after the last question the rounds end and the results go.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::pod::uid_of;
use rubelet_ports::{Clock, DiskReader, Moment, PodsToRun, SignalError, Spawner, within};
use rubelet_usage::summary::{ClaimReference, FsStats, ShownTime};
use tokio::sync::watch;

use crate::metrics::{ClaimedVolume, MetricSource, StatisticsMetrics};
use crate::volumes::{MeasuredVolume, measured_volumes};

/// The first question waits so long for the first round.
const FIRST_ROUND: Duration = Duration::from_secs(2);
const PERIODS: u32 = 3;

/// A volume's last figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WalkedVolume {
    pub(crate) name: String,
    pub(crate) is_ephemeral: bool,
    pub(crate) claim: Option<ClaimReference>,
    pub(crate) fs: FsStats,
}

/// By the pod's UID.
pub(crate) type WalkedVolumes = BTreeMap<String, Vec<WalkedVolume>>;

pub(crate) struct VolumeWalks {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) spawner: Arc<dyn Spawner>,
    pub(crate) pods: Arc<dyn PodsToRun>,
    pub(crate) disk: Arc<dyn DiskReader>,
    pub(crate) pods_dir: PathBuf,
    pub(crate) period: Duration,
    metrics: StatisticsMetrics,
    // A std mutex: it is held to look at results, never while a volume is walked through.
    state: Mutex<State>,
    /// How many rounds there were.
    rounds: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    results: WalkedVolumes,
    asked_at: Moment,
    is_running: bool,
}

fn claimed(volume: WalkedVolume) -> Option<ClaimedVolume> {
    let claim = volume.claim?;
    Some(ClaimedVolume {
        namespace: claim.namespace,
        claim: claim.name,
        fs: volume.fs,
    })
}

/// However the rounds end, the next question starts them anew.
struct Rounds(Arc<VolumeWalks>);

impl Drop for Rounds {
    fn drop(&mut self) {
        *self.0.state() = State::default();
        self.0.rounds.send_replace(0);
    }
}

impl VolumeWalks {
    pub(crate) fn new(
        (clock, spawner): (Arc<dyn Clock>, Arc<dyn Spawner>),
        pods: Arc<dyn PodsToRun>,
        disk: Arc<dyn DiskReader>,
        pods_dir: PathBuf,
        (period, metrics): (Duration, StatisticsMetrics),
    ) -> Self {
        Self {
            clock,
            spawner,
            pods,
            disk,
            pods_dir,
            period,
            metrics,
            state: Mutex::default(),
            rounds: watch::Sender::new(0),
        }
    }

    /// The last results. The first question starts the rounds.
    pub(crate) async fn results(self: &Arc<Self>) -> WalkedVolumes {
        let mut rounds = self.rounds.subscribe();
        let is_first = {
            let mut state = self.state();
            state.asked_at = self.clock.moment();
            !std::mem::replace(&mut state.is_running, true)
        };
        if is_first {
            let rounds = Arc::clone(self).run();
            self.spawner.spawn("walks through volumes", Box::pin(rounds));
        }
        // A round that takes longer shows on a later page.
        let _ = within(
            self.clock.as_ref(),
            FIRST_ROUND,
            rounds.wait_for(|rounds| *rounds > 0),
        )
        .await;
        self.state().results.clone()
    }

    /// Walks through the volumes of these pods now.
    pub(crate) async fn measure(&self, pods: &[Arc<Pod>]) -> WalkedVolumes {
        let known = self.state().results.clone();
        let mut results = WalkedVolumes::new();
        for pod in pods {
            let uid = uid_of(pod);
            let before = known.get(uid.as_str()).map(Vec::as_slice).unwrap_or_default();
            let mut found = Vec::new();
            for volume in measured_volumes(pod, &self.pods_dir) {
                let before = before.iter().find(|before| before.name == volume.name);
                found.extend(self.volume(&volume, before).await);
            }
            results.insert(uid.as_str().to_owned(), found);
        }
        results
    }

    /// The last results for the page of metrics, which asks only where a pod has a volume of a claim.
    pub(crate) async fn claimed(self: &Arc<Self>) -> Vec<ClaimedVolume> {
        let Ok(Some(pods)) = self.pods.pods_to_run().await else {
            return Vec::new();
        };
        let mut volumes = pods.iter().flat_map(|pod| measured_volumes(pod, &self.pods_dir));
        if !volumes.any(|volume| volume.claim.is_some()) {
            return Vec::new();
        }
        let results = self.results().await;
        results.into_values().flatten().filter_map(claimed).collect()
    }

    async fn run(self: Arc<Self>) {
        let rounds = Rounds(self);
        let walks = &rounds.0;
        loop {
            walks.round().await;
            walks.rounds.send_modify(|rounds| *rounds += 1);
            walks.clock.sleep(walks.period).await;
            let asked_at = walks.state().asked_at;
            if walks.clock.moment().since(asked_at) >= walks.period.saturating_mul(PERIODS) {
                return;
            }
        }
    }

    async fn round(&self) {
        let Ok(Some(pods)) = self.pods.pods_to_run().await else {
            return;
        };
        let uids: BTreeSet<String> = pods.iter().map(|pod| uid_of(pod).as_str().to_owned()).collect();
        self.state().results.retain(|uid, _| uids.contains(uid));
        for pod in pods {
            let uid = uid_of(&pod);
            let before = self
                .state()
                .results
                .get(uid.as_str())
                .cloned()
                .unwrap_or_default();
            let mut found = Vec::new();
            for volume in measured_volumes(&pod, &self.pods_dir) {
                let before = before.iter().find(|before| before.name == volume.name);
                found.extend(self.volume(&volume, before).await);
            }
            // At once: a later volume may take long.
            let results = &mut self.state().results;
            if found.is_empty() {
                results.remove(uid.as_str());
            } else {
                results.insert(uid.as_str().to_owned(), found);
            }
        }
    }

    async fn volume(&self, volume: &MeasuredVolume, before: Option<&WalkedVolume>) -> Option<WalkedVolume> {
        if let Some(before) = before.filter(|_| volume.is_written_once) {
            return Some(before.clone());
        }
        match self.figures(volume).await {
            Ok(fs) => Some(WalkedVolume {
                name: volume.name.clone(),
                is_ephemeral: volume.is_ephemeral,
                claim: volume.claim.clone(),
                fs,
            }),
            Err(error) => {
                // A pod that starts has no volumes yet, and one that ends has none any more.
                tracing::debug!(%error, "A volume cannot be measured");
                before.cloned()
            }
        }
    }

    async fn figures(&self, volume: &MeasuredVolume) -> Result<FsStats, SignalError> {
        // A dead mount fails here after seconds; a walk through it would hold up those of other volumes for minutes.
        let filesystem = self.disk.filesystem(&volume.path).await?;
        let began = self.clock.moment();
        let used = self.disk.walk(&volume.path).await?;
        let took = self.clock.moment().since(began);
        self.metrics.measured(MetricSource::Walk, took);
        Ok(FsStats {
            time: ShownTime(self.clock.now()),
            available_bytes: Some(filesystem.available_bytes),
            capacity_bytes: Some(filesystem.capacity_bytes),
            used_bytes: Some(used.bytes),
            inodes_free: Some(filesystem.inodes_free),
            inodes: Some(filesystem.inodes),
            inodes_used: Some(used.inodes),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
