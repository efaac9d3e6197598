//! What cgroups use, read when a page or a decision asks for it.
//!
//! Owns the shape of the edge. Nothing is read between two questions; what the implementation holds open for the next question it
//! gives back by [`UsageReader::close`].

use std::sync::Arc;

use async_trait::async_trait;
use rubelet_model::Timestamp;
use rubelet_usage::{Classes, Figures, MachineFigures, MachineMemory};

use crate::{Moment, SignalError};

/// A cgroup, and what is to be read of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageQuestion {
    /// Where it may be, below the mounts, with a slash first. The first that exists is meant.
    pub paths: Vec<Arc<str>>,
    pub classes: Classes,
}

/// The figures of a cgroup, with the time of their reading.
#[derive(Clone, Debug, PartialEq)]
pub struct UsageReading {
    /// Which of the paths it was.
    pub path: Arc<str>,
    pub read_at: Timestamp,
    pub read_moment: Moment,
    /// When the cgroup was made, as far as its directory says.
    pub made_at: Timestamp,
    pub figures: Figures,
}

/// What the whole machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineReading {
    pub memory: MachineMemory,
    pub figures: MachineFigures,
    /// When the kernel was started; `None` where it does not say.
    pub booted_at: Option<Timestamp>,
}

/// Calls that change nothing.
#[async_trait]
pub trait UsageReader: Send + Sync {
    /// An answer for each question, in their order. `None` for a cgroup that is not there, that goes meanwhile, or that could not be
    /// read in time.
    async fn read(&self, questions: Vec<UsageQuestion>) -> Vec<Option<UsageReading>>;

    async fn machine(&self) -> Result<MachineReading, SignalError>;

    /// The cgroup of this process, which may be moved at any time. `None` where the hierarchies that count processor time and memory
    /// have it in different ones.
    async fn own_cgroup(&self) -> Option<Arc<str>>;

    /// Gives back what is held for the next question.
    fn close(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when the port can no longer be used as a trait object.
    #[test]
    fn the_port_is_object_safe() {
        fn takes(_: Option<&dyn UsageReader>) {}
        takes(None);
    }
}
