//! The reasons of rejected pods, with upstream's names.

use std::fmt;

/// A reason other than `OutOf…`, which names the scarce resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionReason {
    AppArmor,
    /// The node is under pressure.
    Evicted,
    NodeAffinity,
    NodeName,
    NodePorts,
    /// The machine shuts down.
    NodeShutdown,
    /// The pod uses something that rubelet does not support yet.
    NotSupported,
    PodFeatureUnsupported,
    PodLevelResourcesNotSupported,
    PodOsLabelDoesNotMatch,
    PodOsNotSupported,
    /// The pod is preempted by a critical one.
    Preempting,
    SupplementalGroupsPolicyNotSupported,
    SysctlForbidden,
    TaintToleration,
    UnexpectedAdmissionError,
}

impl AdmissionReason {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AppArmor => "AppArmor",
            Self::Evicted => "Evicted",
            Self::NodeAffinity => "NodeAffinity",
            Self::NodeName => "NodeName",
            Self::NodePorts => "NodePorts",
            Self::NodeShutdown => "NodeShutdown",
            Self::NotSupported => "NotSupported",
            Self::PodFeatureUnsupported => "PodFeatureUnsupported",
            Self::PodLevelResourcesNotSupported => "PodLevelResourcesNotSupported",
            Self::PodOsLabelDoesNotMatch => "PodOSSelectorNodeLabelDoesNotMatch",
            Self::PodOsNotSupported => "PodOSNotSupported",
            Self::Preempting => "Preempting",
            Self::SupplementalGroupsPolicyNotSupported => "SupplementalGroupsPolicyNotSupported",
            Self::SysctlForbidden => "SysctlForbidden",
            Self::TaintToleration => "TaintToleration",
            Self::UnexpectedAdmissionError => "UnexpectedAdmissionError",
        }
    }
}

impl fmt::Display for AdmissionReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl From<AdmissionReason> for String {
    fn from(reason: AdmissionReason) -> Self {
        reason.as_str().to_owned()
    }
}

impl PartialEq<AdmissionReason> for String {
    fn eq(&self, other: &AdmissionReason) -> bool {
        self == other.as_str()
    }
}
