//! Rotation of container logs: no log grows beyond what the settings allow, and no line is lost on the way.
//!
//! Owns when a log is rotated and the order of the steps; `lifecycle::log_rotation` decides which files are kept and how they are
//! named. It must not read a log, and knows neither pods nor the followers of a log: a follower goes by the names of the files.
//!
//! A log is rotated when it has grown: each file is watched, and the interval of the settings is only the safety net. Compression,
//! which takes long, comes after the new file is there and delays no rotation.
//!
//! ```text
//! 0.log                          the container writes here
//! 0.log.20260101-120000          the newest that was rotated away; log agents may still read it
//! 0.log.20260101-115950.gz       older ones
//! 0.log.20260101-115950.tmp      a compression under way, or one that was killed
//! ```

mod containers;
mod rotation;
mod rotator;

pub use containers::{LoggedContainers, RunningContainer, RuntimeContainers};
pub use rotator::{RotationHandle, RotationPorts, RotationSettings, start};
