//! The rows of the design's speed and size budget: their names, units and limits; and the points in time in between.

use super::probes::{COMMANDS_PER_SECOND, REQUESTS_PER_SECOND};
use super::{statuses, streams};

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
    LogsFollowed,
    Entered,
    PortForwarded,
}

/// As fast as upstream: the same work takes no two runs of one kubelet the same time.
const AS_UPSTREAM: Limit = Limit::OfUpstream(1.05);

/// How low a figure has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    /// A multiple of the CRI floor of the same run.
    OfFloor(f64),
    /// A multiple of upstream's figure of the same run.
    OfUpstream(f64),
    /// A figure in the row's unit.
    AtMost(f64),
    /// Measured for information.
    Free,
}

/// What a run tells of rubelet in one row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) figure: Option<f64>,
    /// The same as a multiple of the floor, and of upstream's figure.
    pub(super) of_floor: Option<f64>,
    pub(super) of_upstream: Option<f64>,
}

impl Limit {
    /// Whether a figure is low enough; nothing if the run does not tell.
    pub(super) fn is_reached(self, outcome: Outcome) -> Option<bool> {
        match self {
            Self::OfFloor(factor) => outcome.of_floor.map(|ratio| ratio <= factor),
            Self::OfUpstream(factor) => outcome.of_upstream.map(|ratio| ratio <= factor),
            Self::AtMost(value) => outcome.figure.map(|figure| figure <= value),
            Self::Free => None,
        }
    }
}

impl Row {
    /// In the order of the table.
    pub(super) const ALL: [Self; 36] = [
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
        Self::LogsFollowed,
        Self::Entered,
        Self::PortForwarded,
    ];

    /// What the row is called, with this many pods in the rows of many.
    pub(super) fn name(self, pods: usize) -> String {
        match self {
            Self::OneStart => "one pod, manifest written → Running and Ready on /pods".to_owned(),
            Self::VolumesStart => "… more with five emptyDir and downwardAPI volumes".to_owned(),
            Self::ProbesStart => "… more with a startup, a readiness and a liveness probe".to_owned(),
            Self::ManyStart => format!("{pods} pods at once, all Running and Ready"),
            Self::ManyStartCpu => format!("CPU of the agent for those {pods} starts"),
            Self::OneRestart => "container killed → its successor runs".to_owned(),
            Self::OneStop => "one manifest removed → sandbox stopped".to_owned(),
            Self::ManyStop => format!("{pods} pods removed → all sandboxes stopped"),
            Self::KubeletRestart => format!("kubelet killed and restarted → {pods} pods reported again"),
            Self::MemoryIdle => "resident memory, idle".to_owned(),
            Self::MemoryMany => format!("resident memory, {pods} pods"),
            Self::SteadyCpu => format!("CPU in steady state with {pods} pods"),
            Self::Binary => "binary".to_owned(),
            Self::AnonymousIdle => "anonymous part of the memory, idle".to_owned(),
            Self::AnonymousMany => format!("anonymous part of the memory, {pods} pods"),
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
            Self::LogsFollowed => format!("kubectl logs -f: {} MiB of a log", streams::MEGABYTES),
            Self::Entered => "kubectl exec: a command that only answers".to_owned(),
            Self::PortForwarded => format!("kubectl port-forward: {} MiB from the pod", streams::MEGABYTES),
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
            | Self::ApiManyStart
            | Self::ApiManyStartCpu
            | Self::ApiManyStop
            | Self::Statuses
            | Self::LogsFollowed
            | Self::PortForwarded => format!("{value:.2} s"),
            Self::MemoryIdle
            | Self::MemoryMany
            | Self::AnonymousIdle
            | Self::AnonymousMany
            | Self::ApiMemoryIdle
            | Self::ApiMemoryMany => format!("{value:.1} MiB"),
            Self::SteadyCpu | Self::RequestsCpu | Self::CommandsCpu | Self::ApiSteadyCpu => {
                format!("{value:.2} % of a core")
            }
            Self::VolumesStart
            | Self::ProbesStart
            | Self::RequestsLate
            | Self::RequestsLatest
            | Self::CommandsLate
            | Self::ApiVolumesStart => format!("{value:.1} ms"),
            Self::RequestsRate | Self::CommandsRate => format!("{value:.1} per s"),
            Self::Binary => format!("{value:.1} MB"),
        }
    }

    /// What rubelet must reach.
    pub(super) fn must(self) -> Limit {
        match self {
            Self::OneStart => Limit::OfFloor(1.25),
            Self::ManyStart | Self::OneStop => Limit::OfFloor(1.3),
            Self::ManyStop => Limit::OfFloor(1.1),
            Self::ManyStartCpu => Limit::AtMost(1.5),
            Self::OneRestart => Limit::AtMost(200.0),
            Self::KubeletRestart => Limit::AtMost(2.0),
            Self::MemoryIdle => Limit::AtMost(20.0),
            Self::MemoryMany => Limit::AtMost(32.0),
            Self::SteadyCpu => Limit::AtMost(1.0),
            Self::Binary => Limit::AtMost(30.0),
            Self::RequestsLate => Limit::AtMost(50.0),
            Self::VolumesStart | Self::ProbesStart => Limit::AtMost(10.0),
            Self::LogsFollowed | Self::Entered | Self::PortForwarded => AS_UPSTREAM,
            Self::ApiVolumesStart => Limit::AtMost(15.0),
            Self::Statuses => Limit::AtMost(2.0),
            Self::AnonymousIdle
            | Self::AnonymousMany
            | Self::ExecToReady
            | Self::RequestsRate
            | Self::RequestsLatest
            | Self::RequestsCpu
            | Self::CommandsRate
            | Self::CommandsLate
            | Self::CommandsCpu
            | Self::ApiOneStart
            | Self::ApiOneStop
            | Self::ApiManyStart
            | Self::ApiManyStartCpu
            | Self::ApiManyStop
            | Self::ApiMemoryIdle
            | Self::ApiMemoryMany
            | Self::ApiSteadyCpu => Limit::Free,
        }
    }

    /// What rubelet aims at.
    pub(super) fn goal(self) -> Limit {
        match self {
            Self::OneStart | Self::OneStop | Self::ManyStop => Limit::OfFloor(1.05),
            Self::ManyStart => Limit::OfFloor(1.1),
            Self::ManyStartCpu => Limit::AtMost(0.6),
            Self::OneRestart => Limit::AtMost(100.0),
            Self::KubeletRestart => Limit::AtMost(0.5),
            Self::MemoryIdle => Limit::AtMost(14.0),
            Self::MemoryMany => Limit::AtMost(22.0),
            Self::SteadyCpu => Limit::AtMost(0.3),
            Self::Binary => Limit::AtMost(20.0),
            Self::RequestsLate => Limit::AtMost(10.0),
            Self::VolumesStart => Limit::AtMost(3.0),
            Self::ProbesStart
            | Self::AnonymousIdle
            | Self::AnonymousMany
            | Self::ExecToReady
            | Self::RequestsRate
            | Self::RequestsLatest
            | Self::RequestsCpu
            | Self::CommandsRate
            | Self::CommandsLate
            | Self::CommandsCpu
            | Self::ApiOneStart
            | Self::ApiOneStop
            | Self::ApiManyStart
            | Self::ApiManyStartCpu
            | Self::ApiManyStop
            | Self::ApiMemoryIdle
            | Self::ApiMemoryMany
            | Self::ApiSteadyCpu
            | Self::ApiVolumesStart
            | Self::Statuses
            | Self::LogsFollowed
            | Self::Entered
            | Self::PortForwarded => Limit::Free,
        }
    }
}

/// A point in time of an action on one pod, as the runtime's own events tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    StartSandboxRuns,
    StartContainerCreated,
    StartContainerStarted,
    StartReady,
    RestartContainerDead,
    RestartContainerCreated,
    RestartContainerStarted,
    StopContainerStopped,
    StopSandboxStopped,
    StopNetworkGone,
}

impl Mark {
    /// In the order of the table.
    pub(super) const ALL: [Self; 10] = [
        Self::StartSandboxRuns,
        Self::StartContainerCreated,
        Self::StartContainerStarted,
        Self::StartReady,
        Self::RestartContainerDead,
        Self::RestartContainerCreated,
        Self::RestartContainerStarted,
        Self::StopContainerStopped,
        Self::StopSandboxStopped,
        Self::StopNetworkGone,
    ];

    /// The action and the point in it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::StartSandboxRuns => "start: sandbox runs",
            Self::StartContainerCreated => "start: container created",
            Self::StartContainerStarted => "start: container started",
            Self::StartReady => "start: Running and Ready on /pods",
            Self::RestartContainerDead => "kill: the runtime tells of the death",
            Self::RestartContainerCreated => "kill: successor created",
            Self::RestartContainerStarted => "kill: successor started",
            Self::StopContainerStopped => "removal: container stopped",
            Self::StopSandboxStopped => "removal: sandbox stopped",
            Self::StopNetworkGone => "removal: network taken down",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        let check = |limit: Limit, figure: Option<f64>, of_floor: Option<f64>, expected: Option<bool>| {
            let outcome = Outcome {
                figure,
                of_floor,
                of_upstream: Some(1.1),
            };
            assert_eq!(limit.is_reached(outcome), expected, "{limit:?} {outcome:?}");
        };
        check(Limit::OfUpstream(1.1), None, None, Some(true));
        check(Limit::OfUpstream(1.05), Some(1.0), Some(1.0), Some(false));
        assert_eq!(AS_UPSTREAM.is_reached(Outcome::default()), None);
        check(Limit::OfFloor(1.5), Some(10.0), Some(1.5), Some(true));
        check(Limit::OfFloor(1.5), Some(1.0), Some(1.6), Some(false));
        check(Limit::OfFloor(1.5), Some(1.0), None, None);
        check(Limit::AtMost(2.0), Some(2.0), None, Some(true));
        check(Limit::AtMost(2.0), Some(2.1), Some(1.0), Some(false));
        check(Limit::AtMost(2.0), None, None, None);
        check(Limit::Free, Some(1.0), Some(1.0), None);
    }

    #[test]
    fn a_goal_is_never_easier_than_what_must_be_reached() {
        for row in Row::ALL {
            let is_harder = match (row.goal(), row.must()) {
                (Limit::OfFloor(goal), Limit::OfFloor(must)) | (Limit::AtMost(goal), Limit::AtMost(must)) => {
                    goal <= must
                }
                (Limit::Free, _) => true,
                _ => false,
            };
            assert!(is_harder, "{row:?}");
        }
    }
}
