//! What a pod refers to in the API, read from its spec.
//!
//! Owns which fields of the spec are references. It must not know how an object is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, EnvFromSource, EnvVar, Pod, PodCertificateProjection, PodSpec, Volume,
    VolumeProjection,
};
use rubelet_lifecycle::configuration::object_variables;
use rubelet_model::pod::volume_secrets;
use rubelet_ports::TrustQuestion;

/// What an object is good for. The later ones need it more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Read when an image is pulled, if at all.
    Pull,
    /// Read when a container starts.
    Environment,
    /// In files that have to follow it.
    Volume,
}

/// A projected source that asks for a certificate.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificatePlace {
    pub volume: String,
    pub source: usize,
    pub wish: PodCertificateProjection,
}

/// A token that a projected source asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenWish {
    pub audience: Option<String>,
    pub expiration_seconds: i64,
}

/// The file of a projected volume that shows a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPlace {
    pub volume: String,
    /// Below the volume's directory.
    pub path: String,
}

/// What a source without a time of its own asks for.
const TOKEN_SECONDS: i64 = 3600;

/// Everything one pod refers to; ConfigMaps and Secrets are of the pod's namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct References {
    pub config_maps: BTreeMap<String, Purpose>,
    pub secrets: BTreeMap<String, Purpose>,
    /// With the files that show each.
    pub tokens: BTreeMap<TokenWish, Vec<TokenPlace>>,
    pub trust: Vec<TrustQuestion>,
    pub certificates: Vec<CertificatePlace>,
}

impl References {
    #[must_use]
    pub fn of(pod: &Arc<Pod>) -> Self {
        let mut found = Self::default();
        let Some(spec) = &pod.spec else { return found };
        for secret in spec.image_pull_secrets.iter().flatten() {
            add(&mut found.secrets, &secret.name, Purpose::Pull);
        }
        found.add_environments(spec);
        for volume in spec.volumes.iter().flatten() {
            found.add_volume(volume);
        }
        found
    }

    /// Whether files of the pod follow an object.
    #[must_use]
    pub fn has_files(&self) -> bool {
        let mut purposes = self.config_maps.values().chain(self.secrets.values());
        purposes.any(|purpose| *purpose == Purpose::Volume)
    }

    fn add_environments(&mut self, spec: &PodSpec) {
        let init = spec.init_containers.iter().flatten();
        for container in init.chain(&spec.containers) {
            self.add_environment(container.env_from.as_deref(), container.env.as_deref());
        }
        for container in spec.ephemeral_containers.iter().flatten() {
            self.add_environment(container.env_from.as_deref(), container.env.as_deref());
        }
    }

    fn add_environment(&mut self, env_from: Option<&[EnvFromSource]>, env: Option<&[EnvVar]>) {
        let found = object_variables::references(env_from.unwrap_or_default(), env.unwrap_or_default());
        for name in &found.config_maps {
            add(&mut self.config_maps, name, Purpose::Environment);
        }
        for name in &found.secrets {
            add(&mut self.secrets, name, Purpose::Environment);
        }
    }

    fn add_projection(&mut self, volume: &str, index: usize, source: &VolumeProjection) {
        if let Some(map) = &source.config_map {
            add(&mut self.config_maps, &map.name, Purpose::Volume);
        }
        if let Some(secret) = &source.secret {
            add(&mut self.secrets, &secret.name, Purpose::Volume);
        }
        if let Some(token) = &source.service_account_token {
            let wish = TokenWish {
                audience: token.audience.clone().filter(|audience| !audience.is_empty()),
                expiration_seconds: token.expiration_seconds.unwrap_or(TOKEN_SECONDS),
            };
            self.add_token(
                wish,
                TokenPlace {
                    volume: volume.to_owned(),
                    path: token.path.clone(),
                },
            );
        }
        self.trust
            .extend(source.cluster_trust_bundle.as_ref().and_then(trust_question));
        if let Some(wish) = &source.pod_certificate {
            self.certificates.push(CertificatePlace {
                volume: volume.to_owned(),
                source: index,
                wish: wish.clone(),
            });
        }
    }

    fn add_token(&mut self, wish: TokenWish, place: TokenPlace) {
        // Of two sources with the same path the later counts.
        for places in self.tokens.values_mut() {
            places.retain(|other| *other != place);
        }
        self.tokens.entry(wish).or_default().push(place);
    }

    fn add_volume(&mut self, volume: &Volume) {
        if let Some(projected) = &volume.projected {
            for (index, source) in projected.sources.iter().flatten().enumerate() {
                self.add_projection(&volume.name, index, source);
            }
        }
        if let Some(map) = &volume.config_map {
            add(&mut self.config_maps, &map.name, Purpose::Volume);
        }
        for name in volume_secrets(volume) {
            add(&mut self.secrets, name, Purpose::Volume);
        }
    }
}

/// The bundles that a projected source asks for: a name wins over a signer.
#[must_use]
pub fn trust_question(source: &ClusterTrustBundleProjection) -> Option<TrustQuestion> {
    if let Some(name) = &source.name {
        return Some(TrustQuestion::Named(name.clone()));
    }
    let signer = source.signer_name.clone()?;
    Some(TrustQuestion::Signed {
        signer,
        labels: source.label_selector.clone(),
    })
}

fn add(names: &mut BTreeMap<String, Purpose>, name: &str, purpose: Purpose) {
    if name.is_empty() {
        return;
    }
    let own = names.entry(name.to_owned()).or_insert(purpose);
    *own = (*own).max(purpose);
}
