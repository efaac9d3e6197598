//! Placement by tables and properties.

mod machine;
