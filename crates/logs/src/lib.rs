//! Rotation of container logs: no log grows beyond what the settings allow, and no line is lost on the way.
//!
//! Owns when a log is rotated and the order of the steps; which files are kept and how they are called is decided in
//! `lifecycle::log_rotation`. It must not read a log, and knows neither pods nor who follows a log: a follower finds its way by
//! the names of the files.
//!
//! A log is rotated when it has grown, not when somebody happens to look: the growth of every file is waited for, and the
//! interval of the settings is only the safety net. What takes long, which is compressing, comes after the new file is there
//! and never keeps a log waiting.
//!
//! ```text
//! 0.log                          the container writes here
//! 0.log.20260101-120000          the newest that was rotated away; log agents may still read it
//! 0.log.20260101-115950.gz       older ones
//! 0.log.20260101-115950.tmp      a compression under way, or one that was killed
//! ```

mod containers;
mod keeper;
mod rotation;

pub use containers::{LoggedContainers, RunningContainer, RuntimeContainers};
pub use keeper::{RotationHandle, RotationPorts, RotationSettings, start};
