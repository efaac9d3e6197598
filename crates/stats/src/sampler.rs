//! One look at the node: what runs, and what it uses.
//!
//! Owns what is remembered between two looks: where each cgroup was found, the last reading of each counter for rates, and the runtime's last
//! list for the time when it does not answer. It must not decide what a page shows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{OptionFuture, join, join3, try_join};
use rubelet_model::Timestamp;
use rubelet_ports::{
    Clock, Moment, RuntimeError, RuntimeErrorKind, RuntimeReader, UsageQuestion, UsageReader, UsageReading,
    within,
};
use rubelet_usage::{Classes, CpuRate, cpu};
use rubelet_wire::cri::v1;

use crate::places::CgroupPlaces;
use crate::pods::{RunningPod, running_pods};
use crate::runtime_figures::{PodFigures, RuntimeFigures, container_figures, pod_figures};
use crate::single_flight::SingleFlight;

/// What the runtime may take for its lists, before the last ones are used.
const LIST_LIMIT: Duration = Duration::from_secs(4);
/// The runtime is asked for figures at most this often.
const FIGURES_AGE: Duration = Duration::from_secs(10);
/// Where the runtime's figures are the only ones, they are new on every page.
const POD_FIGURES_AGE: Duration = Duration::from_secs(1);
const ROOT: &str = "/";

/// Who counts what pods use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodSource {
    /// The kernel, in the pods' cgroups.
    #[default]
    Cgroups,
    /// The runtime, as the gate `PodAndContainerStatsFromCRI` wants it.
    Runtime,
}

/// What a look is for: nothing else is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Memory and processes, for decisions about pods.
    Usage,
    /// `/metrics/resource`
    Resource,
    /// `/stats/summary?only_cpu_and_memory=true`
    Short,
    /// `/stats/summary`
    Full,
}

impl Scope {
    fn root(self) -> Classes {
        self.pod().with_network(self == Self::Full)
    }

    fn pod(self) -> Classes {
        Classes {
            pressure: self.has_pressure(),
            io_pressure: self == Self::Full,
            limits: self.has_pressure(),
            ..Classes::default()
        }
    }

    fn container(self) -> Classes {
        Classes {
            limits: self != Self::Usage,
            processes: matches!(self, Self::Full | Self::Usage),
            ..self.pod()
        }
    }

    /// Summaries show more of each cgroup than its use.
    pub(crate) fn has_pressure(self) -> bool {
        matches!(self, Self::Short | Self::Full)
    }
}

/// A cgroup's figures with what follows from the earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) reading: UsageReading,
    pub(crate) nano_cores: Option<u64>,
}

impl Row {
    /// The cgroup of a container that ended looks like this for a moment.
    pub(crate) fn is_dead(&self) -> bool {
        let has_memory = self
            .reading
            .figures
            .memory
            .is_some_and(|memory| memory.rss_bytes > 0);
        self.nano_cores.unwrap_or(0) == 0 && !has_memory
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeSample {
    pub(crate) booted_at: Option<Timestamp>,
    /// Where it is not, it is not asked for anything else.
    pub(crate) is_runtime_answering: bool,
    /// The whole machine.
    pub(crate) root: Option<Row>,
    pub(crate) system: Vec<(SystemCgroup, Row)>,
    pub(crate) pods: Vec<PodSample>,
}

/// A cgroup of the node's own programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemCgroup {
    /// As the summary calls it, such as `kubelet`.
    pub name: &'static str,
    /// `None` is where rubelet itself runs, which is looked up again for each page.
    pub path: Option<String>,
    /// When its program was started; `None` for what was there as long as its cgroup.
    pub started_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodSample {
    pub(crate) pod: RunningPod,
    pub(crate) row: Option<Row>,
    /// Of the sandbox, for the pod's network.
    pub(crate) sandbox: Option<Row>,
    /// One for each container of `pod`, in their order.
    pub(crate) containers: Vec<ContainerSample>,
    /// Where the runtime counts what pods use, that is all there is of the pod.
    pub(crate) runtime: Option<v1::PodSandboxStats>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContainerSample {
    pub(crate) row: Option<Row>,
    /// The runtime's own figures, where they are needed.
    pub(crate) runtime: Option<v1::ContainerStats>,
}

pub(crate) struct Sampler {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) runtime: Arc<dyn RuntimeReader>,
    pub(crate) usage: Arc<dyn UsageReader>,
    pub(crate) places: CgroupPlaces,
    pub(crate) system: Vec<SystemCgroup>,
    pub(crate) source: PodSource,
    // A std mutex: it is held for steps in memory, never across an await.
    known: Mutex<Known>,
    figures: SingleFlight<Option<Arc<RuntimeFigures>>>,
    pod_figures: SingleFlight<Result<Arc<PodFigures>, RuntimeError>>,
}

#[derive(Default)]
struct Known {
    booted_at: Option<Timestamp>,
    pods: Option<Arc<Vec<RunningPod>>>,
    /// Where the cgroup of a sandbox's pod, of a sandbox and of a container was found.
    places: BTreeMap<Subject, Arc<str>>,
    rates: BTreeMap<Arc<str>, CpuRate>,
}

/// What runs, by the runtime's lists.
struct Listed {
    pods: Arc<Vec<RunningPod>>,
    /// The runtime has answered just now.
    is_fresh: bool,
}

/// What a cgroup is of, by the runtime's id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// Of the node, by its path.
    System(Arc<str>),
    /// The pod of this sandbox.
    Pod(String),
    Sandbox(String),
    Container(String),
}

/// One row of a look.
struct Asked {
    subject: Subject,
    /// `None` where its cgroup says it.
    began: Option<Timestamp>,
    question: UsageQuestion,
}

impl Sampler {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        runtime: Arc<dyn RuntimeReader>,
        usage: Arc<dyn UsageReader>,
        (places, system): (CgroupPlaces, Vec<SystemCgroup>),
        source: PodSource,
    ) -> Self {
        Self {
            clock,
            runtime,
            usage,
            places,
            system,
            source,
            known: Mutex::default(),
            figures: SingleFlight::default(),
            pod_figures: SingleFlight::default(),
        }
    }

    /// Gives back everything that is remembered.
    pub(crate) fn forget(&self) {
        *self.known() = Known::default();
        self.figures.forget();
        self.pod_figures.forget();
        self.usage.close();
    }

    /// # Errors
    /// When the runtime does not say what runs, and never did.
    pub(crate) async fn sample(&self, scope: Scope) -> Result<NodeSample, RuntimeError> {
        let Listed { pods, is_fresh } = self.pods().await?;
        let system = self.system_cgroups(scope).await;
        let is_counted_by_runtime = self.source == PodSource::Runtime;
        let in_cgroups: &[RunningPod] = if is_counted_by_runtime { &[] } else { &pods };
        let asked = self.questions(scope, &system, in_cgroups);
        let root = vec![UsageQuestion {
            paths: vec![Arc::from(ROOT)],
            classes: scope.root(),
        }];
        let rows = asked.iter().map(|asked| asked.question.clone()).collect();
        // The root comes last: on machines with many cgroups it takes longest.
        let read = join3(self.booted_at(), self.usage.read(rows), self.usage.read(root));
        let shows_layers = is_fresh && scope == Scope::Full && !is_counted_by_runtime;
        let shown = OptionFuture::from(shows_layers.then(|| self.figures()));
        let ((booted_at, rows, root), shown) = join(read, shown).await;
        let (root, mut rows) = self.remember(&asked, rows, (booted_at, root));
        let pods = if is_counted_by_runtime {
            let counted = self.pod_figures().await?;
            pods.iter().filter_map(|pod| counted_pod(pod, &counted)).collect()
        } else {
            let figures = match shown {
                Some(figures) => figures,
                None if is_fresh && !have_all_figures(&pods, &rows) => self.figures().await,
                None => None,
            };
            // Pods of an old list may have ended since.
            let pods = pods.iter().filter(|pod| is_fresh || has_a_row(pod, &rows));
            let pods: Vec<RunningPod> = pods.cloned().collect();
            pods.into_iter()
                .map(|pod| pod_of_rows(pod, &mut rows, figures.as_deref()))
                .collect()
        };
        let system = system.into_iter().filter_map(|(system, path)| {
            // Two of them may be in one cgroup.
            let row = rows.get(&Subject::System(path))?.clone();
            Some((system, row))
        });
        Ok(NodeSample {
            booted_at,
            is_runtime_answering: is_fresh,
            root,
            system: system.collect(),
            pods,
        })
    }

    /// What runs, where the runtime or its last answer says it.
    pub(crate) async fn running(&self) -> Option<Arc<Vec<RunningPod>>> {
        Some(self.pods().await.ok()?.pods)
    }

    /// What runs, by the runtime's lists; the last ones where it does not answer.
    async fn pods(&self) -> Result<Listed, RuntimeError> {
        let running = v1::ContainerFilter {
            state: Some(v1::ContainerStateValue {
                state: v1::ContainerState::ContainerRunning.into(),
            }),
            ..v1::ContainerFilter::default()
        };
        let lists = try_join(
            self.runtime.list_pod_sandboxes(None),
            self.runtime.list_containers(Some(running)),
        );
        let lists = within(self.clock.as_ref(), LIST_LIMIT, lists).await;
        let lists = lists.unwrap_or_else(|elapsed| {
            let kind = RuntimeErrorKind::DeadlineExceeded;
            Err(RuntimeError::new("list pods", "", kind, &elapsed.to_string()))
        });
        match lists {
            Ok((sandboxes, containers)) => {
                let has_empty = self.source == PodSource::Runtime;
                let pods = Arc::new(running_pods(sandboxes, containers, has_empty));
                self.known().pods = Some(Arc::clone(&pods));
                Ok(Listed { pods, is_fresh: true })
            }
            Err(error) => {
                let known = self.known().pods.clone();
                if known.is_some() {
                    tracing::warn!(%error, "The runtime does not list its pods; statistics are of those that it had");
                }
                let is_fresh = false;
                known.map(|pods| Listed { pods, is_fresh }).ok_or(error)
            }
        }
    }

    async fn booted_at(&self) -> Option<Timestamp> {
        let known = self.known().booted_at;
        if known.is_some() {
            return known;
        }
        let machine = self.usage.machine().await;
        let machine = machine.inspect_err(|error| tracing::warn!(%error, "The machine cannot be read"));
        let booted_at = machine.ok()?.booted_at;
        self.known().booted_at = booted_at;
        booted_at
    }

    /// The cgroups of the node's own programs with their paths, for pages that show them.
    async fn system_cgroups(&self, scope: Scope) -> Vec<(SystemCgroup, Arc<str>)> {
        let mut found = Vec::new();
        for system in self.system.iter().filter(|_| scope.has_pressure()) {
            let path = match &system.path {
                Some(path) => Some(Arc::from(path.as_str())),
                None => self.usage.own_cgroup().await,
            };
            found.extend(path.map(|path| (system.clone(), path)));
        }
        found
    }

    fn questions(
        &self,
        scope: Scope,
        system: &[(SystemCgroup, Arc<str>)],
        pods: &[RunningPod],
    ) -> Vec<Asked> {
        let known = self.known();
        let mut asked: Vec<Asked> = system
            .iter()
            .map(|(system, path)| Asked {
                subject: Subject::System(Arc::clone(path)),
                began: system.started_at,
                question: UsageQuestion {
                    paths: vec![Arc::clone(path)],
                    classes: scope.pod(),
                },
            })
            .collect();
        for pod in pods {
            let of_pod = Subject::Pod(pod.sandbox_id.clone());
            let parents = known.place(&of_pod, || self.places.pod(&pod.uid));
            let below = |id: &str| self.places.container(&parents, id);
            let mut ask = |subject: Subject, began, paths, classes| {
                let question = UsageQuestion { paths, classes };
                asked.push(Asked {
                    subject,
                    began: Some(began),
                    question,
                });
            };
            if scope == Scope::Full {
                let sandbox = Subject::Sandbox(pod.sandbox_id.clone());
                let paths = known.place(&sandbox, || below(&pod.sandbox_id));
                let classes = Classes::default().with_network(true);
                ask(sandbox, pod.created_at, paths, classes);
            }
            for container in &pod.containers {
                let subject = Subject::Container(container.id.clone());
                let paths = known.place(&subject, || below(&container.id));
                ask(subject, container.created_at, paths, scope.container());
            }
            ask(of_pod, pod.created_at, parents.clone(), scope.pod());
        }
        asked
    }

    fn remember(
        &self,
        asked: &[Asked],
        rows: Vec<Option<UsageReading>>,
        (booted_at, root): (Option<Timestamp>, Vec<Option<UsageReading>>),
    ) -> (Option<Row>, BTreeMap<Subject, Row>) {
        let mut known = self.known();
        let found: BTreeMap<Subject, Row> = asked
            .iter()
            .zip(rows)
            .filter_map(|(asked, reading)| {
                let reading = reading?;
                known
                    .places
                    .insert(asked.subject.clone(), Arc::clone(&reading.path));
                let began = asked.began.unwrap_or(reading.made_at);
                let row = known.row(reading, Some(began));
                Some((asked.subject.clone(), row))
            })
            .collect();
        let root = root.into_iter().flatten().next();
        let root = root.map(|reading| known.row(reading, booted_at));
        // A full look asks for more rows than a short one; what neither has asked for is gone.
        let pods: BTreeSet<&str> = asked.iter().filter_map(|asked| asked.subject.pod()).collect();
        let containers: BTreeSet<&Subject> = asked.iter().map(|asked| &asked.subject).collect();
        known.places.retain(|subject, _| match subject {
            Subject::System(_) => true,
            Subject::Sandbox(id) => pods.contains(id.as_str()),
            other => containers.contains(other),
        });
        let places: BTreeSet<Arc<str>> = known.places.values().cloned().collect();
        known
            .rates
            .retain(|path, _| &**path == ROOT || places.contains(path));
        (root, found)
    }

    /// The runtime's figures, which may be a few seconds old.
    pub(crate) async fn figures(&self) -> Option<Arc<RuntimeFigures>> {
        let runtime = Arc::clone(&self.runtime);
        let clock = Arc::clone(&self.clock);
        let start = || container_figures(runtime, clock).boxed();
        self.figures.get(&self.clock, FIGURES_AGE, start).await
    }

    /// What the runtime counts of all pods.
    async fn pod_figures(&self) -> Result<Arc<PodFigures>, RuntimeError> {
        let runtime = Arc::clone(&self.runtime);
        let clock = Arc::clone(&self.clock);
        let start = || pod_figures(runtime, clock).boxed();
        self.pod_figures.get(&self.clock, POD_FIGURES_AGE, start).await
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pod as its cgroups show it, with the runtime's figures of its containers where they are needed.
fn pod_of_rows(
    pod: RunningPod,
    rows: &mut BTreeMap<Subject, Row>,
    figures: Option<&RuntimeFigures>,
) -> PodSample {
    let containers = pod.containers.iter().map(|container| ContainerSample {
        row: rows.remove(&Subject::Container(container.id.clone())),
        runtime: figures.and_then(|figures| figures.get(&container.id).cloned()),
    });
    let containers = containers.collect();
    PodSample {
        row: rows.remove(&Subject::Pod(pod.sandbox_id.clone())),
        sandbox: rows.remove(&Subject::Sandbox(pod.sandbox_id.clone())),
        containers,
        pod,
        runtime: None,
    }
}

/// A pod as the runtime counts it, with those of its containers that it counts.
fn counted_pod(pod: &RunningPod, counted: &PodFigures) -> Option<PodSample> {
    let mut counted = counted.get(&pod.sandbox_id)?.clone();
    let containers = counted
        .linux
        .as_mut()
        .map(|linux| std::mem::take(&mut linux.containers));
    let mut by_id: BTreeMap<String, v1::ContainerStats> = containers
        .unwrap_or_default()
        .into_iter()
        .filter_map(|stats| Some((stats.attributes.as_ref()?.id.clone(), stats)))
        .collect();
    let mut pod = pod.clone();
    pod.containers
        .retain(|container| by_id.contains_key(&container.id));
    let containers = pod.containers.iter().map(|container| ContainerSample {
        row: None,
        runtime: by_id.remove(&container.id),
    });
    Some(PodSample {
        containers: containers.collect(),
        pod,
        row: None,
        sandbox: None,
        runtime: Some(counted),
    })
}

/// Whether no container needs the figures of the runtime.
fn have_all_figures(pods: &[RunningPod], rows: &BTreeMap<Subject, Row>) -> bool {
    let mut containers = pods.iter().flat_map(|pod| &pod.containers);
    containers.all(|container| {
        let row = rows.get(&Subject::Container(container.id.clone()));
        row.is_some_and(|row| !row.is_dead())
    })
}

fn has_a_row(pod: &RunningPod, rows: &BTreeMap<Subject, Row>) -> bool {
    let mut containers = pod.containers.iter();
    containers.any(|container| rows.contains_key(&Subject::Container(container.id.clone())))
}

impl Subject {
    fn pod(&self) -> Option<&str> {
        match self {
            Self::Pod(sandbox) => Some(sandbox),
            Self::System(_) | Self::Sandbox(_) | Self::Container(_) => None,
        }
    }
}

impl Known {
    fn place(&self, subject: &Subject, possible: impl FnOnce() -> Vec<Arc<str>>) -> Vec<Arc<str>> {
        match self.places.get(subject) {
            Some(place) => vec![Arc::clone(place)],
            None => possible(),
        }
    }

    fn row(&mut self, reading: UsageReading, began: Option<Timestamp>) -> Row {
        let nano_cores = reading.figures.cpu_nanos.map(|nanos| {
            let at = reading.read_moment.since(Moment::default());
            let rate = match self.rates.get(&reading.path) {
                Some(rate) => rate.then(at, nanos),
                None => {
                    let age = began.map_or(Duration::ZERO, |began| cpu::age(reading.read_at, began));
                    CpuRate::first(at, nanos, age)
                }
            };
            self.rates.insert(Arc::clone(&reading.path), rate);
            rate.nano_cores()
        });
        Row { reading, nano_cores }
    }
}
