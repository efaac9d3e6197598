//! The rows of the design's speed and size budget: their names and units.

use super::probes::{COMMANDS_PER_SECOND, REQUESTS_PER_SECOND};
use super::{objects, scrapes, statuses, streams};

/// How many pods the rows have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// In the rows of many pods.
    pub(super) many: usize,
    /// In the rows of a dense node.
    pub(super) dense: usize,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Row {
    OneStart,
    VolumesStart,
    ProbesStart,
    ManyStart,
    ManyStartCpu,
    OneRestart,
    OneStop,
    ManyStop,
    KubeletRestart,
    MemoryIdle,
    MemoryMany,
    SteadyCpu,
    Binary,
    AnonymousIdle,
    AnonymousMany,
    ExecToReady,
    DenseStart,
    DenseStartCpu,
    DenseStop,
    DenseKubeletRestart,
    DenseMemory,
    DenseAnonymous,
    DenseSteadyCpu,
    RequestsRate,
    RequestsLate,
    RequestsLatest,
    RequestsCpu,
    CommandsRate,
    CommandsLate,
    CommandsCpu,
    ApiOneStart,
    ApiVolumesStart,
    ApiOneStop,
    ApiManyStart,
    ApiManyStartCpu,
    ApiManyStop,
    ApiMemoryIdle,
    ApiMemoryMany,
    ApiSteadyCpu,
    Statuses,
    ObjectsRestart,
    ObjectsRequests,
    ObjectsCpu,
    LogsFollowed,
    Entered,
    PortForwarded,
    ResourcePage,
    SummaryPage,
    ContainerPage,
    ScrapedCpu,
    ScrapedMemory,
    ScrapedStart,
    DenseResourcePage,
    DenseSummaryPage,
    DenseContainerPage,
    DenseScrapedCpu,
    DenseScrapedMemory,
}

impl Row {
    /// In the order of the table.
    pub(super) const ALL: [Self; 57] = [
        Self::OneStart,
        Self::VolumesStart,
        Self::ProbesStart,
        Self::ManyStart,
        Self::ManyStartCpu,
        Self::OneRestart,
        Self::OneStop,
        Self::ManyStop,
        Self::KubeletRestart,
        Self::MemoryIdle,
        Self::MemoryMany,
        Self::SteadyCpu,
        Self::Binary,
        Self::AnonymousIdle,
        Self::AnonymousMany,
        Self::ExecToReady,
        Self::DenseStart,
        Self::DenseStartCpu,
        Self::DenseStop,
        Self::DenseKubeletRestart,
        Self::DenseMemory,
        Self::DenseAnonymous,
        Self::DenseSteadyCpu,
        Self::RequestsRate,
        Self::RequestsLate,
        Self::RequestsLatest,
        Self::RequestsCpu,
        Self::CommandsRate,
        Self::CommandsLate,
        Self::CommandsCpu,
        Self::ApiOneStart,
        Self::ApiVolumesStart,
        Self::ApiOneStop,
        Self::ApiManyStart,
        Self::ApiManyStartCpu,
        Self::ApiManyStop,
        Self::ApiMemoryIdle,
        Self::ApiMemoryMany,
        Self::ApiSteadyCpu,
        Self::Statuses,
        Self::ObjectsRestart,
        Self::ObjectsRequests,
        Self::ObjectsCpu,
        Self::LogsFollowed,
        Self::Entered,
        Self::PortForwarded,
        Self::ResourcePage,
        Self::SummaryPage,
        Self::ContainerPage,
        Self::ScrapedCpu,
        Self::ScrapedMemory,
        Self::ScrapedStart,
        Self::DenseResourcePage,
        Self::DenseSummaryPage,
        Self::DenseContainerPage,
        Self::DenseScrapedCpu,
        Self::DenseScrapedMemory,
    ];

    /// The row of many pods that measures the same as this one of a dense node.
    pub(super) fn with_fewer_pods(self) -> Option<Self> {
        match self {
            Self::DenseStart => Some(Self::ManyStart),
            Self::DenseStartCpu => Some(Self::ManyStartCpu),
            Self::DenseStop => Some(Self::ManyStop),
            Self::DenseKubeletRestart => Some(Self::KubeletRestart),
            Self::DenseMemory => Some(Self::MemoryMany),
            Self::DenseAnonymous => Some(Self::AnonymousMany),
            Self::DenseSteadyCpu => Some(Self::SteadyCpu),
            Self::DenseResourcePage => Some(Self::ResourcePage),
            Self::DenseSummaryPage => Some(Self::SummaryPage),
            Self::DenseContainerPage => Some(Self::ContainerPage),
            Self::DenseScrapedCpu => Some(Self::ScrapedCpu),
            Self::DenseScrapedMemory => Some(Self::ScrapedMemory),
            _ => None,
        }
    }

    /// What the row is called, with this many pods.
    pub(super) fn name(self, sizes: Sizes) -> String {
        let Sizes { many, dense } = sizes;
        let pods = if self.with_fewer_pods().is_some() {
            dense
        } else {
            many
        };
        match self {
            Self::OneStart => "one pod, manifest written → Running and Ready on /pods".to_owned(),
            Self::VolumesStart => "… more with five emptyDir and downwardAPI volumes".to_owned(),
            Self::ProbesStart => "… more with a startup, a readiness and a liveness probe".to_owned(),
            Self::ManyStart | Self::DenseStart => format!("{pods} pods at once, all Running and Ready"),
            Self::ManyStartCpu | Self::DenseStartCpu => format!("CPU of the agent for those {pods} starts"),
            Self::OneRestart => "container killed → its successor runs".to_owned(),
            Self::OneStop => "one manifest removed → sandbox stopped".to_owned(),
            Self::ManyStop | Self::DenseStop => format!("{pods} pods removed → all sandboxes stopped"),
            Self::KubeletRestart | Self::DenseKubeletRestart => {
                format!("kubelet killed and restarted → {pods} pods reported again")
            }
            Self::MemoryIdle => "resident memory, idle".to_owned(),
            Self::MemoryMany | Self::DenseMemory => format!("resident memory, {pods} pods"),
            Self::SteadyCpu | Self::DenseSteadyCpu => format!("CPU in steady state with {pods} pods"),
            Self::Binary => "binary".to_owned(),
            Self::AnonymousIdle => "anonymous part of the memory, idle".to_owned(),
            Self::AnonymousMany | Self::DenseAnonymous => {
                format!("anonymous part of the memory, {pods} pods")
            }
            Self::ExecToReady => "exec → says that it is ready".to_owned(),
            Self::RequestsRate => format!("{REQUESTS_PER_SECOND} HTTP, TCP and gRPC probes per second: come"),
            Self::RequestsLate => "… late, 99th percentile".to_owned(),
            Self::RequestsLatest => "… late, the worst".to_owned(),
            Self::RequestsCpu => "… CPU of the agent".to_owned(),
            Self::CommandsRate => format!("{COMMANDS_PER_SECOND} command probes per second: come"),
            Self::CommandsLate => "… late, 99th percentile".to_owned(),
            Self::CommandsCpu => "… CPU of the agent".to_owned(),
            Self::ApiOneStart => "one pod created at the API server → Running and Ready there".to_owned(),
            Self::ApiVolumesStart => "… more with five volumes fed by the API server".to_owned(),
            Self::ApiOneStop => "one pod deleted at the API server → gone there".to_owned(),
            Self::ApiManyStart => {
                format!("{pods} pods created at the API server at once, all Running and Ready there")
            }
            Self::ApiManyStartCpu => "… CPU of the agent".to_owned(),
            Self::ApiManyStop => format!("{pods} pods deleted at the API server at once → all gone there"),
            Self::ApiMemoryIdle => "resident memory in a cluster, idle".to_owned(),
            Self::ApiMemoryMany => format!("resident memory in a cluster, {pods} pods"),
            Self::ApiSteadyCpu => format!("CPU in steady state in a cluster with {pods} pods"),
            Self::Statuses => format!(
                "{} pods change at once, {} ms to the API server and back → all written there",
                statuses::PODS,
                statuses::ROUND_TRIP.as_millis()
            ),
            Self::ObjectsRestart => format!(
                "kubelet killed and restarted → the volumes of {dense} pods with {} objects and a token each served again",
                objects::OBJECTS_PER_POD
            ),
            Self::ObjectsRequests => "… requests to the API server until then".to_owned(),
            Self::ObjectsCpu => "… CPU of the agent until then".to_owned(),
            Self::LogsFollowed => format!("kubectl logs -f: {} MiB of a log", streams::MEGABYTES),
            Self::Entered => "kubectl exec: a command that only answers".to_owned(),
            Self::PortForwarded => format!("kubectl port-forward: {} MiB from the pod", streams::MEGABYTES),
            Self::ResourcePage | Self::DenseResourcePage => {
                format!("CPU of the agent for an answer of /metrics/resource, {pods} pods")
            }
            Self::SummaryPage | Self::DenseSummaryPage => {
                format!("CPU of the agent for an answer of /stats/summary, {pods} pods")
            }
            Self::ContainerPage | Self::DenseContainerPage => {
                format!("CPU of the agent for an answer of /metrics/cadvisor, {pods} pods")
            }
            Self::ScrapedCpu | Self::DenseScrapedCpu => format!(
                "CPU with {pods} pods, scraped as by metrics-server every {} s and by Prometheus every {} s",
                scrapes::METRICS_SERVER.as_secs(),
                scrapes::PROMETHEUS.as_secs()
            ),
            Self::ScrapedMemory | Self::DenseScrapedMemory => {
                format!("… more resident memory than before the first scrape, {pods} pods")
            }
            Self::ScrapedStart => {
                "one pod's start: … more while all pages are scraped every second".to_owned()
            }
        }
    }

    /// A value with its unit.
    pub(super) fn figure(self, value: f64) -> String {
        match self {
            Self::OneStart
            | Self::OneRestart
            | Self::OneStop
            | Self::ExecToReady
            | Self::ApiOneStart
            | Self::ApiOneStop
            | Self::Entered => format!("{value:.0} ms"),
            Self::ManyStart
            | Self::ManyStartCpu
            | Self::ManyStop
            | Self::KubeletRestart
            | Self::DenseStart
            | Self::DenseStartCpu
            | Self::DenseStop
            | Self::DenseKubeletRestart
            | Self::ApiManyStart
            | Self::ApiManyStartCpu
            | Self::ApiManyStop
            | Self::Statuses
            | Self::ObjectsRestart
            | Self::ObjectsCpu
            | Self::LogsFollowed
            | Self::PortForwarded => format!("{value:.2} s"),
            Self::ObjectsRequests => format!("{value:.0}"),
            Self::MemoryIdle
            | Self::MemoryMany
            | Self::AnonymousIdle
            | Self::AnonymousMany
            | Self::DenseMemory
            | Self::DenseAnonymous
            | Self::ApiMemoryIdle
            | Self::ApiMemoryMany
            | Self::ScrapedMemory
            | Self::DenseScrapedMemory => format!("{value:.1} MiB"),
            Self::SteadyCpu
            | Self::DenseSteadyCpu
            | Self::RequestsCpu
            | Self::CommandsCpu
            | Self::ApiSteadyCpu
            | Self::ScrapedCpu
            | Self::DenseScrapedCpu => format!("{value:.2} % of a core"),
            Self::VolumesStart
            | Self::ProbesStart
            | Self::RequestsLate
            | Self::RequestsLatest
            | Self::CommandsLate
            | Self::ApiVolumesStart
            | Self::ResourcePage
            | Self::SummaryPage
            | Self::ContainerPage
            | Self::ScrapedStart
            | Self::DenseResourcePage
            | Self::DenseSummaryPage
            | Self::DenseContainerPage => format!("{value:.1} ms"),
            Self::RequestsRate | Self::CommandsRate => format!("{value:.1} per s"),
            Self::Binary => format!("{value:.1} MB"),
        }
    }
}
