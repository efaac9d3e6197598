//! The volumes of pods on a virtual clock and a simulated machine, and their files on a real one.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::needless_pass_by_value,
    clippy::unwrap_used,
    reason = "tests are an edge, fail by panicking, and read best with values"
)]

mod api_fed;
mod bed;
mod crashes;
mod objects;
mod real_files;
mod set_up;
mod tear_down;
