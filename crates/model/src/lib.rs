//! Words shared by every layer: quantities, cpu sets, durations, names and addresses.
//!
//! Everything here is a pure value: parsed from text, compared, printed. No clock, no files, no globals, and nothing that
//! knows a configuration field or an API call.

pub mod address;
pub mod cpuset;
pub mod duration;
pub mod names;
pub mod quantity;

pub use cpuset::CpuSet;
pub use duration::GoDuration;
pub use quantity::Quantity;
