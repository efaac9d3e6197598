//! The rows of the design's speed and size budget: their names, units and limits; and the points in time in between.

use super::probes::{COMMANDS_PER_SECOND, REQUESTS_PER_SECOND};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Row {
    OneStart,
    VolumesStart,
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
}

/// How low a figure has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    /// A multiple of the CRI floor of the same run.
    OfFloor(f64),
    /// A figure in the row's unit.
    AtMost(f64),
    /// Measured for information.
    Free,
}

impl Limit {
    /// The limit in the row's unit, if the run has what it takes to know it.
    pub(super) fn value(self, floor: Option<f64>) -> Option<f64> {
        match self {
            Self::OfFloor(factor) => floor.map(|floor| floor * factor),
            Self::AtMost(value) => Some(value),
            Self::Free => None,
        }
    }
}

impl Row {
    /// In the order of the table.
    pub(super) const ALL: [Self; 22] = [
        Self::OneStart,
        Self::VolumesStart,
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
    ];

    /// What the row is called, with this many pods in the rows of many.
    pub(super) fn name(self, pods: usize) -> String {
        match self {
            Self::OneStart => "one pod, manifest written → Running and Ready on /pods".to_owned(),
            Self::VolumesStart => "… more with five emptyDir and downwardAPI volumes".to_owned(),
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
        }
    }

    /// A value with its unit.
    pub(super) fn figure(self, value: f64) -> String {
        match self {
            Self::OneStart | Self::OneRestart | Self::OneStop | Self::ExecToReady => format!("{value:.0} ms"),
            Self::ManyStart | Self::ManyStartCpu | Self::ManyStop | Self::KubeletRestart => {
                format!("{value:.2} s")
            }
            Self::MemoryIdle | Self::MemoryMany | Self::AnonymousIdle | Self::AnonymousMany => {
                format!("{value:.1} MiB")
            }
            Self::SteadyCpu | Self::RequestsCpu | Self::CommandsCpu => format!("{value:.2} % of a core"),
            Self::VolumesStart | Self::RequestsLate | Self::RequestsLatest | Self::CommandsLate => {
                format!("{value:.1} ms")
            }
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
            Self::VolumesStart => Limit::AtMost(10.0),
            Self::AnonymousIdle
            | Self::AnonymousMany
            | Self::ExecToReady
            | Self::RequestsRate
            | Self::RequestsLatest
            | Self::RequestsCpu
            | Self::CommandsRate
            | Self::CommandsLate
            | Self::CommandsCpu => Limit::Free,
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
            Self::AnonymousIdle
            | Self::AnonymousMany
            | Self::ExecToReady
            | Self::RequestsRate
            | Self::RequestsLatest
            | Self::RequestsCpu
            | Self::CommandsRate
            | Self::CommandsLate
            | Self::CommandsCpu => Limit::Free,
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
        let check = |limit: Limit, floor: Option<f64>, expected: Option<f64>| {
            assert_eq!(limit.value(floor), expected, "{limit:?} {floor:?}");
        };
        check(Limit::OfFloor(1.5), Some(10.0), Some(15.0));
        check(Limit::OfFloor(1.5), None, None);
        check(Limit::AtMost(2.0), None, Some(2.0));
        check(Limit::Free, Some(1.0), None);
    }

    #[test]
    fn a_goal_is_never_easier_than_what_must_be_reached() {
        for row in Row::ALL {
            let floor = Some(1.0);
            assert!(row.goal().value(floor) <= row.must().value(floor), "{row:?}");
        }
    }
}
