//! Sets of NUMA nodes, hints of the kinds of resources, and the one hint that they are merged to.
//!
//! Owns the policies of the topology manager. Each kind of resource makes its own hints; what a hint means for it is its own
//! business.

mod mask;
mod merge;
mod rules;

pub use mask::NumaMask;
pub use merge::merge;
pub use rules::{BadTopologyRules, Policy, Scope, TopologyRules};

/// Nodes on which a resource could be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hint {
    /// Nothing: the resource can be taken anywhere.
    pub nodes: Option<NumaMask>,
    /// No smaller set of nodes could ever hold the request.
    pub preferred: bool,
}

impl Hint {
    /// The hint of a pod for which no policy chooses nodes.
    pub const NONE: Self = Self {
        nodes: None,
        preferred: false,
    };
}

/// The hints of one resource. No hint at all stands for a request that no set of nodes can hold.
///
/// A kind of resource without a wish for a resource leaves it out.
pub type Hints = Vec<Hint>;

/// What a policy made of all hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    pub hint: Hint,
    /// The policy lets a pod with this hint in.
    pub admits: bool,
}
