//! The source of a pod, and what follows from it: static, mirror or from the API server.

use k8s_openapi::api::core::v1::Pod;

use super::{MIRROR_ANNOTATION, SOURCE_ANNOTATION, annotation};

/// A source of pods, with upstream's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    File,
    Http,
    Api,
}

impl Source {
    /// The value of [`SOURCE_ANNOTATION`].
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
        }
    }

    /// The source that an annotation names.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let all = [Self::File, Self::Http, Self::Api];
        all.into_iter().find(|source| source.as_str() == text)
    }
}

/// The source that the pod's annotation names; none where it has no annotation or one that no kubelet writes.
#[must_use]
pub fn source_of(pod: &Pod) -> Option<Source> {
    Source::parse(annotation(pod, SOURCE_ANNOTATION)?)
}

/// Whether the pod is static: from a file or a URL. As upstream: any source but the API server counts.
#[must_use]
pub fn is_static_pod(pod: &Pod) -> bool {
    annotation(pod, SOURCE_ANNOTATION).is_some_and(|source| source != Source::Api.as_str())
}

/// Whether the pod comes from the API server.
#[must_use]
pub fn is_api_pod(pod: &Pod) -> bool {
    source_of(pod) == Some(Source::Api)
}

/// Whether the pod is a mirror pod, which shows a static pod in the API.
#[must_use]
pub fn is_mirror_pod(pod: &Pod) -> bool {
    annotation(pod, MIRROR_ANNOTATION).is_some()
}
