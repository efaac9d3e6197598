//! The points in time of the actions on one pod.

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
