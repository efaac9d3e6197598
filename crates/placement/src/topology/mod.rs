//! Sets of NUMA nodes, hints of the kinds of resources, and the one hint that they are merged to.
//!
//! Owns the types of hints. Each kind of resource makes its own hints; what a hint means for it is its own business.

mod mask;

pub use mask::NumaMask;

/// Nodes on which a resource could be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hint {
    /// Nothing: the resource can be taken anywhere.
    pub nodes: Option<NumaMask>,
    /// No smaller set of nodes could ever hold the request.
    pub preferred: bool,
}

/// The hints of one resource. No hint at all stands for a request that no set of nodes can hold.
///
/// A kind of resource without a wish for a resource leaves it out.
pub type Hints = Vec<Hint>;
