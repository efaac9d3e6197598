//! Mistakes on purpose, so that the simulator can show that it finds them.
//!
//! Owns the switch. It exists only with the feature `deliberate-bugs`, which no program enables, and is off until a
//! simulation turns one mistake on for its own thread. Without the feature every question is answered at compile time.

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// A grace period gets longer when the end is asked for again.
    GraceGrows,
    /// A sync that was cancelled by the pod's end goes on.
    StartWhileTerminating,
    /// A change that arrives during a job is forgotten.
    LostWakeUp,
    /// Orphans are stopped before every source has delivered.
    DeleteBeforeSources,
    /// A sandbox whose name is reserved is made under the next name.
    DoubleStart,
    /// A pod that ended for good begins again.
    TerminalUndone,
    /// Sidecars are stopped together with the containers that use them.
    SidecarsFirst,
    /// A terminal phase is published while containers may still run.
    EarlyTerminal,
    /// While the API server is away, it counts as having no pods.
    OutageRemoves,
    /// Only the first status of a pod is reported, and its end.
    ReportedOnce,
    /// Regular containers do not wait for the init containers.
    InitSkipped,
    /// A sandbox is stopped under containers that still have time.
    SandboxFirst,
    /// A container that keeps ending is started again at once.
    BackoffForgotten,
    /// A pod that runs is ready, whatever the results of its probes.
    ReadyTooEarly,
    /// The status shows a restart count of zero for every container.
    RestartsForgotten,
    /// A container runs no preStop hook once all containers of its pod were restarted.
    PreStopSkipped,
    /// Static pods have no mirror pods.
    MirrorsForgotten,
    /// What failed is tried again without a pause.
    RetriedAtOnce,
    /// An old version of a static pod keeps its name until every source has delivered, also the API server that waits for it.
    NamesKeptUntilSources,
    /// What another client writes into a status just before a patch stays.
    OverwriteKept,
    /// A probe whose host name could not be looked up for want of room counts as failed.
    LookupsBlamed,
    /// A memory limit is set without a look at what is used.
    LimitBelowUsage,
    /// What was actuated is not recorded, so that a container is restarted for its resize again.
    ActuationForgotten,
    /// A container gets more before its pod does.
    PodRaisedLast,
}

impl Bug {
    pub const ALL: [Self; 24] = [
        Self::GraceGrows,
        Self::StartWhileTerminating,
        Self::LostWakeUp,
        Self::DeleteBeforeSources,
        Self::DoubleStart,
        Self::TerminalUndone,
        Self::SidecarsFirst,
        Self::EarlyTerminal,
        Self::OutageRemoves,
        Self::ReportedOnce,
        Self::InitSkipped,
        Self::SandboxFirst,
        Self::BackoffForgotten,
        Self::ReadyTooEarly,
        Self::RestartsForgotten,
        Self::PreStopSkipped,
        Self::MirrorsForgotten,
        Self::RetriedAtOnce,
        Self::NamesKeptUntilSources,
        Self::OverwriteKept,
        Self::LookupsBlamed,
        Self::LimitBelowUsage,
        Self::ActuationForgotten,
        Self::PodRaisedLast,
    ];
}

#[cfg(feature = "deliberate-bugs")]
mod switch {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static ON: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Turns one mistake on for this thread, and all others off.
    pub fn turn_on(bug: Option<Bug>) {
        ON.set(bug);
    }

    #[must_use]
    pub fn is_on(bug: Bug) -> bool {
        ON.get() == Some(bug)
    }
}

#[cfg(feature = "deliberate-bugs")]
pub use switch::{is_on, turn_on};

#[cfg(not(feature = "deliberate-bugs"))]
#[must_use]
pub const fn is_on(_bug: Bug) -> bool {
    false
}
