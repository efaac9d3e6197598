//! The node's pressure conditions.

/// Which resources are under pressure, after thresholds and transition periods are applied.
///
/// A watch of it carries `Option<Pressure>`: `None` until the first sample was judged, so that a restart clears no condition
/// that still holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pid: bool,
}
