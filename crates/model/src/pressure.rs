//! What the node runs short of.

/// Whether the node is short of something, after thresholds and transition periods have had their say.
///
/// A watch of it carries `Option<Pressure>`: `None` until the first sample was judged, so that a restart clears no condition
/// that still holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pid: bool,
}
