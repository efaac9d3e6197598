//! The phase of a pod.

use std::fmt;

use k8s_openapi::api::core::v1::PodStatus;

/// The phases that a node reports, with the API's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Not every container has been started yet.
    Pending,
    /// Every container was started, and one runs or will run again.
    Running,
    /// Every container exited with success, and none starts again.
    Succeeded,
    /// Every container exited, at least one of them with a failure, and none starts again.
    Failed,
}

impl Phase {
    /// The phase with this name; none for an empty text, `Unknown` or any other.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let all = [Self::Pending, Self::Running, Self::Succeeded, Self::Failed];
        all.into_iter().find(|phase| phase.as_str() == text)
    }

    /// The API's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Whether the pod can never leave this phase.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// The phase of a status, if it is one that a node reports.
#[must_use]
pub fn phase_of(status: &PodStatus) -> Option<Phase> {
    Phase::parse(status.phase.as_deref()?)
}

/// Whether the status has a terminal phase.
#[must_use]
pub fn is_terminal(status: &PodStatus) -> bool {
    phase_of(status).is_some_and(Phase::is_terminal)
}
