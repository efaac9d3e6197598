//! Why a pod does not get what it asks for, with the reasons and messages of upstream's kubelet.

/// A pod that is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("Resources cannot be allocated with Topology locality")]
    Locality,
    #[error(
        "Pod Scope pod with pod-level resources failed admission with a container-level topology manager"
    )]
    PodLevelLocalityInContainerScope,
    #[error("Pod Scope pod with pod-level resources failed admission under pod-scope topology manager")]
    PodLevelLocality,
    #[error("SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")]
    PartOfCore { requested: usize, per_core: usize },
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, \
         requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    TooFewCores {
        available: u64,
        requested: usize,
        per_core: usize,
    },
    /// The containers with resources of their own leave nothing of the pod's to the others.
    #[error("{0}")]
    EmptyPodSharedPool(String),
    #[error("Allocate failed due to {0}, which is unexpected")]
    Unexpected(String),
}

impl Refusal {
    /// The reason in the pod's status.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Locality | Self::PodLevelLocalityInContainerScope | Self::PodLevelLocality => {
                "TopologyAffinityError"
            }
            Self::PartOfCore { .. } | Self::TooFewCores { .. } => "SMTAlignmentError",
            Self::EmptyPodSharedPool(_) => "EmptyPodSharedPoolError",
            Self::Unexpected(_) => "UnexpectedAdmissionError",
        }
    }

    pub(crate) fn unexpected(error: &dyn std::error::Error) -> Self {
        Self::Unexpected(error.to_string())
    }
}
