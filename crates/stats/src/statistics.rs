//! The pages of statistics, made when they are asked for.
//!
//! Owns one answer at a time for each page, which all who ask meanwhile share, and the end of it all: five minutes after the last
//! question everything that is remembered is given back.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use rubelet_ports::{
    Clock, DiskReader, ImageReader, Moment, NoPodUsage, NoSummary, NodeSignals, NodeStatistics, PagePieces,
    PodStorageReader, PodUsage, PodUsageReader, PodsToRun, RuntimeError, RuntimeReader, Spawner,
    StorageQuestion, SummaryExtent, UsageExtent, UsageReader,
};
use rubelet_usage::summary::Summary;
use serde::Serialize as _;

use crate::containers::{ContainerLooks, Look, MachineNames, Pieces, RuntimeMetrics, RuntimePage};
use crate::metrics::StatisticsMetrics;
use crate::places::CgroupPlaces;
use crate::pod_usage::pod_usages;
use crate::resource_page;
use crate::sampler::{NodeSample, PodSource, Sampler, Scope, SystemCgroup};
use crate::single_flight::SingleFlight;
use crate::storage::{Storage, StoragePlaces};
use crate::summary::{NodeFacts, assemble};
use crate::walks::VolumeWalks;

/// A page that was made for another client may be this old.
const FRESH: Duration = Duration::from_secs(1);
/// After this long without a question pages go; what makes the next one cheap stays.
const PAGES_KEPT: Duration = Duration::from_secs(5);
/// Metrics on the node's page are as old as this before they are made anew.
const METRICS_AGE: Duration = Duration::from_mins(1);
/// Without a question for this long nothing is kept.
const IDLE: Duration = Duration::from_mins(5);

/// The edges, each behind its port.
#[derive(Clone)]
pub struct StatisticsPorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub runtime: Arc<dyn RuntimeReader>,
    pub images: Arc<dyn ImageReader>,
    pub usage: Arc<dyn UsageReader>,
    pub signals: Arc<dyn NodeSignals>,
    pub disk: Arc<dyn DiskReader>,
    pub pods: Arc<dyn PodsToRun>,
    pub metrics: StatisticsMetrics,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatisticsSettings {
    pub node_name: String,
    pub places: CgroupPlaces,
    /// The cgroups of the node's own programs.
    pub system_cgroups: Vec<SystemCgroup>,
    pub storage: StoragePlaces,
    pub machine: MachineNames,
    /// `volumeStatsAggPeriod`; zero measures no volumes.
    pub volume_period: Duration,
    /// Memory that was set aside for huge pages.
    pub huge_page_bytes: u64,
    /// Who counts what pods use, for all pages but that of containers.
    pub pods: PodSource,
    /// Who counts what is on the page of containers.
    pub container_page: PodSource,
}

/// Handles are cheap to copy.
#[derive(Clone)]
pub struct Statistics {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) ports: StatisticsPorts,
    pub(crate) facts: NodeFacts,
    pub(crate) sampler: Sampler,
    pub(crate) storage: Storage,
    containers: ContainerLooks,
    container_look: SingleFlight<Arc<Look>>,
    /// The runtime's own metrics, where the page of containers has those.
    runtime_metrics: Option<RuntimeMetrics>,
    runtime_page: SingleFlight<Arc<RuntimePage>>,
    resource_page: SingleFlight<Arc<[u8]>>,
    short: SingleFlight<Result<Arc<[u8]>, NoSummary>>,
    full: SingleFlight<Result<Arc<[u8]>, NoSummary>>,
    usage: SingleFlight<Result<Arc<[PodUsage]>, NoPodUsage>>,
    usage_with_storage: SingleFlight<Result<Arc<[PodUsage]>, NoPodUsage>>,
    // A std mutex: it is held to look at a time.
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    last: Moment,
    /// Whether a task waits for the end of questions.
    is_watched: bool,
    /// When the metrics on the node's page were last made.
    metrics_begun: Option<Moment>,
}

/// The cgroups on the page of containers that belong to no pod.
fn node_cgroups(places: &CgroupPlaces, system: &[SystemCgroup]) -> Vec<Arc<str>> {
    let system = system
        .iter()
        .filter_map(|system| Some(Arc::from(system.path.as_deref()?)));
    let all: BTreeSet<Arc<str>> = places.tiers().into_iter().chain(system).collect();
    all.into_iter().filter(|path| &**path != "/").collect()
}

impl Statistics {
    #[must_use]
    pub fn new(settings: StatisticsSettings, ports: StatisticsPorts) -> Self {
        let containers = ContainerLooks {
            clock: ports.clock.clone(),
            runtime: ports.runtime.clone(),
            images: ports.images.clone(),
            usage: ports.usage.clone(),
            disk: ports.disk.clone(),
            node_cgroups: node_cgroups(&settings.places, &settings.system_cgroups),
            shows_own_cgroup: settings.system_cgroups.iter().any(|system| system.path.is_none()),
            places: settings.places.clone(),
            names: Arc::new(settings.machine),
            known: Mutex::default(),
        };
        let sampler = Sampler::new(
            ports.clock.clone(),
            ports.runtime.clone(),
            ports.usage.clone(),
            (settings.places, settings.system_cgroups),
            settings.pods,
        );
        let runtime_metrics = (settings.container_page == PodSource::Runtime).then(|| {
            ports.metrics.show_runtime_as_provider();
            RuntimeMetrics::new(ports.clock.clone(), ports.runtime.clone())
        });
        let walks = (!settings.volume_period.is_zero()).then(|| {
            Arc::new(VolumeWalks::new(
                (ports.clock.clone(), ports.spawner.clone()),
                ports.pods.clone(),
                ports.disk.clone(),
                settings.storage.root_dir.join("pods"),
                (settings.volume_period, ports.metrics.clone()),
            ))
        });
        let storage = Storage {
            clock: ports.clock.clone(),
            images: ports.images.clone(),
            signals: ports.signals.clone(),
            disk: ports.disk.clone(),
            places: settings.storage,
            walks,
            image_filesystem: SingleFlight::default(),
        };
        Self {
            shared: Arc::new(Shared {
                ports,
                facts: NodeFacts {
                    name: settings.node_name,
                    huge_page_bytes: settings.huge_page_bytes,
                },
                sampler,
                storage,
                containers,
                container_look: SingleFlight::default(),
                runtime_metrics,
                runtime_page: SingleFlight::default(),
                resource_page: SingleFlight::default(),
                short: SingleFlight::default(),
                full: SingleFlight::default(),
                usage: SingleFlight::default(),
                usage_with_storage: SingleFlight::default(),
                asked: Mutex::default(),
            }),
        }
    }

    fn asked(&self) {
        let shared = &self.shared;
        {
            let mut asked = shared.asked();
            asked.last = shared.ports.clock.moment();
            if std::mem::replace(&mut asked.is_watched, true) {
                return;
            }
        }
        let watch = Arc::clone(shared).forget_when_idle();
        shared.ports.spawner.spawn("end of statistics", watch.boxed());
    }
}

#[async_trait]
impl NodeStatistics for Statistics {
    async fn resource_page(&self) -> Arc<[u8]> {
        self.asked();
        let shared = Arc::clone(&self.shared);
        let start = move || async move { shared.render_resource_page().await }.boxed();
        let clock = &self.shared.ports.clock;
        self.shared.resource_page.get(clock, FRESH, start).await
    }

    fn renew_metrics(&self) {
        self.asked();
        let shared = &self.shared;
        {
            let mut asked = shared.asked();
            let now = shared.ports.clock.moment();
            if asked
                .metrics_begun
                .is_some_and(|begun| now.since(begun) < METRICS_AGE)
            {
                return;
            }
            asked.metrics_begun = Some(now);
        }
        let renewal = Arc::clone(shared).show_metrics();
        shared.ports.spawner.spawn("metrics of disks", renewal.boxed());
    }

    async fn container_page(&self) -> PagePieces {
        self.asked();
        let (clock, shared) = (&self.shared.ports.clock, Arc::clone(&self.shared));
        let start = move || async move { shared.look_at_containers().await }.boxed();
        let look = self.shared.container_look.get(clock, FRESH, start).await;
        if self.shared.runtime_metrics.is_none() {
            return Box::new(Pieces::new(look));
        }
        let shared = Arc::clone(&self.shared);
        let start = move || async move { shared.look_at_runtime_metrics().await }.boxed();
        let page = self.shared.runtime_page.get(clock, FRESH, start).await;
        Box::new(page.pieces().chain(Pieces::new(look)))
    }

    async fn summary(&self, extent: SummaryExtent) -> Result<Arc<[u8]>, NoSummary> {
        self.asked();
        let (flight, scope) = match extent {
            SummaryExtent::CpuAndMemory => (&self.shared.short, Scope::Short),
            SummaryExtent::Everything => (&self.shared.full, Scope::Full),
        };
        let shared = Arc::clone(&self.shared);
        let start = move || async move { shared.encode_summary(scope).await }.boxed();
        flight.get(&self.shared.ports.clock, FRESH, start).await
    }
}

#[async_trait]
impl PodUsageReader for Statistics {
    async fn usage_of_pods(&self, extent: UsageExtent) -> Result<Vec<PodUsage>, NoPodUsage> {
        self.asked();
        let (flight, scope) = match extent {
            UsageExtent::MemoryAndProcesses => (&self.shared.usage, Scope::Usage),
            UsageExtent::Everything => (&self.shared.usage_with_storage, Scope::Full),
        };
        let shared = Arc::clone(&self.shared);
        let start = move || async move { shared.pod_usages(scope).await }.boxed();
        let pods = flight.get(&self.shared.ports.clock, FRESH, start).await?;
        Ok(pods.to_vec())
    }
}

#[async_trait]
impl PodStorageReader for Statistics {
    async fn storage_of(&self, question: StorageQuestion) -> Result<Vec<PodUsage>, NoPodUsage> {
        self.asked();
        self.shared.storage_of(&question).await
    }
}

impl Shared {
    async fn summary(&self, scope: Scope) -> Result<(NodeSample, Summary), RuntimeError> {
        let sample = self.sampler.sample(scope).await?;
        let mut summary = assemble(&sample, scope, &self.facts);
        if scope == Scope::Full {
            self.storage.add_to(&mut summary, &sample).await;
        }
        Ok((sample, summary))
    }

    async fn pod_usages(&self, scope: Scope) -> Result<Arc<[PodUsage]>, NoPodUsage> {
        let looked = self.summary(scope).await;
        let (sample, summary) = looked.map_err(|error| NoPodUsage(error.to_string()))?;
        Ok(pod_usages(&sample, summary, self.ports.clock.now()).into())
    }

    async fn render_resource_page(&self) -> Arc<[u8]> {
        let summary = self.summary(Scope::Resource).await;
        if let Err(error) = &summary {
            tracing::warn!(%error, "There are no statistics of pods");
        }
        let summary = summary.ok().map(|(_, summary)| summary);
        resource_page::render(summary.as_ref()).into_bytes().into()
    }

    async fn look_at_containers(&self) -> Arc<Look> {
        Arc::new(match self.runtime_metrics {
            Some(_) => self.containers.look_at_machine().await,
            None => self.containers.look().await,
        })
    }

    async fn look_at_runtime_metrics(&self) -> Arc<RuntimePage> {
        Arc::new(match &self.runtime_metrics {
            Some(metrics) => metrics.look().await,
            None => RuntimePage::default(),
        })
    }

    async fn encode_summary(&self, scope: Scope) -> Result<Arc<[u8]>, NoSummary> {
        let (_, summary) = self.summary(scope).await.map_err(|error| {
            tracing::warn!(%error, "There are no statistics of pods");
            NoSummary(error.to_string())
        })?;
        let mut json = Vec::new();
        // As upstream's library spells it.
        let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
        let mut encoder = serde_json::Serializer::with_formatter(&mut json, format);
        // Writing plain figures into memory cannot fail.
        summary.serialize(&mut encoder).unwrap_or_default();
        Ok(json.into())
    }

    async fn show_metrics(self: Arc<Self>) {
        let pods = self.sampler.running().await.unwrap_or_default();
        let logs = self.storage.logs(&pods).await;
        let claimed = match &self.storage.walks {
            Some(walks) => walks.claimed().await,
            None => Vec::new(),
        };
        self.ports.metrics.show(&claimed, &logs);
    }

    async fn forget_when_idle(self: Arc<Self>) {
        loop {
            self.ports.clock.sleep(PAGES_KEPT).await;
            let last = self.asked().last;
            let idle = self.ports.clock.moment().since(last);
            if idle >= PAGES_KEPT {
                self.forget_pages();
            }
            if idle >= IDLE {
                self.sampler.forget();
                self.containers.forget();
                self.storage.image_filesystem.forget();
                let mut asked = self.asked();
                if asked.last == last {
                    // What is shown next must not be old.
                    self.ports.metrics.show(&[], &[]);
                    asked.metrics_begun = None;
                    asked.is_watched = false;
                    return;
                }
            }
        }
    }

    /// They are large, and only good for clients that ask at the same time.
    fn forget_pages(&self) {
        self.container_look.forget();
        self.runtime_page.forget();
        self.resource_page.forget();
        self.short.forget();
        self.full.forget();
        self.usage.forget();
        self.usage_with_storage.forget();
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
