//! The credentials for pulling a pod's image, from all sources.
//!
//! Owns the order: the pod's pull secrets, then the node's docker configuration, then plugins. Whatever fits is tried in turn. Where a source
//! gives nothing, the pull goes on without it and names it if it fails.

use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Secret};
use rubelet_model::pod::namespace_of;
use rubelet_ports::{FileReader, PodObjects};
use thiserror::Error;

use crate::credential::{Candidate, Coordinates, Source};
use crate::keyring::Keyring;
use crate::keyring::docker_config::{DockerConfig, DockerConfigError, DockerConfigForm, read};
use crate::providers::CredentialProviders;

const JSON_TYPE: &str = "kubernetes.io/dockerconfigjson";
const JSON_KEY: &str = ".dockerconfigjson";
const LEGACY_TYPE: &str = "kubernetes.io/dockercfg";
const LEGACY_KEY: &str = ".dockercfg";
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Where credentials come from on this node.
#[derive(Clone, Default)]
pub struct CredentialSources {
    /// Pull secrets, on a node of a cluster.
    pub objects: Option<Arc<dyn PodObjects>>,
    pub node_files: Option<NodeDockerConfig>,
    pub providers: Option<Arc<CredentialProviders>>,
}

/// The node's own docker configuration. The files are read for each pull, so that a change counts at once.
#[derive(Clone)]
pub struct NodeDockerConfig {
    pub reader: Arc<dyn FileReader>,
    /// Directories that may hold `config.json`; the first that can be read counts.
    pub json_directories: Vec<PathBuf>,
    /// Directories that may hold `.dockercfg`, which is read when there is no `config.json`.
    pub legacy_directories: Vec<PathBuf>,
}

impl NodeDockerConfig {
    /// Where Docker and upstream look: the agent's root directory, the working directory, the home directory, the root of the filesystem.
    #[must_use]
    pub fn usual_places(
        reader: Arc<dyn FileReader>,
        root_dir: PathBuf,
        working_dir: PathBuf,
        home: PathBuf,
    ) -> Self {
        Self {
            reader,
            json_directories: vec![
                root_dir.clone(),
                working_dir.clone(),
                home.join(".docker"),
                PathBuf::from("/.docker"),
            ],
            legacy_directories: vec![root_dir, working_dir, home, PathBuf::from("/")],
        }
    }

    async fn read(&self) -> DockerConfig {
        let places = [
            (DockerConfigForm::Json, "config.json", &self.json_directories),
            (DockerConfigForm::Legacy, ".dockercfg", &self.legacy_directories),
        ];
        for (form, name, directories) in places {
            for directory in directories {
                let file = directory.join(name);
                match self.reader.read(&file, MAX_FILE_BYTES).await {
                    Ok(bytes) => match read(&bytes, form) {
                        Ok(config) => return config,
                        Err(problem) => {
                            tracing::warn!(file = %file.display(), %problem, "A docker configuration cannot be used");
                        }
                    },
                    Err(error) if error.is_not_found() => {}
                    Err(error) => tracing::debug!(%error, "a docker configuration cannot be read"),
                }
            }
        }
        DockerConfig::new()
    }
}

/// A pull secret that is there and makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("pull secret {namespace}/{name} cannot be used: {problem}")]
pub(crate) struct BrokenSecret {
    namespace: String,
    name: String,
    problem: DockerConfigError,
}

/// What was found for one image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) candidates: Vec<Candidate>,
    /// Names of pull secrets that cannot be had.
    pub(crate) missing_secrets: Vec<String>,
    /// Why plugins gave nothing.
    pub(crate) failures: Vec<String>,
}

impl CredentialSources {
    /// Everything that fits this repository.
    pub(crate) async fn find(&self, repository: &str, pod: &Pod) -> Result<Found, BrokenSecret> {
        let mut found = self.find_at_hand(repository, pod).await?;
        if let Some(providers) = &self.providers {
            let provided = providers.provide(repository, pod).await;
            found.candidates.extend(provided.keyring.candidates(repository));
            found.failures = provided.failures;
        }
        Ok(found)
    }

    /// What can be had without running a program.
    pub(crate) async fn find_at_hand(&self, repository: &str, pod: &Pod) -> Result<Found, BrokenSecret> {
        let (secrets, missing_secrets) = self.secrets(pod).await;
        let mut keyring = Keyring::default();
        for secret in &secrets {
            if let Some((source, config)) = config_of(secret)? {
                keyring.add(&source, config);
            }
        }
        let mut candidates = keyring.candidates(repository);
        if let Some(files) = &self.node_files {
            let mut keyring = Keyring::default();
            keyring.add(&Source::Node, files.read().await);
            candidates.extend(keyring.candidates(repository));
        }
        Ok(Found {
            candidates,
            missing_secrets,
            failures: Vec::new(),
        })
    }

    async fn secrets(&self, pod: &Pod) -> (Vec<Arc<Secret>>, Vec<String>) {
        let namespace = namespace_of(pod);
        let references = pod
            .spec
            .iter()
            .flat_map(|spec| spec.image_pull_secrets.iter().flatten());
        let (mut secrets, mut missing) = (Vec::new(), Vec::new());
        // The API lets references without a name through; they mean nothing.
        for name in references
            .map(|reference| &reference.name)
            .filter(|name| !name.is_empty())
        {
            let Some(objects) = &self.objects else {
                missing.push(name.clone());
                continue;
            };
            match objects.secret(namespace, name).await {
                Ok(secret) => secrets.push(secret),
                Err(failure) => {
                    tracing::info!(namespace, secret = name, %failure, "A pull secret cannot be had; the pull may fail");
                    missing.push(name.clone());
                }
            }
        }
        (secrets, missing)
    }
}

/// Secrets of other types, and without content, hold no credentials.
fn config_of(secret: &Secret) -> Result<Option<(Source, DockerConfig)>, BrokenSecret> {
    let (key, form) = match secret.type_.as_deref() {
        Some(JSON_TYPE) => (JSON_KEY, DockerConfigForm::Json),
        Some(LEGACY_TYPE) => (LEGACY_KEY, DockerConfigForm::Legacy),
        Some(_) | None => return Ok(None),
    };
    let content = secret.data.as_ref().and_then(|data| data.get(key));
    let Some(content) = content.filter(|content| !content.0.is_empty()) else {
        return Ok(None);
    };
    let metadata = &secret.metadata;
    let coordinates = Coordinates {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
    };
    match read(&content.0, form) {
        Ok(config) => Ok(Some((Source::Secret(coordinates), config))),
        Err(problem) => Err(BrokenSecret {
            namespace: coordinates.namespace,
            name: coordinates.name,
            problem,
        }),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn check(secret: serde_json::Value, expected: Result<Option<usize>, &str>) {
        let mut text = secret;
        text["metadata"] = serde_json::json!({"namespace": "ns", "name": "s", "uid": "1"});
        let secret: Secret = serde_json::from_value(text.clone()).unwrap();
        let found = config_of(&secret).map(|found| found.map(|(_, config)| config.len()));
        let found = found.map_err(|error| error.to_string());
        assert_eq!(
            found.as_ref().map(|found| *found).map_err(String::as_str),
            expected,
            "{text}"
        );
    }

    /// Every line of the golden is a question with upstream's answer.
    #[test]
    fn upstream_finds_the_same_in_the_same_order() {
        let golden = include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../testbed/goldens/pull_credentials.jsonl"
        ));
        assert!(golden.lines().count() > 1000);
        for line in golden.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let mut keyring = Keyring::default();
            let mut is_ok = true;
            for (place, asked) in line["input"]["secrets"].as_array().unwrap().iter().enumerate() {
                let text = |name: &str| asked[name].as_str().unwrap();
                let mut secret = Secret {
                    type_: Some(text("type").to_owned()),
                    data: Some([(text("key").to_owned(), ByteString(text("content").into()))].into()),
                    ..Secret::default()
                };
                secret.metadata.name = Some(place.to_string());
                match config_of(&secret) {
                    Ok(Some((source, config))) => keyring.add(&source, config),
                    Ok(None) => {}
                    Err(_) => is_ok = false,
                }
            }
            let entry = |one: Candidate| {
                let Source::Secret(secret) = &one.source else {
                    panic!("{one:?}")
                };
                serde_json::json!({"secret": secret.name, "username": one.user.username, "password": one.user.password,
                    "hash": one.hash})
            };
            let found = keyring.candidates(line["input"]["image"].as_str().unwrap());
            let found: Vec<_> = found.into_iter().map(entry).collect();
            let ours = match is_ok {
                true => serde_json::json!({"ok": true, "found": found}),
                false => serde_json::json!({"ok": false, "found": null}),
            };
            assert_eq!(ours, line["output"], "{line}");
        }
    }

    #[test]
    fn both_types_of_secrets() {
        // {"auths":{"r.io":{"auth":"dTpw"}}} and {"r.io":{"auth":"dTpw"}}
        let json = "eyJhdXRocyI6eyJyLmlvIjp7ImF1dGgiOiJkVHB3In19fQ==";
        let legacy = "eyJyLmlvIjp7ImF1dGgiOiJkVHB3In19";
        check(
            serde_json::json!({"type": JSON_TYPE, "data": {JSON_KEY: json}}),
            Ok(Some(1)),
        );
        check(
            serde_json::json!({"type": LEGACY_TYPE, "data": {LEGACY_KEY: legacy}}),
            Ok(Some(1)),
        );
        // The type says which key counts.
        check(
            serde_json::json!({"type": LEGACY_TYPE, "data": {JSON_KEY: json}}),
            Ok(None),
        );
        check(
            serde_json::json!({"type": "Opaque", "data": {JSON_KEY: json}}),
            Ok(None),
        );
        check(serde_json::json!({"data": {JSON_KEY: json}}), Ok(None));
        check(
            serde_json::json!({"type": JSON_TYPE, "data": {JSON_KEY: ""}}),
            Ok(None),
        );
        check(
            serde_json::json!({"type": JSON_TYPE, "data": {JSON_KEY: "c2VjcmV0"}}),
            Err("pull secret ns/s cannot be used: it is no valid JSON"),
        );
    }
}
