//! Types shared by every layer: quantities, cpu sets, durations, names, addresses, pods, and what is observed of a pod.
//!
//! Everything here is a pure value: parsed from text, compared, printed. No clock, no files, no globals, and nothing that
//! knows a configuration field or an API call.

pub mod address;
pub mod cgroup;
pub mod cpuset;
pub mod document;
pub mod duration;
pub mod explanation;
mod go_json;
pub mod image_reference;
pub mod machine;
pub mod message;
pub mod names;
pub mod observation;
pub mod pod;
pub mod pressure;
pub mod quantity;
pub mod runtime_report;
pub mod signals;
pub mod time;
pub mod token_claims;
pub mod volume_step;

pub use cpuset::CpuSet;
pub use duration::GoDuration;
pub use go_json::go_json;
pub use pressure::Pressure;
pub use quantity::Quantity;
pub use runtime_report::{HandlerAbilities, RuntimeAbilities, RuntimeContact, RuntimeLists, RuntimeReport};
pub use time::{MAX_PERIOD_SECONDS, Timestamp, period};
