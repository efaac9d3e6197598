//! The program as a user meets it: its command line, its errors, its log, its end.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "black-box tests run the real program"
)]

mod command_line;
mod lifecycle;
