//! The API objects that a pod's volumes need, and the answers to these needs.
//!
//! Owns the needs, each of them once, and the form of the answers. It calls nothing: the caller of a plan passes the answers in.
//! Answers are secret and cannot be printed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, ConfigMap, Pod, Secret, ServiceAccountTokenProjection, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::volume::{Kind, ProjectedSource, used_volumes};

/// What API defaulting fills in.
const TOKEN_SECONDS: i64 = 3600;

/// A token of the pod's service account, bound to the pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenNeed {
    /// The API server itself when there is none.
    pub audience: Option<String>,
    pub expiration_seconds: i64,
}

/// Trust anchors in one file.
#[derive(Clone, Debug, PartialEq)]
pub enum BundleNeed {
    Named(String),
    Signed {
        signer: String,
        labels: Option<LabelSelector>,
    },
}

/// The certificate of a source, by its place in the pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateNeed {
    pub volume: String,
    pub source: usize,
}

/// All that the volumes of a pod need; objects are of the pod's namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectNeeds {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
    pub tokens: BTreeSet<TokenNeed>,
    pub bundles: Vec<BundleNeed>,
    pub certificates: BTreeSet<CertificateNeed>,
}

impl ObjectNeeds {
    /// What the volumes need that any container mounts.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let mut needs = Self::default();
        for volume in used_volumes(pod) {
            needs.add(volume);
        }
        needs
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, volume: &Volume) {
        match Kind::of(volume) {
            Ok(Kind::ConfigMap(source)) => {
                self.config_maps.insert(source.name.clone());
            }
            Ok(Kind::Secret(source)) => {
                self.secrets
                    .insert(source.secret_name.clone().unwrap_or_default());
            }
            Ok(Kind::Projected(source)) => {
                for (index, one) in source.sources.iter().flatten().enumerate() {
                    self.add_source(&volume.name, index, ProjectedSource::of(one));
                }
            }
            Ok(Kind::EmptyDir(_) | Kind::HostPath(_) | Kind::DownwardApi(_) | Kind::Image) | Err(_) => {}
        }
    }

    fn add_source(&mut self, volume: &str, index: usize, source: Option<ProjectedSource<'_>>) {
        match source {
            Some(ProjectedSource::Secret(secret)) => {
                self.secrets.insert(secret.name.clone());
            }
            Some(ProjectedSource::ConfigMap(map)) => {
                self.config_maps.insert(map.name.clone());
            }
            Some(ProjectedSource::Token(token)) => {
                self.tokens.insert(token_need(token));
            }
            Some(ProjectedSource::Bundle(bundle)) => {
                let need = bundle_need(bundle);
                self.bundles
                    .extend(need.filter(|need| !self.bundles.contains(need)));
            }
            Some(ProjectedSource::Certificate(_)) => {
                let volume = volume.to_owned();
                let source = index;
                self.certificates.insert(CertificateNeed { volume, source });
            }
            Some(ProjectedSource::Downward(_)) | None => {}
        }
    }
}

pub(crate) fn token_need(source: &ServiceAccountTokenProjection) -> TokenNeed {
    TokenNeed {
        audience: source.audience.clone().filter(|audience| !audience.is_empty()),
        expiration_seconds: source.expiration_seconds.unwrap_or(TOKEN_SECONDS),
    }
}

/// Nothing when the source names neither a bundle nor a signer.
pub(crate) fn bundle_need(source: &ClusterTrustBundleProjection) -> Option<BundleNeed> {
    match (&source.name, &source.signer_name) {
        (Some(name), _) => Some(BundleNeed::Named(name.clone())),
        (None, Some(signer)) => Some(BundleNeed::Signed {
            signer: signer.clone(),
            labels: source.label_selector.clone(),
        }),
        (None, None) => None,
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// The text that users read; never with anything of a secret.
    pub message: String,
    /// The API server answers that the object does not exist, so that an optional reference is empty.
    pub is_not_found: bool,
}

pub type Answer<T> = Result<T, Absence>;

/// A key and its certificates, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub key: Vec<u8>,
    pub chain: Vec<u8>,
}

/// An answer for each need.
#[derive(Clone, Default)]
pub struct ObjectAnswers {
    pub config_maps: BTreeMap<String, Answer<Arc<ConfigMap>>>,
    pub secrets: BTreeMap<String, Answer<Arc<Secret>>>,
    pub tokens: BTreeMap<TokenNeed, Answer<String>>,
    pub bundles: Vec<(BundleNeed, Answer<Arc<str>>)>,
    pub certificates: BTreeMap<CertificateNeed, Answer<Credentials>>,
}
