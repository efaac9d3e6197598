//! Placement by tables and properties.
#![allow(clippy::expect_used, reason = "a test that cannot read its own input fails")]

mod machine;
