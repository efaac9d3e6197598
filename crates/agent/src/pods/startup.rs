//! How far the agent's start is: what the runtime has shown, and whether every source has delivered.
//!
//! Owns both. Until the runtime's first list is known, admission decides nothing; until every source has delivered, a pod that no
//! source has may still be delivered and is not ended.

/// What is known of the runtime's first list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RuntimeList {
    Missing,
    /// Names and UIDs of what lives are known; each pod is inspected next.
    NamesKnown,
    /// Every pod of the list was inspected.
    Inspected,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Startup {
    runtime: RuntimeList,
    are_sources_ready: bool,
}

impl Startup {
    pub(super) fn new(are_sources_ready: bool) -> Self {
        Self {
            runtime: RuntimeList::Missing,
            are_sources_ready,
        }
    }

    pub(super) fn names_known(&mut self) {
        self.runtime = self.runtime.max(RuntimeList::NamesKnown);
    }

    pub(super) fn inspected(&mut self) {
        self.runtime = RuntimeList::Inspected;
    }

    /// Every source has delivered. The answer is whether that is new.
    pub(super) fn set_sources_ready(&mut self) -> bool {
        !std::mem::replace(&mut self.are_sources_ready, true)
    }

    pub(super) fn are_sources_ready(self) -> bool {
        self.are_sources_ready
    }

    /// Whether it is known which pods live in the runtime.
    pub(super) fn are_names_known(self) -> bool {
        self.runtime >= RuntimeList::NamesKnown
    }

    pub(super) fn is_inspected(self) -> bool {
        self.runtime == RuntimeList::Inspected
    }

    /// Whether everything that the node has and should have is known.
    pub(super) fn is_complete(self) -> bool {
        self.are_sources_ready && self.is_inspected()
    }
}
